//! Map records that are gone from the store without a trace: what they told of would read as zeroes, and its extents be freed.
//!
//! The checkpoint counts what they referred to, account by account and to the byte ([`mend_balance`](crate::mend_balance)). So:
//! 1. *Whether*: live bytes are counted from all records, with the damaged ones as the log tells them. Accounts of which the checkpoint knows more are
//!    *short*: a record is gone, or the log has lost data of a damaged one.
//! 2. *What may hide*: a damaged record may get back what had been discarded. In accounts that come out with too much, all that damaged records have
//!    there may stand for something else that is missing. Then no part of the log there may be damaged.
//! 3. *Which*: candidates are the records that the store does not have and that a fragment in an account which is short, or may hide something,
//!    belonged to. Most of them were removed rightly, when nobody needed them any more.
//! 4. They are told from the log like damaged ones; those for which there is not room in each account are none. What is left must be what is
//!    short, to the byte: then it is all that is missing, because what is missing is among it, and every one of it counts for something. Otherwise
//!    nothing is mended: old data that reappears, or data that is forgotten, would be worse than a refusal, and `salvage` has the same log.
//!
//! A record of which only holes count is not missed.

use std::collections::BTreeMap;

use format::{Record, RecordKey, record_key};
use surface::{Error, Result};

use crate::map::store_error;
use crate::mend::{Mender, hopeless};
use crate::mend_balance::{Accounts, beyond};
use crate::mend_records::only;
use crate::salvage::{Place, Rank, Scan};

fn untold(what: &str, bytes: u64) -> Error {
    hopeless(format!("{what}, and the log does not tell for certain which ({bytes} bytes of data)"))
}

impl Mender<'_> {
    /// All steps; `damaged` is what the log tells of damaged records. Which are missing.
    ///
    /// # Errors
    /// [`surface::ErrorKind::Corrupt`] unless these, all that fit, are what is missing.
    pub(crate) fn missing_records(&self, damaged: &BTreeMap<RecordKey, Record>) -> Result<BTreeMap<RecordKey, String>> {
        let (due, counted) = (self.due(), self.counted(damaged)?);
        let short = beyond(&due, &counted);
        let over = if damaged.is_empty() { Accounts::new() } else { beyond(&counted, &due) };
        if short.is_empty() && over.is_empty() {
            return Ok(BTreeMap::new());
        }
        // Step 2.
        let mut room = short.clone();
        if !over.is_empty() {
            let without = beyond(&due, &self.counted(&BTreeMap::new())?);
            room.extend(without.into_iter().filter(|(account, _)| over.contains_key(account)));
        }
        // Step 3.
        let mut candidates: BTreeMap<RecordKey, String> = BTreeMap::new();
        let has_records =
            |key: &RecordKey| self.found.descriptors.get(&key.object).is_some_and(|d| d.state.has_records());
        let mut scan = Scan::default();
        scan.read_all(
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
                {
                    candidates.entry(fact.key).or_insert_with(|| "the record is missing".to_owned());
                }
                Ok(())
            },
            &mut |_, _| Ok(()),
        )?;
        let is_hidden = |places: &[Place]| places.iter().any(|place| over.contains_key(&self.account(place.location)));
        let missing_bytes = short.values().sum();
        if !over.is_empty()
            && (scan.places_more > 0 || is_hidden(&scan.damaged_places()) || is_hidden(&scan.unreadable))
        {
            return Err(untold("map records are damaged and the log is, too", missing_bytes));
        }
        let mut there = Vec::new();
        for key in candidates.keys() {
            if self.env.store.get(&record_key(key)).map_err(store_error)?.is_some() {
                there.push(*key);
            }
        }
        there.iter().for_each(|key| drop(candidates.remove(key)));
        // Step 4.
        let told = only(&candidates, &self.told_of(&candidates)?);
        let fits = |key: &RecordKey| {
            let record = &told[key];
            !record.fragments.is_empty() && beyond(&self.accounts_of(record), &room).is_empty()
        };
        candidates.retain(|key, _| fits(key));
        let mut missing = Accounts::new();
        for (account, bytes) in candidates.keys().flat_map(|key| self.accounts_of(&told[key])) {
            *missing.entry(account).or_default() += bytes;
        }
        if missing == short { Ok(candidates) } else { Err(untold("map records are missing", missing_bytes)) }
    }
}
