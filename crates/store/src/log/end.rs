//! The end of a log: closing a pool marks it, so that the next opening knows that no batch follows.

use format::LogEnd;
use surface::{Error, ErrorKind};

use super::{Log, State};

impl State {
    /// Returns why a batch, of which a part was written under the incarnation `begun`, cannot be
    /// appended now.
    pub(super) fn refusal(&self, begun: Option<u64>) -> Option<Error> {
        if let Some((kind, text)) = &self.broken {
            return Some(Error::new(*kind, text.clone()));
        }
        if self.ended {
            return Some(Error::new(ErrorKind::Io, "the pool has been closed"));
        }
        let text = "writing the log failed after a part of this batch had been written";
        begun.filter(|begun| *begun != self.incarnation).map(|_| Error::new(ErrorKind::Io, text))
    }
}

impl Log {
    /// Ends the log for good. Returns its end, unless a batch is in flight or has failed.
    pub fn end(&self) -> Option<LogEnd> {
        let mut state = self.state.lock();
        state.ended = true;
        // Another process may open the pool as soon as this one has closed it: calls of the storage
        // that are made without the lock end first.
        while state.reserving || state.streams.is_zeroing() {
            self.settled.wait(&mut state);
        }
        let is_whole = state.broken.is_none() && state.flights.is_empty();
        is_whole.then_some(LogEnd { incarnation: state.incarnation, next_seq: state.next_seq })
    }
}
