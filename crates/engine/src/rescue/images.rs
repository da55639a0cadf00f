//! Copies fetched groups of images, so that a volume whose groups were all fetched needs no object
//! store afterwards. Groups that were not fetched, or are lost, are fetched on demand: they never
//! become zeroes.

use std::sync::Arc;

use format::ImagePart;
use store::objects::Object;
use store::objects::images::remote_of;
use surface::Result;
use units::{BLOCK_BYTES, BlockMask, GROUP_BYTES, GroupIndex, format_size};

use crate::pool::Pool;

/// Groups that are kept together.
const GROUPS: usize = 8;

/// Copies the groups of an image that `old` has in `from`, and that `into`, which has a clone of
/// the image, does not have. Unreadable ones are left out. `notes` gets the amount.
///
/// # Errors
/// Those of `into`, and of the store below `old`.
pub(super) fn copy(
    (old, from): (&Pool, &Object),
    into: &Pool,
    image: &ImagePart,
    notes: &mut Vec<String>,
) -> Result<()> {
    let Some(to) = into.core.objects.of_image(image) else { return Ok(()) };
    let size = image.len.next_multiple_of(BLOCK_BYTES as u64);
    let is_here = |pool: &Pool, object: &Object, group: GroupIndex| -> Result<bool> {
        Ok(pool.core.map.lookup_partly(&object.levels(), group, BlockMask::FULL)?.1.is_empty())
    };
    let (groups, _) = old.core.map.groups_in(from.id, GroupIndex(0), GroupIndex(u64::MAX), usize::MAX)?;
    let (mut batch, mut here) = (Vec::new(), Vec::new());
    for group in groups {
        let start = group.first_block().offset_bytes();
        let len = size.saturating_sub(start).min(GROUP_BYTES as u64);
        if len == 0 || is_here(into, &to, group)? || !is_here(old, from, group)? {
            continue;
        }
        let mut bytes = vec![0; len as usize];
        if old.core.reads.read(from, start, &mut bytes).is_ok() {
            here.push(group);
            batch.push((group, bytes));
        }
        if batch.len() == GROUPS {
            into.core.fetches.keep_known(&to, std::mem::take(&mut batch))?;
        }
    }
    into.core.fetches.keep_known(&to, batch)?;
    let mut kept = 0;
    for group in &here {
        kept += u64::from(is_here(into, &to, *group)?);
    }
    notes.extend(note(image, &to, kept, here.len() as u64).filter(|note| !notes.contains(note)));
    Ok(())
}

fn note(image: &ImagePart, object: &Arc<Object>, kept: u64, here: u64) -> Option<String> {
    let all = object.levels().last().map_or(0, |level| level.image_groups());
    let remote = remote_of(image);
    let size = |groups: u64| format_size(groups * GROUP_BYTES as u64);
    let left = if kept < here { format!(", {} more had no room", size(here - kept)) } else { String::new() };
    // A clone that was copied later finds all of it.
    (here > 0 || all > kept).then(|| {
        format!(
            "volumes are backed by the image {}@{} of {}: {} of it was in the pool and is copied{left}; the rest \
             is fetched from there when it is read, so keep the pins of the old pool until the new one has been \
             served",
            remote.location,
            remote.version,
            size(all),
            size(kept)
        )
    })
}
