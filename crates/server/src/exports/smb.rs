//! SMB by Samba.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use doors::{Door, Export, samba};
use engine::Pool;
use rustix::io::Errno;

use super::keeper::Servers;
use super::kept::{Kept, Server};
use super::moments::Moments;
use super::process::Process;
use super::world::World;
use super::{Fault, rpc, tools};

/// Package of the server.
pub const PACKAGE: &str = "samba";
/// Program of the server.
pub const PROGRAM: &str = "smbd";
/// Package of its modules for streams, ACLs and earlier versions.
pub const MODULES_PACKAGE: &str = "samba-vfs-modules";
/// Maximum seconds until a change is in force.
const SECONDS: u32 = 20;

/// Why a mount without extended attributes is not served.
const NO_XATTRS: &str = "its mount has no extended attributes (xattr=off), in which SMB keeps streams, DOS attributes and ACLs: \
                         set xattr=on and mount it again (end the server with SIGTERM and start it), or set smb=off";

/// Fails for a mount without extended attributes, in which the server keeps streams, DOS attributes
/// and ACLs of clients.
pub fn check_xattrs(dir: &Path) -> Result<(), String> {
    let found = rustix::fs::getxattr(dir, "user.shale.compression", &mut [0_u8; 64][..]);
    // Another failure is one of every request there.
    if found == Err(Errno::OPNOTSUPP) { Err(NO_XATTRS.to_owned()) } else { Ok(()) }
}

struct Samba<'a> {
    world: &'a World,
}

/// Returns the sections of a file, by name.
fn sections(text: &str) -> BTreeMap<&str, String> {
    let mut all: BTreeMap<&str, String> = BTreeMap::new();
    let mut name = "";
    for line in text.lines() {
        match line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            Some(next) => name = next,
            None => all.entry(name).or_default().push_str(line),
        }
    }
    all
}

impl Samba<'_> {
    fn control(&self, words: &[&str]) -> Result<String, String> {
        let file = self.world.file("smb.conf").display().to_string();
        let all = [&["-s", &file], words].concat();
        tools::run("smbcontrol", PACKAGE, &all).map(|(out, _)| out)
    }
}

impl Server for Samba<'_> {
    fn name(&self) -> String {
        "smb".to_owned()
    }

    fn listens(&self, text: &str) -> SocketAddr {
        let World { settings, .. } = self.world;
        samba::listens(text).unwrap_or((settings.address, settings.smb_port).into())
    }

    fn is_given_up(&self) -> bool {
        self.world.ends()
    }

    fn check(&self, file: &Path) -> Result<(), String> {
        let (_, said) = tools::run("testparm", "samba-common-bin", &["-s", &file.display().to_string()])?;
        // The checker continues after these, and the server would run without the intended setting.
        let fault = said.lines().find(|line| line.contains("nknown parameter") || line.contains("ERROR"));
        fault.map_or(Ok(()), |line| Err(line.trim().to_owned()))
    }

    fn command(&self, file: &Path) -> Result<Command, String> {
        let mut command = tools::command(PROGRAM, PACKAGE)?;
        command.args(["-F", "--no-process-group", "-s"]).arg(file);
        Ok(command)
    }

    fn needs_restart(&self, old: &str, new: &str) -> bool {
        let of_process = |text: &str| {
            let is_meant = |line: &&str| {
                ["smb ports", "interfaces", "bind interfaces", "netbios name"]
                    .iter()
                    .any(|key| line.trim().starts_with(key))
            };
            text.lines().filter(is_meant).map(str::to_owned).collect::<Vec<_>>()
        };
        of_process(old) != of_process(new)
    }

    fn reload(&self, _: &Process, old: &str, new: &str) -> Result<(), String> {
        self.control(&["smbd", "reload-config"])?;
        // A session keeps the rights from the time when it connected to the share: its client
        // reconnects by itself.
        let new = sections(new);
        for (name, was) in sections(old) {
            if !["", "global"].contains(&name) && new.get(name) != Some(&was) {
                self.control(&["smbd", "close-share", name])?;
            }
        }
        Ok(())
    }

    fn serves(&self, process: &mut Process, text: &str) -> Result<(), String> {
        let at = self.listens(text);
        let mut said = "it has ended".to_owned();
        self.world.wait(SECONDS, || {
            let Some(pid) = process.is_alive().then(|| process.pid()).flatten() else { return true };
            // Messages are handled in order: the answer follows the reading of the file.
            let answers = rpc::connect(at).and_then(|()| self.control(&[&pid.to_string(), "ping"]).map(drop));
            said = answers.err().unwrap_or_default();
            said.is_empty()
        });
        if said.is_empty() { Ok(()) } else { Err(said) }
    }
}

