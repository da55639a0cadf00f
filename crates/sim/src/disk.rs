//! An in-memory disk that distinguishes the content that reads return from the content certain to
//! survive a power loss.
//!
//! Durability model, per 512-byte sector: a successful sync makes every earlier write certain. When
//! the power returns, a sector holds its certain content, or that of any of the later writes to it:
//! any subset of them, in any order, torn anywhere. A punched sector may also hold zeroes or
//! garbage, with or without a crash. After a failed sync, the writes that it should have made
//! certain stay uncertain whatever later syncs of the same process report, as on Linux, where the
//! kernel clears the dirty flag of a page that could not be written.
//!
//! It is a device of fixed length, or a file ([`SimDisk::become_file`]), whose length is as certain
//! as the data written to it.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use env::{AlignedBuf, Disk, ReadRing};
use parking_lot::Mutex;

use crate::Rng;
use crate::image::{Image, PAGE};
use crate::length::Length;
use crate::power::{Fault, Generation, PointKind, Power, Verdict, power_lost};
use crate::ring::SimRing;

/// Bytes that the medium writes or does not write as a whole.
const SECTOR: usize = 512;

/// A write (or the new content of a punched range) that is not certain yet.
#[derive(Debug, Clone)]
struct Pending {
    offset: u64,
    data: Vec<u8>,
    punched: bool,
    /// A sync over it failed: no later sync makes it certain.
    doomed: bool,
}

#[derive(Debug)]
struct State {
    seen: Image,
    certain: Image,
    pending: Vec<Pending>,
    length: Length,
    is_file: bool,
    rng: Rng,
    /// Pages that occupy space below, and the limit.
    occupied: Vec<bool>,
    occupied_pages: usize,
    limit_pages: usize,
    unreadable: Vec<std::ops::Range<u64>>,
}

/// A simulated disk; the engine gets a [`DiskHandle`] to it.
#[derive(Debug)]
pub struct SimDisk {
    state: Mutex<State>,
    power: Arc<Power>,
    read_alignment: usize,
}

/// The disk as seen by one generation of its user.
#[derive(Debug)]
pub struct DiskHandle {
    disk: Arc<SimDisk>,
    generation: Generation,
}

impl SimDisk {
    /// An empty disk. The seed determines the remains of punched ranges and failed writes.
    pub fn new(power: Arc<Power>, size_bytes: u64, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let read_alignment = *rng.pick(&[512, 4096]);
        let image = Image::new(size_bytes);
        let pages = (size_bytes / PAGE as u64) as usize;
        let state = State {
            certain: image.clone(),
            seen: image,
            pending: Vec::new(),
            length: Length::new(size_bytes),
            is_file: false,
            rng,
            occupied: vec![false; pages],
            occupied_pages: 0,
            limit_pages: usize::MAX,
            unreadable: Vec::new(),
        };
        Self { state: Mutex::new(state), power, read_alignment }
    }

    /// A handle for a machine that starts now.
    pub fn handle(self: &Arc<Self>) -> Arc<DiskHandle> {
        Arc::new(DiskHandle { disk: Arc::clone(self), generation: self.power.generation() })
    }

    /// Limits the space below: writes and reservations that would exceed it fail with ENOSPC.
    /// `None` removes the limit.
    pub fn limit_space(&self, bytes: Option<u64>) {
        self.state.lock().limit_pages = bytes.map_or(usize::MAX, |b| (b / PAGE as u64) as usize);
    }

    /// Turns the disk into a file of this length, which may grow to the disk's length.
    pub fn become_file(&self, bytes: u64) {
        let mut state = self.state.lock();
        assert!(bytes <= state.seen.size_bytes(), "a file of {bytes} bytes on a smaller disk");
        state.length = Length::new(bytes);
        state.is_file = true;
    }

    /// Makes reads that touch the range fail with EIO, until [`heal`](Self::heal) or until it is
    /// written over.
    pub fn break_reads(&self, range: std::ops::Range<u64>) {
        self.state.lock().unreadable.push(range);
    }

