//! The properties that users set: their keys, allowed values, and inheritance from pool to volume.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use codec::Codec;
use doors::{Access, AccessError, Door};
use units::did_you_mean;

use crate::clean_marks::CleanMarks;
use crate::plan::Auto;
use crate::property_values::{parse_bytes, parse_permille, parse_switch, parse_units};
use crate::remote::{Remote, parse_cache, parse_hydrate, parse_timeout};
use crate::rule_sets::{RULE_SET, RuleSet};
use crate::rules::{RULE_PREFIX, RuleError, Rules, check_rule};
use crate::values::values;
use crate::{Candidates, ColdMode, Mode, Schedule, SnapDir, WhenFull};

/// How codecs are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// This one for everything.
    Fixed(Codec),
    /// Chosen per unit: the codec that pays.
    Auto,
}

/// The settings for writes, parsed from the properties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Codec of new units, or `auto`.
    pub compression: Compression,
    /// The goal of the choice.
    pub mode: Mode,
    /// The codecs to choose among.
    pub candidates: Candidates,
    /// Fewest blocks in a unit of a full group, when the unit size is chosen automatically: a power
    /// of two, 1 to `unit_blocks`.
    pub unit_blocks_min: u32,
    /// Most blocks in a unit: a power of two, 1 to 32.
    pub unit_blocks: u32,
    /// Least saving, in thousandths of the raw length, for which a unit is stored compressed.
    pub min_saving_permille: u32,
    /// Whether the volume trains dictionaries for its small units and uses them.
    pub dictionary: bool,
    /// In how many copies new data is stored: 1 to 3.
    pub copies: u8,
    /// Whether and how data is recompressed when the cleaner moves it.
    pub cold_mode: ColdMode,
    /// Most stored bytes of a volume, its snapshots' included, if there is a limit.
    pub quota_bytes: Option<u64>,
    /// Stored bytes guaranteed to the volume.
    pub reservation_bytes: u64,
    /// How to handle a write that finds no space.
    pub when_full: WhenFull,
    /// Who sees the snapshots of a share in its mount.
    pub snapdir: SnapDir,
    /// Whether clients and imports may not change the content.
    pub readonly: bool,
    /// How the rest of a cloned volume's image is fetched.
    pub remote: Remote,
    /// When the pool cleans in the background.
    pub clean_marks: CleanMarks,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            compression: Compression::Auto,
            mode: Mode::Balanced,
            candidates: Candidates::default(),
            unit_blocks_min: 8,
            unit_blocks: 8,
            min_saving_permille: 125,
            dictionary: true,
            copies: 1,
            cold_mode: ColdMode::Auto,
            quota_bytes: None,
            reservation_bytes: 0,
            when_full: WhenFull::Error,
            snapdir: SnapDir::Root,
            readonly: false,
            remote: Remote::default(),
            clean_marks: CleanMarks::default(),
        }
    }
}

impl Settings {
    /// The part needed by `auto`.
    pub const fn auto(&self) -> Auto {
        Auto { mode: self.mode, candidates: self.candidates, min_saving_permille: self.min_saving_permille }
    }

    /// A codec for a unit that is stored without a decision: the one named, or the first candidate.
    pub fn plain_codec(&self) -> Codec {
        match self.compression {
            Compression::Fixed(codec) => codec,
            Compression::Auto => self.candidates.as_slice().first().copied().unwrap_or(Codec::Off),
        }
    }
}

/// The property that refuses changes of the content.
pub const READONLY: &str = "readonly";

/// The property that says in how many copies data is stored.
pub const COPIES: &str = "copies";

/// The property that says whether files of a share have extended attributes.
pub const XATTR: &str = "xattr";

/// The property that says whether files of a share have POSIX ACLs.
pub const ACL: &str = "acl";

/// A property that can be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// What it does, for help.
    pub description: &'static str,
    /// Allowed values, for help and messages.
    pub allowed: &'static str,
    /// Its default value.
    pub default: &'static str,
    /// The only kind of object that has it, if not all.
    pub only_of: Option<Owner>,
}

/// Objects that have properties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The pool as a whole.
    Pool,
    /// A single volume.
    Volume,
    /// A folder of volumes.
    Folder,
}

