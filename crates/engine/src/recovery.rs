//! Opening a pool: the last checkpoint is loaded, and the batches behind it are applied until the first one that is not whole.
//! Reads only the extents that the checkpoint lists, so that the time depends on the checkpoint interval alone.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use env::{AlignedBuf, Disk, MapStore};
use format::{
    BATCH_ALIGN, Batch, BatchHeader, Checkpoint, Entry, FragmentEntry, FragmentIdentity, KEY_CHECKPOINT,
    ObjectDescriptor, USAGE_PAGE_EXTENTS, decode_batch, decode_usage_page, fragment_checksum, object_key_range,
    parse_usage_key, usage_key_range,
};
use surface::{Error, ErrorKind, Result};
use units::{ExtentIndex, Seq};

use crate::apply::Applier;
use crate::geometry::Geometry;
use crate::log::{Position, Sink as _};
use crate::map::store_error;

/// What the map store says.
pub(crate) struct Loaded {
    pub checkpoint: Checkpoint,
    pub objects: Vec<ObjectDescriptor>,
    pub usage: BTreeMap<u32, [u32; USAGE_PAGE_EXTENTS]>,
}

/// What replaying the log came to.
pub(crate) struct Replayed {
    pub position: Position,
    pub batches: u64,
    pub bytes_read: u64,
}

fn damaged(error: format::FormatError) -> Error {
    Error::with_source(ErrorKind::Corrupt, "the pool's metadata is damaged", error)
}

/// Loads the last checkpoint from the map store.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if it is missing, damaged, or that of another pool.
pub(crate) fn load(store: &dyn MapStore, pool: &[u8; 16], geometry: &Geometry) -> Result<Loaded> {
    let Some(bytes) = store.get(KEY_CHECKPOINT).map_err(store_error)? else {
        let text = "the map store holds no checkpoint: the metadata directory is not that of this pool, or `init` was interrupted";
        return Err(Error::new(ErrorKind::Corrupt, text));
    };
    let checkpoint = Checkpoint::decode(&bytes).map_err(damaged)?;
    if checkpoint.pool != *pool {
        let text = "the metadata directory and the data file belong to different pools";
        return Err(Error::new(ErrorKind::Corrupt, text));
    }
    if checkpoint.extents.is_empty() || checkpoint.extents.iter().any(|e| e.0 == 0 || e.0 >= geometry.extents()) {
        return Err(Error::new(ErrorKind::Corrupt, "the checkpoint lists extents that do not exist"));
    }
    let mut objects = Vec::new();
    let mut failure = None;
    let (from, to) = object_key_range();
    store
        .scan(from, to, &mut |_, value| match ObjectDescriptor::decode(value) {
            Ok(object) => {
                objects.push(object);
                ControlFlow::Continue(())
            }
            Err(error) => {
                failure = Some(error);
                ControlFlow::Break(())
            }
        })
        .map_err(store_error)?;
    let mut usage = BTreeMap::new();
    let (from, to) = usage_key_range();
    store
        .scan(from, to, &mut |key, value| match (parse_usage_key(key), decode_usage_page(value)) {
            (Some(first), Ok(page)) => {
                usage.insert(first.0, page);
                ControlFlow::Continue(())
            }
            (_, Err(error)) => {
                failure = Some(error);
                ControlFlow::Break(())
            }
            (None, _) => ControlFlow::Continue(()),
        })
        .map_err(store_error)?;
    failure.map_or(Ok(Loaded { checkpoint, objects, usage }), |error| Err(damaged(error)))
}

/// The log behind a checkpoint.
struct Replay<'a> {
    disk: &'a dyn Disk,
    geometry: Geometry,
    pool: u64,
    checkpoint: &'a Checkpoint,
    next: Seq,
    batches: u64,
    bytes_read: u64,
}

/// What stands at a place of the log.
enum Found {
    /// The next batch, whole.
    Next(Batch),
    /// Anything else; why it is not the next batch.
    Other(String),
}

