//! The memory of a region of an object (4 MiB: 128 units of the default size), packed into one
//! word, so that it can be kept in a table of bounded size without locks. It may be wrong (another
//! region's, or out of date); that only makes a decision worse.

use codec::CodecId;

use crate::Class;

/// Units of a region after which its winner is tested again.
pub const UNITS_PER_TEST: u32 = 127;
/// Units in a row that deviated from the last test, after which the region is tested again
/// immediately: it has drifted.
pub const STRAYS_MAX: u32 = 4;
/// Units in a row that deviated from the last test, after which its winner is ignored for now.
const STRAYS_FEW: u32 = 2;
/// How far a unit's saving may deviate from the region's average, in thousandths, before it is a
/// stray.
const STRAY_PERMILLE: u32 = 150;
/// Units in a row that looked random, after which the mode `performance` no longer probes each one.
const RANDOM_RUN: u32 = 32;
/// Probing rate in the mode `performance`: from (run length) on, one unit in (number) is probed;
/// the longer the run, the fewer. Sixteen units of the default size are half a megabyte, the most
/// that is stored raw before a change is noticed.
const LOOKS: [(u32, u32); 3] = [(RANDOM_RUN, 4), (RANDOM_RUN + 8, 8), (RANDOM_RUN + 16, 16)];
/// Initial run length of a region whose predecessor was random to its end.
const NEIGHBOUR_RUN_MAX: u32 = RANDOM_RUN + 8;
/// Where nothing paid for dense data, one dense unit in this many is tried anyway.
const CHECK_EVERY: u32 = 4;
/// The same for units that look random, once [`CHECKED_RUN`] of them did not compress: the fastest
/// candidate takes a third as long on each as storing it raw takes in total.
const RANDOM_CHECK_EVERY: u32 = 16;
/// Units in a row that looked random and did not compress, after which the other modes also trust
/// the probe for most of them.
const CHECKED_RUN: u32 = 8;
/// Failures in a row after which a region no longer tries its fallback.
const FALLBACK_FAILURES_MAX: u32 = 2;
/// Units after which dictionaries are compared again, indexed by how many comparisons in a row the
/// same one won.
const DICTIONARY_PERIODS: [u32; 3] = [4, 16, 64];

/// A region's memory.
///
/// Bits: 0 to 7 number of the winning codec, 8 to 10 class of data tested, 11 whether there was a
/// test, 12 to 21 average saving in thousandths, 22 to 28 units since the test, 29 to 31 strays, 32
/// to 37 random units in a row, 38 to 39 fallbacks that failed in a row, 40 to 42 dictionary, 43 to
/// 44 how often it was found to be the best.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Region(u64);

/// Bits of a region's memory in use; the region's owner may use the others.
pub const REGION_BITS: u32 = 45;

macro_rules! fields {
    ($($get:ident $set:ident $at:literal $bits:literal;)*) => {
        $(
            const fn $get(self) -> u32 {
                (self.0 >> $at) as u32 & ((1 << $bits) - 1)
            }
            const fn $set(self, value: u32) -> Self {
                const MOST: u32 = (1 << $bits) - 1;
                let value = if value > MOST { MOST } else { value };
                Self(self.0 & !((MOST as u64) << $at) | (value as u64) << $at)
            }
        )*
    };
}

impl Region {
    fields! {
        raw_winner set_winner 0 8;
        raw_class set_class 8 3;
        tested set_tested 11 1;
        permille set_permille 12 10;
        since set_since 22 7;
        strays set_strays 29 3;
        random_run set_random_run 32 6;
        failures set_failures 38 2;
        raw_dictionary set_raw_dictionary 40 3;
        trust set_trust 43 2;
    }

