//! Many concurrent reads of one thread.
//!
//! 1. A read *begins*: it enters the volume and the extents, and takes the blocks that are in
//!    memory (steps 1 to 3 of `reader`). The missing units are handed to the disk's ring,
//!    neighbours in one read.
//! 2. Completed reads of the ring are verified and decoded into the request's buffer (step 4
//!    there), in any order.
//! 3. With its last piece the read is done, and another read may have its place.
//!
//! Unusual reads are done in the ordinary way, one after the other, when nothing of this thread is
//! in flight:
//! - a read that failed, so that the error is found again and named;
//! - a read that is too large;
//! - a read of units that are being read ahead, which is waited for;
//! - a read of groups that must be fetched from an image, which takes long: these are fetched
//!   together.
//!
//! Each read in flight holds two locks, shared. No other lock is waited for in that time: a thread
//! that wants a lock exclusively may be waiting for these reads. If a lock is not immediately
//! available, nothing more begins until all of this thread's reads are done.

use store::base::ranked::RwLockReadGuard;
use store::base::ranks;
use store::base::scratch::{self, Scratch};
use store::objects::Object;
use surface::{Error, ErrorKind, PendingRead, Result};

use crate::read::lacking::MissingGroups;
use crate::read::reader::{Request, Wanted, copy_live, verify};
use crate::read::spans::{EndedSpan, Span, SpanReads, payload_of};
use crate::read::unit_cache::{Claim, Purpose};
use crate::volume::Volume;
use crate::volume::parts::Volumes;

/// Upper bound of one thread's reads in flight, and approximately of their bytes of the data file.
const READS_MAX: usize = 32;
const BYTES_MAX: usize = 2 << 20;
/// Larger requests keep the device busy by themselves.
const REQUEST_BYTES_MAX: usize = 1 << 20;

/// A fragment that is read, because it was requested, because it goes into the cache, or both.
struct Part<'a> {
    wanted: Wanted,
    claim: Option<Claim<'a>>,
    is_asked: bool,
}

/// A read under way.
struct Started<'a> {
    read: Box<dyn PendingRead>,
    parts: Vec<Part<'a>>,
    /// Spans that are still being read.
    left: usize,
    has_failed: bool,
    _gate: RwLockReadGuard<'a, (), ranks::Gate>,
    /// See `Reads::readers`.
    _in_extents: RwLockReadGuard<'a, (), ranks::Readers>,
}

/// The reads of one thread.
struct Reads<'a> {
    volume: &'a Volume,
    volumes: &'a Volumes,
    spans: SpanReads<'a>,
    under_way: [Option<Started<'a>>; READS_MAX],
    free: Vec<usize>,
    /// Reads to do in the ordinary way, and whether they are being read ahead.
    later: Vec<(Box<dyn PendingRead>, bool)>,
}

impl Volume {
    /// See [`BlockDevice::read_many`](surface::BlockDevice::read_many).
    pub(crate) fn read_together(&self, next: &mut dyn FnMut() -> Option<Box<dyn PendingRead>>) {
        let Some(spans) = SpanReads::in_ring(&self.volumes.reads) else { return surface::read_each(self, next) };
        let free = (0..READS_MAX).rev().collect();
        let under_way = std::array::from_fn(|_| None);
        Reads { volume: self, volumes: &self.volumes, spans, under_way, free, later: Vec::new() }.run(next);
    }
}

impl<'a> Reads<'a> {
    fn run(mut self, next: &mut dyn FnMut() -> Option<Box<dyn PendingRead>>) {
        let mut held = None;
        loop {
            while self.later.is_empty()
                && self.spans.bytes() < BYTES_MAX
                && !self.free.is_empty()
                && let Some(read) = held.take().or_else(&mut *next)
            {
                held = self.begin(read);
                if held.is_some() {
                    break;
                }
            }
            if let Some(ended) = self.spans.wait() {
                self.end(ended);
            } else if !self.later.is_empty() {
                self.read_later(next);
            } else if held.is_none() {
                return;
            }
        }
    }

