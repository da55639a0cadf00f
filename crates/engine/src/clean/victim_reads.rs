//! Reads the extents that are to be cleaned, scrubbed or checked a few ahead of their consumer, so
//! that the device stays busy. Owns the reads in flight of one round; belongs to the thread that
//! runs the round.
//!
//! The reader threads read them in pieces, between which other requests are served. Reads that they
//! drop because of load, or for lack of threads, are done by the consumer's thread.
//!
//! On an idle pool, scrub and check read whole extents through a ring of their own, with the queue
//! depth that the device needs for full throughput. On a virtual disk such requests starve writes
//! (see `env::FileDisk`), so this stops, until the next round, as soon as anything else is read or
//! written.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::mpsc::{Receiver, sync_channel};

use env::{AlignedBuf, ReadRing};
use store::base::buffers::{BufferPool, large_reads_bytes};
use store::base::vitals::Vitals;
use store::log::geometry::Geometry;
use store::log::log_reads::Source;
use store::space::extents::Victim;
use units::ExtentIndex;

use crate::clean::Cleaning;

/// Upper bound of extents of a round in memory while there is other load: one in use, the others
/// being read.
const EXTENTS_MAX: u64 = 4;
/// The part of the memory budget that they may take, if that is at least two extents.
const MEMORY_DIVISOR: u64 = 32;
/// The same bound on an idle pool. [`large_reads_bytes`] keeps a device busy, and a client that
/// begins then waits for these reads.
const ALONE_EXTENTS_MAX: u64 = 64;

type Outcome = io::Result<AlignedBuf>;

/// The victims of a round, in order, with their bytes.
pub(crate) struct VictimReads<'a> {
    cleaning: &'a Cleaning,
    rest: std::vec::IntoIter<Victim>,
    ahead: VecDeque<(Victim, Ahead)>,
    ring: Option<Ring<'a>>,
}

/// An extent that is being read.
enum Ahead {
    /// By a reader thread.
    Thread(Receiver<Outcome>),
    /// By the ring, under this tag.
    Ring(usize),
}

/// The ring, with reads that completed out of order.
struct Ring<'a> {
    reads: Box<dyn ReadRing + 'a>,
    /// `None`: it could not be read in this way.
    come: BTreeMap<usize, Option<AlignedBuf>>,
    next_tag: usize,
    /// [`Cleaning::traffic_bytes`] on an idle pool: grows with the bytes that the ring reads. `None`:
    /// there can be no other load.
    traffic_bytes: Option<u64>,
    /// A read was incomplete: the device or the ring may fail again.
    has_failed: bool,
}

impl Ring<'_> {
    /// Whether extents may be read by the ring.
    fn is_wanted(&self, cleaning: &Cleaning) -> bool {
        let is_alone = self.traffic_bytes.is_none_or(|bytes| cleaning.traffic_bytes() == bytes);
        is_alone && !self.has_failed
    }

    fn begin(&mut self, cleaning: &Cleaning, extent: ExtentIndex) -> usize {
        let (tag, len) = (self.next_tag, cleaning.geometry.extent_bytes as usize);
        self.next_tag += 1;
        self.reads.begin(tag, cleaning.geometry.start(extent), cleaning.buffers.get_for_reading(len), len);
        tag
    }

    /// Returns the result of the read with that tag; `None` if it must be read in the ordinary way.
    fn take(&mut self, cleaning: &Cleaning, tag: usize) -> Option<AlignedBuf> {
        while !self.come.contains_key(&tag) {
            let ended = self.reads.wait()?;
            if ended.whole {
                let len = u64::from(cleaning.geometry.extent_bytes);
                cleaning.vitals.counters.read_disk_bytes.add(len);
                cleaning.vitals.counters.cleaner_read_bytes.add(len);
                self.traffic_bytes = self.traffic_bytes.map(|bytes| bytes + len);
            }
            self.has_failed |= !ended.whole;
            self.come.insert(ended.tag, ended.whole.then_some(ended.buf));
        }
        self.come.remove(&tag).flatten()
    }
}

impl<'a> VictimReads<'a> {
    /// Reads under other load.
    pub(crate) fn new(cleaning: &'a Cleaning, victims: Vec<Victim>) -> Self {
        Self { cleaning, rest: victims.into_iter(), ahead: VecDeque::new(), ring: None }
    }

