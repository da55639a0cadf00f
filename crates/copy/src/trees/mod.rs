//! Copies directory trees into and out of shares: from a source of items to a sink of items, in
//! bounded memory. Independent of the access to a share, and of progress messages.
//!
//! A directory, a share and a tar archive are each both a source and a sink. A name that cannot be
//! copied is recorded, and the copy continues, as with `tar` and `rsync`. A damaged source yields
//! everything that is readable: only a failing target, or a source that has become unavailable,
//! ends the copy.

mod acl;
mod content;
mod pax;
mod posix_sink;
mod posix_source;
mod restore;
mod restore_places;
mod share_sink;
mod share_source;
mod tar_header;
mod tar_sink;
mod tar_source;

use std::ops::Range;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use share::{NAME_BYTES_MAX, Time};
use surface::{Error, ErrorKind};

use operations::{Failure, stop_if};

pub use posix_sink::PosixSink;
pub use posix_source::{PosixSource, identity};
pub use restore::{Place, Restore, STAGE_PREFIX, Staged, Whole, restore};
pub use restore_places::{MountPlace, TreePlace};
pub use share_sink::ShareSink;
pub use share_source::ShareSource;
pub use tar_sink::TarSink;
pub use tar_source::TarSource;

/// Bytes read and written at once: large enough to make the fixed costs of a call negligible, and
/// eight times the largest unit.
pub const PIECE_BYTES: usize = 1 << 20;
/// Most data ranges recorded for one file, 16 MiB of memory. Beyond that, holes are copied as
/// zeroes, which take no space in a share.
const RANGES_MAX: usize = 1 << 20;
/// Most lines kept about items not copied, some 20 MiB; more are only counted.
const LINES_MAX: usize = 100_000;

/// Name of the extended attribute that holds a file's ACL.
const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
/// Name of the attribute that holds the ACL for new names in a directory.
const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";

/// Why a step was not done.
pub enum Stop {
    /// This item, or a part of it, is not copied; the text names it and the reason.
    Skip(String),
    /// The copy ends.
    Fatal(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Fatal(failure)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Fatal(error.into())
    }
}

/// Result of a step.
pub type Step<T = ()> = Result<T, Stop>;

/// A path of a tree as text, unescaped: lines are escaped when printed.
fn shown(path: &[u8]) -> String {
    if path.is_empty() { ".".to_owned() } else { share::in_words(path) }
}

/// Collects the message of a part that was skipped; passes on errors that end the copy.
fn gather(lines: &mut Vec<String>, step: Step) -> Step {
    match step {
        Err(Stop::Skip(line)) => {
            lines.push(line);
            Ok(())
        }
        other => other,
    }
}

/// Skips the rest of an item if there are messages about it, joined into one line.
fn skip_if_any(lines: &[String]) -> Step {
    if lines.is_empty() { Ok(()) } else { Err(Stop::Skip(lines.join("; "))) }
}

/// Why a part of a source is skipped; ends the copy only if nothing more can be read, because its
/// mount or device is gone.
fn unread(what: &str, path: &[u8], errno: i32) -> Stop {
    match errno {
        libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV => {
            let source = std::io::Error::from_raw_os_error(errno);
            let text = format!("{}: {what}", units::shown(&shown(path)));
            Stop::Fatal(Error::with_source(ErrorKind::Io, text, source).into())
        }
        _ => Stop::Skip(format!("{}: {what}: {}", shown(path), std::io::Error::from_raw_os_error(errno))),
    }
}

/// Decides by an error number whether the copy ends: it does if the target is full, gone or
/// failing.
fn stop_of(what: &str, path: &[u8], errno: i32) -> Stop {
    let source = std::io::Error::from_raw_os_error(errno);
    let kind = match errno {
        libc::ENOSPC | libc::EDQUOT => ErrorKind::Full,
        libc::EIO | libc::ENOTCONN | libc::ENODEV => ErrorKind::Io,
        libc::EROFS => ErrorKind::ReadOnly,
        _ => return Stop::Skip(format!("{}: {what}: {source}", shown(path))),
    };
    let text = format!("{}: {what}", units::shown(&shown(path)));
    Stop::Fatal(Error::with_source(kind, text, source).into())
}

/// A name of a tree, with its attributes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Item {
    /// Names from the root of the tree on, with `/` between them; empty for the root.
    pub path: Vec<u8>,
    /// Type and permissions, as `st_mode`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Major and minor number of a device node.
    pub device: (u32, u32),
    /// Size of a file.
    pub size: u64,
    /// Last access.
    pub accessed: Time,
    /// Last change of the content.
    pub modified: Time,
    /// Extended attributes, ACLs among them in the form that the kernel has.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Target of a symbolic link.
    pub target: Vec<u8>,
    /// An earlier name of the same file.
    pub link_to: Option<Vec<u8>>,
    /// Data ranges of a file, ascending; the rest is holes.
    pub data: Vec<Range<u64>>,
    /// Lines about those parts of the item that could not be read, and are left out.
    pub unread: Vec<String>,
}

