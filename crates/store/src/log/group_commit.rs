//! Group commit: syncs of the data file, shared by all callers that wait for one.

use std::sync::Arc;

use env::Disk;
use surface::{Error, ErrorKind, Result};
use units::Seq;

use crate::base::ranked::{Condvar, Mutex};
use crate::base::ranks;
use crate::base::vitals::Vitals;

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

pub struct Syncs {
    disk: Arc<dyn Disk>,
    vitals: Arc<Vitals>,
    state: Mutex<State, ranks::Syncs>,
    done: Condvar,
}

impl Syncs {
    pub fn new(disk: Arc<dyn Disk>, vitals: Arc<Vitals>, durable_before: Seq) -> Self {
        let state = State { durable_before, begun: 0, running: false, failed: None };
        Self { disk, vitals, state: Mutex::new(state), done: Condvar::new() }
    }

    /// All batches before this one are durable.
    pub fn durable_before(&self) -> Seq {
        self.state.lock().durable_before
    }

    /// Returns when all batches before `target` are durable. `written` returns how far the log is
    /// written when a sync begins, so that one sync serves all callers that came before it.
    ///
    /// # Errors
    /// When a sync has failed, now or earlier: the medium's content is then unknown, and another
    /// sync would prove nothing.
    pub fn reach(&self, target: Seq, written: impl Fn() -> Seq) -> Result<()> {
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
            let result = self.disk.sync().map_err(|error| self.report(&error));
            self.vitals.counters.syncs.add(1);
            state = self.state.lock();
            state.running = false;
            match result {
                Ok(()) => state.durable_before = state.durable_before.max(reached),
                Err(failure) => state.failed = Some(failure),
            }
            self.done.notify_all();
        }
    }

    /// Makes the pool read-only, because a sync failed. Called without the lock.
    fn report(&self, error: &std::io::Error) -> Failure {
        let is_deleted = error.kind() == std::io::ErrorKind::NotFound;
        if is_deleted {
            self.vitals.note_deleted();
        }
        let failure = Failure { why: error.to_string(), is_deleted };
        self.vitals.fail(&sync_error(&failure));
        failure
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
    use env::DiskLayer;
    use sim::Machine;

    use super::*;
    use crate::base::testing::vitals_on;

    /// Syncs fail on it.
    struct Failing(Arc<dyn Disk>, std::io::ErrorKind);

    impl DiskLayer for Failing {
        fn below(&self) -> &dyn Disk {
            &*self.0
        }

        fn sync(&self) -> std::io::Result<()> {
            Err(std::io::Error::new(self.1, "the cable is out"))
        }
    }

    /// The caller of a sync may ignore the error: the pool must not go on writing after it.
    #[test]
    fn a_failed_sync_is_reported_by_the_log_itself() {
        for (kind, is_advised) in [(std::io::ErrorKind::NotFound, false), (std::io::ErrorKind::Other, true)] {
            let machine = Machine::new(1 << 20, 3);
            let vitals = vitals_on(&machine);
            let disk: Arc<dyn Disk> = Arc::new(Failing(machine.disk.handle(), kind));
            let syncs = Syncs::new(disk, vitals.clone(), Seq(1));
            assert!(vitals.check_failed().is_ok());
            assert!(syncs.reach(Seq(2), || Seq(2)).is_err());
            let text = vitals.check_failed().unwrap_err().to_string();
            assert!(text.contains("the cable is out"), "{text}");
            assert_eq!(text.contains("close and reopen"), is_advised, "{text}");
        }
    }

    /// A sync that the log does not need is still made for other data in the file.
    #[test]
    fn a_renewed_sync_makes_durable_what_the_log_does_not_know_of() {
        let mut machine = Machine::new(1 << 20, 3);
        let disk: Arc<dyn Disk> = machine.disk.handle();
        let syncs = Syncs::new(disk.clone(), vitals_on(&machine), Seq(5));
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
