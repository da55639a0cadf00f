//! Compression settings in an inode: a value set for it or above it, and the rule for its name or
//! its first bytes. Owns their encoding in the inode's record, their text form for users, and the
//! hint for the file's data. `policy` decides which rule applies.
//!
//! Encoding: fields, each with tag 1, length 1, value. Fields with unknown tags are preserved.
//!
//! - 1, set: 1 if it was inherited from the directory, choice 1, codec 1.
//! - 2, ruled: origin 1 (0 open, 1 name, 2 content, 3 properties), 1 if by default, choice 1, codec
//!   1, type of the file in letters.
//!
//! A choice is 0 usual, 1 unit by unit, 2 the codec of that number in the format.

use codec::{Codec, CodecId};
use policy::{FileChoice, Origin, Resolved, RuleOutcome};
use surface::{Advice, Hint};
use xxhash_rust::xxh3::xxh3_64;

const SET: u8 = 1;
const RULED: u8 = 2;

/// A value that was set for a file or a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Set {
    pub(crate) choice: FileChoice,
    /// It was set for a directory above, before this inode was created there.
    pub(crate) is_inherited: bool,
}

/// Compression settings of an inode.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Compression {
    pub(crate) set: Option<Set>,
    pub(crate) ruled: RuleOutcome,
    /// Fields of newer versions.
    pub(crate) unknown: Vec<u8>,
}

const fn choice_bytes(choice: FileChoice) -> [u8; 2] {
    match choice {
        FileChoice::Usual => [0, 0],
        FileChoice::Auto => [1, 0],
        FileChoice::Codec(codec) => [2, codec.id().0],
    }
}

/// Decodes a choice; unknown ones are treated as usual.
fn choice_of(kind: u8, number: u8) -> FileChoice {
    let codec = || Codec::all().find(|codec| codec.id() == CodecId(number));
    match kind {
        1 => FileChoice::Auto,
        2 => codec().map_or(FileChoice::Usual, FileChoice::Codec),
        _ => FileChoice::Usual,
    }
}

/// The choice that a user has named: `auto`, or a codec, in each way that the property takes.
pub(crate) fn parse(text: &[u8]) -> Option<FileChoice> {
    let text = str::from_utf8(text).ok()?;
    let spelled_out = policy::spelled_out("compression", text);
    match spelled_out.as_deref().unwrap_or(text) {
        "auto" => Some(FileChoice::Auto),
        codec => codec.parse().ok().map(FileChoice::Codec),
    }
}

