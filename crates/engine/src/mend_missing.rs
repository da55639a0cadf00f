//! Map records that are gone from the store without a trace: what they told of would read as zeroes, and its extents be freed.
//!
//! The checkpoint counts what they referred to, account by account and to the byte ([`mend_balance`](crate::mend_balance)). So:
//! 1. *Whether*: live bytes are counted from all records, with the damaged ones as the log tells them. Accounts of which the checkpoint knows more are
//!    *short*: a record is gone, or the log has lost data of a damaged one.
//! 2. *What may hide*: of a block that was overwritten or discarded, a damaged record may get the older data back, if the batch that told of it is
//!    gone. Rightly it is gone when it was all dead; but it may be damaged. So extents in which older data shows must be without gaps. In accounts
//!    that come out with too much, all that damaged records have there may stand for something else that is missing, too. And in those that are
//!    short the log must be whole: otherwise a record that was removed rightly may be of just the size of what it has lost.
//! 3. *Which*: candidates are the records that the store does not have and that a fragment in an account which is short, or may hide something,
//!    belonged to. Most of them were removed rightly, when nobody needed them any more.
//! 4. They are told from the log like damaged ones; those for which there is not room in each account are none. What is left must be what is
//!    short, to the byte: then it is all that is missing, because what is missing is among it, and every one of it counts for something. Otherwise
//!    nothing is mended: old data that reappears, or data that is forgotten, would be worse than a refusal, and `salvage` has the same log.
//!
//! A record of which only holes count is not missed.

use std::collections::{BTreeMap, BTreeSet};

use format::{Record, RecordKey, record_key};
use surface::{Error, Result};
use units::ExtentIndex;

use crate::map::store_error;
use crate::mend::{Mender, hopeless};
use crate::mend_balance::{Accounts, beyond};
use crate::mend_records::only;
use crate::salvage::{Rank, Scan};

/// Records that the log knows and the map store has not, beyond which none is looked for: a few hundred bytes of memory each.
const CANDIDATES_MAX: usize = 1 << 20;

fn untold(what: &str, bytes: u64) -> Error {
    hopeless(format!(
        "{what}, and the log does not tell for certain what was in them ({bytes} bytes of data are missed)"
    ))
}

impl Mender<'_> {
    /// All steps; `damaged` is what the log tells of damaged records, `doubtful` where it may be older than it was. Which are missing.
    ///
    /// # Errors
    /// [`surface::ErrorKind::Corrupt`] unless these, all that fit, are what is missing.
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
            return Err(untold("map records are damaged, and what counts or tells of them is, too", missing_bytes));
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
        // Facts of a record come in a row as a rule.
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
                        return Err(untold("map records are missing, too many may be those", missing_bytes));
                    }
                    candidates.insert(fact.key, "the record is missing".to_owned());
                }
                Ok(())
            },
            &mut |_, _| Ok(()),
        )?;
        // Step 4.
        let told = self.told_of(&candidates)?;
        let records = only(&candidates, &told);
        let fits = |key: &RecordKey| {
            let record = &records[key];
            !record.fragments.is_empty() && beyond(&self.accounts_of(record), &room).is_empty()
        };
        candidates.retain(|key, _| fits(key));
        let mut missing = Accounts::new();
        for (account, bytes) in candidates.keys().flat_map(|key| self.accounts_of(&records[key])) {
            *missing.entry(account).or_default() += bytes;
        }
        if missing != short || self.may_hide(&self.doubtful(&candidates, &told), &Accounts::new(), &Accounts::new()) {
            return Err(untold("map records are missing", missing_bytes));
        }
        Ok(candidates)
    }

    /// Whether the log may have lost what is `short`, what `doubtful` older data shows in place of, or what lies hidden in accounts that come out with
    /// too much.
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
