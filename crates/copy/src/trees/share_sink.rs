//! A share as a sink.

use std::sync::Arc;

use bytes::Bytes;
use share::{Caller, Failure, Inode, SetAttributes, Time, TimeToSet, Tree};
use surface::Result;

use super::{
    ACL_ACCESS, ACL_DEFAULT, Added, Item, Sink, Step, Stop, aside, gather, in_the_way, not_ours, shown, skip_if_any,
    split, stop_of,
};

/// A directory's attributes that are set when all is in it.
struct Late {
    node: u64,
    times: (Time, Time),
    default_acl: Option<Vec<u8>>,
}

/// Returns whether files have an extended attribute of that name.
type HasXattr = dyn Fn(&[u8]) -> bool;
/// Fails while the share refuses changes.
type CheckWritable = dyn Fn() -> Result<()>;

/// An existing file that is being replaced.
struct Replaced {
    directory: u64,
    path: Vec<u8>,
    /// Its name until the new file is complete.
    aside: Vec<u8>,
}

/// A share as a sink.
pub struct ShareSink {
    tree: Arc<Tree>,
    /// Directories from the root to the one that was used last.
    open: Vec<(Vec<u8>, u64)>,
    overwrite: bool,
    /// The root itself gets attributes.
    sets_root: bool,
    /// The node that was made last.
    node: u64,
    path: Vec<u8>,
    inode: Option<Inode>,
    /// The file that the new one replaces.
    replaced: Option<Replaced>,
    late: Vec<Late>,
    has_xattr: Box<HasXattr>,
    /// Called before each step.
    check_writable: Box<CheckWritable>,
    /// The first number assigned during this copy: nodes from this number on were created by it.
    first: Option<u64>,
}

fn failed(what: &'static str, path: &[u8]) -> impl Fn(Failure) -> Stop {
    move |failure| stop_of(what, path, failure.errno())
}

fn cannot_be_linked(item: &Item, first: &[u8], failure: Failure) -> Stop {
    let why = std::io::Error::from_raw_os_error(failure.errno());
    Stop::Skip(format!("{}: cannot be linked to {}: {why}", shown(&item.path), shown(first)))
}

