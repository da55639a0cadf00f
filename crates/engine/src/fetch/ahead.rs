//! Fetch-ahead: groups of an image that a stream of reads will soon need. They are fetched while
//! the requests before them are answered: a store answers one request in milliseconds, and many at
//! a time.

use std::ops::Range;

use crate::base::group::GroupKey;
use crate::map::Map;
use crate::map::group_pages::image_below;
use crate::objects::Object;
use crate::read::reader::groups_of;

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
