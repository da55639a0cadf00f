//! FTP by vsftpd: one process per share.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use doors::{Door, Export, vsftpd};
use rustix::process::{Pid, Signal};

use super::keeper::Servers;
use super::kept::{Kept, Server};
use super::process::{Process, end_all};
use super::world::World;
use super::{Fault, rpc, tools};

/// Package of the server.
pub const PACKAGE: &str = "vsftpd";
/// Program of the server.
pub const PROGRAM: &str = "vsftpd";
/// Maximum seconds until a change is in force.
const SECONDS: u32 = 15;

struct Vsftpd<'a> {
    world: &'a World,
    share: &'a str,
}

impl Server for Vsftpd<'_> {
    fn name(&self) -> String {
        format!("ftp of share '{}'", self.share)
    }

    fn listens(&self, text: &str) -> SocketAddr {
        let World { settings, .. } = self.world;
        vsftpd::listens(text).unwrap_or((settings.address, settings.ftp_port).into())
    }

    fn is_given_up(&self) -> bool {
        self.world.ends()
    }

    // vsftpd has no checker. A running one skips lines that it does not understand; at its start
    // they end it. So it is started without a port: it reads its file, and then misses the
    // connection that inetd would provide.
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
        // Including sessions that began while the old text was in force. Clients connect again.
        end_all(&process.sessions());
    }

    fn serves(&self, process: &mut Process, text: &str) -> Result<(), String> {
        let greeting = text.lines().rev().find_map(|line| line.strip_prefix("ftpd_banner=")).unwrap_or_default();
        let mut said = "it has ended".to_owned();
        let at = self.listens(text);
        self.world.wait(SECONDS, || {
            if !process.is_alive() {
                return true;
            }
            said = match rpc::greeting(at) {
                Ok(heard) if heard.contains(greeting) => String::new(),
                Ok(heard) => format!("it greets with '{heard}', not with '{greeting}'"),
                Err(error) => error,
            };
            said.is_empty()
        });
        if said.is_empty() { Ok(()) } else { Err(said) }
    }
}

/// The servers, by the keys of their shares.
pub struct Ftp(BTreeMap<String, Kept>);

impl Ftp {
    /// Finds servers that may be running already.
    pub fn find(world: &World) -> Self {
        let mut all = BTreeMap::new();
        for entry in std::fs::read_dir(world.file("state")).into_iter().flatten().flatten() {
            let file = entry.file_name().to_string_lossy().into_owned();
            if let Some(word) = file.strip_prefix("ftp-").and_then(|word| word.strip_suffix(".pid")) {
                all.insert(word.to_owned(), Kept::new(process(world, word)));
            }
        }
        Self(all)
    }
}

fn process(world: &World, word: &str) -> Process {
    Process::find(&world.dir, &format!("ftp-{word}"))
}

impl Servers for Ftp {
    fn bring(&mut self, world: &World, exports: &[&Export]) -> Vec<Fault> {
        let places = world.places("ftp");
        let empty = Path::new(&places.state).join("empty");
        if let Err(error) = std::fs::create_dir_all(&empty) {
            let text = format!("ftp: {} cannot be made: {error}", empty.display());
            return vec![Fault { door: Door::Ftp, share: None, text }];
        }
        let wanted: Vec<_> = exports.iter().map(|export| export.word()).collect();
        self.0.retain(|word, kept| {
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
            let of_share = |text: String| Fault { door: Door::Ftp, share: Some(export.name.clone()), text };
            if let Some(other) = ports.get(&port) {
                faults.push(of_share(format!(
                    "ftp: share '{}' is not served, because port {port} belongs to share '{other}': set port=N for \
                     one of them",
                    export.name
                )));
                continue;
            }
            ports.insert(port, &export.name);
            let kept = self.0.entry(word.clone()).or_insert_with(|| Kept::new(process(world, &word)));
            let (text, _) = vsftpd::server(&world.settings, &places, export, &world.own("vsftpd.local.conf"));
            let server = Vsftpd { world, share: &export.name };
            let done = kept.bring(&server, &world.file(&format!("vsftpd-{word}.conf")), &text);
            faults.extend(done.err().map(of_share));
        }
        faults
    }

    fn hurry(&mut self) {
        self.0.values_mut().for_each(Kept::hurry);
    }

    fn stop(&mut self) {
        self.0.values_mut().for_each(Kept::stop);
    }

    fn pids(&self) -> BTreeMap<String, i32> {
        self.0.iter().filter_map(|(word, kept)| Some((word.clone(), kept.process.pid()?))).collect()
    }
}
