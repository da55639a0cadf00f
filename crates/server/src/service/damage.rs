//! Damage in words, with the files of shares that it is in.

use std::collections::BTreeSet;

use engine::DamageReport;

use super::Service;
use crate::share_check::{self, Search};

/// Damages that a status names the files of, and names of each share that it looks through for
/// them: some tenths of a second at most.
const DAMAGES_NAMED: usize = 32;
const NAMES_SEARCHED: usize = 20_000;

/// A damage in words, with its place.
pub(super) fn damage_words(damage: engine::Problem) -> String {
    match (damage.volume, damage.offset) {
        (Some(volume), Some(offset)) => format!("{volume}, byte {offset}: {}", damage.detail),
        _ => damage.detail,
    }
}

impl Service {
    /// What has been found to be damaged since this was asked last, for the server's log.
    pub fn new_damage(&self) -> Vec<String> {
        if !self.pool.suspects_damage() {
            return Vec::new();
        }
        let mut damages = self.pool.damage_report().damages;
        share_check::name_files(&self.pool, &mut damages, Search::Whole, &|name| self.opened(name));
        let known: BTreeSet<_> = damages.into_iter().map(damage_words).collect();
        let mut told = self.damage_told.lock();
        let new = known.difference(&told).map(|text| format!("DAMAGED: {text}")).collect();
        *told = known;
        new
    }

    /// Known damage. The first of it names files, as far as that takes no long time.
    pub(super) fn known_damage(&self) -> DamageReport {
        let mut report = self.pool.damage_report();
        let first = report.damages.chunks_mut(DAMAGES_NAMED).next().unwrap_or_default();
        share_check::name_files(&self.pool, first, Search::Names(NAMES_SEARCHED), &|name| self.opened(name));
        report
    }
}
