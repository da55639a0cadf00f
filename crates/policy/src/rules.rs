//! File-type rules: the codec for a type of file, by mode. Owns their syntax, their defaults, and
//! which rule applies to a file; [`crate::magic`] detects the type.
//!
//! A rule is the property `rule.TYPE`, its value a list such as `archive:zstd-9,performance:lz4`: a
//! codec or `auto` for a mode, or, without a mode, for all modes not named. `auto` means: as if
//! there were no rule, not even a default.
//!
//! Precedence: a rule set for the type by name, a rule set for the type by content, a default for
//! the content's type, a default for the name's. But content that only identifies a family (text,
//! zip) ranks after the name among the defaults. A rule that does not mention the mode is skipped.
//! A rule of the rule set in force ([`crate::rule_sets`]) counts as set where the property
//! `rule-set` was set; a rule for the same type that was set there too replaces it.
//! This applies where name and content are known together, as in blob uploads; for files of a tree
//! see [`crate::by_file`].

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use codec::Codec;

use crate::magic::{canonical, type_of_content, type_of_name};
use crate::rule_sets::{RULE_SET, RuleSet};
use crate::{Mode, Source};

/// Prefix of the properties that are rules.
pub const RULE_PREFIX: &str = "rule.";

/// Compressed files: in the corpus and a system's own files no codec saved more on any of these
/// than the zeroes between the end of a file and the end of its last block, and zle finds those at
/// the cost of a scan. They matter: a third of the space of a system's small `gz` files. Not
/// listed, because they are often compressible: zip (office documents save 12 to 22 %), pdf, ole,
/// lz4.
const COMPRESSED: &str = "zle";
/// Text: zstd-3 saves 1 to 3 points more than zstd-1, which saves 10 to 20 more than lz4. A rule
/// never stores more than `auto` would: in `archive`, `auto` reaches the levels above 9. Databases
/// have no rule: some hold text, some hold dictionaries, which zstd-3 leaves a tenth larger than
/// zstd-9.
const TEXT: &str = "energy:zstd-1,balanced:zstd-3,archive:auto";

/// Default rules by type; everything else is `auto`.
const DEFAULTS: &[(&[&str], &str)] = &[
    (
        &[
            "gz", "bz2", "xz", "zst", "lz", "7z", "rar", "deb", "rpm", "whl", "squashfs", "pack", "jpg", "png", "gif",
            "webp", "heic", "avif", "mp4", "mkv", "avi", "ogg", "flac", "mp3", "aac", "wma", "wmv", "woff", "woff2",
            "luks", "gpg",
        ],
        COMPRESSED,
    ),
    (
        &[
            "txt", "c", "py", "js", "ts", "java", "go", "rs", "sh", "pl", "rb", "php", "css", "sql", "json", "xml",
            "html", "svg", "yaml", "toml", "ini", "conf", "csv", "tsv", "log", "tex", "ps", "mbox", "eml",
        ],
        TEXT,
    ),
];

/// Types that are families: the name is more specific.
const FAMILIES: &[&str] = &["txt", "zip", "ole", "xml", "elf"];

/// The entry of a rule for a mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleChoice {
    /// Decide as if there were no rule.
    Auto,
    /// This codec.
    Codec(Codec),
}

impl fmt::Display for RuleChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Codec(codec) => codec.fmt(f),
        }
    }
}

/// A rule, parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    by_mode: [Option<RuleChoice>; Mode::ALL.len()],
}

impl Rule {
    /// Values that [`FromStr`] accepts, for messages and help.
    pub const ALLOWED: &str = "a codec or auto, or a list of MODE:CODEC such as archive:zstd-9,performance:lz4; an entry without MODE applies to all others";

    /// The rule's choice for a mode, if it has one.
    pub fn choice(&self, mode: Mode) -> Option<RuleChoice> {
        Mode::ALL.iter().position(|m| *m == mode).and_then(|index| self.by_mode[index])
    }
}

/// Not a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseRuleError;

impl fmt::Display for ParseRuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a rule; a rule is {}", Rule::ALLOWED)
    }
}

impl std::error::Error for ParseRuleError {}

impl FromStr for Rule {
    type Err = ParseRuleError;

