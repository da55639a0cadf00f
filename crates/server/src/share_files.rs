//! Storage of the files of a share, and the reasons for their codecs: files are found by path in
//! its tree, their parts in the pool's map.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use engine::{FilePart, FileStored, Files};
use share::{Inode, Tree};
use surface::{Error, ErrorKind, Result};

use crate::documents;
use crate::share_reasons::{Counts, IN_RECORD};
use crate::share_trees::error_of;
use crate::share_trials;
use report::{FileReport, PartLine, UsageLine, UsageReport};

/// Maximum number of parts of a file in a report.
const PARTS_MAX: usize = 256;
/// Maximum depth of directories: a path has no more components.
const DEPTH_MAX: usize = 4096;
/// Maximum number of lines of a directory, or of types; the rest is added up in one.
const LINES_MAX: usize = 1000;

/// A share's tree, and the storage of its files.
#[derive(Clone)]
pub struct Opened {
    /// The tree.
    pub tree: Arc<Tree>,
    /// Storage of its files.
    pub files: Arc<Files>,
    /// Registers this use with the owner of a mounted tree.
    _user: Option<Arc<()>>,
}

impl Opened {
    /// A tree that only this caller uses.
    pub fn new(tree: Arc<Tree>, files: Arc<Files>) -> Self {
        Self { tree, files, _user: None }
    }

    /// A tree whose owner counts its users.
    pub fn lent(tree: Arc<Tree>, files: Arc<Files>, user: Arc<()>) -> Self {
        Self { tree, files, _user: Some(user) }
    }

    /// Returns the node at a path, and its attributes. Names that are not text are found in their
    /// escaped form.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn find(&self, share: &str, path: &str) -> Result<(u64, Inode)> {
        let (_, node) = self.walk(share, path)?;
        let inode = self.tree.inode(node);
        Ok((node, inode.map_err(|failure| error_of(share, &format!("'{path}' cannot be looked up"), failure))?))
    }

    /// Returns the names of a path from the root on, as they are in the tree, and the node at its
    /// end.
    ///
    /// # Errors
    /// `NotFound`.
    pub(crate) fn walk(&self, share: &str, path: &str) -> Result<(Vec<Vec<u8>>, u64)> {
        let (mut names, mut node) = (Vec::new(), Tree::ROOT);
        let failed = |failure: share::Failure| match failure.errno() {
            libc::ENOENT | libc::ENOTDIR | libc::ENAMETOOLONG => {
                let text = format!("share '{share}' has no file '{path}': specify the path from the share's root");
                Error::new(ErrorKind::NotFound, text)
            }
            _ => error_of(share, &format!("'{path}' cannot be looked up"), failure),
        };
        for name in path.split('/').filter(|name| !name.is_empty() && *name != ".") {
            let mut bytes = name.as_bytes().to_vec();
            let found = self.tree.lookup(node, &bytes);
            let found = match found {
                Err(_) if name.contains("\\x") => {
                    bytes = share::out_of_words(name);
                    if is_name(&bytes) { self.tree.lookup(node, &bytes) } else { found }
                }
                found => found,
            };
            (node, _) = found.map_err(failed)?;
            names.push(bytes);
        }
        Ok((names, node))
    }

    /// Reports how a file is stored, and why.
    ///
    /// # Errors
    /// `NotFound`, and those of the pool.
    pub fn explain(&self, share: &str, path: &str) -> Result<FileReport> {
        let (node, inode) = self.find(share, path)?;
        let failed = |failure| error_of(share, &format!("'{path}' cannot be explained"), failure);
        if !inode.is_file() && !inode.is_directory() {
            let text = format!("'{path}' in share '{share}' is neither a file nor a directory: it has no data");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let hint = self.tree.hint(node).map_err(failed)?;
        let stored = match (inode.is_file(), inode.content()) {
            (true, Some(content)) => in_record(content),
            (true, None) => {
                self.files.settle()?;
                self.files.stored(inode.data_file(), PARTS_MAX)?
            }
            (false, _) => FileStored::default(),
        };
        let remembered = (hint.kind != 0).then(|| self.files.remembered(hint.kind)).flatten();
        let name = path.rsplit('/').find(|name| !name.is_empty() && *name != ".").unwrap_or_default();
        let again = match inode.is_file() {
            // If its first bytes cannot be read, the report has the rest.
            true => self.tree.in_force_for(node, name.as_bytes()).ok().flatten(),
            false => None,
        };
        let counts = Counts {
            advice: hint.how,
            again: again.as_ref().map(|(_, hint)| hint.how),
            settings: policy::InForce::in_force(&*self.files).settings,
            remembered: remembered.as_ref(),
        };
        let line = |part: FilePart| PartLine {
            why: counts.why(&part.codec),
            earlier: counts.is_earlier(&part.codec),
            offset: part.offset,
            units: part.units,
            raw_bytes: part.raw_bytes,
            stored_bytes: part.stored_bytes,
            codec: part.codec,
        };
        Ok(FileReport {
            path: path.to_owned(),
            directory: inode.is_directory(),
            size_bytes: if inode.is_file() { inode.size } else { 0 },
            raw_bytes: stored.raw_bytes,
            stored_bytes: stored.stored_bytes,
            compression: self.tree.compression(node).map_err(failed)?,
            absent_xattrs: None,
            in_force: again.as_ref().map(|(told, _)| told.clone()),
            file_type: self.tree.type_of(node).map_err(failed)?,
            trials: share_trials::of_file(&self.tree, node, &stored.parts),
            parts: stored.parts.into_iter().map(line).collect(),
            parts_left_out: stored.parts_left_out,
            remembered: remembered.map(documents::remembered),
        })
    }

    /// Reports the space of a file, or of a directory with every file below it.
    ///
    /// # Errors
    /// `NotFound`, and those of the pool.
    pub fn usage(&self, share: &str, path: &str) -> Result<UsageReport> {
        let (node, inode) = self.find(share, path)?;
        self.files.settle()?;
        let mut types = BTreeMap::new();
        let mut walk = Walk::new(self, share);
        let mut entries = Vec::new();
        let mut total =
            UsageLine { name: if path.is_empty() { "/".to_owned() } else { path.to_owned() }, ..UsageLine::default() };
        if inode.is_directory() {
            for (name, node, inode) in walk.names(node)? {
                let mut line = UsageLine { name, ..UsageLine::default() };
                if inode.is_directory() {
                    line.name.push('/');
                }
                self.add(&mut walk, (node, inode), &mut line, &mut types)?;
                total.add(&line);
                entries.push(line);
            }
        } else {
            self.add(&mut walk, (node, inode), &mut total, &mut types)?;
        }
        let types = types.into_iter().map(|(name, line)| UsageLine { name, ..line }).collect();
        Ok(UsageReport { total: total.done(), entries: listed(entries), types: listed(types) })
    }

    /// Adds a node, with everything below it, to a line and to the lines of types.
    fn add(
        &self,
        walk: &mut Walk<'_>,
        (node, inode): (u64, Inode),
        line: &mut UsageLine,
        types: &mut BTreeMap<String, UsageLine>,
    ) -> Result<()> {
        walk.each_file((String::new(), node, inode), &mut |_, node, inode| {
            let stored = match inode.content() {
                Some(content) => in_record(content),
                None => self.files.stored(inode.data_file(), 0)?,
            };
            let file = UsageLine {
                files: 1,
                size_bytes: inode.size,
                raw_bytes: stored.raw_bytes,
                stored_bytes: stored.stored_bytes,
                ..UsageLine::default()
            };
            line.add(&file);
            // The file may have been removed since.
            let word = self.tree.type_of(node).unwrap_or_default();
            types.entry(if word.is_empty() { "-".to_owned() } else { word }).or_default().add(&file);
            Ok(())
        })
    }
}

