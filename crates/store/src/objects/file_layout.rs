//! Layout of a share's files in its address space: arithmetic, no state.
//!
//! | from byte | content |
//! | --- | --- |
//! | 2^52 | *windows*: the first MiB of each file, in the order of their numbers |
//! | 2^62 | *tables*: a block for each file, with the places of its *pieces* |
//! | 2^62 + 2^54 | the block that records the assigned places |
//! | 2^62 + 2^55 | pieces |
//! | 2^62 + 2^61 | *names*: all bytes of the files of the tree itself, in the order of their numbers |
//!
//! So the address shows which data holds names and inodes, or the places of files: such data has one
//! copy more (`write::copies` in `engine`). A file's first MiB, and its table, are found by its
//! number alone, so a small file has no table. The rest of a file is divided into pieces, each of which gets a place of its own at its first
//! write: eight times as much as all before it up to 16 TiB, then 16 TiB each. A place is assigned
//! once and never reused.

use std::ops::Range;

use surface::{LOG_FILE, OWN_FILES_END};
use units::{BLOCK_BYTES, BlockIndex, SHARE_BYTES, SHARE_FIRST_BLOCK};

/// Bytes of a file in its window: most files have no more.
pub const WINDOW_BYTES: u64 = 1 << 20;
const WINDOWS_BEGIN: u64 = SHARE_FIRST_BLOCK * BLOCK_BYTES as u64;
const TABLES_BEGIN: u64 = 1 << 62;
/// One more than the highest file number.
pub const FILES_END: u64 = (TABLES_BEGIN - WINDOWS_BEGIN) / WINDOW_BYTES;
/// Address of the block that records which places have been assigned.
pub const GIVEN_OUT: u64 = TABLES_BEGIN + (1 << 54);
/// The places of pieces.
pub const PIECES: Range<u64> = TABLES_BEGIN + (1 << 55)..NAMES.start;
/// The tree's own files.
pub const NAMES: Range<u64> = TABLES_BEGIN + (1 << 61)..TABLES_BEGIN + (1 << 61) + OWN_FILES_END * FILE_BYTES;
/// Bytes of a file.
pub const FILE_BYTES: u64 = 1 << 52;
/// Pieces that grow, each to eight times the bytes before it.
const GROWING: usize = 8;
/// Bytes of each later piece.
const STEP_BYTES: u64 = 16 << 40;
/// Pieces of the longest file.
pub const PIECES_MAX: usize = GROWING + (FILE_BYTES / STEP_BYTES) as usize - 1;

const _: () = assert!(WINDOW_BYTES << (3 * GROWING) == STEP_BYTES);
const _: () = assert!(FILES_END * BLOCK_BYTES as u64 <= GIVEN_OUT - TABLES_BEGIN);
const _: () = assert!(PIECES_MAX * 8 <= BLOCK_BYTES);
const _: () = assert!(NAMES.end <= SHARE_BYTES);

/// All windows.
pub const fn windows() -> Range<u64> {
    WINDOWS_BEGIN..TABLES_BEGIN
}

/// All tables.
pub const fn tables() -> Range<u64> {
    TABLES_BEGIN..GIVEN_OUT
}

/// Returns the address of a file's window; of the tree's own files, that of the file.
#[inline]
pub const fn window(file: u64) -> u64 {
    if file < OWN_FILES_END { NAMES.start + file * FILE_BYTES } else { WINDOWS_BEGIN + file * WINDOW_BYTES }
}

/// Returns the bytes of a file in its window.
#[inline]
pub const fn window_bytes(file: u64) -> u64 {
    if file < OWN_FILES_END { FILE_BYTES } else { WINDOW_BYTES }
}

/// Returns whether a block of a share holds names and inodes, or places of files.
#[inline]
pub const fn holds_names(block: BlockIndex) -> bool {
    let address = block.offset_bytes();
    let is_in_log = address >= window(LOG_FILE) && address < window(LOG_FILE + 1);
    address >= NAMES.start && !is_in_log || address >= TABLES_BEGIN && address < PIECES.start
}

/// Returns the ranges of addresses that hold names, or those that hold the data of files.
pub const fn zones(of_names: bool) -> [Range<u64>; 3] {
    if of_names {
        [TABLES_BEGIN..PIECES.start, NAMES.start..window(LOG_FILE), window(LOG_FILE + 1)..NAMES.end]
    } else {
        [0..TABLES_BEGIN, PIECES, window(LOG_FILE)..window(LOG_FILE + 1)]
    }
}

/// Returns the address of the table of a file's pieces.
#[inline]
pub const fn table(file: u64) -> u64 {
    TABLES_BEGIN + file * BLOCK_BYTES as u64
}

/// Returns the file whose table is at an address.
#[inline]
pub const fn file_of_table(address: u64) -> u64 {
    (address - TABLES_BEGIN) / BLOCK_BYTES as u64
}

/// Returns the bytes of a file in its piece of that number.
pub const fn piece(index: usize) -> Range<u64> {
    if index < GROWING {
        return WINDOW_BYTES << (3 * index)..WINDOW_BYTES << (3 * (index + 1));
    }
    let begin = STEP_BYTES * (index - GROWING + 1) as u64;
    begin..begin + STEP_BYTES
}

