//! A volume as front ends see it: byte ranges become blocks here. Owns the rules of a request: who
//! may enter, which part of a block is read to be written, and which blocks become holes; and the
//! claims on trees of shares. Front ends call it by way of `surface`, on any thread: `read_cached`
//! waits at most for the gate, `write_would_wait` for nothing, all other requests for the disk.
//!
//! 1. A request enters the volume's gate; a snapshot, a resize or a deletion closes it.
//! 2. A read goes to `read`; many at once share a thread (`batch_read`).
//! 3. A write is admitted (`make_room`), and put into the buffer (`write`). Zero blocks become
//!    holes. A large range bypasses the buffer as a hole (`punch`).
//! 4. A share's files are ranges of such an object (`files`, `shares`), which one tree at a time
//!    may change (`claims`).

mod batch_read;
pub(crate) mod claims;
pub(crate) mod devices;
pub(crate) mod files;
pub(crate) mod parts;
pub(crate) mod punch;
pub(crate) mod shares;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use smallvec::SmallVec;
use store::base::group::GroupKey;
use store::base::ranked::RwLockReadGuard;
use store::base::ranks;
use store::objects::Object;
use store::objects::effort::VolumeEffort;
use store::space::admission::Admitted;
use surface::{BlockDevice, DeviceId, Error, ErrorKind, Hint, PendingRead, Result, Run, WriteOptions, ZeroOptions};
use units::{BLOCK_BYTES, BlockIndex, BlockMask, GROUP_BLOCKS, GROUP_BYTES, GroupIndex};

use crate::read::lacking::MissingGroups;
use crate::read::read_ahead::ReadAhead;
use crate::read::unit_cache::Purpose;
use crate::volume::parts::Volumes;
use crate::volume::punch::Pace;
use store::buffer::write_buffer::{COPIED, DirtyRun};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Groups of a discard up to which it goes through the write buffer; larger ones go to the log as
/// ranges.
const BUFFERED_DISCARD_GROUPS: u64 = 64;
/// Largest request whose buffer is kept until all of it is drained; a larger one is copied, a group
/// at a time.
const PINNED_BYTES_MAX: usize = 1 << 20;
/// Size of requests that the engine serves best: the default unit, and a group, which no unit
/// crosses.
const PREFERRED_BYTES: u32 = GROUP_BYTES as u32;

/// A volume of an open pool, or a snapshot, which is a volume that never changes.
pub struct Volume {
    volumes: Arc<Volumes>,
    pub(crate) object: Arc<Object>,
    read_ahead: Arc<ReadAhead>,
    /// Calls that read files of it ahead at the moment.
    files_ahead: AtomicU32,
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume").field("object", &self.object.id).finish_non_exhaustive()
    }
}

impl Volume {
    pub(crate) fn new(volumes: Arc<Volumes>, object: Arc<Object>) -> Self {
        Self { volumes, object, read_ahead: Arc::default(), files_ahead: AtomicU32::new(0) }
    }

    /// Returns a number that always belongs to this volume or snapshot, also after a rename.
    pub fn id(&self) -> DeviceId {
        DeviceId(self.object.id.0)
    }

    /// Returns its full name, with the folders that it lies in.
    pub fn name(&self) -> String {
        self.object.title()
    }

    /// Returns the cost of its data since the pool was opened.
    pub fn effort(&self) -> VolumeEffort {
        self.object.effort.report()
    }

