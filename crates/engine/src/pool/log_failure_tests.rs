//! Results that waiters for a batch get when writes fail.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use env::{AlignedBuf, Disk, DiskLayer};
use format::{Entry, FragmentEntry};
use sim::Machine;
use store::log::prepared::Prepared;
use store::log::{Purpose, Refusal, Ticket};
use units::{BLOCK_BYTES, BlockIndex, Epoch, ObjectId};

use crate::pool::testing::pool_on;

struct FailingDisk {
    below: Arc<dyn Disk>,
    fails: AtomicBool,
}

impl DiskLayer for FailingDisk {
    fn below(&self) -> &dyn Disk {
        &*self.below
    }
    fn write_at(&self, offset: u64, buf: &AlignedBuf, len: usize) -> io::Result<()> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Other.into());
        }
        self.below.write_at(offset, buf, len)
    }
}

/// A waiter may wake up only after the log has continued, failed, and continued again.
#[test]
fn a_batch_that_was_given_back_did_not_happen_however_late_one_asks() {
    let machine = Machine::new(8 << 20, 1);
    let disk = Arc::new(FailingDisk { below: machine.disk.handle(), fails: AtomicBool::new(false) });
    let core = pool_on(&machine, Arc::clone(&disk) as _, 8 << 20, 0).core;
    let append = || core.log.append(Prepared::metadata(Vec::new(), &core.buffers), Purpose::Metadata);
    let Ok(kept) = append() else { panic!("it was refused") };
    let lost = Ticket { seq: core.log.applied_seq(), incarnation: kept.incarnation };
    for _ in 0..3 {
        disk.fails.store(true, Ordering::Relaxed);
        assert!(append().is_err());
        disk.fails.store(false, Ordering::Relaxed);
        core.checkpoints.heal().unwrap();
        for _ in 0..4 {
            let Ok(ticket) = append() else { panic!("it was refused") };
            core.log.wait_applied(ticket).unwrap();
        }
        core.log.wait_applied(lost).unwrap_err();
        core.log.wait_applied(kept).unwrap();
    }
}

/// More blocks than the pool has room for.
const BLOCKS: u64 = 2100;

/// A part of a batch failed and was returned to the buffer, and the log has continued: the other
/// part, which would complete both, must not take effect alone.
#[test]
fn the_rest_of_a_batch_means_nothing_behind_a_failure() {
    let machine = Machine::new(8 << 20, 1);
    let disk = Arc::new(FailingDisk { below: machine.disk.handle(), fails: AtomicBool::new(false) });
    let core = pool_on(&machine, Arc::clone(&disk) as _, 8 << 20, 0).core;
    let fragments: Vec<_> = (0..BLOCKS)
        .map(|block| FragmentEntry { first: BlockIndex(block), count: 1, codec: 0, stored: 4096, checksum: 0 })
        .collect();
    let entries = vec![Entry::Fragments { object: ObjectId(9), epoch: Epoch(0), fragments }];
    let buf = core.buffers.get(format::header_bytes(&entries) + (BLOCKS as usize * BLOCK_BYTES));
    let whole = Prepared::new(entries, BLOCKS as usize * BLOCK_BYTES, buf, Vec::new());
    let Err(Refusal::NeedsCheckpoint(rest)) = core.log.append(whole, Purpose::Data) else { panic!("all of it fits") };
    assert!(rest.payload_bytes() < BLOCKS as usize * BLOCK_BYTES, "no part of it fits");
    disk.fails.store(true, Ordering::Relaxed);
    assert!(core.log.append(Prepared::metadata(Vec::new(), &core.buffers), Purpose::Metadata).is_err());
    disk.fails.store(false, Ordering::Relaxed);
    core.checkpoints.heal().unwrap();
    assert!(matches!(core.log.append(*rest, Purpose::Data), Err(Refusal::Failed(_))));
    assert!(core.log.append(Prepared::metadata(Vec::new(), &core.buffers), Purpose::Metadata).is_ok());
}

/// An error of a queued batch is reported once, and not after the log has continued.
#[test]
fn a_failure_that_is_healed_is_nobodys_any_more() {
    for heals in [false, true] {
        let machine = Machine::new(8 << 20, 1);
        let disk = Arc::new(FailingDisk { below: machine.disk.handle(), fails: AtomicBool::new(false) });
        let core = pool_on(&machine, Arc::clone(&disk) as _, 8 << 20, 0).core;
        let batch = Prepared::metadata(Vec::new(), &core.buffers);
        let Ok(_) = core.log.enqueue(batch, Purpose::Metadata) else { panic!("it was refused") };
        disk.fails.store(true, Ordering::Relaxed);
        core.log.write_queued();
        disk.fails.store(false, Ordering::Relaxed);
        if heals {
            core.checkpoints.heal().unwrap();
        }
        assert_eq!(core.log.take_failure().is_none(), heals);
        assert!(core.log.take_failure().is_none());
    }
}
