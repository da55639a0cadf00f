//! Sets the version: that of the package, and of a release build from a git checkout the commit.
// A build script is not part of the storage stack: it runs git, and reads cargo's environment
// variables.
#![allow(clippy::disallowed_methods)]

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let package = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    // Otherwise each commit would recompile a debug build. Decided by the optimisation level,
    // because the gate builds the release with its tests, in another profile.
    let is_release = std::env::var("OPT_LEVEL").is_ok_and(|level| level == "3");
    let commit = if is_release { commit() } else { Some("debug build".to_owned()) };
    let version = commit.map_or(package.clone(), |commit| format!("{package} ({commit})"));
    println!("cargo::rustc-env=SHALE_VERSION={version}");
}

/// Returns the commit and its date, with a `+` after later changes; `None` without git or a
/// checkout.
fn commit() -> Option<String> {
    // The sources may have been unpacked inside of another repository.
    let root = std::path::PathBuf::from(git(&["rev-parse", "--show-toplevel"])?).canonicalize().ok()?;
    let crate_dir = std::path::PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR")?).canonicalize().ok()?;
    if crate_dir.parent().and_then(std::path::Path::parent) != Some(&root) {
        return None;
    }
    // Written at each commit and each change of branch.
    let log = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"])?;
    println!("cargo::rerun-if-changed={log}");
    let commit = git(&["log", "-1", "--abbrev=12", "--format=%h %cs"])?;
    let is_changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|text| !text.is_empty());
    Some(if is_changed { commit.replacen(' ', "+ ", 1) } else { commit })
}

/// Returns the output of git; `None` if it cannot be run, or fails.
fn git(words: &[&str]) -> Option<String> {
    // Root may build a checkout of another owner.
    let output = Command::new("git").args(["-c", "safe.directory=*"]).args(words).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
