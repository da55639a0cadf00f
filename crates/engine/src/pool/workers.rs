//! The handles of the pool's own threads (`threads` has their work). Owns them, until they have
//! ended, and the age of dirty data, which one of them watches. Called by the thread that opens a
//! pool, and by the one that closes it or is its last owner.

use std::thread::JoinHandle;

use store::base::jobs::Jobs;
use store::base::ranked::Mutex;
use store::base::ranks;
use store::base::signals::Signals;
use store::log::Log;

/// See the module.
#[derive(Default)]
pub(crate) struct Workers {
    pub(super) threads: Mutex<Vec<JoinHandle<()>>, ranks::Threads>,
    /// Generation of the oldest dirty data, and the time of the first tick that saw it, for the age
    /// limit.
    pub(super) aging: Mutex<(u64, u64), ranks::Aging>,
}

impl Workers {
    /// Stops the threads and waits for them; jobs that have not begun are dropped, waiting batches
    /// are written.
    pub(crate) fn stop(&self, signals: &Signals, jobs: &Jobs, log: &Log) {
        jobs.stop();
        signals.stop();
        log.stop_writers();
        let me = std::thread::current().id();
        for thread in self.threads.lock().drain(..) {
            // The last owner of the pool may be one of its own threads.
            if thread.thread().id() != me {
                let _ = thread.join();
            }
        }
    }
}
