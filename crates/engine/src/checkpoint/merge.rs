//! Step 2 of a full checkpoint: the changes are merged into the groups' records, in the order of the groups.
//!
//! Where there are many groups, two threads have half of them each: an opening after a crash waits
//! for the merge, and in a full log no space is freed before it is done. Groups are independent of
//! one another, and the parts are put together in order, so that the result is the same.
//!
//! A clone no longer needs blocks of its origin that it now has itself in these groups. Where no
//! other clone needs them (`objects::clone_needs`), the same groups of the origin are trimmed
//! along, and those of the origin's own. So a destroyed volume's space is freed as its clones are
//! written over.

use std::collections::HashSet;

use format::{FragmentRef, Record};
use store::base::group::{GroupKey, GroupRecords};
use store::map::overlay::Overlay;
use store::map::{Base, laid_over};
use store::objects::timeline::Timelines;
use store::space::dead_map::Death;
use surface::Result;
use units::BlockMask;

use crate::checkpoint::Checkpoints;
use crate::checkpoint::merged::{Merged, in_two, put_group};
use crate::checkpoint::state::Captured;

/// Groups whose changes are fetched together: a few more than the processor loads at the same time.
const ASKED_TOGETHER: usize = 16;

/// Groups for which those below are collected together: a few megabytes of keys.
const BELOW_MAX: usize = 64 << 10;

/// Returns the groups of which less may be needed because `some` have changed: without those that
/// have changed themselves (`all`, sorted), and those that were `done`.
fn groups_below(some: &[GroupKey], all: &[GroupKey], timelines: &Timelines, done: &HashSet<GroupKey>) -> Vec<GroupKey> {
    let mut groups = Vec::new();
    for of_object in some.chunk_by(|one, other| one.object == other.object) {
        let Some(timeline) = of_object.first().and_then(|key| timelines.get(&key.object)) else { continue };
        for object in timeline.below.iter().copied() {
            groups.extend(of_object.iter().map(|key| GroupKey { object, ..*key }));
        }
    }
    groups.sort_unstable();
    groups.dedup();
    groups.retain(|key| all.binary_search(key).is_err() && !done.contains(key));
    groups
}

/// A group that is to be merged, and its changes: none, if it is only settled.
type Changed<'a> = (GroupKey, &'a GroupRecords);

/// Prefetches the changes of a group into the processor's cache. The changes of neighbours are
/// scattered over memory: fetched one after the other, each takes as long as many that are fetched
/// together.
fn ask_for((_, changes): &Changed<'_>) {
    let known = |(_, change): &(_, Record)| change.known();
    std::hint::black_box(changes.iter().map(known).fold(BlockMask::EMPTY, BlockMask::or));
}

