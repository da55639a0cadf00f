//! Decides how a file of a tree is compressed: by a value set by its owner, by a rule for its name
//! or its first bytes, or by the properties of its share. Owns the precedence among these; the
//! rules themselves are in [`crate::rules`].
//!
//! 1. A value set for the file, or for a directory above it, takes precedence over everything else.
//! 2. A rule for the type given by the name; looked up when the file is created.
//! 3. Where no rule matches the name, a rule for the type given by the first bytes; looked up when
//!    they are written.
//! 4. Where no rule matches these either: the properties, as for a volume. With `compression=off`
//!    and an effective mode, unit by unit, as with `auto`.
//!
//! **Rules alongside a codec.** With `compression=auto`, rules apply. Where `compression` names a
//! codec, default rules apply only if a `mode` was set too, at least as close to the file as
//! `compression`; a rule that was set applies if it was set at least as close. So a codec alone
//! applies to all files, as in ZFS.
//!
//! A default rule is a guess about unexamined data. Each unit is probed ([`codec_fits`]), and
//! decided as without a rule if its content does not match.

use std::fmt;
use std::sync::Arc;

use codec::Codec;

use crate::magic::{type_of_content, type_of_name};
use crate::rules::{RuleChoice, RuleMatch};
use crate::{Class, Compression, Mode, Resolved, Source};

/// Source of a share's current properties.
pub trait InForce: Send + Sync {
    /// Returns the current properties.
    fn in_force(&self) -> Arc<Resolved>;
}

/// Origin of the decision for a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Origin {
    /// The name matches no type, and the first bytes have not been written.
    #[default]
    Open,
    /// A rule for the type given by its name.
    Name,
    /// A rule for the type given by its first bytes.
    Content,
    /// No rule applies: the properties of its share do.
    Properties,
}

/// How a file is to be compressed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FileChoice {
    /// According to the current properties of its share.
    #[default]
    Usual,
    /// Unit by unit.
    Auto,
    /// This codec.
    Codec(Codec),
}

impl fmt::Display for FileChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usual => f.write_str("usual"),
            Self::Auto => f.write_str("auto"),
            Self::Codec(codec) => codec.fmt(f),
        }
    }
}

/// Outcome of the rules for a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuleOutcome {
    /// Origin of the decision.
    pub origin: Origin,
    /// How it is to be compressed.
    pub choice: FileChoice,
    /// Whether it is a default rule, which the data must confirm.
    pub is_default: bool,
    /// The type of the file; empty if unknown.
    pub word: String,
}

impl RuleOutcome {
    /// Whether a default rule chose zstd: then `auto` does better where units are small enough for
    /// dictionaries, which only `auto` uses.
    pub const fn yields_to_dictionaries(&self) -> bool {
        self.is_default && matches!(self.choice, FileChoice::Codec(Codec::Zstd(_)))
    }
}

/// How close to the file a property was set; greater is closer.
const fn nearness(source: Source) -> u8 {
    match source {
        Source::Default => 0,
        Source::Pool => 1,
        Source::Volume => 2,
    }
}

impl Resolved {
    fn nearness_of(&self, key: &str) -> u8 {
        self.properties.iter().find(|property| property.key == key).map_or(0, |property| nearness(property.source))
    }

    /// Whether the mode applies to files for which no codec was set.
    fn mode_counts(&self) -> bool {
        let (mode, compression) = (self.nearness_of("mode"), self.nearness_of("compression"));
        self.settings.compression == Compression::Auto || mode > 0 && mode >= compression
    }

    fn counts(&self, rule: &RuleMatch) -> bool {
        let is_set = rule.source != Source::Default && nearness(rule.source) >= self.nearness_of("compression");
        is_set || self.mode_counts()
    }

    /// The choice for files without an applicable rule.
    pub fn usual(&self) -> FileChoice {
        match self.settings.compression {
            Compression::Fixed(Codec::Off) if self.mode_counts() => FileChoice::Auto,
            _ => FileChoice::Usual,
        }
    }

    fn ruled(&self, name: &str, head: &[u8], origin: Origin) -> Option<RuleOutcome> {
        let rule = self.rules.find(name, head, self.settings.mode).filter(|rule| self.counts(rule))?;
        let choice = match rule.choice {
            RuleChoice::Auto => FileChoice::Auto,
            RuleChoice::Codec(codec) => FileChoice::Codec(codec),
        };
        Some(RuleOutcome { origin, choice, is_default: rule.source == Source::Default, word: rule.word })
    }

