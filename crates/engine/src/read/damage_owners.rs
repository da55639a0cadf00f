//! The names under which damage is reported: those of the volumes that see it. The volume that
//! wrote the data need not be one of them: it may have overwritten the data since a snapshot, or be
//! destroyed while clones need the data.

use format::ObjectState;
use store::map::Map;
use store::objects::{Object, Objects};
use units::{BlockMask, Epoch, GroupIndex};

/// Upper bound of other names in a message.
const OTHERS_NAMED_MAX: usize = 4;

/// A place in a record of the map.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub group: GroupIndex,
    pub epoch: Epoch,
    /// Of the fragment: its location, and its live blocks; none: all of the record.
    pub fragment: Option<(u64, BlockMask)>,
}

/// The objects that see a place of an object.
pub(crate) struct Concerned {
    /// The name to report it under: the object's own if its current state sees it, otherwise that
    /// of the newest of its snapshots that does, or of the newest of its clones.
    pub name: String,
    /// The visible blocks.
    pub blocks: BlockMask,
    /// All others that see some of it, in the same order.
    pub others: Vec<String>,
}

impl Concerned {
    /// Returns the objects that see the data stored at a place of an object. Examines all objects:
    /// for damaged data only.
    pub(crate) fn of(objects: &Objects, map: &Map, object: &Object, place: Place) -> Self {
        let live = place.fragment.map_or(BlockMask::FULL, |(_, live)| live);
        let mut found = Vec::new();
        for seer in objects.all() {
            let state = seer.descriptor.read().state;
            let levels = seer.levels();
            let is_seen = levels.iter().any(|level| level.object == object.id && level.sees(place.epoch));
            if !is_seen || matches!(state, ObjectState::Deleting | ObjectState::Dictionary | ObjectState::Bookmark) {
                continue;
            }
            let blocks = match place.fragment {
                None => BlockMask::FULL,
                // If the map cannot be read, neither can the data that it refers to.
                Some((location, _)) => map.lookup_stored(&levels, place.group, live).map_or(live, |pieces| {
                    let here = pieces.iter().filter(|piece| piece.fragment.location == location);
                    here.fold(BlockMask::EMPTY, |mask, piece| mask.or(piece.fragment.live))
                }),
            };
            if !blocks.is_empty() {
                let rank = if seer.id == object.id { 0 } else { 1 + u8::from(state != ObjectState::Snapshot) };
                found.push((rank, std::cmp::Reverse(seer.id), seer.title(), blocks));
            }
        }
        found.sort_unstable_by_key(|(rank, age, ..)| (*rank, *age));
        let mut found = found.into_iter().map(|(_, _, name, blocks)| (name, blocks));
        let (name, blocks) = found.next().unwrap_or_else(|| (object.title(), live));
        Self { name, blocks, others: found.map(|(name, _)| name).collect() }
    }

    /// Returns the other names, as a suffix for a message.
    pub(crate) fn others_suffix(&self) -> String {
        if self.others.is_empty() {
            return String::new();
        }
        let named: Vec<_> = self.others.iter().take(OTHERS_NAMED_MAX).map(String::as_str).collect();
        let more = self.others.len() - named.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("; also affects {}{more}", named.join(", "))
    }
}
