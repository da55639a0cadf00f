//! Blocks in the write buffer that no client has written, but that are on their way to a better
//! place (see `upkeep::defrag`). They are counted as cleaning and not as users' data. Their former
//! stored size is kept, so that they do not take more afterwards.
//!
//! Data compressed with other settings than the volume's current ones could grow when it is
//! rewritten. It comes from `recompress --mode archive`, or from before a change of a property. So
//! a unit that comes out larger than its blocks were is compressed again, with the strongest of the
//! codecs that its blocks had, and the smaller result is kept. **Bound**: no unit takes more than
//! its size under that codec.

use codec::{Codec, CodecId, Workspace, ZstdLevel};
use format::{Entry, FragmentRef};
use units::{BLOCK_BYTES, BlockMask};

use crate::base::group::GroupKey;
use crate::buffer::write_buffer::{DirtyRun, Taken};

/// Level for compressing data again that had a dictionary: its codec number does not include its
/// level.
const DICTIONARY_LEVEL: ZstdLevel = match ZstdLevel::new(3) {
    Some(level) => level,
    None => ZstdLevel::MIN,
};

/// Origin of a run of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sorted {
    /// Size of one of its blocks in the log, rounded up.
    pub block_bytes: u16,
    /// The strongest codec among its sources.
    pub codec: CodecId,
}

impl Sorted {
    /// Of the blocks `mask` of a group, which lie in `fragments`.
    pub fn of<'a>(mask: BlockMask, fragments: impl Iterator<Item = &'a FragmentRef>) -> Self {
        let (mut bytes, mut codec) = (0, CodecId::RAW);
        for fragment in fragments {
            let blocks = u64::from(fragment.live.and(mask).count());
            if blocks == 0 {
                continue;
            }
            bytes += (u64::from(fragment.stored) * blocks).div_ceil(u64::from(fragment.count).max(1));
            codec = stronger(codec, CodecId(fragment.codec));
        }
        let each = bytes.div_ceil(u64::from(mask.count()).max(1)).min(BLOCK_BYTES as u64);
        Self { block_bytes: each as u16, codec }
    }
}

fn stronger(a: CodecId, b: CodecId) -> CodecId {
    if policy::strength(b) > policy::strength(a) { b } else { a }
}

/// Sorted blocks of each group, in the order of their keys; groups without any are left out.
pub fn sorted_blocks(taken: &[Taken]) -> Vec<(GroupKey, BlockMask)> {
    let sorted_of = |taken: &Taken| {
        let runs = taken.runs.iter().filter(|run| run.sorted.is_some());
        (taken.key, runs.fold(BlockMask::EMPTY, |mask, run| mask.or(run.mask())))
    };
    taken.iter().map(sorted_of).filter(|(_, mask)| !mask.is_empty()).collect()
}

/// Bytes of payload of a batch that are sorted: of units with at least half sorted blocks.
pub fn sorted_bytes(entries: &[Entry], sorted: &[(GroupKey, BlockMask)]) -> u64 {
    if sorted.is_empty() {
        return 0;
    }
    let mut bytes = 0;
    for (object, _, fragment) in entries.iter().flat_map(Entry::payloads) {
        let key = GroupKey { object, group: fragment.first.group() };
        let Ok(index) = sorted.binary_search_by_key(&key, |(key, _)| *key) else { continue };
        let unit = fragment.unit();
        if 2 * sorted[index].1.and(unit).count() >= unit.count() {
            bytes += u64::from(fragment.stored);
        }
    }
    bytes
}

/// Returns the size of a unit's blocks in the log, and the strongest codec among them, if all of
/// them are sorted.
pub fn came_from(runs: &[DirtyRun], unit: BlockMask) -> Option<(usize, CodecId)> {
    let (mut bytes, mut codec) = (0, CodecId::RAW);
    let mut missing = unit;
    for run in runs {
        let blocks = run.mask().and(unit);
        if blocks.is_empty() {
            continue;
        }
        let sorted = run.sorted?;
        bytes += usize::from(sorted.block_bytes) * blocks.count() as usize;
        codec = stronger(codec, sorted.codec);
        missing = missing.minus(blocks);
    }
    missing.is_empty().then_some((bytes, codec))
}

/// Compresses `raw` with its former codec into `target`, if the result is smaller than the current
/// `stored` bytes.
pub fn compress_as_before(
    codecs: &mut Workspace,
    before: CodecId,
    raw: &[u8],
    target: &mut [u8],
    stored: usize,
) -> Option<(CodecId, usize)> {
    let known = Codec::all().find(|codec| codec.id() == before && before != CodecId::RAW);
    let codec = known.or_else(|| (before == CodecId::ZSTD_DICTIONARY).then_some(Codec::Zstd(DICTIONARY_LEVEL)))?;
    let mut smaller = vec![0; stored.saturating_sub(1)];
    let len = codecs.compress(codec, raw, &mut smaller)?;
    target[..len].copy_from_slice(&smaller[..len]);
    Some((codec.id(), len))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fragment(first: u8, count: u8, codec: u8, stored: u32, live: BlockMask) -> FragmentRef {
        FragmentRef { live, first, count, codec, stored, checksum: 0, location: 0 }
    }

    #[test]
    fn a_run_takes_the_shares_of_its_fragments_and_the_strongest_codec() {
        let zstd = Codec::Zstd(DICTIONARY_LEVEL).id();
        let fragments = [
            fragment(0, 8, CodecId::LZ4.0, 8000, BlockMask::run(2, 2)),
            fragment(4, 1, zstd.0, 1000, BlockMask::run(4, 1)),
            fragment(9, 1, CodecId::RAW.0, 4096, BlockMask::run(9, 1)),
        ];
        let sorted = Sorted::of(BlockMask::run(2, 3), fragments.iter());
        assert_eq!(sorted, Sorted { block_bytes: 1000, codec: zstd });
        assert_eq!(Sorted::of(BlockMask::run(9, 1), fragments.iter()).codec, CodecId::RAW);
    }

    #[test]
    fn only_units_that_are_sorted_as_a_whole_have_an_origin() {
        let run = |first, count, sorted| DirtyRun { sorted, ..DirtyRun::hole(first, count) };
        let sorted = |block_bytes, codec| Some(Sorted { block_bytes, codec });
        let runs = [run(0, 4, sorted(100, CodecId::LZ4)), run(4, 2, sorted(50, CodecId::RAW)), run(6, 2, None)];
        assert_eq!(came_from(&runs, BlockMask::run(2, 4)), Some((300, CodecId::LZ4)));
        assert_eq!(came_from(&runs, BlockMask::run(4, 3)), None, "somebody has written block 6");
        assert_eq!(came_from(&runs, BlockMask::run(5, 1)), Some((50, CodecId::RAW)));
        assert_eq!(came_from(&runs, BlockMask::run(8, 1)), None);
    }

    #[test]
    fn what_is_tried_again_is_taken_only_if_it_is_smaller() {
        let raw = [7; 8192];
        let mut codecs = Workspace::default();
        let mut target = vec![1; raw.len()];
        let (id, len) = compress_as_before(&mut codecs, CodecId::LZ4, &raw, &mut target, 4000).expect("smaller");
        assert!(id == CodecId::LZ4 && len < 100 && target[len] == 1);
        assert_eq!(compress_as_before(&mut codecs, CodecId::LZ4, &raw, &mut target, len), None);
        assert_eq!(compress_as_before(&mut codecs, CodecId::RAW, &raw, &mut target, 4000), None);
    }
}
