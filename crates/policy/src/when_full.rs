//! Handling of a write that finds no space: the property `when-full`.

use std::time::Duration;

/// As in thin LVM: long enough for a script that frees space, short enough that a client does not
/// appear dead.
const WAIT_SECONDS: u32 = 60;
/// A day.
const WAIT_SECONDS_MAX: u32 = 86_400;

/// The value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// It fails immediately.
    #[default]
    Error,
    /// It is held until there is space, at most this many seconds.
    Wait(u32),
}

impl WhenFull {
    /// Allowed values, for help and messages.
    pub const ALLOWED: &str = "error, wait (60 seconds), or wait:SECONDS (1 to 86400)";

    /// Parses a value.
    pub fn parse(value: &str) -> Option<Self> {
        match value {
            "error" => Some(Self::Error),
            "wait" => Some(Self::Wait(WAIT_SECONDS)),
            _ => {
                let digits = value.strip_prefix("wait:")?;
                let seconds = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())??;
                (1..=WAIT_SECONDS_MAX).contains(&seconds).then_some(Self::Wait(seconds))
            }
        }
    }

    /// How long a write is held; `None`: not at all.
    pub fn patience(self) -> Option<Duration> {
        match self {
            Self::Error => None,
            Self::Wait(seconds) => Some(Duration::from_secs(seconds.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_parsed_and_others_refused() {
        assert_eq!(WhenFull::parse("error"), Some(WhenFull::Error));
        assert_eq!(WhenFull::parse("wait"), Some(WhenFull::Wait(60)));
        assert_eq!(WhenFull::parse("wait:86400").unwrap().patience(), Some(Duration::from_secs(86_400)));
        assert_eq!(WhenFull::default().patience(), None);
        for wrong in ["", "Wait", "wait:", "wait:0", "wait:86401", "wait:-1", "wait:+1", "wait:1s", "wait:99999999999"]
        {
            assert_eq!(WhenFull::parse(wrong), None, "{wrong}");
        }
    }
}
