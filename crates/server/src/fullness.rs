//! Warns as a pool fills up: once at each of several levels, and again only after use has fallen
//! well below it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use engine::PoolRoom;
use parking_lot::Mutex;
use units::format_size;

use crate::health;
use report::{ObjectKind, QuotaLine, ReservedLine, StatusReport};

/// Use of the space, in percent, at which a warning is due.
pub const LEVELS: [u32; 3] = [80, 90, 95];

/// Percent by which use must fall below a level before a repeated warning: a pool that stays at a
/// level warns once.
const BELOW: f64 = 2.0;

/// Maximum number of volumes with a reservation in one line.
const NAMED_MAX: usize = 3;

/// Returns the highest level that a pool has reached; 0: none.
pub fn level(used_percent: f64) -> u32 {
    LEVELS.into_iter().rev().find(|level| used_percent >= f64::from(*level)).unwrap_or(0)
}

/// Figures for warnings about a full pool.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gauge {
    /// Used space in percent.
    pub used_percent: f64,
    /// New data is refused.
    pub is_full: bool,
    /// Writes that were refused.
    pub refused_writes: u64,
}

impl From<PoolRoom> for Gauge {
    fn from(room: PoolRoom) -> Self {
        let all = room.live_bytes.saturating_add(room.available_bytes).saturating_add(room.reserved_bytes);
        let used_percent = health::percent(room.live_bytes, all);
        // In a pool without space for new data overwriting continues, and then nothing was refused
        // last.
        let is_full = room.is_full || room.available_bytes == 0 && level(used_percent) == LEVELS[2];
        Self { used_percent, is_full, refused_writes: room.refused_writes }
    }
}

/// Describes the reserved space and its purposes.
pub fn reserved_words(s: &StatusReport) -> String {
    let mut for_volumes = format!("{} for volumes (not used yet", format_size(s.reserved_bytes));
    for ReservedLine { volume, bytes } in s.reserved_for.iter().take(NAMED_MAX) {
        for_volumes.push_str(&format!("; {volume} {}", format_size(*bytes)));
    }
    if s.reserved_for.len() > NAMED_MAX {
        for_volumes.push_str(&format!("; {} more", s.reserved_for.len() - NAMED_MAX));
    }
    format!("{for_volumes}), {} for cleaning", format_size(s.kept_bytes))
}

/// Returns the advice, in one line.
pub fn advice(s: &StatusReport) -> String {
    let left = format_size(s.available_bytes);
    if s.short_below {
        return format!(
            "{left} left for new data: the file system with the data file {} is short of space, not the pool; free \
             space there, or destroy or discard data ('shale grow' does not help)",
            s.data
        );
    }
    format!("{left} left for new data; destroy or discard data, or use 'shale grow'")
}

/// The level of the last warning; 100 stands for a full pool.
#[derive(Debug, Default)]
pub struct Fullness {
    told: AtomicU32,
    /// Refused writes at the last check.
    refused: AtomicU64,
    /// Objects at their quota that were reported.
    at_quota: Mutex<BTreeSet<String>>,
}

/// Above all levels: new data is refused.
const FULL: u32 = 100;

impl Fullness {
    /// Returns lines about shares and folders that have reached their quota since the last call. A
    /// client of a volume at its quota gets an error, which is logged.
    pub fn look_at_quotas(&self, at_quota: &[QuotaLine]) -> Vec<String> {
        let names = at_quota.iter().map(|line| line.name.clone()).collect();
        let before = std::mem::replace(&mut *self.at_quota.lock(), names);
        let is_new = |line: &&QuotaLine| line.kind != ObjectKind::Volume && !before.contains(&line.name);
        at_quota.iter().filter(is_new).map(QuotaLine::words).collect()
    }

