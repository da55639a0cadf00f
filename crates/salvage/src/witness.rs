//! The map of a salvaged pool, where it survives: it lists which blocks held data as of its
//! checkpoint, and where. Owns the decision whether the map can be trusted, and its answers.
//!
//! Content always comes from the log: a block shows the data of its newest fact there. The map
//! shows which facts the log should have, so that a loss is counted block by block:
//! 1. The map is trusted if it is whole (its checkpoint, descriptors, deltas and the sum over all
//!    of its records agree), and if its checkpoint matches the applicable inventory; where both
//!    copies of the inventory are damaged, if it is of the newest opening.
//! 2. All batches from the position of its checkpoint on are present, as far as they are known to
//!    have been durable. So the log has all changes that are newer than the map.
//! 3. A block is *confirmed* if its fact was written after that position, or is the one that the
//!    map names. No missing part of the log can have superseded it.
//! 4. A block is *gone* if the map names data of it, and the log has neither that data nor anything
//!    after the position. It is *bared* if the map has a hole there, and the log has no fact: then
//!    data of an older epoch shows.
//! 5. Descriptors are those of the map, with later changes applied, whether or not the catalogue is
//!    usable.
//!
//! Extents are freed only when a later checkpoint is durable. So all data that the map names was in
//! the log at its last write, either at the named location or moved by a batch after the position.

use std::ops::ControlFlow;
use std::sync::Arc;

use env::MapStore;
use format::{Checkpoint, FragmentRef, ObjectDescriptor, Record, RecordKey};
use store::base::canary::Canary;
use store::base::group::{GroupKey, GroupRecords};
use store::base::ranked::Mutex;
use store::base::ranks;
use store::log::geometry::Geometry;
use store::map::Map;
use store::map::loaded::{self, Loaded};
use surface::Result;
use units::{BlockMask, GROUP_BLOCKS, Seq};

use super::facts::{Fact, Rank, winners};
use super::log_objects::{Openings, Table};

/// Memory for decoded groups: the groups are requested in order.
const CACHE_BYTES: usize = 1 << 20;

/// The map, whole.
pub struct Witness {
    map: Map,
    checkpoint: Checkpoint,
    objects: Vec<ObjectDescriptor>,
    /// The last requested group: its records are requested one by one.
    last: Mutex<Option<(GroupKey, Arc<GroupRecords>)>, ranks::Witness>,
}

/// Comparison of a record's blocks in the map with those in the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Compared {
    pub confirmed: BlockMask,
    pub gone: BlockMask,
    pub bared: BlockMask,
}

impl Witness {
    /// Step 1, except for the inventory.
    ///
    /// # Errors
    /// The reason why the map is not trusted.
    pub fn of(store: &Arc<dyn MapStore>, pool: &[u8; 16], geometry: &Geometry) -> std::result::Result<Self, String> {
        let loaded = loaded::load(&**store, pool, geometry).map_err(|error| error.to_string())?;
        let Loaded { checkpoint, objects, deltas, .. } = loaded;
        let map = Map::new(Arc::clone(store), CACHE_BYTES, Arc::new(deltas.settled));
        let mut live_bytes = 0;
        let counted = map.scan_records(b"R", b"S", &mut |_, records| {
            let fragments = records.iter().flat_map(|(_, record)| &record.fragments);
            live_bytes += fragments.map(|fragment| u64::from(fragment.live_bytes())).sum::<u64>();
            ControlFlow::Continue(())
        });
        counted.map_err(|error| error.to_string())?;
        if live_bytes != checkpoint.live_bytes {
            let expected = checkpoint.live_bytes;
            return Err(format!("its records hold {live_bytes} live bytes, expected {expected}"));
        }
        Ok(Self { map, checkpoint, objects, last: Mutex::default() })
    }

    /// All changes newer than the map have this number or a later one.
    pub fn next_seq(&self) -> Seq {
        self.checkpoint.next_seq
    }

    /// The opening that took its checkpoint.
    pub fn incarnation(&self) -> u64 {
        self.checkpoint.incarnation
    }

    /// Adds the openings that the map knows: batches of openings that had ended never happened.
    pub fn enter_openings(&self, openings: &mut Openings) {
        openings.catalogue(&self.checkpoint.catalogue.incarnations);
        openings.enter(self.checkpoint.incarnation, self.checkpoint.incarnation_first_seq);
    }

    /// Step 5: the objects as of its checkpoint.
    pub fn table(&self) -> Table {
        Table {
            as_of: Some(self.checkpoint.next_seq),
            is_outdated: false,
            properties: self.checkpoint.properties.clone(),
            gone_below: self.checkpoint.next_object,
            next_object: self.checkpoint.next_object,
            // Nothing is reaped in a read-only pool.
            objects: self.objects.iter().map(|o| (o.id, ObjectDescriptor { reap: None, ..o.clone() })).collect(),
        }
    }

    /// Steps 3 and 4, of the facts of a record.
    ///
    /// # Errors
    /// Those of the store.
    pub fn compare(&self, key: &RecordKey, facts: &[Fact]) -> Result<Compared> {
        let group = GroupKey { object: key.object, group: key.group };
        let mut last = self.last.lock();
        let records = match &*last {
            Some((known, records)) if *known == group => Arc::clone(records),
            _ => self.map.records_of(group)?,
        };
        *last = Some((group, Arc::clone(&records)));
        let said = records.iter().find(|(epoch, _)| *epoch == key.epoch);
        Ok(said.map_or_else(
            || compare(facts, &Record::default(), self.checkpoint.next_seq),
            |(_, said)| compare(facts, said, self.checkpoint.next_seq),
        ))
    }

