//! Modes: the user's goal for `compression=auto`, and its weights in the cost function.

use std::fmt;
use std::str::FromStr;

use crate::cost::Weights;

/// The goal of `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// Never slower than storing raw: the strongest codec that does not slow the writer down,
    /// whether the device or the CPU is the bottleneck.
    Performance,
    /// The least CPU time per byte saved, in joules where they can be measured.
    Energy,
    /// A saving worth its CPU time.
    Balanced,
    /// The saving, within a set multiple of the CPU time of `balanced`.
    Archive,
}

/// CPU time that `archive` may spend on a unit, as a multiple of that of `balanced` on data of the
/// same class.
pub const ARCHIVE_CPU_MULTIPLE: f64 = 64.0;

impl Mode {
    /// Values that [`FromStr`] accepts, for messages and help.
    pub const ALLOWED: &str = "performance, balanced, energy, archive";

    /// All of them, from the least CPU time to the most.
    pub const ALL: [Self; 4] = [Self::Performance, Self::Energy, Self::Balanced, Self::Archive];

    /// Exponents of the cost function. The modes differ only in the value of a saved byte, which
    /// grows from mode to mode: so a later mode never chooses a codec that saves less (the proof is
    /// at [`crate::Plan`]).
    ///
    /// - energy: exponent 1 makes the cost joules per byte saved.
    /// - balanced: 18 lets a codec take twice the time of another if it saves 3.9 % more: zstd-1
    ///   over lz4 on nearly everything, zstd-3 over zstd-1 on source, lz4 where it does as well.
    /// - archive: 450 lets it take twice the time for 0.15 % more, ten times for 0.51 %: zstd-15
    ///   over zstd-9 on nearly everything, even where both leave little (of data that shrinks to a
    ///   fifth, 0.51 % more saved is 2 % less stored), zstd-19 where it finds matches that others
    ///   miss.
    pub const fn weights(self) -> Weights {
        match self {
            Self::Energy => Weights { time: 1.0, saving: 1.0 },
            Self::Performance | Self::Balanced => Weights { time: 1.0, saving: 18.0 },
            Self::Archive => Weights { time: 1.0, saving: 450.0 },
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Performance => "performance",
            Self::Energy => "energy",
            Self::Balanced => "balanced",
            Self::Archive => "archive",
        })
    }
}

/// No mode of that name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseModeError;

impl fmt::Display for ParseModeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown mode; use one of {}", Mode::ALLOWED)
    }
}

impl std::error::Error for ParseModeError {}

impl FromStr for Mode {
    type Err = ParseModeError;
    fn from_str(text: &str) -> Result<Self, ParseModeError> {
        Self::ALL.into_iter().find(|mode| mode.to_string() == text).ok_or(ParseModeError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_all_are_in_the_help() {
        for mode in Mode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
            assert!(Mode::ALLOWED.contains(&mode.to_string()));
        }
        assert!("Balanced".parse::<Mode>().is_err() && "".parse::<Mode>().is_err());
    }

    #[test]
    fn a_byte_saved_is_worth_more_from_mode_to_mode() {
        let worth: Vec<f64> = Mode::ALL[1..].iter().map(|m| m.weights().saving / m.weights().time).collect();
        assert!(worth.is_sorted_by(|a, b| a < b));
    }
}
