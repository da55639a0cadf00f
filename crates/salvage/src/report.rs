//! The report of a salvage.
#![warn(missing_docs, reason = "`engine` exports these types")]

use store::log::geometry::Geometry;
use surface::Result;
use units::{Seq, format_size};

use super::complete::{Completeness, Short};
use super::log_objects::Table;
use super::scan::{Place, Scan};

/// The current step of a salvage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SalvageStep {
    /// Reading the extents; in bytes.
    Scan,
    /// Rebuilding the map; in objects.
    Map,
    /// Copying volumes; in blocks of their sizes, in bytes.
    Copy,
}

/// Gets the step, how much of it is done, and how much there is. An error that it returns ends the
/// salvage and is returned from there.
pub type SalvageProgress<'a> = &'a mut dyn FnMut(SalvageStep, u64, u64) -> Result<()>;

/// A range that could not be read, or is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedRange {
    /// First byte in the volume or snapshot.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Why.
    pub detail: String,
}

/// A volume or a snapshot that was rebuilt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SalvagedVolume {
    /// Its name: `VOLUME` or `VOLUME@SNAPSHOT`.
    pub name: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Bytes copied for it, excluding data shared with an older snapshot or its origin.
    pub copied_bytes: u64,
    /// Bytes that could not be read, and now read as zeroes.
    pub damaged_bytes: u64,
    /// Their ranges: the first thousand.
    pub damaged: Vec<DamagedRange>,
    /// No descriptor was found: name, size and properties are made up.
    pub is_lost: bool,
    /// Bytes visible in it whose content is uncertain; see [`SalvageReport::uncertain_bytes`].
    pub uncertain_bytes: u64,
    /// Upper bound of bytes whose data is gone: they now read as zeroes or as older data. Damaged
    /// and uncertain bytes are not included.
    pub missing_bytes_max: u64,
    /// Their ranges, if the map has them: the first thousand.
    pub missing: Vec<DamagedRange>,
}

/// The number of the last batch before one.
const fn last_of(before: Seq) -> u64 {
    before.0.saturating_sub(1)
}

/// Result of a salvage: data found, data copied, and data that could not be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SalvageReport {
    /// Extents that were read.
    pub extents: u64,
    /// Batches found in them.
    pub batches: u64,
    /// Whether a complete catalogue was found, and no newer incomplete one: then names, sizes,
    /// snapshots and properties are those of the last moment.
    pub has_catalogue: bool,
    /// Volumes, each after its snapshots.
    pub volumes: Vec<SalvagedVolume>,
    /// Bytes of the log that were overwritten or damaged, so that their former content is unknown.
    pub log_damaged_bytes: u64,
    /// Bytes of the data file that could not be read.
    pub unreadable_bytes: u64,
    /// Bytes of all volumes and snapshots with uncertain content: data so old that a later discard
    /// may be forgotten, so that it should read as zeroes; and data that may have been undone by a
    /// rollback or a crash so many of them ago that the record of it is gone.
    pub uncertain_bytes: u64,
    /// Whether anything is missing from the log.
    pub completeness: Completeness,
    /// All batches with smaller numbers are present; 0: unknown.
    pub complete_before: u64,
    /// Bytes of the log that the inventory expects, and that are missing.
    pub missing_bytes: u64,
    /// The map listed the expected data block by block.
    pub by_map: bool,
    /// The map belongs to a pool other than the data, and the data's pool was not named by the
    /// caller: it may be the wrong one.
    pub is_of_another: bool,
    /// The data is shorter than the pool.
    pub is_cut_off: bool,
    /// Further remarks, as sentences.
    pub notes: Vec<String>,
}