    /// Enters a request: the range lies within the volume, and the volume is not destroyed while
    /// the guard is held.
    fn enter(&self, offset: u64, length: u64) -> Result<RwLockReadGuard<'_, (), ranks::Gate>> {
        let guard = self.object.gate.read();
        self.check_range(offset, length)?;
        Ok(guard)
    }

    /// Checks that a request may enter; the caller holds the gate.
    pub(crate) fn check_range(&self, offset: u64, length: u64) -> Result<()> {
        if self.volumes.vitals.is_closed() {
            return Err(Error::new(ErrorKind::Io, "the pool has been closed"));
        }
        let size = self.object.size_bytes();
        if !self.object.is_readable() {
            return Err(Error::new(ErrorKind::NotFound, format!("'{}' has been destroyed", self.object.title())));
        }
        if offset.checked_add(length).is_none_or(|end| end > size) {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("{length} bytes at byte {offset} reach past the end of the volume, which has {size} bytes"),
            ));
        }
        Ok(())
    }

    /// Begins a read: starts reading ahead, and returns whether this read may itself be read ahead
    /// at the moment.
    pub(crate) fn begin_read(&self, offset: u64, length: u64) -> bool {
        if self.volumes.vitals.is_inline() {
            return false;
        }
        let advice = self.read_ahead.begin(offset, length);
        if let Some(range) = advice.ahead {
            self.volumes.fetches.read_ahead(&self.read_ahead, &self.object, range);
        }
        advice.expected || self.files_ahead.load(Ordering::Relaxed) > 0
    }

    /// Reads files ahead, each a range that ends with its data. Returns the decoded bytes of units
    /// that were not in memory.
    pub(crate) fn read_files_ahead(&self, files: impl Iterator<Item = Range<u64>>) -> u64 {
        // Not while another thread changes the object's chain of levels.
        let gate = self.object.gate.try_read().filter(|_| self.object.is_readable());
        let Some(_gate) = gate.filter(|_| !self.volumes.vitals.is_closed()) else { return 0 };
        self.files_ahead.fetch_add(1, Ordering::Relaxed);
        let bytes = self.volumes.reads.load_files(&self.object, files);
        self.files_ahead.fetch_sub(1, Ordering::Relaxed);
        bytes
    }

    /// Bytes of files that may be read ahead before a client reads them; 0: none.
    pub(crate) fn files_ahead_max(&self) -> u64 {
        if self.volumes.vitals.is_inline() { 0 } else { self.volumes.reads.units.files_ahead_max() }
    }

    /// Ends a read.
    pub(crate) fn end_read(&self) {
        if !self.volumes.vitals.is_inline() {
            self.read_ahead.end();
        }
    }

    /// Reads, unless something must be fetched first; `is_expected`: the range is being read ahead.
    pub(crate) fn read_expected(&self, offset: u64, buf: &mut [u8], is_expected: bool) -> Result<()> {
        let _guard = self.enter(offset, buf.len() as u64)?;
        self.volumes.reads.read_with(&self.object, offset, buf, is_expected)
    }

    /// Enters a request that changes something.
    fn enter_to_change(&self, offset: u64, length: u64) -> Result<RwLockReadGuard<'_, (), ranks::Gate>> {
        let guard = self.enter(offset, length)?;
        if !self.object.is_live() {
            let text = format!("'{}' is a snapshot, which never changes: write to a clone of it", self.object.title());
            return Err(Error::new(ErrorKind::ReadOnly, text));
        }
        self.volumes.vitals.check_failed()?;
        Ok(guard)
    }

    fn key(&self, group: GroupIndex) -> GroupKey {
        GroupKey { object: self.object.id, group }
    }

    /// Puts whole blocks into the write buffer, zero blocks as holes unless they must stay
    /// allocated. By reference, unless the request's buffer would be kept in memory for less than
    /// half of it, or is so large that its used part could soon be next to nothing.
    ///
    /// The first group has its room in the buffer already; each further one waits for it.
    fn write_blocks(
        &self,
        first: BlockIndex,
        data: Bytes,
        keep_zeroes: bool,
        hint: Hint,
        mut room: Admitted<'_>,
    ) -> Result<()> {
        let blocks = data.len() / BLOCK_BYTES;
        if first.in_group() as usize + blocks <= GROUP_BLOCKS {
            self.volumes.writes.wake_workers(room.buffer_limit())?;
            let kept = kept_blocks(first, &data, keep_zeroes);
            let is_copied = 2 * (kept.count() as usize) < blocks;
            return self.write_group(first, data, kept, (!is_copied).then_some(blocks), hint);
        }
        let is_large = data.len() > PINNED_BYTES_MAX;
        let mut kept: SmallVec<[BlockMask; 9]> = SmallVec::new();
        if !is_large {
            kept.extend(in_groups(first, blocks).map(|(at, range)| kept_blocks(at, &data[range], keep_zeroes)));
        }
        let kept_count: usize = kept.iter().map(|kept| kept.count() as usize).sum();
        let pinned = (!is_large && 2 * kept_count >= blocks).then_some(blocks);
        for (index, (at, range)) in in_groups(first, blocks).enumerate() {
            self.volumes.writes.throttle(&mut room)?;
            let data = data.slice(range);
            let kept = kept.get(index).copied().unwrap_or_else(|| kept_blocks(at, &data, keep_zeroes));
            self.write_group(at, data, kept, pinned, hint)?;
        }
        Ok(())
    }

    /// Writes whole blocks of one group, of which `kept` stay blocks. `pinned`: the number of
    /// blocks in the request's buffer, which is kept; `None`: the blocks are copied. All blocks of
    /// one unit are written at once (RELIABILITY.md, "whole pages").
    fn write_group(
        &self,
        first: BlockIndex,
        data: Bytes,
        kept: BlockMask,
        pinned: Option<usize>,
        hint: Hint,
    ) -> Result<()> {
        let key = self.key(first.group());
        let hint = Hint { copies: self.object.copies_of(key.group), ..hint };
        let start = first.in_group();
        let end = start + (data.len() / BLOCK_BYTES) as u32;
        if kept == BlockMask::run(start, end - start) {
            // By far the most frequent case: nothing is sliced, so no reference is counted.
            let run = |data| DirtyRun { hint, ..DirtyRun::of(start as u8, (end - start) as u8, data) };
            let run = match pinned {
                Some(pinned) => DirtyRun { pinned: pinned as u16, ..run(data) },
                None => run(Bytes::copy_from_slice(&data)),
            };
            return self.volumes.writes.put(key, run);
        }
        // Units of zeroes have no record of their bytes.
        let units = kept.widened(self.object.settings.read().unit_blocks);
        let mut from = start;
        while from < end {
            let has_data = units.has(from);
            let to = (from..end).find(|block| units.has(*block) != has_data).unwrap_or(end);
            if has_data {
                let range = (from - start) as usize * BLOCK_BYTES..(to - start) as usize * BLOCK_BYTES;
                let run = DirtyRun::of(from as u8, (to - from) as u8, data.slice(range));
                let run = DirtyRun { pinned: pinned.map_or(COPIED, |pinned| pinned as u16), hint, ..run };
                let kept = kept.and(run.mask());
                self.volumes.writes.put_with_holes(key, run, kept)?;
            } else {
                self.volumes.writes.put(key, DirtyRun::hole(from as u8, (to - from) as u8))?;
            }
            from = to;
        }
        Ok(())
    }

    /// Writes a part of one block: reads the rest of it, and tries again if another thread has
    /// written nearby. A large hole, which bypasses the write buffer, is ordered before it or after
    /// it.
    pub(crate) fn write_part(
        &self,
        offset: u64,
        data: &[u8],
        keep_zeroes: bool,
        hint: Hint,
        room: &Admitted<'_>,
    ) -> Result<()> {
        let block = BlockIndex::containing(offset);
        let key = self.key(block.group());
        let hint = Hint { copies: self.object.copies_of(key.group), ..hint };
        let skip = (offset - block.offset_bytes()) as usize;
        self.volumes.writes.wake_workers(room.buffer_limit())?;
        let _no_hole = self.object.parts.read();
        loop {
            let version = self.volumes.buffer.version(key);
            let mut content = vec![0; BLOCK_BYTES];
            self.volumes.reads.read(&self.object, block.offset_bytes(), &mut content)?;
            content[skip..skip + data.len()].copy_from_slice(data);
            let (first, hole) = (block.in_group() as u8, !keep_zeroes && policy::is_zero(&content));
            let data = || DirtyRun { hint, ..DirtyRun::of(first, 1, Bytes::from(content)) };
            let run = if hole { DirtyRun::hole(first, 1) } else { data() };
            match self.volumes.buffer.insert_if(key, run, version) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(_) => self.volumes.writes.make_standby_room()?,
            }
        }
    }

    /// Divides a range into the partial block at its start, whole blocks, and the partial block at
    /// its end.
    fn divide(offset: u64, length: u64) -> [std::ops::Range<u64>; 3] {
        let end = offset + length;
        let body = offset.next_multiple_of(BLOCK).min(end);
        let tail = if end / BLOCK * BLOCK < body { body } else { end / BLOCK * BLOCK };
        [offset..body, body..tail, tail..end]
    }

    /// Makes a change, after fetching the groups that it needs.
    fn change(&self, offset: u64, length: u64, attempt: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let note = |error: &Error| {
            self.volumes.reads.images.note_unwritten(&self.object, offset..offset.saturating_add(length), error);
        };
        self.volumes.fetches.fetching(&self.object, attempt).inspect_err(note)
    }

    /// Writes, unless the write needs a part of a block that must be fetched first.
    fn write_once(&self, offset: u64, data: Bytes, hint: Hint) -> Result<()> {
        let _guard = self.enter_to_change(offset, data.len() as u64)?;
        let room = self.volumes.make_room.admit(&self.object, offset, data.len() as u64)?;
        self.write_bytes(offset, data, false, hint, room)
    }

    fn write_bytes(&self, offset: u64, data: Bytes, keep_zeroes: bool, hint: Hint, room: Admitted<'_>) -> Result<()> {
        if offset.is_multiple_of(BLOCK) && data.len().is_multiple_of(BLOCK_BYTES) {
            return self.write_blocks(BlockIndex::containing(offset), data, keep_zeroes, hint, room);
        }
        let [head, body, tail] = Self::divide(offset, data.len() as u64);
        let part =
            |range: &std::ops::Range<u64>| data.slice((range.start - offset) as usize..(range.end - offset) as usize);
        for edge in [&head, &tail] {
            if !edge.is_empty() {
                self.write_part(edge.start, &part(edge), keep_zeroes, hint, &room)?;
            }
        }
        if !body.is_empty() {
            self.write_blocks(BlockIndex::containing(body.start), part(&body), keep_zeroes, hint, room)?;
        }
        Ok(())
    }

    /// Makes a range read as zeroes: whole blocks become holes. For a large one the gate is
    /// released now and then: a thread that waits for it keeps all others waiting.
    fn punch(&self, offset: u64, length: u64) -> Result<()> {
        let guard = self.enter_to_change(offset, length)?;
        let size_bytes = self.object.size_bytes();
        // A partial last block goes whole, before the rest: while this gate is held, nothing can be
        // written after it.
        let last = size_bytes / BLOCK * BLOCK;
        let is_to_the_end = length > 0 && offset + length == size_bytes && last < size_bytes;
        let length = match is_to_the_end {
            true if offset <= last => {
                let block = BlockIndex::containing(last);
                self.punch_blocks(block, BlockIndex(block.0 + 1))?;
                last - offset
            }
            true => size_bytes.next_multiple_of(BLOCK) - offset,
            false => length,
        };
        let [head, body, tail] = Self::divide(offset, length);
        for edge in [&head, &tail] {
            if !edge.is_empty() {
                let room = self.volumes.make_room.admit(&self.object, edge.start, edge.end - edge.start)?;
                let zeroes = vec![0; (edge.end - edge.start) as usize];
                self.write_part(edge.start, &zeroes, false, Hint::default(), &room)?;
            }
        }
        let from = BlockIndex::containing(body.start);
        let to = BlockIndex::containing(body.end);
        if to.0.saturating_sub(from.0) <= BUFFERED_DISCARD_GROUPS * GROUP_BLOCKS as u64 {
            return self.punch_blocks(from, to);
        }
        let mut pace = Pace::default();
        let (mut at, mut guard) = (from, Some(guard));
        while at < to {
            let _guard = match guard.take() {
                Some(guard) => guard,
                None => self.enter_to_change(at.offset_bytes(), to.offset_bytes() - at.offset_bytes())?,
            };
            at = self.volumes.punch_piece(&self.object, (at, to), &mut pace)?;
        }
        // Writes before the hole must not be replayed over it.
        if self.volumes.buffer.standby().is_some() { self.volumes.writes.drain_past_current() } else { Ok(()) }
    }

    /// Makes blocks `from..to` holes, by way of the write buffer.
    fn punch_blocks(&self, from: BlockIndex, to: BlockIndex) -> Result<()> {
        let mut at = from;
        while at < to {
            let count = (GROUP_BLOCKS as u64 - u64::from(at.in_group())).min(to.0 - at.0);
            self.volumes.writes.throttle_unadmitted()?;
            self.volumes.writes.put(self.key(at.group()), DirtyRun::hole(at.in_group() as u8, count as u8))?;
            at = BlockIndex(at.0 + count);
        }
        Ok(())
    }
}