/// Applies the batches behind a checkpoint.
///
/// # Errors
/// [`ErrorKind::Io`] if the log cannot be read; [`ErrorKind::Corrupt`] if a batch is damaged of which a later one says that it was
/// durable, unless `accept_damage`: then the log ends there.
pub(crate) fn replay(
    disk: &dyn Disk,
    geometry: Geometry,
    checkpoint: &Checkpoint,
    applier: &Applier,
    accept_damage: bool,
) -> Result<Replayed> {
    let mut id = [0; 8];
    id.copy_from_slice(&checkpoint.pool[..8]);
    let pool = u64::from_le_bytes(id);
    let mut replay = Replay { disk, geometry, pool, checkpoint, next: checkpoint.next_seq, batches: 0, bytes_read: 0 };
    let (open, offset) = replay.run(applier, accept_damage)?;
    let position = Position {
        incarnation: checkpoint.incarnation,
        incarnation_first_seq: checkpoint.incarnation_first_seq,
        next_seq: replay.next,
        extents: checkpoint.extents[open..].to_vec(),
        offset,
        passed: checkpoint.extents[..open].to_vec(),
    };
    Ok(Replayed { position, batches: replay.batches, bytes_read: replay.bytes_read })
}

impl Replay<'_> {
    /// Goes through the listed extents; returns the index of the one in which the log ends, and where.
    fn run(&mut self, applier: &Applier, accept_damage: bool) -> Result<(usize, u32)> {
        let extent_bytes = self.geometry.extent_bytes as usize;
        let (mut buf, mut last_buf) = (AlignedBuf::new(extent_bytes), AlignedBuf::new(extent_bytes));
        // The extent of the last batch so far, where that batch ends, and what stands behind it.
        let mut last = (0, self.checkpoint.offset as usize, String::new());
        let mut again: Option<(Vec<Entry>, u64)> = None;
        for (index, extent) in self.checkpoint.extents.iter().copied().enumerate() {
            let start = if index == 0 { self.checkpoint.offset as usize } else { 0 };
            let before = self.batches;
            let (end, why) = self.extent(extent, start, &mut buf, |batch, payload| {
                applier.apply(&batch.entries, payload);
                if cfg!(feature = "canary-double-apply") && again.is_none() {
                    again = Some((batch.entries, payload));
                }
            })?;
            // A batch that did not fit in an extent is the first of the next one. If it is not there, the log has ended.
            if index > 0 && self.batches == before {
                break;
            }
            last = (index, end, why);
            std::mem::swap(&mut buf, &mut last_buf);
        }
        if let Some((entries, payload)) = again {
            applier.apply(&entries, payload);
        }
        self.check_end(&last, &last_buf, accept_damage)?;
        Ok((last.0, last.1 as u32))
    }

    /// Applies the batches of one extent from byte `at` on; returns where they end and why.
    fn extent(
        &mut self,
        extent: ExtentIndex,
        mut at: usize,
        buf: &mut AlignedBuf,
        mut apply: impl FnMut(Batch, u64),
    ) -> Result<(usize, String)> {
        let extent_bytes = self.geometry.extent_bytes as usize;
        self.read(extent, buf, extent_bytes)?;
        loop {
            if at + BATCH_ALIGN > extent_bytes {
                return Ok((at, "the extent ends".to_owned()));
            }
            match self.judge(extent, &buf[at..extent_bytes]) {
                Found::Next(batch) => {
                    let payload = self.geometry.start(extent) + (at + batch.header_bytes) as u64;
                    at += batch.batch_bytes;
                    self.next = Seq(self.next.0 + 1);
                    self.batches += 1;
                    apply(batch, payload);
                }
                Found::Other(why) => return Ok((at, why)),
            }
        }
    }

    fn read(&mut self, extent: ExtentIndex, buf: &mut AlignedBuf, len: usize) -> Result<()> {
        let start = self.geometry.start(extent);
        self.bytes_read += len as u64;
        self.disk
            .read_at(start, buf, len)
            .map_err(|e| Error::from_io(format!("recovery could not read the log at byte {start} of the data file"), e))
    }

    /// Whether `bytes` begin with the next batch of this incarnation, and all of it is there.
    fn judge(&self, extent: ExtentIndex, bytes: &[u8]) -> Found {
        let batch = match decode_batch(bytes) {
            Ok(batch) => batch,
            Err(error) => return Found::Other(error.to_string()),
        };
        let header = &batch.header;
        if (header.pool, header.extent) != (self.pool, extent) {
            return Found::Other("a batch of another pool or place".to_owned());
        }
        if header.incarnation != self.checkpoint.incarnation || header.seq != self.next {
            return Found::Other(format!("batch {} of incarnation {}", header.seq.0, header.incarnation));
        }
        let mut at = batch.header_bytes;
        for (object, epoch, fragment) in batch.entries.iter().flat_map(Entry::payloads) {
            let payload = &bytes[at..at + fragment.stored as usize];
            at += fragment.stored as usize;
            let FragmentEntry { first, count, codec, checksum, .. } = *fragment;
            let identity = FragmentIdentity { object, epoch, first, count, codec };
            if fragment_checksum(&identity, payload) != checksum {
                return Found::Other(format!("batch {} is torn or damaged", header.seq.0));
            }
        }
        Found::Next(batch)
    }

    /// Makes sure that nothing durable lies behind the place where the log seems to end. A batch that was written when
    /// this place was durable proves damage: a crash does not leave that.
    fn check_end(&mut self, last: &(usize, usize, String), buf: &AlignedBuf, accept_damage: bool) -> Result<()> {
        let (index, at, why) = last;
        let Some(extent) = self.checkpoint.extents.get(*index).copied() else { return Ok(()) };
        let extent_bytes = self.geometry.extent_bytes as usize;
        let mut proof = self.proof_in(extent, &buf[..extent_bytes], *at + BATCH_ALIGN);
        // The missing batch may be the one that the next extent should begin with: its head tells nothing. The log fills
        // extents in order: behind another one that does not begin with a batch there is nothing.
        let later: Vec<_> = self.checkpoint.extents.iter().skip(index + 1).copied().collect();
        let mut buf = AlignedBuf::new(extent_bytes);
        for (i, extent) in later.into_iter().enumerate() {
            if proof.is_some() {
                break;
            }
            self.read(extent, &mut buf, extent_bytes)?;
            let bytes = &buf[..extent_bytes];
            proof = self.proof_in(extent, bytes, 0);
            if i > 0 && !decode_batch(bytes).is_ok_and(|batch| self.is_ours(&batch.header, extent)) {
                break;
            }
        }
        let Some(later) = proof.filter(|_| !accept_damage) else { return Ok(()) };
        let place = self.geometry.start(extent) + *at as u64;
        Err(Error::new(
            ErrorKind::Corrupt,
            format!(
                "the log is damaged at byte {place} of the data file: batch {} was durable when batch {} was written, but \
                 there is {why}. `check --repair` opens the pool without that batch and those behind it",
                self.next.0, later.0
            ),
        ))
    }

    /// A batch at or behind byte `from` of an extent that was written when the batch that is missing was durable.
    fn proof_in(&self, extent: ExtentIndex, bytes: &[u8], from: usize) -> Option<Seq> {
        (from..bytes.len()).step_by(BATCH_ALIGN).find_map(|at| {
            let header = decode_batch(&bytes[at..]).ok()?.header;
            (self.is_ours(&header, extent) && header.durable_before > self.next).then_some(header.seq)
        })
    }

    fn is_ours(&self, header: &BatchHeader, extent: ExtentIndex) -> bool {
        (header.pool, header.extent, header.incarnation) == (self.pool, extent, self.checkpoint.incarnation)
    }
}