    /// Ends all read errors.
    pub fn heal(&self) {
        self.state.lock().unreadable.clear();
    }

    /// Turns one bit of the medium over.
    pub fn flip_bit(&self, offset: u64, bit: u8) {
        let mut state = self.state.lock();
        state.seen.flip_bit(offset, bit);
        state.certain.flip_bit(offset, bit);
    }

    /// Reads the current content of the medium, bypassing all faults.
    pub fn peek(&self, offset: u64, out: &mut [u8]) {
        self.state.lock().seen.read(offset, out);
    }

    /// Writes to the medium, bypassing all faults; certain immediately.
    pub fn poke(&self, offset: u64, data: &[u8]) {
        let mut state = self.state.lock();
        state.seen.write(offset, data);
        state.certain.write(offset, data);
    }

    /// A copy of the medium's current state, with its unreadable places and nothing pending,
    /// attached to another power switch: for trying one image many times.
    pub fn duplicate(&self, power: Arc<Power>) -> Self {
        let state = self.state.lock();
        let copy = State {
            seen: state.seen.clone(),
            certain: state.seen.clone(),
            pending: Vec::new(),
            length: Length::new(state.length.bytes()),
            is_file: state.is_file,
            rng: state.rng.clone(),
            occupied: state.occupied.clone(),
            occupied_pages: state.occupied_pages,
            limit_pages: usize::MAX,
            unreadable: state.unreadable.clone(),
        };
        Self { state: Mutex::new(copy), power, read_alignment: self.read_alignment }
    }

    /// Decides the state after a power loss.
    pub(crate) fn settle(&self, rng: &mut Rng) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let pending = std::mem::take(&mut state.pending);
        for (op, tear) in survivors(pending, rng) {
            state.certain_apply(&op, tear, rng);
        }
        state.seen = state.certain.clone();
        state.length.settle(rng);
    }
}

impl SimDisk {
    /// Decides the state seen by the next process after the previous one died with the power on.
    /// Writes whose sync failed are forgotten: each of their sectors was dropped, or is an ordinary
    /// write again.
    pub(crate) fn restart(&self, rng: &mut Rng) {
        let mut state = self.state.lock();
        let state = &mut *state;
        state.length.restart(rng);
        if !state.pending.iter().any(|op| op.doomed) {
            return;
        }
        state.pending.retain_mut(|op| !std::mem::take(&mut op.doomed) || rng.coin());
        state.seen = state.certain.clone();
        for op in &state.pending {
            state.seen.write(op.offset, &op.data);
        }
    }
}

/// Which sectors of a surviving write survive.
#[derive(Debug, Clone, Copy)]
enum Tear {
    Whole,
    Random,
    Prefix,
    AllButOne,
}

/// Chooses the writes that survive and their order. A uniform choice per sector would hardly ever
/// produce the regular patterns (all but one write lost, only the last one present), so a pattern
/// is chosen first.
fn survivors(mut pending: Vec<Pending>, rng: &mut Rng) -> Vec<(Pending, Tear)> {
    let count = pending.len();
    if count == 0 {
        return Vec::new();
    }
    match rng.below(10) {
        0 => Vec::new(),
        1 => pending.into_iter().map(|op| (op, Tear::Whole)).collect(),
        2 | 3 => {
            pending.truncate(rng.index(count) + 1);
            let last = pending.len() - 1;
            let tear = *rng.pick(&[Tear::Random, Tear::Prefix, Tear::AllButOne]);
            pending.into_iter().enumerate().map(|(i, op)| (op, if i == last { tear } else { Tear::Whole })).collect()
        }
        4 => {
            let lost = rng.index(count);
            pending.into_iter().enumerate().filter(|(i, _)| *i != lost).map(|(_, op)| (op, Tear::Whole)).collect()
        }
        5 => {
            let torn = rng.index(count);
            let tear = |i| if i == torn { Tear::AllButOne } else { Tear::Whole };
            pending.into_iter().enumerate().map(|(i, op)| (op, tear(i))).collect()
        }
        6 => pending.pop().map(|op| (op, if rng.coin() { Tear::Whole } else { Tear::Random })).into_iter().collect(),
        7 => {
            pending.retain(|_| rng.coin());
            pending.into_iter().map(|op| (op, Tear::Whole)).collect()
        }
        8 => {
            rng.shuffle(&mut pending);
            pending.retain(|_| rng.percent(70));
            pending.into_iter().map(|op| (op, if rng.coin() { Tear::Whole } else { Tear::Random })).collect()
        }
        _ => {
            rng.shuffle(&mut pending);
            pending.into_iter().map(|op| (op, Tear::Random)).collect()
        }
    }
}

