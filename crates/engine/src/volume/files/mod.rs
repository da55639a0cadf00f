//! The store of a share's tree: files of bytes by number, in an object that is otherwise a volume.
//! Owns the mapping from a byte of a file to an address of the object (`objects::file_layout`,
//! `tables`); the engine handles data at such an address like any other, so snapshots, clones,
//! cleaning, scrubbing, checking, sending and salvage know nothing of files. Threads of the share's
//! front end call it.
//!
//! **Discards** cost in proportion to the data there: the map is asked first, and only blocks with
//! data become holes.

pub(crate) mod stored;
mod tables;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use policy::{InForce, Resolved};
use store::objects::file_layout::{self as layout, FILE_BYTES, FILES_END, Part};
use surface::{
    Allocation, BlockDevice, Capacity, Error, ErrorKind, Hint, Lineage, OWN_FILES_END, ObjectSpace, Result, Run, Taken,
};
use units::BLOCK_BYTES;

use self::tables::Tables;
use crate::read::runs::Runs;
use crate::volume::Volume;
use crate::volume::claims::{TreeClaim, TreeUse};
use crate::volume::shares::Aside;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Runs that are requested at once.
const RUNS_MAX: usize = 256;

/// A share of an open pool, or a snapshot of one, which never changes.
pub struct Files {
    volume: Arc<Volume>,
    device: Arc<dyn BlockDevice>,
    tables: Tables,
    /// Reserved room for the tree's own files.
    aside: Arc<Aside>,
    /// The tree is claimed for as long as any of it is in memory.
    _claim: Option<TreeClaim>,
}

impl Drop for Files {
    fn drop(&mut self) {
        // Releasing room cannot fail.
        let _ = self.volume.reserve_for_tree(0, &self.aside);
    }
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Files").field("volume", &self.volume).finish_non_exhaustive()
    }
}

impl Files {
    /// The files of a share, without a claim: see [`Self::claimed`]. `device` is the share itself,
    /// or a wrapper that counts its users. There must be no other instance for the same share,
    /// unless none of them is written to.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a volume.
    pub fn new(volume: Arc<Volume>, device: Arc<dyn BlockDevice>) -> Result<Self> {
        Self::with(volume, device, None)
    }

    fn with(volume: Arc<Volume>, device: Arc<dyn BlockDevice>, claim: Option<TreeClaim>) -> Result<Self> {
        if !volume.is_share() {
            return Err(Error::new(ErrorKind::Invalid, format!("'{}' is a volume, not a share", volume.name())));
        }
        let aside = Arc::new(Aside::default());
        Ok(Self {
            tables: Tables::new(volume.clone(), device.clone(), aside.clone()),
            volume,
            device,
            aside,
            _claim: claim,
        })
    }

    /// The same for a tree in them, which is claimed until the last reference is dropped. Waits for
    /// the claim for at most `patience`.
    ///
    /// # Errors
    /// The same; [`ErrorKind::InUse`] if another user has the tree.
    pub fn claimed(
        volume: Arc<Volume>,
        device: Arc<dyn BlockDevice>,
        wanted: TreeUse,
        patience: Duration,
    ) -> Result<Self> {
        let claimed = volume.volumes.tree_claims.claim(volume.id(), wanted, patience);
        let claim = claimed.map_err(|error| error.context(format_args!("share '{}'", volume.name())))?;
        Self::with(volume, device, Some(claim))
    }

    /// Returns the file to which an address of the share belongs, and the offset in it; `None` for
    /// an address of no file. For an address beyond a file's first MiB, the tables of all large
    /// files are searched.
    ///
    /// # Errors
    /// Those of the storage.
    pub fn locate(&self, address: u64) -> Result<Option<(u64, u64)>> {
        if let Some(found) = layout::in_window(address) {
            return Ok(Some(found));
        }
        if !layout::PIECES.contains(&address) {
            return Ok(None);
        }
        let mut found = None;
        self.each_with_data(layout::tables(), BLOCK, |table| {
            let file = layout::file_of_table(table);
            for (piece, place) in self.tables.of(file)?.iter().enumerate().filter(|(_, place)| **place != 0) {
                let bytes = layout::piece(piece);
                if address.checked_sub(*place).is_some_and(|skip| skip < bytes.end - bytes.start) {
                    found = Some((file, bytes.start + (address - place)));
                }
            }
            Ok(found.is_none())
        })?;
        Ok(found)
    }

