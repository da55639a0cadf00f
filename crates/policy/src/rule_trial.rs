//! Checks whether a file's content agrees with the rule for its type. A name, or four bytes of
//! signature, only suggest the content; a default rule based on them is applied only if units from
//! all over the file agree.

/// Most units tried: they are read in advance, and each costs about a tenth of a millisecond.
pub const RULE_UNITS_MAX: u64 = 64;
/// Bytes of a file per unit tried, up to [`RULE_UNITS_MAX`] units: a region.
pub const RULE_REGION_BYTES: u64 = 4 << 20;
/// Fewest units tried, if the file has that many.
pub const RULE_UNITS_MIN: u64 = 8;
/// Share of the data that a rule may at most lose, and that its codec must save to be worth its
/// time.
const SHARE: f64 = 0.02;

/// Offsets of the whole units of a file to try: one in the middle of each of as many equal parts.
pub fn rule_units(file_bytes: u64, unit_bytes: u64) -> impl Iterator<Item = u64> {
    let units = file_bytes / unit_bytes.max(1);
    let count = file_bytes.div_ceil(RULE_REGION_BYTES).clamp(RULE_UNITS_MIN, RULE_UNITS_MAX).min(units);
    (0..count).map(move |index| (2 * index + 1) * units / (2 * count) * unit_bytes)
}

/// Result of trying units of a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RuleTrial {
    /// Bytes that were tried.
    pub raw: u64,
    /// Bytes after compression with the rule's codec.
    pub by_rule: u64,
    /// Bytes after compression with a fast codec that has an entropy coder.
    pub by_quick: u64,
}

impl RuleTrial {
    /// Adds a unit: its stored size with either codec; `None`: raw.
    pub fn enter(&mut self, raw: usize, by_rule: Option<usize>, by_quick: Option<usize>) {
        self.raw += raw as u64;
        self.by_rule += by_rule.unwrap_or(raw) as u64;
        self.by_quick += by_quick.unwrap_or(raw) as u64;
    }

    /// Whether the rule holds: it loses no savings that a fast codec finds, and, if it compresses
    /// at all (`is_strong`), there are savings to find.
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
            // A signature followed by text.
            (1000, 400, false, false),
            (350, 400, true, true),
            // Text only at its beginning.
            (990, 995, true, false),
        ] {
            assert_eq!(trial(by_rule, by_quick).agrees(is_strong), agrees, "{by_rule} {by_quick} {is_strong}");
        }
        assert!(RuleTrial::default().agrees(false) && RuleTrial::default().agrees(true));
    }
}