impl State {
    fn certain_apply(&mut self, op: &Pending, tear: Tear, rng: &mut Rng) {
        let sectors = op.data.len() / SECTOR;
        let special = rng.index(sectors.max(1));
        for sector in 0..sectors {
            let survives = match tear {
                Tear::Whole => true,
                Tear::Random => rng.coin(),
                Tear::Prefix => sector < special,
                Tear::AllButOne => sector != special,
            };
            if !survives {
                continue;
            }
            let range = sector * SECTOR..(sector + 1) * SECTOR;
            let at = op.offset + range.start as u64;
            if op.punched {
                let mut garbage = [0; SECTOR];
                if rng.coin() {
                    rng.fill(&mut garbage);
                }
                self.certain.write(at, &garbage);
            } else {
                self.certain.write(at, &op.data[range]);
            }
        }
    }

    fn write(&mut self, offset: u64, data: &[u8], punched: bool) {
        self.seen.write(offset, data);
        self.pending.push(Pending { offset, data: data.to_vec(), punched, doomed: false });
        let end = offset + data.len() as u64;
        self.unreadable.retain(|bad| bad.start < offset || bad.end > end);
    }

    /// Leaves a range in a state that punching a hole may leave: zeroes as in a file, the old bytes
    /// as on a device that ignores it, garbage because it is allowed.
    fn punch(&mut self, offset: u64, len: u64) {
        let mut left = vec![0; len as usize];
        match self.rng.below(4) {
            0 | 1 => {}
            2 => self.seen.read(offset, &mut left),
            _ => self.rng.fill(&mut left),
        }
        self.write(offset, &left, true);
        for there in &mut self.occupied[page_range(offset, len)] {
            self.occupied_pages -= usize::from(std::mem::take(there));
        }
    }

    /// Allocates space for a range; false when there is not enough.
    fn occupy(&mut self, offset: u64, len: u64) -> bool {
        let pages = page_range(offset, len);
        let missing = self.occupied[pages.clone()].iter().filter(|there| !**there).count();
        if self.occupied_pages.saturating_add(missing) > self.limit_pages && missing > 0 {
            return false;
        }
        self.occupied[pages].fill(true);
        self.occupied_pages += missing;
        true
    }

    fn sync(&mut self) {
        self.length.sync();
        let ops = std::mem::take(&mut self.pending);
        if !ops.iter().any(|op| op.doomed) {
            for op in &ops {
                self.certain.copy_pages(&self.seen, op.offset, op.data.len());
            }
            return;
        }
        // Doomed sectors (all older than the rest) stay in doubt unless covered by something
        // certain.
        let mut covered = HashSet::new();
        for op in ops.iter().filter(|op| !op.doomed) {
            self.certain.write(op.offset, &op.data);
            covered.extend((op.offset..op.offset + op.data.len() as u64).step_by(SECTOR));
        }
        self.pending = ops.into_iter().filter(|op| op.doomed && !covered.contains(&op.offset)).collect();
    }

    fn fail_sync(&mut self) {
        self.length.fail_sync();
        let ops = std::mem::take(&mut self.pending);
        for op in ops {
            for (i, sector) in op.data.chunks(SECTOR).enumerate() {
                let offset = op.offset + (i * SECTOR) as u64;
                self.pending.push(Pending { offset, data: sector.to_vec(), punched: op.punched, doomed: true });
            }
        }
    }
}

