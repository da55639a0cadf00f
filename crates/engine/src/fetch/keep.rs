//! Keeps fetched groups in the pool, and drops them again.
//!
//! A group that arrives as one unit goes into the log unchanged; others are compressed by the
//! pool's properties. They are not synced: a group lost in a crash is fetched again. They have no
//! claim to room: if there is none, they are not kept.
//!
//! A dropped group has no record after the next full checkpoint. A move of it that was decided
//! earlier may restore it, which does no harm: an image never changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use codec::CodecId;
use format::{Entry, FragmentEntry, FragmentIdentity, fragment_checksum, header_bytes};
use store::base::group::GroupKey;
use store::base::options::Properties;
use store::base::scratch;
use store::log::Purpose;
use store::log::prepared::Prepared;
use store::objects::Object;
use store::space::admission::GROUP_COST_BYTES;
use surface::Result;
use units::{BLOCK_BYTES, BlockIndex, Epoch, GROUP_BYTES, GroupIndex, ObjectId};

use crate::codecs::compress::with_unit;
use crate::fetch::Fetches;
use crate::read::images::{Arrived, CHUNK_GROUPS};

/// Epoch of all records of an image.
const EPOCH: Epoch = Epoch(0);
/// Groups of one batch.
const BATCH_GROUPS: usize = 8;
/// A fraction of their share that is dropped in one go, so that not every group causes a
/// checkpoint.
const DROPPED_DIVISOR: u64 = 8;

/// A group in the form in which it is kept.
pub(super) enum Kept {
    Hole { blocks: u32 },
    AsStored { codec: u8, bytes: Vec<u8>, arrived: Arc<Arrived> },
    Anew(Arc<Arrived>),
}

impl Kept {
    /// Bytes that came.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Hole { .. } => 0,
            Self::AsStored { bytes, .. } => bytes.len(),
            Self::Anew(arrived) => arrived.0.len(),
        }
    }
}

/// Fragments and their payloads, and holes, of one batch.
#[derive(Default)]
struct Packed {
    fragments: Vec<FragmentEntry>,
    payload: Vec<u8>,
    holes: Vec<(BlockIndex, u32)>,
}

impl Packed {
    fn push(&mut self, object: ObjectId, fragment: FragmentEntry, payload: &[u8]) {
        let FragmentEntry { first, count, codec, .. } = fragment;
        let identity = FragmentIdentity { object, epoch: EPOCH, first, count, codec };
        let checksum = fragment_checksum(&identity, payload);
        self.fragments.push(FragmentEntry { checksum, ..fragment });
        self.payload.extend_from_slice(payload);
    }
}

impl Fetches {
    /// Keeps groups that were fetched. The caller holds no lock.
    ///
    /// # Errors
    /// Those of the log: then they are not kept.
    pub(super) fn keep(&self, object: &Object, groups: Vec<(GroupKey, Kept)>) -> Result<()> {
        let bytes: u64 = groups.iter().map(|(_, kept)| kept.bytes() as u64).sum();
        if !self.has_share_for(object, bytes)? {
            return Ok(());
        }
        for some in groups.chunks(BATCH_GROUPS) {
            let mut packed = Packed::default();
            some.iter().for_each(|(key, kept)| self.pack_fetched(object, *key, kept, &mut packed));
            self.append_fetched(object, packed)?;
        }
        Ok(())
    }

    /// Keeps groups of an image that another pool had fetched, as far as there is room.
    ///
    /// # Errors
    /// Those of the log.
    pub(crate) fn keep_known(&self, object: &Object, groups: Vec<(GroupIndex, Vec<u8>)>) -> Result<()> {
        let kept = |(group, bytes): (GroupIndex, Vec<u8>)| {
            let blocks = (bytes.len() / BLOCK_BYTES) as u32;
            let is_hole = policy::is_zero(&bytes);
            let kept = if is_hole { Kept::Hole { blocks } } else { Kept::Anew(Arc::new(Arrived(bytes))) };
            (GroupKey { object: object.id, group }, kept)
        };
        self.keep(object, groups.into_iter().map(kept).collect())
    }

    fn pack_fetched(&self, object: &Object, key: GroupKey, kept: &Kept, packed: &mut Packed) {
        let first = key.group.first_block();
        let units_max = self.geometry.unit_blocks_max() as usize;
        let settings = *object.settings.read();
        let (codec, raw) = match kept {
            Kept::Hole { blocks } => {
                packed.holes.push((first, *blocks));
                return;
            }
            Kept::AsStored { codec, bytes, arrived } if arrived.0.len() <= units_max * BLOCK_BYTES => {
                let count = (arrived.0.len() / BLOCK_BYTES) as u8;
                let entry = FragmentEntry { first, count, codec: *codec, stored: bytes.len() as u32, checksum: 0 };
                packed.push(object.id, entry, bytes);
                return;
            }
            Kept::AsStored { codec, arrived, .. } => (CodecId(*codec), &arrived.0),
            Kept::Anew(arrived) => (settings.plain_codec().id(), &arrived.0),
        };
        let unit_bytes = (settings.unit_blocks as usize).min(units_max) * BLOCK_BYTES;
        scratch::with(|scratch| {
            for (index, part) in raw.chunks(unit_bytes).enumerate() {
                let first = BlockIndex(first.0 + (index * unit_bytes / BLOCK_BYTES) as u64);
                let push = &mut |fragment, payload: &[u8]| packed.push(object.id, fragment, payload);
                with_unit(first, part, codec, &mut scratch.codecs, &settings, push);
            }
        });
    }

