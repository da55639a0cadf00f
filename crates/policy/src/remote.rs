//! Volumes that were cloned from images elsewhere: the properties `hydrate`, `remote-timeout` and
//! `remote-cache`.

use units::parse_size;

/// Seconds that a request waits for an unresponsive store.
const TIMEOUT_SECONDS: u32 = 300;
/// A week.
const TIMEOUT_SECONDS_MAX: u32 = 7 * 86_400;

/// Pool space that fetched image data may occupy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// Thousandths of its capacity.
    Permille(u32),
    /// Bytes.
    Bytes(u64),
}

/// The meaning of the properties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// Bytes a second that are fetched in the background; `None`: only groups that are read are
    /// fetched.
    pub hydrate: Option<u64>,
    /// Seconds that a request waits for the store; 0: no limit.
    pub timeout_seconds: u32,
    /// Space kept for groups that were fetched on read.
    pub cache: Share,
}

impl Default for Remote {
    fn default() -> Self {
        Self { hydrate: None, timeout_seconds: TIMEOUT_SECONDS, cache: Share::Permille(250) }
    }
}

impl Remote {
    /// Values of `hydrate`.
    pub const HYDRATE_ALLOWED: &str = "off, on, or a rate such as 50M/s";
    /// Values of `remote-timeout`.
    pub const TIMEOUT_ALLOWED: &str = "0 (no limit), or a time such as 30s, 5m or 2h, at most 168h";
    /// Values of `remote-cache`.
    pub const CACHE_ALLOWED: &str = "a percentage from 0 to 90 such as 25%, or a size such as 20G";
}

/// A value of `hydrate`.
pub(crate) fn parse_hydrate(value: &str) -> Option<Option<u64>> {
    match value {
        "off" => Some(None),
        "on" => Some(Some(u64::MAX)),
        _ => parse_size(value.strip_suffix("/s")?).ok().filter(|rate| *rate > 0).map(Some),
    }
}

/// A value of `remote-timeout`.
pub(crate) fn parse_timeout(value: &str) -> Option<u32> {
    if value == "0" {
        return Some(0);
    }
    let (digits, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    let times = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return None,
    };
    let number: u32 = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())??;
    number.checked_mul(times).filter(|seconds| (1..=TIMEOUT_SECONDS_MAX).contains(seconds))
}

/// A value of `remote-cache`.
pub(crate) fn parse_cache(value: &str, parse_permille: impl Fn(&str) -> Option<u32>) -> Option<Share> {
    if value.ends_with('%') {
        return parse_permille(value).map(Share::Permille);
    }
    parse_size(value).ok().map(Share::Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_parsed_and_others_refused() {
        assert_eq!(parse_hydrate("off"), Some(None));
        assert_eq!(parse_hydrate("50M/s"), Some(Some(50 << 20)));
        assert_eq!(parse_hydrate("on"), Some(Some(u64::MAX)));
        for wrong in ["", "yes", "50M", "0/s", "/s", "fast/s"] {
            assert_eq!(parse_hydrate(wrong), None, "{wrong}");
        }
        for (value, seconds) in [("0", 0), ("30s", 30), ("5m", 300), ("168h", 604_800)] {
            assert_eq!(parse_timeout(value), Some(seconds), "{value}");
        }
        for wrong in ["", "m", "5", "0s", "-1s", "+1s", "169h", "5d", "99999999999h", "5é"] {
            assert_eq!(parse_timeout(wrong), None, "{wrong}");
        }
        let permille = |text: &str| text.strip_suffix('%')?.parse::<u32>().ok().map(|percent| 10 * percent);
        assert_eq!(parse_cache("25%", permille), Some(Share::Permille(250)));
        assert_eq!(parse_cache("20G", permille), Some(Share::Bytes(20 << 30)));
        assert_eq!(parse_cache("much", permille), None);
    }
}
