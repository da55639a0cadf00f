//! The progress of garbage collection across runs, so that a run need not list every pack again. It
//! is only advice: a wrong or missing object costs time, or leaves garbage until a run that
//! examines everything; it never makes a run delete more. Read and written by `gc` only.

use bytes::Bytes;
use format::put_uint;
use object_store::path::Path;

use crate::error::Error;
use crate::protocol::log::Log;
use crate::protocol::record::joined;
use crate::sealed;

const MAGIC: &[u8; 8] = b"SHLSWPT1";
/// One run in this many examines everything, to find packs that arrived very late.
const FULL_EVERY: u64 = 16;

/// Encoding: magic 8, from 8, newest 8, runs 8, then ranges of buried versions, first 8 and last 8
/// each, crc32c of all preceding bytes 4.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct GcProgress {
    /// Sessions born before this record have been examined twice: the second time after any late
    /// request of a fenced upload.
    pub(crate) from: u64,
    /// Sessions born before this record have been examined.
    newest: u64,
    runs: u64,
    /// Versions that have tombstones, as ascending ranges. Every other dead version is examined,
    /// even if younger ones died before it: a tag, a pin or a user may have retained it.
    buried: Vec<(u64, u64)>,
}

impl GcProgress {
    /// Returns whether the next run should examine everything.
    pub(crate) const fn is_full_due(&self) -> bool {
        self.runs.is_multiple_of(FULL_EVERY)
    }

    /// Returns the versions in some ranges that are not buried, oldest first.
    pub(crate) fn unburied(&self, ranges: &[(u64, u64)]) -> impl Iterator<Item = u64> {
        let mut left = Vec::new();
        for (first, last) in ranges {
            let mut next = *first;
            for (from, to) in self.buried.iter().filter(|(from, to)| from <= last && to >= first) {
                left.push(next..*from);
                next = to + 1;
            }
            left.push(next..last + 1);
        }
        left.into_iter().flatten()
    }

    /// Returns the state after a run that fenced sessions born before `born` and buried versions.
    pub(crate) fn next(self, born: u64, buried: &[u64]) -> Self {
        let mut ranges = self.buried;
        ranges.extend(buried.iter().map(|seq| (*seq, *seq)));
        Self { from: self.newest.min(born), newest: born, runs: self.runs + 1, buried: joined(ranges) }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = sealed::begin(MAGIC);
        let ranges = self.buried.iter().flat_map(|(first, last)| [*first, *last]);
        for number in [self.from, self.newest, self.runs].into_iter().chain(ranges) {
            put_uint(&mut out, number, 8);
        }
        sealed::seal(out)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut cursor = sealed::open("sweep of a blob", MAGIC, bytes).ok()?;
        let mut next = || cursor.u64().ok();
        let mut progress = Self { from: next()?, newest: next()?, runs: next()?, buried: Vec::new() };
        while cursor.remaining() > 0 {
            let (first, last) = (cursor.u64().ok()?, cursor.u64().ok()?);
            let low = progress.buried.last().map_or(1, |(_, last)| last.saturating_add(2));
            if first < low || last < first || last == u64::MAX {
                return None;
            }
            progress.buried.push((first, last));
        }
        Some(progress)
    }

    fn path(log: &Log) -> Path {
        log.key.path().clone().join(log.inc.to_string()).join("swept")
    }

    /// Reads it; `None` if it is missing or damaged.
    pub(crate) async fn read(log: &Log) -> Result<Option<Self>, Error> {
        let bytes = log.backend.get(&Self::path(log)).await?;
        Ok(bytes.and_then(|bytes| Self::decode(&bytes)))
    }

    /// Writes it for the next run. A failure does no harm.
    pub(crate) async fn write(self, log: &Log) {
        let _ = log.backend.put(&Self::path(log), Bytes::from(self.encode())).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_back_and_every_bit_counts() {
        let progress = GcProgress { from: 1, newest: 5, runs: 2, buried: vec![(1, 3), (5, 5)] };
        let mut bytes = progress.encode();
        assert_eq!(GcProgress::decode(&bytes), Some(progress));
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(GcProgress::decode(&bytes), None, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        for buried in [vec![(1, 3), (4, 5)], vec![(5, 5), (1, 3)], vec![(3, 2)], vec![(0, 2)], vec![(1, u64::MAX)]] {
            let wrong = GcProgress { buried, ..GcProgress::default() };
            assert_eq!(GcProgress::decode(&wrong.encode()), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_session_is_looked_at_twice_and_everything_now_and_then() {
        let first = GcProgress::default().next(10, &[1, 2, 4]);
        assert_eq!((first.from, first.newest, &first.buried[..]), (0, 10, &[(1, 2), (4, 4)][..]));
        let second = first.next(20, &[3, 9]);
        assert_eq!((second.from, second.newest, &second.buried[..]), (10, 20, &[(1, 4), (9, 9)][..]));
        let due = (0..32).scan(GcProgress::default(), |progress, _| {
            *progress = progress.clone().next(1, &[]);
            Some(progress.is_full_due())
        });
        assert_eq!(due.filter(|due| *due).count(), 2);
    }

    #[test]
    fn each_version_that_is_not_buried_is_left_whatever_died_behind_it() {
        let progress = GcProgress { buried: vec![(2, 3), (6, 9)], ..GcProgress::default() };
        let left = |ranges: &[(u64, u64)]| progress.unburied(ranges).collect::<Vec<_>>();
        assert_eq!(left(&[(1, 10)]), [1, 4, 5, 10]);
        assert_eq!(left(&[(2, 3), (5, 7), (12, 12)]), [5, 12]);
        assert_eq!(left(&[(7, 11)]), [10, 11]);
        assert_eq!(GcProgress::default().unburied(&[(4, 6)]).collect::<Vec<_>>(), [4, 5, 6]);
    }
}
