//! The population of an estimate: files by type, divided into windows of one unit each.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::convert::Infallible;
use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use policy::{FileChoice, HEAD_BYTES, Resolved, RuleOutcome};
use share::RECORD_CONTENT_BYTES_MAX;
use surface::{Allocation, Error, ErrorKind, Result};
use units::BLOCK_BYTES;

use super::meter::{RuleOf, RuleOfModes};
use super::settings::Plan;
use super::share_files::ShareFiles;
use copy::volume_io::VolumeIo;
use operations::path_error;

/// Files that are smaller are not asked where their holes are.
pub(super) const HOLES_FROM_BYTES: u64 = 1 << 20;
/// Runs of a volume's allocation asked for at a time.
const RUNS_MAX: u32 = 4096;
/// Unknown or rare types.
pub(super) const OTHER: &str = "other";
/// Most strata: rarer types share one, so that the least number of samples for each does not become
/// the most of the work.
const STRATA_MAX: usize = 32;

/// Source of the bytes.
pub(super) enum Origin {
    Path(PathBuf),
    Volume(Arc<dyn VolumeIo>),
    /// A file of a share, by its number.
    Share(Arc<dyn ShareFiles>, u64),
}

/// One file, device or volume.
pub(super) struct Item {
    pub(super) origin: Origin,
    /// Name for the rules; empty for a volume.
    pub(super) name: String,
    /// First bytes; empty for a file of a share, of which they are read with its windows.
    pub(super) head: Vec<u8>,
    pub(super) size_bytes: u64,
    /// Runs of windows that hold data: first and count.
    pub(super) runs: Vec<(u64, u64)>,
}

impl Item {
    fn windows(&self) -> u64 {
        self.runs.iter().map(|(_, count)| count).sum()
    }
}

/// The files of one type.
pub struct Stratum {
    /// The type.
    pub word: String,
    /// Size of its files.
    pub size_bytes: u64,
    items: Vec<Item>,
    /// Number of windows before each item.
    before: Vec<u64>,
    windows: u64,
}

impl Stratum {
    fn new(word: String, items: Vec<Item>) -> Self {
        let mut windows = 0;
        let before = items
            .iter()
            .map(|item| {
                let before = windows;
                windows += item.windows();
                before
            })
            .collect();
        Self { word, size_bytes: items.iter().map(|item| item.size_bytes).sum(), items, before, windows }
    }

    /// Windows that hold data.
    pub fn windows(&self) -> u64 {
        self.windows
    }

    /// Files.
    pub fn files(&self) -> usize {
        self.items.len()
    }
}

/// Everything.
pub struct Population {
    /// By type, the largest first.
    pub strata: Vec<Stratum>,
    /// Files without windows, because a share stores them in their inode records.
    pub small: Small,
    /// Bytes of a window.
    pub unit_bytes: usize,
}

/// Files of trees that are so small that a share has no block for them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Small {
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// How a file was found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    /// By its name: it may be an image as well as a file of a share.
    Named,
    /// By its name, and it is a block device.
    Device,
    /// In a directory: it would be a file of a share.
    InTree,
}

/// The findings of the search for files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scanned {
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files and directories that could not be read.
    pub unreadable: u64,
}

/// A window's bytes, and the file they are of.
pub struct Window<'a> {
    /// Whole blocks; the end of a file is filled up with zeroes.
    pub bytes: Vec<u8>,
    name: &'a str,
    head: Cow<'a, [u8]>,
}

impl Window<'_> {
    /// The rules' decisions for its file.
    pub fn rules_of(&self, plan: &Plan) -> RuleOfModes {
        plan.by_mode.each_ref().map(|resolved| {
            let ruled = ruled(resolved, self.name, &self.head);
            match ruled.choice {
                FileChoice::Codec(_) if plan.dictionary_level.is_some() && ruled.yields_to_dictionaries() => None,
                FileChoice::Codec(codec) => Some(RuleOf { codec, is_default: ruled.is_default }),
                FileChoice::Usual | FileChoice::Auto => None,
            }
        })
    }
}

