//! Whether what a file holds bears out the rule of its type. A name, or four bytes of signature,
//! say what a file should be; a default rule that goes by them is believed only if units from all
//! over the file agree.

/// Units that are tried at most: they are read in advance, and each costs about a tenth of a
/// millisecond.
pub const RULE_UNITS_MAX: u64 = 64;
/// Bytes of a file for each of which one unit is tried, as far as [`RULE_UNITS_MAX`] goes: a
/// region.
pub const RULE_REGION_BYTES: u64 = 4 << 20;
/// Units that are tried at least, if the file has as many.
pub const RULE_UNITS_MIN: u64 = 8;
/// Share of the data that must not be lost by believing a rule, and that a rule's codec must save
/// to be worth its time.
const SHARE: f64 = 0.02;

/// Where the units begin that are to be tried of a file, and are whole: one in the middle of each
/// of as many stretches.
pub fn rule_units(file_bytes: u64, unit_bytes: u64) -> impl Iterator<Item = u64> {
    let units = file_bytes / unit_bytes.max(1);
    let count = file_bytes.div_ceil(RULE_REGION_BYTES).clamp(RULE_UNITS_MIN, RULE_UNITS_MAX).min(units);
    (0..count).map(move |index| (2 * index + 1) * units / (2 * count) * unit_bytes)
}

/// What came of trying units of a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RuleTrial {
    /// Bytes that were tried.
    pub raw: u64,
    /// Bytes that the rule's codec makes of them.
    pub by_rule: u64,
    /// Bytes that a quick codec with an entropy coder makes of them.
    pub by_quick: u64,
}

impl RuleTrial {
    /// Enters a unit: its stored size by either; `None`: raw.
    pub fn enter(&mut self, raw: usize, by_rule: Option<usize>, by_quick: Option<usize>) {
        self.raw += raw as u64;
        self.by_rule += by_rule.unwrap_or(raw) as u64;
        self.by_quick += by_quick.unwrap_or(raw) as u64;
    }

    /// Whether the rule holds: it gives nothing away that a quick codec finds, and, if it
    /// compresses at all (`is_strong`), there is something to find.
    pub fn agrees(&self, is_strong: bool) -> bool {
        let share = |bytes: u64| if self.raw == 0 { 0.0 } else { (self.raw as f64 - bytes as f64) / self.raw as f64 };
        let (by_rule, by_quick) = (share(self.by_rule), share(self.by_quick));
        self.raw == 0 || (by_quick - by_rule <= SHARE && (!is_strong || by_rule >= SHARE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_come_from_all_over_a_file_and_are_bounded() {
        let of = |file, unit| rule_units(file, unit).collect::<Vec<_>>();
        assert!(of(0, 32768).is_empty() && of(32767, 32768).is_empty());
        assert_eq!(of(32768, 32768), [0]);
        assert_eq!(of(3 * 32768 + 5, 32768), [0, 32768, 65536]);
        let many = of(64 << 20, 32768);
        assert_eq!((many.len(), many[0]), (16, 2 << 20));
        let most = of(1 << 40, 131_072);
        assert_eq!(most.len() as u64, RULE_UNITS_MAX);
        assert!(most.windows(2).all(|pair| pair[0] < pair[1]) && most.iter().all(|at| at % 131_072 == 0));
    }

    #[test]
    fn a_rule_holds_if_it_gives_nothing_away() {
        let trial = |by_rule: usize, by_quick: usize| {
            let mut trial = RuleTrial::default();
            trial.enter(1000, Some(by_rule), Some(by_quick));
            trial
        };
        for (by_rule, by_quick, is_strong, agrees) in [
            (1000, 1000, false, true),
            (1000, 985, false, true),
            // A signature in front of text.
            (1000, 400, false, false),
            (350, 400, true, true),
            // Text at its beginning only.
            (990, 995, true, false),
        ] {
            assert_eq!(trial(by_rule, by_quick).agrees(is_strong), agrees, "{by_rule} {by_quick} {is_strong}");
        }
        assert!(RuleTrial::default().agrees(false) && RuleTrial::default().agrees(true));
    }
}
