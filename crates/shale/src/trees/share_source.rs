//! A share, or a snapshot of one, as a source.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use share::{COOKIE_DOT_DOT, Failure, Inode, Listed, Tree};
use surface::{Allocation, Error, ErrorKind, Result};

use super::{Item, RANGES_MAX, Source, Step, Stop, is_kept, shown, stop_of};

struct Frame {
    path: Vec<u8>,
    /// Entries to come, the next one last.
    entries: Vec<(Listed, Inode)>,
}

/// A share as a source.
pub struct ShareSource {
    tree: Arc<Tree>,
    frames: Vec<Frame>,
    root: Option<(u64, Inode)>,
    /// First names of files that have several, and how many of these are to come.
    linked: HashMap<u64, (Vec<u8>, u32)>,
    file: u64,
    file_path: Vec<u8>,
}

fn failed(what: &'static str, path: &[u8]) -> impl Fn(Failure) -> Stop {
    move |failure| stop_of(what, path, failure.errno())
}

/// Major and minor number of a device as an inode has it (`new_encode_dev` of the kernel).
const fn device(number: u32) -> (u32, u32) {
    ((number & 0xf_ff00) >> 8, number & 0xff | number >> 12 & 0xf_ff00)
}

impl ShareSource {
    /// The tree below `path`, which is the root then; or one file, under its own name.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the path is not there.
    pub fn open(tree: Arc<Tree>, path: &[u8]) -> Result<Self> {
        let lost = |failure: Failure, path: &[u8]| {
            let kind = match failure.errno() {
                libc::ENOENT | libc::ENOTDIR => ErrorKind::NotFound,
                _ => ErrorKind::Io,
            };
            let source = std::io::Error::from_raw_os_error(failure.errno());
            Error::with_source(kind, format!("{} in the share", shown(path)), source)
        };
        let mut node = Tree::ROOT;
        let mut inode = tree.inode(node).map_err(|failure| lost(failure, b""))?;
        let mut parent = node;
        let mut last: &[u8] = b"";
        for name in path.split(|&byte| byte == b'/').filter(|name| !matches!(*name, b"" | b".")) {
            parent = node;
            last = name;
            (node, inode) = tree.lookup(node, name).map_err(|failure| lost(failure, path))?;
        }
        let mut frames = Vec::new();
        let root = if inode.is_directory() {
            Some((node, inode))
        } else {
            let listed = Listed { cookie: 0, node, kind: inode.kind(), name: last.to_vec() };
            debug_assert_ne!(parent, node);
            frames.push(Frame { path: Vec::new(), entries: vec![(listed, inode)] });
            None
        };
        Ok(Self { tree, frames, root, linked: HashMap::new(), file: 0, file_path: Vec::new() })
    }

    fn entries(&self, node: u64, path: &[u8]) -> Step<Vec<(Listed, Inode)>> {
        let mut entries = Vec::new();
        let listed = self.tree.list(node, COOKIE_DOT_DOT, |listed, inode| {
            entries.push((listed, inode));
            true
        });
        listed.map_err(failed("cannot be listed", path))?;
        entries.sort_unstable_by(|(a, _), (b, _)| b.name.cmp(&a.name));
        Ok(entries)
    }

    fn item(&mut self, node: u64, inode: &Inode, path: Vec<u8>) -> Step<Item> {
        let mut item = Item {
            mode: inode.mode,
            uid: inode.uid,
            gid: inode.gid,
            device: device(inode.device),
            size: if inode.is_file() { inode.size } else { 0 },
            accessed: inode.accessed,
            modified: inode.modified,
            path,
            ..Item::default()
        };
        if !inode.is_directory() && inode.links > 1 {
            if let Some((first, left)) = self.linked.get_mut(&node) {
                item.link_to = Some(first.clone());
                *left = left.saturating_sub(1);
                if *left == 0 {
                    self.linked.remove(&node);
                }
                return Ok(item);
            }
            self.linked.insert(node, (item.path.clone(), inode.links - 1));
        }
        let path = &item.path;
        let names = self.tree.xattr_names(node).map_err(failed("its extended attributes cannot be read", path))?;
        for name in names.into_iter().filter(|name| is_kept(name)) {
            let value = self.tree.xattr(node, &name).map_err(failed("an extended attribute cannot be read", path))?;
            item.xattrs.push((name, value));
        }
        match inode.kind() {
            libc::S_IFLNK => item.target = self.tree.read_link(node).map_err(failed("cannot be read", path))?,
            libc::S_IFREG => {
                item.data = self.data(node, inode.size).map_err(failed("its data cannot be found", path))?;
                self.file = node;
                self.file_path.clone_from(&item.path);
            }
            _ => {}
        }
        Ok(item)
    }

    fn data(&self, node: u64, size: u64) -> share::Result<Vec<Range<u64>>> {
        let mut ranges = Vec::new();
        let mut at = 0;
        while at < size {
            let begin = match self.tree.seek(node, at, Allocation::Data) {
                Err(failure) if failure.errno() == libc::ENXIO => break,
                begin => begin?,
            };
            let end = self.tree.seek(node, begin, Allocation::Hole)?.min(size);
            if ranges.len() >= RANGES_MAX {
                ranges.push(begin..size);
                break;
            }
            ranges.push(begin..end);
            at = end;
        }
        Ok(ranges)
    }
}

impl Source for ShareSource {
    fn next(&mut self) -> Step<Option<Item>> {
        if let Some((node, inode)) = self.root.take() {
            let item = self.item(node, &inode, Vec::new())?;
            let entries = self.entries(node, &[])?;
            self.frames.push(Frame { path: Vec::new(), entries });
            return Ok(Some(item));
        }
        loop {
            let Some(frame) = self.frames.last_mut() else { return Ok(None) };
            let Some((listed, inode)) = frame.entries.pop() else {
                self.frames.pop();
                continue;
            };
            let path = match frame.path.as_slice() {
                [] => listed.name,
                directory => [directory, b"/", &listed.name].concat(),
            };
            let item = self.item(listed.node, &inode, path)?;
            if inode.is_directory() {
                let entries = self.entries(listed.node, &item.path)?;
                self.frames.push(Frame { path: item.path.clone(), entries });
            }
            return Ok(Some(item));
        }
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Step {
        match self.tree.read(self.file, offset, out) {
            Ok(read) if read == out.len() => Ok(()),
            Ok(_) => Err(Stop::Skip(format!("{}: is shorter than its size says", shown(&self.file_path)))),
            // A file with damaged data is one file of many.
            Err(failure) => Err(Stop::Skip(format!(
                "{}: cannot be read at byte {offset}: {}; zeroes in the copy",
                shown(&self.file_path),
                std::io::Error::from_raw_os_error(failure.errno())
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_the_kernels() {
        assert_eq!(device(0x0103), (1, 3));
        assert_eq!(device(0x0080_0812), (8, 0x812));
        let (major, minor) = (0xabc, 0x12345);
        assert_eq!(device(minor & 0xff | major << 8 | (minor & !0xff) << 12), (major, minor));
    }
}