/// The file being read, kept open until the next one's turn.
pub struct Open {
    index: usize,
    /// None: it could not be opened.
    file: Option<File>,
}

impl Population {
    /// The files below paths, each once; links are not followed, except for the paths themselves.
    /// Block devices are included whole. Calls `progress` with the totals so far.
    ///
    /// # Errors
    /// When a given path does not exist or is not readable.
    pub fn of_paths(paths: &[PathBuf], plan: &Plan, progress: &mut dyn FnMut(Scanned)) -> Result<(Self, Scanned)> {
        let unit_bytes = plan.unit_bytes;
        let mut scan = Scan {
            resolved: &plan.resolved,
            unit_bytes: unit_bytes as u64,
            types: BTreeMap::new(),
            seen: HashSet::new(),
            overlaps: paths.len() > 1,
            scanned: Scanned::default(),
            small: Small::default(),
            progress,
        };
        for path in paths {
            scan.named(path)?;
        }
        let (scanned, small) = (scan.scanned, scan.small);
        Ok((Self { strata: strata(scan.types), small, unit_bytes }, scanned))
    }

    /// A volume.
    ///
    /// # Errors
    /// Of asking it for its allocation.
    pub fn of_volume(volume: Arc<dyn VolumeIo>, unit_bytes: usize) -> Result<Self> {
        let size_bytes = volume.size_bytes()?;
        let mut runs = Runs::new(unit_bytes as u64);
        let mut at = 0;
        while at < size_bytes {
            let found = volume.allocation(at, size_bytes - at, RUNS_MAX)?;
            if found.is_empty() {
                break;
            }
            for run in found {
                if run.allocation == Allocation::Data {
                    runs.add(at, run.length);
                }
                at += run.length;
            }
        }
        let item = Item {
            origin: Origin::Volume(volume),
            name: String::new(),
            head: Vec::new(),
            size_bytes,
            runs: runs.windows,
        };
        let strata = vec![Stratum::new("volume".to_owned(), vec![item])];
        Ok(Self { strata, small: Small::default(), unit_bytes })
    }

    /// Reads a window. `None`: its file is missing, unreadable or damaged.
    ///
    /// # Errors
    /// Of reading a volume.
    pub fn read<'a>(&self, stratum: &'a Stratum, window: u64, open: &mut Option<Open>) -> Result<Option<Window<'a>>> {
        let index = stratum.before.partition_point(|before| *before <= window) - 1;
        let item = &stratum.items[index];
        let mut left = window - stratum.before[index];
        let mut number = 0;
        for (first, count) in &item.runs {
            if left < *count {
                number = first + left;
                break;
            }
            left -= count;
        }
        let offset = number * self.unit_bytes as u64;
        let own = item.size_bytes.saturating_sub(offset).min(self.unit_bytes as u64) as usize;
        let mut bytes = vec![0; own.next_multiple_of(BLOCK_BYTES)];
        let mut head = Cow::Borrowed(&item.head[..]);
        match &item.origin {
            Origin::Volume(volume) => match volume.read(offset, &mut bytes[..own]) {
                Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(None),
                read => read?,
            },
            Origin::Share(files, node) => {
                let mut first = vec![0; HEAD_BYTES];
                match files.read(*node, 0, &mut first) {
                    Ok(length) => first.truncate(length),
                    Err(_) => return Ok(None),
                }
                head = Cow::Owned(first);
                // It may have been cut off since.
                if !files.read(*node, offset, &mut bytes[..own]).is_ok_and(|length| length == own) {
                    return Ok(None);
                }
            }
            Origin::Path(path) => {
                if open.as_ref().is_none_or(|open| open.index != index) {
                    *open = Some(Open { index, file: File::open(path).ok() });
                }
                let file = open.as_ref().and_then(|open| open.file.as_ref());
                if file.is_none_or(|file| file.read_exact_at(&mut bytes[..own], offset).is_err()) {
                    return Ok(None);
                }
            }
        }
        Ok(Some(Window { bytes, name: &item.name, head }))
    }
}

/// Windows that hold data, from ranges in ascending order.
pub(super) struct Runs {
    unit_bytes: u64,
    pub(super) windows: Vec<(u64, u64)>,
}

