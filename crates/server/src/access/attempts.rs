//! Counts failed log-ins, and decides when the next one is allowed. Pure: the caller provides the
//! time.
//!
//! Strangers must not lock a user out by wrong passwords. So the strict limit is that of a user at
//! one address; the limits of an address with all users, and of a user at all addresses, are
//! looser. The last one does not apply where the user has logged in before: the protocol of OWASP's
//! "device cookies", with an address in place of the cookie. Someone at that address is held by the
//! other two.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// Attempts in a window, after which there is a pause. Each pause is twice the one before, up to a
/// maximum.
#[derive(Debug, Clone, Copy)]
struct Limit {
    attempts: u32,
    pause_s_max: u64,
}

/// For a user at one address: typing errors.
const OF_PAIR: Limit = Limit { attempts: 5, pause_s_max: 3600 };
/// For one address: several users behind a router or a proxy, or one who tries many names.
const OF_ADDRESS: Limit = Limit { attempts: 20, pause_s_max: 3600 };
/// For a user at all addresses where that user has not logged in: at most some 5000 guesses a day,
/// from however many machines. The pauses are short, because a user at a new address waits, too.
const OF_USER: Limit = Limit { attempts: 50, pause_s_max: 900 };

/// Length of the window, and of the first pause.
const WINDOW_SECONDS: u64 = 60;
/// Maximum number of counts: a new one displaces the one that was quiet longest.
const COUNTED_MAX: usize = 4096;
/// Maximum number of users at addresses that are known from a log-in: a new one displaces the one
/// whose last log-in is the oldest.
const KNOWN_MAX: usize = 1024;

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
    /// Users at addresses where they have logged in, with the time of the last log-in.
    known: BTreeMap<String, u64>,
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

/// Impossible names are counted together: the sender chooses their length.
fn key_of_user(user: &str) -> String {
    if user.len() <= 255 { format!("user {user}") } else { "users".to_owned() }
}

fn key_of_pair(from: &str, user: &str) -> String {
    format!("{} {}", key_of_address(from), key_of_user(user))
}

impl Count {
    fn length(self, limit: Limit) -> u64 {
        (WINDOW_SECONDS << self.pauses.min(16)).min(limit.pause_s_max)
    }

    /// Returns the seconds until the next attempt.
    fn wait(self, limit: Limit, now_s: u64) -> Option<u64> {
        let until = self.since_s + self.length(limit);
        (self.attempts >= limit.attempts && now_s < until).then(|| until - now_s)
    }

    fn add(&mut self, limit: Limit, now_s: u64) {
        let is_over = now_s >= self.since_s + self.length(limit);
        if is_over {
            let is_quiet = now_s >= self.last_s + 2 * self.length(limit);
            let was_full = self.attempts >= limit.attempts;
            self.pauses = if is_quiet || !was_full { 0 } else { self.pauses + 1 };
            self.attempts = 0;
            self.since_s = now_s;
        }
        self.attempts += 1;
        self.last_s = now_s;
    }
}

impl Attempts {
    /// Returns the counts to which an attempt belongs, with their limits.
    fn keys(&self, from: &str, user: Option<&str>) -> Vec<(String, Limit)> {
        let mut keys = vec![(key_of_address(from), OF_ADDRESS)];
        if let Some(user) = user {
            let pair = key_of_pair(from, user);
            if !self.known.contains_key(&pair) {
                keys.push((key_of_user(user), OF_USER));
            }
            keys.push((pair, OF_PAIR));
        }
        keys
    }

    /// Counts an attempt.
    ///
    /// # Errors
    /// Seconds until the next attempt is allowed; this one was not counted.
    pub(super) fn begin(&mut self, from: &str, user: Option<&str>, now_s: u64) -> Result<(), u64> {
        let keys = self.keys(from, user);
        let wait = |(key, limit): &(String, Limit)| self.counts.get(key).and_then(|count| count.wait(*limit, now_s));
        if let Some(wait) = keys.iter().filter_map(wait).max() {
            return Err(wait);
        }
        for (key, limit) in keys {
            if !self.counts.contains_key(&key) {
                make_room(&mut self.counts, COUNTED_MAX, |count| count.last_s);
            }
            let begun = Count { attempts: 0, since_s: now_s, pauses: 0, last_s: now_s };
            self.counts.entry(key).or_insert(begun).add(limit, now_s);
        }
        Ok(())
    }

    /// Takes a successful attempt out of the counts. Wrong ones of strangers stay in those that they
    /// share with it.
    pub(super) fn succeeded(&mut self, from: &str, user: Option<&str>, now_s: u64) {
        for (key, _) in self.keys(from, user) {
            if let Some(count) = self.counts.get_mut(&key) {
                count.attempts = count.attempts.saturating_sub(1);
            }
        }
        let Some(user) = user else { return };
        let pair = key_of_pair(from, user);
        self.counts.remove(&pair);
        if !self.known.contains_key(&pair) {
            make_room(&mut self.known, KNOWN_MAX, |last_s| *last_s);
        }
        self.known.insert(pair, now_s);
    }
}