    /// Checks a pool, and returns the warning to log now. The status is requested only then,
    /// because it walks all volumes.
    pub fn look(&self, gauge: Gauge, status: impl FnOnce() -> StatusReport) -> Option<String> {
        let refused = self.refused.swap(gauge.refused_writes, Ordering::Relaxed);
        let is_full = gauge.is_full || gauge.refused_writes > refused;
        let now = if is_full { FULL } else { level(gauge.used_percent) };
        let told = self.told.load(Ordering::Relaxed);
        if now <= told {
            // Levels that use has fallen well below may be reported again.
            let still = LEVELS.into_iter().rev().find(|level| gauge.used_percent >= f64::from(*level) - BELOW);
            let still = still.unwrap_or(0);
            self.told.store(if is_full { FULL } else { told.min(still.max(now)) }, Ordering::Relaxed);
            return None;
        }
        self.told.store(now, Ordering::Relaxed);
        let s = &status();
        let reserved = reserved_words(s);
        Some(if now == FULL && !s.full && s.available_bytes > 0 {
            // Cleaning, or a destroy, has made room since.
            let count = match gauge.refused_writes.saturating_sub(refused) {
                0 => "new data".to_owned(),
                1 => "1 write".to_owned(),
                count => format!("{count} writes"),
            };
            format!(
                "the pool {} was FULL and refused {count}, and has room again: {}; reserved: {reserved}",
                s.pool,
                advice(s)
            )
        } else if now == FULL {
            format!("the pool {} is FULL, and new data is refused: reserved: {reserved}; {}", s.pool, advice(s))
        } else {
            let used = gauge.used_percent;
            format!("the pool {} is {used:.0} % full: {}; reserved: {reserved}", s.pool, advice(s))
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::cell::Cell;

    use super::*;

    fn status() -> StatusReport {
        StatusReport {
            pool: "/srv/pool".to_owned(),
            reserved_bytes: 5 << 30,
            reserved_for: ["a", "b", "c", "d"]
                .map(|name| ReservedLine { volume: name.to_owned(), bytes: 1 << 30 })
                .to_vec(),
            kept_bytes: 8 << 20,
            available_bytes: 3 << 20,
            ..StatusReport::default()
        }
    }

    fn at(used_percent: f64) -> Gauge {
        Gauge { used_percent, is_full: false, refused_writes: 0 }
    }

    #[test]
    fn each_level_is_told_once_until_the_pool_has_been_well_below_it() {
        let fullness = Fullness::default();
        let asked = Cell::new(0);
        let look = |gauge: Gauge| {
            fullness.look(gauge, || {
                asked.set(asked.get() + 1);
                status()
            })
        };
        let told = |percent: f64| look(at(percent)).is_some();
        let seen = [79.9, 80.0, 84.0, 90.0, 89.0, 90.5, 87.9, 90.0, 97.0, 94.0, 96.0, 70.0, 81.0, 99.0].map(told);
        let expected = [false, true, false, true, false, false, false, true, true, false, false, false, true, true];
        assert_eq!(seen, expected);
        assert_eq!(asked.get(), 6, "the status is computed only to be told");
        let full = Gauge { is_full: true, ..at(99.0) };
        assert!(look(full).unwrap().contains("FULL"));
        assert_eq!(look(full), None);
        assert!(!told(99.0) && look(full).is_some(), "it had room in between");
        // Reserved space is not used: a pool may be full for other writes long before.
        let refused = Gauge { refused_writes: 3, ..at(40.0) };
        assert!(!told(40.0) && look(refused).unwrap().contains("FULL"));
        assert_eq!(look(refused), None, "no more were refused since");
    }

    /// The log called a pool full that had room again, and said how much.
    #[test]
    fn a_pool_that_has_room_again_was_full() {
        let refused = |full| {
            let refused = Gauge { refused_writes: 3, is_full: full, ..at(40.0) };
            Fullness::default().look(refused, || StatusReport { full, ..status() }).unwrap()
        };
        let (now, before) = (refused(true), refused(false));
        assert!(now.contains("is FULL, and new data is refused"), "{now}");
        assert!(before.contains("was FULL and refused 3 writes, and has room again: 3 MiB left"), "{before}");
    }

    #[test]
    fn a_share_at_its_quota_is_told_once_until_it_has_left_it() {
        let fullness = Fullness::default();
        let at_quota = |name: &str, kind| {
            let (name, stored_bytes, quota_bytes) = (name.to_owned(), (5 << 20) - 4096, 5 << 20);
            QuotaLine { name, kind, stored_bytes, quota_bytes }
        };
        let volume = at_quota("v", ObjectKind::Volume);
        let share = at_quota("docs", ObjectKind::Share);
        let told = fullness.look_at_quotas(&[share.clone(), volume.clone()]);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("share 'docs' uses ") && told[0].contains("quota of 5 MiB"), "{told:?}");
        assert!(fullness.look_at_quotas(&[share.clone(), volume.clone()]).is_empty());
        assert!(fullness.look_at_quotas(&[volume]).is_empty());
        assert_eq!(fullness.look_at_quotas(&[share]), told);
    }

    #[test]
    fn a_pool_without_room_for_new_data_is_full_whether_something_was_refused_or_not() {
        let room = PoolRoom { live_bytes: 96, available_bytes: 4, ..PoolRoom::default() };
        let gauge = Gauge::from(room);
        assert_eq!((gauge.used_percent, gauge.is_full), (96.0, false));
        assert!(Gauge::from(PoolRoom { available_bytes: 0, ..room }).is_full);
        assert!(!Gauge::from(PoolRoom { available_bytes: 0, reserved_bytes: 96, ..room }).is_full);
        assert!(Gauge::from(PoolRoom { is_full: true, ..room }).is_full);
    }

    #[test]
    fn a_warning_says_how_much_is_left_and_what_is_reserved_for_what() {
        let text = Fullness::default().look(at(91.4), status).unwrap();
        let below = StatusReport { data: "/srv/pool/data".to_owned(), short_below: true, ..status() };
        let told = advice(&below);
        assert!(told.contains("file system with the data file /srv/pool/data is short"), "{told}");
        assert!(told.contains("'shale grow' does not help") && !advice(&status()).contains("below"), "{told}");
        for part in [
            "/srv/pool is 91 % full",
            "3 MiB left",
            "shale grow",
            "a 1 GiB; b 1 GiB; c 1 GiB; 1 more",
            "8 MiB for cleaning",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert_eq!([0.0, 80.0, 94.9, 95.0, 100.0].map(level), [0, 80, 90, 95, 95]);
    }
}