/// Returns the piece that holds a byte of a file outside its window.
const fn piece_at(offset: u64) -> usize {
    if offset < STEP_BYTES {
        return ((offset / WINDOW_BYTES).ilog2() / 3) as usize;
    }
    GROWING + (offset / STEP_BYTES) as usize - 1
}

/// A part of a file that is contiguous in the address space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The piece; `None` for the window.
    pub piece: Option<usize>,
    /// Bytes of the file.
    pub bytes: Range<u64>,
}

impl Part {
    /// Offset of its first byte in the place.
    #[inline]
    pub const fn skip(&self) -> u64 {
        match self.piece {
            Some(index) => self.bytes.start - piece(index).start,
            None => self.bytes.start,
        }
    }

    #[allow(clippy::len_without_is_empty, reason = "no part is empty")]
    #[inline]
    pub const fn len(&self) -> u64 {
        self.bytes.end - self.bytes.start
    }
}

/// The parts of a range of a file, in order.
pub fn parts(file: u64, range: Range<u64>) -> impl Iterator<Item = Part> {
    let (mut at, window) = (range.start, window_bytes(file));
    std::iter::from_fn(move || {
        if at >= range.end {
            return None;
        }
        let (found, end) = match at < window {
            true => (None, window),
            false => (Some(piece_at(at)), piece(piece_at(at)).end),
        };
        let bytes = at..end.min(range.end);
        at = bytes.end;
        Some(Part { piece: found, bytes })
    })
}

/// Returns the file whose window holds an address, and the offset in the file.
#[inline]
pub const fn in_window(address: u64) -> Option<(u64, u64)> {
    if address >= NAMES.start && address < NAMES.end {
        return Some(((address - NAMES.start) / FILE_BYTES, (address - NAMES.start) % FILE_BYTES));
    }
    if address < WINDOWS_BEGIN || address >= TABLES_BEGIN {
        return None;
    }
    Some(((address - WINDOWS_BEGIN) / WINDOW_BYTES, (address - WINDOWS_BEGIN) % WINDOW_BYTES))
}

/// Returns whether a block of a share belongs to the window of a file: for most files, to all of
/// it.
#[inline]
pub fn is_in_window(block: BlockIndex) -> bool {
    in_window(block.offset_bytes()).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_lie_side_by_side_up_to_the_end_of_a_file() {
        let mut end = WINDOW_BYTES;
        for index in 0..PIECES_MAX {
            let bytes = piece(index);
            assert_eq!(bytes.start, end);
            assert_eq!((piece_at(bytes.start), piece_at(bytes.end - 1)), (index, index));
            end = bytes.end;
        }
        assert_eq!(end, FILE_BYTES);
    }

    #[test]
    fn parts_cover_a_range() {
        for range in [0..FILE_BYTES, 5..6, WINDOW_BYTES - 1..WINDOW_BYTES + 1, 3 << 40..40 << 40, 7..7] {
            let own: Vec<Part> = parts(OWN_FILES_END - 1, range.clone()).collect();
            assert!(own.iter().all(|part| *part == Part { piece: None, bytes: range.clone() }), "{range:?}");
            let parts: Vec<Part> = parts(OWN_FILES_END, range.clone()).collect();
            assert!(parts.windows(2).all(|pair| pair[0].bytes.end == pair[1].bytes.start));
            assert_eq!(parts.iter().map(Part::len).sum::<u64>(), range.end - range.start);
            assert!(parts.first().is_none_or(|part| part.bytes.start == range.start));
            assert!(parts.iter().all(|part| part.skip() + part.len() <= FILE_BYTES));
        }
    }

    #[test]
    fn places_of_different_kinds_do_not_overlap() {
        assert!(window(FILES_END) <= table(0) && table(FILES_END) <= GIVEN_OUT && GIVEN_OUT < PIECES.start);
        assert_eq!(file_of_table(table(77)), 77);
        assert!(PIECES.start < PIECES.end && PIECES.end <= window(0));
        assert_eq!(in_window(window(9) + 5), Some((9, 5)));
        assert_eq!(in_window(window(99) + 5), Some((99, 5)));
        let names = |address| holds_names(BlockIndex::containing(address));
        assert!(names(window(1)) && names(window(3) + (1 << 40)) && names(table(77)) && names(GIVEN_OUT));
        assert!(!names(window(99)) && !names(PIECES.start) && !names(PIECES.end - 1));
        assert!(!names(window(LOG_FILE)) && !names(window(LOG_FILE + 1) - 1));
        for of_names in [false, true] {
            let ends = zones(of_names).into_iter().flat_map(|zone| [zone.start, zone.end - 1]);
            assert!({ ends }.all(|address| names(address) == of_names));
        }
        let bytes = |of_names| zones(of_names).iter().map(|zone| zone.end - zone.start).sum::<u64>();
        assert_eq!(bytes(false) + bytes(true), NAMES.end);
        assert_eq!((in_window(table(0)), in_window(0)), (None, None));
    }
}
