//! Descriptions of damage, with the affected files of shares.

use std::collections::BTreeSet;

use engine::DamageReport;

use super::Service;
use crate::share_check::{self, Search};

/// Maximum number of damages with file names in a status, and of names searched in each share: some
/// tenths of a second at most.
const DAMAGES_NAMED: usize = 32;
const NAMES_SEARCHED: usize = 20_000;

/// Describes a damage and its place.
pub(super) fn damage_words(damage: engine::Problem) -> String {
    match (damage.volume, damage.offset) {
        (Some(volume), Some(offset)) => format!("{volume}, byte {offset}: {}", damage.detail),
        _ => damage.detail,
    }
}

impl Service {
    /// Returns the damage found since the last call, for the server's log.
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

    /// Returns the known damage. With `names_files`, the first entries name files, as far as the
    /// search is quick.
    pub(super) fn known_damage(&self, names_files: bool) -> DamageReport {
        let mut report = self.pool.damage_report();
        if !names_files {
            return report;
        }
        let first = report.damages.chunks_mut(DAMAGES_NAMED).next().unwrap_or_default();
        share_check::name_files(&self.pool, first, Search::Names(NAMES_SEARCHED), &|name| self.opened(name));
        report
    }
}
