//! Facts: statements of single batches about single groups, kept in an ordered store on disk until
//! all extents have been read, because only then can the valid ones be chosen. A key is the group's
//! record key with a different table byte, then the age of the fact; so the facts of a record are
//! adjacent, oldest first.
//!
//! For each block the newest fact decides, by the number of the batch that wrote its data first. Of
//! facts of the same age:
//! 1. data that matches its checksum: a moved copy and its source are equally good;
//! 2. a hole; 3. data that does not match; 4. data that was dead before its extent was reused
//!    (*left over*): it only proves that anything older is dead, too.
//!
//! Data is uncertain when the entry that superseded it may itself be lost, or when an undo of its
//! epoch or opening may have been forgotten.

use format::{FragmentRef, Record, RecordKey, record_key};
use units::{BlockMask, Epoch, GROUP_BLOCKS, GroupIndex, ObjectId, Seq};

/// Table byte of facts; none of the pool's own tables has it.
const TABLE_FACT: u8 = b'F';
/// Bytes of a key: a record's 21, made 8, rank 1, batch 8, incarnation 8, place 8. Batches of
/// several incarnations may have the same number: all but one of them never happened.
const KEY_BYTES: usize = 54;
/// Bytes of a value, for data: first 1, count 1, codec 1, stored 4, checksum 4, live 4; for others
/// live 4.
const DATA_BYTES: usize = 15;

/// The kind of a fact, in ascending order of precedence among facts of the same age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    LeftOver,
    Damaged,
    Hole,
    Intact,
}

/// A batch's statement about a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fact {
    pub key: RecordKey,
    pub made: Seq,
    pub rank: Rank,
    /// The batch that makes it.
    pub seq: Seq,
    pub incarnation: u64,
    /// The fragment, its live mask the blocks concerned. For holes and leftovers only the mask is
    /// meaningful.
    pub fragment: FragmentRef,
}

/// A fragment that only names blocks.
pub(crate) fn only_blocks(live: BlockMask) -> FragmentRef {
    FragmentRef { live, first: 0, count: 1, codec: 0, stored: 0, checksum: 0, location: 0 }
}

impl Fact {
    pub fn encode(&self) -> (Vec<u8>, Vec<u8>) {
        let mut key = Vec::with_capacity(KEY_BYTES);
        key.extend_from_slice(&record_key(&self.key));
        key[0] = TABLE_FACT;
        key.extend_from_slice(&self.made.0.to_be_bytes());
        key.push(self.rank as u8);
        key.extend_from_slice(&self.seq.0.to_be_bytes());
        key.extend_from_slice(&self.incarnation.to_be_bytes());
        // Two facts of one batch and group differ in their location, or, if they are not of data,
        // in their blocks.
        let is_data = matches!(self.rank, Rank::Damaged | Rank::Intact);
        let place = if is_data { self.fragment.location } else { u64::from(self.fragment.live.0) };
        key.extend_from_slice(&place.to_be_bytes());
        let mut value = Vec::with_capacity(DATA_BYTES);
        if is_data {
            let FragmentRef { first, count, codec, stored, checksum, .. } = self.fragment;
            value.extend_from_slice(&[first, count, codec]);
            value.extend_from_slice(&stored.to_le_bytes());
            value.extend_from_slice(&checksum.to_le_bytes());
        }
        value.extend_from_slice(&self.fragment.live.0.to_le_bytes());
        (key, value)
    }

    /// Inverse of [`encode`](Self::encode); `None` for anything else.
    pub fn decode(key: &[u8], value: &[u8]) -> Option<Self> {
        let (head, rest) = key.split_first_chunk::<21>()?;
        let (made, rest) = rest.split_first_chunk::<8>()?;
        let (rank, rest) = rest.split_first()?;
        let (seq, rest) = rest.split_first_chunk::<8>()?;
        let (incarnation, place) = rest.split_first_chunk::<8>()?;
        let rank = [Rank::LeftOver, Rank::Damaged, Rank::Hole, Rank::Intact].into_iter().find(|r| *r as u8 == *rank)?;
        let location = u64::from_be_bytes(place.try_into().ok()?);
        let (value, live) = value.split_last_chunk::<4>()?;
        let live = BlockMask(u32::from_le_bytes(*live));
        let fragment = if matches!(rank, Rank::Damaged | Rank::Intact) {
            let (stored, checksum) = (value.get(3..7)?.try_into().ok()?, value.get(7..11)?.try_into().ok()?);
            FragmentRef {
                live,
                first: value[0],
                count: value[1],
                codec: value[2],
                stored: u32::from_le_bytes(stored),
                checksum: u32::from_le_bytes(checksum),
                location,
            }
        } else {
            only_blocks(live)
        };
        Some(Self {
            key: parse(head)?,
            made: Seq(u64::from_be_bytes(*made)),
            rank,
            seq: Seq(u64::from_be_bytes(*seq)),
            incarnation: u64::from_be_bytes(*incarnation),
            fragment,
        })
    }
}