/// A device as an inode has it (`new_encode_dev` of the kernel).
const fn device((major, minor): (u32, u32)) -> u32 {
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

/// The one that everything belongs to until its owner is known.
const ROOT: Caller = Caller { uid: 0, gid: 0 };

impl ShareSink {
    /// Into a tree. `overwrite`: old files are replaced, and the attributes of directories are
    /// set. `sets_root`: so are those of the root.
    pub fn new(tree: Arc<Tree>, overwrite: bool, sets_root: bool) -> Self {
        Self {
            tree,
            open: Vec::new(),
            overwrite,
            sets_root,
            node: 0,
            path: Vec::new(),
            inode: None,
            replaced: None,
            late: Vec::new(),
            has_xattr: Box::new(|_| true),
            check_writable: Box::new(|| Ok(())),
            first: None,
        }
    }

    /// Only with the extended attributes whose names `has_xattr` accepts.
    #[must_use]
    pub fn with_xattrs(mut self, has_xattr: impl Fn(&[u8]) -> bool + 'static) -> Self {
        self.has_xattr = Box::new(has_xattr);
        self
    }

    /// Ends the copy once `check` fails: the share may become readonly meanwhile.
    #[must_use]
    pub fn while_writable(mut self, check: impl Fn() -> Result<()> + 'static) -> Self {
        self.check_writable = Box::new(check);
        self
    }

    /// Whether a node was created here: an archive may contain a name twice, and the last one wins.
    fn is_ours(&self, node: u64) -> bool {
        self.first.is_some_and(|first| node >= first)
    }

    /// Returns the node of a directory of the tree, creating missing parts of it.
    fn directory(&mut self, path: &[u8]) -> Step<u64> {
        let wanted: Vec<&[u8]> = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).collect();
        let common = self.open.iter().zip(&wanted).take_while(|((name, _), wanted)| name == *wanted).count();
        self.open.truncate(common);
        for name in &wanted[common..] {
            let above = self.open.last().map_or(Tree::ROOT, |(_, node)| *node);
            let (node, inode) = match self.tree.lookup(above, name) {
                Err(failure) if failure.errno() == libc::ENOENT => {
                    let made = self.tree.make(above, name, ROOT, libc::S_IFDIR | 0o755, 0, 0);
                    self.first = self.first.or(made.as_ref().ok().map(|(node, _)| *node));
                    made
                }
                found => found,
            }
            .map_err(failed("its directory cannot be opened", path))?;
            if !inode.is_directory() {
                return Err(in_the_way(path, self.open.len()));
            }
            self.open.push((name.to_vec(), node));
        }
        Ok(self.open.last().map_or(Tree::ROOT, |(_, node)| *node))
    }

    fn find(&self, directory: u64, item: &Item) -> Step<Option<(u64, Inode)>> {
        match self.tree.lookup(directory, split(&item.path).1) {
            Ok(found) => Ok(Some(found)),
            Err(failure) if failure.errno() == libc::ENOENT => Ok(None),
            Err(failure) => Err(failed("cannot look up the existing entry", &item.path)(failure)),
        }
    }

    /// Returns the name under which a file waits while it is replaced, and whether an import that
    /// was killed has left its old content there.
    fn aside_of(&self, directory: u64, path: &[u8]) -> Step<(Vec<u8>, bool)> {
        let mut number = 0;
        loop {
            let aside = aside(split(path).1, number);
            match self.tree.lookup(directory, &aside) {
                Err(failure) if failure.errno() == libc::ENOENT => return Ok((aside, false)),
                Err(failure) => return Err(failed("cannot be replaced", path)(failure)),
                Ok((node, inode)) if inode.is_directory() || self.is_ours(node) => number += 1,
                Ok(_) => return Ok((aside, true)),
            }
        }
    }

    fn remove(&self, directory: u64, name: &[u8]) -> share::Result<()> {
        self.tree.unlink(directory, name).and_then(|node| self.tree.forget(node))
    }

    /// Gives the old file its name again, in place of an incomplete new one.
    fn put_back(&mut self) -> share::Result<()> {
        let Some(Replaced { directory, path, aside }) = self.replaced.take() else { return Ok(()) };
        let name = split(&path).1;
        match self.remove(directory, name) {
            Err(failure) if failure.errno() == libc::ENOENT => {}
            removed => removed?,
        }
        self.tree.rename(directory, &aside, directory, name, libc::RENAME_NOREPLACE)
    }

    /// Removes the old file, whose replacement is complete.
    fn remove_replaced(&mut self) -> Step {
        let Some(Replaced { directory, path, aside }) = self.replaced.take() else { return Ok(()) };
        self.remove(directory, &aside).map_err(failed("its old content cannot be removed", &path))
    }

    /// Creates an item in place of an existing one, which is removed only once the new one is
    /// complete.
    fn replace(&mut self, directory: u64, item: &Item, first: Option<(u64, &[u8])>) -> Step<Added> {
        let name = split(&item.path).1;
        let cannot = failed("cannot be replaced", &item.path);
        let (aside, is_left) = self.aside_of(directory, &item.path)?;
        let freed = if is_left {
            // The present file is a part of one that an import was writing when it was killed.
            self.remove(directory, name)
        } else {
            self.tree.rename(directory, name, directory, &aside, libc::RENAME_NOREPLACE)
        };
        freed.map_err(&cannot)?;
        self.replaced = Some(Replaced { directory, path: item.path.clone(), aside: aside.clone() });
        let made = self.make(directory, item, first);
        if made.is_err()
            && let Err(failure) = self.put_back()
        {
            let why = std::io::Error::from_raw_os_error(failure.errno());
            let text =
                format!("{}: the replaced entry was left under the name {}: {why}", shown(&item.path), shown(&aside));
            return Err(Stop::Skip(text));
        }
        made
    }

    /// Makes an item whose name is free. An import that was killed may have left the old file.
    fn make_anew(&mut self, directory: u64, item: &Item, first: Option<(u64, &[u8])>) -> Step<Added> {
        if self.overwrite {
            let (aside, is_left) = self.aside_of(directory, &item.path)?;
            self.replaced = is_left.then(|| Replaced { directory, path: item.path.clone(), aside });
        }
        let made = self.make(directory, item, first);
        if made.is_err() {
            // Otherwise it keeps that name, and the next import finds it.
            let _ = self.put_back();
        }
        made
    }

    /// The node of the file that an item is a further name of.
    fn linked(&self, item: &Item, first: &[u8]) -> Step<u64> {
        let mut names = first.split(|&byte| byte == b'/');
        let found = names.try_fold(Tree::ROOT, |node, name| self.tree.lookup(node, name).map(|(node, _)| node));
        found.map_err(|failure| cannot_be_linked(item, first, failure))
    }

    /// Fails for a link to a file that is not one of this copy: its content may be another.
    fn check_first(&self, item: &Item, node: u64, first: &[u8]) -> Step {
        if self.is_ours(node) { Ok(()) } else { Err(not_ours(item, first)) }
    }

    /// Creates an item in a directory where its name is free. `first`: the file that it is another
    /// link to.
    fn make(&mut self, directory: u64, item: &Item, first: Option<(u64, &[u8])>) -> Step<Added> {
        let name = split(&item.path).1;
        if let Some((node, first)) = first {
            let linked = self.tree.link(node, directory, name);
            return linked.map(|_| Added::New).map_err(|failure| cannot_be_linked(item, first, failure));
        }
        let caller = Caller { uid: item.uid, gid: item.gid };
        let made = if item.kind() == libc::S_IFLNK {
            self.tree.make_link(directory, name, caller, &item.target)
        } else {
            self.tree.make(directory, name, caller, item.mode, 0, device(item.device))
        };
        let (node, inode) = made.map_err(failed("cannot be created", &item.path))?;
        self.node = node;
        self.inode = Some(inode);
        self.first = self.first.or(Some(node));
        Ok(Added::New)
    }

    fn set_xattr(&self, node: u64, path: &[u8], key: &[u8], value: &[u8]) -> Step {
        let set = match (self.has_xattr)(key) {
            true => self.tree.set_xattr(node, key, value, 0, false),
            false => Err(Failure::new(libc::EOPNOTSUPP)),
        };
        set.map_err(|failure| match stop_of("", path, failure.errno()) {
            fatal @ Stop::Fatal(_) => fatal,
            Stop::Skip(_) => {
                let why = std::io::Error::from_raw_os_error(failure.errno());
                Stop::Skip(format!("{}: {} cannot be set: {why}", shown(path), String::from_utf8_lossy(key)))
            }
        })
    }

    /// Owner, mode and attributes of the node that was made or found, unless they are so already.
    fn set_attributes(&self, item: &Item) -> Step {
        let Some(inode) = &self.inode else { return Ok(()) };
        let node = self.node;
        let set = |wanted: &SetAttributes| {
            self.tree.set_attributes(node, wanted).map_err(failed("its attributes cannot be set", &item.path))
        };
        let is_link = item.kind() == libc::S_IFLNK;
        let has_owner = (inode.uid, inode.gid) == (item.uid, item.gid);
        if !has_owner {
            set(&SetAttributes { uid: Some(item.uid), gid: Some(item.gid), ..SetAttributes::default() })?;
        }
        // An existing directory may have passed a default ACL on to its new entries.
        for key in [ACL_ACCESS, ACL_DEFAULT] {
            if item.xattr(key).is_none() && !is_link {
                match self.tree.remove_xattr(node, key) {
                    Err(failure) if matches!(failure.errno(), libc::ENODATA | libc::EOPNOTSUPP) => {}
                    removed => removed.map_err(failed("its ACL cannot be removed", &item.path))?,
                }
            }
        }
        // The owner first: changing it clears set-user-id bits and capabilities.
        if !is_link && (inode.mode & 0o7777 != item.mode & 0o7777 || !has_owner) {
            set(&SetAttributes { mode: Some(item.mode), ..SetAttributes::default() })?;
        }
        let mut wrong = Vec::new();
        for (key, value) in item.xattrs.iter().filter(|(key, _)| key != ACL_DEFAULT) {
            gather(&mut wrong, self.set_xattr(node, &item.path, key, value))?;
        }
        skip_if_any(&wrong)
    }

    /// Sets the attributes, the size and the times of the item that was made or found.
    fn complete(&mut self, item: &Item) -> Step {
        if self.inode.is_none() {
            return Ok(());
        }
        (self.check_writable)()?;
        let mut wrong = Vec::new();
        gather(&mut wrong, self.set_attributes(item))?;
        let times = (item.accessed, item.modified);
        if item.kind() == libc::S_IFDIR {
            let default_acl = item.xattr(ACL_DEFAULT).map(<[u8]>::to_vec);
            self.late.push(Late { node: self.node, times, default_acl });
            return skip_if_any(&wrong);
        }
        let is_short = item.kind() == libc::S_IFREG && item.data.last().map_or(0, |range| range.end) != item.size;
        let mut set = |what, wanted: &SetAttributes| {
            let set = self.tree.set_attributes(self.node, wanted).map(drop);
            gather(&mut wrong, set.map_err(failed(what, &item.path)))
        };
        if is_short {
            set("its size cannot be set", &SetAttributes { size: Some(item.size), ..SetAttributes::default() })?;
        }
        let wanted = SetAttributes {
            accessed: Some(TimeToSet::At(times.0)),
            modified: Some(TimeToSet::At(times.1)),
            ..SetAttributes::default()
        };
        set("its times cannot be set", &wanted)?;
        skip_if_any(&wrong)
    }
}