/// Removes the oldest entry of a full map.
fn make_room<T>(map: &mut BTreeMap<String, T>, entries_max: usize, last_s: impl Fn(&T) -> u64) {
    if map.len() < entries_max {
        return;
    }
    let oldest = map.iter().min_by_key(|(_, entry)| last_s(entry)).map(|(key, _)| key.clone());
    if let Some(oldest) = oldest {
        map.remove(&oldest);
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
        // Neither the user at another address nor another user of the address waits.
        assert_eq!(fail(&mut attempts, "10.0.0.2", "anna", 110), Ok(()));
        assert_eq!(fail(&mut attempts, "10.0.0.1", "bert", 110), Ok(()));
        for _ in 0..5 {
            fail(&mut attempts, "10.0.0.1", "anna", 160).unwrap();
        }
        assert_eq!(fail(&mut attempts, "10.0.0.1", "anna", 160), Err(120));
    }

    #[test]
    fn an_address_that_tries_many_names_waits() {
        let mut attempts = Attempts::default();
        for number in 0..OF_ADDRESS.attempts {
            fail(&mut attempts, "10.0.0.1", &format!("user-{number}"), 0).unwrap();
        }
        assert_eq!(fail(&mut attempts, "10.0.0.1", "anna", 1), Err(59));
        assert_eq!(attempts.begin("10.0.0.1", None, 1), Err(59), "by link");
        assert_eq!(fail(&mut attempts, "10.0.0.2", "anna", 1), Ok(()));
    }

    /// They could lock out any user whose name they knew, by five wrong passwords a minute.
    #[test]
    fn strangers_lock_no_user_out_of_an_address_where_that_user_has_logged_in() {
        let mut attempts = Attempts::default();
        fail(&mut attempts, "10.0.0.1", "anna", 0).unwrap();
        attempts.succeeded("10.0.0.1", Some("anna"), 0);
        let stranger = |number: u32| format!("192.0.2.{number}");
        for number in 0..OF_USER.attempts {
            fail(&mut attempts, &stranger(number), "anna", 1).unwrap();
        }
        assert_eq!(fail(&mut attempts, &stranger(200), "anna", 1), Err(59), "guesses from many machines");
        assert_eq!(fail(&mut attempts, "10.0.0.1", "anna", 1), Ok(()));
        // Who sits there has no more than the five of any address.
        for _ in 0..4 {
            fail(&mut attempts, "10.0.0.1", "anna", 1).unwrap();
        }
        assert_eq!(fail(&mut attempts, "10.0.0.1", "anna", 1), Err(60));
        // Pauses of a name are short, however long the guessing goes on.
        let (mut now, mut longest) = (1, 0_u64);
        for _ in 0..20 {
            let wait = fail(&mut attempts, &stranger(201), "anna", now).unwrap_err();
            (now, longest) = (now + wait, longest.max(wait));
            for number in 0..OF_USER.attempts {
                fail(&mut attempts, &stranger(number), "anna", now).unwrap();
            }
        }
        assert_eq!(longest, OF_USER.pause_s_max);
        assert_eq!(fail(&mut attempts, "10.0.0.1", "anna", now), Ok(()));
    }

    #[test]
    fn success_and_a_quiet_time_clear_the_count() {
        let mut attempts = Attempts::default();
        for _ in 0..5 {
            fail(&mut attempts, "10.0.0.1", "anna", 0).unwrap();
        }
        attempts.succeeded("10.0.0.1", Some("anna"), 0);
        for now in [1, 1, 1, 1, 1] {
            fail(&mut attempts, "10.0.0.1", "anna", now).unwrap();
        }
        assert!(fail(&mut attempts, "10.0.0.1", "anna", 2).is_err());
        for _ in 0..5 {
            fail(&mut attempts, "10.0.0.1", "anna", 10_000).unwrap();
        }
        assert_eq!(fail(&mut attempts, "10.0.0.1", "anna", 10_000), Err(60));
    }

    /// Who has an account could guess at others without a limit, with a log-in in between.
    #[test]
    fn success_of_one_user_does_not_clear_the_count_of_the_address() {
        let mut attempts = Attempts::default();
        for number in 0..OF_ADDRESS.attempts {
            fail(&mut attempts, "10.0.0.1", &format!("user-{number}"), 0).unwrap();
            if number == 10 {
                fail(&mut attempts, "10.0.0.1", "mine", 0).unwrap();
                attempts.succeeded("10.0.0.1", Some("mine"), 0);
            }
        }
        assert!(fail(&mut attempts, "10.0.0.1", "anna", 0).is_err());
        // Many users who log in from one address at the same time do not wait.
        for number in 0..2 * OF_ADDRESS.attempts {
            let user = format!("user-{number}");
            fail(&mut attempts, "10.0.0.2", &user, 0).unwrap();
            attempts.succeeded("10.0.0.2", Some(&user), 0);
        }
    }

    #[test]
    fn a_network_of_many_addresses_counts_as_one_and_memory_is_bounded() {
        let mut attempts = Attempts::default();
        for host in 0..OF_ADDRESS.attempts {
            attempts.begin(&format!("2001:db8:1:2::{host}"), None, 0).unwrap();
        }
        assert!(attempts.begin("2001:db8:1:2:ffff::9", None, 0).is_err());
        assert!(attempts.begin("2001:db8:1:3::9", None, 0).is_ok());
        assert!(attempts.begin("::ffff:10.0.0.1", None, 0).is_ok());
        for number in 0..10_000 {
            let from = format!("10.1.{}.{}", number / 256, number % 256);
            let _ = attempts.begin(&from, Some("x"), number);
            attempts.succeeded(&from, Some("x"), number);
        }
        assert!(attempts.counts.len() <= COUNTED_MAX && attempts.known.len() <= KNOWN_MAX);
        assert!(attempts.known.contains_key(&key_of_pair("10.1.39.15", "x")), "the newest");
    }
}