/// Returns the groups that `blocks` blocks from `first` on touch: where each part begins, and its
/// bytes.
fn in_groups(first: BlockIndex, blocks: usize) -> impl Iterator<Item = (BlockIndex, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = BlockIndex(first.0 + done as u64);
        let count = (GROUP_BLOCKS - at.in_group() as usize).min(blocks - done);
        done += count;
        (count > 0).then(|| (at, (done - count) * BLOCK_BYTES..done * BLOCK_BYTES))
    })
}

/// Returns which blocks of a group stay blocks when `data` is written from `first` on: all, or
/// those that are not zero.
pub(crate) fn kept_blocks(first: BlockIndex, data: &[u8], keep_zeroes: bool) -> BlockMask {
    let blocks = data.as_chunks::<BLOCK_BYTES>().0.iter().zip(first.in_group()..);
    blocks
        .filter(|(block, _)| keep_zeroes || !policy::is_zero(&block[..]))
        .fold(BlockMask::EMPTY, |mask, (_, at)| mask.or(BlockMask::run(at, 1)))
}

impl BlockDevice for Volume {
    fn size_bytes(&self) -> u64 {
        self.object.size_bytes()
    }

    fn is_read_only(&self) -> bool {
        !self.object.is_live()
    }

    fn block_bytes(&self) -> (u32, u32) {
        (BLOCK_BYTES as u32, PREFERRED_BYTES)
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let guard = self.enter(offset, buf.len() as u64)?;
        let is_expected = self.begin_read(offset, buf.len() as u64);
        let mut result = self.volumes.reads.read_with(&self.object, offset, buf, is_expected);
        drop(guard);
        if result.as_ref().is_err_and(MissingGroups::in_chain) {
            result = self.volumes.fetches.fetching(&self.object, &mut || self.read_expected(offset, buf, is_expected));
        }
        self.end_read();
        result
    }

