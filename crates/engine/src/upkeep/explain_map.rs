//! A map of an object by codec: its data in a bounded number of cells, of each of which a bounded
//! number of groups is looked at. Pure, apart from the look-ups that it is given.
//!
//! Cells of a volume are ranges of bytes. Most of a share's addresses are empty, so its cells are
//! equal numbers of groups that hold data, in the order of their addresses.
//!
//! The groups of a cell are looked at in rounds over all cells, so that a map that runs out of time
//! knows something of each cell.

use std::collections::BTreeMap;

use codec::CodecId;
use surface::Result;
use units::{GROUP_BYTES, GroupIndex};

/// Most cells.
pub const CELLS_MAX: usize = 4096;
/// Rounds, and groups of a cell that each looks at: 64 in all.
const ROUNDS: u64 = 8;
const GROUPS_OF_ROUND: usize = 8;
/// Most groups of a share that are divided into cells, 8 bytes each.
const GROUPS_MAX: usize = 1 << 20;
/// Groups that are listed at once.
const LISTED: usize = 1 << 14;

/// A part of an object, as far as it was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapCell {
    /// Where its data begins, in bytes.
    pub offset: u64,
    /// Codec of most of its data; `raw`: as it came.
    pub codec: String,
    /// Bytes of data that were looked at.
    pub raw_bytes: u64,
    /// Their stored size.
    pub stored_bytes: u64,
    /// Codec that won the last test there since the pool was opened.
    pub winner: Option<String>,
}

/// An object by codec.
#[derive(Debug, Clone, PartialEq)]
pub struct CodecMap {
    /// Size of the object; of a share, of the groups that hold data.
    pub size_bytes: u64,
    /// Bytes of a cell.
    pub cell_bytes: u64,
    /// Bytes of data that were looked at.
    pub looked_at_bytes: u64,
    /// By address; none: no data was found.
    pub cells: Vec<Option<MapCell>>,
}

/// Data with one codec: raw and stored bytes.
pub(crate) type Uses = Vec<(u8, u64, u64)>;

/// Look-ups in an object.
pub(crate) struct Looks<'a> {
    /// Groups of which something is known in a range, at most so many; and where the look ended.
    pub(crate) known: &'a dyn Fn(GroupIndex, GroupIndex, usize) -> Result<(Vec<GroupIndex>, GroupIndex)>,
    /// Data of a group by codec.
    pub(crate) uses: &'a dyn Fn(GroupIndex) -> Result<Uses>,
    /// Codec that won the last test in the region of a group.
    pub(crate) winner: &'a dyn Fn(GroupIndex) -> Option<String>,
    /// Whether the time is over.
    pub(crate) is_over: &'a dyn Fn() -> bool,
}

#[derive(Default)]
struct Cell {
    first: Option<GroupIndex>,
    uses: BTreeMap<u8, (u64, u64)>,
}

/// Where the groups of cells are.
enum Plan {
    /// Ranges of so many groups each, up to an end.
    Ranges { groups: u64, end: u64 },
    /// So many of these each.
    Listed { groups: usize, all: Vec<GroupIndex> },
}

impl Plan {
    fn of_share(looks: &Looks<'_>, end: GroupIndex, cells: usize) -> Result<Self> {
        let (mut all, mut from) = (Vec::new(), GroupIndex(0));
        while from < end && all.len() < GROUPS_MAX && !(looks.is_over)() {
            let (found, next) = (looks.known)(from, end, LISTED)?;
            all.extend(found);
            from = next;
        }
        all.truncate(GROUPS_MAX);
        Ok(Self::Listed { groups: all.len().div_ceil(cells).max(1), all })
    }

    fn count(&self) -> usize {
        match self {
            Self::Ranges { groups, end } => usize::try_from(end.div_ceil(*groups)).unwrap_or(CELLS_MAX),
            Self::Listed { groups, all } => all.len().div_ceil(*groups),
        }
    }

    fn cell_bytes(&self) -> u64 {
        let groups = match self {
            Self::Ranges { groups, .. } => *groups,
            Self::Listed { groups, .. } => *groups as u64,
        };
        groups * GROUP_BYTES as u64
    }

    /// Groups that a round looks at: those at the beginning of one of the cell's parts.
    fn groups_of(&self, looks: &Looks<'_>, cell: usize, round: u64) -> Result<Vec<GroupIndex>> {
        match self {
            Self::Ranges { groups, end } => {
                let part = |round: u64| (cell as u64 * groups + groups * round / ROUNDS).min(*end);
                let (from, to) = (part(round), part(round + 1));
                let mut found = (looks.known)(GroupIndex(from), GroupIndex(to), GROUPS_OF_ROUND)?.0;
                found.truncate(GROUPS_OF_ROUND);
                Ok(found)
            }
            Self::Listed { groups, all } => {
                let own = &all[cell * groups..all.len().min((cell + 1) * groups)];
                let part = |round: u64| own.len() * round as usize / ROUNDS as usize;
                let found = &own[part(round)..part(round + 1)];
                Ok(found[..found.len().min(GROUPS_OF_ROUND)].to_vec())
            }
        }
    }
}