/// Marks a volume or a snapshot whose import has not finished.
pub const INCOMPLETE: &str = "incomplete";

/// Whether the properties set on a volume or a snapshot mark it as incomplete.
pub fn is_incomplete(own: &BTreeMap<String, String>) -> bool {
    own.get(INCOMPLETE).is_some_and(|value| value == "yes")
}

/// Values of `compression`: `auto` and [`Codec::ALLOWED`], which a test compares.
const COMPRESSION_ALLOWED: &str = "auto, off, zle, lzjb, lz4, lz4hc-1 to lz4hc-12, lzo, gzip-1 to gzip-9, bzip2-1 to bzip2-9, \
                                   zstd-fast-1 to zstd-fast-10, zstd-1 to zstd-19";

/// Values of the cleaning marks.
const MARK_ALLOWED: &str = "a percentage from 0 to 90 with at most one decimal; clean-low is less than clean-high";

/// Values of the limits.
const BYTES_ALLOWED: &str = "none, or a size such as 20G";

/// All properties, in the order in which they are shown.
pub const KEYS: &[Key] = &[
    Key {
        name: "compression",
        description: "codec for new data, or auto: the codec that pays, chosen for each unit",
        allowed: COMPRESSION_ALLOWED,
        default: "auto",
        only_of: None,
    },
    Key {
        name: "mode",
        description: "goal of auto: performance never slows writers, energy saves joules, archive spends CPU time to save space",
        allowed: Mode::ALLOWED,
        default: "balanced",
        only_of: None,
    },
    Key {
        name: "candidates",
        description: "codecs among which auto chooses; storing raw is always possible",
        allowed: Candidates::ALLOWED,
        default: Candidates::DEFAULT,
        only_of: None,
    },
    Key {
        name: "unit",
        description: "most bytes compressed together: larger units save more, smaller ones are faster to read at random",
        allowed: "4K, 8K, 16K, 32K, 64K, 128K; or a range such as 16K-64K, chosen by access pattern",
        default: "32K",
        only_of: None,
    },
    Key {
        name: "min-saving",
        description: "least saving worth storing data compressed",
        allowed: "a percentage from 0 to 90 with at most one decimal, such as 12.5",
        default: "12.5",
        only_of: None,
    },
    Key {
        name: "dictionary",
        description: "whether auto trains zstd dictionaries from a volume's own data, for units of at most 16 KiB",
        allowed: "auto, off",
        default: "auto",
        only_of: None,
    },
    Key {
        name: COPIES,
        description: "in how many places new data is stored: damage of one is repaired from another; names and inodes of a share always have one copy more",
        allowed: "1, 2, 3",
        default: "1",
        only_of: None,
    },
    Key {
        name: "cold-mode",
        description: "mode in which long-lived data is recompressed when the cleaner moves it",
        allowed: ColdMode::ALLOWED,
        default: "auto",
        only_of: None,
    },
    crate::rule_sets::KEY,
    Key {
        name: "snapshots",
        description: "how often a served pool takes a snapshot automatically: one at once, then on the hour, at midnight or on Mondays, in UTC",
        allowed: Schedule::EVERY_ALLOWED,
        default: "off",
        only_of: None,
    },
    Key {
        name: "keep",
        description: "how many automatic snapshots to keep: the last one of each of so many hours, days, weeks",
        allowed: Schedule::KEEP_ALLOWED,
        default: "24h,7d,4w",
        only_of: None,
    },
    Key {
        name: "snapdir",
        description: "who sees a share's snapshots in its mount, under .shale/snapshots; files there keep their old permissions",
        allowed: SnapDir::ALLOWED,
        default: "root",
        only_of: None,
    },
    Key {
        name: READONLY,
        description: "whether every door refuses writes to a volume and changes in a share; snapshots, receive and rollback still work",
        allowed: "off, on",
        default: "off",
        only_of: None,
    },
    Key {
        name: "quota",
        description: "most stored bytes of a volume and its snapshots, or of a folder in total; 0 accepts no data at all",
        allowed: BYTES_ALLOWED,
        default: "none",
        only_of: None,
    },
    Key {
        name: "reservation",
        description: "stored bytes reserved for a volume and its snapshots",
        allowed: BYTES_ALLOWED,
        default: "none",
        only_of: None,
    },
    Key {
        name: "when-full",
        description: "how to handle a write when the pool or the quota is full: fail it, or hold it until there is space, at most for the given time; also for the files of a share",
        allowed: WhenFull::ALLOWED,
        default: "error",
        only_of: None,
    },
    Key {
        name: "hydrate",
        description: "whether the rest of a cloned volume's image is fetched in the background, and the rate limit",
        allowed: Remote::HYDRATE_ALLOWED,
        default: "off",
        only_of: None,
    },
    Key {
        name: "remote-timeout",
        description: "how long a request waits in total for the store of such an image before it fails",
        allowed: Remote::TIMEOUT_ALLOWED,
        default: "5m",
        only_of: None,
    },
    Key {
        name: INCOMPLETE,
        description: "whether an import is incomplete: set to yes when the import begins, and removed when all data has arrived",
        allowed: "no, yes",
        default: "no",
        only_of: Some(Owner::Volume),
    },
    Key {
        name: "atime",
        description: "whether reads update access times in a share, from its next mount on: relatime (once after a change, and once a day) or off",
        allowed: "off, relatime",
        default: "off",
        only_of: None,
    },
    Key {
        name: XATTR,
        description: "whether files of a share have extended attributes, from its next mount on; off spares requests, and costs streams and attributes of SMB clients, capabilities, ACLs and user.shale.*",
        allowed: "on, off",
        default: "on",
        only_of: None,
    },
    Key {
        name: ACL,
        description: "whether files of a share have POSIX ACLs, from its next mount on; with off, a file that has one already is open to its owner alone",
        allowed: "on, off",
        default: "on",
        only_of: None,
    },
    Key {
        name: "nfs",
        description: "which clients reach a share by NFS (serve --exports)",
        allowed: Door::Nfs.allowed(),
        default: "off",
        only_of: None,
    },
    Key {
        name: "smb",
        description: "which clients reach a share by SMB",
        allowed: Door::Smb.allowed(),
        default: "off",
        only_of: None,
    },
    Key {
        name: "http",
        description: "which clients reach a share by HTTP and WebDAV",
        allowed: Door::Http.allowed(),
        default: "off",
        only_of: None,
    },
    Key {
        name: "ftp",
        description: "whether clients reach a share by FTP",
        allowed: Door::Ftp.allowed(),
        default: "off",
        only_of: None,
    },
    Key {
        name: "clean-low",
        description: "free space below which background cleaning starts with mostly dead extents, in percent of the pool",
        allowed: MARK_ALLOWED,
        default: "10",
        only_of: Some(Owner::Pool),
    },
    Key {
        name: "clean-high",
        description: "free space at which background cleaning stops; an idle pool already starts below this mark",
        allowed: MARK_ALLOWED,
        default: "25",
        only_of: Some(Owner::Pool),
    },
    Key {
        name: "remote-cache",
        description: "most space for image data that was fetched on read; the least recently read data is evicted first",
        allowed: Remote::CACHE_ALLOWED,
        default: "25%",
        only_of: Some(Owner::Pool),
    },
];