/// Describes consecutive extents with less data than expected.
fn note_short(geometry: &Geometry, run: &[Short]) -> String {
    let (first, last) = (run[0], run[run.len() - 1]);
    let at = geometry.start(first.extent);
    if run.len() > 1 {
        let wants: u64 = run.iter().filter_map(|short| short.wants).map(u64::from).sum();
        let (from, to, wants) = (first.extent.0, last.extent.0, format_size(wants));
        return format!(
            "extents {from} to {to}, from byte {at} of the data file: none of the expected {wants} was found"
        );
    }
    let (extent, has) = (first.extent.0, format_size(u64::from(first.has)));
    match first.wants.map(|wants| format_size(u64::from(wants))) {
        Some(wants) => {
            format!("extent {extent} at byte {at} of the data file: {has} of the expected {wants} were found")
        }
        None => format!("extent {extent} at byte {at} of the data file is empty, but should have data"),
    }
}

impl SalvageReport {
    /// Returns the report of a scan, before anything is rebuilt.
    pub fn new(geometry: &Geometry, scan: &Scan, table: &Table) -> Self {
        let damaged = scan.damaged_places();
        let bytes = |places: &[Place]| places.iter().map(|place| place.bytes).sum::<u64>();
        let mut report = Self {
            extents: u64::from(geometry.extents()) - 1,
            batches: scan.batches,
            has_catalogue: table.as_of.is_some() && !table.is_outdated,
            log_damaged_bytes: bytes(&damaged),
            unreadable_bytes: bytes(&scan.unreadable),
            completeness: scan.expected.completeness,
            complete_before: scan.expected.complete_before.0,
            missing_bytes: scan.expected.missing_bytes,
            by_map: scan.expected.by_map,
            ..Self::default()
        };
        if table.as_of.is_none() {
            report.notes.push(
                "no complete catalogue was found: names and sizes come from single entries of the log, some \
                 volumes may have been destroyed long ago, and some may be missing"
                    .to_owned(),
            );
        } else if table.is_outdated {
            report.notes.push(
                "the newest catalogue is damaged: volumes and snapshots come from an older one and from later \
                 entries, as far as these were found"
                    .to_owned(),
            );
        }
        for place in &damaged {
            report.notes.push(format!(
                "{} of the log at byte {} of the data file cannot be decoded: their data is lost, and older data \
                 may show in its place",
                format_size(place.bytes),
                place.location
            ));
        }
        for place in &scan.unreadable {
            let (bytes, at) = (format_size(place.bytes), place.location);
            report.notes.push(format!("{bytes} at byte {at} of the data file cannot be read"));
        }
        report.note_completeness(geometry, scan);
        if scan.places_more > 0 {
            report.notes.push(format!("{} more places like these", scan.places_more));
        }
        report
    }

    /// Notes missing data, and limits of the report's certainty.
    fn note_completeness(&mut self, geometry: &Geometry, scan: &Scan) {
        let expected = &scan.expected;
        let are_neighbours = |a: &Short, b: &Short| a.is_empty() && b.is_empty() && a.extent.0 + 1 == b.extent.0;
        let runs = expected.short.chunk_by(are_neighbours);
        self.notes.extend(runs.map(|run| note_short(geometry, run)));
        if expected.short_more > 0 {
            self.notes.push(format!("{} more extents have less data than expected", expected.short_more));
        }
        if expected.misses_recent {
            let text = "durable batches of the log after the last checkpoint are missing: their data is lost, \
                 and its amount is unknown";
            self.notes.push(text.to_owned());
        }
        if expected.misses_objects && !expected.misses_recent {
            let text = "with these extents, changes of names, sizes, snapshots and clones may be lost: the list \
                 may show an older state";
            self.notes.push(text.to_owned());
        }
        if expected.unknown > 0 && !expected.is_coarse {
            self.notes.push(format!(
                "the fill of {} extents is unknown: a missing part at the end of one cannot be noticed",
                expected.unknown
            ));
        }
        match expected.completeness {
            Completeness::Damaged => {
                let text = "the inventory of extents at the beginning of the data is damaged: it is unknown \
                     whether anything is missing";
                self.notes.push(text.to_owned());
            }
            Completeness::NotKept if expected.is_coarse => {
                let text = "the pool has too many extents for an inventory of how far each is filled: nothing \
                     that could be noticed is missing, and no extent as a whole, but parts of extents may be \
                     (larger extents help: shale init --extent)";
                self.notes.push(text.to_owned());
            }
            Completeness::NotKept => {
                let text = "there is no inventory of extents, or one for too many extents: it is unknown whether \
                     whole parts of the data are missing";
                self.notes.push(text.to_owned());
            }
            Completeness::InDoubt => self.notes.push(format!(
                "everything is present up to batch {}; the last checkpoint lists more, which is missing: it was \
                 never durable if the machine failed during that checkpoint, and is lost otherwise",
                last_of(expected.complete_before)
            )),
            Completeness::UpTo => self.notes.push(format!(
                "the pool was not closed: everything is present up to batch {}, and it is unknown whether more \
                 was written",
                last_of(expected.complete_before)
            )),
            Completeness::Incomplete if !expected.is_closed() => {
                let text = "the pool was not closed: the last data written after its last checkpoint may be \
                     missing, which cannot be determined";
                self.notes.push(text.to_owned());
            }
            Completeness::Complete | Completeness::Incomplete => {}
        }
    }