fn parse(head: &[u8; 21]) -> Option<RecordKey> {
    let mut id = *head;
    id[0] = record_key(&RecordKey { object: ObjectId(0), group: GroupIndex(0), epoch: Epoch(0) })[0];
    format::parse_record_key(&id)
}

/// The keys of all facts.
pub(crate) const fn fact_range() -> (&'static [u8], &'static [u8]) {
    (&[TABLE_FACT], &[TABLE_FACT + 1])
}

/// Limits of certainty for facts.
pub struct Doubt<'a> {
    /// Some batches before it are missing.
    pub certain_from: Seq,
    /// Whether a fact may have been undone, or may never have happened.
    pub is_doubtful: &'a dyn Fn(&Fact) -> bool,
}

/// Result of resolving the facts of a record.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    pub record: Record,
    /// Blocks whose data may not be the current content.
    pub uncertain: BlockMask,
    /// Uncertain blocks whose data is so old that the entry that superseded it may be gone.
    pub old: BlockMask,
    /// Blocks that are dead if a doubtful fact is right: older data may be the correct content.
    pub hiding: BlockMask,
    /// Newest number among the winning data.
    pub newest: Seq,
}

/// Returns the winning fact for each block.
pub(crate) fn winners(facts: &[Fact]) -> [Option<&Fact>; GROUP_BLOCKS] {
    let mut winners: [Option<&Fact>; GROUP_BLOCKS] = [None; GROUP_BLOCKS];
    for fact in facts {
        for block in 0..GROUP_BLOCKS as u32 {
            let winner = &mut winners[block as usize];
            let age = |fact: &Fact| (fact.made, fact.rank, fact.seq);
            if fact.fragment.live.has(block) && winner.is_none_or(|w| age(fact) >= age(w)) {
                *winner = Some(fact);
            }
        }
    }
    winners
}