    /// Does the unusual reads. If they need groups of images, more reads are accepted, and all such
    /// groups are fetched together: so none of these waits longer than `remote-timeout`.
    fn read_later(&mut self, next: &mut dyn FnMut() -> Option<Box<dyn PendingRead>>) {
        let (volumes, volume) = (self.volumes, self.volume);
        let (mut remote, mut keys) = (Vec::new(), Vec::new());
        loop {
            let later = self.later.pop();
            let Some((mut read, is_expected)) = later.or_else(|| self.one_more(remote.len(), next)) else { break };
            let offset = read.offset();
            let result = volume.read_expected(offset, read.buf(), is_expected);
            match result.as_ref().err().and_then(MissingGroups::of) {
                Some(MissingGroups(lacking)) => {
                    keys.extend_from_slice(lacking);
                    remote.push((read, is_expected));
                }
                None => self.finish(read, result),
            }
        }
        if remote.is_empty() {
            return;
        }
        let patience = volumes.fetches.patience(&volume.object);
        keys.sort_unstable();
        keys.dedup();
        let arrived = volumes.fetches.fetch(&keys, &patience);
        // Each reports the result of its own groups.
        let patience = if arrived.is_ok() { patience } else { patience.for_one_more() };
        for (mut read, is_expected) in remote {
            let offset = read.offset();
            let attempt = &mut || volume.read_expected(offset, read.buf(), is_expected);
            let result = volumes.fetches.fetching_for(&volume.object, &patience, attempt);
            self.finish(read, result);
        }
        drop(arrived);
        volumes.reads.images.drop_unheld();
    }

    /// Returns one more read to be done along with some that wait for an image, and whether it is
    /// being read ahead.
    fn one_more(
        &self,
        remote: usize,
        next: &mut dyn FnMut() -> Option<Box<dyn PendingRead>>,
    ) -> Option<(Box<dyn PendingRead>, bool)> {
        if remote == 0 || remote == READS_MAX {
            return None;
        }
        let mut read = next()?;
        let is_expected = self.volume.begin_read(read.offset(), read.buf().len() as u64);
        Some((read, is_expected))
    }

    /// Step 1. Returns the read if its locks are not immediately available.
    fn begin(&mut self, mut read: Box<dyn PendingRead>) -> Option<Box<dyn PendingRead>> {
        let (volume, volumes, object) = (self.volume, self.volumes, &*self.volume.object);
        let (offset, len) = (read.offset(), read.buf().len());
        let (gate, in_extents) = if self.free.len() == READS_MAX {
            (object.gate.read(), volumes.reads.readers.read())
        } else {
            let Some(gate) = object.gate.try_read() else { return Some(read) };
            let Some(in_extents) = volumes.reads.readers.try_read() else { return Some(read) };
            (gate, in_extents)
        };
        if let Err(error) = volume.check_range(offset, len as u64) {
            drop((gate, in_extents));
            read.finish(Err(error));
            return None;
        }
        if len == 0 {
            read.finish(Ok(()));
            return None;
        }
        let is_expected = volume.begin_read(offset, len as u64);
        if is_expected || len > REQUEST_BYTES_MAX {
            self.later.push((read, is_expected));
            return None;
        }
        let mut request = Request::new(offset, read.buf());
        let keep = request.is_kept();
        let Ok(wanted) = volumes.reads.missing(object, &mut request, false) else {
            self.later.push((read, false));
            return None;
        };
        if wanted.is_empty() {
            drop((gate, in_extents));
            volumes.vitals.counters.read_bytes.add(len as u64);
            self.finish(read, Ok(()));
            return None;
        }
        let parts = self.parts(wanted, keep);
        match volumes.reads.spans(object, &parts, |part| &part.wanted).collect::<Result<Vec<_>>>() {
            Ok(spans) => {
                let index = self.free.pop()?;
                let left = spans.len();
                spans.into_iter().for_each(|span| self.spans.begin(index, span));
                let started = Started { read, parts, left, has_failed: false, _gate: gate, _in_extents: in_extents };
                self.under_way[index] = Some(started);
            }
            Err(_) => self.later.push((read, false)),
        }
        None
    }