impl Sink for ShareSink {
    fn add(&mut self, item: &Item) -> Step<Added> {
        (self.check_writable)()?;
        self.inode = None;
        self.path.clone_from(&item.path);
        if item.path.is_empty() {
            self.node = Tree::ROOT;
            if self.sets_root {
                self.inode = Some(self.tree.inode(Tree::ROOT).map_err(failed("cannot be accessed", &[]))?);
            }
            return Ok(Added::Merged);
        }
        let directory = self.directory(split(&item.path).0)?;
        let found = self.find(directory, item)?;
        if let Some((node, inode)) = &found {
            let node = *node;
            if item.kind() == libc::S_IFDIR && inode.is_directory() {
                self.node = node;
                self.inode = (self.overwrite || self.is_ours(node)).then(|| inode.clone());
                return Ok(Added::Merged);
            }
            if !self.overwrite && !self.is_ours(node) {
                return Ok(Added::Kept);
            }
            if inode.is_directory() {
                let text = format!("{}: is an existing directory, which is not overwritten", shown(&item.path));
                return Err(Stop::Skip(text));
            }
        }
        let first = match &item.link_to {
            Some(first) => Some((self.linked(item, first)?, &first[..])),
            None => None,
        };
        match (found, first) {
            // An archive that has a name twice may have the second as a link to the first.
            (Some((old, _)), Some((node, _))) if old == node => Ok(Added::Same),
            (found, first) => {
                if let Some((node, name)) = first {
                    self.check_first(item, node, name)?;
                }
                match found {
                    Some(_) => self.replace(directory, item, first),
                    None => self.make_anew(directory, item, first),
                }
            }
        }
    }

