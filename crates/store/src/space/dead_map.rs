//! The dead fragments of the extents that the log has filled: so the cleaner knows the live data of
//! one without asking the map, which for a large pool is not in memory.
//!
//! Of an extent either everything is known since the log began to fill it, or nothing: of those
//! that were there when the pool was opened, and of those that were forgotten because the memory
//! for it is used up. A fragment dies in one of two ways:
//! - a checkpoint counts it as lost, so that its extent has fewer live bytes: entered together with
//!   those;
//! - it is replaced before a checkpoint has counted it at all, or never counts: entered when its
//!   batch, or the one that replaces it, is applied. When the log has passed an extent, as of a
//!   checkpoint, nothing of this kind can happen to it any more.
//!
//! So the fragments named by the batches of a passed extent, less the dead ones, are exactly those
//! that the records pointed to at the last checkpoint, and the sum of the extent's live bytes
//! proves it. If it does not, the caller has to ask the map (`clean::extent_liveness`).
//!
//! Memory: 4 bytes for each fragment that has died, 8 while a part of it has, and some dozens for
//! each extent.

use std::collections::{BTreeSet, HashMap};

use format::FragmentRef;
use units::{BlockMask, ExtentIndex, Seq};

use crate::base::hash::FastHash;
use crate::log::geometry::Geometry;

/// Memory of an entry, and the overhead of an extent, in entries.
const ENTRY_BYTES: usize = size_of::<u32>();
const EXTENT_ENTRIES: usize = 96 / ENTRY_BYTES;

/// Upper bound of deaths that a checkpoint lists one by one: some megabytes.
const TOLL_MAX: usize = 256 << 10;

/// The first batch that may lie in an extent in its present use: incarnation and number.
pub type Since = (u64, Seq);

/// Blocks of a fragment that are not read any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Death {
    extent: ExtentIndex,
    /// Offset of its payload in the extent.
    offset: u32,
    unit: BlockMask,
    dead: BlockMask,
}

impl Death {
    /// Of some blocks of `fragment`.
    pub fn of(geometry: &Geometry, fragment: &FragmentRef, dead: BlockMask) -> Self {
        let extent = geometry.extent_at(fragment.location);
        Self { extent, offset: (fragment.location - geometry.start(extent)) as u32, unit: fragment.unit(), dead }
    }
}

/// Fragments that a checkpoint counts as dead. Beyond a bound, only their extents: a large discard
/// ends millions of fragments at once.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Toll {
    deaths: Vec<Death>,
    more: BTreeSet<ExtentIndex>,
}

impl Toll {
    pub fn push(&mut self, death: Death) {
        if self.deaths.len() < TOLL_MAX {
            self.deaths.push(death);
        } else {
            self.more.insert(death.extent);
        }
    }

    /// Adds the counts of another part.
    pub fn append(&mut self, other: Self) {
        other.deaths.into_iter().for_each(|death| self.push(death));
        self.more.extend(other.more);
    }
}

/// The dead fragments of one extent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dead {
    pub since: Since,
    /// Fragments that are entirely dead, by offset, in order.
    whole: Vec<u32>,
    /// Partly dead fragments, in order.
    parts: Vec<(u32, BlockMask)>,
}

impl Dead {
    /// The dead blocks of the fragment that begins at `offset`.
    pub fn at(&self, offset: usize) -> BlockMask {
        let offset = offset as u32;
        if self.whole.binary_search(&offset).is_ok() {
            return BlockMask::FULL;
        }
        let part = self.parts.binary_search_by_key(&offset, |(at, _)| *at);
        part.map_or(BlockMask::EMPTY, |at| self.parts[at].1)
    }

    fn entries(&self) -> usize {
        EXTENT_ENTRIES + self.whole.len() + 2 * self.parts.len()
    }

    fn enter(&mut self, death: &Death) {
        let Err(at) = self.whole.binary_search(&death.offset) else { return };
        let part = self.parts.binary_search_by_key(&death.offset, |(at, _)| *at);
        let dead = part.map_or(death.dead, |at| self.parts[at].1.or(death.dead));
        if death.unit.minus(dead).is_empty() {
            self.whole.insert(at, death.offset);
            if let Ok(at) = part {
                self.parts.remove(at);
            }
            return;
        }
        match part {
            Ok(at) => self.parts[at].1 = dead,
            Err(at) => self.parts.insert(at, (death.offset, dead)),
        }
    }
}

/// See the head of this file.
#[derive(Debug, Default)]
pub struct Deaths {
    known: HashMap<ExtentIndex, Dead, FastHash>,
    /// Entries of all extents, and their upper bound.
    entries: usize,
    max: usize,
}

impl Deaths {
    /// Makes a map with so much memory.
    pub fn new(bytes: usize) -> Self {
        Self { max: bytes / ENTRY_BYTES, ..Self::default() }
    }

    /// Marks extents that the log may fill from now on; earlier content is forgotten.
    pub fn begin(&mut self, extents: &[ExtentIndex], since: Since) {
        for extent in extents {
            self.forget(*extent);
            if self.entries + EXTENT_ENTRIES <= self.max {
                self.known.insert(*extent, Dead { since, whole: Vec::new(), parts: Vec::new() });
                self.entries += EXTENT_ENTRIES;
            }
        }
    }

