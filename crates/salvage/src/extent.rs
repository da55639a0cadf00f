//! Sorts the batches in an extent: those of its present use, and leftovers of an earlier one.
//!
//! An extent is filled from its first byte on, with rising sequence numbers; so the present use
//! ends where the numbers stop rising. Everything after that is left over: a durable checkpoint had
//! found it dead before the extent was reused. A stretch that does not decode between two batches
//! of the present use is damage, or was torn by a crash. Zeroes are neither: freed extents are
//! punched out of the file, and a crash may leave parts of the former content.

use format::Batch;
use store::log::extent_scan;
use units::{ExtentIndex, Seq};

/// A batch, and how it was found.
#[derive(Debug)]
pub struct Located {
    /// Its offset in the extent.
    pub at: usize,
    pub batch: Batch,
    /// Whether it was dead before the present use of the extent began.
    pub is_left_over: bool,
}

/// A stretch of an extent's present use that holds no batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// First byte within the extent, and how many.
    pub at: usize,
    pub bytes: usize,
    /// The number of the batch after it.
    pub before: Seq,
    /// Of that batch.
    pub incarnation: u64,
}

/// The batches in the bytes of an extent, and the gaps between those of the present use.
pub fn read(pool: u64, extent: ExtentIndex, bytes: &[u8]) -> (Vec<Located>, Vec<Gap>) {
    let (mut found, mut gaps) = (Vec::new(), Vec::new());
    let (mut newest, mut end) = (None, 0);
    for (at, batch) in extent_scan::batches(pool, extent, bytes) {
        let age = (batch.header.incarnation, batch.header.seq);
        let is_left_over = newest.is_some_and(|(incarnation, seq)| age.0 < incarnation || age.1 <= seq);
        if !is_left_over {
            if at > end && bytes[end..at].iter().any(|byte| *byte != 0) {
                gaps.push(Gap { at: end, bytes: at - end, before: age.1, incarnation: age.0 });
            }
            newest = Some(age);
            end = at + batch.batch_bytes;
        }
        found.push(Located { at, batch, is_left_over });
    }
    (found, gaps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use format::{BATCH_ALIGN, BatchHeader, encode_batch};

    fn put(bytes: &mut [u8], block: usize, incarnation: u64, seq: u64) {
        let header = BatchHeader {
            pool: 7,
            stream: format::Stream::Hot,
            seq: Seq(seq),
            incarnation,
            incarnation_first_seq: Seq(1),
            durable_before: Seq(1),
            extent: ExtentIndex(3),
        };
        let at = block * BATCH_ALIGN;
        bytes[at..at + BATCH_ALIGN].fill(0);
        let head = encode_batch(&header, &[], 64, BATCH_ALIGN);
        bytes[at..at + head.len()].copy_from_slice(&head);
    }

    #[test]
    fn leftovers_of_an_earlier_use_and_of_dead_openings_are_told_from_damage() {
        let mut bytes = vec![0; 8 * BATCH_ALIGN];
        put(&mut bytes, 0, 2, 50);
        put(&mut bytes, 1, 2, 51);
        // Block 2 does not decode.
        bytes[2 * BATCH_ALIGN + 77] = 1;
        put(&mut bytes, 3, 3, 53);
        put(&mut bytes, 4, 2, 54);
        put(&mut bytes, 5, 1, 20);
        put(&mut bytes, 6, 1, 21);
        let (found, gaps) = read(7, ExtentIndex(3), &bytes);
        let listed: Vec<_> = found.iter().map(|f| (f.batch.header.seq.0, f.is_left_over)).collect();
        assert_eq!(listed, [(50, false), (51, false), (53, false), (54, true), (20, true), (21, true)]);
        assert_eq!(gaps, [Gap { at: 2 * BATCH_ALIGN, bytes: BATCH_ALIGN, before: Seq(53), incarnation: 3 }]);
        bytes[..BATCH_ALIGN].fill(9);
        let (found, gaps) = read(7, ExtentIndex(3), &bytes);
        assert_eq!((found.len(), gaps[0]), (5, Gap { at: 0, bytes: BATCH_ALIGN, before: Seq(51), incarnation: 2 }));
    }
}
