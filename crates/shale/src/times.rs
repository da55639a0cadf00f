//! Formats times and durations for people. Times are in UTC, as in the names of scheduled
//! snapshots.

/// Seconds of a day.
const DAY_S: u64 = 86_400;

/// Formats a time as `2026-11-25 23:19`, in UTC.
pub fn show_moment(unix_s: u64) -> String {
    let (year, month, day) = policy::civil(unix_s / DAY_S);
    let (hour, minute) = (unix_s % DAY_S / 3600, unix_s % 3600 / 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}")
}

/// Formats a time as `2026-11-25T23:19:05Z`.
pub fn show_second(unix_s: u64) -> String {
    let (year, month, day) = policy::civil(unix_s / DAY_S);
    let (hour, minute, second) = (unix_s % DAY_S / 3600, unix_s % 3600 / 60, unix_s % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Formats a duration, rounded as in speech.
pub fn show_seconds(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / DAY_S);
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{minutes} min"),
        7200..172_800 => format!("{hours} h"),
        _ => format!("{days} days"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_dates_and_times() {
        assert_eq!(show_moment(0), "1970-01-01 00:00");
        assert_eq!(show_moment(1_795_219_200 + 9 * 3600 + 30 * 60 + 59), "2026-11-21 09:30");
        assert_eq!(show_second(1_795_219_200 + 9 * 3600 + 30 * 60 + 59), "2026-11-21T09:30:59Z");
    }

    #[test]
    fn durations_are_rounded_to_what_one_says() {
        let shown = [0, 119, 120, 7199, 7200, 172_800].map(show_seconds);
        assert_eq!(shown, ["0 s", "119 s", "2 min", "119 min", "2 h", "2 days"]);
    }
}