impl Runs {
    pub(super) fn new(unit_bytes: u64) -> Self {
        Self { unit_bytes, windows: Vec::new() }
    }

    pub(super) fn add(&mut self, offset: u64, length: u64) {
        if length == 0 {
            return;
        }
        let mut first = offset / self.unit_bytes;
        let end = (offset + length).div_ceil(self.unit_bytes);
        if let Some((last, count)) = self.windows.last_mut() {
            // The windows at the border may hold the end of one range and the beginning of the
            // next.
            first = first.max(*last + *count);
            if first == *last + *count && end > first {
                *count += end - first;
                return;
            }
        }
        if end > first {
            self.windows.push((first, end - first));
        }
    }
}

/// Files found so far.
struct Scan<'a> {
    resolved: &'a Resolved,
    unit_bytes: u64,
    types: BTreeMap<String, Vec<Item>>,
    /// Files that may appear again, by device and inode: those with several names, and all if
    /// several paths are scanned.
    seen: HashSet<(u64, u64)>,
    overlaps: bool,
    scanned: Scanned,
    small: Small,
    progress: &'a mut dyn FnMut(Scanned),
}

impl Scan<'_> {
    fn named(&mut self, path: &Path) -> Result<()> {
        let metadata = std::fs::metadata(path).map_err(|error| path_error("cannot access", path, error))?;
        let kind = metadata.file_type();
        if kind.is_dir() {
            std::fs::read_dir(path).map_err(|error| path_error("cannot read", path, error))?;
            self.directory(path);
            return Ok(());
        }
        if !kind.is_file() && !kind.is_block_device() {
            let message = format!("{} is neither a file, a directory nor a block device", path.display());
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let file = File::open(path).map_err(|error| path_error("cannot open", path, error))?;
        if !self.is_new(&metadata) {
            return Ok(());
        }
        let (size, found) = if kind.is_block_device() {
            let size = host::device_bytes(path).map_err(|error| path_error("cannot access", path, error))?;
            (size, Found::Device)
        } else {
            (metadata.len(), Found::Named)
        };
        self.file(path, &file, size, found);
        Ok(())
    }

    /// Scans everything below; unreadable items are counted.
    fn directory(&mut self, root: &Path) {
        let mut directories = vec![root.to_owned()];
        while let Some(directory) = directories.pop() {
            let Ok(entries) = std::fs::read_dir(&directory) else {
                self.scanned.unreadable += 1;
                continue;
            };
            let mut entries: Vec<_> = entries.flatten().collect();
            entries.sort_by_key(std::fs::DirEntry::file_name);
            for entry in entries {
                let (path, Ok(metadata)) = (entry.path(), entry.metadata()) else { continue };
                if metadata.is_dir() {
                    directories.push(path);
                } else if metadata.is_file() && self.is_new(&metadata) {
                    match File::open(&path) {
                        Ok(file) => self.file(&path, &file, metadata.len(), Found::InTree),
                        Err(_) => self.scanned.unreadable += 1,
                    }
                }
            }
        }
    }

    fn is_new(&mut self, metadata: &std::fs::Metadata) -> bool {
        let once = !self.overlaps && metadata.nlink() == 1;
        once || self.seen.insert((metadata.dev(), metadata.ino()))
    }

    fn file(&mut self, path: &Path, file: &File, size_bytes: u64, found: Found) {
        let is_device = found == Found::Device;
        let mut head = vec![0; HEAD_BYTES.min(usize::try_from(size_bytes).unwrap_or(HEAD_BYTES))];
        if file.read_exact_at(&mut head, 0).is_err() {
            self.scanned.unreadable += 1;
            return;
        }
        let mut runs = Runs::new(self.unit_bytes);
        if found == Found::InTree && size_bytes <= RECORD_CONTENT_BYTES_MAX {
            self.small.files += u64::from(size_bytes > 0);
            self.small.bytes += size_bytes;
        } else {
            data_of(file, size_bytes, is_device, &mut |offset, length| runs.add(offset, length));
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let word = if is_device { "device".to_owned() } else { type_of(self.resolved, &name, &head) };
        self.scanned.files += 1;
        self.scanned.bytes += size_bytes;
        let item = Item { origin: Origin::Path(path.to_owned()), name, head, size_bytes, runs: runs.windows };
        self.types.entry(word).or_default().push(item);
        (self.progress)(self.scanned);
    }
}

/// Reports the data ranges of a file; all of it if holes are unknown.
fn data_of(file: &File, size_bytes: u64, is_device: bool, found: &mut dyn FnMut(u64, u64)) {
    let mut at = 0;
    while at < size_bytes {
        let tells = !is_device && size_bytes >= HOLES_FROM_BYTES;
        let begin = if tells { rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) } else { Ok(at) };
        let begin = match begin {
            Ok(begin) => begin,
            Err(rustix::io::Errno::NXIO) => return,
            Err(_) => at,
        };
        let end = if tells { rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(begin)) } else { Ok(size_bytes) };
        let end = end.unwrap_or(size_bytes).min(size_bytes);
        if end <= begin {
            return;
        }
        found(begin, end - begin);
        at = end;
    }
}

