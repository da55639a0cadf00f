//! Memory in which requests are marked while they are under way, so that the server may die: the
//! monitor keeps it, and hands it to the next server, which does the marked requests again. Owns
//! the mapping. One queue's part is accessed under that queue's lock.
//!
//! The layout is that of vhost-user.rst, "Inflight I/O tracking", for split rings; all
//! little-endian:
//!
//! ```text
//! each queue, aligned to 64:
//!    0  u64  features, 0        8  u16  version, 1       10  u16  number of descriptors
//!   12  u16  last head answered                          14  u16  used index after that
//!   16  for each descriptor:  +0 u8 under way   +6 u16 the head answered before   +8 u64 counter
//! after the queues, our own:
//!    0  u8   1: the guest has switched the write cache off
//! ```
//!
//! Steps of an answer; a death between two of them is recognised by [`Tracked::recover`]:
//! 1. The head is linked as the last one answered.
//! 2. The answer is added to the used ring, whose index is raised.
//! 3. The mark is removed. 4. The used index is noted.
//!
//! The monitor can write anything here, too: nothing is believed but flags and indices in bounds.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{MemfdFlags, SealFlags};
use vm_memory::{AtomicAccess, Bytes, FileOffset, MmapRegion, VolatileMemory};

use crate::memory::has_bytes;
use crate::wire::InflightShape;

const HEADER_BYTES: usize = 16;
const ENTRY_BYTES: usize = 16;
const ALIGNMENT: usize = 64;
const VERSION: u16 = 1;

const AT_VERSION: usize = 8;
const AT_COUNT: usize = 10;
const AT_LAST_HEAD: usize = 12;
const AT_USED: usize = 14;
const IN_NEXT: usize = 6;
const IN_COUNTER: usize = 8;

/// The memory of all queues of a session.
#[derive(Clone)]
pub struct Inflight(Arc<Area>);

struct Area {
    file: OwnedFd,
    map: MmapRegion<()>,
    shape: InflightShape,
}

/// The part of one queue.
pub struct Tracked {
    area: Arc<Area>,
    start: usize,
    size: u16,
    next_counter: u64,
}

fn queue_bytes(queue_size: u16) -> usize {
    (HEADER_BYTES + ENTRY_BYTES * usize::from(queue_size)).next_multiple_of(ALIGNMENT)
}

fn whole_bytes(shape: &InflightShape) -> usize {
    usize::from(shape.queues) * queue_bytes(shape.queue_size) + ALIGNMENT
}

impl Inflight {
    /// Makes new memory for so many queues of such a size; `shape` says no more.
    ///
    /// # Errors
    /// The system's reason.
    pub fn create(shape: InflightShape) -> Result<Self, String> {
        let fail = |error: rustix::io::Errno| format!("cannot make memory for requests in flight: {error}");
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("shale-inflight", flags).map_err(fail)?;
        let size = whole_bytes(&shape) as u64;
        rustix::fs::ftruncate(&file, size).map_err(fail)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).map_err(fail)?;
        Self::map(file, InflightShape { size, offset: 0, ..shape })
    }

    /// Takes memory that an earlier server has made.
    ///
    /// # Errors
    /// The reason why it is none that one of ours has made.
    pub fn take(file: OwnedFd, shape: InflightShape) -> Result<Self, String> {
        // Memory that could be shrunk would end the server that reads it.
        let is_sealed = rustix::fs::fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        if !is_sealed || shape.size != whole_bytes(&shape) as u64 || !has_bytes(&file, shape.offset, shape.size) {
            return Err("the memory for requests in flight was not made by a server of this kind".to_owned());
        }
        Self::map(file, shape)
    }

    fn map(file: OwnedFd, shape: InflightShape) -> Result<Self, String> {
        let fail = |error: &dyn std::fmt::Display| format!("cannot map the memory for requests in flight: {error}");
        let mapped = File::from(file.try_clone().map_err(|error| fail(&error))?);
        let size = usize::try_from(shape.size).map_err(|error| fail(&error))?;
        let map = MmapRegion::from_file(FileOffset::new(mapped, shape.offset), size).map_err(|error| fail(&error))?;
        Ok(Self(Arc::new(Area { file, map, shape })))
    }

    /// Its shape, for the monitor.
    pub fn shape(&self) -> InflightShape {
        self.0.shape
    }

    /// Its descriptor, for the monitor.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }

    /// The part of queue `index`, whose ring has `size` descriptors.
    ///
    /// # Errors
    /// The reason why it has no such part.
    pub fn queue(&self, index: usize, size: u16) -> Result<Tracked, &'static str> {
        let shape = &self.0.shape;
        if index >= usize::from(shape.queues) || size > shape.queue_size {
            return Err("the memory for requests in flight has no place for this queue");
        }
        let start = index * queue_bytes(shape.queue_size);
        let tracked = Tracked { area: Arc::clone(&self.0), start, size, next_counter: 1 };
        match tracked.area.load::<u16>(start + AT_VERSION) {
            0 => {
                tracked.area.store(start + AT_COUNT, size);
                tracked.area.store(start + AT_VERSION, VERSION);
            }
            VERSION if tracked.area.load::<u16>(start + AT_COUNT) == size => {}
            _ => return Err("the memory for requests in flight is of another version or size"),
        }
        Ok(tracked)
    }

    /// Whether the guest has switched its write cache off.
    pub fn is_write_through(&self) -> bool {
        self.0.load::<u8>(self.settings()) == 1
    }

    /// Notes that.
    pub fn set_write_through(&self, is_write_through: bool) {
        self.0.store(self.settings(), u8::from(is_write_through));
    }

    fn settings(&self) -> usize {
        whole_bytes(&self.0.shape) - ALIGNMENT
    }
}

