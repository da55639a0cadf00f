//! A share, or a snapshot of one, as a source.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use share::{Failure, Inode, Listed, Tree};
use surface::{Allocation, Error, ErrorKind, Result};

use super::{Got, Item, RANGES_MAX, Source, Step, Stop, is_kept, shown, unread};

/// Most bytes of a file that are scanned when its holes are unknown.
const UNTOLD_BYTES_MAX: u64 = 16 << 30;

struct Frame {
    path: Vec<u8>,
    /// Remaining entries, the next one last.
    entries: Vec<Listed>,
}

/// A share as a source.
pub struct ShareSource {
    tree: Arc<Tree>,
    frames: Vec<Frame>,
    /// First names of files with several links, and the number of links still to come.
    linked: HashMap<u64, (Vec<u8>, u32)>,
    file: u64,
}

fn failed(what: &'static str, path: &[u8]) -> impl Fn(Failure) -> Stop {
    move |failure| unread(what, path, failure.errno())
}

/// Major and minor number of a device as an inode has it (`new_encode_dev` of the kernel).
const fn device(number: u32) -> (u32, u32) {
    ((number & 0xf_ff00) >> 8, number & 0xff | number >> 12 & 0xf_ff00)
}

impl ShareSource {
    /// The tree below `path`, which becomes the root; or a single file, under its own name.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the path does not exist.
    pub fn open(tree: Arc<Tree>, path: &[u8]) -> Result<Self> {
        let lost = |failure: Failure, path: &[u8]| {
            let kind = match failure.errno() {
                libc::ENOENT | libc::ENOTDIR => ErrorKind::NotFound,
                _ => ErrorKind::Io,
            };
            let source = io::Error::from_raw_os_error(failure.errno());
            Error::with_source(kind, format!("{} in the share", shown(path)), source)
        };
        let mut listed = Listed { cookie: 0, node: Tree::ROOT, kind: libc::S_IFDIR, name: Vec::new() };
        for name in path.split(|&byte| byte == b'/').filter(|name| !matches!(*name, b"" | b".")) {
            let (node, inode) = tree.lookup(listed.node, name).map_err(|failure| lost(failure, path))?;
            // A directory is the root of the copy, and has no name there.
            let name = if inode.is_directory() { Vec::new() } else { name.to_vec() };
            listed = Listed { node, kind: inode.kind(), name, ..listed };
        }
        let frames = vec![Frame { path: Vec::new(), entries: vec![listed] }];
        Ok(Self { tree, frames, linked: HashMap::new(), file: 0 })
    }

    /// Goes into a directory. `lines`: about names that cannot be read.
    fn enter(&mut self, node: u64, path: &[u8], lines: &mut Vec<String>) {
        let (mut entries, lost) = self.tree.names(node);
        if let Some(failure) = lost {
            let why = io::Error::from_raw_os_error(failure.errno());
            let count = entries.len();
            lines.push(format!("{}: {count} names could be read, others could not: {why}", shown(path)));
        }
        entries.sort_unstable_by(|a, b| b.name.cmp(&a.name));
        self.frames.push(Frame { path: path.to_vec(), entries });
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
        let line = |what: &str, failure: Failure| {
            format!("{}: {what} cannot be read: {}", shown(path), io::Error::from_raw_os_error(failure.errno()))
        };
        let names = self.tree.xattr_names(node).unwrap_or_else(|failure| {
            item.unread.push(line("its extended attributes", failure));
            Vec::new()
        });
        for name in names.into_iter().filter(|name| is_kept(name)) {
            match self.tree.xattr(node, &name) {
                Ok(value) => item.xattrs.push((name, value)),
                Err(failure) => {
                    item.unread.push(line(&format!("its attribute {}", String::from_utf8_lossy(&name)), failure));
                }
            }
        }
        match inode.kind() {
            libc::S_IFLNK => item.target = self.tree.read_link(node).map_err(failed("cannot be read", path))?,
            libc::S_IFREG => {
                item.data = self.data(node, inode.size);
                self.file = node;
            }
            _ => {}
        }
        Ok(item)
    }

    /// Data ranges of a file. If they are unknown, the whole file is read, which also finds damage.
    fn data(&self, node: u64, size: u64) -> Vec<Range<u64>> {
        let mut ranges = Vec::new();
        let mut at = 0;
        while at < size {
            let begin = match self.tree.seek(node, at, Allocation::Data) {
                Err(failure) if failure.errno() == libc::ENXIO => break,
                begin => begin.unwrap_or(at),
            };
            let hole = self.tree.seek(node, begin, Allocation::Hole).ok().filter(|&hole| hole > begin);
            let end = hole.unwrap_or(begin.saturating_add(UNTOLD_BYTES_MAX)).min(size);
            if ranges.len() >= RANGES_MAX {
                ranges.push(begin..size);
                break;
            }
            ranges.push(begin..end);
            at = end;
        }
        ranges
    }
}

impl Source for ShareSource {
    fn next(&mut self) -> Step<Option<Item>> {
        loop {
            let Some(frame) = self.frames.last_mut() else { return Ok(None) };
            let Some(listed) = frame.entries.pop() else {
                self.frames.pop();
                continue;
            };
            let path = match frame.path.as_slice() {
                [] => listed.name,
                directory => [directory, b"/", &listed.name].concat(),
            };
            let inode = match self.tree.inode(listed.node) {
                Ok(inode) => inode,
                Err(failure) => {
                    let is_directory = listed.kind == libc::S_IFDIR;
                    let what = if is_directory { "its attributes cannot be read" } else { "cannot be read" };
                    let mut lines = Vec::new();
                    if is_directory {
                        // The names below recreate it.
                        self.enter(listed.node, &path, &mut lines);
                    }
                    return Err(match failed(what, &path)(failure) {
                        Stop::Skip(line) => Stop::Skip([vec![line], lines].concat().join("; ")),
                        fatal @ Stop::Fatal(_) => fatal,
                    });
                }
            };
            let mut item = self.item(listed.node, &inode, path)?;
            if inode.is_directory() {
                let path = item.path.clone();
                self.enter(listed.node, &path, &mut item.unread);
            }
            return Ok(Some(item));
        }
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Step<Got> {
        Ok(match self.tree.read(self.file, offset, out) {
            Ok(read) if read == out.len() => Got::All,
            Ok(_) => Got::End("it is shorter than its recorded size".to_owned()),
            // A file with damaged data is one file of many.
            Err(failure) => Got::Damaged(io::Error::from_raw_os_error(failure.errno()).to_string()),
        })
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
