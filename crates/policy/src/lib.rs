//! Policy: pure functions from facts to decisions. No I/O, no clock, no state: memory is passed in
//! and returned. Owns the properties that users set and their meaning; the codecs do the
//! compressing.
//!
//! How `compression=auto` decides, bottom up: [`probe`] assigns a unit to a class of data;
//! [`Table`] has the measured costs of each codec on it; [`ln_cost`] weighs time against saving
//! according to the [`Mode`]; [`Facts::plan`] returns the codec that pays for a class; [`Region`]
//! remembers the result of a region's last test; [`decide`] combines them for one unit.

mod budget;
mod by_file;
mod candidates;
mod clean_marks;
mod cold;
mod cost;
mod decide;
mod dictionary;
mod energy;
mod learned;
mod log_names;
mod magic;
mod mode;
mod plan;
mod prior;
mod probe;
mod properties;
mod property_values;
mod region;
mod remote;
mod rule_sets;
mod rule_trial;
mod rules;
mod schedule;
mod snapdir;
mod store_unit;
mod training;
mod units_plan;
mod values;
mod when_full;
mod zero;

pub use budget::{TEST_CREDIT_NS, test_credit_earned};
pub use by_file::{FileChoice, InForce, Origin, RuleOutcome, codec_fits};
pub use candidates::{CANDIDATES_MAX, Candidates, ParseCandidatesError};
pub use clean_marks::CleanMarks;
pub use cold::{ColdMode, ParseColdModeError};
pub use cost::{SAVING_MIN, Weights, ln_cost};
pub use decide::{Action, Decision, Why, decide, wants_probe};
pub use dictionary::{
    Adoption, DICTIONARIES_IN_FORCE_MAX, DICTIONARY_UNIT_BYTES_MAX, Part, Trial, judging_level, wants_dictionary,
};
pub use energy::{EnergySource, Power};
pub use learned::{CELLS, CODEC_NUMBERS, Estimate, Key, Learned, PlainTable, SIZES, SizeClass, Table};
pub use magic::{HEAD_BYTES, type_of_content, type_of_name};
pub use mode::{ARCHIVE_CPU_MULTIPLE, Mode, ParseModeError};
pub use plan::{Auto, ClassPlan, Contenders, DECODE_NS_PER_KIB_MAX, Entrant, Facts, Pressure};
pub use prior::strength;
pub use probe::{CLASSES, Class, Probe, probe};
pub use properties::{
    ACL, Compression, INCOMPLETE, KEYS, Key as PropertyKey, Owner, PropertyError, READONLY, Resolved, ResolvedProperty,
    Settings, Source, XATTR, check_pool, check_property_of, is_cloned, is_incomplete, is_property, may_have, resolve,
};
pub use region::{REGION_BITS, Region, STRAYS_MAX, UNITS_PER_TEST};
pub use remote::{Remote, Share};
pub use rule_sets::{RULE_SET, RuleSet};
pub use rule_trial::{RULE_REGION_BYTES, RULE_UNITS_MAX, RULE_UNITS_MIN, RuleTrial, rule_units};
pub use rules::{
    ParseRuleError, RULE_PREFIX, Rule, RuleChoice, RuleError, RuleMatch, Rules, check_rule, default_rules,
};
pub use schedule::{Due, Period, Schedule, civil, is_scheduled_name, scheduled_name};
pub use snapdir::SnapDir;
pub use store_unit::{Attempt, Attempts, Planner, Stored};
pub use training::{DICTIONARY_BYTES_TRAINED_MAX, SamplePart, divide_samples, train_dictionaries};
pub use units_plan::{Unit, dst_limit, dst_limit_permille, plan_units, unit_blocks};
pub use values::{spelled_out, values};
pub use when_full::WhenFull;
pub use zero::is_zero;
