//! A driver that others wrote: `blkio`, which applications use.

use std::os::fd::AsRawFd;

use blkio::{Blkio, Blkioq, Completion, MemoryRegion, ReqFlags};
use rustix::fs::{MemfdFlags, memfd_create};
use std::mem::MaybeUninit;
use testkit::{Memory, noise};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

use crate::{SIZE, Setup};

const MEMORY_BYTES: usize = 8 << 20;

/// A driver, and the memory that its requests are in.
struct Driver {
    blkio: Blkio,
    queues: Vec<Blkioq>,
    memory: GuestMemoryMmap<()>,
    start: usize,
}

impl Driver {
    fn new(setup: &Setup, queues: usize) -> Self {
        let mut blkio = Blkio::new("virtio-blk-vhost-user").unwrap();
        blkio.set_str("path", setup.socket("disk").to_str().unwrap()).unwrap();
        blkio.connect().unwrap();
        blkio.set_i32("num-queues", queues as i32).unwrap();
        let mut outcome = blkio.start().unwrap();
        let queues = std::mem::take(&mut outcome.queues);
        let file = memfd_create("client", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, MEMORY_BYTES as u64).unwrap();
        let fd = file.as_raw_fd();
        let mapped = FileOffset::new(std::fs::File::from(file), 0);
        let memory = GuestMemoryMmap::from_ranges_with_files([(GuestAddress(0), MEMORY_BYTES, Some(mapped))]).unwrap();
        let start = memory.get_host_address(GuestAddress(0)).unwrap() as usize;
        blkio
            .map_mem_region(&MemoryRegion { addr: start, iova: 0, len: MEMORY_BYTES, fd, fd_offset: 0, flags: 0 })
            .unwrap();
        Self { blkio, queues, memory, start }
    }

    /// Waits for so many answers; all must be good.
    fn wait(&mut self, queue: usize, count: usize) {
        let mut done: Vec<_> = (0..count).map(|_| MaybeUninit::<Completion>::uninit()).collect();
        assert_eq!(self.queues[queue].do_io(&mut done, count, None, None).unwrap(), count);
    }
}

#[test]
fn a_foreign_driver_reads_back_what_it_wrote() {
    let device = Memory::new(SIZE);
    let setup = Setup::new(&[("disk", &device)]);
    let mut driver = Driver::new(&setup, 2);
    assert_eq!(driver.blkio.get_u64("capacity").unwrap(), SIZE);
    let data = noise(1, 4 << 20);
    driver.memory.write_slice(&data, GuestAddress(0)).unwrap();
    let start = driver.start;
    let none = ReqFlags::empty();
    for part in 0..64 {
        let place = (start + (part << 16)) as *const u8;
        driver.queues[part % 2].write((part << 16) as u64, place, 1 << 16, part, none);
    }
    driver.wait(0, 32);
    driver.wait(1, 32);
    driver.queues[0].flush(0, none);
    driver.wait(0, 1);
    driver.queues[0].discard(1 << 20, 1 << 20, 0, none);
    driver.queues[1].write_zeroes(3 << 20, 1 << 19, 0, none);
    driver.wait(0, 1);
    driver.wait(1, 1);
    for part in 0..64 {
        let place = (start + (4 << 20) + (part << 16)) as *mut u8;
        driver.queues[part % 2].read((part << 16) as u64, place, 1 << 16, part, none);
    }
    driver.wait(0, 32);
    driver.wait(1, 32);
    let mut read = vec![0; 4 << 20];
    driver.memory.read_slice(&mut read, GuestAddress(4 << 20)).unwrap();
    let mut expected = data;
    expected[1 << 20..2 << 20].fill(0);
    expected[3 << 20..(3 << 20) + (1 << 19)].fill(0);
    assert!(read == expected);
}