/// Where a value was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Built in.
    Default,
    /// Set on the pool.
    Pool,
    /// Set on the volume.
    Volume,
}

/// A property in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedProperty {
    /// Its name.
    pub key: String,
    /// Its value, as it was set.
    pub value: String,
    /// Where that was set.
    pub source: Source,
}

/// The properties in force and their parsed meaning.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resolved {
    /// Parsed settings.
    pub settings: Settings,
    /// The file-type rules.
    pub rules: Rules,
    /// Each property, in the order of [`KEYS`], then the rules that were set.
    pub properties: Vec<ResolvedProperty>,
}

/// Why a property was refused; the message lists the allowed values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PropertyError {
    /// There is no property of that name.
    UnknownKey(String),
    /// The property does not take that value.
    BadValue {
        /// The property.
        key: &'static Key,
        /// The value.
        value: String,
    },
    /// An invalid file-type rule.
    Rule(RuleError),
    /// An invalid export property of a share.
    Door(AccessError),
    /// Another kind of object has the property.
    NotOf(Owner, &'static Key),
    /// Two properties contradict each other.
    Contradiction(String),
}

impl fmt::Display for PropertyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownKey(key) if key == "size" => {
                f.write_str("the size of a volume is not a property: use 'shale resize POOL VOLUME SIZE'")
            }
            Self::UnknownKey(key) => {
                write!(f, "there is no property '{key}'; there are ")?;
                for (index, known) in KEYS.iter().enumerate() {
                    write!(f, "{}{}", if index > 0 { ", " } else { "" }, known.name)?;
                }
                let meant = did_you_mean(key, KEYS.iter().map(|known| known.name));
                write!(f, ", and {RULE_PREFIX}TYPE for a type of file{meant}")
            }
            Self::BadValue { key, value } => {
                let known = values(key.name);
                let meant = did_you_mean(value, known.iter().map(String::as_str));
                write!(f, "property '{}' cannot be '{value}'; allowed: {}{meant}", key.name, key.allowed)
            }
            Self::Rule(error) => error.fmt(f),
            Self::Door(error) => error.fmt(f),
            Self::NotOf(Owner::Volume, key) => {
                write!(f, "'{}' is a property of the pool as a whole: set it there", key.name)
            }
            Self::NotOf(Owner::Folder, key) if key.only_of == Some(Owner::Pool) => {
                write!(f, "'{}' is a property of the pool as a whole: set it there", key.name)
            }
            Self::NotOf(_, key) => write!(f, "'{}' is a property of single volumes: name one", key.name),
            Self::Contradiction(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for PropertyError {}

/// Checks that `key` is a property and takes `value`.
///
/// # Errors
/// With a message that lists the allowed values.
fn check_property(key: &str, value: &str) -> Result<(), PropertyError> {
    if key.starts_with(RULE_PREFIX) {
        return check_rule(key, value).map(|_| ()).map_err(PropertyError::Rule);
    }
    apply(&mut Settings::default(), key, value)
}

/// Checks that `key` is a property that `owner` can have, and takes `value`.
///
/// # Errors
/// With a message that lists the allowed values.
pub fn check_property_of(owner: Owner, key: &str, value: &str) -> Result<(), PropertyError> {
    check_property(key, value)?;
    match KEYS.iter().find(|known| known.name == key && !may_have(owner, key)) {
        Some(key) => Err(PropertyError::NotOf(owner, key)),
        None => Ok(()),
    }
}

/// Whether `owner` can have the property `key`, if it exists. A folder has no reservation: space is
/// reserved for volumes.
pub fn may_have(owner: Owner, key: &str) -> bool {
    let is_of_others = |known: &&Key| known.name == key && known.only_of.is_some_and(|only| only != owner);
    !KEYS.iter().any(|known| is_of_others(&known)) && (owner, key) != (Owner::Folder, "reservation")
}

/// Checks the properties of a pool against each other.
///
/// # Errors
/// When two contradict each other, or one is invalid.
pub fn check_pool(properties: &BTreeMap<String, String>) -> Result<(), PropertyError> {
    let CleanMarks { low_permille, high_permille } = resolve(properties, &BTreeMap::new())?.settings.clean_marks;
    if low_permille < high_permille {
        return Ok(());
    }
    let percent = |permille: u32| f64::from(permille) / 10.0;
    Err(PropertyError::Contradiction(format!(
        "clean-low ({}) must be less than clean-high ({}): set both",
        percent(low_permille),
        percent(high_permille)
    )))
}

/// Whether there is a property of that name; each file type has one for its rule.
pub fn is_property(key: &str) -> bool {
    key.starts_with(RULE_PREFIX) || KEYS.iter().any(|known| known.name == key)
}

/// Whether a clone inherits the value of a property from its origin. Reservations are not
/// inherited; nor is `readonly`, because a clone is made to be changed; nor are exports, which
/// would expose the clone to clients unasked.
pub fn is_cloned(key: &str) -> bool {
    key != "reservation" && key != READONLY && Door::of_property(key).is_none()
}

/// Returns the properties in force, given those set on the pool and on the volume (empty for the
/// pool itself). A volume's value overrides its pool's, which overrides the default.
///
/// # Errors
/// When a key or value is not allowed.
pub fn resolve(pool: &BTreeMap<String, String>, volume: &BTreeMap<String, String>) -> Result<Resolved, PropertyError> {
    let mut settings = Settings::default();
    let is_rule = |key: &String| key.starts_with(RULE_PREFIX);
    for (key, value) in pool.iter().chain(volume).filter(|(key, _)| !is_rule(key)) {
        apply(&mut settings, key, value)?;
    }
    let rules = Rules::resolve(pool, volume).map_err(PropertyError::Rule)?;
    let in_force = |key: &str, default: &str| {
        let (value, source) = match (volume.get(key), pool.get(key)) {
            (Some(value), _) => (value.as_str(), Source::Volume),
            (None, Some(value)) => (value.as_str(), Source::Pool),
            (None, None) => (default, Source::Default),
        };
        ResolvedProperty { key: key.to_owned(), value: value.to_owned(), source }
    };
    let set: BTreeSet<&String> = pool.keys().chain(volume.keys()).filter(|key| is_rule(key)).collect();
    let properties =
        KEYS.iter().map(|key| in_force(key.name, key.default)).chain(set.into_iter().map(|key| in_force(key, "")));
    let properties = properties.collect();
    Ok(Resolved { settings, rules, properties })
}

fn apply(settings: &mut Settings, name: &str, value: &str) -> Result<(), PropertyError> {
    let key = KEYS.iter().find(|k| k.name == name).ok_or_else(|| PropertyError::UnknownKey(name.to_owned()))?;
    let bad = || PropertyError::BadValue { key, value: value.to_owned() };
    match name {
        "compression" if value == "auto" => settings.compression = Compression::Auto,
        "compression" => settings.compression = Compression::Fixed(value.parse().map_err(|_| bad())?),
        "mode" => settings.mode = value.parse().map_err(|_| bad())?,
        "candidates" => settings.candidates = value.parse().map_err(|_| bad())?,
        "unit" => (settings.unit_blocks_min, settings.unit_blocks) = parse_units(value).ok_or_else(bad)?,
        "min-saving" => settings.min_saving_permille = parse_permille(value).ok_or_else(bad)?,
        "dictionary" => settings.dictionary = parse_switch(value).ok_or_else(bad)?,
        COPIES if ["1", "2", "3"].contains(&value) => settings.copies = value.parse().map_err(|_| bad())?,
        COPIES => return Err(bad()),
        "cold-mode" => settings.cold_mode = value.parse().map_err(|_| bad())?,
        RULE_SET => _ = RuleSet::parse(value).ok_or_else(bad)?,
        // These do not affect writes.
        "snapshots" => drop(Schedule::parse(value, "1h").ok_or_else(bad)?),
        "keep" => drop(Schedule::parse("off", value).ok_or_else(bad)?),
        "quota" => settings.quota_bytes = parse_bytes(value).ok_or_else(bad)?,
        "reservation" => settings.reservation_bytes = parse_bytes(value).ok_or_else(bad)?.unwrap_or(0),
        "when-full" => settings.when_full = WhenFull::parse(value).ok_or_else(bad)?,
        "snapdir" => settings.snapdir = SnapDir::parse(value).ok_or_else(bad)?,
        READONLY if ["off", "on"].contains(&value) => settings.readonly = value == "on",
        READONLY => return Err(bad()),
        "hydrate" => settings.remote.hydrate = parse_hydrate(value).ok_or_else(bad)?,
        "remote-timeout" => settings.remote.timeout_seconds = parse_timeout(value).ok_or_else(bad)?,
        "remote-cache" => settings.remote.cache = parse_cache(value, parse_permille).ok_or_else(bad)?,
        "nfs" | "smb" | "http" | "ftp" => {
            let door = Door::of_property(name).ok_or_else(bad)?;
            drop(Access::parse(door, value).map_err(PropertyError::Door)?);
        }
        "atime" | XATTR | ACL | INCOMPLETE if values(name).iter().any(|known| known == value) => {}
        "atime" | XATTR | ACL | INCOMPLETE => return Err(bad()),
        "clean-low" => settings.clean_marks.low_permille = parse_permille(value).ok_or_else(bad)?,
        "clean-high" => settings.clean_marks.high_permille = parse_permille(value).ok_or_else(bad)?,
        _ => return Err(PropertyError::UnknownKey(name.to_owned())),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use codec::ZstdLevel;

    use super::*;
    use crate::remote::Share;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn marks_belong_to_the_pool_and_one_lies_below_the_other() {
        let set = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let none = BTreeMap::new();
        for (properties, ok) in [
            (set(&[]), true),
            (set(&[("clean-low", "5"), ("clean-high", "12.5")]), true),
            (set(&[("clean-low", "0")]), true),
            (set(&[("clean-low", "25")]), false),
            (set(&[("clean-high", "10")]), false),
            (set(&[("clean-low", "30"), ("clean-high", "20")]), false),
            (set(&[("clean-high", "91")]), false),
        ] {
            assert_eq!(check_pool(&properties).is_ok(), ok, "{properties:?}");
        }
        let marks = resolve(&set(&[("clean-low", "7.5")]), &none).unwrap().settings.clean_marks;
        assert_eq!(marks, CleanMarks { low_permille: 75, high_permille: 250 });
        assert!(check_property("clean-low", "7").is_ok());
        let of = check_property_of;
        let error = of(Owner::Volume, "clean-low", "7").unwrap_err();
        assert!(error.to_string().contains("of the pool as a whole"), "{error}");
        let error = of(Owner::Pool, INCOMPLETE, "yes").unwrap_err();
        assert!(error.to_string().contains("of single volumes"), "{error}");
        for (key, value, of_whom) in [
            ("clean-low", "7", "the pool as a whole"),
            (INCOMPLETE, "yes", "volumes"),
            ("reservation", "1G", "volumes"),
        ] {
            let error = of(Owner::Folder, key, value).unwrap_err();
            assert!(error.to_string().contains(of_whom), "{error}");
        }
        assert!(of(Owner::Folder, "quota", "1G").is_ok() && of(Owner::Folder, "unit", "8K").is_ok());
        assert!(of(Owner::Volume, INCOMPLETE, "yes").is_ok() && of(Owner::Pool, "clean-low", "7").is_ok());
        assert!(of(Owner::Volume, "unit", "8K").is_ok() && of(Owner::Pool, "unit", "8K").is_ok());
        let error = check_pool(&set(&[("clean-low", "30")])).unwrap_err();
        assert!(error.to_string().contains("clean-low (30) must be less than clean-high (25)"), "{error}");
        // The default shown is the one in effect.
        let defaults = set(&[("clean-low", "10"), ("clean-high", "25")]);
        assert_eq!(resolve(&defaults, &none).unwrap().settings.clean_marks, CleanMarks::default());
    }

    #[test]
    fn written_defaults_are_the_defaults() {
        let mut settings = Settings {
            compression: Compression::Fixed(Codec::Off),
            mode: Mode::Archive,
            candidates: "zstd-7".parse().unwrap(),
            unit_blocks_min: 1,
            unit_blocks: 1,
            min_saving_permille: 900,
            copies: 2,
            dictionary: false,
            cold_mode: ColdMode::Off,
            quota_bytes: Some(1),
            reservation_bytes: 1,
            when_full: WhenFull::Wait(1),
            snapdir: SnapDir::Off,
            readonly: true,
            clean_marks: CleanMarks { low_permille: 1, high_permille: 2 },
            remote: Remote { hydrate: Some(1), timeout_seconds: 1, cache: Share::Permille(1) },
        };
        for key in KEYS {
            apply(&mut settings, key.name, key.default).unwrap();
        }
        assert_eq!(settings, Settings::default());
    }

    #[test]
    fn help_names_all_codecs() {
        assert_eq!(COMPRESSION_ALLOWED, format!("auto, {}", Codec::ALLOWED));
    }

    #[test]
    fn values_by_table() {
        let zstd = |n| Codec::Zstd(ZstdLevel::new(n).unwrap());
        let d = Settings::default();
        for (key, value, expected) in [
            ("compression", "off", Settings { compression: Compression::Fixed(Codec::Off), ..d }),
            ("compression", "zstd-19", Settings { compression: Compression::Fixed(zstd(19)), ..d }),
            ("compression", "auto", Settings { compression: Compression::Auto, ..d }),
            ("mode", "archive", Settings { mode: Mode::Archive, ..d }),
            ("candidates", "zstd-3,lz4", Settings { candidates: "zstd-3,lz4".parse().unwrap(), ..d }),
            ("unit", "8K-64K", Settings { unit_blocks_min: 2, unit_blocks: 16, ..d }),
            ("unit", "16K-16K", Settings { unit_blocks_min: 4, unit_blocks: 4, ..d }),
            ("unit", "4K", Settings { unit_blocks_min: 1, unit_blocks: 1, ..d }),
            ("unit", "4096", Settings { unit_blocks_min: 1, unit_blocks: 1, ..d }),
            ("unit", "64KiB", Settings { unit_blocks_min: 16, unit_blocks: 16, ..d }),
            ("unit", "128k", Settings { unit_blocks_min: 32, unit_blocks: 32, ..d }),
            ("min-saving", "0", Settings { min_saving_permille: 0, ..d }),
            ("min-saving", "90", Settings { min_saving_permille: 900, ..d }),
            ("min-saving", "7.3", Settings { min_saving_permille: 73, ..d }),
            ("min-saving", "12.5%", d),
            ("dictionary", "off", Settings { dictionary: false, ..d }),
            ("cold-mode", "archive", Settings { cold_mode: ColdMode::As(Mode::Archive), ..d }),
            ("cold-mode", "off", Settings { cold_mode: ColdMode::Off, ..d }),
            ("copies", "3", Settings { copies: 3, ..d }),
            ("quota", "20G", Settings { quota_bytes: Some(20 << 30), ..d }),
            ("quota", "none", d),
            ("when-full", "wait:5", Settings { when_full: WhenFull::Wait(5), ..d }),
            ("snapdir", "off", Settings { snapdir: SnapDir::Off, ..d }),
            ("readonly", "on", Settings { readonly: true, ..d }),
            ("reservation", "1.5M", Settings { reservation_bytes: 3 << 19, ..d }),
        ] {
            assert_eq!(resolve(&map(&[(key, value)]), &map(&[])).unwrap().settings, expected, "{key}={value}");
        }
    }

    #[test]
    fn refusals_list_what_is_allowed() {
        for (key, value, part) in [
            (
                "compresion",
                "lz4",
                "compression, mode, candidates, unit, min-saving, dictionary, copies, cold-mode, rule-set, snapshots, keep, snapdir, readonly, quota, reservation, when-full, hydrate, remote-timeout, incomplete, atime, xattr, acl, nfs, smb, http, ftp, clean-low, clean-high, remote-cache, and rule.TYPE",
            ),
            ("rule.nc", "lz5", "MODE:CODEC"),
            ("rule.jpeg", "off", "rule.jpg"),
            ("compression", "gzip-10", "zstd-1 to zstd-19"),
            ("compression", "", "zstd-1 to zstd-19"),
            ("mode", "fast", "performance, balanced"),
            ("candidates", "off", "separated by commas"),
            ("unit", "64K-8K", "4K, 8K"),
            ("unit", "8K-", "4K, 8K"),
            ("unit", "4K-8K-16K", "4K, 8K"),
            ("unit", "2K", "4K, 8K"),
            ("unit", "0", "4K, 8K"),
            ("unit", "12K", "4K, 8K"),
            ("unit", "256K", "4K, 8K"),
            ("unit", "4097", "4K, 8K"),
            ("unit", "16P", "4K, 8K"),
            ("dictionary", "on", "auto, off"),
            ("copies", "0", "1, 2, 3"),
            ("copies", "4", "1, 2, 3"),
            ("cold-mode", "on", "off, performance"),
            ("quota", "lots", "none, or a size"),
            ("reservation", "-1", "none, or a size"),
            ("when-full", "hang", "wait:SECONDS"),
            ("rule-set", "databases", "none, or database"),
            ("snapdir", "yes", "root only"),
            ("readonly", "yes", "off, on"),
            ("hydrate", "yes", "50M/s"),
            ("remote-timeout", "5", "5m or 2h"),
            ("remote-cache", "all", "25%"),
            ("incomplete", "maybe", "no, yes"),
            ("atime", "strict", "off, relatime"),
            ("xattr", "sa", "on, off"),
            ("acl", "posix", "on, off"),
            ("nfs", "rw@10.0.0.1/8", "first address"),
            ("http", "rw", "every client could write"),
            ("min-saving", "90.1", "from 0 to 90"),
            ("min-saving", "100", "from 0 to 90"),
            ("min-saving", "-1", "from 0 to 90"),
            ("min-saving", "1.25", "from 0 to 90"),
            ("min-saving", "", "from 0 to 90"),
            ("min-saving", ".", "from 0 to 90"),
            ("min-saving", "+5", "from 0 to 90"),
        ] {
            let error = check_property(key, value).unwrap_err().to_string();
            assert!(error.contains(part), "{key}={value}: {error}");
        }
    }

    #[test]
    fn the_volume_wins_over_the_pool_wins_over_the_default() {
        let resolved =
            resolve(&map(&[("compression", "off"), ("unit", "64K")]), &map(&[("compression", "zstd-3")])).unwrap();
        let shown: Vec<_> = resolved.properties.iter().map(|p| (p.key.as_str(), p.value.as_str(), p.source)).collect();
        assert_eq!(
            shown,
            [
                ("compression", "zstd-3", Source::Volume),
                ("mode", "balanced", Source::Default),
                ("candidates", Candidates::DEFAULT, Source::Default),
                ("unit", "64K", Source::Pool),
                ("min-saving", "12.5", Source::Default),
                ("dictionary", "auto", Source::Default),
                ("copies", "1", Source::Default),
                ("cold-mode", "auto", Source::Default),
                ("rule-set", "none", Source::Default),
                ("snapshots", "off", Source::Default),
                ("keep", "24h,7d,4w", Source::Default),
                ("snapdir", "root", Source::Default),
                ("readonly", "off", Source::Default),
                ("quota", "none", Source::Default),
                ("reservation", "none", Source::Default),
                ("when-full", "error", Source::Default),
                ("hydrate", "off", Source::Default),
                ("remote-timeout", "5m", Source::Default),
                ("incomplete", "no", Source::Default),
                ("atime", "off", Source::Default),
                ("xattr", "on", Source::Default),
                ("acl", "on", Source::Default),
                ("nfs", "off", Source::Default),
                ("smb", "off", Source::Default),
                ("http", "off", Source::Default),
                ("ftp", "off", Source::Default),
                ("clean-low", "10", Source::Default),
                ("clean-high", "25", Source::Default),
                ("remote-cache", "25%", Source::Default),
            ]
        );
        assert_eq!(resolved.rules, Rules::default());
        assert_eq!(resolved.settings.plain_codec().to_string(), "zstd-3");
        assert_eq!(resolved.settings.unit_blocks, 16);
    }

    #[test]
    fn rules_are_properties_that_are_shown_when_set() {
        let resolved =
            resolve(&map(&[("rule.nc", "gzip-1"), ("rule.jpg", "auto")]), &map(&[("rule.nc", "archive:zstd-19")]))
                .unwrap();
        let shown: Vec<_> = resolved.properties.iter().skip(KEYS.len()).collect();
        assert_eq!(shown.len(), 2);
        assert_eq!(
            (shown[0].key.as_str(), shown[0].value.as_str(), shown[0].source),
            ("rule.jpg", "auto", Source::Pool)
        );
        assert_eq!(
            (shown[1].key.as_str(), shown[1].value.as_str(), shown[1].source),
            ("rule.nc", "archive:zstd-19", Source::Volume)
        );
        assert!(is_property("rule.nc") && is_property("unit") && !is_property("rules"));
        assert!(resolve(&map(&[]), &map(&[("rule.nc", "x")])).is_err());
    }

    #[test]
    fn a_bad_value_on_either_level_is_an_error() {
        assert!(resolve(&map(&[("unit", "5K")]), &map(&[("unit", "4K")])).is_err());
        assert!(resolve(&map(&[]), &map(&[("colour", "red")])).is_err());
    }
}
