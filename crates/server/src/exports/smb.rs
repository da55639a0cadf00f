//! SMB by Samba.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use doors::{Export, samba};

use super::kept::{Kept, Server};
use super::process::{Process, wait_until};
use super::world::World;
use super::{rpc, tools};

/// The package of the server.
pub const PACKAGE: &str = "samba";
/// The program.
pub const PROGRAM: &str = "smbd";
/// The package of what it needs for streams, ACLs and earlier versions.
pub const MODULES_PACKAGE: &str = "samba-vfs-modules";
/// How long a change takes at most to come into force.
const SECONDS: u32 = 20;

struct Samba<'a> {
    world: &'a World,
}

/// The sections of a file, by name.
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

    fn check(&self, file: &Path) -> Result<(), String> {
        let (_, said) = tools::run("testparm", "samba-common-bin", &["-s", &file.display().to_string()])?;
        // It goes on past these, and so would the server, without the meant setting.
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
        // A session keeps the rights that it was given when it connected to the share: it connects
        // again by itself.
        let new = sections(new);
        for (name, was) in sections(old) {
            if !["", "global"].contains(&name) && new.get(name) != Some(&was) {
                self.control(&["smbd", "close-share", name])?;
            }
        }
        Ok(())
    }

    fn serves(&self, process: &mut Process, _: &str) -> Result<(), String> {
        let World { settings, .. } = self.world;
        let mut said = "it has ended".to_owned();
        wait_until(SECONDS, || {
            let Some(pid) = process.is_alive().then(|| process.pid()).flatten() else { return true };
            // Messages are read in turn: an answer comes behind the reading of the file.
            let answers = rpc::connect(settings.address, settings.smb_port)
                .map(drop)
                .and_then(|()| self.control(&[&pid.to_string(), "ping"]).map(drop));
            said = answers.err().unwrap_or_default();
            said.is_empty()
        });
        if said.is_empty() { Ok(()) } else { Err(said) }
    }
}

/// Brings the server in step with the shares that it is to give out.
///
/// # Errors
/// In words.
pub fn bring(kept: &mut Kept, world: &World, exports: &[&Export]) -> Result<(), String> {
    if exports.is_empty() {
        kept.stop();
        return Ok(());
    }
    let mut served = Vec::new();
    let mut faults = Vec::new();
    let mut words = BTreeMap::new();
    for export in exports {
        let word = export.word();
        match samba::check_name(&word) {
            Err(why) => faults.push(format!("smb: {why}")),
            Ok(()) => match words.insert(word.to_ascii_lowercase(), &export.name) {
                Some(other) => {
                    faults.push(format!("smb: shares '{other}' and '{}' would both be called '{word}'", export.name))
                }
                None => served.push(*export),
            },
        }
    }
    let places = world.places("smb");
    let private = Path::new(&places.state).join("ncalrpc");
    std::fs::create_dir_all(&private).map_err(|error| format!("{} cannot be made: {error}", private.display()))?;
    let text = samba::server(&world.settings, &places, &served, &world.own("smb.local.conf"));
    kept.bring(&Samba { world }, &world.file("smb.conf"), &text)?;
    if faults.is_empty() { Ok(()) } else { Err(faults.join("; ")) }
}