    fn from_str(text: &str) -> Result<Self, ParseRuleError> {
        let mut by_mode = [None; Mode::ALL.len()];
        let mut others = None;
        for item in text.split(',') {
            let (slot, choice) = match item.split_once(':') {
                None => (&mut others, item),
                Some((mode, choice)) => {
                    let mode: Mode = mode.parse().map_err(|_| ParseRuleError)?;
                    let index = Mode::ALL.iter().position(|m| *m == mode).ok_or(ParseRuleError)?;
                    (&mut by_mode[index], choice)
                }
            };
            let choice = match choice {
                "auto" => RuleChoice::Auto,
                codec => RuleChoice::Codec(codec.parse().map_err(|_| ParseRuleError)?),
            };
            if slot.replace(choice).is_some() {
                return Err(ParseRuleError);
            }
        }
        Ok(Self { by_mode: by_mode.map(|choice| choice.or(others)) })
    }
}

/// Why a property is not a rule; the message names the allowed values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuleError {
    /// The part after `rule.` is not a type.
    NoType(String),
    /// It is another word for a type.
    Synonym {
        /// The word as written.
        word: String,
        /// The canonical word.
        canonical: String,
    },
    /// The value is not allowed.
    BadValue {
        /// The property.
        key: String,
        /// Its value.
        value: String,
    },
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoType(word) => {
                write!(
                    f,
                    "'{word}' is not a file type: a rule is for an extension of 1 to 16 letters and digits, such as rule.nc"
                )
            }
            Self::Synonym { word, canonical } => {
                write!(f, "rule.{word} is the same type as rule.{canonical}: use the latter")
            }
            Self::BadValue { key, value } => write!(f, "'{key}' cannot be '{value}'; allowed: {}", Rule::ALLOWED),
        }
    }
}

impl std::error::Error for RuleError {}

/// Checks a property whose name begins with [`RULE_PREFIX`].
///
/// # Errors
/// When it names no type, or its value is no rule.
pub fn check_rule(key: &str, value: &str) -> Result<Rule, RuleError> {
    let word = key.strip_prefix(RULE_PREFIX).unwrap_or(key);
    match canonical(word) {
        None => Err(RuleError::NoType(word.to_owned())),
        Some(canonical) if canonical != word => Err(RuleError::Synonym { word: word.to_owned(), canonical }),
        Some(_) => value.parse().map_err(|_| RuleError::BadValue { key: key.to_owned(), value: value.to_owned() }),
    }
}

/// The rules in force.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    set: BTreeMap<String, SetRule>,
}

/// A rule that was set, by itself or with a rule set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SetRule {
    rule: Rule,
    source: Source,
    /// The set that has it, if it was not set by itself.
    of: RuleSet,
}

/// The rule that applies to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleMatch {
    /// The type that it is for.
    pub word: String,
    /// Where it, or its rule set, was set.
    pub source: Source,
    /// Its choice.
    pub choice: RuleChoice,
}

impl Rules {
    /// The rules among the properties that were set on the pool and on the volume; the volume's
    /// win. At each level, single rules win over those of the rule set.
    ///
    /// # Errors
    /// When one is not allowed.
    pub fn resolve(pool: &BTreeMap<String, String>, volume: &BTreeMap<String, String>) -> Result<Self, RuleError> {
        let mut set = BTreeMap::new();
        let levels = [(pool, Source::Pool), (volume, Source::Volume)];
        let named = |(properties, _): &(&BTreeMap<String, String>, Source)| properties.contains_key(RULE_SET);
        let of_set = levels.iter().rev().copied().find(named);
        for (properties, source) in levels {
            if let Some((named, _)) = of_set.filter(|(_, at)| *at == source) {
                // A value that is not allowed was refused before.
                let of = named.get(RULE_SET).and_then(|value| RuleSet::parse(value)).unwrap_or_default();
                for (word, value) in of.rules() {
                    let rule = check_rule(&format!("{RULE_PREFIX}{word}"), value)?;
                    set.insert((*word).to_owned(), SetRule { rule, source, of });
                }
            }
            for (key, value) in properties {
                if let Some(word) = key.strip_prefix(RULE_PREFIX) {
                    let rule = check_rule(key, value)?;
                    set.insert(word.to_owned(), SetRule { rule, source, of: RuleSet::None });
                }
            }
        }
        Ok(Self { set })
    }

    /// The rule set whose rule for a type is in force.
    pub fn set_with(&self, word: &str) -> Option<RuleSet> {
        self.set.get(word).map(|found| found.of).filter(|of| *of != RuleSet::None)
    }

    /// Whether a rule was set for a type without mentioning the mode.
    pub fn is_silent(&self, word: &str, mode: Mode) -> bool {
        self.set.get(word).is_some_and(|found| found.rule.choice(mode).is_none())
    }

