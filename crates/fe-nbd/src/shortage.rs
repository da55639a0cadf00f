//! Handling of descriptor exhaustion by a listener: it keeps one descriptor in reserve, accepts
//! each waiting client with it, reports the reason to the client, and logs the shortage once.
//! Otherwise the client would wait silently in the listener's queue, and keep the accepting thread
//! busy.

use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// The descriptor in reserve, and the clients that were refused since it was needed first.
pub struct Shortage {
    reserve: Option<OwnedFd>,
    /// None while descriptors are available.
    refused: Option<u64>,
}

impl Default for Shortage {
    fn default() -> Self {
        Self { reserve: placeholder(), refused: None }
    }
}

/// The cheapest descriptor, which serves only as a placeholder.
fn placeholder() -> Option<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC).ok()
}

impl Shortage {
    /// Whether an error of accept(2) means that there are no descriptors.
    pub fn is_exhaustion(error: Errno) -> bool {
        matches!(error, Errno::MFILE | Errno::NFILE)
    }

    /// Accepting has failed. Returns whether that is new, so that it is logged once.
    pub fn begin(&mut self) -> bool {
        let is_new = self.refused.is_none();
        self.refused.get_or_insert(0);
        is_new
    }

    /// Lets `refuse` accept a client with the reserved descriptor, report the reason, and close it;
    /// returns the result of `refuse`. If another thread took the descriptor first, that fails, and
    /// the caller pauses before it retries.
    pub fn with_reserve(&mut self, refuse: impl FnOnce() -> bool) -> bool {
        self.reserve = None;
        let did = refuse();
        self.reserve = placeholder();
        if did && let Some(refused) = &mut self.refused {
            *refused += 1;
        }
        did
    }

    /// A client was accepted normally. Returns how many were refused, if there were no descriptors
    /// until now.
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