    /// Step 2: the decision by name.
    pub fn of_name(&self, name: &[u8]) -> RuleOutcome {
        let name = String::from_utf8_lossy(name);
        let unknown = || RuleOutcome { word: type_of_name(&name).unwrap_or_default(), ..RuleOutcome::default() };
        self.ruled(&name, &[], Origin::Name).unwrap_or_else(unknown)
    }

    /// Whether a rule was set for the type, but does not mention the current mode.
    pub fn is_silent(&self, word: &str) -> bool {
        self.rules.is_silent(word, self.settings.mode)
    }

    /// Steps 3 and 4: the decision by the first bytes of a file whose name yielded only `word`.
    pub fn of_content(&self, word: &str, head: &[u8]) -> RuleOutcome {
        self.ruled("", head, Origin::Content).unwrap_or_else(|| RuleOutcome {
            origin: Origin::Properties,
            choice: self.usual(),
            is_default: false,
            word: if word.is_empty() { type_of_content(head).unwrap_or_default().to_owned() } else { word.to_owned() },
        })
    }

    /// Steps 2 to 4 for an existing file. `head` returns its first bytes (none for an empty file),
    /// and is only called when they matter.
    ///
    /// # Errors
    /// Those of `head`.
    pub fn of_file<H: AsRef<[u8]>, E>(
        &self,
        name: &[u8],
        head: impl FnOnce() -> Result<H, E>,
    ) -> Result<RuleOutcome, E> {
        let ruled = self.of_name(name);
        if ruled.origin != Origin::Open {
            return Ok(ruled);
        }
        let head = head()?;
        Ok(if head.as_ref().is_empty() { ruled } else { self.of_content(&ruled.word, head.as_ref()) })
    }

    /// The same with `compression=auto` in that mode, where all rules apply.
    #[must_use]
    pub fn in_mode(&self, mode: Mode) -> Self {
        let mut changed = self.clone();
        changed.settings.compression = Compression::Auto;
        changed.settings.mode = mode;
        changed
    }
}