impl Area {
    /// Offsets are those of queues and entries that exist, so all lie in the mapping.
    fn load<T: AtomicAccess + Default>(&self, offset: usize) -> T {
        let whole = self.map.get_slice(0, self.map.size());
        whole.map_or_else(|_| T::default(), |slice| slice.load(offset, Ordering::Acquire).unwrap_or_default())
    }

    fn store<T: AtomicAccess>(&self, offset: usize, value: T) {
        let stored = self.map.get_slice(0, self.map.size()).map(|slice| slice.store(value, offset, Ordering::Release));
        debug_assert!(matches!(stored, Ok(Ok(()))));
    }
}

impl Tracked {
    fn entry(&self, head: u16) -> usize {
        self.start + HEADER_BYTES + ENTRY_BYTES * usize::from(head)
    }

    /// Completes the answer that an earlier server died in, and returns the heads that it had
    /// taken and not answered, in the order in which it had taken them. `used`: the used ring's
    /// index.
    pub fn recover(&mut self, used: u16) -> Vec<u16> {
        let answered = used.wrapping_sub(self.area.load(self.start + AT_USED)).min(self.size);
        let mut head: u16 = self.area.load(self.start + AT_LAST_HEAD);
        for _ in 0..answered {
            if head >= self.size {
                break;
            }
            self.area.store(self.entry(head), 0_u8);
            head = self.area.load(self.entry(head) + IN_NEXT);
        }
        self.area.store(self.start + AT_USED, used);
        let is_marked = |head: &u16| self.area.load::<u8>(self.entry(*head)) == 1;
        let counter = |head: u16| self.area.load::<u64>(self.entry(head) + IN_COUNTER);
        let mut heads: Vec<_> = (0..self.size).filter(is_marked).map(|head| (counter(head), head)).collect();
        heads.sort_unstable();
        self.next_counter = heads.last().map_or(1, |(last, _)| last.wrapping_add(1));
        heads.into_iter().map(|(_, head)| head).collect()
    }

    /// Marks a request that is taken. `head` is in bounds.
    pub fn begin(&mut self, head: u16) {
        self.area.store(self.entry(head) + IN_COUNTER, self.next_counter);
        self.next_counter = self.next_counter.wrapping_add(1);
        self.area.store(self.entry(head), 1_u8);
    }

    /// Step 1 of an answer.
    pub fn link(&self, head: u16) {
        self.area.store(self.entry(head) + IN_NEXT, self.area.load::<u16>(self.start + AT_LAST_HEAD));
        self.area.store(self.start + AT_LAST_HEAD, head);
    }

