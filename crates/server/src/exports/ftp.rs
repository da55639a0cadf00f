//! FTP by vsftpd: a process for each share.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use doors::{Export, vsftpd};
use rustix::process::{Pid, Signal};

use super::kept::{Kept, Server};
use super::process::{Process, end_all, wait_until};
use super::world::World;
use super::{rpc, tools};

/// The package of the server.
pub const PACKAGE: &str = "vsftpd";
/// The program.
pub const PROGRAM: &str = "vsftpd";
/// How long a change takes at most to come into force.
const SECONDS: u32 = 15;

struct Vsftpd<'a> {
    world: &'a World,
    share: &'a str,
    port: u16,
}

impl Server for Vsftpd<'_> {
    fn name(&self) -> String {
        format!("ftp of share '{}'", self.share)
    }

    // It has no checker. A running one passes over lines that it does not understand, and goes on
    // without them; they end it when it starts. So it is started without a port: it reads its file,
    // and then misses the connection that inetd would give it.
    fn check(&self, file: &Path) -> Result<(), String> {
        let path = file.display().to_string();
        let words = [path.as_str(), "-olisten=NO", "-olisten_ipv6=NO"];
        let said = tools::answer(PROGRAM, PACKAGE, &words, &file.with_extension("said"))?;
        match said.trim().strip_prefix("500 OOPS: ") {
            Some(why) if !why.contains("inetd") => Err(format!("{PROGRAM} says: {why}")),
            _ => Ok(()),
        }
    }

    fn command(&self, file: &Path) -> Result<Command, String> {
        let mut command = tools::command(PROGRAM, PACKAGE)?;
        command.arg(file);
        Ok(command)
    }

    fn needs_restart(&self, old: &str, new: &str) -> bool {
        let of =
            |text: &str| text.lines().filter(|line| line.starts_with("listen")).map(str::to_owned).collect::<Vec<_>>();
        of(old) != of(new)
    }

    fn reload(&self, process: &Process, _: &str, _: &str) -> Result<(), String> {
        process.signal(Signal::HUP);
        Ok(())
    }

    fn end_sessions(&self, process: &Process, _: &[Pid], _: &str, _: &str) {
        // One that began while the old text was still in force, too. Clients connect again.
        end_all(&process.sessions());
    }

    fn serves(&self, process: &mut Process, text: &str) -> Result<(), String> {
        let greeting = text.lines().rev().find_map(|line| line.strip_prefix("ftpd_banner=")).unwrap_or_default();
        let mut said = "it has ended".to_owned();
        wait_until(SECONDS, || {
            if !process.is_alive() {
                return true;
            }
            said = match rpc::greeting(self.world.settings.address, self.port) {
                Ok(heard) if heard.contains(greeting) => String::new(),
                Ok(heard) => format!("it greets with '{heard}', not with '{greeting}'"),
                Err(error) => error,
            };
            said.is_empty()
        });
        if said.is_empty() { Ok(()) } else { Err(said) }
    }
}

/// Brings the servers in step with the shares that they are to give out.
///
/// # Errors
/// In words.
pub fn bring(all: &mut BTreeMap<String, Kept>, world: &World, exports: &[&Export]) -> Result<(), String> {
    let places = world.places("ftp");
    let empty = Path::new(&places.state).join("empty");
    std::fs::create_dir_all(&empty).map_err(|error| format!("{} cannot be made: {error}", empty.display()))?;
    let wanted: Vec<_> = exports.iter().map(|export| export.word()).collect();
    all.retain(|word, kept| {
        let stays = wanted.contains(word);
        if !stays {
            kept.stop();
        }
        stays
    });
    let mut faults = Vec::new();
    let mut ports = BTreeMap::new();
    for export in exports {
        let (word, port) = (export.word(), vsftpd::port(export, &world.settings));
        if let Some(other) = ports.insert(port, &export.name) {
            faults.push(format!(
                "ftp: share '{}' is not served, since port {port} is that of share '{other}': say port=N in one of them",
                export.name
            ));
            ports.insert(port, other);
            continue;
        }
        let process = || Process::find(&world.dir, &format!("ftp-{word}"));
        let kept = all.entry(word.clone()).or_insert_with(|| Kept::new(process()));
        let (text, _) = vsftpd::server(&world.settings, &places, export, &world.own("vsftpd.local.conf"));
        let server = Vsftpd { world, share: &export.name, port };
        faults.extend(kept.bring(&server, &world.file(&format!("vsftpd-{word}.conf")), &text).err());
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("; ")) }
}
