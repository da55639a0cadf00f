//! Waiting for a batch to be applied. Owns nothing: the fate of a batch follows from the log's
//! position, and from the places where it went on after failures.

use format::Stream;
use surface::{Error, ErrorKind, Result};

use super::{Log, Progress, State, Ticket};

impl State {
    /// Returns whether zeroes are being written after the last batch of a stream: ahead of the next
    /// batch, or with the last one. No other batch is placed there until that is done.
    pub(super) fn is_zeroed_now(&mut self, stream: Stream) -> bool {
        self.streams.open_of(stream).is_some_and(|open| open.is_zeroing)
            || self.flights.iter().any(|f| f.has_tail && f.progress == Progress::Writing && f.place.stream == stream)
    }
}

impl Log {
    /// Waits until all batches that have a position now are settled: applied, or returned to their
    /// sink.
    pub fn wait_settled(&self) {
        let mut state = self.state.lock();
        let Some(last) = state.flights.back().map(|flight| flight.seq) else { return };
        while state.flights.front().is_some_and(|first| first.seq <= last) {
            self.settled.wait(&mut state);
        }
    }

    /// Waits until a batch is applied.
    pub fn wait_applied(&self, ticket: Ticket) -> Result<()> {
        let mut state = self.state.lock();
        loop {
            // The next incarnation reuses the sequence numbers of failed batches. It may have
            // failed as well by now.
            let mut later = state.resets.iter().filter(|(incarnation, _)| *incarnation > ticket.incarnation);
            let given_back = later.any(|(_, first_seq)| *first_seq <= ticket.seq);
            if state.applied_seq > ticket.seq && !given_back {
                return Ok(());
            }
            if given_back || (state.broken.is_some() && state.flights.is_empty()) {
                let text = "a write to the data file failed; the requested change was not made".to_owned();
                let (kind, text) = state.broken.clone().unwrap_or((ErrorKind::Io, text));
                return Err(Error::new(kind, text));
            }
            self.settled.wait(&mut state);
        }
    }
}