    /// The share itself.
    pub(crate) fn volume(&self) -> &Volume {
        &self.volume
    }

    /// Returns the ranges of addresses of a file, each with its offset in the file.
    ///
    /// # Errors
    /// Those of the storage.
    pub fn places(&self, file: u64) -> Result<Vec<(Range<u64>, u64)>> {
        Self::check(file, &(0..0))?;
        let window = layout::window(file);
        let mut places = vec![(window..window + layout::window_bytes(file), 0)];
        if file < OWN_FILES_END {
            return Ok(places);
        }
        for (piece, place) in self.tables.of(file)?.iter().enumerate().filter(|(_, place)| **place != 0) {
            let bytes = layout::piece(piece);
            places.push((*place..*place + (bytes.end - bytes.start), bytes.start));
        }
        Ok(places)
    }

    /// Returns the file whose first MiB holds an address.
    pub fn in_beginning(address: u64) -> Option<u64> {
        layout::in_window(address).map(|(file, _)| file)
    }

    /// Returns whether a block of the tables for the rest of large files is at an address.
    pub fn in_tables(address: u64) -> bool {
        (layout::tables().start..layout::PIECES.start).contains(&address)
    }

    /// Calls `visit` with the numbers of all files that hold data, as long as it returns `true`;
    /// for those with more than a MiB twice.
    ///
    /// # Errors
    /// Those of the storage, and those of `visit`.
    pub fn each_file(&self, mut visit: impl FnMut(u64) -> Result<bool>) -> Result<()> {
        let mut goes_on = true;
        self.each_with_data(layout::windows(), layout::WINDOW_BYTES, |window| {
            goes_on = layout::in_window(window).map_or(Ok(true), |(file, _)| visit(file))?;
            Ok(goes_on)
        })?;
        if !goes_on {
            return Ok(());
        }
        self.each_with_data(layout::tables(), BLOCK, |table| {
            let file = layout::file_of_table(table);
            if self.tables.of(file)?.is_empty() { Ok(true) } else { visit(file) }
        })
    }