impl Compression {
    /// Whether there are no settings.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if let Some(set) = self.set {
            out.extend([SET, 3, u8::from(set.is_inherited)]);
            out.extend(choice_bytes(set.choice));
        }
        if self.ruled != RuleOutcome::default() {
            let origin = match self.ruled.origin {
                Origin::Open => 0,
                Origin::Name => 1,
                Origin::Content => 2,
                Origin::Properties => 3,
            };
            // A type has at most 16 letters.
            let word = &self.ruled.word.as_bytes()[..self.ruled.word.len().min(64)];
            out.extend([RULED, 4 + word.len() as u8, origin, u8::from(self.ruled.is_default)]);
            out.extend(choice_bytes(self.ruled.choice));
            out.extend(word);
        }
        out.extend(&self.unknown);
        out
    }

    /// Decodes the fields; `None` if they are truncated.
    pub(crate) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let mut found = Self::default();
        while let [tag, length, rest @ ..] = bytes {
            let (value, behind) = rest.split_at_checked(usize::from(*length))?;
            match (*tag, value) {
                (SET, [inherited, kind, codec]) => {
                    found.set = Some(Set { choice: choice_of(*kind, *codec), is_inherited: *inherited != 0 });
                }
                (RULED, [origin, default, kind, codec, word @ ..]) => {
                    found.ruled = RuleOutcome {
                        origin: match origin {
                            1 => Origin::Name,
                            2 => Origin::Content,
                            3 => Origin::Properties,
                            _ => Origin::Open,
                        },
                        choice: choice_of(*kind, *codec),
                        is_default: *default != 0,
                        word: String::from_utf8_lossy(word).into_owned(),
                    };
                }
                _ => found.unknown.extend(&bytes[..2 + value.len()]),
            }
            bytes = behind;
        }
        bytes.is_empty().then_some(found)
    }

    /// Settings of a new inode in a directory.
    pub(crate) fn inherited(&self) -> Self {
        let set = self.set.map(|set| Set { is_inherited: true, ..set });
        Self { set, ..Self::default() }
    }

    /// Whether the first bytes still have to be examined.
    pub(crate) fn is_open(&self) -> bool {
        self.set.is_none() && self.ruled.origin == Origin::Open
    }

    /// The hint for data written now.
    pub(crate) fn hint(&self, in_force: Option<&Resolved>) -> Hint {
        let kind = match self.ruled.word.as_bytes() {
            [] => 0,
            word => (xxh3_64(word) as u16).max(1),
        };
        let how = match (self.set, self.ruled.choice) {
            (Some(set), _) => advice(set.choice, false),
            (None, FileChoice::Usual) => advice(in_force.map_or(FileChoice::Usual, Resolved::usual), false),
            (None, choice) => advice(choice, self.ruled.is_default),
        };
        Hint { how, kind, ..Hint::default() }
    }

    /// The effective choice and its origin, as text.
    pub(crate) fn describe(&self, in_force: Option<&Resolved>) -> String {
        if let Some(set) = self.set {
            let from = if set.is_inherited { "inherited from its directory" } else { "set here" };
            return format!("{} ({from})", set.choice);
        }
        let RuleOutcome { origin, choice, is_default, word } = &self.ruled;
        let by = if *is_default { "default rule" } else { "rule" };
        // The inode does not say whether the rule was of a set: the one in force does.
        let of_set = in_force.filter(|_| !*is_default).and_then(|resolved| resolved.rules.set_with(word));
        let of_set = of_set.map_or_else(String::new, |set| format!(" of rule set {set}"));
        let usual = in_force.map_or(FileChoice::Usual, Resolved::usual);
        // A rule that was set may not cover this mode: then it would appear to be missing.
        let silent =
            in_force.filter(|resolved| (*is_default || *choice == FileChoice::Usual) && resolved.is_silent(word));
        let but = silent.map_or_else(String::new, |resolved| {
            format!("; rule.{word} has no entry for the mode in force, {}", resolved.settings.mode)
        });
        match (origin, choice) {
            (Origin::Name, choice) => format!("{choice} ({by} for {word}{of_set}, by its name{but})"),
            (Origin::Content, choice) => format!("{choice} ({by} for {word}{of_set}, by its first bytes{but})"),
            _ if usual == FileChoice::Auto => format!("auto (no rule matches, and the mode tests such files{but})"),
            _ => match in_force.map(|resolved| &resolved.settings.compression) {
                Some(policy::Compression::Fixed(codec)) => format!("{codec} (properties of the share{but})"),
                _ => format!("auto (properties of the share{but})"),
            },
        }
    }
}

