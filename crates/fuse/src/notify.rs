//! Notifications to the kernel that cached data is outdated. Any thread may send them.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::wire::notify;

/// Sends messages that answer no request.
#[derive(Debug, Clone)]
pub struct Notifier(pub(crate) Arc<OwnedFd>);

impl Notifier {
    /// Returns the device of the connection.
    pub fn device(&self) -> &OwnedFd {
        &self.0
    }

    /// Drops the attributes of a node and its pages from `offset` on; a negative `offset` leaves
    /// the pages. Dirty pages of shared mappings come as writes before it returns, so a thread that
    /// serves writes must be free. Returns whether the kernel knows the node.
    ///
    /// # Errors
    /// Errors of the connection.
    pub fn inval_inode(&self, node: u64, offset: i64, length: i64) -> io::Result<bool> {
        self.send(&notify::inval_inode(node, offset, length))
    }

    /// Drops a name in a directory.
    ///
    /// # Errors
    /// As [`Self::inval_inode`].
    pub fn inval_entry(&self, parent: u64, name: &[u8]) -> io::Result<()> {
        self.send(&notify::inval_entry(parent, name)).map(drop)
    }

    /// Asks the kernel to send again all requests that an earlier server took and did not answer.
    ///
    /// # Errors
    /// `EINVAL` if the kernel cannot (before Linux 6.9), other errors of the connection.
    pub fn resend(&self) -> io::Result<()> {
        self.send(&notify::resend()).map(drop)
    }

    /// Returns false if the message is about something that the kernel does not know.
    fn send(&self, message: &[u8]) -> io::Result<bool> {
        match rustix::io::retry_on_intr(|| rustix::io::write(&*self.0, message)) {
            Ok(_) => Ok(true),
            Err(rustix::io::Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}
