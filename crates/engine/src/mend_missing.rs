//! Map records that are gone from the store without a trace: what they told of would read as zeroes, and its extents be freed.
//!
//! The usage pages count what they referred to, extent by extent and to the byte. So:
//! 1. *Whether*: live bytes are counted from all records. Extents in which the pages know of more are *short*. (With a page or a record damaged,
//!    nobody can tell: then this is left out.)
//! 2. *Which*: candidates are the records that the store does not have and that a fragment in a short extent belonged to. Most of them were removed
//!    rightly, when nobody needed them any more.
//! 3. They are rebuilt from the log like damaged ones; those of which any extent is not short by as much are none. What is left must be what is
//!    short, to the byte: then it is all that is missing, because what is missing is among it, and every one of it counts for something. Otherwise
//!    none is taken: old data that reappears would be worse than a refusal, and `salvage` has the same log.
//!
//! A record of which only holes count is not missed.

use std::collections::BTreeMap;

use format::{Record, RecordKey, record_key};
use surface::Result;
use units::ExtentIndex;

use crate::geometry::Geometry;
use crate::map::store_error;
use crate::mend::{Mender, hopeless};
use crate::salvage::{Rank, Scan};

/// Live bytes that usage pages know of and records do not tell of.
pub(crate) struct Shortage(BTreeMap<ExtentIndex, u64>);

impl Shortage {
    /// Whether `record` can be among what is missing: all that it refers to is short.
    pub(crate) fn fits(&self, record: &Record, geometry: &Geometry) -> bool {
        let mut left = Self(self.0.clone());
        left.take_off(record, geometry) && !record.fragments.is_empty()
    }

    fn take_off(&mut self, record: &Record, geometry: &Geometry) -> bool {
        record.fragments.iter().all(|fragment| {
            let short = self.0.entry(geometry.extent_at(fragment.location)).or_default();
            let rest = short.checked_sub(fragment.live_bytes().into());
            *short = rest.unwrap_or(*short);
            rest.is_some()
        })
    }

    /// # Errors
    /// [`surface::ErrorKind::Corrupt`] unless these records, all that fit, are what is missing.
    pub(crate) fn explained<'a>(
        mut self,
        mut records: impl Iterator<Item = &'a Record>,
        geometry: &Geometry,
    ) -> Result<()> {
        let missing: u64 = self.0.values().sum();
        let fit_together = records.all(|record| self.take_off(record, geometry));
        if fit_together && self.0.values().all(|bytes| *bytes == 0) {
            return Ok(());
        }
        let what = "map records are missing, and the log does not tell for certain which";
        Err(hopeless(format!("{what} ({missing} bytes of data)")))
    }
}

impl Mender<'_> {
    /// All steps. Whether any was rebuilt.
    pub(crate) fn missing_records(&mut self) -> Result<bool> {
        if !self.found.damaged_pages.is_empty() {
            return Ok(false);
        }
        let live = self.live()?;
        let pages = self.found.pages.iter().flat_map(|(first, page)| (*first..).zip(page));
        let short: BTreeMap<ExtentIndex, u64> = pages
            .map(|(extent, bytes)| (ExtentIndex(extent), u64::from(*bytes)))
            .map(|(extent, bytes)| (extent, bytes.saturating_sub(live.get(&extent).copied().unwrap_or(0))))
            .filter(|(extent, bytes)| *bytes > 0 && extent.0 < self.geometry.extents())
            .collect();
        if short.is_empty() {
            return Ok(false);
        }
        let mut candidates: BTreeMap<RecordKey, String> = BTreeMap::new();
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
                    && short.contains_key(&self.geometry.extent_at(fact.fragment.location))
                    && has_records(&fact.key)
                {
                    candidates.entry(fact.key).or_insert_with(|| "the record is missing".to_owned());
                }
                Ok(())
            },
            &mut |_, _| Ok(()),
        )?;
        let mut there = Vec::new();
        for key in candidates.keys() {
            if self.env.store.get(&record_key(key)).map_err(store_error)?.is_some() {
                there.push(*key);
            }
        }
        there.iter().for_each(|key| drop(candidates.remove(key)));
        self.records(&candidates, Some(Shortage(short)))
    }
}
