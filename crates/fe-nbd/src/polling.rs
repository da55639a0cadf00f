//! How often a connection's reader polls before it sleeps. Owns that number for one connection.
//!
//! Waking a thread that sleeps on another CPU costs more than reading a block from memory, and the
//! client pays for it with every request that finds the reader asleep. So the reader polls for
//! about as long as a wake-up takes, if that was successful recently: a client that is idle, or
//! slower than that, costs a poll or two each time.

/// Most polls: each takes about a microsecond including the yield, and a wake-up takes some tens of
/// them.
const POLLS_MAX: u32 = 64;
/// Initial and fewest polls: a successful one doubles them.
const POLLS_MIN: u32 = 1;

/// Adaptive number of polls, see above.
#[derive(Debug)]
pub struct Polling(u32);

impl Default for Polling {
    fn default() -> Self {
        Self(POLLS_MIN)
    }
}

impl Polling {
    /// Polls until `there` returns something (`Some`) or the limit is reached.
    pub fn poll<T>(&mut self, mut there: impl FnMut() -> Option<T>) -> Option<T> {
        for _ in 0..self.0 {
            if let Some(found) = there() {
                self.0 = (self.0 * 2).min(POLLS_MAX);
                return Some(found);
            }
            // Other runnable threads on this CPU go first.
            std::thread::yield_now();
        }
        self.0 = (self.0 / 2).max(POLLS_MIN);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls of a wait in which something is available from the `at`th poll on.
    fn polls(polling: &mut Polling, at: u32) -> (u32, bool) {
        let mut count = 0;
        let found = polling.poll(|| {
            count += 1;
            (count >= at).then_some(())
        });
        (count, found.is_some())
    }

    #[test]
    fn who_is_quick_is_waited_for_and_who_is_not_costs_little() {
        let mut patience = Polling::default();
        for _ in 0..20 {
            assert_eq!(polls(&mut patience, 1), (1, true));
        }
        assert_eq!(polls(&mut patience, POLLS_MAX), (POLLS_MAX, true));
        // Then nothing arrives for a long time.
        let spent: u32 = (0..20).map(|_| polls(&mut patience, u32::MAX).0).sum();
        assert!(spent <= 2 * POLLS_MAX + 20, "{spent}");
        assert_eq!(polls(&mut patience, u32::MAX), (POLLS_MIN, false));
    }
}
