//! Rule sets: rules for several types of file, which the property `rule-set` puts in force
//! together. Owns the sets; [`crate::rules`] decides which rule applies, and [`crate::log_names`]
//! recognizes logs of databases.
//!
//! `database` gives logs a codec of their own, and nothing to the files with tables: these follow
//! the other rules and the properties. A database waits for its log at each commit, and overwrites
//! or drops it soon, so its space is worth little CPU time. lz4 and not `off`: it encodes a page in
//! about 10 us, and spares the device half of the log or more.

use std::fmt;

use crate::properties::Key;

/// The property's name.
pub const RULE_SET: &str = "rule-set";

/// The property.
pub(crate) const KEY: Key = Key {
    name: RULE_SET,
    description: "rules for types of files that belong together; database: logs get a codec that is quick, tables follow the other properties",
    allowed: RuleSet::ALLOWED,
    default: "none",
    only_of: None,
};

/// A value of the property.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RuleSet {
    /// Only rules that were set, and the defaults.
    #[default]
    None,
    /// Logs of databases.
    Database,
}

/// The rules of `database`, by type.
const DATABASE: &[(&str, &str)] = &[("binlog", "lz4"), ("dblwr", "lz4"), ("redo", "lz4"), ("wal", "lz4")];

impl RuleSet {
    /// The allowed values, for help and messages.
    pub const ALLOWED: &str = "none, or database (lz4 for the types wal, redo, binlog and dblwr)";

    /// Parses a value.
    pub fn parse(value: &str) -> Option<Self> {
        match value {
            "none" => Some(Self::None),
            "database" => Some(Self::Database),
            _ => None,
        }
    }

    /// Its rules: type and value.
    pub const fn rules(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::None => &[],
            Self::Database => DATABASE,
        }
    }
}

impl fmt::Display for RuleSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Database => "database",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check_rule;
    use crate::magic::canonical;

    #[test]
    fn sets_have_rules_for_types_that_files_can_have() {
        assert!(RuleSet::None.rules().is_empty());
        for (word, rule) in RuleSet::Database.rules() {
            check_rule(&format!("rule.{word}"), rule).unwrap();
            assert_eq!(canonical(word).as_deref(), Some(*word));
            assert!(RuleSet::ALLOWED.contains(word) && RuleSet::ALLOWED.contains(rule), "{word}");
        }
        // A rule for another ending of a log would apply to no file.
        assert!(check_rule("rule.db-wal", "off").unwrap_err().to_string().contains("rule.wal"));
        for set in [RuleSet::None, RuleSet::Database] {
            assert_eq!(RuleSet::parse(&set.to_string()), Some(set));
        }
        assert_eq!(RuleSet::parse("databases"), None);
    }

    /// The user documentation lists the rules.
    #[test]
    fn the_documentation_lists_the_rules() {
        let page = include_str!("../../../docs/CODECS.md");
        for (word, rule) in DATABASE {
            assert!(page.contains(&format!("| `{word}` | `{rule}` |")), "docs/CODECS.md lacks a row for {word}");
        }
    }
}
