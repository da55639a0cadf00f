//! Reads what can be read of a range of the data file: all at once, or, if that fails, in ever smaller parts. Does not judge what is missing.
//!
//! Each read that fails may take a bad disk seconds. Few bad blocks among good ones are found exactly, for as many reads as there are halvings.
//! Where one read after the other fails, nothing but bad blocks is to be expected, and parts are divided less finely: so an extent that is gone as a whole costs
//! a tenth of the reads (of 16 MiB; a third of 1 MiB).

use std::ops::Range;

use env::{AlignedBuf, Disk};
use format::BATCH_ALIGN;

/// As many reads that fail one after the other make an area that is gone: more than single bad blocks side by side and all halvings on the
/// way to them.
const FAILURES_MAX: usize = 64;
/// In such an area smaller parts are not divided: what may be given up at its edge.
const COARSE_BYTES: usize = 128 << 10;

/// Reads `len` bytes at `start`. What cannot be read, in multiples of [`BATCH_ALIGN`], is zeroes in `buf`, and returned: finer than anything
/// in the log begins, so that no batch is lost for a neighbour's sake. At the edge of an area that is gone, up to [`COARSE_BYTES`] beside it are lost with it.
pub(crate) fn read(disk: &dyn Disk, start: u64, buf: &mut AlignedBuf, len: usize) -> Vec<Range<usize>> {
    if disk.read_at(start, buf, len).is_ok() {
        return Vec::new();
    }
    let mut unreadable: Vec<Range<usize>> = Vec::new();
    let mut piece = AlignedBuf::new(len);
    let mut failures = 1;
    // What is to be read, the first part last.
    let mut parts = Vec::new();
    match halves(0..len) {
        Some([first, second]) => parts.extend([second, first]),
        None => parts.push(0..len),
    }
    while let Some(part) = parts.pop() {
        if disk.read_at(start + part.start as u64, &mut piece, part.len()).is_ok() {
            buf[part.clone()].copy_from_slice(&piece[..part.len()]);
            failures = 0;
            continue;
        }
        failures += 1;
        let is_divided = failures < FAILURES_MAX || part.len() > COARSE_BYTES;
        if let Some([first, second]) = halves(part.clone()).filter(|_| is_divided) {
            parts.extend([second, first]);
            continue;
        }
        buf[part.clone()].fill(0);
        match unreadable.last_mut() {
            Some(last) if last.end == part.start => last.end = part.end,
            _ => unreadable.push(part),
        }
    }
    unreadable
}

/// Both halves of a part that can be divided.
fn halves(part: Range<usize>) -> Option<[Range<usize>; 2]> {
    let middle = part.start + (part.len() / 2).next_multiple_of(BATCH_ALIGN);
    (middle < part.end).then_some([part.start..middle, middle..part.end])
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use env::DiskLayer;

    use super::*;

    const EXTENT: usize = 16 << 20;

    /// Counts the reads that fail.
    struct Counted {
        disk: Arc<dyn Disk>,
        failed: AtomicUsize,
    }

    impl DiskLayer for Counted {
        fn below(&self) -> &dyn Disk {
            &*self.disk
        }

        fn read_at(&self, offset: u64, buf: &mut AlignedBuf, len: usize) -> std::io::Result<()> {
            self.disk.read_at(offset, buf, len).inspect_err(|_| {
                self.failed.fetch_add(1, Ordering::Relaxed);
            })
        }
    }

    /// What is returned when these blocks are bad, and how many reads failed.
    fn read_around(bad: &[Range<u64>]) -> (Vec<Range<usize>>, usize) {
        let machine = sim::Machine::new(2 * EXTENT as u64, 1);
        machine.disk.poke(EXTENT as u64, &[7; EXTENT]);
        for bad in bad {
            machine.disk.break_reads(EXTENT as u64 + bad.start * 4096..EXTENT as u64 + bad.end * 4096);
        }
        let disk = Counted { disk: machine.disk.handle(), failed: AtomicUsize::new(0) };
        let mut buf = AlignedBuf::new(EXTENT);
        let unreadable = read(&disk, EXTENT as u64, &mut buf, EXTENT);
        let mut expected = vec![7; EXTENT];
        unreadable.iter().for_each(|bad| expected[bad.clone()].fill(0));
        assert!(buf[..EXTENT] == expected[..]);
        (unreadable, disk.failed.into_inner())
    }

    #[test]
    fn single_bad_blocks_are_found_exactly() {
        let (unreadable, failed) = read_around(&[5..6, 100..103, 4095..4096]);
        assert_eq!(unreadable, [5 * 4096..6 * 4096, 100 * 4096..103 * 4096, 4095 * 4096..EXTENT]);
        assert!(failed < 60, "{failed}");
        assert_eq!(read_around(&[]), (vec![], 0));
    }

    /// Each of its 4096 blocks was tried.
    #[test]
    fn an_extent_that_is_gone_takes_few_reads_that_fail() {
        let (unreadable, failed) = read_around(&[0..2000, 2000..4096]);
        assert!(unreadable.len() == 1 && unreadable[0] == (0..EXTENT), "{unreadable:?}");
        assert!(failed < 350, "{failed}");
    }

    #[test]
    fn what_lies_behind_an_area_that_is_gone_is_read() {
        let (unreadable, failed) = read_around(&[300..1201, 3000..3001]);
        assert!(failed < 240, "{failed}");
        assert_eq!(unreadable.len(), 2, "{unreadable:?}");
        let (area, block) = (&unreadable[0], &unreadable[1]);
        assert_eq!(*block, 3000 * 4096..3001 * 4096);
        assert!(area.start == 300 * 4096 && (1201 * 4096..1201 * 4096 + COARSE_BYTES).contains(&area.end), "{area:?}");
    }
}
