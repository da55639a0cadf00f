//! Counts failed log-ins by address and by user, and decides when the next one is allowed. Pure:
//! the caller provides the time.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// Allowed attempts in a window.
const ATTEMPTS: u32 = 5;
/// Length of the window, and of the first pause.
const WINDOW_SECONDS: u64 = 60;
/// Maximum pause: each one is twice the one before.
const PAUSE_SECONDS_MAX: u64 = 3600;
/// Maximum number of counted addresses and users: a new one displaces the one that was quiet
/// longest.
const COUNTED_MAX: usize = 4096;

#[derive(Debug, Clone, Copy)]
struct Count {
    attempts: u32,
    /// Start of the window.
    since_s: u64,
    /// Number of consecutive full windows.
    pauses: u32,
    last_s: u64,
}

/// See the module's text.
#[derive(Default)]
pub(super) struct Attempts {
    counts: BTreeMap<String, Count>,
}

/// An IPv6 network counts as one address: a client can choose among all of its addresses.
fn key_of_address(from: &str) -> String {
    match from.parse() {
        Ok(IpAddr::V6(address)) => match address.to_ipv4_mapped() {
            Some(address) => format!("address {address}"),
            None => format!("address {:?}", &address.segments()[..4]),
        },
        _ => format!("address {from}"),
    }
}

fn keys(from: &str, user: Option<&str>) -> impl Iterator<Item = String> {
    // Impossible names are counted together: the sender chooses their length.
    let user = user.map(|user| if user.len() <= 255 { format!("user {user}") } else { "users".to_owned() });
    std::iter::once(key_of_address(from)).chain(user)
}

impl Count {
    fn length(self) -> u64 {
        (WINDOW_SECONDS << self.pauses.min(16)).min(PAUSE_SECONDS_MAX)
    }

    /// Returns the seconds until the next attempt.
    fn wait(self, now_s: u64) -> Option<u64> {
        let until = self.since_s + self.length();
        (self.attempts >= ATTEMPTS && now_s < until).then(|| until - now_s)
    }

    fn add(&mut self, now_s: u64) {
        let is_over = now_s >= self.since_s + self.length();
        if is_over {
            let is_quiet = now_s >= self.last_s + 2 * self.length();
            let was_full = self.attempts >= ATTEMPTS;
            self.pauses = if is_quiet || !was_full { 0 } else { self.pauses + 1 };
            self.attempts = 0;
            self.since_s = now_s;
        }
        self.attempts += 1;
        self.last_s = now_s;
    }
}

impl Attempts {
    /// Counts an attempt.
    ///
    /// # Errors
    /// Seconds until the next attempt is allowed; this one was not counted.
    pub(super) fn begin(&mut self, from: &str, user: Option<&str>, now_s: u64) -> Result<(), u64> {
        let waits = keys(from, user).filter_map(|key| self.counts.get(&key).and_then(|count| count.wait(now_s)));
        if let Some(wait) = waits.max() {
            return Err(wait);
        }
        for key in keys(from, user) {
            self.make_room(&key);
            let begun = Count { attempts: 0, since_s: now_s, pauses: 0, last_s: now_s };
            self.counts.entry(key).or_insert(begun).add(now_s);
        }
        Ok(())
    }

    /// Clears the counts after a successful log-in.
    pub(super) fn forgive(&mut self, from: &str, user: Option<&str>) {
        for key in keys(from, user) {
            self.counts.remove(&key);
        }
    }

    fn make_room(&mut self, key: &str) {
        if self.counts.len() < COUNTED_MAX || self.counts.contains_key(key) {
            return;
        }
        let quiet = self.counts.iter().min_by_key(|(_, count)| count.last_s).map(|(key, _)| key.clone());
        if let Some(quiet) = quiet {
            self.counts.remove(&quiet);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(attempts: &mut Attempts, from: &str, user: &str, now_s: u64) -> Result<(), u64> {
        attempts.begin(from, Some(user), now_s)
    }

    #[test]
    fn the_sixth_attempt_in_a_minute_waits_and_the_pause_grows() {
        let mut attempts = Attempts::default();
        for _ in 0..5 {
            fail(&mut attempts, "10.0.0.1", "anna", 100).unwrap();
        }
        assert_eq!(fail(&mut attempts, "10.0.0.1", "anna", 110), Err(50));
        // The user from another address, and the address with another user.
        assert_eq!(fail(&mut attempts, "10.0.0.2", "anna", 110), Err(50));
        assert_eq!(fail(&mut attempts, "10.0.0.1", "bert", 110), Err(50));
        assert_eq!(fail(&mut attempts, "10.0.0.2", "bert", 110), Ok(()));
        for _ in 0..5 {
            fail(&mut attempts, "10.0.0.1", "anna", 160).unwrap();
        }
        assert_eq!(fail(&mut attempts, "10.0.0.1", "anna", 160), Err(120));
    }

    #[test]
    fn success_and_a_quiet_time_clear_the_count() {
        let mut attempts = Attempts::default();
        for _ in 0..5 {
            fail(&mut attempts, "10.0.0.1", "anna", 0).unwrap();
        }
        attempts.forgive("10.0.0.1", Some("anna"));
        for now in [1, 1, 1, 1, 1] {
            fail(&mut attempts, "10.0.0.1", "anna", now).unwrap();
        }
        assert!(fail(&mut attempts, "10.0.0.1", "anna", 2).is_err());
        for _ in 0..5 {
            fail(&mut attempts, "10.0.0.1", "anna", 10_000).unwrap();
        }
        assert_eq!(fail(&mut attempts, "10.0.0.1", "anna", 10_000), Err(60));
    }

    #[test]
    fn a_network_of_many_addresses_counts_as_one_and_memory_is_bounded() {
        let mut attempts = Attempts::default();
        for host in 0..5 {
            attempts.begin(&format!("2001:db8:1:2::{host}"), None, 0).unwrap();
        }
        assert!(attempts.begin("2001:db8:1:2:ffff::9", None, 0).is_err());
        assert!(attempts.begin("2001:db8:1:3::9", None, 0).is_ok());
        assert!(attempts.begin("::ffff:10.0.0.1", None, 0).is_ok());
        for number in 0..10_000 {
            let _ = attempts.begin(&format!("10.1.{}.{}", number / 256, number % 256), Some("x"), number);
        }
        assert!(attempts.counts.len() <= COUNTED_MAX);
    }
}
