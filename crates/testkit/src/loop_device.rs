//! Loop devices: block devices on files.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Child;

use crate::command::start;

/// A loop device on a file, detached when dropped. Its device file is the first field.
#[derive(Debug)]
pub struct LoopDevice(pub String);

impl LoopDevice {
    /// A loop device on a file, which the kernel reads and writes past its cache, or through it.
    ///
    /// # Errors
    /// The words of `losetup`, on a machine that has no loop devices.
    pub fn attach(file: &Path, direct_io: bool) -> Result<Self, String> {
        let direct_io = if direct_io { "--direct-io=on" } else { "--direct-io=off" };
        let arguments: [&OsStr; 4] = ["--find".as_ref(), "--show".as_ref(), direct_io.as_ref(), file.as_os_str()];
        let made = start("losetup", &arguments).and_then(Child::wait_with_output).map_err(|error| error.to_string())?;
        let name = String::from_utf8_lossy(&made.stdout).trim().to_owned();
        if made.status.success() && !name.is_empty() {
            Ok(Self(name))
        } else {
            Err(String::from_utf8_lossy(&made.stderr).into_owned())
        }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = start("losetup", &["--detach", &self.0]).and_then(Child::wait_with_output);
    }
}