fn page_range(offset: u64, len: u64) -> std::ops::Range<usize> {
    (offset / PAGE as u64) as usize..(offset + len).div_ceil(PAGE as u64) as usize
}

fn io_error(what: &str, offset: u64, len: u64) -> io::Error {
    io::Error::other(format!("simulated I/O error: {what} of {len} bytes at {offset}"))
}

fn no_space(what: &str, offset: u64, len: u64) -> io::Error {
    io::Error::new(io::ErrorKind::StorageFull, format!("simulated lack of space: {what} of {len} bytes at {offset}"))
}

impl DiskHandle {
    /// Consults the power switch; a bit flip is applied here, everything else is up to the caller.
    fn point(&self, kind: PointKind, offset: u64, len: u64) -> Result<Option<Fault>, io::Error> {
        match self.disk.power.point(self.generation, kind, offset, len) {
            Verdict::Proceed => Ok(None),
            Verdict::Dead => Err(power_lost()),
            Verdict::Fail(Fault::FlipBit { offset, len }) => {
                let (at, bit) = {
                    let rng = &mut self.disk.state.lock().rng;
                    (offset + rng.below(len), rng.below(8) as u8)
                };
                self.disk.flip_bit(at, bit);
                Ok(None)
            }
            Verdict::Fail(fault) => Ok(Some(fault)),
        }
    }

    fn check_range(&self, what: &str, offset: u64, len: u64, alignment: usize) {
        let size = self.disk.state.lock().length.bytes();
        let alignment = alignment as u64;
        assert!(
            offset.is_multiple_of(alignment) && len.is_multiple_of(alignment),
            "{what} of {len} bytes at {offset}: not aligned to {alignment}"
        );
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= size),
            "{what} of {len} bytes at {offset}: past the end ({size})"
        );
    }
}

impl Disk for DiskHandle {
    fn read_alignment(&self) -> usize {
        self.disk.read_alignment
    }

    fn read_at(&self, offset: u64, buf: &mut AlignedBuf, len: usize) -> io::Result<()> {
        self.check_range("read", offset, len as u64, self.disk.read_alignment);
        match self.point(PointKind::Read, offset, len as u64)? {
            None => {}
            Some(Fault::Crash) => return Err(power_lost()),
            Some(_) => return Err(io_error("read", offset, len as u64)),
        }
        let state = self.disk.state.lock();
        let end = offset + len as u64;
        if state.unreadable.iter().any(|bad| bad.start < end && offset < bad.end) {
            return Err(io_error("read", offset, len as u64));
        }
        state.seen.read(offset, &mut buf[..len]);
        Ok(())
    }