impl Item {
    /// The type, as `S_IFMT` masks it.
    pub const fn kind(&self) -> u32 {
        self.mode & libc::S_IFMT
    }

    fn has_content(&self) -> bool {
        self.kind() == libc::S_IFREG && self.link_to.is_none()
    }

    fn data_bytes(&self) -> u64 {
        self.data.iter().map(|range| range.end - range.start).sum()
    }

    fn xattr(&self, name: &[u8]) -> Option<&[u8]> {
        self.xattrs.iter().find(|(key, _)| key == name).map(|(_, value)| &value[..])
    }
}

/// The name of a file until the one that replaces it is complete, or a further one, if that is
/// taken. It ends like the file's own, with which it is found again after a `kill -9`.
fn aside(name: &[u8], number: u64) -> Vec<u8> {
    let prefix = if number == 0 { ".shale-replaced-".to_owned() } else { format!(".shale-replaced-{number}-") };
    let left = name.len().saturating_sub(NAME_BYTES_MAX - prefix.len());
    [prefix.as_bytes(), &name[left..]].concat()
}

/// Why an item in a directory is skipped, if another kind of file has the name of that directory,
/// or of one above it, after `depth` others.
fn in_the_way(directory: &[u8], depth: usize) -> Stop {
    let names = directory.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
    let there = names.take(depth + 1).collect::<Vec<_>>().join(&b'/');
    let (there, directory) = (shown(&there), shown(directory));
    Stop::Skip(format!(
        "{there}: exists, and is not a directory: a name in {directory} has no place; rename or overwrite it"
    ))
}

/// Splits a path into its directory and its name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&[], path),
    }
}

/// Whether the names of an extended attribute are copied: others belong to one kind of file system.
fn is_kept(name: &[u8]) -> bool {
    let is_in = |space: &[u8]| name.len() > space.len() && name.starts_with(space);
    is_in(b"user.") || is_in(b"trusted.") || is_in(b"security.") && name != b"security.selinux" || is_acl(name)
}

fn is_acl(name: &[u8]) -> bool {
    name == ACL_ACCESS || name == ACL_DEFAULT
}

/// Result of reading a piece of a file.
#[derive(Debug, PartialEq, Eq)]
pub enum Got {
    /// All of it.
    All,
    /// It cannot be read completely; parts of it, and other pieces, may be readable. The text gives
    /// the reason.
    Damaged(String),
    /// The file ends within it. The text gives the reason.
    End(String),
}

/// Why a link is not made to an existing file that this copy has not made.
fn not_ours(item: &Item, first: &[u8]) -> Stop {
    let text = "that name existed already, and may be another file";
    Stop::Skip(format!("{}: is not linked to {}: {text}", shown(&item.path), shown(first)))
}

/// Whether a path is that of the snapshots in a share, or below it: no import brings it.
fn is_of_snapshots(path: &[u8]) -> bool {
    path.split(|&byte| byte == b'/').next() == Some(share::KEPT_NAME)
}

/// Why such a path is left out.
fn left_to_snapshots() -> Stop {
    let name = shown(share::KEPT_NAME);
    Stop::Skip(format!(
        "{name}: skipped with everything below it: in the root of a share this name is reserved for snapshots"
    ))
}

/// Items of a tree, each directory before its content.
pub trait Source {
    /// Returns the next item; none at the end.
    fn next(&mut self) -> Step<Option<Item>>;

    /// Fills `out` from the most recent file, within its data and in ascending order; a damaged
    /// piece may be requested again in smaller ones.
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Step<Got>;

    /// The most recent item was not made: further names of its file cannot be links to it.
    fn left_out(&mut self) {}

    /// How many bytes of the source are dealt with, where that is not the content of files.
    fn position(&self) -> Option<u64> {
        None
    }
}

/// Result of adding an item to a sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    /// It was made.
    New,
    /// It is a directory that existed already.
    Merged,
    /// The name is taken by something else, which was kept.
    Kept,
    /// The name already belongs to the same file.
    Same,
}

/// Accepts items, each directory before its content; missing parents are created.
pub trait Sink {
    /// Makes an item without its content.
    fn add(&mut self, item: &Item) -> Step<Added>;

    /// Writes to the file that was made last, within its data and in ascending order.
    fn write(&mut self, offset: u64, data: Bytes) -> Step;

