//! Step 3 of a batch: it is applied, or returned to its sink, in its turn. Owns nothing: the
//! batches in flight are part of the log's state.

use units::Seq;

use super::{Log, Progress, State};
use crate::base::ranked::MutexGuard;
use crate::base::ranks;

impl Log {
    /// Step 3, for as many batches as are ready.
    pub(super) fn settle<'a>(&'a self, mut state: MutexGuard<'a, State, ranks::LogState>) {
        while let Some(flight) = state.flights.front() {
            match flight.progress {
                Progress::Writing | Progress::Foreseeing => break,
                Progress::Failed => {
                    self.give_back(&mut state);
                    break;
                }
                Progress::Written => {}
            }
            if !self.sink.apply(flight.seq, &flight.entries, flight.payload, &flight.foreseen) {
                state = self.foresee_first(state);
                continue;
            }
            let Some(flight) = state.flights.pop_front() else { break };
            state.streams.applied(flight.place, flight.end);
            state.applied_seq = Seq(flight.seq.0 + 1);
            self.sink.reached(state.applied_seq);
            self.sink.completed(&flight.taken);
        }
        self.settled.notify_all();
    }

    /// Reads the map store again for the first batch in flight.
    fn foresee_first<'a>(
        &'a self,
        mut state: MutexGuard<'a, State, ranks::LogState>,
    ) -> MutexGuard<'a, State, ranks::LogState> {
        let Some(flight) = state.flights.front_mut() else { return state };
        flight.progress = Progress::Foreseeing;
        let entries = std::mem::take(&mut flight.entries);
        // Those before it are applied.
        self.settled.notify_all();
        drop(state);
        let foreseen = self.sink.foresee(&entries);
        let mut state = self.state.lock();
        // No other thread removes it, or a later one.
        if let Some(flight) = state.flights.front_mut() {
            debug_assert_eq!(flight.progress, Progress::Foreseeing);
            (flight.entries, flight.foreseen, flight.progress) = (entries, foreseen, Progress::Written);
        }
        state
    }

    /// The first batch in flight has failed: once no other is being written, all of them are
    /// returned to the sink.
    fn give_back(&self, state: &mut State) {
        if state.flights.iter().any(|f| f.progress == Progress::Writing) {
            return;
        }
        for flight in state.flights.drain(..) {
            self.sink.failed(&flight.taken);
        }
    }
}