    /// Passes on all its records, in order, until `visit` fails.
    ///
    /// # Errors
    /// Those of the store and of `visit`.
    pub fn each(&self, visit: &mut dyn FnMut(RecordKey, &Record) -> Result<()>) -> Result<()> {
        let mut failed = Ok(());
        self.map.scan_records(b"R", b"S", &mut |key, records| {
            for (epoch, record) in &records {
                failed = visit(RecordKey { object: key.object, group: key.group, epoch: *epoch }, record);
                if failed.is_err() {
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        })?;
        failed
    }
}

/// Compares the resolved `facts` with the record `said` of a map as of batch `next_seq`.
fn compare(facts: &[Fact], said: &Record, next_seq: Seq) -> Compared {
    let winners = winners(facts);
    let mut compared = Compared::default();
    for (block, winner) in (0..GROUP_BLOCKS as u32).zip(winners) {
        let bit = BlockMask::run(block, 1);
        let data = said.fragments.iter().find(|fragment| fragment.live.has(block));
        let is_recent = winner.is_some_and(|winner| winner.seq >= next_seq && winner.rank != Rank::LeftOver);
        let into = match (winner, data) {
            _ if is_recent => &mut compared.confirmed,
            (Some(winner), Some(data)) if is_same(winner, data) => &mut compared.confirmed,
            (_, Some(_)) => &mut compared.gone,
            (None, None) if said.holes.has(block) => &mut compared.bared,
            // The log has a hole that the map need not have, or data that was superseded.
            _ => continue,
        };
        *into = into.or(bit);
    }
    compared
}

/// Returns whether a fact is the data that the map names, there or in a copy of the same bytes.
fn is_same(fact: &Fact, data: &FragmentRef) -> bool {
    let place = |fragment: &FragmentRef| (fragment.first, fragment.count, fragment.codec);
    let found = &fact.fragment;
    let is_same = place(found) == place(data) && (found.stored, found.checksum) == (data.stored, data.checksum);
    matches!(fact.rank, Rank::Intact | Rank::Damaged) && (is_same || Canary::SalvageConfirmsAnything.is_planted())
}

#[cfg(test)]
mod tests {
    use units::{Epoch, GroupIndex, ObjectId};

    use super::super::facts::only_blocks;
    use super::*;

    fn data(live: u32, checksum: u32, location: u64) -> FragmentRef {
        FragmentRef { live: BlockMask(live), first: 0, count: 8, codec: 65, stored: 900, checksum, location }
    }

    fn fact(seq: u64, rank: Rank, fragment: FragmentRef) -> Fact {
        let key = RecordKey { object: ObjectId(3), group: GroupIndex(9), epoch: Epoch(2) };
        Fact { key, made: Seq(seq), rank, seq: Seq(seq), incarnation: 4, fragment }
    }

    fn said(holes: u32, fragments: &[FragmentRef]) -> Record {
        Record { holes: BlockMask(holes), fragments: fragments.iter().copied().collect() }
    }

    #[test]
    fn what_the_map_names_is_confirmed_wherever_it_was_moved() {
        let facts = [fact(5, Rank::Intact, data(0xff, 1, 4096))];
        let moved = said(0, &[data(0xf0, 1, 8192)]);
        let compared = compare(&facts, &moved, Seq(9));
        // The other half is superseded data whose successor the log has forgotten.
        assert_eq!(compared, Compared { confirmed: BlockMask(0xf0), ..Compared::default() });
    }

    #[test]
    fn older_data_and_holes_do_not_stand_in_for_what_the_map_names() {
        let map = said(0, &[data(0xff, 2, 8192)]);
        for facts in [
            vec![],
            vec![fact(5, Rank::Intact, data(0xff, 1, 4096))],
            vec![fact(5, Rank::Hole, only_blocks(BlockMask(0xff)))],
            vec![fact(5, Rank::LeftOver, only_blocks(BlockMask(0xff)))],
        ] {
            assert_eq!(compare(&facts, &map, Seq(9)).gone, BlockMask(0xff), "{facts:?}");
        }
    }

    #[test]
    fn what_came_behind_the_map_needs_no_word_of_it() {
        let facts = [
            fact(5, Rank::Intact, data(0xff, 1, 4096)),
            fact(9, Rank::Intact, data(0x0f, 3, 12288)),
            fact(10, Rank::Hole, only_blocks(BlockMask(0x30))),
        ];
        let compared = compare(&facts, &said(0, &[data(0xff, 2, 8192)]), Seq(9));
        assert_eq!(compared, Compared { confirmed: BlockMask(0x3f), gone: BlockMask(0xc0), ..Compared::default() });
    }

    #[test]
    fn a_hole_that_the_log_has_lost_bares_what_is_older() {
        let facts = [fact(5, Rank::Hole, only_blocks(BlockMask(0x0f)))];
        assert_eq!(compare(&facts, &said(0xff, &[]), Seq(9)).bared, BlockMask(0xf0));
    }
}
