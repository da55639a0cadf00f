//! How often a connection's reader looks for more before it sleeps. Owns that number for one
//! connection.
//!
//! To wake a thread that sleeps on another processor costs more than to read a block from memory,
//! and the client pays for it with every request that finds the reader asleep. So the reader looks
//! again for about as long as a wake-up takes, if that found something lately: a client that is
//! quiet, or slower than that, costs a look or two each time.

/// Looks at most: each takes about a microsecond with the yield behind it, and a wake-up takes some
/// tens of them.
const LOOKS_MAX: u32 = 64;
/// Looks in the beginning, and at least: one that finds something doubles them.
const LOOKS_MIN: u32 = 1;

/// See the module's text.
#[derive(Debug)]
pub struct Looks(u32);

impl Default for Looks {
    fn default() -> Self {
        Self(LOOKS_MIN)
    }
}

impl Looks {
    /// Looks until something is there (`Some`) or it has looked often enough.
    pub fn look<T>(&mut self, mut there: impl FnMut() -> Option<T>) -> Option<T> {
        for _ in 0..self.0 {
            if let Some(found) = there() {
                self.0 = (self.0 * 2).min(LOOKS_MAX);
                return Some(found);
            }
            // Other threads that are ready on this processor go first.
            std::thread::yield_now();
        }
        self.0 = (self.0 / 2).max(LOOKS_MIN);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks of one wait in which something is there from the `at`th look on.
    fn looks(looks: &mut Looks, at: u32) -> (u32, bool) {
        let mut count = 0;
        let found = looks.look(|| {
            count += 1;
            (count >= at).then_some(())
        });
        (count, found.is_some())
    }

    #[test]
    fn who_is_quick_is_waited_for_and_who_is_not_costs_little() {
        let mut patience = Looks::default();
        for _ in 0..20 {
            assert_eq!(looks(&mut patience, 1), (1, true));
        }
        assert_eq!(looks(&mut patience, LOOKS_MAX), (LOOKS_MAX, true));
        // Then nothing comes for long.
        let spent: u32 = (0..20).map(|_| looks(&mut patience, u32::MAX).0).sum();
        assert!(spent <= 2 * LOOKS_MAX + 20, "{spent}");
        assert_eq!(looks(&mut patience, u32::MAX), (LOOKS_MIN, false));
    }
}
