//! A share as a sink.
//!
//! Everything but a directory gets its name when it is complete, in one step with the removal of an
//! entry that it replaces. So users of the tree see it whole or not at all, and never cache a part.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use share::{Caller, Failure, Inode, SetAttributes, Time, TimeToSet, Tree};

use super::others::{Named, NoOthers, Others};
use super::{
    ACL_ACCESS, ACL_DEFAULT, Added, Item, Sink, Step, Stop, aside, gather, shown, skip_if_any, split, stop_of,
};

/// A directory's attributes that are set when all is in it.
struct Late {
    node: u64,
    times: (Time, Time),
    default_acl: Option<Vec<u8>>,
}

/// Numbers of the nodes that a copy has made: few ranges, because they ascend.
#[derive(Default)]
struct Made(Vec<Range<u64>>);

impl Made {
    fn add(&mut self, node: u64) {
        match self.0.last_mut() {
            Some(last) if last.end == node => last.end += 1,
            _ => self.0.push(node..node + 1),
        }
    }

    fn has(&self, node: u64) -> bool {
        let at = self.0.partition_point(|range| range.end <= node);
        self.0.get(at).is_some_and(|range| range.contains(&node))
    }
}

/// Where a node gets its name when it is complete.
#[derive(Clone, Copy)]
struct Awaited {
    directory: u64,
    /// In place of an old entry.
    replaces: bool,
}

/// A share as a sink.
pub struct ShareSink {
    tree: Arc<Tree>,
    others: Box<dyn Others>,
    /// Directories from the root to the one that was used last.
    open: Vec<(Vec<u8>, u64)>,
    overwrite: bool,
    /// The root itself gets attributes.
    sets_root: bool,
    /// The node that was made last.
    node: u64,
    path: Vec<u8>,
    inode: Option<Inode>,
    /// That node has no name yet.
    awaited: Option<Awaited>,
    late: Vec<Late>,
    /// An archive may contain a name twice, and the last one wins.
    made: Made,
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
    /// Into a tree that has no other users. `overwrite`: old files are replaced, and the attributes
    /// of directories are set. `sets_root`: so are those of the root.
    pub fn new(tree: Arc<Tree>, overwrite: bool, sets_root: bool) -> Self {
        let others = Box::new(NoOthers(tree.clone()));
        Self::among(others, tree, overwrite, sets_root)
    }

    /// Into a tree that others use.
    pub fn among(others: Box<dyn Others>, tree: Arc<Tree>, overwrite: bool, sets_root: bool) -> Self {
        Self {
            tree,
            others,
            open: Vec::new(),
            overwrite,
            sets_root,
            node: 0,
            path: Vec::new(),
            inode: None,
            awaited: None,
            late: Vec::new(),
            made: Made::default(),
        }
    }

    /// Removes the last node if it has got no name, because it would stay as long as the tree is
    /// open.
    fn abandon(&mut self) {
        if self.awaited.take().is_some()
            && let Err(failure) = self.tree.forget(self.node)
        {
            log::warn!("inode {}, whose copy has failed, cannot be removed: {failure:?}", self.node);
        }
    }