/// Returns whether decoded bytes can be the name of a file: `\x2e\x2e` and `\x2f` in a path would
/// otherwise lead out of a share that is changed through its mount.
pub(crate) fn is_name(bytes: &[u8]) -> bool {
    !matches!(bytes, b"" | b"." | b"..") && !bytes.iter().any(|byte| matches!(byte, b'/' | 0))
}

/// Returns the lines to report, those with the most stored bytes first.
fn listed(mut lines: Vec<UsageLine>) -> Vec<UsageLine> {
    lines.sort_by(|a, b| b.stored_bytes.cmp(&a.stored_bytes).then_with(|| a.name.cmp(&b.name)));
    let others = lines.split_off(lines.len().min(LINES_MAX));
    if !others.is_empty() {
        let mut rest = UsageLine { name: format!("{} others", others.len()), ..UsageLine::default() };
        others.iter().for_each(|line| rest.add(line));
        lines.push(rest);
    }
    lines.into_iter().map(UsageLine::done).collect()
}

/// A walk through a part of a tree that visits each file once, however many names it has.
pub struct Walk<'a> {
    opened: &'a Opened,
    share: &'a str,
    /// Visited files with several names.
    seen: HashSet<u64>,
}

impl<'a> Walk<'a> {
    /// Starts a walk in that share.
    pub fn new(opened: &'a Opened, share: &'a str) -> Self {
        Self { opened, share, seen: HashSet::new() }
    }

    /// Returns the names in a directory except the dots, with nodes and attributes.
    fn names(&self, directory: u64) -> Result<Vec<(String, u64, Inode)>> {
        let mut names = Vec::new();
        let listing = self.opened.tree.list(directory, share::COOKIE_DOT_DOT, |listed, inode| {
            names.push((share::in_words(&listed.name), listed.node, inode));
            true
        });
        listing.map_err(|failure| error_of(self.share, "a directory cannot be listed", failure))?;
        Ok(names)
    }

    /// Passes a file, or each file below a directory, to `visit`.
    ///
    /// # Errors
    /// Those of the pool and of `visit`.
    pub fn each_file(
        &mut self,
        top: (String, u64, Inode),
        visit: &mut dyn FnMut(&str, u64, &Inode) -> Result<()>,
    ) -> Result<()> {
        let mut open = vec![(top, 0)];
        while let Some(((name, node, inode), depth)) = open.pop() {
            if inode.is_directory() && depth < DEPTH_MAX {
                open.extend(self.names(node)?.into_iter().map(|below| (below, depth + 1)));
            }
            if inode.is_file() && (inode.links < 2 || self.seen.insert(node)) {
                visit(&name, node, &inode)?;
            }
        }
        Ok(())
    }
}

/// Returns the approximate space of a small file whose content is in the record of its inode.
fn in_record(content: &[u8]) -> FileStored {
    let bytes = content.len() as u64;
    let part = FilePart { codec: IN_RECORD.to_owned(), offset: 0, units: 0, raw_bytes: bytes, stored_bytes: bytes };
    let parts = if content.is_empty() { Vec::new() } else { vec![part] };
    FileStored { raw_bytes: bytes, stored_bytes: bytes, parts, ..FileStored::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_end_with_what_is_left() {
        let lines = (0..LINES_MAX as u64 + 5).map(|n| UsageLine {
            name: format!("{n}"),
            files: 1,
            stored_bytes: n,
            ..UsageLine::default()
        });
        let told = listed(lines.collect());
        assert_eq!(told.len(), LINES_MAX + 1);
        assert_eq!((told[0].stored_bytes, told[LINES_MAX].files), (LINES_MAX as u64 + 4, 5));
    }
}
