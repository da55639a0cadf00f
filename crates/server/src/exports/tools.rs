//! Programs that servers bring with them.

use std::fs::File;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use host::with_usual_signals;

/// Where servers are, beside what the caller's PATH says.
const SYSTEM_PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";
/// A checker or a control program that takes longer hangs.
const SECONDS_MAX: &str = "30";

/// Where a program is.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let dirs = path.split(':').chain(SYSTEM_PATH.split(':')).filter(|dir| dir.starts_with('/'));
    dirs.map(|dir| Path::new(dir).join(name)).find(|path| path.is_file())
}

/// A program, with the package that has it if it is missing.
///
/// # Errors
/// In words.
pub fn command(name: &str, package: &str) -> Result<Command, String> {
    find(name).map(Command::new).ok_or_else(|| format!("{name} is not installed: install the package {package}"))
}

/// A run of a program that does not hang.
fn bounded(name: &str, package: &str, arguments: &[&str]) -> Result<Command, String> {
    let path = find(name).ok_or_else(|| format!("{name} is not installed: install the package {package}"))?;
    let mut bounded = Command::new("timeout");
    bounded.args(["--kill-after=5", SECONDS_MAX]).arg(path).args(arguments).current_dir("/");
    Ok(bounded)
}

/// Runs a program that takes its standard input for a connection, and answers there. `answer`: a
/// file that is there while it runs.
///
/// # Errors
/// Why it cannot be run.
pub fn answer(name: &str, package: &str, arguments: &[&str], answer: &Path) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("{name} cannot be run: {error}");
    let mut file = File::options().read(true).write(true).create(true).truncate(true).open(answer).map_err(failed)?;
    let mut bounded = bounded(name, package, arguments)?;
    bounded.stdin(file.try_clone().map_err(failed)?).stdout(Stdio::null()).stderr(Stdio::null());
    let done = with_usual_signals(&mut bounded).status();
    drop(std::fs::remove_file(answer));
    done.map_err(failed)?;
    let mut said = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut said)).map_err(failed)?;
    Ok(String::from_utf8_lossy(&said).into_owned())
}

/// Runs a program to its end; what it wrote to stdout, and to stderr.
///
/// # Errors
/// What it said last, or why it cannot be run.
pub fn run(name: &str, package: &str, arguments: &[&str]) -> Result<(String, String), String> {
    let mut bounded = bounded(name, package, arguments)?;
    bounded.stdin(Stdio::null());
    let done = with_usual_signals(&mut bounded).output().map_err(|error| format!("{name} cannot be run: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&done.stdout), text(&done.stderr));
    if done.status.success() {
        return Ok((out, err));
    }
    let last = err.lines().chain(out.lines()).filter(|line| !line.trim().is_empty()).collect::<Vec<_>>();
    let said = last.iter().take(3).map(|line| line.trim()).collect::<Vec<_>>().join("; ");
    Err(format!("{name} says: {}", if said.is_empty() { done.status.to_string() } else { said }))
}

/// Writes a file in one step: a reader sees the old or the new content.
///
/// # Errors
/// In words.
pub fn write(path: &Path, text: &str) -> Result<(), String> {
    let beside = path.with_extension("writing");
    let failed = |error: std::io::Error| format!("{} cannot be written: {error}", path.display());
    std::fs::write(&beside, text).map_err(failed)?;
    std::fs::rename(&beside, path).map_err(failed)
}

/// Whether this machine knows a user, be it from a directory of the network.
pub fn has_user(name: &str) -> bool {
    user(name).is_some() || run("getent", "libc-bin", &["passwd", name]).is_ok()
}

/// User and group number of a user of this machine.
pub fn user(name: &str) -> Option<(u32, u32)> {
    let all = std::fs::read_to_string("/etc/passwd").ok()?;
    let line = all.lines().find(|line| line.split(':').next() == Some(name))?;
    let fields: Vec<_> = line.split(':').collect();
    Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?))
}
