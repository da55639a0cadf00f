//! Scheduled snapshots: when one is due, and which have expired. A pure function of the time, of
//! the times of existing snapshots, and of the two properties `snapshots` and `keep`.

use std::collections::BTreeSet;

const HOUR_S: u64 = 3600;
const DAY_S: u64 = 24 * HOUR_S;
/// Days from a Monday to 1970-01-01, a Thursday.
const EPOCH_WEEKDAY: u64 = 3;
/// Most snapshots of one kind that are kept: a year of hours.
const KEPT_MAX: u32 = 8784;

/// A stretch of time, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Period {
    /// From one full hour to the next.
    Hour,
    /// From midnight to midnight.
    Day,
    /// From Monday to Monday.
    Week,
}

impl Period {
    /// The number of the period that holds a moment, in seconds since 1970.
    pub const fn number(self, unix_s: u64) -> u64 {
        match self {
            Self::Hour => unix_s / HOUR_S,
            Self::Day => unix_s / DAY_S,
            Self::Week => (unix_s / DAY_S + EPOCH_WEEKDAY) / 7,
        }
    }
}

/// A volume's schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    every: Option<Period>,
    /// The last snapshot is kept in each of this many recent periods that have one.
    keep: Vec<(Period, u32)>,
}

/// Snapshots to take and to remove.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Due {
    /// Whether a snapshot is due.
    pub take: bool,
    /// Expired snapshots: indexes into the input.
    pub expired: Vec<usize>,
}

impl Schedule {
    /// Values of `snapshots`.
    pub const EVERY_ALLOWED: &str = "off, hourly, daily, weekly";
    /// Values of `keep`.
    pub const KEEP_ALLOWED: &str = "numbers of hours, days and weeks, separated by commas, such as 24h,7d,4w";

    /// From the values of the properties `snapshots` and `keep`; `None` if one of them is not
    /// allowed.
    pub fn parse(snapshots: &str, keep: &str) -> Option<Self> {
        let every = match snapshots {
            "off" => None,
            "hourly" => Some(Period::Hour),
            "daily" => Some(Period::Day),
            "weekly" => Some(Period::Week),
            _ => return None,
        };
        let mut kept: Vec<(Period, u32)> = Vec::new();
        for part in keep.split(',') {
            let period = match part.as_bytes().last()? {
                b'h' => Period::Hour,
                b'd' => Period::Day,
                b'w' => Period::Week,
                _ => return None,
            };
            let digits = &part[..part.len() - 1];
            let count = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())??;
            if count == 0 || count > KEPT_MAX || kept.iter().any(|(known, _)| *known == period) {
                return None;
            }
            kept.push((period, count));
        }
        Some(Self { every, keep: kept })
    }

    /// Returns the actions due at `now`, given the times of existing scheduled snapshots in any
    /// order; all in seconds since 1970. With the schedule off there are none. The latest snapshot
    /// never expires, nor does one dated in the future.
    pub fn due(&self, now: u64, taken: &[u64]) -> Due {
        let Some(every) = self.every else { return Due::default() };
        let mut past: Vec<usize> = (0..taken.len()).filter(|index| taken[*index] <= now).collect();
        past.sort_unstable_by_key(|index| std::cmp::Reverse((taken[*index], *index)));
        let latest = past.first().map(|index| taken[*index]);
        let take = latest.is_none_or(|latest| every.number(latest) < every.number(now));
        let mut kept: BTreeSet<usize> = past.first().copied().into_iter().collect();
        for (period, count) in &self.keep {
            // The one about to be taken is the last of its period.
            let (mut periods, mut seen) = (0, None);
            if take {
                (periods, seen) = (1, Some(period.number(now)));
            }
            for index in &past {
                let number = period.number(taken[*index]);
                if seen.replace(number) != Some(number) {
                    periods += 1;
                    if periods > *count {
                        break;
                    }
                    kept.insert(*index);
                }
            }
        }
        Due { take, expired: past.into_iter().rev().filter(|index| !kept.contains(index)).collect() }
    }
}

/// Name of a snapshot taken at a time: `auto-2026-11-21T0930Z`.
pub fn scheduled_name(unix_s: u64) -> String {
    let (year, month, day) = civil(unix_s / DAY_S);
    let (hour, minute) = (unix_s % DAY_S / HOUR_S, unix_s % HOUR_S / 60);
    format!("auto-{year:04}-{month:02}-{day:02}T{hour:02}{minute:02}Z")
}

/// Whether a name has the form that [`scheduled_name`] produces.
pub fn is_scheduled_name(name: &str) -> bool {
    let form = b"auto-0000-00-00T0000Z";
    let fits = |(form, is): (&u8, u8)| if *form == b'0' { is.is_ascii_digit() } else { *form == is };
    name.len() == form.len() && form.iter().zip(name.bytes()).all(fits)
}