const fn advice(choice: FileChoice, is_guess: bool) -> Advice {
    match choice {
        FileChoice::Usual => Advice::Usual,
        FileChoice::Auto => Advice::Auto,
        FileChoice::Codec(codec) if is_guess => Advice::Guess(codec.id().0),
        FileChoice::Codec(codec) => Advice::Codec(codec.id().0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ruled(origin: Origin, choice: FileChoice) -> RuleOutcome {
        RuleOutcome { origin, choice, is_default: true, word: "c".to_owned() }
    }

    #[test]
    fn what_is_said_comes_back_and_what_is_not_known_stays() {
        let zstd = FileChoice::Codec("zstd-9".parse().unwrap());
        for compression in [
            Compression::default(),
            Compression { set: Some(Set { choice: zstd, is_inherited: true }), ..Compression::default() },
            Compression { ruled: ruled(Origin::Content, FileChoice::Auto), ..Compression::default() },
            Compression {
                set: Some(Set { choice: FileChoice::Auto, is_inherited: false }),
                ruled: ruled(Origin::Name, zstd),
                unknown: vec![9, 2, 1, 2, 7, 0],
            },
        ] {
            let bytes = compression.encode();
            assert_eq!(Compression::decode(&bytes).as_ref(), Some(&compression));
            assert_eq!(bytes.is_empty(), compression.is_empty());
            assert!(bytes.is_empty() || Compression::decode(&bytes[..bytes.len() - 1]).is_none());
        }
        // A codec of a later version is ignored.
        let newer = Compression::decode(&[SET, 3, 0, 2, 250]).unwrap();
        assert_eq!(newer.set.map(|set| set.choice), Some(FileChoice::Usual));
    }

    #[test]
    fn a_value_is_taken_as_the_property_takes_it() {
        for (text, told) in [("gzip", "gzip-6"), ("zstd", "zstd-3"), ("on", "auto"), ("off", "off"), ("lz4", "lz4")] {
            assert_eq!(parse(text.as_bytes()).map(|choice| choice.to_string()).as_deref(), Some(told), "{text}");
        }
        assert_eq!(parse(b"magic"), None);
    }

    #[test]
    fn a_rule_that_says_nothing_of_the_mode_is_told() {
        let share = [("rule.log", "archive:zstd-9,energy:lz4")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        let resolved = policy::resolve(&Default::default(), &share.into()).unwrap();
        let told = |name: &[u8], resolved: &Resolved| {
            Compression { ruled: resolved.of_name(name), ..Compression::default() }.describe(Some(resolved))
        };
        let silent = told(b"a.log", &resolved);
        assert!(silent.ends_with("; rule.log has no entry for the mode in force, balanced)"), "{silent}");
        let archive = told(b"a.log", &resolved.in_mode(policy::Mode::Archive));
        assert_eq!(archive, "zstd-9 (rule for log, by its name)");
        assert!(!told(b"a.c", &resolved).contains("rule.log"));
    }

    #[test]
    fn a_rule_of_a_set_is_told_with_its_set() {
        let share = [("rule-set", "database"), ("rule.redo", "off")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        let resolved = policy::resolve(&Default::default(), &share.into()).unwrap();
        let told = |name: &[u8]| {
            Compression { ruled: resolved.of_name(name), ..Compression::default() }.describe(Some(&resolved))
        };
        assert_eq!(told(b"xlogtemp.12"), "lz4 (rule for wal of rule set database, by its name)");
        assert_eq!(told(b"ib_logfile0"), "off (rule for redo, by its name)");
        assert_eq!(told(b"a.c"), "zstd-3 (default rule for c, by its name)");
    }

    #[test]
    fn what_is_set_counts_before_rules() {
        let zstd: Codec = "zstd-9".parse().unwrap();
        let both = Compression {
            set: Some(Set { choice: FileChoice::Codec(Codec::Lz4), is_inherited: false }),
            ruled: ruled(Origin::Name, FileChoice::Codec(zstd)),
            unknown: Vec::new(),
        };
        assert_eq!(both.hint(None).how, Advice::Codec(CodecId::LZ4.0));
        assert_eq!(both.describe(None), "lz4 (set here)");
        let rule = Compression { set: None, ..both };
        assert_eq!(rule.hint(None).how, Advice::Guess(zstd.id().0));
        assert_eq!(rule.describe(None), "zstd-9 (default rule for c, by its name)");
        assert_ne!(rule.hint(None).kind, 0);
        assert_eq!(Compression::default().hint(None), Hint::default());
    }
}
