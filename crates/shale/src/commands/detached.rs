//! `shale serve --detach`: a server in the background.
//!
//! 1. The same command line, without `--detach`, is started in a session of its own. Its messages
//!    go to a log file, its output to memory, and it gets a pipe as `--ready-fd`.
//! 2. This process waits for `ready`, prints the server's process id, and ends.
//! 3. If the server ends first, its messages are printed and its exit code is returned.

use std::ffi::OsString;
use std::fs::File;
use std::io::{PipeReader, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use rustix::fs::MemfdFlags;
use surface::{Error, ErrorKind};

use crate::cli::{ServeArgs, ServeSettings};
use crate::output::Output;
use operations::{Outcome, path_error};
use server::pool_dir::PoolDir;

/// Starts the server, and waits until it is ready.
pub fn run(args: &ServeArgs, settings: &ServeSettings, output: &Output) -> Outcome {
    let dir = PoolDir::new(&settings.pool);
    // Before a log file is made: the path may be wrong.
    dir.ready_config()?;
    let path = args.log.clone().unwrap_or_else(|| dir.log_path());
    let opened = File::options().append(true).read(true).create(true).mode(0o600).open(&path);
    let mut log = opened.map_err(|error| path_error("cannot write the log", &path, error))?;
    let failed = |error| Error::from_io("cannot start a server in the background", error);
    let begin = log.metadata().map_err(failed)?.len();
    let memory = rustix::fs::memfd_create("shale-ready", MemfdFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
    let mut said = File::from(memory);
    let (ready, writer) = std::io::pipe().map_err(failed)?;
    // Started by its name, which `ps` and `pgrep` show.
    let program = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(program);
    command.args(without_detach(std::env::args_os().skip(1)));
    command.arg(format!("--ready-fd={}", writer.as_raw_fd()));
    command.stdin(Stdio::null()).stdout(said.try_clone().map_err(failed)?).stderr(log.try_clone().map_err(failed)?);
    let mut server = host::in_own_session(&mut command, writer.as_raw_fd()).spawn().map_err(failed)?;
    drop(writer);
    let is_ready = says_ready(ready);
    said.seek(SeekFrom::Start(0)).map_err(failed)?;
    let mut text = String::new();
    said.read_to_string(&mut text).map_err(failed)?;
    if is_ready {
        if output.is_json() {
            output.exact(&text);
        } else {
            output.note(text.trim_end().trim_end_matches("ready").trim_end());
            output.note(&format!("log {}", path.display()));
            output.text(&format!("{}\n", server.id()));
        }
        return Ok(());
    }
    let status = server.wait().map_err(failed)?;
    output.exact(&text);
    log.seek(SeekFrom::Start(begin)).map_err(failed)?;
    std::io::copy(&mut log, &mut std::io::stderr().lock()).map_err(failed)?;
    match status.code() {
        Some(code) if code != 0 => {
            // The exit code is the server's, even if this fails.
            let _ = std::io::stderr().flush();
            host::exit_now(code)
        }
        _ => {
            let signal = status.signal().map_or_else(String::new, |signal| format!(" by signal {signal}"));
            let text = format!("the server ended{signal} before it was ready; its log is {}", path.display());
            Err(Error::new(ErrorKind::Io, text).into())
        }
    }
}

/// Waits for the line of `--ready-fd`; `false` if the server has ended without it.
fn says_ready(mut pipe: PipeReader) -> bool {
    let mut line = String::new();
    pipe.read_to_string(&mut line).is_ok() && line == "ready\n"
}

/// Returns the words of a command line without the options for the background.
fn without_detach(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut left = Vec::new();
    let mut words = words.peekable();
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("--detach") => {}
            Some("--log") => drop(words.next()),
            Some(text) if text.starts_with("--log=") => {}
            _ => left.push(word),
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_gets_the_same_command_line_without_the_background() {
        let words = ["serve", "--detach", "/srv/pool", "--log", "/var/log/shale", "--shares", "/srv/shares", "--log=x"];
        let left = without_detach(words.iter().map(OsString::from));
        assert_eq!(left, ["serve", "/srv/pool", "--shares", "/srv/shares"]);
    }

    #[test]
    fn a_server_that_ends_without_a_word_is_not_ready() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"ready\n").unwrap();
        drop(writer);
        assert!(says_ready(reader));
        let (reader, writer) = std::io::pipe().unwrap();
        drop(writer);
        assert!(!says_ready(reader));
    }
}