/// The decision of rules and properties for a file, as in a share.
fn ruled(resolved: &Resolved, name: &str, head: &[u8]) -> RuleOutcome {
    let Ok(ruled) = resolved.of_file(name.as_bytes(), || Ok::<_, Infallible>(head));
    ruled
}

/// A file's type, named as `shale usage` would name it in a share with these properties.
fn type_of(resolved: &Resolved, name: &str, head: &[u8]) -> String {
    let word = ruled(resolved, name, head).word;
    if word.is_empty() { OTHER.to_owned() } else { word }
}

/// The types as strata, the largest first; the rarest together.
pub(super) fn strata(types: BTreeMap<String, Vec<Item>>) -> Vec<Stratum> {
    let mut all: Vec<Stratum> = types.into_iter().map(|(word, items)| Stratum::new(word, items)).collect();
    all.sort_by_key(|stratum| std::cmp::Reverse(stratum.windows));
    if all.len() > STRATA_MAX {
        let rare: Vec<Item> = all.split_off(STRATA_MAX - 1).into_iter().flat_map(|stratum| stratum.items).collect();
        match all.iter().position(|stratum| stratum.word == OTHER) {
            Some(at) => {
                let items = all.swap_remove(at).items.into_iter().chain(rare).collect();
                all.push(Stratum::new(OTHER.to_owned(), items));
            }
            None => all.push(Stratum::new(OTHER.to_owned(), rare)),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_become_windows_once_each() {
        let mut runs = Runs::new(100);
        for (offset, length) in [(0, 10), (20, 10), (90, 20), (150, 10), (500, 100), (600, 1), (950, 0)] {
            runs.add(offset, length);
        }
        assert_eq!(runs.windows, [(0, 2), (5, 2)]);
    }

    #[test]
    fn types_by_table() {
        let resolved = |pairs: &[(&str, &str)]| {
            let set = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            policy::resolve(&BTreeMap::new(), &set).unwrap()
        };
        let (usual, lz4) = (resolved(&[]), resolved(&[("compression", "lz4")]));
        for (resolved, name, head, word) in [
            (&usual, "a.log", &b"text"[..], "log"),
            (&usual, "README", b"text", "txt"),
            (&usual, "x.docx", b"PK\x03\x04", "docx"),
            // A rule knows the name.
            (&usual, "x.txt", b"\x1f\x8b", "txt"),
            (&usual, "x", b"\x1f\x8b", "gz"),
            // A rule matches the content, and none matches the name.
            (&usual, "x.bin", b"\x1f\x8b", "gz"),
            // No rule counts.
            (&lz4, "x.bin", b"\x1f\x8b", "bin"),
            (&lz4, "x", b"\x1f\x8b", "gz"),
            (&usual, "x.bin", b"\0\x01\x02", "bin"),
            (&usual, "x", b"\0\x01\x02", "other"),
            (&usual, "empty.c", b"", "c"),
            (&usual, "empty.bin", b"", "bin"),
        ] {
            assert_eq!(type_of(resolved, name, head), word, "{name}");
        }
    }
}