    /// Inverse of [`bits`](Self::bits); any bits are valid.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits & ((1 << REGION_BITS) - 1))
    }
    /// As [`REGION_BITS`] bits.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Class and winner of the last test (raw: nothing paid), if there was one.
    pub fn winner(self) -> Option<(Class, CodecId)> {
        let class = Class::new(self.raw_class() as u8)?;
        (self.tested() == 1).then_some((class, CodecId(self.raw_winner() as u8)))
    }
    /// Average saving since the last test, as a share.
    pub fn saving(self) -> f64 {
        f64::from(self.permille()) / 1000.0
    }
    /// Units since the last test, up to [`UNITS_PER_TEST`].
    pub const fn units_since_test(self) -> u32 {
        self.since()
    }
    /// Whether the last units deviated from the test.
    pub const fn has_drifted(self) -> bool {
        self.strays() >= STRAYS_MAX
    }
    /// Whether at least the last two units deviated from the test, which may have seen an unusual
    /// one.
    pub const fn strays_from_test(self) -> bool {
        self.strays() >= STRAYS_FEW
    }
    /// Whether it is time for a test.
    pub const fn is_due(self) -> bool {
        self.since() >= UNITS_PER_TEST || self.has_drifted()
    }
    /// Whether the next unit must be probed although a long run before it looked random.
    pub fn wants_look(self) -> bool {
        let run = self.random_run();
        let every = LOOKS.iter().rev().find(|(from, _)| run >= *from).map_or(1, |(_, every)| *every);
        self.since().is_multiple_of(every)
    }
    /// Whether a unit that looks random should be tried anyway.
    pub const fn wants_check(self) -> bool {
        self.random_run() < CHECKED_RUN || self.since().is_multiple_of(RANDOM_CHECK_EVERY)
    }
    /// Whether a dense unit should be tried although the region's last test found nothing that
    /// pays.
    pub const fn wants_dense_check(self) -> bool {
        self.since() % CHECK_EVERY == CHECK_EVERY - 1
    }
    /// Whether the region's first unit is tested if it looks random.
    pub const fn wants_random_test(self) -> bool {
        self.tested() == 0 && self.since() == 0
    }
    /// Initial memory of an unknown region next to this one, in the modes that probe every unit:
    /// data that looks random is not checked unit by unit again.
    #[must_use]
    pub const fn checked_neighbour(self) -> Self {
        let run = self.random_run();
        Self(0).set_random_run(if run < CHECKED_RUN { 0 } else { CHECKED_RUN })
    }
    /// Initial memory of an unknown region next to this one: a run of random units continues until
    /// disproved.
    #[must_use]
    pub const fn random_neighbour(self) -> Self {
        let run = self.random_run();
        Self(0).set_random_run(if run < NEIGHBOUR_RUN_MAX { run } else { NEIGHBOUR_RUN_MAX })
    }
    /// The region's dictionary; `None`: not compared yet.
    pub fn dictionary(self) -> Option<u8> {
        (self.trust() > 0).then_some(self.raw_dictionary() as u8)
    }
    /// Whether to compare dictionaries at the next unit: at a region's first, soon again until one
    /// is trusted, and once between two tests after that.
    pub const fn wants_dictionaries(self) -> bool {
        match self.trust() {
            0 => true,
            trust => {
                let period = DICTIONARY_PERIODS[trust as usize - 1];
                self.since() % period == period - 1
            }
        }
    }
    /// After dictionaries were compared on a unit. One comparison among several is weak evidence.
    #[must_use]
    pub const fn after_dictionaries(self, best: u8) -> Self {
        let trust = self.trust();
        if trust > 0 && self.raw_dictionary() == best as u32 {
            self.set_trust(trust + 1)
        } else if trust > 1 {
            self.set_trust(trust - 1)
        } else {
            self.set_raw_dictionary(best as u32).set_trust(1)
        }
    }
    /// As if that dictionary had won repeatedly; 0: none.
    #[must_use]
    pub const fn with_dictionary(self, best: u8) -> Self {
        self.set_raw_dictionary(best as u32).set_trust(DICTIONARY_PERIODS.len() as u32)
    }
    /// With the neighbouring region's dictionary, if this one has none yet: adjacent data is
    /// usually of one kind.
    #[must_use]
    pub const fn or_dictionary_of(self, before: Self) -> Self {
        if self.trust() > 0 || before.trust() == 0 {
            return self;
        }
        self.set_raw_dictionary(before.raw_dictionary()).set_trust(1)
    }
    /// Whether a fallback is worth trying.
    pub const fn trusts_fallback(self) -> bool {
        self.failures() < FALLBACK_FAILURES_MAX
    }

    /// After a test.
    #[must_use]
    pub const fn after_test(self, class: Class, winner: CodecId, raw_len: usize, stored: usize) -> Self {
        Self(0)
            .set_raw_dictionary(self.raw_dictionary())
            .set_trust(self.trust())
            .set_winner(winner.0 as u32)
            .set_class(class.index() as u32)
            .set_tested(1)
            .set_permille(permille(raw_len, stored))
            .set_random_run(if class.is_random() && winner.0 == CodecId::RAW.0 { self.random_run() } else { 0 })
    }

    /// After a unit without a test.
    #[must_use]
    pub fn after_unit(self, class: Class, raw_len: usize, stored: usize) -> Self {
        let saved = permille(raw_len, stored);
        let next = self.set_since(self.since() + 1).set_random_run(0);
        // Units of another class do not affect this one: regions may alternate between several.
        if self.winner().is_none_or(|(tested, _)| tested != class) {
            return next;
        }
        if self.permille().abs_diff(saved) <= STRAY_PERMILLE {
            return next.set_strays(0).set_permille((7 * self.permille() + saved + 3) / 8);
        }
        next.set_strays(self.strays() + 1)
    }

    /// After a unit on which the codecs expected to pay for its class saved too little. The last
    /// test may have been of another class: then it does not apply to this one, and the averages
    /// over all regions do not hold here.
    #[must_use]
    pub fn after_failure(self, class: Class, raw_len: usize) -> Self {
        let is_other = self.winner().is_some_and(|(tested, _)| tested != class);
        let next = self.after_unit(class, raw_len, raw_len);
        if is_other { next.set_strays(next.strays() + 1) } else { next }
    }

    /// After a unit that looked random, or was not probed, and was stored raw. No drift: it was not
    /// tried.
    #[must_use]
    pub const fn after_random(self) -> Self {
        // A saturated count would be probed always, or never.
        let wraps = self.since() >= UNITS_PER_TEST && self.random_run() >= RANDOM_RUN;
        self.set_since(if wraps { 0 } else { self.since() + 1 }).set_random_run(self.random_run() + 1)
    }

    /// After a fallback attempt, successful or not.
    #[must_use]
    pub const fn after_fallback(self, saved: bool) -> Self {
        self.set_failures(if saved { 0 } else { self.failures() + 1 })
    }
}

