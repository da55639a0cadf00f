//! The result of merging or reaping groups of the map, and its way into the store's batch. Owns no
//! state; the threads of a checkpoint have one result each, which are appended in order.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::thread::Builder;

use env::MapBatch;
use format::{RecordKey, record_key};
use store::base::group::{GroupKey, GroupRecords};
use store::base::vitals::Vitals;
use store::objects::Reaped;
use store::space::dead_map::Toll;
use store::space::extents::UsageChanges;
use surface::Result;
use units::ObjectId;

/// Groups for which a second thread is worth it: tens of milliseconds.
pub(crate) const SHARED_GROUPS_MIN: usize = 8192;

/// Result of the merge.
#[derive(Default)]
pub(crate) struct Merged {
    pub batch: MapBatch,
    pub usage: UsageChanges,
    /// Fragments that died, and their extents.
    pub deaths: Toll,
    /// Change of allocated blocks and stored bytes by object.
    pub objects: BTreeMap<ObjectId, (i64, i64)>,
    /// Groups whose records differ from the old ones with the changes laid over them, because more
    /// blocks were removed; and their new records, if requested.
    pub trimmed: Vec<(GroupKey, Option<GroupRecords>)>,
    /// Groups without changes that were trimmed because the changed groups need less of them.
    pub below: HashSet<GroupKey>,
    /// Objects from which blocks were removed that a rollback had undone.
    pub undone: BTreeSet<ObjectId>,
    /// The progress of reaping.
    pub reaped: Vec<Reaped>,
    /// Deltas that were put into the batch.
    pub deltas: Vec<(u64, u32)>,
}

impl Merged {
    /// Appends the result for the groups after these.
    pub(crate) fn append(&mut self, mut behind: Self) {
        self.batch.changes.append(&mut behind.batch.changes);
        self.deaths.append(behind.deaths);
        for (extent, bytes) in behind.usage {
            *self.usage.entry(extent).or_default() += bytes;
        }
        for (object, (blocks, bytes)) in behind.objects {
            let figures = self.objects.entry(object).or_default();
            *figures = (figures.0 + blocks, figures.1 + bytes);
        }
        self.trimmed.append(&mut behind.trimmed);
        self.below.extend(behind.below);
        self.undone.append(&mut behind.undone);
        self.reaped.append(&mut behind.reaped);
        self.deltas.append(&mut behind.deltas);
    }
}

/// Runs `part` for groups, in two threads where there are many of them; `append` appends the second
/// half's result to the first.
///
/// # Errors
/// The first error of either half.
pub(crate) fn in_two<G: Sync, T: Send>(
    vitals: &Vitals,
    groups: &[G],
    part: impl Fn(&[G]) -> Result<T> + Sync,
    append: impl Fn(&mut T, T),
) -> Result<T> {
    if vitals.is_inline() || groups.len() < SHARED_GROUPS_MIN {
        return part(groups);
    }
    let (first, second) = groups.split_at(groups.len() / 2);
    std::thread::scope(|scope| {
        let helper = Builder::new().name("shale-merger".to_owned()).spawn_scoped(scope, || {
            // A front end's thread that is bound to its client's CPU may run this checkpoint.
            env::use_all_cpus();
            part(second)
        });
        let mut done = part(first)?;
        let behind = match helper {
            Ok(helper) => helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?,
            Err(_) => part(second)?,
        };
        append(&mut done, behind);
        Ok(done)
    })
}

/// Puts a group's changed records into the batch: those that differ from their old content
/// (`before`), and those that the store has in another form because a part was only `settled`.
/// Empty ones are deleted, and removed from `records`.
pub(crate) fn put_group(
    key: GroupKey,
    before: &GroupRecords,
    settled: &GroupRecords,
    records: &mut GroupRecords,
    batch: &mut MapBatch,
) {
    for (epoch, record) in records.iter() {
        let stored = before.iter().find(|(e, _)| e == epoch).map(|(_, record)| record);
        let is_settled = settled.iter().any(|(e, _)| e == epoch);
        let id = record_key(&RecordKey { object: key.object, group: key.group, epoch: *epoch });
        match stored {
            Some(stored) if stored == record && !is_settled => {}
            Some(_) if record.is_empty() => batch.delete(id),
            None if record.is_empty() => {}
            _ => batch.put(id, record.encode()),
        }
    }
    records.retain(|(_, record)| !record.is_empty());
}
