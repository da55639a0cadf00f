//! The cleaner's memory between rounds: extents that are not worth another try, extents that were
//! emptied since the last checkpoint, and the victims of rounds in progress. Under the lock of
//! [`Cleaning`](crate::clean::Cleaning).

use std::collections::{BTreeMap, BTreeSet};

use store::space::extents::Victim;
use store::space::rule::Rule;
use units::ExtentIndex;

use crate::clean::survivors::Survivors;

/// Extents shunned at the same time; beyond it, all are tried again.
const SHUNNED_MAX: usize = 1 << 20;

/// An extent that a round has left unchanged.
#[derive(Debug, Clone, Copy)]
struct Shunned {
    live: u32,
    /// Its live data could not be moved. Otherwise it was not worth it, which does not matter for
    /// an extent that must be emptied.
    is_stuck: bool,
}

/// State of the cleaner between rounds.
#[derive(Debug, Default)]
pub(crate) struct Cleaner {
    /// Extents that are not tried again while they have that many live bytes.
    shunned: BTreeMap<ExtentIndex, Shunned>,
    /// Sets of extents with the number of the last checkpoint that had captured when they were
    /// cleaned, oldest first.
    pub evacuated: Vec<(u64, BTreeSet<ExtentIndex>)>,
    /// Victims of rounds in progress.
    pub busy: BTreeSet<ExtentIndex>,
    /// Memory that is used again, round after round.
    pub spare: Vec<Survivors>,
    /// See `clean_pace`.
    pub pressed: bool,
    pub below: bool,
}

impl Cleaner {
    /// Forgets the extents evacuated before the checkpoint of that number.
    pub(super) fn forget_before(&mut self, number: u64) {
        self.evacuated.retain(|(at, _)| *at >= number);
    }

    pub(super) fn shun(&mut self, victim: Victim, is_stuck: bool) {
        if self.shunned.len() >= SHUNNED_MAX {
            self.shunned.clear();
        }
        self.shunned.insert(victim.extent, Shunned { live: victim.live, is_stuck });
    }

    pub(super) fn shuns(&self, extent: ExtentIndex, live: u32, rule: Rule) -> bool {
        let still_shunned = |shunned: &Shunned| {
            // Damage that has stopped another round does not stop this one.
            shunned.live == live && (shunned.is_stuck && !rule.despite_damage || !rule.away)
        };
        self.shunned.get(&extent).is_some_and(still_shunned)
    }
}