    fn reads_together(&self) -> bool {
        self.volumes.vitals.env.disk.read_ring().is_some()
    }

    fn read_many(&self, next: &mut dyn FnMut() -> Option<Box<dyn PendingRead>>) {
        self.read_together(next);
    }

    fn read_cached(&self, offset: u64, buf: &mut [u8]) -> Result<bool> {
        let _guard = self.enter(offset, buf.len() as u64)?;
        let done = self.volumes.reads.read_cached(&self.object, offset, buf);
        if done
            && !self.volumes.vitals.is_inline()
            && let Some(range) = self.read_ahead.passed(offset, buf.len() as u64)
        {
            self.volumes.fetches.read_ahead(&self.read_ahead, &self.object, range);
        }
        Ok(done)
    }

    /// 1. The range is checked, zero blocks become holes. 2. The bytes go into the write buffer;
    ///    here the write is acknowledged.
    /// 3. With FUA: a flush.
    fn write(&self, offset: u64, data: Bytes, options: WriteOptions) -> Result<()> {
        self.write_hinted(offset, data, Hint::default())?;
        if options.fua { self.flush() } else { Ok(()) }
    }

    fn write_hinted(&self, offset: u64, data: Bytes, hint: Hint) -> Result<()> {
        let length = data.len() as u64;
        self.change(offset, length, &mut || self.write_once(offset, data.clone(), hint))?;
        self.volumes.vitals.counters.written_bytes.add(length);
        self.object.quota.tails.wrote(offset + length);
        Ok(())
    }

