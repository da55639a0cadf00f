//! From the write buffer to the log.
//!
//! 1. Groups are taken from the write buffer, about a megabyte of raw data.
//! 2. Their consecutive blocks become units, in the order of (object, block). A hole that lies
//!    beside data of its unit is listed apart from others, so that no division parts the two.
//! 3. Each unit is compressed straight into the batch, after room for the header, with the codec
//!    that its properties name or that `chooser` picks; one that saves too little is stored raw.
//!    The checksum is computed while the bytes are hot.
//! 4. In a pool that the cleaner has to work for, data that is not written often is separated for
//!    the log's cold stream (`write::write_heat`).
//! 5. Copies of the data follow, in streams of their own (`write::copies`).
//! 6. The batch, or all of them, are appended; when the last one is applied, the groups leave the
//!    buffer.
//!
//! Any number of threads do this at the same time, each with groups of its own.

use std::sync::Arc;

use format::{Entry, FragmentEntry, FragmentIdentity, Stream, fragment_checksum, fragment_entry_bytes, header_bytes};
use policy::{Compression, Settings, plan_units, unit_blocks, wants_dictionary};
use store::base::group::GroupKey;
use store::base::scratch::{self, Scratch};
use store::buffer::sorted::{came_from, compress_as_before, sorted_blocks, sorted_bytes};
use store::buffer::write_buffer::{DirtyRun, Taken};
use store::log::prepared::Prepared;
use store::log::zero_ahead::TAIL_BYTES;
use store::log::{Purpose, Refusal, Ticket};
use store::objects::Object;
use store::objects::effort::Compressing;
use surface::{Error, ErrorKind, Hint, Result};
use units::{BLOCK_BYTES, BlockIndex, BlockMask, Epoch, ObjectId};

use crate::codecs::chooser;
use crate::codecs::compress::compress_with;
use crate::codecs::dictionaries::Encoders;
use crate::codecs::hints::{compression_of, copies_of, hint_of, may_be_helped, place_of, taught_by};
use crate::codecs::regions::RegionKey;
use crate::write::Writes;
use crate::write::copies::Copied;

/// Raw bytes of a batch: large enough that its padding (2 KiB on average) and the tail of an extent
/// that it cannot fill are below one per cent at the usual ratios, small enough that two workers
/// share a burst and that a batch fits in a default extent.
pub(crate) const BATCH_RAW_BYTES: usize = 1 << 20;
/// Hole ranges of one entry (its count has two bytes).
pub(super) const HOLES_PER_ENTRY: usize = 4096;

/// A batch is divided between the streams only if each part has this many bytes of payload: padding
/// costs 2 KiB a batch on average.
const PART_BYTES_MIN: usize = 32 << 10;

/// A unit to compress: its taken group, and its blocks.
struct Unit {
    taken: usize,
    first: u32,
    count: u32,
    settings: Settings,
    hint: Hint,
    /// In how many more copies it is stored.
    copies: u8,
}

/// Units and holes of consecutive groups of one object and epoch.
struct Run<'a> {
    object: ObjectId,
    epoch: Epoch,
    /// The object whose counts include its cost.
    counted: Arc<Object>,
    /// The dictionaries for its small units, if there are any.
    dictionaries: Option<Encoders<'a>>,
    units: Vec<Unit>,
    holes: Vec<(BlockIndex, u32)>,
}

impl Writes {
    /// Drains one batch of the data that became dirty up to `generation` and waits until it is
    /// written. Returns `false` if there was none.
    pub(crate) fn drain(&self, generation: u64) -> Result<bool> {
        let Some(prepared) = self.prepare(generation)? else { return Ok(false) };
        self.append_drained(prepared)?;
        Ok(true)
    }

    /// Appends drained parts and waits until they are written.
    pub(crate) fn append_drained(&self, parts: Vec<Prepared>) -> Result<()> {
        self.append_parts(parts, |prepared, purpose| self.append(prepared, purpose))?;
        self.signals.drained();
        Ok(())
    }

    /// Like [`drain`](Self::drain), but leaves the writing to the writer threads. If that fails,
    /// the next call reports it.
    pub(crate) fn drain_ahead(&self) -> Result<bool> {
        if let Some(error) = self.log.take_failure() {
            return Err(error);
        }
        let Some(prepared) = self.prepare(u64::MAX)? else { return Ok(false) };
        self.append_parts(prepared, |prepared, purpose| {
            self.append_with(prepared, purpose, |prepared| self.log.enqueue(prepared, purpose))
        })?;
        Ok(true)
    }

