//! Objects rebuilt from the log alone: the newest complete catalogue, and the entries after it.
//! Also determines which batches never happened, because the opening that wrote them had ended.

use std::collections::BTreeMap;

use format::{Batch, BatchHeader, CataloguePart, Entry, Incarnation, Incarnations, ObjectDescriptor};
use store::base::options::Properties;
use units::{ObjectId, Seq};

/// Upper bound of catalogues that are kept while reading: older ones are not needed, unless newer
/// ones are damaged.
const CATALOGUES_MAX: usize = 8;

/// The openings of the pool: which batches never happened.
#[derive(Debug, Clone, Default)]
pub struct Openings {
    /// First sequence numbers by number of opening.
    first: BTreeMap<u64, Seq>,
    /// By number of opening, the durable end of the log as that opening last recorded it:
    /// everything before it happened.
    durable: BTreeMap<u64, Seq>,
    /// See [`Incarnations::forgotten`].
    forgotten: Option<Incarnation>,
}

impl Openings {
    pub fn enter(&mut self, number: u64, first_seq: Seq) {
        self.first.insert(number, first_seq);
    }

    fn batch(&mut self, header: &BatchHeader) {
        self.enter(header.incarnation, header.incarnation_first_seq);
        let durable = self.durable.entry(header.incarnation).or_default();
        *durable = header.durable_before.max(*durable);
    }

    pub fn catalogue(&mut self, gathered: &Incarnations) {
        gathered.known.iter().for_each(|opening| self.enter(opening.number, opening.first_seq));
        if let Some(forgotten) = gathered.forgotten {
            self.forgotten = Some(Incarnations::around(self.forgotten, forgotten));
        }
    }

    /// The newest opening that left a trace.
    pub fn newest(&self) -> u64 {
        self.first.last_key_value().map_or(0, |(number, _)| *number)
    }

    /// The sequence number at which an opening ended: that and all later ones never happened in it.
    pub fn end_of(&self, incarnation: u64) -> Seq {
        let later = self.first.range(incarnation.saturating_add(1)..);
        later.map(|(_, first)| *first).min().unwrap_or(Seq(u64::MAX))
    }

    /// Whether a batch of that opening happened.
    pub fn happened(&self, incarnation: u64, seq: Seq) -> bool {
        seq < self.end_of(incarnation)
    }

    /// The sequence number from which on it is unknown whether batches of that opening happened.
    pub(crate) fn certain_end_of(&self, incarnation: u64) -> Seq {
        let durable = self.durable.get(&incarnation).copied().unwrap_or_default();
        let forgotten = self.forgotten.filter(|forgotten| incarnation < forgotten.number);
        let known = forgotten.map_or(Seq(u64::MAX), |forgotten| forgotten.first_seq.max(durable));
        known.min(self.end_of(incarnation))
    }
}

/// An entry that changes descriptors or properties.
#[derive(Debug, Clone)]
enum Change {
    Object(Box<ObjectDescriptor>),
    Properties(Properties),
}

/// Collects the statements of batches, in any order.
#[derive(Debug, Default)]
pub struct LogObjects {
    pub openings: Openings,
    /// By moment, then by opening and number of the batch.
    parts: BTreeMap<Seq, Vec<(u64, Seq, CataloguePart)>>,
    /// By number of the batch, its opening, and the place in it.
    changes: BTreeMap<(Seq, u64, usize), Change>,
}

/// The objects, as rebuilt from the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    /// The position of the catalogue at its base; `None`: no complete one was found, and the table
    /// comes from single entries.
    pub as_of: Option<Seq>,
    /// Only parts of a newer catalogue were found: changes between the two may be missing.
    pub is_outdated: bool,
    pub properties: Properties,
    /// An object below it that the table does not have is gone: otherwise the catalogue would have
    /// it.
    pub gone_below: u64,
    /// Identifier that the next object gets.
    pub next_object: u64,
    pub objects: BTreeMap<ObjectId, ObjectDescriptor>,
}

