//! Real data to write: the files of each kind in sequence.

use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::Outcome;

/// Most bytes of one kind, so that no kind outweighs the others.
const KIND_BYTES_MAX: usize = 16 << 20;
/// Most bytes of one file, so that a kind is more than its first file.
const FILE_BYTES_MAX: usize = 8 << 20;
/// All lengths are multiples of this: a group.
const ROUND: usize = units::GROUP_BYTES;

/// The data.
pub struct Corpus {
    /// All kinds, in alphabetical order; no block of it is zero.
    pub data: Bytes,
    /// Where each kind ends.
    ends: Vec<usize>,
}

impl Corpus {
    /// Reads the kinds below `dir`.
    pub fn load(dir: &Path) -> Outcome<Self> {
        let (mut data, mut ends) = (Vec::new(), Vec::new());
        for kind in entries(dir)?.into_iter().filter(|p| p.is_dir()) {
            let end = data.len() + KIND_BYTES_MAX;
            append(&kind, &mut data, end)?;
            data.truncate(end);
            data.truncate(data.len() / ROUND * ROUND);
            ends.push(data.len());
        }
        if data.len() < 32 << 20 {
            let found = units::format_size(data.len() as u64);
            return Err(
                format!("{} holds {found} of data: give a directory with at least 32 MiB", dir.display()).into()
            );
        }
        Ok(Self { data: Bytes::from(data), ends })
    }

    /// The same data, with each kind spread evenly over the whole in pieces of a group. With one
    /// kind after the other, the disk is idle during 16 MiB of compressible data, and the codec
    /// during as much incompressible data; a speed that is compared with the lower of two others
    /// assumes that both are in demand all the time.
    pub fn mixed(&self) -> Self {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let kinds = starts.zip(&self.ends).map(|(start, end)| (start..*end).step_by(ROUND));
        // Piece `i` of `n` belongs at the middle of its n-th part.
        let mut pieces: Vec<(f64, usize)> = kinds
            .flat_map(|kind| {
                let count = kind.len() as f64;
                kind.enumerate().map(move |(index, start)| ((index as f64 + 0.5) / count, start))
            })
            .collect();
        pieces.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut data = Vec::with_capacity(self.data.len());
        pieces.iter().for_each(|(_, start)| data.extend_from_slice(&self.data[*start..start + ROUND]));
        Self { ends: vec![data.len()], data: Bytes::from(data) }
    }

    /// `len` bytes of the endless repetition of the data, from byte `at`; both are multiples of a
    /// divisor of the data's length: any power of two up to 128 KiB.
    pub fn slice(&self, at: u64, len: usize) -> Bytes {
        let start = (at % self.data.len() as u64) as usize;
        self.data.slice(start..start + len)
    }
}

/// The data of each kind below `dir`, by name: at most `bytes_max` bytes of each, a multiple of a
/// group.
pub fn kind_data(dir: &Path, bytes_max: usize) -> Outcome<Vec<(String, Vec<u8>)>> {
    let mut kinds = Vec::new();
    for kind in entries(dir)?.into_iter().filter(|p| p.is_dir()) {
        let name = kind.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut data = Vec::new();
        append(&kind, &mut data, bytes_max)?;
        data.truncate(bytes_max);
        data.truncate(data.len() / ROUND * ROUND);
        kinds.push((name, data));
    }
    Ok(kinds)
}

/// The same for one kind with different parts: each of its directories, and the files next to them.
pub fn part_data(dir: &Path, kind: &str, bytes_max: usize) -> Outcome<Vec<(String, Vec<u8>)>> {
    let dir = dir.join(kind);
    if !dir.is_dir() {
        return Ok(Vec::new());
    }
    let mut parts = kind_data(&dir, bytes_max)?;
    let mut files = Vec::new();
    for path in entries(&dir)?.into_iter().filter(|path| path.is_file()) {
        append_file(&path, &mut files)?;
    }
    files.truncate(bytes_max);
    files.truncate(files.len() / ROUND * ROUND);
    parts.push(("files".to_owned(), files));
    Ok(parts.into_iter().map(|(name, data)| (format!("{kind}/{name}"), data)).collect())
}

fn entries(dir: &Path) -> Outcome<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(|e| format!("cannot read {}: {e}", dir.display()))? {
        let path = entry?.path();
        if !path.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.')) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn append(path: &Path, data: &mut Vec<u8>, end: usize) -> Outcome<()> {
    for entry in entries(path)? {
        if data.len() >= end {
            break;
        }
        if entry.is_dir() {
            append(&entry, data, end)?;
        } else if entry.is_file() {
            append_file(&entry, data)?;
        }
    }
    Ok(())
}

fn append_file(path: &Path, data: &mut Vec<u8>) -> Outcome<()> {
    use std::io::Read;
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(FILE_BYTES_MAX as u64 * 8).read_to_end(&mut bytes)?;
    // Zero blocks become holes and would only flatter the figures.
    let blocks = bytes.chunks(units::BLOCK_BYTES).filter(|b| !policy::is_zero(b));
    for block in blocks.take(FILE_BYTES_MAX / units::BLOCK_BYTES) {
        data.extend_from_slice(block);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixed_data_is_the_same_data_with_every_kind_everywhere() {
        // Two kinds, one three times as long as the other; every piece identifies its kind.
        let pieces: Vec<u8> = (0..16).collect();
        let data: Vec<u8> = pieces.iter().flat_map(|piece| vec![*piece; ROUND]).collect();
        let corpus = Corpus { data: Bytes::from(data), ends: vec![4 * ROUND, 16 * ROUND] };
        let mixed = corpus.mixed();
        let order: Vec<u8> = mixed.data.chunks(ROUND).map(|piece| piece[0]).collect();
        assert!(mixed.data.chunks(ROUND).all(|piece| piece.iter().all(|byte| *byte == piece[0])));
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, pieces);
        for part in order.chunks(4) {
            assert_eq!(part.iter().filter(|piece| **piece < 4).count(), 1, "{order:?}");
        }
    }
}