    /// The map is of the pool `other`, and the data of `own`, which the caller named if `is_named`.
    pub fn note_other_pool(&mut self, other: &str, own: &str, is_named: bool) {
        self.is_of_another = !is_named;
        self.notes.push(format!(
            "the metadata directory and the data file belong to different pools ({other} and {own}): the result \
             is that of the data, the map was not used to find missing data, and nothing of the other pool is \
             here"
        ));
    }

    /// Notes the length of the data, in bytes.
    pub fn note_length(&mut self, has: u64, geometry: &Geometry) {
        let needs = u64::from(geometry.extents()) * u64::from(geometry.extent_bytes);
        if has < needs {
            self.is_cut_off = true;
            let text = format!("the data has {has} bytes, the pool uses {needs}: its end has been cut off");
            self.notes.push(text);
        }
    }

    /// Returns whether data is lost, or may be lost because of damaged or missing parts. Data that
    /// is only uncertain is not included, nor are unknowns of a pool without an inventory.
    pub fn is_lossy(&self) -> bool {
        !self.has_catalogue
            || self.is_of_another
            || matches!(self.completeness, Completeness::InDoubt | Completeness::Incomplete | Completeness::Damaged)
            || self.is_cut_off && self.completeness != Completeness::Complete
            || self.log_damaged_bytes > 0
            || self.unreadable_bytes > 0
            || self.volumes.iter().any(|v| v.is_lost || v.damaged_bytes > 0 || v.missing_bytes_max > 0)
    }
}

#[cfg(test)]
mod tests {
    use units::ExtentIndex;

    use super::*;

    #[test]
    fn extents_side_by_side_are_one_note() {
        let geometry = Geometry::new(1 << 20, 100 << 20);
        let short = |extent, has, wants| Short {
            extent: ExtentIndex(extent),
            has,
            wants: Some(wants).filter(|wants| *wants > 0),
        };
        let mut scan = Scan::default();
        scan.expected.completeness = Completeness::Damaged;
        scan.expected.short = vec![
            short(3, 0, 1 << 20),
            short(4, 0, 1 << 20),
            short(6, 0, 1 << 20),
            short(7, 4096, 1 << 20),
            short(8, 0, 0),
        ];
        let mut report = SalvageReport::default();
        report.note_completeness(&geometry, &scan);
        assert_eq!(
            report.notes[..4],
            [
                "extents 3 to 4, from byte 3145728 of the data file: none of the expected 2 MiB was found",
                "extent 6 at byte 6291456 of the data file: 0 B of the expected 1 MiB were found",
                "extent 7 at byte 7340032 of the data file: 4 KiB of the expected 1 MiB were found",
                "extent 8 at byte 8388608 of the data file is empty, but should have data",
            ]
        );
    }
}