/// The server.
pub struct Smb {
    kept: Kept,
    pool: Pool,
    moments: Moments,
}

impl Smb {
    /// Finds the server that may be running already.
    pub fn find(dir: &Path, pool: &Pool) -> Self {
        Self { kept: Kept::new(Process::find(dir, "smbd")), pool: pool.clone(), moments: Moments::default() }
    }

    fn bring_all(&mut self, world: &World, exports: &[&Export]) -> Result<(), String> {
        let places = world.places("smb");
        let private = Path::new(&places.state).join("ncalrpc");
        std::fs::create_dir_all(&private).map_err(|error| format!("{} cannot be made: {error}", private.display()))?;
        self.moments.follow(world, &self.pool, exports)?;
        let text = samba::server(&world.settings, &places, exports, &world.own("smb.local.conf"));
        self.kept.bring(&Samba { world }, &world.file("smb.conf"), &text)
    }
}

/// Returns the shares with a unique name for SMB clients, and the faults of the others.
fn named<'a>(exports: &[&'a Export]) -> (Vec<&'a Export>, Vec<Fault>) {
    let mut served = Vec::new();
    let mut faults = Vec::new();
    let mut words = BTreeMap::new();
    for export in exports {
        let word = export.word();
        let taken = samba::check_name(&word).and_then(|()| match words.get(&word.to_ascii_lowercase()) {
            Some(other) => Err(format!("shares '{other}' and '{}' would have the same name '{word}'", export.name)),
            None => Ok(()),
        });
        match taken {
            Ok(()) => {
                words.insert(word.to_ascii_lowercase(), &export.name);
                served.push(*export);
            }
            Err(why) => {
                let text = format!("smb: share '{}' is not served: {why}", export.name);
                faults.push(Fault { door: Door::Smb, share: Some(export.name.clone()), text });
            }
        }
    }
    (served, faults)
}

impl Servers for Smb {
    fn bring(&mut self, world: &World, exports: &[&Export]) -> Vec<Fault> {
        if exports.is_empty() {
            self.kept.stop();
            return Vec::new();
        }
        let (served, mut faults) = named(exports);
        let done = self.bring_all(world, &served);
        faults.extend(done.err().map(|text| Fault { door: Door::Smb, share: None, text }));
        faults
    }

    fn hurry(&mut self) {
        self.kept.hurry();
    }

    fn stop(&mut self) {
        self.kept.stop();
    }

    fn pids(&self) -> BTreeMap<String, i32> {
        self.kept.process.pid().map(|pid| (String::new(), pid)).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use doors::Access;

    use super::*;

    #[test]
    fn a_mount_without_extended_attributes_is_not_served() {
        let why = check_xattrs(Path::new("/proc")).unwrap_err();
        assert!(why.contains("xattr=off") && why.contains("xattr=on"), "{why}");
        let dir = testkit::TempDir::new("smb-xattrs");
        assert_eq!(check_xattrs(dir.path()), Ok(()));
    }

    #[test]
    fn a_share_without_a_name_for_smb_is_at_fault_itself() {
        let export = |name: &str| Export::through(Door::Smb, Access::default(), 1, name.to_owned(), "/s".to_owned());
        let all = ["a-b", "a/b", "homes", "z"].map(export);
        let (served, faults) = named(&all.iter().collect::<Vec<_>>());
        assert_eq!(served.iter().map(|export| &*export.name).collect::<Vec<_>>(), ["a-b", "z"]);
        assert_eq!(faults.iter().map(|fault| fault.share.as_deref()).collect::<Vec<_>>(), [Some("a/b"), Some("homes")]);
        assert!(faults[0].text.contains("would have the same name 'a-b'"), "{}", faults[0].text);
    }
}
