//! The individual values of a property, for completion and for suggestions after typos; and short
//! forms of values.

use codec::Codec;

use crate::properties::{KEYS, Key};
use crate::rules::{RULE_PREFIX, Rule};

/// Families of codecs with levels: the name, the lowest and highest level, and the level of the
/// bare name: the default of the family's own tool or library.
const FAMILIES: [(&str, u32, u32, u32); 5] =
    [("zstd", 1, 19, 3), ("gzip", 1, 9, 6), ("lz4hc", 1, 12, 9), ("bzip2", 1, 9, 9), ("zstd-fast", 1, 10, 1)];
/// Codecs without levels.
const PLAIN: [&str; 6] = ["auto", "off", "lz4", "zle", "lzjb", "lzo"];

/// Stands for the rules, whose names end with a type of file.
const RULE: Key = Key {
    name: "rule.TYPE",
    description: "codec for files of this type where auto chooses, for all modes or by mode",
    allowed: Rule::ALLOWED,
    default: "",
    only_of: None,
};

impl Key {
    /// The key of a property of this name; rules share one. None: there is no such property.
    pub fn named(name: &str) -> Option<&'static Self> {
        let rule = name.starts_with(RULE_PREFIX).then_some(&RULE);
        KEYS.iter().find(|key| key.name == name).or(rule)
    }
}

/// Values that a property takes, the usual ones first; for sizes and numbers only examples.
pub fn values(key: &str) -> Vec<String> {
    let fixed: &[&str] = match key {
        "compression" => {
            let plain = PLAIN.iter().map(|name| (*name).to_owned());
            let levels = |(name, low, high, _): (&str, u32, u32, u32)| {
                let name = name.to_owned();
                (low..=high).map(move |level| format!("{name}-{level}"))
            };
            return plain.chain(FAMILIES.into_iter().flat_map(levels)).collect();
        }
        "mode" => &["balanced", "performance", "energy", "archive"],
        "cold-mode" => &["auto", "off", "balanced", "performance", "energy", "archive"],
        "dictionary" => &["auto", "off"],
        "copies" => &["1", "2", "3"],
        "unit" => &["4K", "8K", "16K", "32K", "64K", "128K"],
        "snapshots" => &["off", "hourly", "daily", "weekly"],
        "rule-set" => &["none", "database"],
        "snapdir" => &["root", "hidden", "visible", "off"],
        "readonly" => &["off", "on"],
        "quota" | "reservation" => &["none"],
        "when-full" => &["error", "wait"],
        "hydrate" => &["off", "on", "50M/s"],
        "remote-timeout" => &["5m", "0"],
        "incomplete" => &["no", "yes"],
        "atime" => &["off", "relatime"],
        "xattr" | "acl" => &["on", "off"],
        "nfs" | "smb" => &["off", "on", "ro", "rw"],
        "http" => &["off", "ro", "rw,login"],
        "ftp" => &["off", "ro", "rw"],
        _ => &[],
    };
    if fixed.is_empty() {
        return KEYS.iter().filter(|known| known.name == key).map(|known| known.default.to_owned()).collect();
    }
    fixed.iter().map(|value| (*value).to_owned()).collect()
}

/// Expands a short value of `compression`: a codec without its level, or `on`.
pub fn spelled_out(key: &str, value: &str) -> Option<String> {
    if key != "compression" || value.parse::<Codec>().is_ok() {
        return None;
    }
    if value == "on" {
        return Some("auto".to_owned());
    }
    let family = FAMILIES.iter().find(|(name, ..)| *name == value);
    family.map(|(name, _, _, level)| format!("{name}-{level}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{Owner, check_property_of};

    #[test]
    fn every_value_is_taken() {
        for key in KEYS {
            let all = values(key.name);
            assert!(!all.is_empty(), "{}", key.name);
            let owner = key.only_of.unwrap_or(Owner::Volume);
            for value in all {
                check_property_of(owner, key.name, &value).unwrap_or_else(|error| panic!("{error}"));
            }
        }
    }

    #[test]
    fn a_codec_without_its_level_means_the_usual_one() {
        let meant: BTreeMap<_, _> =
            ["zstd", "gzip", "bzip2", "lz4hc", "zstd-fast", "on"].map(|v| (v, spelled_out("compression", v))).into();
        for (value, stands_for) in &meant {
            let stands_for = stands_for.as_ref().unwrap_or_else(|| panic!("{value}"));
            check_property_of(Owner::Pool, "compression", stands_for).unwrap();
        }
        assert_eq!(meant["zstd"].as_deref(), Some("zstd-3"));
        assert_eq!(meant["on"].as_deref(), Some("auto"));
        for value in ["zstd-9", "off", "lz4", "magic"] {
            assert_eq!(spelled_out("compression", value), None);
        }
        assert_eq!(spelled_out("mode", "on"), None);
    }
}
