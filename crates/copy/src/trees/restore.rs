//! Brings a file or a tree into a share that is in use. A crash leaves each entry of the share as
//! it was, or complete.
//!
//! 1. Leftovers of earlier restores are removed from the root of the share.
//! 2. The items are written below a new directory in the root, which only root can enter, and made
//!    durable. Whatever cannot be read or written ends the restore: nothing is restored in part.
//! 3. They are renamed into place. A missing file or directory comes as a whole. In a directory
//!    that exists, missing entries come; others are kept, or replaced if that is wanted. A
//!    directory neither replaces an entry nor is replaced. The directory of another share in the
//!    tree is left as it is.
//! 4. The directory of step 2 is removed, also after a failure.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use report::RestoreTotal;
use surface::{Error, ErrorKind};

use super::{Added, Got, Item, Sink, Source, Step, Stop, Tally, copy, shown, split};
use operations::{Failure, Outcome};

/// Beginning of the names of directories for step 2.
pub const STAGE_PREFIX: &[u8] = b".shale-restore-";
/// The file or directory in one.
const CONTENT: &[u8] = b"content";
/// Directories inside each other that are merged or removed: each is open meanwhile.
const DEPTH_MAX: usize = 256;

/// Where a tree is restored to: directories that are opened one by one, never through a link.
/// Errors are numbers of the system.
pub trait Place {
    /// An open directory.
    type Directory;

    /// Opens the root.
    ///
    /// # Errors
    /// Those of the place.
    fn root(&self) -> Result<Self::Directory, i32>;

    /// Opens a directory in another one.
    ///
    /// # Errors
    /// `ENOENT`; `ENOTDIR` or `ELOOP` for something else.
    fn enter(&self, directory: &Self::Directory, name: &[u8]) -> Result<Self::Directory, i32>;

    /// The type of an entry, as `S_IFMT` masks it; none: there is none.
    ///
    /// # Errors
    /// Those of the place.
    fn kind(&self, directory: &Self::Directory, name: &[u8]) -> Result<Option<u32>, i32>;

    /// Names in a directory.
    ///
    /// # Errors
    /// Those of the place.
    fn names(&self, directory: &Self::Directory) -> Result<Vec<Vec<u8>>, i32>;

    /// Renames an entry. `replaces`: in place of another one.
    ///
    /// # Errors
    /// `EEXIST` if the new name is taken.
    fn rename(&self, from: (&Self::Directory, &[u8]), to: (&Self::Directory, &[u8]), replaces: bool)
    -> Result<(), i32>;

    /// Removes an entry; a directory must be empty.
    ///
    /// # Errors
    /// Those of the place.
    fn remove(&self, directory: &Self::Directory, name: &[u8], is_directory: bool) -> Result<(), i32>;

    /// Makes all that was renamed durable.
    ///
    /// # Errors
    /// Those of the place.
    fn sync(&self) -> Result<(), i32>;
}

/// Target of a restore, and its way.
#[derive(Debug, Clone, Copy)]
pub struct Restore<'a> {
    /// Name of the staging directory, which begins with [`STAGE_PREFIX`].
    pub stage: &'a [u8],
    /// Path from the root; empty for the root itself.
    pub target: &'a [u8],
    /// Replaces files that exist.
    pub replaces: bool,
}

/// A source or a sink for which nothing may be left out: what would be is an error.
pub struct Whole<T>(pub T);

fn whole<T>(step: Step<T>) -> Step<T> {
    match step {
        Err(Stop::Skip(line)) => Err(Error::new(ErrorKind::Io, line).into()),
        step => step,
    }
}

impl<S: Source> Source for Whole<S> {
    fn next(&mut self) -> Step<Option<Item>> {
        let item = whole(self.0.next())?;
        match item.as_ref().and_then(|item| item.unread.first()) {
            Some(line) => Err(Error::new(ErrorKind::Corrupt, line.clone()).into()),
            None => Ok(item),
        }
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Step<Got> {
        match whole(self.0.read(offset, out))? {
            Got::All => Ok(Got::All),
            Got::Damaged(why) | Got::End(why) => {
                let text = format!("a file cannot be read at byte {offset}: {why}");
                Err(Error::new(ErrorKind::Corrupt, text).into())
            }
        }
    }
}

impl<S: Sink> Sink for Whole<S> {
    fn add(&mut self, item: &Item) -> Step<Added> {
        whole(self.0.add(item))
    }

    fn write(&mut self, offset: u64, data: Bytes) -> Step {
        whole(self.0.write(offset, data))
    }

