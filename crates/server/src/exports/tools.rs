//! Runs programs that come with the servers.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process_group};

use super::process::wait_until;
use host::{NewVersion, with_usual_signals};

/// Directories of servers, in addition to the caller's PATH.
const SYSTEM_PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";
/// Deadline of a checker or a control program, after which it is killed.
const SECONDS_MAX: u32 = 10;
/// Maximum bytes of its output.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;

/// Returns the path of a program.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let dirs = path.split(':').chain(SYSTEM_PATH.split(':')).filter(|dir| dir.starts_with('/'));
    dirs.map(|dir| Path::new(dir).join(name)).find(|path| path.is_file())
}

/// Returns the command of a program, or an error that names its package.
///
/// # Errors
/// A message.
pub fn command(name: &str, package: &str) -> Result<Command, String> {
    find(name).map(Command::new).ok_or_else(|| format!("{name} is not installed: install the package {package}"))
}

/// Runs a program to its end, or to the deadline. A program that cannot be killed, because it waits
/// for a file system, is left to a thread.
fn status(mut command: Command, name: &str, seconds: u32) -> Result<ExitStatus, String> {
    let failed = |error: std::io::Error| format!("{name} cannot be run: {error}");
    let mut child = with_usual_signals(command.current_dir("/")).process_group(0).spawn().map_err(failed)?;
    let mut ended = Ok(None);
    wait_until(seconds, || {
        ended = child.try_wait();
        !matches!(ended, Ok(None))
    });
    if let Some(status) = ended.map_err(failed)? {
        return Ok(status);
    }
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    drop(std::thread::Builder::new().name("reaper".to_owned()).spawn(move || child.wait()));
    Err(format!("{name} did not end within {seconds} s, and was killed"))
}

/// Runs a program that treats its standard input as a connection, and answers there. `answer`: a
/// file that exists while it runs.
///
/// # Errors
/// Why it cannot be run.
pub fn answer(name: &str, package: &str, arguments: &[&str], answer: &Path) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("{name} cannot be run: {error}");
    let mut file = File::options().read(true).write(true).create(true).truncate(true).open(answer).map_err(failed)?;
    let mut command = command(name, package)?;
    command.args(arguments).stdin(file.try_clone().map_err(failed)?).stdout(Stdio::null()).stderr(Stdio::null());
    let done = status(command, name, SECONDS_MAX);
    drop(std::fs::remove_file(answer));
    done?;
    read_back(&mut file).map_err(failed)
}

/// Returns the text in a file that a program has written to.
fn read_back(file: &mut File) -> std::io::Result<String> {
    let mut said = Vec::new();
    file.rewind()?;
    file.take(OUTPUT_BYTES_MAX).read_to_end(&mut said)?;
    Ok(String::from_utf8_lossy(&said).into_owned())
}

/// Runs a program to its end; returns its output on stdout and on stderr.
///
/// # Errors
/// Its last output, or why it cannot be run.
pub fn run(name: &str, package: &str, arguments: &[&str]) -> Result<(String, String), String> {
    run_within(SECONDS_MAX, name, package, arguments)
}

fn run_within(seconds: u32, name: &str, package: &str, arguments: &[&str]) -> Result<(String, String), String> {
    let failed = |error: std::io::Error| format!("{name} cannot be run: {error}");
    // Not pipes: a remaining child process of the program would keep them open.
    let output = || memfd_create("output", MemfdFlags::CLOEXEC).map(File::from).map_err(|error| failed(error.into()));
    let (mut out, mut err) = (output()?, output()?);
    let mut command = command(name, package)?;
    let copy = |file: &File| file.try_clone().map_err(failed);
    command.args(arguments).stdin(Stdio::null()).stdout(copy(&out)?).stderr(copy(&err)?);
    let status = status(command, name, seconds)?;
    let (out, err) = (read_back(&mut out).map_err(failed)?, read_back(&mut err).map_err(failed)?);
    if status.success() {
        return Ok((out, err));
    }
    let last = err.lines().chain(out.lines()).filter(|line| !line.trim().is_empty()).collect::<Vec<_>>();
    let said = last.iter().take(3).map(|line| line.trim()).collect::<Vec<_>>().join("; ");
    Err(if said.is_empty() { format!("{name} ended with {status}") } else { format!("{name}: {said}") })
}

/// Replaces a file: a reader sees the old or the new content.
///
/// # Errors
/// A message.
pub fn write(path: &Path, text: &str) -> Result<(), String> {
    prepare(path, text)?.publish().map_err(unwritten(path))
}

/// Writes the new version of a file, to be checked before it replaces the file.
///
/// # Errors
/// A message.
pub fn prepare(path: &Path, text: &str) -> Result<NewVersion, String> {
    NewVersion::write(path, text.as_bytes(), 0o666).map_err(unwritten(path))
}

/// Makes the message for a file that cannot be written.
pub fn unwritten(path: &Path) -> impl FnOnce(std::io::Error) -> String {
    move |error| format!("{} cannot be written: {error}", path.display())
}

/// Returns whether this machine knows a user, including those of a network directory.
pub fn has_user(name: &str) -> bool {
    user(name).is_some() || run("getent", "libc-bin", &["passwd", name]).is_ok()
}

/// Returns user and group number of a user of this machine.
pub fn user(name: &str) -> Option<(u32, u32)> {
    let all = std::fs::read_to_string("/etc/passwd").ok()?;
    let line = all.lines().find(|line| line.split(':').next() == Some(name))?;
    let fields: Vec<_> = line.split(':').collect();
    Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_hangs_is_killed_with_its_children() {
        let _alone = testkit::starting();
        let said = run_within(1, "sh", "dash", &["-c", "sleep 600 & wait"]).unwrap_err();
        assert_eq!(said, "sh did not end within 1 s, and was killed");
        // A child that keeps the output open delays nothing.
        let (out, _) = run_within(60, "sh", "dash", &["-c", "sleep 61 & echo done"]).unwrap();
        assert_eq!(out, "done\n");
        assert_eq!(run("false", "coreutils", &[]).unwrap_err(), "false ended with exit status: 1");
    }
}
