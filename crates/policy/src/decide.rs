//! The decision for one unit, from its probe, its region's memory and the plan for its class; and
//! the update of the region's memory. Pure: the same facts give the same decision.
//!
//! 1. A unit that looks random is stored raw, unless its region's last test disagrees. The probe
//!    cannot see repetitions, so the unit is *checked* first with the fastest candidate, which
//!    gives up early on random data; in a run of such units only one in sixteen is. `performance`
//!    checks none, and in a long run probes only one unit in four, and later one in sixteen.
//! 2. At the first unit of a region (separately for those that look random and the others), after
//!    127 units, and when the last units deviated from the expectation, the unit is *tested*:
//!    compressed with every candidate that might win, and the winner recorded for the region. Tests
//!    have a budget; when it is used up, the unit is treated like any other, so that small regions
//!    lose a test, not their compression.
//! 3. Other units are compressed with the region's winner if they are of the class that was tested,
//!    else by the plan for their class. The plan also applies to units of the tested class while
//!    two or more in a row deviated from the test, which may have seen an unusual unit; not in
//!    `archive`, where a winner that is too strong does no harm. Where the test found that nothing
//!    pays for dense data, one unit in four is tried anyway, and the codec becomes the region's
//!    winner as soon as it saves enough.
//! 4. If the result saves too little, it is retried once with the fallback where that usually
//!    helps, else stored raw.

use std::fmt;

use codec::{Codec, CodecId};

use crate::plan::{ClassPlan, Contenders};
use crate::{Class, Mode, Region};

/// Reason for the way a unit was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Why {
    /// The property names the codec.
    Fixed,
    /// It looks random.
    Random,
    /// It looks random, or its predecessors did not compress, but it was tried anyway.
    Check,
    /// Its predecessors looked random, and it was not probed.
    RandomRun,
    /// Nothing pays for its class of data.
    NothingPays,
    /// The codec won the region's last test.
    RegionWinner,
    /// The codec pays for its class of data.
    ClassWinner,
    /// The region's first unit: all candidates that might win were tried.
    TestFirst,
    /// The region's last test was long ago.
    TestDue,
    /// The region's last units deviated from its last test.
    TestDrift,
    /// A file-type rule names the codec.
    Rule,
}

impl Why {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 11] = [
        Self::Fixed,
        Self::Random,
        Self::Check,
        Self::RandomRun,
        Self::NothingPays,
        Self::RegionWinner,
        Self::ClassWinner,
        Self::TestFirst,
        Self::TestDue,
        Self::TestDrift,
        Self::Rule,
    ];

    /// A short name, for traces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Random => "random",
            Self::Check => "check",
            Self::RandomRun => "random-run",
            Self::NothingPays => "nothing-pays",
            Self::RegionWinner => "region-winner",
            Self::ClassWinner => "class-winner",
            Self::TestFirst => "test-first",
            Self::TestDue => "test-due",
            Self::TestDrift => "test-drift",
            Self::Rule => "rule",
        }
    }
}

// Counts are indexed by these numbers.
const _: () = {
    let mut number = 0;
    while number < Why::ALL.len() {
        assert!(Why::ALL[number] as usize == number);
        number += 1;
    }
};

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fixed => "set by the property compression",
            Self::Random => "looks random",
            Self::Check => "unlikely to pay, but tried anyway",
            Self::RandomRun => "follows a run of data that looks random",
            Self::NothingPays => "no codec pays for this class of data",
            Self::RegionWinner => "won the region's last test",
            Self::ClassWinner => "pays for this class of data",
            Self::TestFirst => "won the test of the region's first unit",
            Self::TestDue => "won the region's test",
            Self::TestDrift => "won the test after the region's data changed",
            Self::Rule => "set by a file-type rule",
        })
    }
}

/// Action to take for a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Store raw.
    Raw,
    /// Compress; if that saves too little, try the fallback; else store raw.
    Compress {
        /// With this codec.
        codec: Codec,
        /// The second attempt.
        fallback: Option<Codec>,
    },
    /// Compress with each of these and keep the winner.
    Test(Contenders),
}

/// A decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// Action to take.
    pub action: Action,
    /// Its reason.
    pub why: Why,
}

impl Decision {
    const fn new(action: Action, why: Why) -> Self {
        Self { action, why }
    }
}

/// Whether the unit must be probed; if not, [`Decision`] is raw for [`Why::RandomRun`].
pub fn wants_probe(mode: Mode, region: Region) -> bool {
    !matches!(mode, Mode::Performance) || region.wants_look()
}

