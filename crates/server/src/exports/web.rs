//! HTTP and WebDAV by Apache.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use doors::{Door, Export, apache};
use rustix::process::{Pid, Signal};

use super::keeper::Servers;
use super::kept::{Kept, Server};
use super::process::{Process, end_users_of};
use super::world::World;
use super::{Fault, rpc, tools};

/// Package of the server.
pub const PACKAGE: &str = "apache2-bin";
/// Program of the server.
pub const PROGRAM: &str = "apache2";
/// Directory of its modules.
const MODULES: &str = "/usr/lib/apache2/modules";
/// Media types by extension, if installed.
const TYPES: &str = "/etc/mime.types";
/// Maximum seconds until a change is in force.
const SECONDS: u32 = 15;

struct Apache<'a> {
    world: &'a World,
}

impl Server for Apache<'_> {
    fn name(&self) -> String {
        "http".to_owned()
    }

    fn listens(&self, text: &str) -> SocketAddr {
        let World { settings, .. } = self.world;
        apache::listens(text).unwrap_or((settings.address, settings.http_port).into())
    }

    fn is_given_up(&self) -> bool {
        self.world.ends()
    }

    fn check(&self, file: &Path) -> Result<(), String> {
        tools::run(PROGRAM, PACKAGE, &["-t", "-f", &file.display().to_string()]).map(|_| ())
    }

    fn command(&self, file: &Path) -> Result<Command, String> {
        let mut command = tools::command(PROGRAM, PACKAGE)?;
        // A killed server leaves its process id, and the next one would take any process with that
        // id for itself, even one that has ended and was not waited for.
        drop(std::fs::remove_file(self.world.file("state/http/httpd.pid")));
        command.arg("-f").arg(file).arg("-DFOREGROUND");
        Ok(command)
    }

    fn needs_restart(&self, old: &str, new: &str) -> bool {
        let of = |text: &str| text.lines().filter(|line| is_of_process(line)).map(str::to_owned).collect::<Vec<_>>();
        of(old) != of(new)
    }

    fn reload(&self, process: &Process, _: &str, _: &str) -> Result<(), String> {
        process.signal(Signal::USR1);
        Ok(())
    }

    fn end_sessions(&self, _: &Process, sessions: &[Pid], old: &str, new: &str) {
        // Old processes end when their requests are done: a transfer may take hours.
        end_users_of(sessions, &changed(old, new));
    }

    fn serves(&self, process: &mut Process, text: &str) -> Result<(), String> {
        let at = self.listens(text);
        let path = text.lines().rev().find_map(|line| line.strip_prefix("RedirectMatch 410 \"^")?.strip_suffix("$\""));
        let path = path.unwrap_or_default().replace('\\', "");
        let mut said = "it has ended".to_owned();
        let is_in_force = self.world.wait(SECONDS, || {
            // A server that has ended will not answer.
            if !process.is_alive() {
                return true;
            }
            match rpc::http_status(at, &path) {
                Ok(410) => said.clear(),
                Ok(status) => said = format!("it answers {status} where 410 shows that the configuration is in force"),
                Err(error) => said = error,
            }
            said.is_empty()
        });
        if is_in_force && said.is_empty() { Ok(()) } else { Err(said) }
    }
}

/// Returns whether a line cannot change while the server runs.
fn is_of_process(line: &str) -> bool {
    ["Listen ", "User ", "PidFile "].iter().any(|word| line.starts_with(word))
}

/// Returns the sections of shares, by their directories.
fn sections(text: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut all: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut dir = None;
    for line in text.lines() {
        let begins = line.strip_prefix("<Directory \"").and_then(|line| line.strip_suffix("\">"));
        dir = begins.or(dir);
        if let Some(dir) = dir {
            all.entry(dir).or_default().push(line);
        }
        if line == "</Directory>" {
            dir = None;
        }
    }
    all
}

/// Returns the directories of the shares whose sections were changed or removed.
fn changed(old: &str, new: &str) -> Vec<PathBuf> {
    let new = sections(new);
    let gone = sections(old).into_iter().filter(|(dir, lines)| new.get(dir) != Some(lines));
    gone.map(|(dir, _)| PathBuf::from(dir)).collect()
}

/// The server.
pub struct Web(Kept);

impl Web {
    /// Finds the server that may be running already.
    pub fn find(dir: &Path) -> Self {
        Self(Kept::new(Process::find(dir, "apache")))
    }

    fn bring_all(&mut self, world: &World, exports: &[&Export]) -> Result<(), String> {
        let places = world.places("http");
        let locks = Path::new(&places.state).join("locks");
        std::fs::create_dir_all(&locks).map_err(|error| format!("{} cannot be made: {error}", locks.display()))?;
        let user = &world.settings.http_user;
        let (uid, gid) =
            tools::user(user).ok_or_else(|| format!("http: there is no user {user}: see http-user in settings"))?;
        let owned = std::os::unix::fs::chown(&locks, Some(uid), Some(gid));
        owned.map_err(|error| format!("{}: {error}", locks.display()))?;
        let types = if Path::new(TYPES).exists() { TYPES } else { "/dev/null" };
        let own = world.own("httpd.local.conf");
        let (text, _) = apache::server(&world.settings, &places, (MODULES, types, gid), exports, &own);
        self.0.bring(&Apache { world }, &world.file("httpd.conf"), &text)
    }
}

impl Servers for Web {
    fn bring(&mut self, world: &World, exports: &[&Export]) -> Vec<Fault> {
        if exports.is_empty() {
            self.0.stop();
            return Vec::new();
        }
        let done = self.bring_all(world, exports);
        done.err().map(|text| Fault { door: Door::Http, share: None, text }).into_iter().collect()
    }

    fn hurry(&mut self) {
        self.0.hurry();
    }

    fn stop(&mut self) {
        self.0.stop();
    }

    fn pids(&self) -> BTreeMap<String, i32> {
        self.0.process.pid().map(|pid| (String::new(), pid)).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use doors::{Access, Door, Places, Settings};

    use super::*;

    #[test]
    fn a_change_ends_transfers_of_the_changed_shares_alone() {
        let text = |shares: &[(&str, &str)]| {
            let export = |(name, value): &(&str, &str)| Export {
                id: 1,
                name: (*name).to_owned(),
                path: format!("/srv/{name}"),
                nfs: Access::default(),
                smb: Access::default(),
                http: Access::parse(Door::Http, value).unwrap(),
                ftp: Access::default(),
            };
            let exports: Vec<_> = shares.iter().map(export).collect();
            let places = Places { state: "/s".to_owned(), logs: "/l".to_owned(), own: "/o".to_owned() };
            let all: Vec<_> = exports.iter().collect();
            apache::server(&Settings::default(), &places, ("/m", "/t", 33), &all, "").0
        };
        let old = text(&[("a", "ro"), ("b", "rw,login"), ("c", "ro")]);
        let dirs = |dirs: &[&str]| dirs.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(changed(&old, &text(&[("b", "ro,login"), ("c", "ro"), ("d", "ro")])), dirs(&["/srv/a", "/srv/b"]));
        assert_eq!(changed(&old, &text(&[("a", "ro"), ("b", "rw,login"), ("c", "ro"), ("d", "ro")])), dirs(&[]));
    }
}
