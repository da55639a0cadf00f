//! What a listener does while the process has no file descriptor left: it keeps one in reserve,
//! takes each client that waits with that, lets it be told, and says it once in the log. Without
//! that the client would wait in the listener's queue without a word, and keep the accepting
//! thread awake.

use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// The descriptor in reserve, and the clients that were refused since it was needed first.
pub struct Shortage {
    reserve: Option<OwnedFd>,
    /// None while there are descriptors.
    refused: Option<u64>,
}

impl Default for Shortage {
    fn default() -> Self {
        Self { reserve: placeholder(), refused: None }
    }
}

/// The cheapest descriptor: it is nothing but its number.
fn placeholder() -> Option<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC).ok()
}

impl Shortage {
    /// Whether an error of accept(2) means that there are no descriptors.
    pub fn is_meant_by(error: Errno) -> bool {
        matches!(error, Errno::MFILE | Errno::NFILE)
    }

    /// Accepting has failed. Returns whether that is new: it is said once.
    pub fn begin(&mut self) -> bool {
        let is_new = self.refused.is_none();
        self.refused.get_or_insert(0);
        is_new
    }

    /// Lets `refuse` accept a client with the descriptor in reserve, tell it, and close it;
    /// returns whether `refuse` says that it did. Where another thread took the descriptor first,
    /// it did not, and the caller pauses before it tries again.
    pub fn with_reserve(&mut self, refuse: impl FnOnce() -> bool) -> bool {
        self.reserve = None;
        let did = refuse();
        self.reserve = placeholder();
        if did && let Some(refused) = &mut self.refused {
            *refused += 1;
        }
        did
    }

    /// A client was accepted as usual. Returns how many were refused, if there were no
    /// descriptors until now.
    pub fn end(&mut self) -> Option<u64> {
        if self.reserve.is_none() {
            self.reserve = placeholder();
        }
        self.refused.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_once_and_counted_until_it_is_over() {
        let mut shortage = Shortage::default();
        assert_eq!(shortage.end(), None);
        assert!(shortage.begin());
        assert!(shortage.with_reserve(|| true));
        assert!(!shortage.begin());
        assert!(!shortage.with_reserve(|| false));
        assert!(shortage.with_reserve(|| true));
        assert_eq!((shortage.end(), shortage.end()), (Some(2), None));
        assert!(shortage.begin());
    }
}