    fn append_fetched(&self, object: &Object, packed: Packed) -> Result<()> {
        let Packed { fragments, payload, holes } = packed;
        let mut entries = Vec::new();
        if !holes.is_empty() {
            entries.push(Entry::Holes { object: object.id, epoch: EPOCH, ranges: holes });
        }
        if !fragments.is_empty() {
            entries.push(Entry::Fragments { object: object.id, epoch: EPOCH, fragments });
        }
        if entries.is_empty() {
            return Ok(());
        }
        self.vitals.check_failed()?;
        self.checkpoints.heal()?;
        self.checkpoints.bound_changes()?;
        let cost = payload.len() as u64 + BATCH_GROUPS as u64 * GROUP_COST_BYTES;
        let Some(_room) = self.space.try_admit_fetched(object, cost) else { return Ok(()) };
        let header = header_bytes(&entries);
        let mut buf = self.buffers.get((header + payload.len()).next_multiple_of(format::BATCH_ALIGN));
        buf[header..header + payload.len()].copy_from_slice(&payload);
        let purpose = if payload.is_empty() { Purpose::Metadata } else { Purpose::Data };
        self.vitals.counters.fragment_bytes.add(payload.len() as u64);
        let ticket = self.writes.append(Prepared::new(entries, payload.len(), buf, Vec::new()), purpose)?;
        self.log.wait_applied(ticket)
    }

    /// Bytes that images may take.
    pub(crate) fn images_bytes_max(&self) -> u64 {
        let properties = policy::resolve(&self.objects.pool_properties(), &Properties::new());
        let capacity = u64::from(self.geometry.extents()) * u64::from(self.geometry.extent_bytes);
        match properties.unwrap_or_default().settings.remote.cache {
            policy::Share::Permille(permille) => capacity / 1000 * u64::from(permille),
            policy::Share::Bytes(bytes) => bytes,
        }
    }

    /// Returns whether an image may take so much more. Drops other images' groups, or older ones of
    /// it, for that.
    fn has_share_for(&self, object: &Object, bytes: u64) -> Result<bool> {
        // An image that a volume wants entirely has no bound.
        if self.objects.hydration_of(object.id).is_some() {
            return Ok(true);
        }
        let bounded =
            || self.objects.images().into_iter().filter(|image| self.objects.hydration_of(image.id).is_none());
        let taken = || bounded().map(|image| image.stored_now()).sum::<u64>();
        let most = self.images_bytes_max();
        if bytes > most {
            return Ok(false);
        }
        if taken() + bytes > most {
            let excess = (taken() + bytes - most).max(most / DROPPED_DIVISOR);
            if self.choose_drops(bounded().collect(), excess)? {
                self.checkpoints.take()?;
            }
        }
        Ok(taken() + bytes <= most)
    }

    /// Chooses groups of any image to drop, to gain `bytes`. Returns whether there are any.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub(crate) fn drop_fetched(&self, bytes: u64) -> Result<bool> {
        let images = self.objects.images();
        if images.iter().all(|image| image.stored_now() == 0) {
            return Ok(false);
        }
        self.choose_drops(images, bytes)
    }

    /// Chooses the groups of `images` that were not read for longest, about so many bytes.
    fn choose_drops(&self, images: Vec<Arc<Object>>, bytes: u64) -> Result<bool> {
        // By the last use, image, and chunk: the groups.
        let mut chunks: BTreeMap<(u64, ObjectId, u64), Vec<GroupIndex>> = BTreeMap::new();
        let mut group_bytes: BTreeMap<ObjectId, u64> = BTreeMap::new();
        for image in &images {
            let (groups, _) = self.map.groups_in(image.id, GroupIndex(0), GroupIndex(u64::MAX), usize::MAX)?;
            group_bytes.insert(image.id, image.stored_now() / (groups.len() as u64).max(1));
            for group in groups {
                let chunk = group.0 / CHUNK_GROUPS;
                let used = self.reads.images.used_at(image.id, chunk);
                chunks.entry((used, image.id, chunk)).or_default().push(group);
            }
        }
        let mut won = 0;
        let mut drops = Vec::new();
        for ((_, object, chunk), groups) in chunks {
            if won >= bytes {
                break;
            }
            won += group_bytes.get(&object).copied().unwrap_or(0).clamp(1, GROUP_BYTES as u64) * groups.len() as u64;
            drops.extend(groups.into_iter().map(|group| GroupKey { object, group }));
            self.reads.images.forget_use(object, chunk);
        }
        let is_any = !drops.is_empty();
        let mut state = self.reads.images.state.lock();
        for key in &drops {
            if let Some(contact) = state.contacts.get_mut(&key.object) {
                contact.is_whole = false;
            }
        }
        state.drops.extend(drops);
        drop(state);
        Ok(is_any)
    }
}
