//! What those are told who wait for a batch when writes fail.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use env::{Disk, DiskLayer};
use sim::Machine;

use super::*;
use crate::testing::pool_on;

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

/// Somebody may wake up only when the log has gone on, and failed, and gone on again.
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
        core.heal().unwrap();
        for _ in 0..4 {
            let Ok(ticket) = append() else { panic!("it was refused") };
            core.log.wait_applied(ticket).unwrap();
        }
        core.log.wait_applied(lost).unwrap_err();
        core.log.wait_applied(kept).unwrap();
    }
}