/// Whether a unit of that class fits the codec that a default rule names for the type of its file:
/// data that looks random is not compressible, and only data that looks random may be stored raw.
pub fn codec_fits(codec: Codec, class: Class) -> bool {
    matches!(codec, Codec::Off | Codec::Zle) == class.is_random()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::resolve;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    /// A row: properties of the pool and of the share; name, first bytes; the expected decision by
    /// name and by content, as text.
    type Row<'a> = (&'a [(&'a str, &'a str)], &'a [(&'a str, &'a str)], &'a str, &'a [u8], &'a str);

    fn told(ruled: &RuleOutcome) -> String {
        let origin = match ruled.origin {
            Origin::Open => "open",
            Origin::Name => "name",
            Origin::Content => "content",
            Origin::Properties => "properties",
        };
        format!("{origin}:{}{}", ruled.choice, if ruled.is_default { "?" } else { "" })
    }

    #[test]
    fn what_counts_by_table() {
        const GZ: &[u8] = b"\x1f\x8b\x08\0";
        const NOISE: &[u8] = b"\x01\x02\x03\0\xfe";
        let rows: &[Row<'_>] = &[
            // `auto`: rules, then the first bytes, then unit by unit.
            (&[], &[], "a.c", GZ, "name:zstd-3?"),
            (&[], &[("mode", "archive")], "a.c", GZ, "name:auto?"),
            (&[], &[], "noext", GZ, "content:zle?"),
            (&[], &[], "noext", NOISE, "properties:usual"),
            (&[], &[], "a.unknown", NOISE, "properties:usual"),
            (&[("rule.c", "lz4")], &[], "a.c", GZ, "name:lz4"),
            (&[], &[("rule.c", "auto")], "a.c", GZ, "name:auto"),
            // The content is consulted only where the name matches no rule.
            (&[("rule.gz", "off")], &[], "a.c", GZ, "name:zstd-3?"),
            (&[("rule.gz", "off")], &[], "a.weird", GZ, "content:off"),
            // A codec alone applies to all files.
            (&[("compression", "lz4")], &[], "a.c", GZ, "properties:usual"),
            (&[("compression", "lz4")], &[], "x.jpg", NOISE, "properties:usual"),
            (&[("mode", "archive")], &[("compression", "lz4")], "a.c", NOISE, "properties:usual"),
            (&[("rule.c", "zstd-9")], &[("compression", "lz4")], "a.c", NOISE, "properties:usual"),
            // A rule set alongside it applies, and so does a mode.
            (&[("compression", "lz4"), ("rule.c", "zstd-9")], &[], "a.c", NOISE, "name:zstd-9"),
            (&[("compression", "lz4")], &[("rule.c", "archive:zstd-9")], "a.c", NOISE, "properties:usual"),
            (&[("compression", "lz4")], &[("mode", "archive")], "a.c", NOISE, "name:auto?"),
            (&[("compression", "lz4")], &[("mode", "archive")], "a.weird", NOISE, "properties:usual"),
            // So does a rule set, for the files that it has rules for.
            (&[], &[("compression", "zstd-6"), ("rule-set", "database")], "app.db-wal", NOISE, "name:lz4"),
            (&[], &[("compression", "zstd-6"), ("rule-set", "database")], "app.db", NOISE, "properties:usual"),
            (&[("rule-set", "database")], &[("compression", "zstd-6")], "app.db-wal", NOISE, "properties:usual"),
            // With a mode, files of unknown type are tested although compression is off.
            (&[("compression", "off")], &[("mode", "energy")], "a.c", NOISE, "name:zstd-1?"),
            (&[("compression", "off")], &[("mode", "energy")], "a.weird", NOISE, "properties:auto"),
            (&[("compression", "off")], &[], "a.weird", NOISE, "properties:usual"),
        ];
        for (pool, share, name, head, expected) in rows {
            let resolved = resolve(&map(pool), &map(share)).unwrap();
            let mut ruled = resolved.of_name(name.as_bytes());
            if ruled.origin == Origin::Open {
                ruled = resolved.of_content(&ruled.word, head);
            }
            assert_eq!(told(&ruled), *expected, "{pool:?} {share:?} {name}");
            assert_eq!(resolved.of_file(name.as_bytes(), || Ok::<_, ()>(head)), Ok(ruled.clone()), "{name}");
            let yields = expected.contains("zstd") && expected.ends_with('?');
            assert_eq!(ruled.yields_to_dictionaries(), yields, "{name}");
        }
    }

    #[test]
    fn first_bytes_are_read_only_where_they_count() {
        let resolved = resolve(&map(&[]), &map(&[])).unwrap();
        assert_eq!(
            resolved.of_file(b"a.c", || Err::<Vec<u8>, _>(())).map(|ruled| told(&ruled)),
            Ok("name:zstd-3?".to_owned())
        );
        assert_eq!(resolved.of_file(b"a", || Err::<Vec<u8>, _>("unreadable")), Err("unreadable"));
        // An empty file has no content to decide by yet.
        let empty = resolved.of_file(b"a.unheard", || Ok::<_, ()>([])).unwrap();
        assert_eq!((told(&empty).as_str(), empty.word.as_str()), ("open:usual", "unheard"));
    }

    #[test]
    fn all_rules_count_in_the_modes_of_auto() {
        let resolved = resolve(&map(&[("rule.nc", "archive:gzip-9")]), &map(&[("compression", "lz4")])).unwrap();
        let in_mode = |mode, name: &[u8]| told(&resolved.in_mode(mode).of_name(name));
        assert_eq!(told(&resolved.of_name(b"a.c")), "open:usual");
        assert_eq!(in_mode(Mode::Archive, b"a.c"), "name:auto?");
        assert_eq!(
            (in_mode(Mode::Archive, b"a.nc"), in_mode(Mode::Energy, b"a.nc")),
            ("name:gzip-9".into(), "open:usual".into())
        );
    }

    #[test]
    fn types_are_known_where_no_rule_is() {
        let resolved = resolve(&map(&[("compression", "lz4")]), &map(&[])).unwrap();
        assert_eq!(resolved.of_name(b"x.NC").word, "nc");
        assert_eq!(resolved.of_name(b"\xff\xfe").word, "");
        assert_eq!(resolved.of_content("nc", b"%PDF-1.4").word, "nc");
        assert_eq!(resolved.of_content("", b"%PDF-1.4").word, "pdf");
    }

    #[test]
    fn only_data_that_looks_its_part_bears_a_rule_out() {
        let zstd: Codec = "zstd-3".parse().unwrap();
        for (codec, class, expected) in [
            (Codec::Zle, Class::RANDOM, true),
            (Codec::Zle, Class::DENSE, false),
            (Codec::Off, Class::RANDOM, true),
            (zstd, Class::RANDOM, false),
            (zstd, Class::DENSE, true),
        ] {
            assert_eq!(codec_fits(codec, class), expected, "{codec} {class}");
        }
    }
}
