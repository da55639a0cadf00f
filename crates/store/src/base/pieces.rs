//! Reads all readable parts of a range of the data file: at once, or, if that fails, in ever
//! smaller parts. Does not interpret the missing parts.
//!
//! Each failed read may take a bad disk seconds. Few bad blocks among good ones are located
//! exactly, for as many reads as there are halvings. After many consecutive failures, more bad
//! blocks are expected, and a smaller part is only divided if one of its ends can be read: so an
//! extent that is entirely unreadable costs a seventh of the reads (of 16 MiB; a third of 1 MiB),
//! and the edge of a large area is located as exactly as that of a small one. That edge is the only
//! way to separate a whole batch from a lost one next to it.

use std::ops::Range;

use env::{AlignedBuf, Disk};
use format::BATCH_ALIGN;

/// This many consecutive failed reads indicate an unreadable area: more than adjacent single bad
/// blocks and all halvings on the way to them.
const FAILURES_MAX: usize = 64;
/// In an unreadable area, parts of this size and less are only divided if their first or their last
/// block can be read.
const COARSE_BYTES: usize = 128 << 10;

/// Reads `len` bytes at `start`. Unreadable parts, in multiples of [`BATCH_ALIGN`], are zeroes in
/// `buf`, and returned: nothing in the log has a finer alignment, so no batch is lost because of a
/// neighbour. Only within an unreadable area, less than [`COARSE_BYTES`] with bad blocks on both
/// sides may be skipped. A caller that needs certainty uses [`read_again`].
pub fn read(disk: &dyn Disk, start: u64, buf: &mut AlignedBuf, len: usize) -> Vec<Range<usize>> {
    if disk.read_at(start, buf, len).is_ok() {
        return Vec::new();
    }
    let mut unreadable: Vec<Range<usize>> = Vec::new();
    let mut piece = AlignedBuf::new(len);
    let mut failures = 1;
    // The ranges to read, the first part last.
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
        if let Some([first, second]) = halves(part.clone()) {
            let mut is_divided = failures < FAILURES_MAX || part.len() > COARSE_BYTES;
            if !is_divided {
                let mut is_readable = |at| disk.read_at(start + at as u64, &mut piece, BATCH_ALIGN).is_ok();
                is_divided = is_readable(part.start) || is_readable(part.end - BATCH_ALIGN);
                // The unreadable area ends here.
                failures = if is_divided { 0 } else { failures };
            }
            if is_divided {
                parts.extend([second, first]);
                continue;
            }
        }
        buf[part.clone()].fill(0);
        match unreadable.last_mut() {
            Some(last) if last.end == part.start => last.end = part.end,
            _ => unreadable.push(part),
        }
    }
    unreadable
}

