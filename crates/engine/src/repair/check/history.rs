//! The audit of history, a part of `check`: every stored block is visible to some reader (otherwise
//! it leaks), and the figures of each object are those of its records. Missing data that is still
//! needed is found only by reading; see the tests.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use env::MapBatch;
use format::{ObjectDescriptor, ObjectState, Record, RecordKey, object_key, parse_record_key};
use store::base::group::{GroupKey, GroupRecords};
use store::base::store_error::store_error;
use store::objects::Object;
use store::objects::timeline::Timelines;
use surface::Result;
use units::{GroupIndex, ObjectId};

use crate::repair::Repairs;

/// Result of the audit for one object.
#[derive(Default)]
struct Counted {
    allocated_blocks: u64,
    stored_bytes: u64,
    /// Bytes that no reader can see, and the first group that has some.
    leaked: Option<(u64, GroupIndex)>,
}

/// A fault of an object.
pub(crate) struct Finding {
    pub object: Arc<Object>,
    /// Its first byte, for a leak.
    pub offset: Option<u64>,
    pub text: String,
    pub repaired: bool,
}

struct Audit<'a> {
    parts: &'a Repairs,
    timelines: &'a Timelines,
    counted: BTreeMap<ObjectId, Counted>,
    group: Option<(ObjectId, GroupIndex)>,
    records: GroupRecords,
}

impl Audit<'_> {
    fn record(&mut self, key: RecordKey, record: Record) {
        if self.group != Some((key.object, key.group)) {
            self.close();
            self.group = Some((key.object, key.group));
        }
        let counted = self.counted.entry(key.object).or_default();
        if key.group.copy() == 0 {
            counted.allocated_blocks += u64::from(record.allocated().count());
        }
        counted.stored_bytes += record.fragments.iter().map(|f| u64::from(f.live_bytes())).sum::<u64>();
        self.records.push((key.epoch, record));
    }

    /// Completes a group.
    fn close(&mut self) {
        let records = std::mem::take(&mut self.records);
        let Some((object, group)) = self.group.take() else { return };
        let Some(timeline) = self.timelines.get(&object) else { return };
        let key = GroupKey { object, group };
        let settled = self.parts.map.settled();
        let needs = self.parts.checkpoints.needs(self.timelines, (key, &records), (&settled, None), &mut 0);
        let mut lost = 0;
        let mut trimmed = records;
        let count = &mut |_, fragment: &format::FragmentRef| lost += u64::from(fragment.live_bytes());
        timeline.trim(&mut trimmed, &needs, &GroupRecords::new(), count);
        if lost > 0 {
            let counted = self.counted.entry(object).or_default();
            counted.leaked.get_or_insert((0, group)).0 += lost;
        }
    }
}

impl Repairs {
    /// Audits the records in the store against the descriptors, and with `repair` corrects the
    /// figures in these. Everything must have been reaped, and no checkpoint may run.
    pub(crate) fn audit_history(&self, repair: bool) -> Result<Vec<Finding>> {
        let timelines = self.objects.timelines();
        let mut audit = Audit {
            parts: self,
            timelines: &timelines,
            counted: BTreeMap::new(),
            group: None,
            records: GroupRecords::new(),
        };
        self.vitals
            .env
            .store
            .scan(b"R", b"S", &mut |key, value| {
                // Records that do not decode are reported by the walk through all records.
                if let (Some(key), Ok(record)) = (parse_record_key(key), Record::decode(value)) {
                    audit.record(key, record);
                }
                ControlFlow::Continue(())
            })
            .map_err(store_error)?;
        audit.close();
        let mut found = Vec::new();
        for object in self.objects.all() {
            let counted = audit.counted.remove(&object.id).unwrap_or_default();
            if let Some((bytes, group)) = counted.leaked {
                let text =
                    format!("{bytes} bytes are kept that neither '{}' nor any other object needs", object.title());
                let offset = Some(group.first_block().offset_bytes());
                found.push(Finding { object: object.clone(), offset, text, repaired: false });
            }
            let figures = (counted.allocated_blocks, counted.stored_bytes);
            if figures != object.settled() {
                let text = format!(
                    "'{}' has recorded figures (allocated blocks, stored bytes) of {:?}, but they are {figures:?}",
                    object.title(),
                    object.settled()
                );
                if repair {
                    self.correct_figures(&object, figures)?;
                }
                found.push(Finding { object: object.clone(), offset: None, text, repaired: repair });
            }
            let parent = {
                let descriptor = object.descriptor.read();
                descriptor.parent.filter(|_| descriptor.state == ObjectState::Dictionary)
            };
            let is_orphan = parent.is_some_and(|parent| self.objects.get(parent).is_none());
            if is_orphan {
                let text = format!("'{}' exists, but the volume that it was trained for does not", object.title());
                found.push(Finding { object: object.clone(), offset: None, text, repaired: false });
            }
            if timelines.get(&object.id).is_some_and(|timeline| timeline.is_dead()) {
                let text = format!("'{}' is destroyed and unseen, but still there", object.title());
                found.push(Finding { object, offset: None, text, repaired: false });
            }
        }
        Ok(found)
    }

    fn correct_figures(&self, object: &Object, (allocated_blocks, stored_bytes): (u64, u64)) -> Result<()> {
        let descriptor = ObjectDescriptor { allocated_blocks, stored_bytes, ..object.captured() };
        let mut batch = MapBatch::default();
        batch.put(object_key(object.id), descriptor.encode());
        self.vitals.env.store.commit(batch).map_err(store_error)?;
        object.settle(allocated_blocks, stored_bytes);
        Ok(())
    }
}
