//! What the last garbage collection has looked at, so that the next one need not list every pack
//! again: an object of advice. A wrong or missing one costs time, or leaves garbage until a run
//! looks at everything; it never makes a run delete more.

use bytes::Bytes;
use format::put_uint;
use object_store::path::Path;

use crate::error::Error;
use crate::log::Log;
use crate::sealed;

const MAGIC: &[u8; 8] = b"SHLSWPT1";
/// Each such run looks at everything: packs that came very late, and versions that died after
/// others behind them.
const FULL_EVERY: u64 = 16;

/// The bytes: magic 8, from 8, newest 8, buried 8, runs 8, crc32c of all before 4.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Swept {
    /// Sessions born before this record have been looked at twice: once more than an upload that
    /// was fenced can be late.
    pub(crate) from: u64,
    /// Sessions born before this record have been looked at.
    newest: u64,
    /// Versions up to this one that died are buried.
    pub(crate) buried: u64,
    runs: u64,
}

impl Swept {
    /// Tells whether the next run is to look at everything.
    pub(crate) const fn is_full_due(self) -> bool {
        self.runs.is_multiple_of(FULL_EVERY)
    }

    /// Returns what holds after a run that fenced sessions born before `born` and buried versions
    /// up to `buried`.
    pub(crate) fn next(before: Option<Self>, born: u64, buried: u64) -> Self {
        let before = before.unwrap_or_default();
        let (from, runs) = (before.newest.min(born), before.runs + 1);
        Self { from, newest: born, buried: before.buried.max(buried), runs }
    }

    pub(crate) fn encode(self) -> Vec<u8> {
        let mut out = sealed::begin(MAGIC);
        for number in [self.from, self.newest, self.buried, self.runs] {
            put_uint(&mut out, number, 8);
        }
        sealed::seal(out)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut cursor = sealed::open("sweep of a blob", MAGIC, bytes).ok()?;
        let mut next = || cursor.u64().ok();
        let swept = Self { from: next()?, newest: next()?, buried: next()?, runs: next()? };
        cursor.end().ok().map(|()| swept)
    }

    fn path(log: &Log) -> Path {
        log.key.path().clone().join(log.inc.to_string()).join("swept")
    }

    /// Reads it; one that is missing or damaged is none.
    pub(crate) async fn read(log: &Log) -> Result<Option<Self>, Error> {
        let bytes = log.world.get(&Self::path(log)).await?;
        Ok(bytes.and_then(|bytes| Self::decode(&bytes)))
    }

    /// Leaves it for the next run. Whether it arrives does not matter.
    pub(crate) async fn write(self, log: &Log) {
        let _ = log.world.put(&Self::path(log), Bytes::from(self.encode())).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_back_and_every_bit_counts() {
        let swept = Swept { from: 1, newest: 5, buried: 3, runs: 2 };
        let mut bytes = swept.encode();
        assert_eq!(Swept::decode(&bytes), Some(swept));
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Swept::decode(&bytes), None, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_session_is_looked_at_twice_and_everything_now_and_then() {
        let first = Swept::next(None, 10, 4);
        assert_eq!((first.from, first.newest, first.buried), (0, 10, 4));
        let second = Swept::next(Some(first), 20, 0);
        assert_eq!((second.from, second.newest, second.buried), (10, 20, 4));
        let due = (0..32).scan(None, |swept, _| {
            *swept = Some(Swept::next(*swept, 1, 1));
            swept.map(Swept::is_full_due)
        });
        assert_eq!(due.filter(|due| *due).count(), 2);
    }
}
