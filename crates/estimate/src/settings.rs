//! The settings compared: the one given by the properties, each mode of `auto`, and some codecs.

use std::collections::BTreeMap;

use codec::{Codec, ZstdLevel};
use policy::{Auto, Compression, Mode, Resolved, Settings, judging_level, wants_dictionary};
use surface::{Error, ErrorKind, Result};
use units::BLOCK_BYTES;

/// Codecs that are shown unless others are asked for.
pub const CODECS_DEFAULT: &str = "lz4,zstd-1,zstd-3,zstd-9,zstd-19";

/// How units are compressed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum How {
    /// With one codec.
    Fixed(Codec),
    /// As the policy decides.
    Auto(Auto),
}

/// One line of the table.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting {
    /// Its name.
    pub name: String,
    /// How.
    pub how: How,
    /// Whether it is the one given by the properties.
    pub configured: bool,
    /// It belongs into the table; the helper of the statistics may not.
    pub shown: bool,
}

impl Setting {
    /// Whether it is too slow to be tried on every sample: slower than about 100 MB/s.
    pub fn is_slow(&self) -> bool {
        match self.how {
            How::Auto(auto) => auto.mode == Mode::Archive,
            How::Fixed(codec) => match codec {
                Codec::Off | Codec::Zle | Codec::Lzjb | Codec::Lz4 | Codec::Lzo | Codec::ZstdFast(_) => false,
                Codec::Zstd(level) => level.get() > 4,
                Codec::Gzip(level) => level.get() > 5,
                Codec::Lz4Hc(level) => level.get() > 2,
                Codec::Bzip2(_) => true,
            },
        }
    }
}

/// The files or volumes to estimate.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Bytes of a unit.
    pub unit_bytes: usize,
    /// Least saving for which a unit is stored compressed, in thousandths.
    pub min_saving_permille: u32,
    /// The level for evaluating dictionaries; `None`: units are too large for them, they are
    /// switched off, or no candidate supports them.
    pub dictionary_level: Option<ZstdLevel>,
    /// The settings to compare.
    pub settings: Vec<Setting>,
    /// The properties, which determine file types.
    pub resolved: Resolved,
    /// The same with `auto` in each mode, for the rules' decisions there.
    pub by_mode: [Resolved; Mode::ALL.len()],
    /// The setting that every sample is measured with: [`Self::settings`] has it, shown or not.
    pub helper: usize,
}

/// Fast reference setting for slow ones, compared window by window.
const HELPER: &str = "zstd-1";

impl Plan {
    /// From properties (those of a pool and a volume, where applicable, overridden by those of the
    /// command line), and a list of codecs or `all` or `none`.
    ///
    /// # Errors
    /// When a property or a codec is not allowed.
    pub fn new(
        pool: &BTreeMap<String, String>,
        volume: &BTreeMap<String, String>,
        wanted: &[(String, String)],
        codecs: &str,
    ) -> Result<Self> {
        let invalid = |message: String| Error::new(ErrorKind::Invalid, message);
        let mut own = volume.clone();
        own.extend(wanted.iter().cloned());
        let resolved = policy::resolve(pool, &own).map_err(|error| invalid(error.to_string()))?;
        let settings = resolved.settings;
        let min_saving_permille = settings.min_saving_permille;

        let unit_bytes = settings.unit_blocks as usize * BLOCK_BYTES;
        let auto = Settings { compression: Compression::Auto, ..settings };
        let mut plan = Self {
            unit_bytes,
            min_saving_permille,
            dictionary_level: judging_level(&auto).filter(|_| wants_dictionary(&auto, unit_bytes)),
            settings: Vec::new(),
            by_mode: Mode::ALL.map(|mode| resolved.in_mode(mode)),
            resolved,
            helper: 0,
        };
        match settings.compression {
            Compression::Fixed(codec) => plan.push(codec.to_string(), How::Fixed(codec), true),
            Compression::Auto => plan.push(format!("auto, {}", settings.mode), How::Auto(settings.auto()), true),
        }
        for mode in Mode::ALL {
            plan.push(format!("auto, {mode}"), How::Auto(Auto { mode, ..settings.auto() }), false);
        }
        let list: Vec<Codec> = match codecs {
            "none" => Vec::new(),
            "all" => Codec::all().filter(|codec| *codec != Codec::Off).collect(),
            list => list
                .split(',')
                .map(str::parse)
                .collect::<std::result::Result<_, _>>()
                .map_err(|e: codec::ParseCodecError| invalid(e.to_string()))?,
        };
        for codec in list {
            plan.push(codec.to_string(), How::Fixed(codec), false);
        }
        let helper: Codec = HELPER.parse().map_err(|_| invalid(format!("codec {HELPER}")))?;
        let known = plan.settings.iter().position(|setting| setting.how == How::Fixed(helper));
        plan.helper = known.unwrap_or_else(|| {
            plan.settings.push(Setting {
                name: HELPER.to_owned(),
                how: How::Fixed(helper),
                configured: false,
                shown: false,
            });
            plan.settings.len() - 1
        });
        Ok(plan)
    }

    /// Adds a setting, once.
    fn push(&mut self, name: String, how: How, configured: bool) {
        if !self.settings.iter().any(|setting| setting.how == how) {
            self.settings.push(Setting { name, how, configured, shown: true });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(wanted: &[(&str, &str)], codecs: &str) -> Result<Plan> {
        let wanted: Vec<_> = wanted.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Plan::new(&BTreeMap::new(), &BTreeMap::new(), &wanted, codecs)
    }

    #[test]
    fn what_is_configured_comes_first_and_nothing_twice() {
        let plan = plan(&[("compression", "zstd-3"), ("unit", "64K")], CODECS_DEFAULT).unwrap();
        assert_eq!(plan.unit_bytes, 65536);
        let names: Vec<&str> = plan.settings.iter().filter(|s| s.shown).map(|s| s.name.as_str()).collect();
        assert_eq!(names[0], "zstd-3");
        assert_eq!(names.iter().filter(|n| **n == "zstd-3").count(), 1);
        assert!(plan.settings[0].configured && !plan.settings[1].configured);
        assert_eq!(plan.settings[plan.helper].name, "zstd-1");
    }

    #[test]
    fn auto_may_be_what_is_configured() {
        let plan = plan(&[("compression", "auto"), ("mode", "archive"), ("candidates", "lz4,gzip-9")], "none").unwrap();
        let shown: Vec<&Setting> = plan.settings.iter().filter(|s| s.shown).collect();
        assert_eq!((shown[0].name.as_str(), shown[0].configured, shown.len()), ("auto, archive", true, 4));
        let How::Auto(auto) = shown[1].how else { panic!("{:?}", shown[1]) };
        assert_eq!(auto.candidates.to_string(), "lz4,gzip-9");
    }

    #[test]
    fn the_helper_is_there_also_when_it_is_not_shown() {
        let plan = plan(&[], "none").unwrap();
        assert_eq!(plan.settings[plan.helper].name, "zstd-1");
        assert!(!plan.settings[plan.helper].shown && !plan.settings[plan.helper].is_slow());
    }

    #[test]
    fn refusals_say_what_is_allowed() {
        assert!(plan(&[], "lz4,lz5").unwrap_err().to_string().contains("zstd-1 to zstd-19"));
        assert!(plan(&[("unit", "5K")], "none").unwrap_err().to_string().contains("128K"));
        assert_eq!(plan(&[], "all").unwrap().settings.iter().filter(|s| s.shown).count(), 4 + 63);
    }
}
