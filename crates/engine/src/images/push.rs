//! The difference of a snapshot from an image, or from an earlier snapshot: whole groups, for a new
//! version of the image.
//!
//! A group that is stored as one unit is sent as it is stored. All others are read, and their
//! missing parts fetched: a group is never assembled from less than all of it.

use codec::CodecId;
use env::RemoteGroup;
use format::crc32c;
use store::base::canary::Canary;
use store::base::scratch;
use store::map::compare::{allocated, changed};
use store::map::group_pages::{image_below, look_down};
use store::objects::Object;
use store::objects::level::Level;
use surface::{BlockDevice, Error, ErrorKind, Result};
use units::{BLOCK_BYTES, BlockMask, GROUP_BYTES, GroupIndex, ObjectId};

use crate::pool::Pool;
use crate::read::reader::Wanted;
use crate::volume::Volume;

/// The base of a push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PushBase {
    /// Nothing: all groups that are not zeroes are listed.
    Nothing,
    /// The version of the image that the volume was cloned from.
    Image,
    /// An earlier snapshot of it (`VOLUME@SNAPSHOT`), which was pushed.
    Snapshot(String),
}

/// Some of the groups that have changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupsPage {
    /// Their numbers and contents, in order. The last group of a volume ends with it.
    pub groups: Vec<(u64, RemoteGroup)>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<u64>,
}

impl Pool {
    /// Returns groups of a snapshot from group `from` on that differ from `base`, at most `most` of
    /// them; the page may be empty although more follow. The first page (`from` 0) takes a
    /// checkpoint.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::Invalid`] without an image, and those of reading.
    pub fn changed_groups(&self, snapshot: &str, base: &PushBase, from: u64, most: usize) -> Result<GroupsPage> {
        let core = &self.core;
        let object = core.objects.snapshot_named(snapshot)?;
        if from == 0 {
            self.core.history.flush_and_checkpoint()?;
        }
        let size = object.size_bytes();
        let end = GroupIndex(size.div_ceil(GROUP_BYTES as u64));
        let new = object.levels();
        let old: Vec<Level> = match base {
            PushBase::Nothing => Vec::new(),
            PushBase::Image => image_below(&new).cloned().into_iter().collect(),
            PushBase::Snapshot(earlier) => core.objects.snapshot_named(earlier)?.levels().to_vec(),
        };
        if *base == PushBase::Image && old.is_empty() {
            let text = format!("'{snapshot}' is not based on an image: push it as a new one");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let mut objects: Vec<ObjectId> = old.iter().chain(new.iter()).map(|level| level.object).collect();
        objects.sort_unstable();
        objects.dedup();
        let page = core.map.page_of_both(&objects, (&old, &new), GroupIndex(from))?;
        if !object.is_readable() {
            return Err(Error::new(ErrorKind::NotFound, format!("'{snapshot}' has been destroyed")));
        }
        let mut found = GroupsPage { groups: Vec::new(), next: None };
        for (group, of_all) in page.groups.range(..end) {
            let view = |levels: &[Level]| look_down(levels, &objects, (*group, of_all), BlockMask::FULL);
            let (before, now) = (view(&old), view(&new));
            if changed(&before, &now).is_empty() {
                continue;
            }
            if found.groups.len() >= most.max(1) {
                found.next = Some(group.0);
                return Ok(found);
            }
            let content = self.whole_group(&object, *group, allocated(&now))?;
            found.groups.push((group.0, content));
        }
        found.next = page.next.filter(|next| *next < end).map(|next| next.0);
        Ok(found)
    }

    /// Returns the content of a group of a snapshot, of which `data` are the blocks that are no
    /// holes.
    fn whole_group(&self, object: &std::sync::Arc<Object>, group: GroupIndex, data: BlockMask) -> Result<RemoteGroup> {
        let start = group.first_block().offset_bytes();
        let len = object.size_bytes().saturating_sub(start).min(GROUP_BYTES as u64) as usize;
        if data.is_empty() {
            return Ok(RemoteGroup::Zero);
        }
        if let Some(stored) = self.as_stored(object, group, len)? {
            return Ok(stored);
        }
        let volume = Volume::new(self.core.volumes.clone(), object.clone());
        let mut bytes = vec![0; len];
        if Canary::PushLeavesOutRemote.is_planted() {
            let _ = self.core.reads.read(object, start, &mut bytes);
        } else {
            volume.read(start, &mut bytes)?;
        }
        Ok(if policy::is_zero(&bytes) { RemoteGroup::Zero } else { RemoteGroup::Plain(bytes) })
    }

    /// Returns the stored form of a group if it is one unit, and no block of that is hidden.
    fn as_stored(&self, object: &Object, group: GroupIndex, len: usize) -> Result<Option<RemoteGroup>> {
        let core = &self.core;
        let _in_extents = core.reads.readers.read();
        let (pieces, _) = core.map.lookup_partly(&object.levels(), group, BlockMask::FULL)?;
        let [piece] = pieces[..] else { return Ok(None) };
        let fragment = piece.fragment;
        let (raw, codec) = (usize::from(fragment.count) * BLOCK_BYTES, CodecId(fragment.codec));
        let is_whole = fragment.first == 0 && fragment.live == fragment.unit() && raw == len;
        if !is_whole || codec == CodecId::ZSTD_DICTIONARY {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        let read = scratch::with(|scratch| {
            core.reads.with_payloads(object, &[Wanted { group, piece }], scratch, &mut |_, payload, _, _| {
                bytes.extend_from_slice(payload);
                Ok(())
            })
        });
        // Reading it in the ordinary way fetches damaged groups of an image again.
        if read.is_err() {
            return Ok(None);
        }
        let checksum = crc32c(&bytes);
        Ok(Some(RemoteGroup::Stored { codec: fragment.codec, data_len: raw as u32, bytes, checksum }))
    }
}