    fn read_ring(&self) -> Option<Box<dyn ReadRing + '_>> {
        let seed = self.disk.state.lock().rng.next_u64();
        Some(Box::new(SimRing::new(self, seed)))
    }

    fn write_at(&self, offset: u64, buf: &AlignedBuf, len: usize) -> io::Result<()> {
        self.check_range("write", offset, len as u64, PAGE);
        let _running = self.disk.power.running();
        let fault = self.point(PointKind::Write, offset, len as u64)?;
        let data = &buf[..len];
        let mut state = self.disk.state.lock();
        let state = &mut *state;
        match fault {
            Some(Fault::Crash) => {
                // A program may die in the middle of a write, with the power on.
                let kept = if state.rng.coin() { len } else { state.rng.index(len / SECTOR) * SECTOR };
                state.write(offset, &data[..kept], false);
                return Err(power_lost());
            }
            Some(Fault::NoSpace) => return Err(no_space("write", offset, len as u64)),
            Some(Fault::ShortWrite) => {
                let kept = state.rng.index(len / SECTOR) * SECTOR;
                state.write(offset, &data[..kept], false);
                return Err(io_error("short write", offset, len as u64));
            }
            Some(_) => {
                for (i, sector) in data.chunks(SECTOR).enumerate() {
                    if state.rng.coin() {
                        state.write(offset + (i * SECTOR) as u64, sector, false);
                    }
                }
                return Err(io_error("write", offset, len as u64));
            }
            None => {}
        }
        if !state.occupy(offset, len as u64) {
            return Err(no_space("write", offset, len as u64));
        }
        state.write(offset, data, false);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let _running = self.disk.power.running();
        let fault = self.point(PointKind::Sync, 0, 0)?;
        let mut state = self.disk.state.lock();
        match fault {
            None => state.sync(),
            Some(Fault::Crash) => return Err(power_lost()),
            Some(_) => {
                state.fail_sync();
                return Err(io_error("sync", 0, 0));
            }
        }
        Ok(())
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check_range("reserve", offset, len, PAGE);
        let _running = self.disk.power.running();
        match self.point(PointKind::Reserve, offset, len)? {
            None => {}
            Some(Fault::Crash) => return Err(power_lost()),
            Some(Fault::NoSpace) => return Err(no_space("reserve", offset, len)),
            Some(_) => return Err(io_error("reserve", offset, len)),
        }
        if self.disk.state.lock().occupy(offset, len) { Ok(()) } else { Err(no_space("reserve", offset, len)) }
    }

    fn room_bytes(&self) -> u64 {
        let state = self.disk.state.lock();
        match state.limit_pages {
            usize::MAX => u64::MAX,
            limit => (limit.saturating_sub(state.occupied_pages) * PAGE) as u64,
        }
    }

    fn has_space(&self, offset: u64, len: u64) -> bool {
        self.disk.state.lock().occupied[page_range(offset, len)].iter().all(|there| *there)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check_range("punch", offset, len, PAGE);
        let _running = self.disk.power.running();
        let fault = self.point(PointKind::Punch, offset, len)?;
        if matches!(fault, None | Some(Fault::Crash)) {
            self.disk.state.lock().punch(offset, len);
        }
        match fault {
            None => Ok(()),
            Some(Fault::Crash) => Err(power_lost()),
            Some(_) => Err(io_error("punch", offset, len)),
        }
    }

    fn grow(&self, bytes: u64) -> io::Result<()> {
        if bytes <= self.size_bytes()? {
            return Ok(());
        }
        let _running = self.disk.power.running();
        let fault = self.point(PointKind::Grow, bytes, 0)?;
        let mut state = self.disk.state.lock();
        if !state.is_file || bytes > state.seen.size_bytes() {
            return Err(no_space("grow", bytes, 0));
        }
        match fault {
            None => state.length.set(bytes),
            Some(Fault::Crash) => {
                state.length.set(bytes);
                return Err(power_lost());
            }
            Some(Fault::NoSpace) => return Err(no_space("grow", bytes, 0)),
            Some(_) => return Err(io_error("grow", bytes, 0)),
        }
        Ok(())
    }

    fn shrink(&self, bytes: u64) -> io::Result<()> {
        let size = self.size_bytes()?;
        if bytes >= size {
            return Ok(());
        }
        let _running = self.disk.power.running();
        let fault = self.point(PointKind::Shrink, bytes, 0)?;
        if matches!(fault, None | Some(Fault::Crash)) {
            let mut state = self.disk.state.lock();
            // The old content is gone, on a device as well: it may grow again.
            state.punch(bytes, size - bytes);
            if state.is_file {
                state.length.set(bytes);
            }
        }
        match fault {
            None => Ok(()),
            Some(Fault::Crash) => Err(power_lost()),
            Some(_) => Err(io_error("shrink", bytes, 0)),
        }
    }

    fn size_bytes(&self) -> io::Result<u64> {
        Ok(self.disk.state.lock().length.bytes())
    }

    fn occupied_bytes(&self) -> io::Result<u64> {
        Ok((self.disk.state.lock().occupied_pages * PAGE) as u64)
    }
}
