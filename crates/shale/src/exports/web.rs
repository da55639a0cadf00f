//! HTTP and WebDAV by Apache.

use std::path::Path;
use std::process::Command;

use doors::{Export, apache};
use rustix::process::Signal;

use super::kept::{Kept, Server};
use super::process::{Process, wait_until};
use super::world::World;
use super::{rpc, tools};

/// The package of the server.
pub const PACKAGE: &str = "apache2-bin";
/// The program.
pub const PROGRAM: &str = "apache2";
/// Its modules.
const MODULES: &str = "/usr/lib/apache2/modules";
/// Media types by extension, where there are some.
const TYPES: &str = "/etc/mime.types";
/// How long a change takes at most to come into force.
const SECONDS: u32 = 15;

struct Apache<'a> {
    world: &'a World,
}

impl Server for Apache<'_> {
    fn name(&self) -> String {
        "http".to_owned()
    }

    fn check(&self, file: &Path) -> Result<(), String> {
        tools::run(PROGRAM, PACKAGE, &["-t", "-f", &file.display().to_string()]).map(|_| ())
    }

    fn command(&self, file: &Path) -> Result<Command, String> {
        let mut command = tools::command(PROGRAM, PACKAGE)?;
        // A server that was killed leaves its number, and the next one takes whatever has it now,
        // be it a process that has ended and was not waited for, for itself.
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

    fn serves(&self, process: &mut Process, text: &str) -> Result<(), String> {
        let World { settings, .. } = self.world;
        let path = text.lines().rev().find_map(|line| line.strip_prefix("RedirectMatch 410 \"^")?.strip_suffix("$\""));
        let path = path.unwrap_or_default().replace('\\', "");
        let mut said = "it has ended".to_owned();
        let is_in_force = wait_until(SECONDS, || {
            // One that has ended will not answer.
            if !process.is_alive() {
                return true;
            }
            match rpc::http_status(settings.address, settings.http_port, &path) {
                Ok(410) => said.clear(),
                Ok(status) => said = format!("it answers {status} where 410 shows that the configuration is in force"),
                Err(error) => said = error,
            }
            said.is_empty()
        });
        if is_in_force && said.is_empty() { Ok(()) } else { Err(said) }
    }
}

/// Whether a line cannot change while the server runs.
fn is_of_process(line: &str) -> bool {
    ["Listen ", "User ", "PidFile "].iter().any(|word| line.starts_with(word))
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
    let places = world.places("http");
    let locks = Path::new(&places.state).join("locks");
    std::fs::create_dir_all(&locks).map_err(|error| format!("{} cannot be made: {error}", locks.display()))?;
    let user = &world.settings.http_user;
    let (uid, gid) =
        tools::user(user).ok_or_else(|| format!("http: there is no user {user}: see http-user in settings"))?;
    std::os::unix::fs::chown(&locks, Some(uid), Some(gid)).map_err(|error| format!("{}: {error}", locks.display()))?;
    let types = if Path::new(TYPES).exists() { TYPES } else { "/dev/null" };
    let own = world.own("httpd.local.conf");
    let (text, _) = apache::server(&world.settings, &places, (MODULES, types, gid), exports, &own);
    kept.bring(&Apache { world }, &world.file("httpd.conf"), &text)
}