impl Checkpoints {
    /// Merges all changes.
    pub(crate) fn merge(&self, frozen: &Overlay, settled: &Overlay, captured: &Captured) -> Result<Merged> {
        frozen.sorted(|changed| {
            let none = GroupRecords::new();
            let mut groups: Vec<Changed<'_>> = changed;
            groups.extend(settled.keys().into_iter().map(|key| (key, &none)));
            // Stable: of a group that is both, the changed one comes first, and stays.
            groups.sort_by_key(|(key, _)| *key);
            groups.dedup_by_key(|(key, _)| *key);
            let part = |groups: &[Changed<'_>]| self.merge_part(groups, frozen, settled, captured);
            let mut merged = in_two(&self.vitals, &groups, part, Merged::append)?;
            if captured.timelines.values().any(|timeline| !timeline.below.is_empty()) {
                let keys: Vec<_> = groups.iter().map(|(key, _)| *key).collect();
                for some in keys.chunks(BELOW_MAX) {
                    let below = groups_below(some, &keys, &captured.timelines, &merged.below);
                    let part = |below: &[GroupKey]| Ok(self.trim_below(below, frozen, settled, captured));
                    merged.append(in_two(&self.vitals, &below, part, Merged::append)?);
                }
            }
            Ok(merged)
        })
    }

    /// Removes records that no point needs any more from groups without changes.
    fn trim_below(&self, groups: &[GroupKey], frozen: &Overlay, settled: &Overlay, captured: &Captured) -> Merged {
        let mut merged = Merged::default();
        let mut last = None;
        for key in groups.iter().copied() {
            let object = self.objects.get_again(&mut last, key.object);
            let (Some(object), Some(timeline)) = (object, captured.timelines.get(&key.object)) else { continue };
            // A damaged one stays unchanged: `check` names it.
            let base = self.map.base_for_checkpoint(key, object.epoch(), &GroupRecords::new());
            let Ok(Base { records: base, cached }) = base else { continue };
            if base.is_empty() {
                continue;
            }
            let needs = self.needs(&captured.timelines, (key, &base), (settled, Some(frozen)), &mut 0);
            let mut records = (*base).clone();
            if self.trim_group(key, (timeline, &needs), &mut records, &GroupRecords::new(), &mut merged) {
                put_group(key, &base, &GroupRecords::new(), &mut records, &mut merged.batch);
                merged.trimmed.push((key, cached.then_some(records)));
                merged.below.insert(key);
            }
        }
        merged
    }

    /// Merges the changes of some groups.
    fn merge_part(
        &self,
        groups: &[Changed<'_>],
        frozen: &Overlay,
        all_settled: &Overlay,
        captured: &Captured,
    ) -> Result<Merged> {
        let mut merged = Merged::default();
        let mut last = None;
        let none = GroupRecords::new();
        let asked_for = groups.chunks(ASKED_TOGETHER).flat_map(|some| {
            some.iter().for_each(ask_for);
            some.iter().copied()
        });
        for (key, mut changes) in asked_for {
            let object = self.objects.get_again(&mut last, key.object);
            let (Some(object), Some(timeline)) = (object, captured.timelines.get(&key.object)) else {
                merged.trimmed.push((key, None));
                continue;
            };
            let settled = all_settled.with(key, Clone::clone).unwrap_or_default();
            if timeline.is_dead() {
                // For an object that no point sees, reaping removes the records in the store. Its
                // changes are never counted.
                let uncounted = changes.iter().flat_map(|(_, change)| &change.fragments);
                uncounted.for_each(|f| merged.deaths.push(Death::of(&self.geometry, f, f.live)));
                changes = &none;
                if settled.is_empty() {
                    merged.trimmed.push((key, None));
                    continue;
                }
            }
            let Base { records: base, cached } = self.map.base_for_checkpoint(key, object.epoch(), &settled)?;
            self.count_changes(key, &base, changes, &mut merged);
            let mut records = laid_over(&base, changes);
            let both = (!settled.is_empty()).then(|| laid_over(&settled, changes));
            let above = both.as_ref().unwrap_or(changes);
            let needs = self.needs(&captured.timelines, (key, &records), (all_settled, Some(frozen)), &mut 0);
            let is_trimmed = self.trim_group(key, (timeline, &needs), &mut records, above, &mut merged);
            put_group(key, &base, &settled, &mut records, &mut merged.batch);
            if is_trimmed || timeline.is_dead() {
                merged.trimmed.push((key, cached.then_some(records)));
            }
        }
        Ok(merged)
    }

    /// Counts the bytes that changes make live and dead in a group, and the blocks that they
    /// allocate; copies allocate none.
    pub(crate) fn count_changes(
        &self,
        key: GroupKey,
        base: &GroupRecords,
        changes: &GroupRecords,
        merged: &mut Merged,
    ) {
        let Merged { usage, deaths, objects, .. } = merged;
        let figures = objects.entry(key.object).or_default();
        let mut count = |fragment: &FragmentRef, live: BlockMask, sign: i64| {
            let bytes = sign * i64::from(FragmentRef { live, ..*fragment }.live_bytes());
            *usage.entry(self.geometry.extent_at(fragment.location)).or_default() += bytes;
            figures.1 += bytes;
        };
        for (epoch, change) in changes {
            let known = change.known();
            let mut before = BlockMask::EMPTY;
            let record = base.binary_search_by(|(e, _)| epoch.cmp(e)).ok().map(|at| &base[at].1);
            for fragment in record.iter().flat_map(|record| &record.fragments) {
                before = before.or(fragment.live);
                let lost = fragment.live.and(known);
                if !lost.is_empty() {
                    count(fragment, lost, -1);
                    deaths.push(Death::of(&self.geometry, fragment, lost));
                }
            }
            let mut after = before.minus(known);
            for fragment in &change.fragments {
                after = after.or(fragment.live);
                count(fragment, fragment.live, 1);
            }
            if key.group.copy() == 0 {
                figures.0 += i64::from(after.count()) - i64::from(before.count());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use sim::Machine;
    use surface::{BlockDevice, WriteOptions};
    use units::{BLOCK_BYTES, GROUP_BYTES};

    use crate::Properties;
    use crate::checkpoint::merged::SHARED_GROUPS_MIN;
    use crate::pool::testing::pool_on;

    const POOL_BYTES: u64 = 256 << 20;
    const GROUPS: u64 = SHARED_GROUPS_MIN as u64 + 1000;

    fn block(group: u64, version: u64) -> Bytes {
        let line = format!("block {group}, version {version}; ");
        line.bytes().cycle().take(BLOCK_BYTES).collect()
    }

    /// The result of one or two merging threads: the same records, and figures that a recount
    /// confirms, before and after everything was overwritten.
    #[test]
    fn what_two_threads_merge_is_what_one_would() {
        let merged = [0, 2].map(|workers| {
            let machine = Machine::new(POOL_BYTES, 1);
            let pool = pool_on(&machine, machine.disk.handle(), POOL_BYTES, workers);
            let lz4 = Properties::from([("compression".to_owned(), "lz4".to_owned())]);
            pool.create_volume("v", GROUPS * GROUP_BYTES as u64, &lz4).unwrap();
            let volume = pool.volume("v").unwrap();
            let mut figures = Vec::new();
            for version in 0..2 {
                for group in 0..GROUPS {
                    volume.write(group * GROUP_BYTES as u64, block(group, version), WriteOptions::default()).unwrap();
                }
                pool.checkpoint().unwrap();
                let status = pool.status();
                figures.push((status.live_bytes, status.allocated_bytes));
            }
            pool.drop_caches();
            let report = pool.check(false, &mut |_, _| ()).unwrap();
            assert!(report.problems.is_empty(), "{workers} workers: {:?}", report.problems);
            let mut buf = vec![0; BLOCK_BYTES];
            for group in 0..GROUPS {
                volume.read(group * GROUP_BYTES as u64, &mut buf).unwrap();
                assert_eq!(buf, block(group, 1), "{workers} workers, group {group}");
            }
            drop(volume);
            pool.close().unwrap();
            figures
        });
        assert_eq!(merged[0], merged[1]);
        assert_eq!(merged[0][1].1, GROUPS * BLOCK_BYTES as u64);
    }
}
