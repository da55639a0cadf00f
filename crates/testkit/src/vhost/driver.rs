//! The guest's side: requests into rings, answers out of them.

use std::sync::atomic::{Ordering, fence};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use vm_memory::{Bytes, GuestAddress};

use super::{AVAILABLE, BASE, Monitor, RING_SIZE, SLOT_DESCRIPTORS, USED, WINDOW, feature};
use crate::until;

const FIRST_SLOT: u64 = 0x10000;
const SLOT: u64 = 0x30000;
const IN_SLOT_STATUS: u64 = 16;
const IN_SLOT_TABLE: u64 = 64;
const IN_SLOT_DATA: u64 = 0x1000;
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// An operation of the driver.
#[derive(Debug, Clone)]
pub enum Op {
    /// Reads so many bytes at an offset.
    Read(u64, usize),
    /// Writes at an offset.
    Write(u64, Vec<u8>),
    /// Makes writes durable.
    Flush,
    /// Discards a range.
    Discard(u64, u64),
    /// Zeroes a range; `true`: its space may be freed.
    Zeroes(u64, u64, bool),
    /// Asks for the serial number.
    Identify,
    /// A request of an unknown type, without data.
    Unknown(u32),
}

/// The answer to an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// 0: done, 1: failed, 2: not supported.
    pub status: u8,
    /// Bytes that the server says it has written.
    pub written: u32,
    /// The data of a read.
    pub data: Vec<u8>,
}

impl Monitor {
    fn ring_at(ring: usize, offset: u64) -> GuestAddress {
        GuestAddress(BASE + WINDOW * ring as u64 + offset)
    }

    fn slot_at(ring: usize, slot: u16, offset: u64) -> GuestAddress {
        Self::ring_at(ring, FIRST_SLOT + SLOT * u64::from(slot) + offset)
    }

    /// Whether another request may be under way in that ring.
    pub fn has_slot(&self, ring: usize) -> bool {
        !self.rings[ring].free.is_empty()
    }

    /// Adds a request and kicks; its slot.
    ///
    /// # Panics
    /// When all slots are taken.
    pub fn submit(&mut self, ring: usize, op: &Op) -> u16 {
        let slot = self.put(ring, op);
        self.kick(ring);
        slot
    }

    /// Adds a request.
    ///
    /// # Panics
    /// When all slots are taken.
    pub fn put(&mut self, ring: usize, op: &Op) -> u16 {
        let slot = self.rings[ring].free.pop().unwrap();
        let zeroes = |offset: u64, length: u64, flags: u32| {
            [(offset / 512).to_le_bytes().as_slice(), &(length as u32 / 512).to_le_bytes(), &flags.to_le_bytes()]
                .concat()
        };
        let (kind, sector, out, back) = match op {
            Op::Read(offset, length) => (0, offset / 512, Vec::new(), *length),
            Op::Write(offset, data) => (1, offset / 512, data.clone(), 0),
            Op::Flush => (4, 0, Vec::new(), 0),
            Op::Identify => (8, 0, Vec::new(), 20),
            Op::Discard(offset, length) => (11, 0, zeroes(*offset, *length, 0), 0),
            Op::Zeroes(offset, length, may_unmap) => (13, 0, zeroes(*offset, *length, u32::from(*may_unmap)), 0),
            Op::Unknown(kind) => (*kind, 0, Vec::new(), 0),
        };
        let header = u128::from(kind) | u128::from(sector) << 64;
        self.write(Self::slot_at(ring, slot, 0), &header.to_le_bytes());
        self.write(Self::slot_at(ring, slot, IN_SLOT_STATUS), &[0xff]);
        self.write(Self::slot_at(ring, slot, IN_SLOT_DATA), &out);
        let mut parts = vec![(0, 16, 0)];
        let (length, direction) = if back > 0 { (back, WRITE) } else { (out.len(), 0) };
        // In two pieces, which are no sectors.
        let cut = if length > 600 { 600 } else { length };
        for (from, to) in [(0, cut), (cut, length)] {
            if to > from {
                parts.push((IN_SLOT_DATA + from as u64, (to - from) as u32, direction));
            }
        }
        parts.push((IN_SLOT_STATUS, 1, WRITE));
        self.put_descriptors(ring, slot, &parts);
        let driver = &mut self.rings[ring];
        driver.lengths.insert(slot, back);
        driver.available = driver.available.wrapping_add(1);
        let available = driver.available;
        let entry = u64::from(available.wrapping_sub(1) % RING_SIZE);
        self.write(Self::ring_at(ring, AVAILABLE + 4 + 2 * entry), &(slot * SLOT_DESCRIPTORS).to_le_bytes());
        self.set_available(ring, available);
        slot
    }

    fn put_descriptors(&self, ring: usize, slot: u16, parts: &[(u64, u32, u16)]) {
        let is_indirect = self.is_indirect && self.features & feature::INDIRECT_DESC != 0;
        let first = if is_indirect { 0 } else { slot * SLOT_DESCRIPTORS };
        let mut table = Vec::new();
        for (index, (offset, length, flags)) in parts.iter().enumerate() {
            let next = if index + 1 < parts.len() { (NEXT, first + index as u16 + 1) } else { (0, 0) };
            table.extend_from_slice(&Self::slot_at(ring, slot, *offset).0.to_le_bytes());
            table.extend_from_slice(&length.to_le_bytes());
            table.extend_from_slice(&(flags | next.0).to_le_bytes());
            table.extend_from_slice(&next.1.to_le_bytes());
        }
        let place = Self::ring_at(ring, 16 * u64::from(slot * SLOT_DESCRIPTORS));
        if is_indirect {
            let inner = Self::slot_at(ring, slot, IN_SLOT_TABLE);
            self.write(inner, &table);
            let mut outer = inner.0.to_le_bytes().to_vec();
            outer.extend_from_slice(&(table.len() as u32).to_le_bytes());
            outer.extend_from_slice(&INDIRECT.to_le_bytes());
            outer.extend_from_slice(&[0; 2]);
            self.write(place, &outer);
        } else {
            self.write(place, &table);
        }
    }

