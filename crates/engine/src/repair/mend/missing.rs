//! Finds map records that are gone from the store without a trace: their data would read as
//! zeroes, and their extents would be freed.
//!
//! The checkpoint counts the bytes that they referred to, account by account
//! ([`repair::mend::balance`](crate::repair::mend::balance)).
//!
//! 1. *Whether*: live bytes are counted from all records; damaged records are counted as rebuilt
//!    from the log. An account with fewer bytes than the checkpoint counts is *short*: a record is
//!    gone, or the log has lost data of a damaged one.
//! 2. *Hidden shortages*: a rebuilt record may regain older data of a block that was overwritten or
//!    discarded, if the overwriting batch is gone. A batch that is entirely dead goes legitimately,
//!    but it may also be damaged. So extents in which older data shows must have no gaps. In an
//!    account with a surplus, all data of damaged records may stand in for missing data. In an
//!    account that is short, the log must be whole: otherwise a legitimately removed record may
//!    happen to have the size of the lost one.
//! 3. *Which*: a candidate is a record that the store does not have, and that had a fragment in an
//!    account that is short or may hide a shortage. Most candidates were removed legitimately, when
//!    they were no longer needed.
//! 4. Candidates are rebuilt from the log like damaged records. Candidates that do not fit into an
//!    account are dropped. The rest must equal the shortage to the byte. Then the set is complete:
//!    every missing record is among the candidates, and each of them contributes bytes. Otherwise
//!    nothing is repaired, because data that reappears or is forgotten would be worse than a
//!    refusal, and `salvage` reads the same log.
//!
//! A record that consists of holes only is not noticed, and not needed.

use std::collections::{BTreeMap, BTreeSet};

use format::{Record, RecordKey, record_key};
use salvage::{Rank, Scan};
use store::base::store_error::store_error;
use surface::{Error, Result};
use units::ExtentIndex;

use crate::repair::mend::balance::{Accounts, beyond};
use crate::repair::mend::records::only;
use crate::repair::mend::{Mender, hopeless};

/// Upper bound of records that only the log has and that are considered: a few hundred bytes of
/// memory each.
const CANDIDATES_MAX: usize = 1 << 20;

fn ambiguous(what: &str, bytes: u64) -> Error {
    hopeless(format!(
        "{what}, and the log does not show with certainty what they contained ({bytes} bytes of data are missing)"
    ))
}

impl Mender<'_> {
    /// Runs all steps and returns the missing records. `damaged` has the damaged records as rebuilt
    /// from the log, `doubtful` the extents in which they may show older data.
    ///
    /// # Errors
    /// [`surface::ErrorKind::Corrupt`] unless these, all that fit, are the missing ones.
    pub(crate) fn missing_records(
        &self,
        damaged: &BTreeMap<RecordKey, Record>,
        doubtful: &BTreeSet<ExtentIndex>,
    ) -> Result<BTreeMap<RecordKey, String>> {
        let (due, counted) = (self.due(), self.counted(damaged)?);
        let short = beyond(&due, &counted);
        let over = if damaged.is_empty() { Accounts::new() } else { beyond(&counted, &due) };
        // Step 2.
        let missing_bytes = short.values().sum();
        if self.may_hide(doubtful, &short, &over) {
            return Err(ambiguous(
                "map records are damaged, and so are the counts or the log entries to rebuild them",
                missing_bytes,
            ));
        }
        if short.is_empty() && over.is_empty() {
            return Ok(BTreeMap::new());
        }
        let mut room = short.clone();
        if !over.is_empty() {
            let without = beyond(&due, &self.counted(&BTreeMap::new())?);
            room.extend(without.into_iter().filter(|(account, _)| over.contains_key(account)));
        }
        // Step 3.
        let mut candidates: BTreeMap<RecordKey, String> = BTreeMap::new();
        let is_there = |key: &RecordKey| Ok(self.env.store.get(&record_key(key)).map_err(store_error)?.is_some());
        // Facts of a record are usually adjacent.
        let mut last = None;
        let has_records =
            |key: &RecordKey| self.found.descriptors.get(&key.object).is_some_and(|d| d.state.has_records());
        Scan::default().read_all(
            &*self.env.disk,
            self.geometry,
            self.pool,
            &mut |fact| {
                let is_data = matches!(fact.rank, Rank::Intact | Rank::Damaged);
                let is_old = fact.seq < self.checkpoint.next_seq;
                if is_data
                    && is_old
                    && room.contains_key(&self.account(fact.fragment.location))
                    && has_records(&fact.key)
                    && !self.is_undone(&fact.key)
                    && last.replace(fact.key) != Some(fact.key)
                    && !candidates.contains_key(&fact.key)
                    && !is_there(&fact.key)?
                {
                    if candidates.len() == CANDIDATES_MAX {
                        return Err(ambiguous(
                            "map records are missing, and there are too many candidates",
                            missing_bytes,
                        ));
                    }
                    candidates.insert(fact.key, "the record is missing".to_owned());
                }
                Ok(())
            },
            &mut |_, _| Ok(()),
        )?;
        // Step 4.
        let log_records = self.rebuild_groups(&candidates)?;
        let records = only(&candidates, &log_records);
        let fits = |key: &RecordKey| {
            let record = &records[key];
            !record.fragments.is_empty() && beyond(&self.accounts_of(record), &room).is_empty()
        };
        candidates.retain(|key, _| fits(key));
        let mut missing = Accounts::new();
        for (account, bytes) in candidates.keys().flat_map(|key| self.accounts_of(&records[key])) {
            *missing.entry(account).or_default() += bytes;
        }
        if missing != short
            || self.may_hide(&self.doubtful(&candidates, &log_records), &Accounts::new(), &Accounts::new())
        {
            return Err(ambiguous("map records are missing", missing_bytes));
        }
        Ok(candidates)
    }

    /// Returns whether the log may have lost one of these: the `short` data, data in whose place
    /// `doubtful` older data shows, or data hidden in accounts with a surplus.
    fn may_hide(&self, doubtful: &BTreeSet<ExtentIndex>, short: &Accounts, over: &Accounts) -> bool {
        if self.found.damaged_pages.is_empty() {
            let mut suspect = short.keys().chain(over.keys());
            return !(doubtful.iter().all(|extent| self.is_whole(*extent, false))
                && suspect.all(|e| self.is_whole(*e, true)));
        }
        let mut all = (1..self.geometry.extents()).map(ExtentIndex);
        let is_suspect = !doubtful.is_empty() || !short.is_empty();
        !over.is_empty() || is_suspect && !all.all(|extent| self.is_whole(extent, true))
    }
}