impl LogObjects {
    /// Adds the statements of a batch.
    pub fn batch(&mut self, batch: &Batch) {
        let header = &batch.header;
        self.openings.batch(header);
        for (index, entry) in batch.entries.iter().enumerate() {
            let at = (header.seq, header.incarnation, index);
            match entry {
                Entry::Object(descriptor) => {
                    self.changes.insert(at, Change::Object(Box::new(descriptor.clone())));
                }
                Entry::PoolProperties(properties) => {
                    self.changes.insert(at, Change::Properties(properties.clone()));
                }
                Entry::Catalogue(part) => {
                    self.openings.catalogue(&part.incarnations);
                    self.parts.entry(part.as_of).or_default().push((header.incarnation, header.seq, part.clone()));
                    while self.parts.len() > CATALOGUES_MAX {
                        self.parts.pop_first();
                    }
                }
                Entry::Fragments { .. } | Entry::Moves { .. } | Entry::Holes { .. } => {}
            }
        }
    }

    /// Returns the objects as of batch `until`, exclusive.
    pub fn table(&self, until: Seq) -> Table {
        let mut table = Table::default();
        for (as_of, parts) in self.parts.range(..=until).rev() {
            let happened = |part: &&(u64, Seq, CataloguePart)| self.openings.happened(part.0, part.1);
            let parts: BTreeMap<u32, &CataloguePart> =
                parts.iter().filter(happened).map(|(_, _, part)| (part.part, part)).collect();
            let Some(first) = parts.get(&0).filter(|first| parts.len() == first.parts as usize) else {
                table.is_outdated |= !parts.is_empty();
                continue;
            };
            table.as_of = Some(*as_of);
            table.gone_below = first.next_object;
            table.next_object = first.next_object;
            table.properties = first.properties.clone();
            table.objects = parts.values().flat_map(|part| &part.descriptors).map(|d| (d.id, d.clone())).collect();
            break;
        }
        let mut pieced = BTreeMap::new();
        if table.as_of.is_none() {
            self.piece_together(until, &mut table, &mut pieced);
        }
        self.change(&mut table, &pieced, until);
        table
    }

    /// Returns the given objects, with all later changes applied.
    pub fn table_since(&self, mut was: Table) -> Table {
        self.change(&mut was, &BTreeMap::new(), Seq(u64::MAX));
        was
    }

    /// Applies the changes after the table's position.
    fn change(&self, table: &mut Table, pieced: &BTreeMap<ObjectId, Seq>, until: Seq) {
        let from = table.as_of.unwrap_or_default();
        for ((seq, incarnation, _), change) in self.changes.range((from, 0, 0)..(until, 0, 0)) {
            if !self.openings.happened(*incarnation, *seq) {
                continue;
            }
            match change {
                Change::Object(descriptor) if pieced.get(&descriptor.id).is_some_and(|newer| newer > seq) => {}
                Change::Object(descriptor) => {
                    table.next_object = table.next_object.max(descriptor.id.0 + 1);
                    table.objects.insert(descriptor.id, (**descriptor).clone());
                }
                Change::Properties(properties) => table.properties = properties.clone(),
            }
        }
    }

