//! The number of packs that are sent at once: additive increase, multiplicative decrease, which
//! suits shared links and stores best. Used by all tasks of one upload.

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Uploads in flight at first, and at most: the maximum is the number of connections that one
/// client can sustain.
const UPLOADS_FIRST: f64 = 4.0;
const UPLOADS_MAX: f64 = 64.0;

/// Limits the uploads in flight: the limit rises by one for each round without errors, and is
/// halved after an error.
#[derive(Debug)]
pub(crate) struct UploadLimit {
    state: Mutex<(f64, usize)>,
    free: Notify,
    max: f64,
}

impl UploadLimit {
    pub(crate) fn new(max: f64) -> Self {
        let max = max.clamp(1.0, UPLOADS_MAX);
        Self { state: Mutex::new((UPLOADS_FIRST.min(max), 0)), free: Notify::new(), max }
    }

    pub(crate) async fn acquire(&self) {
        loop {
            let freed = self.free.notified();
            {
                let mut state = self.state.lock();
                if (state.1 as f64) < state.0.floor() {
                    state.1 += 1;
                    return;
                }
            }
            freed.await;
        }
    }

    pub(crate) fn release(&self) {
        let mut state = self.state.lock();
        state.1 -= 1;
        state.0 = (state.0 + 1.0 / state.0).min(self.max);
        drop(state);
        self.free.notify_waiters();
    }

    pub(crate) fn slow_down(&self) {
        let mut state = self.state.lock();
        state.0 = (state.0 / 2.0).max(1.0);
    }
}