    fn write(&self, address: GuestAddress, bytes: &[u8]) {
        self.memory.write_slice(bytes, address).unwrap();
    }

    /// Sets the available index, unchecked.
    ///
    /// # Panics
    /// Never: it is in memory.
    pub fn set_available(&self, ring: usize, index: u16) {
        self.memory.store(index, Self::ring_at(ring, AVAILABLE + 2), Ordering::SeqCst).unwrap();
    }

    /// The place of a ring's descriptor table.
    pub fn table(ring: usize) -> GuestAddress {
        Self::ring_at(ring, 0)
    }

    /// Kicks the server, if it asks for kicks.
    ///
    /// # Panics
    /// Never: it is in memory.
    pub fn kick(&self, ring: usize) {
        fence(Ordering::SeqCst);
        let is_wanted = if self.features & feature::EVENT_IDX == 0 {
            self.memory.load::<u16>(Self::ring_at(ring, USED), Ordering::SeqCst).unwrap() & 1 == 0
        } else {
            let place = Self::ring_at(ring, USED + 4 + 8 * u64::from(RING_SIZE));
            let event: u16 = self.memory.load(place, Ordering::SeqCst).unwrap();
            // Requests are added one by one here.
            self.rings[ring].available.wrapping_sub(event).wrapping_sub(1) < 1
        };
        if is_wanted {
            self.kick_always(ring);
        }
    }

    /// Kicks the server unconditionally.
    ///
    /// # Panics
    /// Never: the counter is not full.
    pub fn kick_always(&self, ring: usize) {
        rustix::io::write(&self.rings[ring].kick, &1_u64.to_ne_bytes()).unwrap();
    }

    /// Takes the answers that are there.
    fn collect(&mut self, ring: usize) {
        let index: u16 = self.memory.load(Self::ring_at(ring, USED + 2), Ordering::SeqCst).unwrap();
        while self.rings[ring].used != index {
            let entry = u64::from(self.rings[ring].used % RING_SIZE);
            let place = Self::ring_at(ring, USED + 4 + 8 * entry);
            let (head, written): (u32, u32) = {
                let both: u64 = self.memory.read_obj(place).unwrap();
                (both as u32, (both >> 32) as u32)
            };
            let slot = head as u16 / SLOT_DESCRIPTORS;
            assert_eq!(u32::from(slot * SLOT_DESCRIPTORS), head, "a head that is none");
            let length =
                self.rings[ring].lengths.remove(&slot).unwrap_or_else(|| panic!("slot {slot} is answered twice"));
            let mut data = vec![0; length];
            self.memory.read_slice(&mut data, Self::slot_at(ring, slot, IN_SLOT_DATA)).unwrap();
            let status = self.memory.read_obj(Self::slot_at(ring, slot, IN_SLOT_STATUS)).unwrap();
            let driver = &mut self.rings[ring];
            driver.answers.insert(slot, Answer { status, written, data });
            driver.used = driver.used.wrapping_add(1);
        }
        if self.features & feature::EVENT_IDX != 0 {
            let place = Self::ring_at(ring, AVAILABLE + 4 + 2 * u64::from(RING_SIZE));
            self.memory.store(index, place, Ordering::SeqCst).unwrap();
        }
    }

    /// The answer to a request, if it is there.
    pub fn poll(&mut self, ring: usize, slot: u16) -> Option<Answer> {
        self.collect(ring);
        let driver = &mut self.rings[ring];
        let answer = driver.answers.remove(&slot)?;
        driver.free.push(slot);
        Some(answer)
    }

    /// Waits for the answer to a request.
    ///
    /// # Panics
    /// When it does not come.
    pub fn wait(&mut self, ring: usize, slot: u16) -> Answer {
        let mut answer = None;
        until("a request is answered", || {
            answer = self.poll(ring, slot);
            if answer.is_none() {
                self.sleep(ring);
            }
            answer.is_some()
        });
        answer.unwrap()
    }

    /// Sleeps until answers are announced, or for a moment: one may have come before.
    fn sleep(&self, ring: usize) {
        let call = &self.rings[ring].call;
        let mut waiting = [PollFd::new(call, PollFlags::IN)];
        let moment = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        if poll(&mut waiting, Some(&moment)) == Ok(1) {
            rustix::io::read(call, &mut [0; 8]).unwrap();
        }
    }

    /// Waits until answers are announced, and for no answer that is not.
    ///
    /// # Panics
    /// When none comes.
    pub fn await_call(&self, ring: usize) {
        rustix::io::read(&self.rings[ring].call, &mut [0; 8]).unwrap();
    }

    /// Does an operation.
    ///
    /// # Panics
    /// When it is not answered.
    pub fn run(&mut self, ring: usize, op: &Op) -> Answer {
        let slot = self.submit(ring, op);
        self.wait(ring, slot)
    }

    /// Does an operation that must succeed; the data of a read.
    ///
    /// # Panics
    /// When it fails.
    #[track_caller]
    pub fn ok(&mut self, ring: usize, op: &Op) -> Vec<u8> {
        let answer = self.run(ring, op);
        assert_eq!(answer.status, 0, "{op:?}");
        answer.data
    }
}