    /// Steps 3 and 4.
    pub fn end(&self, head: u16, used: u16) {
        self.area.store(self.entry(head), 0_u8);
        self.area.store(self.start + AT_USED, used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> InflightShape {
        InflightShape { size: 0, offset: 0, queues: 2, queue_size: 8 }
    }

    fn tracked(inflight: &Inflight, used: u16) -> (Tracked, Vec<u16>) {
        let mut tracked = inflight.queue(1, 8).unwrap();
        let heads = tracked.recover(used);
        (tracked, heads)
    }

    #[test]
    fn the_next_server_finds_what_was_taken_and_not_answered_in_its_order() {
        let made = Inflight::create(shape()).unwrap();
        let (mut first, heads) = tracked(&made, 0);
        assert!(heads.is_empty());
        [5, 2, 7, 0].into_iter().for_each(|head| first.begin(head));
        first.link(2);
        first.end(2, 1);
        // As the monitor hands it over: by its descriptor and its shape.
        let taken = Inflight::take(made.file().try_clone_to_owned().unwrap(), made.shape()).unwrap();
        assert_eq!(tracked(&taken, 1).1, [5, 7, 0]);
        assert!(taken.queue(0, 8).unwrap().recover(0).is_empty(), "the other queue has none");
    }

    #[test]
    fn a_death_between_two_steps_of_an_answer_neither_loses_nor_repeats_it() {
        for steps in 0..4 {
            let made = Inflight::create(shape()).unwrap();
            let (mut first, _) = tracked(&made, 0);
            [3, 4, 6].into_iter().for_each(|head| first.begin(head));
            first.link(6);
            first.end(6, 1);
            let mut used = 1;
            if steps >= 1 {
                first.link(3);
            }
            if steps >= 2 {
                used = 2;
            }
            if steps >= 3 {
                first.area.store(first.entry(3), 0_u8);
            }
            let expected: &[u16] = if steps < 2 { &[3, 4] } else { &[4] };
            let (second, heads) = tracked(&made, used);
            assert_eq!(heads, expected, "died after step {steps}");
            // And it goes on from there.
            second.link(4);
            second.end(4, used + 1);
            assert_eq!(tracked(&made, used + 1).1, expected[..expected.len() - 1]);
        }
    }

    #[test]
    fn memory_of_another_shape_or_that_can_shrink_is_refused() {
        let made = Inflight::create(shape()).unwrap();
        let file = || made.file().try_clone_to_owned().unwrap();
        assert!(Inflight::take(file(), InflightShape { queues: 3, ..made.shape() }).is_err());
        assert!(Inflight::take(file(), InflightShape { offset: 1 << 40, ..made.shape() }).is_err());
        let loose = rustix::fs::memfd_create("loose", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&loose, made.shape().size).unwrap();
        assert!(Inflight::take(loose, made.shape()).is_err());
        assert!(made.queue(2, 8).is_err());
        assert!(made.queue(0, 16).is_err());
        made.queue(0, 8).unwrap();
        assert!(made.queue(0, 4).is_err(), "another size than at first");
    }

    #[test]
    fn nothing_in_it_is_believed() {
        let made = Inflight::create(shape()).unwrap();
        let (tracked_before, _) = tracked(&made, 0);
        for offset in (tracked_before.start..tracked_before.start + queue_bytes(8)).filter(|at| at % 2 == 0) {
            made.0.store(offset, 0xffff_u16);
        }
        made.0.store(tracked_before.start + AT_VERSION, VERSION);
        made.0.store(tracked_before.start + AT_COUNT, 8_u16);
        assert!(tracked(&made, 12345).1.is_empty());
    }

    #[test]
    fn the_write_cache_stays_off() {
        let made = Inflight::create(shape()).unwrap();
        assert!(!made.is_write_through());
        made.set_write_through(true);
        let taken = Inflight::take(made.file().try_clone_to_owned().unwrap(), made.shape()).unwrap();
        assert!(taken.is_write_through());
        assert!(tracked(&taken, 0).1.is_empty(), "no queue lies there");
    }
}