    /// Returns the reads for missing fragments: `keep` if units may be kept, and then the rest of
    /// their groups while there is plenty of room.
    fn parts(&self, wanted: Vec<Wanted>, keep: bool) -> Vec<Part<'a>> {
        let object = &*self.volume.object;
        let is_roomy = keep && self.volumes.reads.units.has_plenty_of_room();
        let mut around = if is_roomy { self.volumes.reads.claim_around(object, &wanted) } else { Vec::new() };
        let mut parts: Vec<_> = wanted
            .into_iter()
            .map(|wanted| {
                let of = |(near, _): &(Wanted, _)| {
                    near.group == wanted.group && near.piece.fragment.location == wanted.piece.fragment.location
                };
                let claim = around.iter().position(of).map(|index| around.swap_remove(index).1);
                Part { wanted, claim, is_asked: true }
            })
            .collect();
        parts.extend(around.into_iter().map(|(wanted, claim)| Part { wanted, claim: Some(claim), is_asked: false }));
        parts.sort_unstable_by_key(|part| part.wanted.piece.fragment.location);
        parts
    }

    /// Steps 2 and 3.
    fn end(&mut self, ended: EndedSpan) {
        let EndedSpan { owner, span: Span { fragments, start, len }, is_whole, buf } = ended;
        let Some(started) = &mut self.under_way[owner] else { return };
        let parts = &mut started.parts[fragments];
        let used = is_whole
            && !started.has_failed
            && self.volumes.use_parts(&self.volume.object, parts, &buf[..len], start, &mut *started.read).is_ok();
        started.has_failed |= !used;
        started.left -= 1;
        self.volumes.buffers.put(buf);
        if started.left == 0
            && let Some(Started { mut read, has_failed, .. }) = self.under_way[owner].take()
        {
            self.free.push(owner);
            if has_failed {
                self.later.push((read, false));
            } else {
                self.volumes.vitals.counters.read_bytes.add(read.buf().len() as u64);
                self.finish(read, Ok(()));
            }
        }
    }

    fn finish(&self, read: Box<dyn PendingRead>, result: Result<()>) {
        self.volume.end_read();
        read.finish(result);
    }
}

impl Volumes {
    /// Verifies and decodes bytes read from byte `start` of the data file on.
    fn use_parts(
        &self,
        object: &Object,
        parts: &mut [Part<'_>],
        bytes: &[u8],
        start: u64,
        read: &mut dyn PendingRead,
    ) -> Result<()> {
        let offset = read.offset();
        let mut request = Request::new(offset, read.buf());
        scratch::with(|scratch| {
            let Scratch { codecs, unit: room, .. } = scratch;
            for Part { wanted, claim, is_asked } in parts {
                let payload = payload_of(wanted, bytes, start);
                let claim = claim.take();
                if let Err(text) = verify(wanted.group, &wanted.piece, payload) {
                    if *is_asked {
                        self.reads.suspects.note(wanted.piece.fragment.location);
                        return Err(Error::new(ErrorKind::Corrupt, text));
                    }
                    continue;
                }
                let undecoded = |error: &Error| self.reads.suspect_undecoded(wanted, error);
                match claim {
                    Some(claim) => {
                        let unit = self.reads.decode_unit(object, wanted, payload, codecs).inspect_err(undecoded)?;
                        if *is_asked {
                            self.reads.note_piece(object, wanted);
                            copy_live(wanted.group, &wanted.piece, unit.as_ref(), &mut request);
                        }
                        self.reads.fill(claim, unit, Purpose::Kept);
                    }
                    None => {
                        let delivered = self.reads.deliver(object, wanted, payload, (codecs, room), &mut request);
                        delivered.inspect_err(undecoded)?;
                    }
                }
            }
            Ok(())
        })
    }
}