/// Year, month and day of a number of days since 1970 (Hinnant, "chrono-Compatible Low-Level Date
/// Algorithms", `civil_from_days`, for days that are not negative).
pub const fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let era = days / 146_097;
    let of_era = days % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + if month <= 2 { 1 } else { 0 }, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-21, a Saturday, 00:00 UTC.
    const SATURDAY: u64 = 1_795_219_200;

    fn schedule(every: &str, keep: &str) -> Schedule {
        Schedule::parse(every, keep).unwrap_or_else(|| panic!("{every} {keep}"))
    }

    #[test]
    fn names_are_dates() {
        assert_eq!(scheduled_name(SATURDAY + 9 * HOUR_S + 30 * 60), "auto-2026-11-21T0930Z");
        assert_eq!(scheduled_name(0), "auto-1970-01-01T0000Z");
        assert!(is_scheduled_name(&scheduled_name(0)) && is_scheduled_name("auto-9999-99-99T9999Z"));
        for own in
            ["auto-1970-01-01", "auto-1970-01-01T0000", "Auto-1970-01-01T0000Z", "auto-1970-01-01T0000Zx", "auto-"]
        {
            assert!(!is_scheduled_name(own), "{own}");
        }
        assert_eq!(scheduled_name(951_782_399), "auto-2000-02-28T2359Z");
        assert_eq!(scheduled_name(951_782_400), "auto-2000-02-29T0000Z");
        assert_eq!(scheduled_name(4_107_542_400), "auto-2100-03-01T0000Z");
    }

    #[test]
    fn due_by_table() {
        let at = |hour: u64, minute: u64| SATURDAY + hour * HOUR_S + minute * 60;
        let day = |days_ago: u64| SATURDAY - days_ago * DAY_S + HOUR_S;
        for (what, every, keep, now, taken, take, expired) in [
            ("the first one", "hourly", "24h", at(9, 5), vec![], true, vec![]),
            ("the hour has one", "hourly", "24h", at(9, 59), vec![at(9, 0)], false, vec![]),
            ("a new hour", "hourly", "24h", at(10, 0), vec![at(9, 59)], true, vec![]),
            ("a new hour is no new day", "daily", "7d", at(10, 0), vec![at(9, 59)], false, vec![]),
            ("Saturday is no new week", "weekly", "4w", at(0, 0), vec![day(1)], false, vec![]),
            ("Monday is", "weekly", "4w", at(48, 0), vec![at(47, 59)], true, vec![]),
            ("off", "off", "1h", at(9, 0), vec![at(1, 0), at(2, 0)], false, vec![]),
            ("two of three hours", "hourly", "2h", at(9, 30), vec![at(7, 0), at(8, 0), at(9, 0)], false, vec![0]),
            ("the new one counts", "hourly", "2h", at(10, 0), vec![at(9, 0), at(7, 0), at(8, 0)], true, vec![1, 2]),
            (
                "the last of a day stays",
                "hourly",
                "1h,2d",
                at(9, 1),
                vec![day(2), day(1), day(1) + 60, at(9, 0)],
                false,
                vec![0, 1],
            ),
            ("gaps do not count", "daily", "2d", at(9, 0), vec![day(90), day(40), day(30)], true, vec![0, 1]),
            (
                "weeks",
                "daily",
                "1d,2w",
                at(9, 0),
                vec![day(15), day(9), day(8), day(1), at(1, 0)],
                false,
                vec![0, 1, 3],
            ),
            ("the latest never goes", "hourly", "1h", at(9, 0), vec![day(400)], true, vec![]),
            ("the future is let be", "hourly", "1h", at(9, 0), vec![at(20, 0), at(8, 0)], true, vec![]),
        ] {
            let due = schedule(every, keep).due(now, &taken);
            assert_eq!((due.take, due.expired), (take, expired), "{what}");
        }
    }

    /// A year of hours: the requested number is kept, and the oldest is as old as requested.
    #[test]
    fn a_year_settles() {
        let schedule = schedule("hourly", "24h,7d,4w");
        let mut taken: Vec<u64> = Vec::new();
        for step in 0..365 * 24 * 6 {
            let now = SATURDAY + step * 600;
            let due = schedule.due(now, &taken);
            for index in due.expired.iter().rev() {
                taken.remove(*index);
            }
            if due.take {
                taken.push(now);
            }
            // A second call changes nothing.
            assert_eq!(schedule.due(now, &taken), Due::default(), "step {step}");
            assert!(taken.len() <= 24 + 7 + 4, "step {step}: {}", taken.len());
        }
        let now = SATURDAY + 365 * DAY_S;
        let age_days = (now - taken.iter().min().copied().unwrap_or(now)) / DAY_S;
        // The last one of the third week before this one.
        assert!((14..=21).contains(&age_days), "the oldest is {age_days} days old");
        assert!(taken.len() >= 24 + 5, "{} are kept", taken.len());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (every, keep) in [
            ("sometimes", "24h"),
            ("hourly", ""),
            ("hourly", "24"),
            ("hourly", "h"),
            ("hourly", "0h"),
            ("hourly", "24h,"),
            ("hourly", "24h,3h"),
            ("hourly", "99999h"),
            ("hourly", "+3h"),
            ("hourly", "24y"),
            ("hourly", "ä"),
        ] {
            assert_eq!(Schedule::parse(every, keep), None, "{every} {keep}");
        }
    }
}