    fn end(&mut self, item: &Item) -> Step {
        whole(self.0.end(item))
    }

    fn finish(&mut self) -> Step<Vec<String>> {
        match whole(self.0.finish())?.first() {
            Some(line) => Err(Error::new(ErrorKind::Io, line.clone()).into()),
            None => Ok(Vec::new()),
        }
    }
}

/// A source as it is staged: below a staging directory. Sockets are left out.
pub struct Staged<S> {
    inner: S,
    ready: VecDeque<Item>,
    content: Vec<u8>,
    /// The source is a single file, which is the content itself.
    is_file: bool,
}

impl<S: Source> Staged<S> {
    /// `above` are directories down to that of the source, outermost first with its name, which are
    /// missing at the target.
    pub fn new(inner: S, stage: &[u8], above: Vec<(Vec<u8>, Item)>, name: &[u8], is_file: bool) -> Self {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let root = Item { path: stage.to_vec(), mode: libc::S_IFDIR | 0o700, uid, gid, ..Item::default() };
        let mut ready = VecDeque::from([root]);
        let mut content = [stage, b"/", CONTENT].concat();
        let names = above.iter().map(|(name, _)| name.clone()).chain([name.to_vec()]).skip(1).collect::<Vec<_>>();
        for (number, (_, item)) in above.into_iter().enumerate() {
            ready.push_back(Item { path: content.clone(), ..item });
            content = [&content, &b"/"[..], &names[number]].concat();
        }
        Self { inner, ready, content, is_file }
    }

    fn placed(&self, path: &[u8]) -> Vec<u8> {
        if path.is_empty() || self.is_file { self.content.clone() } else { [&self.content, &b"/"[..], path].concat() }
    }
}

impl<S: Source> Source for Staged<S> {
    fn next(&mut self) -> Step<Option<Item>> {
        if let Some(item) = self.ready.pop_front() {
            return Ok(Some(item));
        }
        loop {
            let Some(mut item) = self.inner.next()? else { return Ok(None) };
            if item.kind() == libc::S_IFSOCK {
                continue;
            }
            item.path = self.placed(&item.path);
            item.link_to = item.link_to.map(|first| self.placed(&first));
            return Ok(Some(item));
        }
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Step<Got> {
        self.inner.read(offset, out)
    }
}

fn failed(what: &str, path: &[u8], errno: i32) -> Failure {
    let kind = match errno {
        libc::ENOSPC | libc::EDQUOT => ErrorKind::Full,
        libc::EROFS => ErrorKind::ReadOnly,
        libc::ENOENT => ErrorKind::NotFound,
        libc::EEXIST => ErrorKind::Exists,
        libc::ENOTDIR | libc::ELOOP | libc::ENAMETOOLONG | libc::EINVAL => ErrorKind::Invalid,
        _ => ErrorKind::Io,
    };
    let text = format!("'{}': {what}", units::shown(&shown(path)));
    Error::with_source(kind, text, io::Error::from_raw_os_error(errno)).into()
}

/// Restores the items of a [`Staged`] source. `report` is called after each piece with the bytes so
/// far.
///
/// # Errors
/// `Exists` for a target that is not to be replaced, `NotFound` for one whose directory is missing,
/// and those of source and place.
pub fn restore<P: Place>(
    source: impl Source,
    sink: impl Sink,
    place: &P,
    wanted: Restore<'_>,
    interrupted: &AtomicBool,
    report: &mut dyn FnMut(u64),
) -> Outcome<RestoreTotal> {
    clear(place, |name| name.starts_with(STAGE_PREFIX));
    let (mut source, mut sink, mut tally) = (Whole(source), Whole(sink), Tally::default());
    let staged = copy(&mut source, &mut sink, interrupted, &mut tally, &mut |tally, _| report(tally.bytes));
    drop(sink);
    let done = staged.and_then(|()| install(place, wanted));
    // Only its own: if its server was killed, the next one may be restoring already.
    clear(place, |name| name == wanted.stage);
    Ok(RestoreTotal { bytes: tally.bytes, ..done? })
}

/// Removes staging directories. One that cannot be removed does no harm, and is tried again by the
/// next restore.
fn clear<P: Place>(place: &P, is_meant: impl Fn(&[u8]) -> bool) {
    let Ok(root) = place.root() else { return };
    let names = place.names(&root).unwrap_or_default();
    for name in names.iter().filter(|name| is_meant(name)) {
        if let Err(errno) = remove_all(place, &root, name, 0) {
            let why = io::Error::from_raw_os_error(errno);
            log::warn!("'{}', which a restore has left behind, cannot be removed: {why}", shown(name));
        }
    }
}

fn remove_all<P: Place>(place: &P, directory: &P::Directory, name: &[u8], depth: usize) -> Result<(), i32> {
    let is_directory = place.kind(directory, name)? == Some(libc::S_IFDIR);
    if is_directory {
        if depth >= DEPTH_MAX {
            return Err(libc::ENAMETOOLONG);
        }
        let inner = place.enter(directory, name)?;
        for name in place.names(&inner)? {
            remove_all(place, &inner, &name, depth + 1)?;
        }
    }
    place.remove(directory, name, is_directory)
}

/// Step 3.
fn install<P: Place>(place: &P, wanted: Restore<'_>) -> Outcome<RestoreTotal> {
    let about = |errno| failed("it cannot be restored", wanted.target, errno);
    if wanted.target.split(|&byte| byte == b'/').any(|name| name == b"..") {
        return Err(about(libc::EINVAL));
    }
    let root = place.root().map_err(about)?;
    let stage = place.enter(&root, wanted.stage).map_err(about)?;
    let (parents, name) = split(wanted.target);
    let mut parent = root;
    for name in parents.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
        parent = place
            .enter(&parent, name)
            .map_err(|errno| failed("its directory cannot be opened", wanted.target, errno))?;
    }
    let mut merging = Merging { place, replaces: wanted.replaces, total: RestoreTotal::default() };
    if name.is_empty() {
        let content = place.enter(&stage, CONTENT).map_err(about)?;
        merging.merge(&content, &parent, &[], 0)?;
    } else {
        let is_directory = place.kind(&stage, CONTENT).map_err(about)? == Some(libc::S_IFDIR);
        match place.kind(&parent, name).map_err(about)? {
            Some(libc::S_IFDIR) if is_directory => {
                let content = place.enter(&stage, CONTENT).map_err(about)?;
                let there = place.enter(&parent, name).map_err(about)?;
                merging.merge(&content, &there, wanted.target, 0)?;
            }
            Some(kind) if is_directory || kind == libc::S_IFDIR => return Err(about(libc::EEXIST)),
            there => {
                let replaces = there.is_some() && wanted.replaces;
                place.rename((&stage, CONTENT), (&parent, name), replaces).map_err(about)?;
                merging.total.restored = 1;
            }
        }
    }
    place.sync().map_err(|errno| failed("it cannot be made durable", wanted.target, errno))?;
    Ok(merging.total)
}

struct Merging<'a, P> {
    place: &'a P,
    replaces: bool,
    total: RestoreTotal,
}

