//! Group commit: syncs of the data file, shared by all callers that wait for one.

use std::sync::Arc;

use env::Disk;
use surface::{Error, ErrorKind, Result};
use units::Seq;

use crate::base::counters::Counters;
use crate::base::ranked::{Condvar, Mutex};
use crate::base::ranks;

struct State {
    durable_before: Seq,
    /// Syncs that have begun. One runs at a time.
    begun: u64,
    running: bool,
    failed: Option<Failure>,
}

/// Why a sync failed.
#[derive(Clone)]
struct Failure {
    why: String,
    /// The data file has been deleted: keep it open.
    is_deleted: bool,
}

pub(crate) struct Syncs {
    disk: Arc<dyn Disk>,
    counters: Arc<Counters>,
    state: Mutex<State, ranks::Syncs>,
    done: Condvar,
}

impl Syncs {
    pub(crate) fn new(disk: Arc<dyn Disk>, counters: Arc<Counters>, durable_before: Seq) -> Self {
        let state = State { durable_before, begun: 0, running: false, failed: None };
        Self { disk, counters, state: Mutex::new(state), done: Condvar::new() }
    }

    /// All batches before this one are durable.
    pub(crate) fn durable_before(&self) -> Seq {
        self.state.lock().durable_before
    }

    /// Returns when all batches before `target` are durable. `written` returns how far the log is
    /// written when a sync begins, so that one sync serves all callers that came before it.
    ///
    /// # Errors
    /// When a sync has failed, now or earlier: the medium's content is then unknown, and another
    /// sync would prove nothing.
    pub(crate) fn reach(&self, target: Seq, written: impl Fn() -> Seq) -> Result<()> {
        self.sync_until(|state| state.durable_before >= target, written)
    }

    /// Returns when a sync has ended that began after this call: all earlier writes to the data
    /// file are then durable, not only the log.
    ///
    /// # Errors
    /// Those of [`reach`](Self::reach).
    pub(crate) fn renew(&self, written: impl Fn() -> Seq) -> Result<()> {
        let needed = self.state.lock().begun + 1;
        self.sync_until(|state| !state.running && state.begun >= needed, written)
    }

    fn sync_until(&self, is_done: impl Fn(&State) -> bool, written: impl Fn() -> Seq) -> Result<()> {
        let mut state = self.state.lock();
        loop {
            if let Some(failure) = &state.failed {
                return Err(sync_error(failure));
            }
            if is_done(&state) {
                return Ok(());
            }
            if state.running {
                self.done.wait(&mut state);
                continue;
            }
            state.running = true;
            state.begun += 1;
            drop(state);
            let reached = written();
            let result = self.disk.sync();
            self.counters.syncs.add(1);
            state = self.state.lock();
            state.running = false;
            match result {
                Ok(()) => state.durable_before = state.durable_before.max(reached),
                Err(error) => {
                    let is_deleted = error.kind() == std::io::ErrorKind::NotFound;
                    state.failed = Some(Failure { why: error.to_string(), is_deleted });
                }
            }
            self.done.notify_all();
        }
    }

    /// Why a sync failed, if one did.
    pub(crate) fn failure(&self) -> Option<String> {
        self.state.lock().failed.as_ref().map(|failure| failure.why.clone())
    }

    /// Returns whether a sync failed because the data file was deleted.
    pub(crate) fn is_deleted(&self) -> bool {
        self.state.lock().failed.as_ref().is_some_and(|failure| failure.is_deleted)
    }
}

fn sync_error(failure: &Failure) -> Error {
    let Failure { why, is_deleted } = failure;
    if *is_deleted {
        return Error::new(ErrorKind::Io, why.clone());
    }
    Error::new(
        ErrorKind::Io,
        format!(
            "syncing the data file failed ({why}); its content since the last flush is unknown. Close the pool \
             and open it again: recovery restores everything that was flushed"
        ),
    )
}

#[cfg(test)]
mod tests {
    use sim::Machine;

    use super::*;

    /// A sync that the log does not need is still made for other data in the file.
    #[test]
    fn a_renewed_sync_makes_durable_what_the_log_does_not_know_of() {
        let mut machine = Machine::new(1 << 20, 3);
        let disk: Arc<dyn Disk> = machine.disk.handle();
        let syncs = Syncs::new(disk.clone(), Arc::default(), Seq(5));
        let mut buf = env::AlignedBuf::new(4096);
        buf.fill(7);
        disk.write_at(4096, &buf, 4096).unwrap();
        syncs.reach(Seq(5), || Seq(9)).unwrap();
        assert_eq!(syncs.durable_before(), Seq(5), "nothing was to do");
        syncs.renew(|| Seq(9)).unwrap();
        assert_eq!(syncs.durable_before(), Seq(9));
        machine.power.cut();
        machine.power_cycle();
        let mut back = [0; 4096];
        machine.disk.peek(4096, &mut back);
        assert_eq!(back, [7; 4096]);
    }
}
