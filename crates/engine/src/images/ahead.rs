//! Fetching ahead: what a stream of reads will soon lack of an image is asked for while the requests
//! before it are answered. A store answers one request in milliseconds, and many at a time.

use std::ops::Range;

use units::GROUP_BYTES;

use crate::base::group::GroupKey;
use crate::map::group_pages::image_below;
use crate::objects::Object;
use crate::pool::core::Core;
use crate::read::lacking::Patience;
use crate::read::reader::groups_of;

/// How long a store is waited for: requests that need it wait longer, and meet its errors.
const SECONDS: u32 = 5;

impl Core {
    /// Fetches what a volume lacks of its image in a range, if there is room to keep it.
    pub(crate) fn fetch_ahead(&self, object: &Object, range: &Range<u64>) {
        let lacking = self.lacking_in(object, range);
        let Some(image) = lacking.first().and_then(|first| self.objects.get(first.object)) else { return };
        // It would not be kept, and so fetched again.
        let bytes = 2 * lacking.len() as u64 * GROUP_BYTES as u64;
        if self.try_admit_fetched(&image, bytes).is_none() {
            return;
        }
        let patience = Patience::seconds(self.env.clock.now_ns(), SECONDS).for_one_more();
        // What failed is in the image's status.
        let _ = self.fetch_lacking(&lacking, &patience, true);
        self.images.let_go();
    }

    /// The groups of its image of which a volume needs something in a range, and that are not here.
    fn lacking_in(&self, object: &Object, range: &Range<u64>) -> Vec<GroupKey> {
        // Not while another thread changes the way down from the object.
        let Some(_gate) = object.gate.try_read().filter(|_| object.is_readable()) else { return Vec::new() };
        let levels = object.levels();
        let Some(image) = image_below(&levels) else { return Vec::new() };
        let is_lacking = |(group, mask)| {
            let found = self.map.lookup_partly(&levels, group, mask);
            found.is_ok_and(|(_, absent)| !absent.is_empty()).then_some(GroupKey { object: image.object, group })
        };
        groups_of(range.start, range.end - range.start).filter_map(is_lacking).collect()
    }
}
