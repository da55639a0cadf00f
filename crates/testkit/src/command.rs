//! Other programs: starting them without passing on the test's descriptors.

use std::ffi::OsStr;
use std::process::{Child, Command, Stdio};

use parking_lot::{ReentrantMutex, ReentrantMutexGuard};

/// Debian packages of programs that are not called as their packages are.
const PACKAGES: [(&str, &str); 9] = [
    ("nbdinfo", "libnbd-bin"),
    ("nbdcopy", "libnbd-bin"),
    ("nbdsh", "python3-libnbd"),
    ("qemu-img", "qemu-utils"),
    ("qemu-io", "qemu-utils"),
    ("mkfs.ext4", "e2fsprogs"),
    ("e2fsck", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("xfs_repair", "xfsprogs"),
];

/// Keeps descriptors from reaching processes that must not have them. A process being started has a
/// copy of each descriptor of this one until its program is loaded: an exclusive hold outlives its
/// file by that moment, and a mount is busy although all files on it were closed. A test that
/// starts a process holds this until the process has proceeded, or has ended. A test that cannot
/// tolerate a copy holds it for as long as the descriptor is open, and may start processes itself.
pub fn starting() -> ReentrantMutexGuard<'static, ()> {
    static STARTING: ReentrantMutex<()> = ReentrantMutex::new(());
    STARTING.lock()
}

/// Starts a program with an empty standard input, and captures its outputs.
pub(crate) fn start<S: AsRef<OsStr>>(program: &str, arguments: &[S]) -> std::io::Result<Child> {
    // The distribution's tools use the distribution's interpreters, whatever else is installed.
    let path = format!("/usr/bin:/bin:{}", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new(program);
    command.env("PATH", path).args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // It is loaded when this is done.
    let _alone = starting();
    command.spawn()
}

/// Runs a program to its end; its standard output.
///
/// # Panics
/// When it is not installed, or fails.
pub fn run<S: AsRef<OsStr>>(program: &str, arguments: &[S]) -> String {
    let shown: Vec<_> = arguments.iter().map(|argument| argument.as_ref().to_string_lossy()).collect();
    let shown = format!("{program} {}", shown.join(" "));
    let output = start(program, arguments).and_then(Child::wait_with_output).unwrap_or_else(|error| {
        let package = PACKAGES.iter().find(|(name, _)| *name == program).map_or(program, |(_, package)| package);
        panic!("{shown}: {error}; is the Debian package {package} installed?");
    });
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{shown}: {}\n{out}{err}", output.status);
    out.into_owned()
}