    fn write(&mut self, offset: u64, data: Bytes) -> Step {
        (self.check_writable)()?;
        self.tree.write(self.node, offset, data, false).map(drop).map_err(failed("cannot be written", &self.path))
    }

    fn end(&mut self, item: &Item) -> Step {
        let mut wrong = Vec::new();
        gather(&mut wrong, self.complete(item))?;
        gather(&mut wrong, self.remove_replaced())?;
        skip_if_any(&wrong)
    }

    fn finish(&mut self) -> Step<Vec<String>> {
        (self.check_writable)()?;
        let mut lines = Vec::new();
        for late in std::mem::take(&mut self.late).into_iter().rev() {
            if let Some(acl) = &late.default_acl {
                match self.set_xattr(late.node, b"a directory", ACL_DEFAULT, acl) {
                    Err(Stop::Skip(line)) => lines.push(line),
                    set => set?,
                }
            }
            let wanted = SetAttributes {
                accessed: Some(TimeToSet::At(late.times.0)),
                modified: Some(TimeToSet::At(late.times.1)),
                ..SetAttributes::default()
            };
            let set = self.tree.set_attributes(late.node, &wanted);
            set.map_err(failed("the times of a directory cannot be set", &[]))?;
        }
        self.tree.commit().map_err(failed("cannot be made durable", &[]))?;
        Ok(lines)
    }
}

impl Drop for ShareSink {
    fn drop(&mut self) {
        // After a failure: the old file is better than a part of the new one.
        let _ = self.put_back();
    }
}