    /// Reads with the device's full throughput as long as the pool is otherwise idle:
    /// [`Cleaning::traffic_bytes`] has been `traffic_bytes` since the last round, and only grows by
    /// these reads. `None`: there can be no other load.
    pub(crate) fn while_alone(cleaning: &'a Cleaning, victims: Vec<Victim>, traffic_bytes: Option<u64>) -> Self {
        let is_worth_it = !victims.is_empty() && traffic_bytes.is_none_or(|bytes| bytes == cleaning.traffic_bytes());
        let reads = if is_worth_it { cleaning.vitals.env.disk.read_ring() } else { None };
        let come = BTreeMap::new();
        let ring = reads.map(|reads| Ring { reads, come, next_tag: 0, traffic_bytes, has_failed: false });
        Self { ring, ..Self::new(cleaning, victims) }
    }

    /// Returns the next victim, and its extent's bytes or the error of reading them.
    pub(crate) fn next(&mut self) -> Option<(Victim, Outcome)> {
        self.begin();
        let Some((victim, ahead)) = self.ahead.pop_front() else {
            let victim = self.rest.next()?;
            return Some((victim, self.cleaning.read_extent(victim.extent)));
        };
        let read = match ahead {
            Ahead::Thread(receive) => receive.recv().ok(),
            Ahead::Ring(tag) => self.ring.as_mut().and_then(|ring| ring.take(self.cleaning, tag)).map(Ok),
        };
        Some((victim, read.unwrap_or_else(|| self.cleaning.read_extent(victim.extent))))
    }

    /// Begins as many reads ahead as allowed.
    fn begin(&mut self) {
        let cleaning = self.cleaning;
        let mut ring = self.ring.as_mut().filter(|ring| ring.is_wanted(cleaning));
        if ring.is_none() && cleaning.vitals.is_inline() {
            return;
        }
        let (bytes, most) = match &ring {
            Some(_) => (large_reads_bytes(cleaning.vitals.options.memory_bytes), ALONE_EXTENTS_MAX),
            None => (cleaning.vitals.options.memory_bytes / MEMORY_DIVISOR, EXTENTS_MAX),
        };
        let extents_max = extents_max(bytes, cleaning.geometry.extent_bytes, most);
        while self.ahead.len() < extents_max {
            let Some(victim) = self.rest.next() else { break };
            let ahead = match &mut ring {
                Some(ring) => Ahead::Ring(ring.begin(cleaning, victim.extent)),
                None => {
                    let (send, receive) = sync_channel(1);
                    let (vitals, geometry, buffers) =
                        (cleaning.vitals.clone(), cleaning.geometry.clone(), cleaning.buffers.clone());
                    let read = move || read_whole(&vitals, &geometry, &buffers, victim.extent);
                    cleaning.jobs.submit(Box::new(move || drop(send.send(read()))));
                    Ahead::Thread(receive)
                }
            };
            self.ahead.push_back((victim, ahead));
        }
    }
}

/// How many extents of so many bytes may be in memory.
fn extents_max(bytes: u64, extent_bytes: u32, most: u64) -> usize {
    (bytes / u64::from(extent_bytes)).clamp(1, most) as usize
}

impl Cleaning {
    /// Returns the bytes that users have read, written, sent and received since the pool was
    /// opened, plus those read from and written to the data file: constant while the pool is idle.
    pub(crate) fn traffic_bytes(&self) -> u64 {
        let counters = &self.vitals.counters;
        counters.foreground_bytes() + counters.log_bytes.get() + counters.read_disk_bytes.get()
    }

    /// Reads all bytes of an extent, into a buffer of the pool's that may be longer.
    pub(crate) fn read_extent(&self, extent: ExtentIndex) -> Outcome {
        read_whole(&self.vitals, &self.geometry, &self.buffers, extent)
    }
}

fn read_whole(vitals: &Vitals, geometry: &Geometry, buffers: &BufferPool, extent: ExtentIndex) -> Outcome {
    vitals.counters.read_disk_bytes.add(u64::from(geometry.extent_bytes));
    vitals.counters.cleaner_read_bytes.add(u64::from(geometry.extent_bytes));
    Source { disk: &*vitals.env.disk, geometry, buffers }.read(extent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_extents_in_little_memory_are_read_one_by_one() {
        let many = |memory_mib: u64, extent_mib: u32| {
            extents_max((memory_mib << 20) / MEMORY_DIVISOR, extent_mib << 20, EXTENTS_MAX)
        };
        assert_eq!([many(512, 1), many(256, 1), many(128, 1)], [4; 3], "the usual extents");
        assert_eq!([many(64, 1), many(512, 4), many(512, 8), many(512, 16), many(64, 16)], [2, 4, 2, 1, 1]);
    }
}
