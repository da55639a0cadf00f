//! The directory of exports: its entries, and the administrator's settings in it.
//!
//! | entry | content |
//! | --- | --- |
//! | `settings` | addresses and ports; the administrator's |
//! | `*.local.conf`, `http.users` | additions of the administrator |
//! | `ganesha.conf`, `nfs/`, `smb.conf`, `httpd.conf` | written by the server of the pool |
//! | `vsftpd-*.conf`, `bus.conf` | the same |
//! | `state/`, `logs/` | of the servers |
//! | `snapshots/` | links to snapshots by their times, for SMB |

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use doors::{Places, Settings, checked_path};
use surface::{Error, ErrorKind, Result};

use super::process::wait_until;
use super::tools;

/// A directory of exports.
pub struct World {
    /// Its absolute path, for use in configurations.
    pub dir: PathBuf,
    /// Addresses and ports.
    pub settings: Settings,
    /// The server of the pool is stopping: nothing waits for network servers any more.
    ends: AtomicBool,
}

impl World {
    /// Reads a directory of exports; with `make`, makes missing entries.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for wrong settings.
    pub fn open(dir: &Path, make: bool) -> Result<Self> {
        let failed = |error: std::io::Error| Error::from_io(format!("exports at {}", dir.display()), error);
        if make {
            for sub in ["state/nfs", "state/smb", "state/http", "state/ftp", "logs", "nfs"] {
                std::fs::create_dir_all(dir.join(sub)).map_err(failed)?;
            }
        }
        let dir = dir.canonicalize().map_err(failed)?;
        let invalid = |text: String| Error::new(ErrorKind::Invalid, text);
        checked_path(&dir.display().to_string()).map_err(|text| invalid(format!("exports at {text}")))?;
        let file = dir.join("settings");
        if make && !file.exists() {
            tools::write(&file, Settings::template()).map_err(invalid)?;
        }
        let text = std::fs::read_to_string(&file).map_err(failed)?;
        let settings = Settings::parse(&text).map_err(|error| invalid(format!("{}: {error}", file.display())))?;
        Ok(Self { dir, settings, ends: AtomicBool::new(false) })
    }

    /// Ends all waits for servers, including current ones.
    pub fn end(&self) {
        self.ends.store(true, Ordering::Release);
    }

    /// Returns whether the server of the pool is stopping.
    pub fn ends(&self) -> bool {
        self.ends.load(Ordering::Acquire)
    }

    /// Waits until a condition on a server holds, until the deadline or until the server of the
    /// pool stops. Returns whether it holds.
    pub fn wait(&self, seconds: u32, mut holds: impl FnMut() -> bool) -> bool {
        let mut does_hold = false;
        wait_until(seconds, || {
            does_hold = !self.ends() && holds();
            does_hold || self.ends()
        });
        does_hold
    }

    /// Returns the path of a file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Returns the administrator's additions to a configuration.
    pub fn own(&self, name: &str) -> String {
        let mut text = std::fs::read_to_string(self.file(name)).unwrap_or_default();
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text
    }

    /// Returns the directories of a server.
    pub fn places(&self, server: &str) -> Places {
        let dir = self.dir.display();
        Places { state: format!("{dir}/state/{server}"), logs: format!("{dir}/logs"), own: dir.to_string() }
    }

    /// Returns the address for clients: this machine's name, if the servers listen at all
    /// addresses.
    pub fn host(&self) -> String {
        let address = self.settings.address;
        if address.is_unspecified() {
            let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            return name.trim().to_owned();
        }
        if address.is_ipv6() { format!("[{address}]") } else { address.to_string() }
    }
}
