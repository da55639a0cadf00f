//! Whether data that the cleaner moves, because it has outlived its neighbours, is recompressed or
//! moved unchanged. It is read and written in any case, so recompressing costs only CPU time; and
//! smaller data means less cleaning.

use std::str::FromStr;

use crate::{Compression, Mode, Settings};

/// The mode in which cold data is recompressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColdMode {
    /// In mode `archive`, if that is also the mode of writes; otherwise never.
    Auto,
    /// Never.
    Off,
    /// In this mode, independent of the mode of writes.
    As(Mode),
}

impl ColdMode {
    /// Values that [`FromStr`] accepts, for messages and help.
    pub const ALLOWED: &str = "auto (archive where that is the mode), off, performance, balanced, energy, archive";
}

/// No value of that name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseColdModeError;

impl FromStr for ColdMode {
    type Err = ParseColdModeError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            mode => mode.parse().map(Self::As).map_err(|_| ParseColdModeError),
        }
    }
}

impl Settings {
    /// Returns the settings for recompressing cold data, if it is recompressed at all.
    pub fn for_cold(&self) -> Option<Self> {
        match self.cold_mode {
            ColdMode::Off => None,
            ColdMode::Auto => (self.compression == Compression::Auto && self.mode == Mode::Archive).then_some(*self),
            ColdMode::As(mode) => Some(Self { compression: Compression::Auto, mode, ..*self }),
        }
    }
}

#[cfg(test)]
mod tests {
    use codec::Codec;

    use super::*;

    #[test]
    fn cold_data_is_left_alone_unless_somebody_asks_for_space() {
        let lz4 = Compression::Fixed(Codec::Lz4);
        let auto = Compression::Auto;
        for (cold, compression, mode, expected) in [
            ("auto", auto, Mode::Balanced, None),
            ("auto", auto, Mode::Archive, Some(Mode::Archive)),
            ("auto", lz4, Mode::Archive, None),
            ("off", auto, Mode::Archive, None),
            ("archive", lz4, Mode::Balanced, Some(Mode::Archive)),
            ("balanced", lz4, Mode::Archive, Some(Mode::Balanced)),
            ("energy", auto, Mode::Balanced, Some(Mode::Energy)),
        ] {
            let settings =
                Settings { compression, mode, cold_mode: cold.parse().unwrap(), unit_blocks: 4, ..Settings::default() };
            let wanted = expected.map(|mode| Settings { compression: auto, mode, ..settings });
            assert_eq!(settings.for_cold(), wanted, "{cold} {compression:?} {mode}");
        }
        assert_eq!("on".parse::<ColdMode>(), Err(ParseColdModeError));
    }
}
