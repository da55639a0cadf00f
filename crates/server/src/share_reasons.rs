//! Reasons for the codec of each part of a file in a share, derived from the codec and the settings
//! in force for the file.

use codec::CodecId;
use engine::Remembered;
use policy::{Compression, Settings};
use share::RECORD_CONTENT_BYTES_MAX;
use surface::Advice;

/// Codec in reports for content that is in the record of its inode.
pub const IN_RECORD: &str = "inode";

/// Settings in force for a file.
pub struct Counts<'a> {
    /// Advice that new writes to the file carry.
    pub advice: Advice,
    /// Advice of a new look-up; `None` if it would be the same.
    pub again: Option<Advice>,
    /// Settings of its share.
    pub settings: Settings,
    /// Statistics of files of its type.
    pub remembered: Option<&'a Remembered>,
}

impl Counts<'_> {
    /// Returns whether an advice names a codec.
    fn names(&self, advice: Advice, codec: &str) -> bool {
        match (advice, self.settings.compression) {
            (Advice::Codec(number) | Advice::Guess(number), _) => CodecId(number).to_string() == codec,
            (Advice::Usual, Compression::Fixed(fixed)) => fixed.id().to_string() == codec,
            (Advice::Usual, Compression::Auto) | (Advice::Auto, _) => false,
        }
    }

    /// Returns whether an advice cannot have led to a codec.
    fn rules_out(&self, advice: Advice, codec: &str) -> bool {
        // Data that saves too little is stored raw under any setting.
        if codec == IN_RECORD || codec == "raw" || self.names(advice, codec) {
            return false;
        }
        let is_candidate = || self.settings.candidates.as_slice().iter().any(|known| known.id().to_string() == codec);
        match (advice, self.settings.compression) {
            (Advice::Codec(_), _) | (Advice::Usual, Compression::Fixed(_)) => true,
            _ => codec != CodecId::ZSTD_DICTIONARY.to_string() && !is_candidate(),
        }
    }

    /// Returns whether a part of that codec was stored under an earlier rule, property or value.
    pub fn is_earlier(&self, codec: &str) -> bool {
        match self.again {
            None => self.rules_out(self.advice, codec),
            Some(again) => self.rules_out(again, codec) || self.names(self.advice, codec) && !self.names(again, codec),
        }
    }

    /// Returns the reason for a part's codec.
    pub fn why(&self, codec: &str) -> String {
        if codec == IN_RECORD {
            return format!("in its inode: a file of at most {RECORD_CONTENT_BYTES_MAX} bytes has no block of its own");
        }
        let by_unit = || match (codec, self.remembered) {
            ("zstd-dictionary", _) => "chosen per unit: zstd, with a trained dictionary",
            (codec, Some(known)) if known.winner == codec => {
                "chosen per unit: winner of the last test of files of this type"
            }
            ("raw", _) => "chosen per unit: no codec pays, or it looks random",
            _ => "chosen per unit: it pays for this class of data",
        };
        let (is_named, usual) = (self.names(self.advice, codec), self.settings.compression);
        let named = |by: &str| format!("{by} names it");
        match (self.advice, usual) {
            (Advice::Codec(_), _) if is_named => named("the setting for this file"),
            (Advice::Guess(_), _) if is_named => named("the rule for its type"),
            (Advice::Codec(_), _) | (Advice::Usual, Compression::Fixed(_)) if codec == "raw" => {
                "the codec set for it saves too little here, or it is off".to_owned()
            }
            (Advice::Usual, _) if is_named => named("the property compression"),
            (advice, _) if self.rules_out(advice, codec) => match self.again {
                Some(again) if self.names(again, codec) => {
                    named("the rule in force, and not the setting of this file,")
                }
                _ => "it was written under another setting for this file".to_owned(),
            },
            (Advice::Guess(_), _) if codec == "raw" => {
                "it looks random, or saves too little: as the rule for its type expects, or against it".to_owned()
            }
            (Advice::Guess(_), _) => format!("content does not match the file type; {}", by_unit()),
            _ => by_unit().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(codec: &str) -> u8 {
        codec.parse::<codec::Codec>().unwrap().id().0
    }

    fn counts(advice: Advice, again: Option<Advice>, compression: Compression) -> Counts<'static> {
        Counts { advice, again, settings: Settings { compression, ..Settings::default() }, remembered: None }
    }

    #[test]
    fn each_part_has_a_reason() {
        let zstd = number("zstd-9");
        let lz4 = Compression::Fixed(codec::Codec::Lz4);
        for (codec, advice, usual, part) in [
            ("zstd-9", Advice::Codec(zstd), lz4, "for this file"),
            ("lz4", Advice::Codec(zstd), lz4, "another setting"),
            ("raw", Advice::Codec(zstd), lz4, "too little"),
            ("zstd-9", Advice::Guess(zstd), lz4, "rule for its type"),
            ("zstd-1", Advice::Guess(zstd), lz4, "does not match the file type"),
            ("lz4", Advice::Usual, lz4, "property compression"),
            ("zstd-1", Advice::Usual, lz4, "another setting"),
            ("zstd-1", Advice::Usual, Compression::Auto, "per unit"),
            ("zstd-dictionary", Advice::Auto, lz4, "dictionary"),
            ("raw", Advice::Auto, lz4, "no codec pays"),
            (IN_RECORD, Advice::Codec(zstd), lz4, "in its inode"),
            // No candidate of auto, so it was not chosen per unit.
            ("gzip-6", Advice::Usual, Compression::Auto, "another setting"),
            ("gzip-6", Advice::Auto, lz4, "another setting"),
            ("gzip-6", Advice::Guess(zstd), lz4, "another setting"),
        ] {
            let said = counts(advice, None, usual).why(codec);
            assert!(said.contains(part), "{codec} {advice:?}: {said}");
        }
        // A snapshot shares recompressed data, and its files keep the rule of their creation.
        let said = counts(Advice::Codec(number("lz4")), Some(Advice::Codec(zstd)), lz4).why("zstd-9");
        assert!(said.contains("the rule in force"), "{said}");
    }

    #[test]
    fn parts_of_another_rule_than_the_one_in_force_are_told_by_table() {
        let (zstd, gzip) = (Advice::Codec(number("zstd-9")), Advice::Guess(number("gzip-6")));
        let (lz4, auto) = (Compression::Fixed(codec::Codec::Lz4), Compression::Auto);
        for (codec, advice, again, usual, expected) in [
            // The settings in force produce it.
            ("zstd-9", zstd, None, lz4, false),
            ("lz4", zstd, None, lz4, true),
            ("raw", zstd, None, lz4, false),
            (IN_RECORD, zstd, None, lz4, false),
            ("lz4", Advice::Usual, None, lz4, false),
            ("zstd-9", Advice::Usual, None, lz4, true),
            ("zstd-3", Advice::Usual, None, auto, false),
            ("bzip2-9", Advice::Usual, None, auto, true),
            ("zstd-dictionary", Advice::Auto, None, auto, false),
            ("zstd-3", gzip, None, auto, false),
            ("raw", gzip, None, auto, false),
            ("bzip2-9", gzip, None, auto, true),
            // It was looked up before the rule in force was set.
            ("gzip-6", gzip, Some(zstd), lz4, true),
            ("zstd-9", gzip, Some(zstd), lz4, false),
            ("lz4", Advice::Usual, Some(zstd), auto, true),
            ("raw", gzip, Some(zstd), lz4, false),
            ("raw", Advice::Codec(CodecId::RAW.0), Some(zstd), lz4, true),
            ("gzip-6", gzip, Some(Advice::Usual), auto, true),
            ("zstd-9", zstd, Some(Advice::Usual), auto, true),
            ("zstd-3", zstd, Some(Advice::Usual), auto, false),
        ] {
            let counts = counts(advice, again, usual);
            assert_eq!(counts.is_earlier(codec), expected, "{codec} {advice:?} {again:?} {usual:?}");
        }
    }
}
