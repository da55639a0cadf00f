//! Locations of the pieces of large files. Owns the record of assigned places, and a bounded cache
//! of tables.
//!
//! **Assignment.** A block records a limit up to which places may have been assigned. It is durable
//! before a place beyond its former limit is used, so no place is ever used by two files, whatever
//! a power failure destroys. Places below the limit that a session did not use stay unused.
//!
//! **A table** is written before the first byte of a piece, so a flush that makes the byte durable
//! has made the table so. If a power failure destroys a table and leaves bytes of its piece,
//! nothing shows them.
//!
//! **Dropping.** When all of a file is discarded, its table stays until a flush has made that
//! durable: otherwise bytes of pieces could be left that no table names. If a piece is written to
//! in the meantime, the table stays. Only memory knows which tables are to be dropped: a tree must
//! let the discards finish before it forgets them (`ObjectSpace::finish_discards`).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use store::base::ranked::{Mutex, RwLock};
use store::base::ranks;
use store::objects::file_layout::{self as layout, GIVEN_OUT, PIECES, PIECES_MAX};
use surface::{BlockDevice, Error, ErrorKind, Hint, Result};
use units::BLOCK_BYTES;

use crate::volume::Volume;
use crate::volume::shares::Aside;

/// Tables in memory: most have a few words.
const TABLES_MAX: usize = 4096;
/// Bytes of places that are assigned with one write and one flush: enough for thousands of files of
/// some MiB.
const STOCK_BYTES: u64 = 64 << 30;
/// Tables that wait to be dropped.
pub(super) const DROPPED_MAX: usize = 4096;
const MAGIC: [u8; 8] = *b"SHPIECES";

/// The places of a file's pieces, by their numbers; 0, or no entry, for a piece without one.
type Table = Arc<[u64]>;

pub(super) struct Tables {
    volume: Arc<Volume>,
    aside: Arc<Aside>,
    device: Arc<dyn BlockDevice>,
    state: Mutex<State, ranks::Tables>,
    /// Held shared by writers of a piece, so that its table is not dropped at the same time.
    stay: RwLock<(), ranks::TablesStay>,
}

#[derive(Default)]
struct State {
    known: HashMap<u64, Table>,
    /// Files of which only their tables are left.
    dropped: BTreeSet<u64>,
    /// Places that may be assigned: the next one, and the end.
    stock: Option<(u64, u64)>,
}

impl Tables {
    pub(super) fn new(volume: Arc<Volume>, device: Arc<dyn BlockDevice>, aside: Arc<Aside>) -> Self {
        Self { volume, aside, device, state: Mutex::default(), stay: RwLock::default() }
    }

    /// The places of a file's pieces.
    pub(super) fn of(&self, file: u64) -> Result<Table> {
        self.look_up(&mut self.state.lock(), file)
    }

    /// Returns whether [`of`](Self::of) would wait for nothing now.
    pub(super) fn is_cached(&self, file: u64) -> bool {
        self.state.try_lock().is_some_and(|state| state.known.contains_key(&file))
    }