/// Whether the region has no test for a class: a test of random-looking data does not apply to the
/// rest.
fn is_untested(region: Region, class: Class) -> bool {
    region.winner().is_none_or(|(tested, _)| tested.is_random() && !class.is_random())
}

/// Whether a unit of the region may be tested.
pub(crate) fn wants_test(region: Region, class: Class) -> bool {
    let is_first = if class.is_random() { region.wants_random_test() } else { is_untested(region, class) };
    is_first || region.is_due()
}

/// Decides. `codec_of` looks up a candidate considered by the mode; `may_test`: the budget for
/// tests is not used up.
pub fn decide(
    mode: Mode,
    plan: &ClassPlan,
    region: Region,
    class: Class,
    may_test: bool,
    codec_of: impl Fn(CodecId) -> Option<Codec>,
) -> Decision {
    let is_believed = mode == Mode::Archive || !region.strays_from_test();
    let remembered = match region.winner().filter(|(tested, _)| *tested == class && is_believed) {
        Some((_, CodecId::RAW)) => Some(None),
        // The test may have been made in another mode, or with other candidates: a winner that
        // would not be considered now is ignored.
        Some((_, id)) => codec_of(id).map(Some),
        None => None,
    };
    let is_new = is_untested(region, class);
    // A random unit does not cause a test because of drift; its own first test is separate.
    let due = if class.is_random() {
        mode != Mode::Performance
            && (region.wants_random_test() || region.units_since_test() >= crate::region::UNITS_PER_TEST)
    } else {
        is_new || region.is_due()
    };
    if due && may_test && plan.contenders.iter().next().is_some() {
        let why = match (is_new, region.has_drifted()) {
            (true, _) => Why::TestFirst,
            (_, true) => Why::TestDrift,
            _ => Why::TestDue,
        };
        return Decision::new(Action::Test(plan.contenders), why);
    }
    let fallback = plan.fallback.filter(|_| region.trusts_fallback());
    let compress = |codec, why| {
        let fallback = fallback.filter(|f| *f != codec);
        Decision::new(Action::Compress { codec, fallback }, why)
    };
    match (remembered, plan.winner) {
        // Times and loads of a test are outdated; `performance` uses current ones.
        (Some(Some(codec)), _) if mode != Mode::Performance => compress(codec, Why::RegionWinner),
        // One test is no reason to store a hundred usually compressible units raw; if they rarely
        // compress, one in four is tried.
        (Some(None), _) if class == Class::DENSE && mode != Mode::Performance => {
            match plan.winner.filter(|_| region.wants_dense_check()) {
                Some(codec) => Decision::new(Action::Compress { codec, fallback: None }, Why::Check),
                None => Decision::new(Action::Raw, Why::RegionWinner),
            }
        }
        (_, Some(codec)) => compress(codec, Why::ClassWinner),
        (_, None) if class.is_random() => match plan.check.filter(|_| region.wants_check()) {
            Some(codec) => Decision::new(Action::Compress { codec, fallback: None }, Why::Check),
            None => Decision::new(Action::Raw, Why::Random),
        },
        (_, None) => Decision::new(Action::Raw, Why::NothingPays),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_winner_of_a_test_is_left_while_units_go_otherwise() {
        let text = Class::new(3).unwrap();
        let usual: Codec = "zstd-1".parse().unwrap();
        let plan = ClassPlan { winner: Some(usual), fallback: None, contenders: Contenders::default(), check: None };
        let chosen = |mode, region| {
            let decision = decide(mode, &plan, region, text, false, |id| (id == CodecId::LZ4).then_some(Codec::Lz4));
            match decision.action {
                Action::Compress { codec, .. } => (codec, decision.why),
                other => panic!("{other:?}"),
            }
        };
        let believed = (Codec::Lz4, Why::RegionWinner);
        let left = (usual, Why::ClassWinner);
        let tested = Region::default().after_test(text, CodecId::LZ4, 32768, 2000);
        let stray = |region: Region| region.after_unit(text, 32768, 16000);
        for (what, region, balanced) in [
            ("just tested", tested, believed),
            ("one stray", stray(tested), believed),
            ("two strays", stray(stray(tested)), left),
            ("many", (0..9).fold(tested, |region, _| stray(region)), left),
            ("as expected again", stray(stray(tested)).after_unit(text, 32768, 2100), believed),
        ] {
            assert_eq!(chosen(Mode::Balanced, region), balanced, "{what}");
            assert_eq!(chosen(Mode::Energy, region), balanced, "{what}");
            assert_eq!(chosen(Mode::Archive, region), believed, "{what}");
        }
    }
}