    /// Forgets the extent.
    pub fn forget(&mut self, extent: ExtentIndex) {
        if let Some(dead) = self.known.remove(&extent) {
            self.entries -= dead.entries();
        }
    }

    /// The dead fragments of an extent, if they are known.
    pub fn of(&self, extent: ExtentIndex) -> Option<&Dead> {
        self.known.get(&extent)
    }

    /// Enters the counts of a checkpoint, but not those of extents that are `gone`.
    pub fn take(&mut self, toll: &Toll, gone: &[ExtentIndex]) {
        gone.iter().chain(&toll.more).for_each(|extent| self.forget(*extent));
        self.enter(&toll.deaths);
    }

    /// Enters deaths.
    pub fn enter(&mut self, deaths: &[Death]) {
        for death in deaths {
            let Some(dead) = self.known.get_mut(&death.extent) else { continue };
            let before = dead.entries();
            dead.enter(death);
            let after = dead.entries();
            self.entries = self.entries + after - before;
            // Extents with few dead fragments will be cleaned last. So room is left for those that
            // will be cleaned soon.
            if self.entries > self.max && after * self.known.len() <= self.entries {
                self.forget(death.extent);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXTENT: ExtentIndex = ExtentIndex(3);
    const SINCE: Since = (1, Seq(9));

    fn death(extent: u32, offset: u32, count: u32, dead: u32) -> Death {
        Death { extent: ExtentIndex(extent), offset, unit: BlockMask::run(4, count), dead: BlockMask(dead) }
    }

    #[test]
    fn a_fragment_dies_part_by_part() {
        let mut deaths = Deaths::new(1 << 20);
        deaths.enter(&[death(3, 100, 1, 1 << 4)]);
        assert_eq!(deaths.of(EXTENT), None, "nothing is known of what was there before");
        deaths.begin(&[EXTENT], SINCE);
        deaths.enter(&[death(3, 200, 4, 0x30), death(3, 100, 1, 1 << 4), death(3, 300, 4, 0xf0)]);
        let at = |deaths: &Deaths, offset| deaths.of(EXTENT).unwrap().at(offset).0;
        assert_eq!([50, 100, 200, 300].map(|offset| at(&deaths, offset)), [0, u32::MAX, 0x30, u32::MAX]);
        assert_eq!(deaths.entries, EXTENT_ENTRIES + 4);
        // Entering a death twice has no further effect.
        deaths.enter(&[death(3, 200, 4, 0x40), death(3, 100, 1, 1 << 4), death(3, 200, 4, 0x10)]);
        assert_eq!((at(&deaths, 200), deaths.entries), (0x70, EXTENT_ENTRIES + 4));
        deaths.enter(&[death(3, 200, 4, 0x80)]);
        assert_eq!((at(&deaths, 200), deaths.entries), (u32::MAX, EXTENT_ENTRIES + 3));
        deaths.begin(&[EXTENT], (1, Seq(50)));
        assert_eq!((at(&deaths, 100), deaths.entries), (0, EXTENT_ENTRIES));
    }

    #[test]
    fn of_many_deaths_at_once_only_the_extents_are_told() {
        let mut deaths = Deaths::new(100 << 20);
        deaths.begin(&[1, 2, 3, 4].map(ExtentIndex), SINCE);
        let (mut toll, mut other) = (Toll::default(), Toll::default());
        (0..TOLL_MAX as u32).for_each(|n| toll.push(death(1, 50 * n, 1, 1 << 4)));
        toll.push(death(2, 50, 1, 1 << 4));
        other.push(death(3, 50, 1, 1 << 4));
        toll.append(other);
        assert_eq!(toll.deaths.len(), TOLL_MAX);
        deaths.take(&toll, &[ExtentIndex(4)]);
        let known = [1, 2, 3, 4].map(|extent| deaths.of(ExtentIndex(extent)).is_some());
        assert_eq!(known, [true, false, false, false], "two had more than was told, one is gone");
        assert_eq!(deaths.entries, EXTENT_ENTRIES + TOLL_MAX);
    }

    #[test]
    fn without_memory_those_with_few_are_forgotten() {
        let mut deaths = Deaths::new((240 + 3 * EXTENT_ENTRIES) * ENTRY_BYTES);
        deaths.begin(&[1, 2, 3].map(ExtentIndex), SINCE);
        let many = |extent, count| -> Vec<_> { (0..count).map(|n| death(extent, 50 * n, 1, 1 << 4)).collect() };
        deaths.enter(&many(1, 200));
        deaths.enter(&many(2, 40));
        assert!(deaths.of(ExtentIndex(1)).is_some() && deaths.of(ExtentIndex(2)).is_some());
        deaths.enter(&many(3, 1));
        assert_eq!(deaths.of(ExtentIndex(3)), None);
        deaths.enter(&many(2, 40 + EXTENT_ENTRIES as u32 + 1));
        assert_eq!(deaths.of(ExtentIndex(2)), None);
        assert!(deaths.of(ExtentIndex(1)).is_some());
        assert_eq!(deaths.entries, EXTENT_ENTRIES + 200);
        deaths.begin(&[4, 5, 6, 7].map(ExtentIndex), SINCE);
        let known = [4, 5, 6, 7].map(|extent| deaths.of(ExtentIndex(extent)).is_some());
        assert_eq!(known, [true, true, true, false], "there is no room for more");
    }
}
