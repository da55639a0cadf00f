//! The data by kind, as files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use units::{BLOCK_BYTES, GROUP_BYTES};

use crate::Outcome;
use crate::load::scattered;

/// Most bytes of one file: a kind is more than its largest file.
const FILE_BYTES_MAX: usize = 8 << 20;
/// Order of samples; any number.
const SEED: u64 = 2010;

/// Files of one kind.
pub struct Kind {
    /// Path below the corpus: one or two directories, or a directory and an extension.
    pub name: String,
    /// Where they are.
    pub paths: Vec<PathBuf>,
    /// Their contents, each filled up with zeroes to a whole block, as a file system stores it.
    files: Vec<Vec<u8>>,
    /// Their bytes without that, and how many they are.
    pub bytes: u64,
    pub count: usize,
}

/// Kinds with different parts: directories that are examined one by one, with the files next to
/// them as one more.
const BY_DIRECTORY: &[&str] = &["compiled", "db-pages", "media"];
/// Kinds that consist of different things: by extension.
const BY_EXTENSION: &[&str] = &["office"];
/// Files of an extension, below which it is no kind.
const FILES_MIN: usize = 5;

/// Reads the kinds below `corpus`.
pub fn load(corpus: &Path) -> Outcome<Vec<Kind>> {
    let mut kinds = Vec::new();
    for dir in entries(corpus)?.into_iter().filter(|path| path.is_dir()) {
        let name = text(dir.file_name());
        let mut parts: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
        let mut paths = Vec::new();
        walk(&dir, &mut paths)?;
        for path in paths {
            let below = path.strip_prefix(&dir).unwrap_or(&path);
            let part = if BY_DIRECTORY.contains(&name.as_str()) {
                let first = below.parent().and_then(|parent| parent.components().next());
                format!("{name}/{}", first.map_or_else(|| "files".to_owned(), |first| text(Some(first.as_os_str()))))
            } else if BY_EXTENSION.contains(&name.as_str()) {
                format!("{name}/{}", text(path.extension()))
            } else {
                name.clone()
            };
            parts.entry(part).or_default().push(path);
        }
        for (part, paths) in parts {
            if !BY_EXTENSION.contains(&name.as_str()) || paths.len() >= FILES_MIN {
                kinds.push(Kind::load(part, paths)?);
            }
        }
    }
    if kinds.is_empty() {
        return Err(format!("{} has no directories with data", corpus.display()).into());
    }
    Ok(kinds)
}

fn text(name: Option<&std::ffi::OsStr>) -> String {
    name.unwrap_or_default().to_string_lossy().into_owned()
}

impl Kind {
    fn load(name: String, paths: Vec<PathBuf>) -> Outcome<Self> {
        let mut kind = Self { name, files: Vec::new(), bytes: 0, count: paths.len(), paths };
        for path in &kind.paths {
            let mut bytes = std::fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
            kind.bytes += bytes.len() as u64;
            bytes.truncate(FILE_BYTES_MAX);
            bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
            kind.files.push(bytes);
        }
        Ok(kind)
    }

    /// Units of about `budget` bytes in total, drawn from the whole. They are cut from the same
    /// groups of 128 KiB for all sizes, so that sizes can be compared.
    pub fn sample(&self, unit_bytes: usize, budget: usize) -> Vec<&[u8]> {
        let mut groups: Vec<&[u8]> = self.files.iter().flat_map(|file| file.chunks(GROUP_BYTES)).collect();
        shuffle(&mut groups);
        let mut units = Vec::new();
        let mut taken = 0;
        for group in groups {
            if taken >= budget {
                break;
            }
            let before = units.len();
            units_of(group, unit_bytes, &mut units);
            taken += units[before..].iter().map(|unit| unit.len()).sum::<usize>();
        }
        units
    }
}

/// The units of a piece, without blocks that are zero: those divide a unit, as they do in a volume.
fn units_of<'a>(piece: &'a [u8], unit_bytes: usize, units: &mut Vec<&'a [u8]>) {
    for mut rest in piece.chunks(unit_bytes) {
        while !rest.is_empty() {
            let holes = length_of(rest, true);
            let data = length_of(&rest[holes..], false);
            if data > 0 {
                units.push(&rest[holes..holes + data]);
            }
            rest = &rest[holes + data..];
        }
    }
}

/// Bytes of blocks at the beginning that are all zero, or all not.
fn length_of(bytes: &[u8], zero: bool) -> usize {
    bytes.chunks(BLOCK_BYTES).take_while(|block| policy::is_zero(block) == zero).map(<[u8]>::len).sum()
}

/// Fisher and Yates' shuffle, always the same.
fn shuffle(units: &mut [&[u8]]) {
    for index in (1..units.len()).rev() {
        units.swap(index, scattered(index as u64, SEED, index as u64 + 1) as usize);
    }
}

/// The entries of a directory, sorted, without hidden ones.
fn entries(path: &Path) -> Outcome<Vec<PathBuf>> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(path)
        .map_err(|e| format!("cannot read {}: {e}", path.display()))?
        .flatten()
        .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    Ok(found)
}

/// All regular files below `dir`, sorted; links are not followed.
fn walk(dir: &Path, found: &mut Vec<PathBuf>) -> Outcome<()> {
    for path in entries(dir)? {
        let kind = path.symlink_metadata()?.file_type();
        if kind.is_dir() {
            walk(&path, found)?;
        } else if kind.is_file() {
            found.push(path);
        }
    }
    Ok(())
}