/// Reads unreadable parts from byte `from` on again, block by block, up to the first failure, whose
/// position is returned. Blocks read by that are stored in `buf` and removed from the unreadable
/// parts.
pub fn read_again(
    disk: &dyn Disk,
    start: u64,
    buf: &mut AlignedBuf,
    unreadable: &mut Vec<Range<usize>>,
    from: usize,
) -> Option<usize> {
    let mut block = AlignedBuf::new(BATCH_ALIGN);
    let mut failed = None;
    for bad in std::mem::take(unreadable) {
        let (before, mut behind) = (bad.start..bad.end.min(from), bad.start.max(from)..bad.end);
        while failed.is_none() && !behind.is_empty() {
            if disk.read_at(start + behind.start as u64, &mut block, BATCH_ALIGN).is_err() {
                failed = Some(behind.start);
                break;
            }
            buf[behind.start..behind.start + BATCH_ALIGN].copy_from_slice(&block[..BATCH_ALIGN]);
            behind.start += BATCH_ALIGN;
        }
        unreadable.extend([before, behind].into_iter().filter(|part| !part.is_empty()));
    }
    failed
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

    /// Returns the ranges reported when these blocks are bad, and the number of failed reads.
    fn read_around(bad: &[Range<u64>]) -> (Vec<Range<usize>>, usize) {
        read_extent(EXTENT, bad)
    }

    /// The same, for an extent of `len` bytes.
    fn read_extent(len: usize, bad: &[Range<u64>]) -> (Vec<Range<usize>>, usize) {
        let machine = sim::Machine::new(2 * EXTENT as u64, 1);
        machine.disk.poke(EXTENT as u64, &[7; EXTENT]);
        for bad in bad {
            machine.disk.break_reads(EXTENT as u64 + bad.start * 4096..EXTENT as u64 + bad.end * 4096);
        }
        let disk = Counted { disk: machine.disk.handle(), failed: AtomicUsize::new(0) };
        let mut buf = AlignedBuf::new(len);
        let unreadable = read(&disk, EXTENT as u64, &mut buf, len);
        let mut expected = vec![7; len];
        unreadable.iter().for_each(|bad| expected[bad.clone()].fill(0));
        assert!(buf[..len] == expected[..]);
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
        assert!(failed < 600, "{failed}");
        let (_, failed) = read_extent(1 << 20, &[0..100, 100..256]);
        assert!(failed < 100, "{failed}");
    }

    /// Up to 128 KiB at its end were skipped with it.
    #[test]
    fn what_lies_beside_an_area_that_is_gone_is_read() {
        for bad in [0..71, 300..1201, 31..97, 64..4095, 1..4095] {
            let (unreadable, failed) = read_around(&[bad.clone(), 4095..4096]);
            let blocks: Vec<_> = unreadable.iter().map(|bad| bad.start as u64 / 4096..bad.end as u64 / 4096).collect();
            let last = blocks.last().unwrap().clone();
            assert_eq!(
                (blocks[0].start, blocks[0].end.min(bad.end), last.end),
                (bad.start, bad.end, 4096),
                "{blocks:?}"
            );
            assert!(bad.end == 4095 || blocks == [bad.clone(), 4095..4096], "{blocks:?}");
            // All halvings down to both of its ends, and three for each part of it.
            let parts_max = bad.clone().count() / (COARSE_BYTES / 4096) + 2;
            assert!(failed < 3 * FAILURES_MAX + 4 * parts_max, "{bad:?}: {failed}");
        }
    }

    #[test]
    fn between_areas_that_are_gone_both_edges_are_found() {
        let (unreadable, failed) = read_around(&[0..71, 96..1000, 1040..2000]);
        assert_eq!(unreadable, [0..71 * 4096, 96 * 4096..1000 * 4096, 1040 * 4096..2000 * 4096]);
        assert!(failed < 600, "{failed}");
    }

    #[test]
    fn what_was_given_up_is_read_up_to_the_first_block_that_fails() {
        let machine = sim::Machine::new(EXTENT as u64, 1);
        machine.disk.poke(0, &[7; EXTENT]);
        machine.disk.break_reads(20 * 4096..21 * 4096);
        let (disk, mut buf) = (machine.disk.handle(), AlignedBuf::new(EXTENT));
        let mut unreadable = vec![0..10 * 4096, 12 * 4096..14 * 4096, 16 * 4096..30 * 4096];
        let failed = read_again(&*disk, 0, &mut buf, &mut unreadable, 8 * 4096);
        assert_eq!((failed, &unreadable[..]), (Some(20 * 4096), &[0..8 * 4096, 20 * 4096..30 * 4096][..]));
        let expected = |at: usize| if matches!(at / 4096, 8..10 | 12..14 | 16..20) { 7 } else { 0 };
        assert!((0..EXTENT).all(|at| buf[at] == expected(at)));
        assert_eq!(read_again(&*disk, 0, &mut buf, &mut unreadable, 21 * 4096), None);
        assert_eq!(unreadable, [0..8 * 4096, 20 * 4096..21 * 4096]);
    }
}