    /// Does a step, if others accept changes.
    fn step<T>(&mut self, what: &'static str, path: &[u8], work: impl FnOnce(&mut Self) -> Step<T>) -> Step<T> {
        self.others.begin_step().map_err(failed(what, path))?;
        let done = work(self);
        self.others.end_step();
        done
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
                    if let Ok((node, _)) = &made {
                        self.made.add(*node);
                        self.report(above, &wanted[..=self.open.len()].join(&b'/'), None);
                    }
                    made
                }
                found => found,
            }
            .map_err(failed("its directory cannot be opened", path))?;
            if !inode.is_directory() {
                return Err(failed("its directory cannot be opened", path)(Failure::new(libc::ENOTDIR)));
            }
            self.open.push((name.to_vec(), node));
        }
        Ok(self.open.last().map_or(Tree::ROOT, |(_, node)| *node))
    }

    /// Reports to others that the entry of a path has another node.
    fn report(&self, directory: u64, path: &[u8], replaced: Option<u64>) {
        let name = split(path).1;
        self.others.named(Named { directory, is_in_new: self.made.has(directory), name, path, replaced });
    }

    fn find(&self, directory: u64, item: &Item) -> Step<Option<(u64, Inode)>> {
        match self.tree.lookup(directory, split(&item.path).1) {
            Ok(found) => Ok(Some(found)),
            Err(failure) if failure.errno() == libc::ENOENT => Ok(None),
            Err(failure) => Err(failed("cannot look up the existing entry", &item.path)(failure)),
        }
    }

    /// Gives a node the name of an item.
    fn place(&self, node: u64, Awaited { directory, replaces }: Awaited, path: &[u8]) -> share::Result<()> {
        let name = split(path).1;
        let replaced = match replaces {
            true => self.tree.place(node, directory, name)?,
            false => self.tree.link(node, directory, name).map(|_| None)?,
        };
        self.report(directory, path, replaced);
        replaced.map_or(Ok(()), |old| self.others.lost_name(old))
    }

    /// The node of the file that an item is a further name of.
    fn linked(&self, item: &Item, first: &[u8]) -> Step<u64> {
        let mut names = first.split(|&byte| byte == b'/');
        let found = names.try_fold(Tree::ROOT, |node, name| self.tree.lookup(node, name).map(|(node, _)| node));
        found.map_err(|failure| cannot_be_linked(item, first, failure))
    }

    /// Makes the node of an item; one that is not a directory gets its name later.
    fn make(&mut self, item: &Item, place: Awaited) -> Step<Added> {
        let (name, caller) = (split(&item.path).1, Caller { uid: item.uid, gid: item.gid });
        let made = match (item.kind(), place.replaces) {
            (libc::S_IFDIR, true) => self.make_in_exchange(item, place.directory, caller),
            (libc::S_IFDIR, false) => self.tree.make(place.directory, name, caller, item.mode, 0, 0),
            (kind, _) => {
                let mode = if kind == libc::S_IFLNK { kind | 0o777 } else { item.mode };
                self.tree.make_unplaced(place.directory, name, caller, mode, device(item.device), &item.target)
            }
        };
        let (node, inode) = made.map_err(failed("cannot be created", &item.path))?;
        self.made.add(node);
        if inode.is_directory() {
            self.report(place.directory, &item.path, None);
        } else {
            self.awaited = Some(place);
        }
        (self.node, self.inode) = (node, Some(inode));
        Ok(Added::New)
    }

    /// Makes a directory in place of an entry of another type, which is removed only once the
    /// directory exists.
    fn make_in_exchange(&self, item: &Item, directory: u64, caller: Caller) -> share::Result<(u64, Inode)> {
        let mut number = 0;
        let (aside, made) = loop {
            let aside = aside(number);
            match self.tree.make(directory, &aside, caller, item.mode, 0, 0) {
                Err(failure) if failure.errno() == libc::EEXIST => number += 1,
                made => break (aside, made?),
            }
        };
        let name = split(&item.path).1;
        if let Err(failure) = self.tree.rename(directory, &aside, directory, name, libc::RENAME_EXCHANGE) {
            self.tree.remove_directory(directory, &aside).and_then(|node| self.others.lost_name(node))?;
            return Err(failure);
        }
        let old = self.tree.unlink(directory, &aside)?;
        self.report(directory, &item.path, Some(old));
        self.others.lost_name(old)?;
        Ok(made)
    }

    fn set_xattr(&self, node: u64, path: &[u8], key: &[u8], value: &[u8]) -> Step {
        let set = match self.others.refusal_of_xattr(key) {
            Some(errno) => Err(Failure::new(errno)),
            None => self.tree.set_xattr(node, key, value, 0, false),
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
}

impl Drop for ShareSink {
    fn drop(&mut self) {
        // After the end of others the next opening of the tree removes it.
        if self.others.begin_step().is_ok() {
            self.abandon();
            self.others.end_step();
        }
    }
}

impl ShareSink {
    fn add_item(&mut self, item: &Item) -> Step<Added> {
        self.abandon();
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
                self.inode = (self.overwrite || self.made.has(node)).then(|| inode.clone());
                return Ok(Added::Merged);
            }
            if !self.overwrite && !self.made.has(node) {
                return Ok(Added::Kept);
            }
            if inode.is_directory() {
                let text = format!("{}: is an existing directory, which is not overwritten", shown(&item.path));
                return Err(Stop::Skip(text));
            }
        }
        let place = Awaited { directory, replaces: found.is_some() };
        let Some(first) = &item.link_to else { return self.make(item, place) };
        let node = self.linked(item, first)?;
        // An archive that has a name twice may have the second as a link to the first.
        if found.is_some_and(|(old, _)| old == node) {
            return Ok(Added::Same);
        }
        self.place(node, place, &item.path).map_err(|failure| cannot_be_linked(item, first, failure))?;
        self.others.changed(node);
        Ok(Added::New)
    }

    fn end_item(&mut self, item: &Item) -> Step {
        let mut wrong = Vec::new();
        gather(&mut wrong, self.set_attributes(item))?;
        let times = (item.accessed, item.modified);
        if item.kind() == libc::S_IFDIR {
            self.others.changed(self.node);
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
        if let Some(place) = self.awaited {
            self.place(self.node, place, &item.path).map_err(failed("cannot be given its name", &item.path))?;
            self.awaited = None;
        }
        skip_if_any(&wrong)
    }

    fn finish_all(&mut self) -> Step<Vec<String>> {
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
            match self.tree.set_attributes(late.node, &wanted) {
                // Another user has removed it.
                Err(failure) if failure.errno() == libc::ESTALE => {}
                set => drop(set.map_err(failed("the times of a directory cannot be set", &[]))?),
            }
            self.others.changed(late.node);
        }
        self.tree.commit().map_err(failed("cannot be made durable", &[]))?;
        Ok(lines)
    }
}

impl Sink for ShareSink {
    fn add(&mut self, item: &Item) -> Step<Added> {
        self.step("cannot be created", &item.path, |sink| sink.add_item(item))
    }

    fn write(&mut self, offset: u64, data: Bytes) -> Step {
        let path = std::mem::take(&mut self.path);
        let what = "cannot be written";
        let written = self.step(what, &path, |sink| {
            sink.tree.write(sink.node, offset, data, false).map(drop).map_err(failed(what, &path))
        });
        self.path = path;
        written
    }

    fn end(&mut self, item: &Item) -> Step {
        if self.inode.is_none() {
            return Ok(());
        }
        self.step("its attributes cannot be set", &item.path, |sink| sink.end_item(item))
    }

    fn finish(&mut self) -> Step<Vec<String>> {
        let lines = self.step("cannot be made durable", &[], Self::finish_all)?;
        self.others.settle()?;
        Ok(lines)
    }
}

#[cfg(test)]
#[path = "share_sink_tests.rs"]
mod tests;