const fn permille(raw_len: usize, stored: usize) -> u32 {
    if raw_len == 0 {
        return 0;
    }
    (raw_len.saturating_sub(stored) * 1000 / raw_len) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: Class = match Class::new(3) {
        Some(class) => class,
        None => Class::RANDOM,
    };

    #[test]
    fn a_region_is_due_after_its_units_or_when_it_drifts() {
        let mut region = Region::default();
        assert!(region.winner().is_none() && !region.is_due());
        region = region.after_test(TEXT, CodecId::LZ4, 32768, 16384);
        assert_eq!(region.winner(), Some((TEXT, CodecId::LZ4)));
        for unit in 0..UNITS_PER_TEST {
            assert!(!region.is_due(), "unit {unit}");
            region = region.after_unit(TEXT, 32768, 16000);
        }
        assert!(region.is_due() && !region.has_drifted());
        assert!((region.saving() - 0.51).abs() < 0.01);

        region = region.after_test(TEXT, CodecId::LZ4, 32768, 16384);
        region = region.after_unit(TEXT, 32768, 30000);
        assert!(!region.strays_from_test());
        for _ in 0..2 {
            region = region.after_unit(TEXT, 32768, 30000);
            assert!(region.strays_from_test() && !region.is_due());
        }
        // A unit that meets the expectation ends the row.
        region = region.after_unit(TEXT, 32768, 16384);
        assert!(!region.strays_from_test());
        for _ in 0..3 {
            region = region.after_unit(TEXT, 32768, 30000);
        }
        assert!(!region.is_due());
        region = region.after_unit(Class::DENSE, 32768, 16384);
        assert!(!region.is_due(), "another class is no drift");
        region = region.after_unit(TEXT, 32768, 30000);
        assert!(region.has_drifted() && region.is_due());
    }

    #[test]
    fn a_region_is_due_when_what_usually_pays_for_another_class_fails_there() {
        let tested = Region::default().after_test(TEXT, CodecId::LZ4, 32768, 16384);
        let fail =
            |region: Region, times: u32| (0..times).fold(region, |region, _| region.after_failure(Class::DENSE, 32768));
        assert!(!fail(tested, STRAYS_MAX - 1).is_due());
        assert!(fail(tested, STRAYS_MAX).has_drifted());
        // Successes of the same class in between change nothing: the class does not fail
        // altogether.
        let region = fail(tested, STRAYS_MAX - 1).after_unit(Class::DENSE, 32768, 16384);
        assert!(fail(region, 1).has_drifted());
        // A failure in the tested class is recorded once, and ignored without a test.
        let same = (1..STRAYS_MAX).fold(tested, |region, _| region.after_failure(TEXT, 32768));
        assert!(!same.is_due() && same.after_failure(TEXT, 32768).has_drifted());
        assert!(!fail(Region::default(), 9).has_drifted());
    }

    #[test]
    fn a_long_run_of_random_units_is_looked_at_less() {
        let mut region = Region::default();
        for _ in 0..RANDOM_RUN {
            assert!(region.wants_look());
            region = region.after_random();
        }
        let mut looks = |units: u32| {
            let looked = (0..units).filter(|_| {
                let look = region.wants_look();
                region = region.after_random();
                look
            });
            looked.count()
        };
        assert_eq!([looks(8), looks(8), looks(64)], [2, 1, 4]);
        // Probing never stops, but never becomes complete again until other data appears.
        assert_eq!(looks(1600), 100);
        assert!(region.after_unit(TEXT, 4096, 1000).wants_look());
        let mut next = region.random_neighbour();
        assert!(next.winner().is_none() && next.wants_look(), "its first unit is looked at");
        next = next.after_random();
        assert!(!next.wants_look());
        assert!((0..20).all(|_| {
            next = next.after_unit(TEXT, 4096, 1000);
            next.random_neighbour().after_unit(TEXT, 4096, 1000).wants_look()
        }));
    }

    #[test]
    fn fallbacks_that_fail_are_given_up() {
        let region = Region::default().after_fallback(false);
        assert!(region.trusts_fallback());
        assert!(!region.after_fallback(false).trusts_fallback());
        assert!(region.after_fallback(true).after_fallback(false).trusts_fallback());
        assert!(region.after_fallback(false).after_test(TEXT, CodecId::RAW, 1, 1).trusts_fallback());
    }

    #[test]
    fn a_region_finds_its_dictionary_and_keeps_it_against_one_that_was_lucky() {
        let mut region = Region::default();
        assert!(region.dictionary().is_none() && region.wants_dictionaries());
        region = region.after_dictionaries(2);
        assert_eq!(region.dictionary(), Some(2));
        assert_eq!(region.after_dictionaries(0).dictionary(), Some(0), "the first says little");
        region = region.after_dictionaries(2).after_dictionaries(2).after_dictionaries(1);
        assert_eq!(region.dictionary(), Some(2));
        region = region.after_dictionaries(1).after_dictionaries(1);
        assert_eq!(region.dictionary(), Some(1));
        assert_eq!(region.after_test(TEXT, CodecId::LZ4, 4096, 100).dictionary(), Some(1));

        let mut looks = |trusted: u32| {
            region = Region::default().after_test(TEXT, CodecId::LZ4, 4096, 2048);
            (0..trusted).for_each(|_| region = region.after_dictionaries(3));
            let looked = (0..UNITS_PER_TEST).filter(|_| {
                let wants = region.wants_dictionaries();
                region = region.after_unit(TEXT, 4096, 2048);
                wants
            });
            looked.count()
        };
        assert_eq!([looks(1), looks(2), looks(3), looks(9)], [31, 7, 1, 1]);

        assert_eq!(Region::default().or_dictionary_of(region).dictionary(), Some(3));
        assert_eq!(region.or_dictionary_of(Region::default().after_dictionaries(1)).dictionary(), Some(3));
        assert!(Region::default().or_dictionary_of(Region::default()).dictionary().is_none());
    }

    proptest::proptest! {
        #[test]
        fn any_bits_are_a_region(bits: u64, raw in 0usize..200_000, stored in 0usize..300_000) {
            let region = Region::from_bits(bits);
            for after in [
                region.after_unit(TEXT, raw, stored),
                region.after_failure(Class::DENSE, raw),
                region.after_random(),
                region.after_test(TEXT, CodecId(255), raw, stored),
                region.after_fallback(false),
                region.after_dictionaries(7),
                region.or_dictionary_of(Region::from_bits(!bits)),
            ] {
                assert_eq!(Region::from_bits(after.bits()), after);
                assert!(after.saving() <= 1.001 + 0.03);
            }
        }
    }
}