/// Draws the map of an object of so many bytes in at most `cells` cells.
///
/// # Errors
/// Those of the look-ups.
pub(crate) fn draw(looks: &Looks<'_>, size_bytes: u64, is_share: bool, cells: usize) -> Result<CodecMap> {
    let cells = cells.clamp(1, CELLS_MAX);
    let end = size_bytes.div_ceil(GROUP_BYTES as u64);
    let plan = match is_share {
        true => Plan::of_share(looks, GroupIndex(end), cells)?,
        false => Plan::Ranges { groups: end.div_ceil(cells as u64).max(1), end },
    };
    let mut found: Vec<Cell> = std::iter::repeat_with(Cell::default).take(plan.count()).collect();
    'rounds: for round in 0..ROUNDS {
        for (number, cell) in found.iter_mut().enumerate() {
            if round > 0 && (looks.is_over)() {
                break 'rounds;
            }
            for group in plan.groups_of(looks, number, round)? {
                let uses = (looks.uses)(group)?;
                if !uses.is_empty() {
                    cell.first = Some(cell.first.map_or(group, |first| first.min(group)));
                }
                for (codec, raw, stored) in uses {
                    let sums = cell.uses.entry(codec).or_default();
                    *sums = (sums.0 + raw, sums.1 + stored);
                }
            }
        }
    }
    let size_bytes = match &plan {
        Plan::Ranges { .. } => size_bytes,
        Plan::Listed { all, .. } => all.len() as u64 * GROUP_BYTES as u64,
    };
    let looked_at_bytes = found.iter().flat_map(|cell| cell.uses.values()).map(|(raw, _)| raw).sum();
    let cell_bytes = plan.cell_bytes();
    Ok(CodecMap {
        size_bytes,
        cell_bytes,
        looked_at_bytes,
        cells: found.iter().map(|cell| shown(cell, looks)).collect(),
    })
}

fn shown(cell: &Cell, looks: &Looks<'_>) -> Option<MapCell> {
    let first = cell.first?;
    let (codec, _) = cell.uses.iter().max_by_key(|(_, (raw, _))| *raw)?;
    Some(MapCell {
        offset: first.first_block().offset_bytes(),
        codec: CodecId(*codec).to_string(),
        raw_bytes: cell.uses.values().map(|(raw, _)| raw).sum(),
        stored_bytes: cell.uses.values().map(|(_, stored)| stored).sum(),
        winner: (looks.winner)(first),
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell as Counter;

    use super::*;

    /// An object with data in the groups for which `has` holds, of which the even ones are raw.
    fn drawn(size_groups: u64, is_share: bool, cells: usize, looks: u64, has: impl Fn(u64) -> bool) -> CodecMap {
        let left = Counter::new(looks);
        let known = |from: GroupIndex, to: GroupIndex, most: usize| {
            let mut found: Vec<_> = (from.0..to.0).filter(|group| has(*group)).map(GroupIndex).take(most + 1).collect();
            let end = if found.len() > most { found[most] } else { to };
            found.truncate(most);
            Ok((found, end))
        };
        let uses = |group: GroupIndex| {
            left.set(left.get().saturating_sub(1));
            let bytes = GROUP_BYTES as u64;
            Ok(vec![if group.0.is_multiple_of(2) { (0, bytes, bytes) } else { (1, bytes, bytes / 2) }])
        };
        let is_over = || left.get() == 0;
        let looks = Looks { known: &known, uses: &uses, winner: &|_| None, is_over: &is_over };
        draw(&looks, size_groups * GROUP_BYTES as u64, is_share, cells).unwrap()
    }

    #[test]
    fn cells_of_a_volume_are_ranges_and_holes_are_empty() {
        let map = drawn(1000, false, 10, u64::MAX, |group| !(300..500).contains(&group));
        assert_eq!((map.cells.len(), map.cell_bytes), (10, 100 * GROUP_BYTES as u64));
        let empty: Vec<_> = (0..10).filter(|cell| map.cells[*cell].is_none()).collect();
        assert_eq!(empty, [3, 4]);
        let cell = map.cells[5].as_ref().unwrap();
        assert_eq!((cell.offset, cell.raw_bytes), (500 * GROUP_BYTES as u64, 64 * GROUP_BYTES as u64));
        assert!(cell.stored_bytes < cell.raw_bytes);
        let small = drawn(3, false, 4096, u64::MAX, |_| true);
        assert_eq!((small.cells.len(), small.looked_at_bytes), (3, small.size_bytes), "no more cells than groups");
        assert!(drawn(0, false, 7, u64::MAX, |_| true).cells.is_empty());
    }

    #[test]
    fn cells_of_a_share_are_equal_parts_of_its_data() {
        let map = drawn(100_000, true, 8, u64::MAX, |group| group % 1000 == 7 && group < 80_000);
        assert_eq!((map.cells.len(), map.cell_bytes), (8, 10 * GROUP_BYTES as u64));
        assert!(map.cells.iter().all(Option::is_some));
        assert_eq!(map.looked_at_bytes, 80 * GROUP_BYTES as u64);
        assert_eq!(map.cells[1].as_ref().unwrap().offset, 10_007 * GROUP_BYTES as u64);
        assert!(drawn(100, true, 8, u64::MAX, |_| false).cells.is_empty());
    }

    #[test]
    fn a_map_out_of_time_knows_something_of_each_cell() {
        let map = drawn(100_000, false, 100, 1, |_| true);
        assert!(map.cells.iter().all(Option::is_some));
        assert_eq!(map.looked_at_bytes, 100 * GROUPS_OF_ROUND as u64 * GROUP_BYTES as u64, "the first round is whole");
    }
}
