//! Other programs.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use crate::Outcome;

/// Runs a program to completion and returns its output.
///
/// # Errors
/// When it cannot be started or fails, with its error output.
pub fn run<S: AsRef<OsStr>>(program: &str, arguments: &[S]) -> Outcome<String> {
    let shown = || {
        let words = arguments.iter().map(|a| a.as_ref().to_string_lossy().into_owned());
        std::iter::once(program.to_owned()).chain(words).collect::<Vec<_>>().join(" ")
    };
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("cannot run {program}: {e}; `tools/setup bench` installs what is needed"))?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{} failed ({}): {}", shown(), output.status, complaint.trim()).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