/// Decides for each block. *Confirmed* data was certainly not superseded.
pub fn resolve(facts: &[Fact], doubt: &Doubt<'_>, confirmed: BlockMask) -> Resolved {
    let winners = winners(facts);
    let mut resolved = Resolved::default();
    for fact in facts {
        let mut live = BlockMask::EMPTY;
        for (block, winner) in winners.iter().enumerate() {
            if winner.is_some_and(|w| std::ptr::eq(w, fact)) {
                live = live.or(BlockMask::run(block as u32, 1));
            }
        }
        if live.is_empty() {
            continue;
        }
        match fact.rank {
            Rank::Intact | Rank::Damaged => {
                resolved.record.put(FragmentRef { live, ..fact.fragment }, &mut |_| ());
                resolved.newest = resolved.newest.max(fact.made);
                let is_old = fact.made < doubt.certain_from;
                let old = if is_old { live.minus(confirmed) } else { BlockMask::EMPTY };
                resolved.old = resolved.old.or(old);
                if (doubt.is_doubtful)(fact) {
                    resolved.uncertain = resolved.uncertain.or(live.minus(old));
                }
            }
            // The blocks are known to be dead: this epoch has nothing there, and older epochs must
            // not show.
            Rank::Hole | Rank::LeftOver => {
                resolved.record.put_holes(live, &mut |_| ());
                if (doubt.is_doubtful)(fact) {
                    resolved.hiding = resolved.hiding.or(live);
                }
            }
        }
    }
    resolved.uncertain = resolved.uncertain.or(resolved.old);
    for fact in facts.iter().filter(|fact| matches!(fact.rank, Rank::Intact | Rank::Damaged)) {
        resolved.uncertain = resolved.uncertain.or(fact.fragment.live.and(resolved.hiding));
    }
    resolved
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fact(made: u64, rank: Rank, seq: u64, live: u32, location: u64) -> Fact {
        let key = RecordKey { object: ObjectId(3), group: GroupIndex(9), epoch: Epoch(2) };
        let live = BlockMask(live);
        let fragment = match rank {
            Rank::Hole | Rank::LeftOver => only_blocks(live),
            _ => FragmentRef { live, first: 0, count: 32, codec: 65, stored: 9000, checksum: 77, location },
        };
        Fact { key, made: Seq(made), rank, seq: Seq(seq), incarnation: 4, fragment }
    }

    #[test]
    fn facts_round_trip_and_the_oldest_comes_first() {
        let facts = [
            fact(1, Rank::Intact, 1, 0xff, 4096),
            fact(1, Rank::Intact, 9, 0xff, 8192),
            fact(2, Rank::LeftOver, 2, 0xf, 0),
            fact(2, Rank::Damaged, 2, 0xf, 70000),
            fact(3, Rank::Hole, 3, 0x8000_0001, 0),
        ];
        let mut last = Vec::new();
        for fact in facts {
            let (key, value) = fact.encode();
            assert!(key > last);
            assert_eq!(Fact::decode(&key, &value), Some(fact));
            assert_eq!(Fact::decode(&key[..key.len() - 1], &value), None);
            assert_eq!(Fact::decode(&key, &value[..value.len() - 3]).filter(|f| *f == fact), None);
            last = key;
        }
        let (from, to) = fact_range();
        assert!(last.as_slice() > from && last.as_slice() < to);
    }

    #[test]
    fn no_fact_takes_the_place_of_another_one() {
        let facts = [
            // Of an opening that had ended: its batches have the same numbers as those that
            // happened.
            fact(5, Rank::Hole, 5, 0xff, 0),
            Fact { incarnation: 3, ..fact(5, Rank::Hole, 5, 0xff, 0) },
            // Of one batch and group.
            fact(5, Rank::Hole, 5, 0xf00, 0),
            fact(5, Rank::LeftOver, 5, 0xff, 0),
            fact(5, Rank::LeftOver, 5, 0xf00, 0),
            fact(5, Rank::Intact, 5, 0xff, 4096),
            fact(5, Rank::Intact, 5, 0xff, 8192),
            fact(5, Rank::Damaged, 5, 0xff, 8192),
        ];
        let keys: std::collections::BTreeSet<_> = facts.iter().map(|fact| fact.encode().0).collect();
        assert_eq!(keys.len(), facts.len());
    }

    fn places(resolved: &Resolved) -> Vec<(u64, u32)> {
        let mut places: Vec<_> = resolved.record.fragments.iter().map(|f| (f.location, f.live.0)).collect();
        places.sort_unstable();
        places
    }

    fn certain_from(seq: u64) -> Doubt<'static> {
        Doubt { certain_from: Seq(seq), is_doubtful: &|_| false }
    }

    #[test]
    fn the_newest_data_counts_wherever_it_was_moved() {
        // Block 0 was overwritten after the fragment at 4096 had been written and before it was
        // moved to 8192.
        let facts = [
            fact(5, Rank::Intact, 5, 0xff, 4096),
            fact(5, Rank::Intact, 9, 0xfe, 8192),
            fact(7, Rank::Intact, 7, 1, 12288),
        ];
        let resolved = resolve(&facts, &certain_from(6), BlockMask::EMPTY);
        assert_eq!(places(&resolved), [(8192, 0xfe), (12288, 1)]);
        assert_eq!((resolved.uncertain, resolved.newest), (BlockMask(0xfe), Seq(7)));
        let confirmed = resolve(&facts, &certain_from(6), BlockMask(0xf0));
        assert_eq!((confirmed.uncertain, confirmed.old), (BlockMask(0xe), BlockMask(0xe)));
    }

    #[test]
    fn a_whole_copy_is_taken_for_a_damaged_one_but_never_older_data() {
        let facts = [
            fact(1, Rank::Intact, 1, 0xff, 4096),
            fact(5, Rank::Intact, 5, 0xf, 8192),
            fact(5, Rank::Damaged, 9, 0xff, 12288),
        ];
        assert_eq!(places(&resolve(&facts, &certain_from(0), BlockMask::EMPTY)), [(8192, 0xf), (12288, 0xf0)]);
    }

    #[test]
    fn leftovers_hide_what_is_older_and_not_their_own_moved_copies() {
        let facts = [
            fact(1, Rank::Intact, 1, 0xff, 4096),
            fact(5, Rank::LeftOver, 5, 0xff, 0),
            fact(5, Rank::Intact, 9, 0xf, 8192),
        ];
        let resolved = resolve(&facts, &certain_from(0), BlockMask::EMPTY);
        assert_eq!(places(&resolved), [(8192, 0xf)]);
        assert_eq!(resolved.record.holes, BlockMask(0xf0));
    }

    #[test]
    fn what_may_have_been_taken_back_counts_and_is_not_certain() {
        let facts = [
            fact(1, Rank::Intact, 1, 0xff, 4096),
            fact(5, Rank::Hole, 5, 0x3_000f, 0),
            fact(6, Rank::Intact, 6, 0xf00, 8192),
            fact(7, Rank::Hole, 7, 0x30, 0),
        ];
        let is_doubtful = |fact: &Fact| (5..7).contains(&fact.made.0);
        let resolved = resolve(&facts, &Doubt { certain_from: Seq(0), is_doubtful: &is_doubtful }, BlockMask::EMPTY);
        assert_eq!(places(&resolved), [(4096, 0xc0), (8192, 0xf00)]);
        assert_eq!((resolved.uncertain, resolved.hiding), (BlockMask(0xf0f), BlockMask(0x3_000f)));
    }
}