    /// Calls `visit` with each multiple of `step` whose step contains data, in a range of addresses
    /// that begins at one, as long as it returns `true`.
    fn each_with_data(&self, range: Range<u64>, step: u64, mut visit: impl FnMut(u64) -> Result<bool>) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let before = at;
            for run in self.device.allocation(at, range.end - at, RUNS_MAX)? {
                let end = at + run.length;
                if run.allocation == Allocation::Hole {
                    at = end;
                    continue;
                }
                let first = range.start + (at - range.start) / step * step;
                for place in (first..end).step_by(step as usize) {
                    if !visit(place)? {
                        return Ok(());
                    }
                }
                // Each is visited once, even if it has holes.
                at = (range.start + (end - range.start).next_multiple_of(step)).min(range.end);
                if at != end {
                    break;
                }
            }
            if at == before {
                return Err(Error::new(ErrorKind::Io, format!("the allocation at byte {at} cannot be determined")));
            }
        }
        Ok(())
    }

    fn check(file: u64, range: &Range<u64>) -> Result<()> {
        if file >= FILES_END || range.start > range.end || range.end > FILE_BYTES {
            let text = format!("file {file} of a share cannot have bytes {} to {}", range.start, range.end);
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Ok(())
    }

    /// Returns the address of a part; `None`: nothing was ever written there.
    fn address(&self, file: u64, part: &Part) -> Result<Option<u64>> {
        let place = match part.piece {
            None => layout::window(file),
            Some(piece) => match self.tables.of(file)?.get(piece) {
                Some(place) if *place != 0 => *place,
                _ => return Ok(None),
            },
        };
        Ok(Some(place + part.skip()))
    }

    /// Fills `buf` part by part: from the address of each by `read`, as long as that returns
    /// `true`, or with zeroes. Returns whether all of it is filled.
    fn read_parts(
        &self,
        file: u64,
        range: Range<u64>,
        buf: &mut [u8],
        read: impl Fn(u64, &mut [u8]) -> Result<bool>,
    ) -> Result<bool> {
        Self::check(file, &range)?;
        let mut rest = buf;
        for part in layout::parts(file, range) {
            let (mine, others) = rest.split_at_mut(part.len() as usize);
            rest = others;
            let is_filled = match self.address(file, &part)? {
                Some(address) => read(address, mine)?,
                None => {
                    mine.fill(0);
                    true
                }
            };
            if !is_filled {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes all data in a range of addresses read as zeroes.
    fn clear(&self, range: Range<u64>) -> Result<()> {
        // The partial blocks at the ends.
        let body = range.start.next_multiple_of(BLOCK).min(range.end)..(range.end / BLOCK * BLOCK).max(range.start);
        let edges =
            if body.start >= body.end { [range.clone(), 0..0] } else { [range.start..body.start, body.end..range.end] };
        // Zeroes in a block take room, and must find it in a full pool: the hole that follows frees
        // more.
        for edge in edges.into_iter().filter(|edge| !edge.is_empty()) {
            let zeroes = Bytes::from(vec![0; (edge.end - edge.start) as usize]);
            self.volume.write_for_tree(edge.start, zeroes, Hint::default(), &self.aside)?;
        }
        let mut at = body.start;
        while at < body.end {
            let before = at;
            for run in self.device.allocation(at, body.end - at, RUNS_MAX)? {
                if run.allocation == Allocation::Data {
                    self.device.discard(at, run.length)?;
                }
                at += run.length;
            }
            if at == before {
                return Err(Error::new(ErrorKind::Io, format!("the allocation at byte {at} cannot be determined")));
            }
        }
        Ok(())
    }

    /// Discards all pieces of a file, and its table with the next flush.
    fn clear_pieces(&self, file: u64) -> Result<()> {
        let table = self.tables.of(file)?;
        for (piece, place) in table.iter().enumerate().filter(|(_, place)| **place != 0) {
            let bytes = layout::piece(piece);
            self.clear(*place..*place + (bytes.end - bytes.start))?;
        }
        if !table.is_empty() && self.tables.drop_later(file) {
            self.tables.flush()?;
        }
        Ok(())
    }
}

impl InForce for Files {
    fn in_force(&self) -> Arc<Resolved> {
        self.volume.in_force()
    }
}

impl ObjectSpace for Files {
    fn read(&self, file: u64, offset: u64, buf: &mut [u8]) -> Result<()> {
        let range = offset..offset.saturating_add(buf.len() as u64);
        self.read_parts(file, range, buf, |address, part| self.device.read(address, part).map(|()| true)).map(drop)
    }

    fn read_cached(&self, file: u64, offset: u64, buf: &mut [u8]) -> Result<bool> {
        let range = offset..offset.saturating_add(buf.len() as u64);
        if range.end > layout::window_bytes(file) && !self.tables.is_cached(file) {
            return Ok(false);
        }
        self.read_parts(file, range, buf, |address, part| self.device.read_cached(address, part))
    }

    fn read_ahead(&self, files: &[(u64, u64)]) -> u64 {
        let files = files.iter().filter(|(file, _)| *file < FILES_END);
        self.volume.read_files_ahead(files.map(|(file, length)| {
            let window = layout::window(*file);
            window..window + length.min(&layout::WINDOW_BYTES)
        }))
    }

    fn read_ahead_max(&self) -> u64 {
        self.volume.files_ahead_max()
    }

    fn write_would_wait(&self) -> bool {
        self.device.write_would_wait()
    }

    fn write(&self, file: u64, offset: u64, data: Bytes) -> Result<()> {
        self.write_hinted(file, offset, data, Hint::default())
    }

    fn write_hinted(&self, file: u64, offset: u64, data: Bytes, hint: Hint) -> Result<()> {
        let range = offset..offset.saturating_add(data.len() as u64);
        Self::check(file, &range)?;
        for part in layout::parts(file, range) {
            let mine = data.slice((part.bytes.start - offset) as usize..(part.bytes.end - offset) as usize);
            let write = |address| match file < OWN_FILES_END {
                true => self.volume.write_for_tree(address, mine, hint, &self.aside),
                false => self.device.write_hinted(address, mine, hint),
            };
            match part.piece {
                None => write(layout::window(file) + part.skip())?,
                Some(piece) => self.tables.with_place(file, piece, |place| write(place + part.skip()))?,
            }
        }
        Ok(())
    }

    fn full_wait(&self) -> Option<Duration> {
        self.volume.full_wait()
    }

    fn discard(&self, file: u64, range: Range<u64>) -> Result<()> {
        let range = range.start.min(FILE_BYTES)..range.end.min(FILE_BYTES);
        Self::check(file, &range)?;
        if range == (0..FILE_BYTES) {
            let window = layout::window(file);
            self.clear(window..window + layout::window_bytes(file))?;
            return if file < OWN_FILES_END { Ok(()) } else { self.clear_pieces(file) };
        }
        for part in layout::parts(file, range) {
            if let Some(address) = self.address(file, &part)? {
                self.clear(address..address + part.len())?;
            }
        }
        Ok(())
    }

    fn discard_files(&self, files: Range<u64>) -> Result<()> {
        let files = files.start.min(FILES_END)..files.end.min(FILES_END);
        if files.is_empty() {
            return Ok(());
        }
        for own in files.start..files.end.min(OWN_FILES_END) {
            self.discard(own, 0..FILE_BYTES)?;
        }
        let files = files.start.max(OWN_FILES_END)..files.end.max(OWN_FILES_END);
        self.clear(layout::window(files.start)..layout::window(files.end))?;
        let tables = layout::table(files.start)..layout::table(files.end);
        self.each_with_data(tables, BLOCK, |table| {
            self.clear_pieces(layout::file_of_table(table))?;
            Ok(true)
        })
    }

    fn finish_discards(&self) -> Result<()> {
        if self.tables.are_to_go() { self.tables.flush() } else { Ok(()) }
    }

    fn flush(&self) -> Result<()> {
        self.tables.flush()
    }

    /// Drains the write buffer: later writes are then in later batches, and recovery ends at the
    /// first batch that is not whole.
    fn order_writes(&self) -> Result<()> {
        Self::settle(self)
    }

    fn allocation(&self, file: u64, offset: u64, length: u64, runs_max: usize) -> Result<Vec<Run>> {
        let range = offset..offset.saturating_add(length);
        Self::check(file, &range)?;
        let mut runs = Runs::new(runs_max);
        for part in layout::parts(file, range) {
            let Some(address) = self.address(file, &part)? else {
                if runs.push(part.len(), Allocation::Hole) {
                    continue;
                }
                break;
            };
            let found = self.device.allocation(address, part.len(), runs_max)?;
            let covered: u64 = found.iter().map(|run| run.length).sum();
            let fits = found.iter().all(|run| runs.push(run.length, run.allocation));
            if !fits || covered < part.len() {
                break;
            }
        }
        Ok(runs.finish())
    }

    fn settle(&self) -> Result<()> {
        Self::settle(self)
    }

    fn stored(&self, file: u64) -> Result<Option<Taken>> {
        let stored = Self::stored(self, file, 0)?;
        Ok(Some(Taken { raw_bytes: stored.raw_bytes, stored_bytes: stored.stored_bytes }))
    }

    fn capacity(&self) -> Result<Capacity> {
        let (used_bytes, free_bytes) = self.volume.room();
        Ok(Capacity { total_bytes: used_bytes.saturating_add(free_bytes), free_bytes })
    }

    fn admit(&self, bytes: u64) -> Result<()> {
        self.volume.admit_data(bytes)
    }

    fn set_aside(&self, bytes: u64) -> Result<()> {
        self.volume.reserve_for_tree(bytes, &self.aside)
    }

    fn own_room(&self) -> u64 {
        self.volume.room_for_trees()
    }

    fn lineage(&self) -> Option<Lineage> {
        Some(self.volume.lineage())
    }

    fn reserve_numbers(&self, end: u64) -> Result<()> {
        self.volume.reserve_numbers(end)
    }
}