    /// Without a complete catalogue, parts of incomplete ones are better than nothing. `pieced`
    /// gets the moment of each descriptor.
    fn piece_together(&self, until: Seq, table: &mut Table, pieced: &mut BTreeMap<ObjectId, Seq>) {
        for (incarnation, seq, part) in self.parts.range(..=until).flat_map(|(_, parts)| parts) {
            if !self.openings.happened(*incarnation, *seq) {
                continue;
            }
            if part.part == 0 {
                table.properties = part.properties.clone();
            }
            for descriptor in &part.descriptors {
                table.next_object = table.next_object.max(descriptor.id.0 + 1);
                table.objects.insert(descriptor.id, descriptor.clone());
                pieced.insert(descriptor.id, part.as_of);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use format::BatchHeader;
    use units::ExtentIndex;

    fn batch(incarnation: u64, first: u64, seq: u64, entries: Vec<Entry>) -> Batch {
        let header = BatchHeader {
            pool: 7,
            stream: format::Stream::Hot,
            seq: Seq(seq),
            incarnation,
            incarnation_first_seq: Seq(first),
            durable_before: Seq(1),
            extent: ExtentIndex(1),
        };
        Batch { header, entries, header_bytes: 64, batch_bytes: 4096 }
    }

    fn volume(id: u64, name: &str) -> ObjectDescriptor {
        ObjectDescriptor::volume(ObjectId(id), name, 4096)
    }

    fn part(as_of: u64, part: u32, parts: u32, descriptors: Vec<ObjectDescriptor>) -> Entry {
        Entry::Catalogue(CataloguePart {
            as_of: Seq(as_of),
            part,
            parts,
            next_object: 9,
            incarnations: Incarnations::default(),
            properties: Properties::new(),
            descriptors,
        })
    }

    fn names(table: &Table) -> Vec<&str> {
        table.objects.values().map(|d| d.name.as_str()).collect()
    }

    #[test]
    fn the_newest_complete_catalogue_counts_and_what_comes_behind_it() {
        let mut gathered = LogObjects::default();
        gathered.batch(&batch(1, 1, 5, vec![Entry::Object(volume(1, "old")), Entry::Object(volume(3, "gone"))]));
        gathered.batch(&batch(1, 1, 21, vec![part(20, 1, 2, vec![volume(2, "b")])]));
        gathered.batch(&batch(1, 1, 20, vec![part(20, 0, 2, vec![volume(1, "a")])]));
        gathered.batch(&batch(1, 1, 22, vec![Entry::Object(volume(2, "renamed"))]));
        // An incomplete catalogue is not used.
        gathered.batch(&batch(1, 1, 30, vec![part(30, 0, 2, vec![volume(1, "half")])]));
        assert_eq!(names(&gathered.table(Seq(u64::MAX))), ["a", "renamed"]);
        assert_eq!(names(&gathered.table(Seq(22))), ["a", "b"]);
        assert_eq!(gathered.table(Seq(u64::MAX)).as_of, Some(Seq(20)));
    }

    #[test]
    fn what_an_opening_wrote_behind_its_end_never_happened() {
        let mut gathered = LogObjects::default();
        gathered.batch(&batch(1, 1, 5, vec![Entry::Object(volume(1, "a"))]));
        gathered.batch(&batch(1, 1, 12, vec![Entry::Object(volume(1, "never"))]));
        gathered.batch(&batch(2, 10, 11, vec![Entry::Object(volume(2, "b"))]));
        let table = gathered.table(Seq(u64::MAX));
        assert_eq!((names(&table), table.as_of), (vec!["a", "b"], None));
        // The catalogue remembers openings of which no batch is left.
        let mut part = part(8, 0, 1, vec![volume(1, "c")]);
        if let Entry::Catalogue(part) = &mut part {
            part.incarnations.known = vec![Incarnation { number: 4, first_seq: Seq(11) }];
        }
        gathered.batch(&batch(1, 1, 9, vec![part]));
        assert_eq!(names(&gathered.table(Seq(u64::MAX))), ["c"]);
    }

    #[test]
    fn what_forgotten_openings_may_have_ended_is_not_certain_unless_it_was_durable() {
        let mut openings = Openings::default();
        let mut header = batch(2, 5, 7, Vec::new()).header;
        openings.batch(&header);
        header.durable_before = Seq(30);
        openings.batch(&BatchHeader { incarnation: 3, incarnation_first_seq: Seq(20), ..header });
        let opening = |number, first| Incarnation { number, first_seq: Seq(first) };
        let mut gathered = Incarnations { known: vec![opening(9, 90)], forgotten: Some(opening(6, 25)) };
        openings.catalogue(&gathered);
        assert_eq!([2, 3, 4, 6].map(|n| openings.certain_end_of(n).0), [20, 30, 25, 90]);
        gathered.forgotten = Some(opening(4, 10));
        openings.catalogue(&gathered);
        assert_eq!([2, 3, 4, 6].map(|n| openings.certain_end_of(n).0), [10, 30, 10, 90]);
        assert!(openings.happened(2, Seq(19)) && !openings.happened(2, Seq(20)));
    }
}