    /// Ends the item that was made last: its attributes are as they should be.
    fn end(&mut self, item: &Item) -> Step;

    /// Sets final attributes, and makes everything durable; returns messages for those that could
    /// not be set.
    fn finish(&mut self) -> Step<Vec<String>>;
}

/// A range that is zeroed in the copy, because it could not be read.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Zeroed {
    path: String,
    offset: u64,
    length: u64,
}

/// Counts of a copy.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Files, each once.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Further names of files.
    pub links: u64,
    /// Devices, fifos and sockets.
    pub others: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// Bytes of holes.
    pub hole_bytes: u64,
    /// Existing names that were kept.
    pub kept: u64,
    /// The first of these.
    pub kept_first: Option<String>,
    /// Items that could not be copied.
    pub problems: u64,
    /// The first lines about these.
    pub lines: Vec<String>,
    /// Bytes that could not be read, and are zeroes in the copy.
    pub zeroed_bytes: u64,
    /// The first places of these.
    pub zeroed: Vec<Zeroed>,
}

impl Tally {
    fn note(&mut self, line: String) {
        self.problems += 1;
        if self.lines.len() < LINES_MAX {
            self.lines.push(line);
        }
    }

    /// Notes a part of a file that could not be read.
    fn note_zeroed(&mut self, path: &[u8], range: Range<u64>, why: &str) {
        let (offset, length) = (range.start, range.end - range.start);
        let path = shown(path);
        self.zeroed_bytes = self.zeroed_bytes.saturating_add(length);
        self.note(format!(
            "{path}: {length} bytes from byte {offset} on cannot be read: {why}; the copy has zeroes there"
        ));
        if self.zeroed.len() < LINES_MAX {
            self.zeroed.push(Zeroed { path, offset, length });
        }
    }

    /// Notes a name that is skipped; hands on a failure that ends the copy.
    fn bear<T>(&mut self, step: Step<T>) -> Result<Option<T>, Failure> {
        match step {
            Ok(value) => Ok(Some(value)),
            Err(Stop::Skip(line)) => {
                self.note(line);
                Ok(None)
            }
            Err(Stop::Fatal(failure)) => Err(failure),
        }
    }

    fn count(&mut self, item: &Item) {
        let counter = match item.kind() {
            _ if item.link_to.is_some() => &mut self.links,
            libc::S_IFREG => &mut self.files,
            libc::S_IFDIR => &mut self.directories,
            libc::S_IFLNK => &mut self.symlinks,
            _ => &mut self.others,
        };
        *counter += 1;
        if item.has_content() {
            let holes = item.size.saturating_sub(item.data_bytes());
            self.hole_bytes = self.hole_bytes.saturating_add(holes);
        }
    }

    /// Adds the problems of the source, for a copy whose source and sink have a tally each.
    #[must_use]
    pub fn with_source(mut self, source: Self) -> Self {
        self.problems += source.problems;
        self.lines = source.lines.into_iter().chain(self.lines).collect();
        Self { zeroed_bytes: source.zeroed_bytes, zeroed: source.zeroed, ..self }
    }

    /// Names of all kinds.
    pub const fn names(&self) -> u64 {
        self.files + self.directories + self.symlinks + self.links + self.others
    }
}

/// Copies all items, and makes them durable. `report` is called after each piece with the counts
/// so far, and with the bytes dealt with.
///
/// # Errors
/// Those of storage, and an interruption; the counts until then are in `tally`.
pub fn copy(
    source: &mut dyn Source,
    sink: &mut dyn Sink,
    interrupted: &AtomicBool,
    tally: &mut Tally,
    report: &mut dyn FnMut(&Tally, u64),
) -> Result<(), Failure> {
    loop {
        stop_if(interrupted)?;
        let next = source.next();
        let item = match tally.bear(next)? {
            Some(Some(item)) => item,
            Some(None) => break,
            None => continue,
        };
        item.unread.iter().for_each(|line| tally.note(line.clone()));
        let added = sink.add(&item);
        match tally.bear(added)? {
            Some(Added::Kept) => {
                tally.kept += 1;
                tally.kept_first.get_or_insert_with(|| shown(&item.path));
                source.left_out();
                continue;
            }
            Some(Added::New | Added::Merged) => tally.count(&item),
            Some(Added::Same) => continue,
            None => {
                source.left_out();
                continue;
            }
        }
        if item.has_content() {
            content::copy(&item, source, sink, interrupted, tally, report)?;
        }
        let ended = sink.end(&item);
        tally.bear(ended)?;
        report(tally, source.position().unwrap_or(tally.bytes));
    }
    let finished = sink.finish();
    for line in tally.bear(finished)?.unwrap_or_default() {
        tally.note(line);
    }
    Ok(())
}