    fn write_would_wait(&self) -> bool {
        self.volumes.space.would_wait()
    }

    fn full_wait(&self) -> Option<std::time::Duration> {
        self.object.settings.read().when_full.patience()
    }

    fn flush(&self) -> Result<()> {
        self.object.quota.tails.flushed();
        self.volumes.writes.flush()
    }

    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.change(offset, length, &mut || self.punch(offset, length))
    }

    fn write_zeroes(&self, offset: u64, length: u64, options: ZeroOptions) -> Result<()> {
        if options.no_hole {
            // All of it or nothing.
            drop(self.enter_to_change(offset, length)?);
            // A megabyte at a time, so that a huge request does not fill memory; cut where blocks
            // end, so that none is written in parts.
            let (mut at, mut left) = (offset, length);
            while left > 0 {
                let len = left.min((1 << 20) - at % BLOCK);
                self.change(at, len, &mut || {
                    let _guard = self.enter_to_change(at, len)?;
                    let room = self.volumes.make_room.admit(&self.object, at, len)?;
                    self.write_bytes(at, Bytes::from(vec![0; len as usize]), true, Hint::default(), room)
                })?;
                (at, left) = (at + len, left - len);
            }
        } else {
            self.discard(offset, length)?;
        }
        if options.fua { self.volumes.writes.flush() } else { Ok(()) }
    }

    fn allocation(&self, offset: u64, length: u64, runs_max: usize) -> Result<Vec<Run>> {
        let _guard = self.enter(offset, length)?;
        self.volumes.reads.allocation(&self.object, offset, length, runs_max)
    }

    fn prefetch(&self, offset: u64, length: u64) -> Result<()> {
        let _guard = self.enter(offset, length)?;
        self.volumes.reads.prefetch(&self.object, offset, length, Purpose::Kept)
    }

    fn allocated_bytes(&self) -> u64 {
        self.volumes.allocated_bytes(&self.object)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use sim::Machine;

    use super::*;
    use crate::pool::testing::pool_on;

    /// A request's buffer, which is counted while it is in memory.
    struct Tracked(Vec<u8>, Arc<AtomicUsize>);

    impl Tracked {
        fn of(bytes: Vec<u8>, live: &Arc<AtomicUsize>) -> Bytes {
            live.fetch_add(bytes.len(), Ordering::Relaxed);
            Bytes::from_owner(Self(bytes, Arc::clone(live)))
        }
    }

    impl AsRef<[u8]> for Tracked {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    impl Drop for Tracked {
        fn drop(&mut self) {
            self.1.fetch_sub(self.0.len(), Ordering::Relaxed);
        }
    }

    /// Bytes of requests in memory, and the write buffer's own count, after `write` has written to
    /// a volume of 64 MiB.
    fn kept(write: impl Fn(&Volume, &dyn Fn(Vec<u8>) -> Bytes)) -> (usize, usize) {
        let machine = Machine::new(256 << 20, 1);
        let pool = pool_on(&machine, machine.disk.handle(), 256 << 20, 0);
        pool.create_volume("v", 64 << 20, &Default::default()).unwrap();
        let live = Arc::new(AtomicUsize::new(0));
        write(&pool.volume("v").unwrap(), &|bytes| Tracked::of(bytes, &live));
        (live.load(Ordering::Relaxed), pool.core.buffer.bytes())
    }

    #[test]
    fn a_request_does_not_stay_in_memory_for_one_block_that_is_not_zero() {
        let (live, counted) = kept(|volume, tracked| {
            for megabyte in 0..64u64 {
                let mut bytes = vec![0; 1 << 20];
                bytes[(megabyte as usize * 37 % 256) * BLOCK_BYTES] = 1;
                volume.write(megabyte << 20, tracked(bytes), WriteOptions::default()).unwrap();
            }
        });
        assert!(counted >= 64 * BLOCK_BYTES, "HARNESS: {counted} bytes are in the write buffer");
        assert!(live <= 4 * (counted + (1 << 20)), "{live} bytes in memory, {counted} counted");
    }

    #[test]
    fn a_request_does_not_stay_in_memory_for_the_little_that_was_not_overwritten() {
        for (size, left) in [(4, BLOCK_BYTES), (4, GROUP_BYTES), (1, BLOCK_BYTES), (1, GROUP_BYTES)] {
            let (size, left) = ((size << 20) as u64, left as u64);
            let (live, counted) = kept(|volume, tracked| {
                for offset in (0..4 << 20).step_by(size as usize) {
                    volume.write(offset, tracked(vec![1; size as usize]), WriteOptions::default()).unwrap();
                    volume.discard(offset + left, size - left).unwrap();
                }
            });
            assert!(live <= PINNED_TIMES * counted, "{left} of {size}: {live} bytes in memory, {counted} counted");
        }
    }

    #[test]
    fn zeroes_past_the_end_are_refused_before_anything_is_zeroed() {
        let machine = Machine::new(16 << 20, 1);
        let pool = pool_on(&machine, machine.disk.handle(), 16 << 20, 0);
        pool.create_volume("v", 4 << 20, &Default::default()).unwrap();
        let volume = pool.volume("v").unwrap();
        volume.write(0, Bytes::from(vec![1; 4 << 20]), WriteOptions::default()).unwrap();
        for no_hole in [true, false] {
            let options = ZeroOptions { no_hole, ..ZeroOptions::default() };
            let refused = volume.write_zeroes(2 << 20, 3 << 20, options).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
            let mut buf = vec![0; 4 << 20];
            volume.read(0, &mut buf).unwrap();
            assert!(buf.iter().all(|byte| *byte == 1), "nothing has changed, no_hole: {no_hole}");
        }
    }

    #[test]
    fn a_handle_of_a_closed_pool_reads_nothing_more() {
        let machine = Machine::new(16 << 20, 1);
        let pool = pool_on(&machine, machine.disk.handle(), 16 << 20, 0);
        pool.create_volume("v", 4 << 20, &Default::default()).unwrap();
        let volume = pool.volume("v").unwrap();
        pool.close().unwrap();
        let mut buf = vec![0; BLOCK_BYTES];
        assert_eq!(volume.read(0, &mut buf).unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(volume.read_cached(0, &mut buf).unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(volume.write(0, buf.into(), WriteOptions::default()).unwrap_err().kind(), ErrorKind::Io);
    }

    /// Of a megabyte, a group.
    const PINNED_TIMES: usize = PINNED_BYTES_MAX / GROUP_BYTES;

    #[test]
    fn ranges_divide_into_edges_and_whole_blocks() {
        for (offset, length, expected) in [
            (0, 8192, [0..0, 0..8192, 8192..8192]),
            (1, 10, [1..11, 11..11, 11..11]),
            (4095, 2, [4095..4096, 4096..4096, 4096..4097]),
            (100, 8192, [100..4096, 4096..8192, 8192..8292]),
            (4096, 5000, [4096..4096, 4096..8192, 8192..9096]),
            (10, 0, [10..10, 10..10, 10..10]),
        ] {
            assert_eq!(Volume::divide(offset, length), expected, "{length} bytes at {offset}");
        }
    }
}
