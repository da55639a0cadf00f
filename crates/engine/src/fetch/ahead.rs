//! Reads ahead of a stream of reads (`read::read_ahead` recognises it), on the reader threads.
//! Groups of an image that it will soon need are fetched while the requests before them are
//! answered: a store answers one request in milliseconds, and many at a time. Owns no state.

use std::ops::Range;
use std::sync::Arc;

use store::base::group::GroupKey;
use store::map::Map;
use store::map::group_pages::image_below;
use store::objects::Object;

use crate::fetch::Fetches;
use crate::read::read_ahead::ReadAhead;
use crate::read::reader::groups_of;
use crate::read::unit_cache::Purpose;

/// Bytes of one job, so that the reader threads share a window.
const JOB_BYTES: u64 = 256 << 10;

/// Returns the groups of its image that a volume needs in a range, and that are not fetched.
pub(super) fn lacking(map: &Map, object: &Object, range: &Range<u64>) -> Vec<GroupKey> {
    // Not while another thread changes the object's chain of levels.
    let Some(_gate) = object.gate.try_read().filter(|_| object.is_readable()) else { return Vec::new() };
    let levels = object.levels();
    let Some(image) = image_below(&levels) else { return Vec::new() };
    let is_lacking = |(group, mask)| {
        let found = map.lookup_partly(&levels, group, mask);
        found.is_ok_and(|(_, absent)| !absent.is_empty()).then_some(GroupKey { object: image.object, group })
    };
    groups_of(range.start, range.end - range.start).filter_map(is_lacking).collect()
}

impl Fetches {
    /// Lets the reader threads read a range ahead.
    pub(crate) fn read_ahead(self: &Arc<Self>, streams: &Arc<ReadAhead>, object: &Arc<Object>, range: Range<u64>) {
        let end = range.end.min(object.size_bytes());
        let mut at = range.start;
        while at < end {
            let job = at..end.min(at + JOB_BYTES);
            at = job.end;
            let (fetches, streams, object) = (Arc::clone(self), streams.clone(), object.clone());
            self.jobs.submit(Box::new(move || {
                if streams.has_passed(&job) {
                    return;
                }
                fetches.fetch_ahead(&object, &job);
                // Not while another thread changes the object's chain of levels. That does not take
                // long, but may be waiting for the very thread that this runs on.
                let Some(_gate) = object.gate.try_read().filter(|_| object.is_readable()) else { return };
                if !streams.has_passed(&job) {
                    // A client that reads the range meets the same error, and reports it.
                    let _ = fetches.reads.prefetch(&object, job.start, job.end - job.start, Purpose::Stream);
                }
            }));
        }
    }
}