    /// Step 6: the parts of a drain, the last of which completes it.
    fn append_parts(&self, parts: Vec<Prepared>, append: impl Fn(Prepared, Purpose) -> Result<Ticket>) -> Result<()> {
        let mut parts = parts.into_iter();
        let mut begun = None;
        while let Some(mut part) = parts.next() {
            part.begun = begun;
            let purpose = purpose_of(&part);
            match append(part, purpose) {
                Ok(ticket) => begun = Some(ticket.incarnation),
                Err(error) => {
                    // The failed part itself was returned to the buffer; the parts of other threads
                    // are still here.
                    parts.for_each(|part| self.buffer.failed(&part.taken));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Steps 1 to 5. `None`: nothing was dirty; no part: the taken groups need no batch.
    fn prepare(&self, generation: u64) -> Result<Option<Vec<Prepared>>> {
        self.checkpoints.heal()?;
        // Changes that accumulate faster than checkpoints write them would fill memory: then
        // draining waits for one.
        if self.map.is_frozen() {
            self.checkpoints.bound_changes()?;
        }
        let share = self.shares.write_buffer / 4;
        let ahead = self.ahead.collect();
        let taken = self.buffer.take(BATCH_RAW_BYTES.min(share), generation);
        let had_some = !taken.is_empty();
        let fresh = self.compress_taken(taken);
        let mut parts = ahead.parts();
        let had_some = had_some || !parts.is_empty();
        parts.extend(fresh);
        let prepared = Prepared::joined(parts, &self.buffers).map_or_else(Vec::new, |prepared| self.complete(prepared));
        Ok(had_some.then_some(prepared))
    }

    /// Steps 2 and 3. `None`: the taken groups need no batch.
    pub(crate) fn compress_taken(&self, mut taken: Vec<Taken>) -> Option<Prepared> {
        taken.sort_unstable_by_key(|t| t.key);
        let (mut runs, gone) = self.plan(&mut taken);
        self.buffer.completed(&gone);
        if taken.is_empty() {
            return None;
        }
        let runs_taken = taken.iter().flat_map(|t| t.runs.iter());
        let raw_bytes: usize = runs_taken.map(|run| run.data.as_ref().map_or(0, |data| data.len())).sum();
        let began = self.vitals.env.clock.now_ns();
        let prepared = scratch::with(|scratch| self.compress(scratch, &mut runs, taken));
        self.chooser.meter.drained(raw_bytes as u64, self.vitals.env.clock.now_ns().saturating_sub(began));
        self.space.set_buffer_timely(self.chooser.meter.timely_bytes(self.vitals.options.workers));
        Some(prepared)
    }

    /// Performs the remaining work of all appends of a drain.
    pub(crate) fn complete(&self, prepared: Prepared) -> Vec<Prepared> {
        let sorted = sorted_blocks(&prepared.taken);
        let copied = Copied::among(&prepared.taken);
        let moved_bytes = sorted_bytes(&prepared.entries, &sorted);
        self.vitals.counters.moved_bytes.add(moved_bytes);
        self.vitals.counters.rewritten_bytes.add(moved_bytes);
        self.vitals.counters.sorted_bytes.add(moved_bytes);
        self.vitals.counters.fragment_bytes.add(prepared.payload_bytes() as u64 - moved_bytes);
        let mut parts = self.separate(prepared, &sorted);
        if !copied.is_empty() {
            let of_part = |part| self.parts_of_copies(part, |object, fragment| copied.of(object, fragment));
            let more: Vec<_> = parts.iter().flat_map(of_part).collect();
            self.vitals.counters.fragment_bytes.add(more.iter().map(|part| part.payload_bytes() as u64).sum());
            // The last part completes the groups.
            let taken = parts.last_mut().map(|part| std::mem::take(&mut part.taken));
            parts.extend(more);
            if let (Some(last), Some(taken)) = (parts.last_mut(), taken) {
                last.taken = taken;
            }
        }
        parts
    }

    /// Step 4.
    fn separate(&self, mut prepared: Prepared, sorted: &[(GroupKey, BlockMask)]) -> Vec<Prepared> {
        // Sorted data is old, and must stay together.
        if !sorted.is_empty() && sorted.len() == prepared.taken.len() {
            prepared.stream = Stream::Cold;
            return vec![prepared];
        }
        if !self.space.is_short() {
            return vec![prepared];
        }
        let mut hot = Vec::new();
        // Bytes of payload of the cold part and of the hot one.
        let mut bytes = [0, 0];
        for (object, unit) in prepared.units() {
            let key = GroupKey { object, group: unit[0].first.group() };
            // Groups are taken in the order of their keys.
            let is_hot = sorted.binary_search_by_key(&key, |(key, _)| *key).is_err() && {
                let hot_blocks = |fragment: &FragmentEntry| {
                    let blocks = fragment.first.0..fragment.first.0 + u64::from(fragment.count);
                    let each = u64::from(fragment.stored) / u64::from(fragment.count);
                    blocks.filter(|block| self.rewrites.note(object, BlockIndex(*block), each)).count()
                };
                let hot: usize = unit.iter().map(hot_blocks).sum();
                2 * hot >= unit.iter().map(|fragment| usize::from(fragment.count)).sum()
            };
            hot.push(is_hot);
            bytes[usize::from(is_hot)] += unit.iter().map(|fragment| fragment.stored as usize).sum::<usize>();
        }
        let [cold_bytes, hot_bytes] = bytes;
        let mut parts = Vec::with_capacity(2);
        if cold_bytes.min(hot_bytes) >= PART_BYTES_MIN {
            // The smaller part is the one that is copied.
            let larger = hot_bytes >= cold_bytes;
            let mut each = hot.into_iter();
            let mut part = prepared.divide(|_, _| each.next() == Some(larger), &self.buffers);
            if let Some(part) = &mut part {
                part.stream = stream_of(larger);
            }
            parts.extend(part);
            prepared.stream = stream_of(!larger);
        } else {
            prepared.stream = stream_of(hot_bytes >= cold_bytes);
        }
        parts.push(prepared);
        parts
    }

    /// Step 2. Skips groups of objects that are being deleted.
    fn plan(&self, taken: &mut Vec<Taken>) -> (Vec<Run<'_>>, Vec<Taken>) {
        let mut runs: Vec<Run<'_>> = Vec::new();
        let mut gone = Vec::new();
        let mut object = None;
        let mut kept = Vec::with_capacity(taken.len());
        for group in taken.drain(..) {
            let id = group.key.object;
            if object.as_ref().is_none_or(|(known, _)| *known != id) {
                object = Some((id, self.objects.get(id).filter(|o| o.is_live())));
            }
            let Some((_, Some(object))) = &object else {
                gone.push(group);
                continue;
            };
            let epoch = object.epoch();
            let mut settings = *object.settings.read();
            if runs.last().is_none_or(|run| (run.object, run.epoch) != (id, epoch)) {
                let dictionaries = self.reads.encoders(object, &settings);
                let counted = Arc::clone(object);
                runs.push(Run { object: id, epoch, counted, dictionaries, units: Vec::new(), holes: Vec::new() });
            }
            settings.unit_blocks = settings.unit_blocks.min(self.geometry.unit_blocks_max());
            settings.unit_blocks_min = settings.unit_blocks_min.min(settings.unit_blocks);
            let in_pieces = settings.unit_blocks_min < settings.unit_blocks
                && self.chooser.regions.is_read_in_pieces(RegionKey::of(id, group.key.group.first_block()));
            if let Some(run) = runs.last_mut() {
                plan_group(run, &group, kept.len(), settings, in_pieces);
            }
            kept.push(group);
        }
        *taken = kept;
        (runs, gone)
    }

    /// Step 3.
    fn compress(&self, scratch: &mut Scratch, runs: &mut [Run<'_>], taken: Vec<Taken>) -> Prepared {
        let mut entries = Vec::new();
        let mut raw_bytes = 0;
        for run in runs.iter_mut() {
            for ranges in run.holes.chunks(HOLES_PER_ENTRY) {
                entries.push(Entry::Holes { object: run.object, epoch: run.epoch, ranges: ranges.to_vec() });
            }
            raw_bytes += run.units.iter().map(|u| u.count as usize * BLOCK_BYTES).sum::<usize>();
            let first = |unit: &Unit| BlockIndex(taken[unit.taken].key.group.first_block().0 + u64::from(unit.first));
            for unit in run.units.iter().filter(|unit| unit.copies > 0) {
                self.note_copies(&run.counted, first(unit), unit.copies);
            }
            let of_units = run.units.iter().map(|unit| (first(unit), unit.count));
            let changed = run.holes.iter().copied().chain(of_units);
            entries.extend(self.holes_of_copies(&run.counted, (run.object, run.epoch), changed));
        }
        // The header's size depends only on the number of fragments, so payloads can be written to
        // their final places.
        let mut header = header_bytes(&entries);
        for run in runs.iter().filter(|r| !r.units.is_empty()) {
            let empty = Entry::Fragments { object: run.object, epoch: run.epoch, fragments: Vec::new() };
            header += header_bytes(std::slice::from_ref(&empty)) - format::BATCH_FIXED_BYTES;
            // All blocks of an object take as many bytes in an entry.
            let each = run.units.first().map(|unit| taken[unit.taken].key.group.first_block());
            header += run.units.len() * each.map_or(0, fragment_entry_bytes);
        }
        // A little more, in case the batch takes zeroes along.
        let mut buf = self.buffers.get(header + raw_bytes + TAIL_BYTES);
        let mut at = header;
        let mut chosen = None;
        for run in runs.iter_mut().filter(|r| !r.units.is_empty()) {
            let mut fragments = Vec::with_capacity(run.units.len());
            let mut cost = Compressing::new(&*self.vitals.env.clock);
            for unit in &run.units {
                cost.begin();
                let Scratch { codecs, unit: gathered, spare, .. } = scratch;
                let group = &taken[unit.taken];
                let raw = bytes_of(&group.runs, unit, gathered);
                let target = &mut buf[at..at + raw.len()];
                let first = BlockIndex(group.key.group.first_block().0 + u64::from(unit.first));
                let (mut settings, hint) = (unit.settings, unit.hint);
                let wants_help = wants_dictionary(&settings, raw.len());
                let is_helped = run.dictionaries.is_some() && wants_help;
                settings.compression = compression_of(hint, &settings, raw, is_helped);
                let settings = &settings;
                let teach = || self.dictionaries.sampling.offer(run.object, taught_by(first, hint), raw);
                let (codec, stored) = match settings.compression {
                    Compression::Fixed(codec) => {
                        if wants_help && may_be_helped(hint, codec) {
                            teach();
                        }
                        self.chooser.count_fixed();
                        compress_with(codecs, codec, raw, target, settings)
                    }
                    Compression::Auto => {
                        let is_small = wants_dictionary(settings, raw.len());
                        let dictionaries = run.dictionaries.as_mut().filter(|_| is_small);
                        let (object, afresh) = (run.object, false);
                        let region = RegionKey::at(object, place_of(first, hint));
                        let unit = chooser::Unit { object, first, raw, settings, dictionaries, region, afresh, target };
                        let done = chosen.get_or_insert_with(|| self.begin_choosing()).store(unit, codecs, spare);
                        if is_small && !done.is_random {
                            teach();
                        }
                        (done.codec, done.stored)
                    }
                };
                let blocks = BlockMask::run(unit.first, unit.count);
                let again = came_from(&group.runs, blocks)
                    .filter(|(bytes, _)| stored > *bytes)
                    .and_then(|(_, before)| compress_as_before(codecs, before, raw, target, stored));
                let (codec, stored) = again.unwrap_or((codec, stored));
                cost.end(codec, raw.len(), stored);
                let identity = FragmentIdentity {
                    object: run.object,
                    epoch: run.epoch,
                    first,
                    count: unit.count as u8,
                    codec: codec.0,
                };
                let checksum = fragment_checksum(&identity, &target[..stored]);
                fragments.push(FragmentEntry {
                    first,
                    count: unit.count as u8,
                    codec: codec.0,
                    stored: stored as u32,
                    checksum,
                });
                at += stored;
            }
            cost.finish(&run.counted.effort);
            entries.push(Entry::Fragments { object: run.object, epoch: run.epoch, fragments });
        }
        if let Some(chosen) = chosen {
            chosen.finish();
        }
        debug_assert_eq!(header, header_bytes(&entries));
        let whole = runs.iter().flat_map(|run| &run.units).map(|unit| unit.settings.unit_blocks).max();
        let mut prepared = Prepared::new(entries, at - header, buf, taken);
        prepared.whole = whole.unwrap_or(1).max(1);
        prepared
    }

    fn begin_choosing(&self) -> chooser::Batch<'_> {
        let pressed = self.buffer.bytes() > self.shares.write_buffer / 2;
        self.chooser.begin(pressed, self.vitals.counters.written_bytes.get())
    }

    /// Appends, taking a checkpoint when the log has used up its list of extents.
    pub(crate) fn append(&self, prepared: Prepared, purpose: Purpose) -> Result<Ticket> {
        self.append_with(prepared, purpose, |prepared| self.log.append(prepared, purpose))
    }

    fn append_with<T>(
        &self,
        mut prepared: Prepared,
        purpose: Purpose,
        append: impl Fn(Prepared) -> std::result::Result<T, Refusal>,
    ) -> Result<T> {
        let mut has_space_been_sought = false;
        loop {
            let (back, room) = match append(prepared) {
                Ok(ticket) => {
                    self.checkpoints.ask_if_due();
                    return Ok(ticket);
                }
                Err(Refusal::Failed(error)) => return Err(error),
                Err(Refusal::NeedsCheckpoint(back)) => (*back, self.checkpoints.refill_list(purpose)),
                Err(Refusal::NeedsSpace(back, error)) if has_space_been_sought => (*back, Err(*error)),
                Err(Refusal::NeedsSpace(back, _)) => {
                    has_space_been_sought = true;
                    self.space.refresh_host_space();
                    (*back, self.checkpoints.take_light())
                }
            };
            if let Err(error) = room {
                self.buffer.failed(&back.taken);
                return Err(error);
            }
            prepared = back;
        }
    }

    /// Appends entries without payload and waits until they are applied.
    ///
    /// # Errors
    /// Those of the log; [`ErrorKind::Invalid`] for a descriptor that could not be decoded: a batch
    /// with one would end the log for recovery, and lose all flushed data after it.
    pub(crate) fn append_applied(&self, entries: Vec<Entry>) -> Result<()> {
        for entry in &entries {
            if let Entry::Object(descriptor) = entry {
                format::ObjectDescriptor::decode(&descriptor.encode()).map_err(|error| {
                    let text = format!("'{}' cannot be changed like that; this is a bug of Shale", descriptor.name);
                    Error::with_source(ErrorKind::Invalid, text, error)
                })?;
            }
        }
        self.vitals.check_failed()?;
        self.checkpoints.heal()?;
        let ticket = self.append(Prepared::metadata(entries, &self.buffers), Purpose::Metadata)?;
        self.log.wait_applied(ticket)
    }

    /// The same, and makes them durable.
    pub(crate) fn append_durably(&self, entries: Vec<Entry>) -> Result<()> {
        self.append_applied(entries)?;
        self.log.sync()
    }
}

/// Discards were not admitted, and need not be: they free space.
fn purpose_of(prepared: &Prepared) -> Purpose {
    if prepared.payload_bytes() > 0 { Purpose::Data } else { Purpose::Metadata }
}

fn plan_group(run: &mut Run<'_>, group: &Taken, taken: usize, settings: Settings, read_in_pieces: bool) {
    let start = group.key.group.first_block().0;
    let (mut data, mut holes) = (BlockMask::EMPTY, BlockMask::EMPTY);
    for dirty in group.runs.iter() {
        let mask = if dirty.data.is_some() { &mut data } else { &mut holes };
        *mask = mask.or(dirty.mask());
    }
    // Each of those beside data lies in one unit.
    let beside = holes.and(data.widened(settings.unit_blocks));
    let beside_data = plan_units(beside, settings.unit_blocks).map(|unit| (unit.first, unit.count));
    for (first, count) in beside_data.chain(holes.minus(beside).runs()) {
        run.holes.push((BlockIndex(start + u64::from(first)), count));
    }
    for unit in plan_units(data, unit_blocks(&settings, data, read_in_pieces)) {
        let blocks = BlockMask::run(unit.first, unit.count);
        let (hint, copies) = (hint_of(&group.runs, blocks), copies_of(&group.runs, blocks));
        run.units.push(Unit { taken, first: unit.first, count: unit.count, settings, hint, copies });
    }
}

/// Returns the stream for data that is written often, or for other data.
pub(crate) fn stream_of(is_hot: bool) -> Stream {
    if is_hot { Stream::Hot } else { Stream::Cold }
}

/// Returns the unit's bytes: in place if one run holds all of them, otherwise gathered.
fn bytes_of<'a>(runs: &'a [DirtyRun], unit: &Unit, gathered: &'a mut [u8]) -> &'a [u8] {
    let (first, len) = (unit.first as usize, unit.count as usize * BLOCK_BYTES);
    let wanted = BlockMask::run(unit.first, unit.count);
    for run in runs {
        if let Some(data) = &run.data
            && wanted.minus(run.mask()).is_empty()
        {
            let start = (first - usize::from(run.first)) * BLOCK_BYTES;
            return &data[start..start + len];
        }
    }
    for run in runs {
        let Some(data) = &run.data else { continue };
        for (block, count) in run.mask().and(wanted).runs() {
            let from = (block as usize - usize::from(run.first)) * BLOCK_BYTES;
            let to = (block as usize - first) * BLOCK_BYTES;
            let bytes = count as usize * BLOCK_BYTES;
            gathered[to..to + bytes].copy_from_slice(&data[from..from + bytes]);
        }
    }
    &gathered[..len]
}