    fn look_up(&self, state: &mut State, file: u64) -> Result<Table> {
        if let Some(table) = state.known.get(&file) {
            return Ok(table.clone());
        }
        let mut block = [0; BLOCK_BYTES];
        self.device.read(layout::table(file), &mut block)?;
        let mut places: Vec<u64> = block.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        places.truncate(places.iter().rposition(|place| *place != 0).map_or(0, |last| last + 1));
        if places.len() > PIECES_MAX || places.iter().any(|place| *place != 0 && !PIECES.contains(place)) {
            let text = format!("the table of the pieces of file {file} of the share has invalid places");
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        let table = Table::from(places);
        state.remember(file, table.clone());
        Ok(table)
    }

    /// Calls `work` with the place of a piece, assigning one if it has none; the place is not
    /// dropped during the call.
    pub(super) fn with_place(&self, file: u64, piece: usize, work: impl FnOnce(u64) -> Result<()>) -> Result<()> {
        let _stays = self.stay.read();
        let place = self.place(file, piece)?;
        work(place)
    }

    fn place(&self, file: u64, piece: usize) -> Result<u64> {
        let mut state = self.state.lock();
        state.dropped.remove(&file);
        let table = self.look_up(&mut state, file)?;
        if let Some(place) = table.get(piece).copied().filter(|place| *place != 0) {
            return Ok(place);
        }
        let bytes = layout::piece(piece);
        let place = self.give_out(&mut state, bytes.end - bytes.start)?;
        let mut places = table.to_vec();
        places.resize(places.len().max(piece + 1), 0);
        places[piece] = place;
        let mut block: Vec<u8> = places.iter().flat_map(|place| place.to_le_bytes()).collect();
        block.resize(BLOCK_BYTES, 0);
        self.volume.write_for_tree(layout::table(file), Bytes::from(block), Hint::default(), &self.aside)?;
        state.remember(file, places.into());
        Ok(place)
    }

    fn give_out(&self, state: &mut State, bytes: u64) -> Result<u64> {
        let (next, end) = match state.stock {
            Some(stock) => stock,
            None => {
                let end = self.given_out()?;
                (end, end)
            }
        };
        let used = next.checked_add(bytes).filter(|used| *used <= PIECES.end).ok_or_else(|| {
            let text = "the share has assigned all places for pieces of files above 1 MiB: copy it to a new share";
            Error::new(ErrorKind::Full, text)
        })?;
        if used > end {
            let end = used.saturating_add(STOCK_BYTES).min(PIECES.end);
            let mut block = [&MAGIC[..], &end.to_le_bytes()].concat();
            block.resize(BLOCK_BYTES, 0);
            self.volume.write_for_tree(GIVEN_OUT, Bytes::from(block), Hint::default(), &self.aside)?;
            self.device.flush()?;
            state.stock = Some((used, end));
        } else {
            state.stock = Some((used, end));
        }
        Ok(next)
    }

    /// Returns the limit up to which places may have been assigned.
    fn given_out(&self) -> Result<u64> {
        let mut block = [0; BLOCK_BYTES];
        self.device.read(GIVEN_OUT, &mut block)?;
        let end = block[8..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        match &block[..8] {
            magic if *magic == MAGIC && (PIECES.start..=PIECES.end).contains(&end) => Ok(end),
            [0, 0, 0, 0, 0, 0, 0, 0] if end == 0 => Ok(PIECES.start),
            _ => {
                let text = "the share's record of places for pieces of large files is damaged";
                Err(Error::new(ErrorKind::Corrupt, text))
            }
        }
    }

    /// Notes that all of a file has been discarded: its table is dropped with the next flush.
    /// Returns whether too many wait for one.
    pub(super) fn drop_later(&self, file: u64) -> bool {
        let mut state = self.state.lock();
        state.dropped.insert(file);
        state.dropped.len() >= DROPPED_MAX
    }

    /// Returns whether any table waits for a flush to be dropped.
    pub(super) fn are_to_go(&self) -> bool {
        !self.state.lock().dropped.is_empty()
    }

    /// Flushes the device, and then drops the tables of files that were entirely discarded before.
    /// That is durable with the next flush.
    pub(super) fn flush(&self) -> Result<()> {
        let due: Vec<u64> = self.state.lock().dropped.iter().copied().collect();
        self.device.flush()?;
        if due.is_empty() {
            return Ok(());
        }
        let _nobody_writes = self.stay.write();
        let mut state = self.state.lock();
        for file in due {
            if state.dropped.contains(&file) {
                self.device.discard(layout::table(file), BLOCK_BYTES as u64)?;
                state.dropped.remove(&file);
                state.known.remove(&file);
            }
        }
        Ok(())
    }
}

impl State {
    fn remember(&mut self, file: u64, table: Table) {
        if self.known.len() >= TABLES_MAX {
            self.known.clear();
        }
        self.known.insert(file, table);
    }
}