impl<P: Place> Merging<'_, P> {
    /// Renames the entries of a staged directory into one that exists.
    fn merge(&mut self, from: &P::Directory, to: &P::Directory, path: &[u8], depth: usize) -> Outcome {
        let about = |errno| failed("its entries cannot be restored", path, errno);
        if depth >= DEPTH_MAX {
            return Err(about(libc::ENAMETOOLONG));
        }
        for name in self.place.names(from).map_err(about)? {
            // The snapshot was taken during another restore.
            if path.is_empty() && name.starts_with(STAGE_PREFIX) {
                continue;
            }
            let path = if path.is_empty() { name.clone() } else { [path, b"/", &name].concat() };
            let about = |errno| failed("it cannot be restored", &path, errno);
            let staged = self.place.kind(from, &name).map_err(about)?;
            let there = self.place.kind(to, &name).map_err(about)?;
            let directory = Some(libc::S_IFDIR);
            if staged == directory && there == directory {
                let from = self.place.enter(from, &name).map_err(about)?;
                let to = self.place.enter(to, &name).map_err(about)?;
                self.merge(&from, &to, &path, depth + 1)?;
                continue;
            }
            let is_wanted = there.is_none() || self.replaces && staged != directory && there != directory;
            match is_wanted.then(|| self.place.rename((from, &name), (to, &name), there.is_some())) {
                // Entries in the directory of another share, mounted or not, are left as they are.
                None | Some(Err(libc::EXDEV | libc::EBUSY)) => {
                    self.total.kept += 1;
                    self.total.kept_first.get_or_insert_with(|| shown(&path));
                }
                Some(renamed) => {
                    renamed.map_err(about)?;
                    self.total.restored += 1;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "restore_tests.rs"]
mod tests;