    /// Returns the rule that applies to a file, by its name and its first bytes (either may be
    /// empty).
    pub fn find(&self, name: &str, head: &[u8], mode: Mode) -> Option<RuleMatch> {
        let by_name = type_of_name(name);
        let by_content = type_of_content(head).map(str::to_owned);
        let set = |word: &Option<String>| {
            let word = word.as_ref()?;
            let found = self.set.get(word)?;
            Some(RuleMatch { word: word.clone(), source: found.source, choice: found.rule.choice(mode)? })
        };
        let default = |word: &Option<String>| {
            let word = word.as_ref()?;
            Some(RuleMatch { word: word.clone(), source: Source::Default, choice: default_rule(word)?.choice(mode)? })
        };
        let is_family = by_content.as_ref().is_some_and(|word| FAMILIES.contains(&word.as_str()));
        let (first, second) = if is_family { (&by_name, &by_content) } else { (&by_content, &by_name) };
        set(&by_name).or_else(|| set(&by_content)).or_else(|| default(first)).or_else(|| default(second))
    }
}

/// The default for a type.
fn default_rule(word: &str) -> Option<Rule> {
    let (_, rule) = DEFAULTS.iter().find(|(words, _)| words.contains(&word))?;
    rule.parse().ok()
}

/// All defaults, type and value, for help and documentation.
pub fn default_rules() -> impl Iterator<Item = (&'static str, &'static str)> {
    DEFAULTS.iter().flat_map(|(words, rule)| words.iter().map(|word| (*word, *rule)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn rules_by_table() {
        use Mode::{Archive, Balanced, Energy, Performance};
        for (text, expected) in [
            ("off", [(Performance, Some("off")), (Archive, Some("off"))]),
            ("archive:gzip-1,performance:lz4", [(Performance, Some("lz4")), (Archive, Some("gzip-1"))]),
            ("archive:gzip-1", [(Balanced, None), (Archive, Some("gzip-1"))]),
            ("zstd-3,archive:bzip2-9", [(Energy, Some("zstd-3")), (Archive, Some("bzip2-9"))]),
            ("performance:auto,lz4hc-9", [(Performance, Some("auto")), (Energy, Some("lz4hc-9"))]),
        ] {
            let rule: Rule = text.parse().unwrap();
            for (mode, choice) in expected {
                assert_eq!(rule.choice(mode).map(|c| c.to_string()).as_deref(), choice, "{text} {mode}");
            }
        }
        for text in [
            "",
            ",",
            "lz5",
            "archive",
            "archive:",
            ":lz4",
            "fast:lz4",
            "lz4,zstd-1",
            "archive:lz4,archive:lz4",
            "lz4, zstd-1",
            "archive:lz4:x",
        ] {
            assert!(text.parse::<Rule>().is_err(), "{text}");
        }
    }

    #[test]
    fn refusals_say_what_is_allowed() {
        for (key, value, part) in [
            ("rule.", "lz4", "not a file type"),
            ("rule.a b", "lz4", "not a file type"),
            ("rule.tar.gz", "lz4", "not a file type"),
            ("rule.jpeg", "lz4", "rule.jpg"),
            ("rule.NC", "lz4", "rule.nc"),
            ("rule.nc", "lz5", "MODE:CODEC"),
            ("rule.nc", "", "MODE:CODEC"),
        ] {
            let error = check_rule(key, value).unwrap_err().to_string();
            assert!(error.contains(part), "{key}={value}: {error}");
        }
    }

    #[test]
    fn which_rule_counts_by_table() {
        let pool = map(&[("rule.nc", "gzip-1"), ("rule.jpg", "lz4"), ("compression", "auto")]);
        let volume = map(&[("rule.nc", "archive:gzip-9"), ("rule.txt", "lz4hc-9"), ("rule.mp4", "auto")]);
        let rules = Rules::resolve(&pool, &volume).unwrap();
        let gz: &[u8] = b"\x1f\x8b\x08\0";
        let jpg: &[u8] = b"\xff\xd8\xff\xe0";
        for (name, head, mode, expected) in [
            // The volume's rule replaces the pool's as a whole.
            ("a.nc", &b""[..], Mode::Archive, Some(("nc", Source::Volume, "gzip-9"))),
            ("a.nc", b"", Mode::Balanced, None),
            // A rule that was set applies by name and by content, before all defaults.
            ("x.jpeg", b"", Mode::Balanced, Some(("jpg", Source::Pool, "lz4"))),
            ("x", jpg, Mode::Balanced, Some(("jpg", Source::Pool, "lz4"))),
            ("x.gz", jpg, Mode::Balanced, Some(("jpg", Source::Pool, "lz4"))),
            // Content takes precedence over the name.
            ("x.sql", gz, Mode::Balanced, Some(("gz", Source::Default, "zle"))),
            // But not when it only identifies a family; and a rule set for the family precedes
            // defaults.
            ("x.log", b"text\n", Mode::Balanced, Some(("txt", Source::Volume, "lz4hc-9"))),
            ("x.docx", b"PK\x03\x04", Mode::Balanced, None),
            ("x.whl", b"PK\x03\x04", Mode::Balanced, Some(("whl", Source::Default, "zle"))),
            ("x.svg", b"<?xml version", Mode::Balanced, Some(("svg", Source::Default, "zstd-3"))),
            ("x.unknown", b"<?xml version", Mode::Archive, Some(("xml", Source::Default, "auto"))),
            // auto is a match, and ends the search.
            ("x.mp4", b"", Mode::Balanced, Some(("mp4", Source::Volume, "auto"))),
            // No default mentions this mode.
            ("x.sqlite", b"", Mode::Performance, None),
            ("x.db", b"SQLite format 3\0", Mode::Energy, None),
            ("x.exe", b"MZ", Mode::Balanced, None),
            ("", b"", Mode::Balanced, None),
        ] {
            let found = rules.find(name, head, mode);
            let expected = expected.map(|(word, source, choice)| (word.to_owned(), source, choice.to_owned()));
            assert_eq!(found.map(|m| (m.word, m.source, m.choice.to_string())), expected, "{name} {head:?} {mode}");
        }
    }

    #[test]
    fn rule_sets_count_where_they_are_set_and_after_single_rules() {
        let database: &[(&str, &str)] = &[("rule-set", "database")];
        let none: &[(&str, &str)] = &[("rule-set", "none")];
        /// Properties of the pool and of the share; source, choice and whether it is the set's.
        type Row<'a> = (&'a [(&'a str, &'a str)], &'a [(&'a str, &'a str)], Option<(Source, &'a str, bool)>);
        let rows: &[Row<'_>] = &[
            (&[], &[], None),
            (&[], database, Some((Source::Volume, "lz4", true))),
            (database, &[], Some((Source::Pool, "lz4", true))),
            (database, none, None),
            (none, database, Some((Source::Volume, "lz4", true))),
            // A single rule wins at its level and below it.
            (&[("rule-set", "database"), ("rule.wal", "off")], &[], Some((Source::Pool, "off", false))),
            (database, &[("rule.wal", "zstd-1")], Some((Source::Volume, "zstd-1", false))),
            (&[("rule.wal", "off")], database, Some((Source::Volume, "lz4", true))),
        ];
        for (pool, volume, expected) in rows {
            let rules = Rules::resolve(&map(pool), &map(volume)).unwrap();
            let found = rules.find("pg_wal/000000010000000000000001", b"", Mode::Balanced);
            let is_of_set = rules.set_with("wal") == Some(RuleSet::Database);
            let found = found.map(|found| (found.source, found.choice.to_string(), is_of_set));
            let expected = expected.map(|(source, choice, of)| (source, choice.to_owned(), of));
            assert_eq!(found, expected, "{pool:?} {volume:?}");
            assert_eq!(rules.find("stock.ibd", b"", Mode::Balanced), None, "files with tables have no rule");
        }
        assert_eq!(Rules::resolve(&map(&[]), &map(none)).unwrap(), Rules::default());
    }

    #[test]
    fn defaults_are_rules_for_types_that_exist_once() {
        let mut words: Vec<&str> = Vec::new();
        for (word, value) in default_rules() {
            check_rule(&format!("{RULE_PREFIX}{word}"), value).unwrap();
            assert!(default_rule(word).is_some());
            assert!(!words.contains(&word), "{word} twice");
            words.push(word);
        }
        assert!(words.len() > 40);
    }

    /// The user documentation lists the defaults.
    #[test]
    fn the_documentation_lists_the_defaults() {
        let page = include_str!("../../../docs/CODECS.md");
        for (words, rule) in DEFAULTS {
            let row = format!("| {} | `{}` |", words.join(" "), rule.replace(',', ", "));
            assert!(page.contains(&row), "docs/CODECS.md lacks the row {row}");
        }
    }

    /// A later mode never gets a weaker codec from a default.
    #[test]
    fn defaults_are_monotone_in_mode() {
        let strength = |choice: Option<RuleChoice>| match choice {
            Some(RuleChoice::Codec(codec)) => Some(codec.id().0),
            _ => None,
        };
        for (word, _) in default_rules() {
            let rule = default_rule(word).unwrap();
            let chosen: Vec<u8> = [Mode::Energy, Mode::Balanced, Mode::Archive]
                .iter()
                .filter_map(|m| strength(rule.choice(*m)))
                .collect();
            assert!(chosen.is_sorted(), "{word}");
        }
    }
}
