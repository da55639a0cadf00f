//! A tar archive as a sink: POSIX format (pax), with the records that GNU tar and bsdtar use for
//! holes, extended attributes and ACLs.

use std::io::Write;

use bytes::Bytes;
use surface::Error;
use tar::{EntryType, Header};

use super::pax::{self, Records};
use super::tar_header::{BLOCK, SOCKET, padding};
use super::{ACL_ACCESS, ACL_DEFAULT, Added, Item, Sink, Step, Stop, acl, is_acl, shown, skip_if_any};
use operations::kind_of;

/// Largest size and number that the fields of a header have room for: 11 and 7 octal digits.
const SIZE_MAX: u64 = (1 << 33) - 1;
const ID_MAX: u32 = (1 << 21) - 1;
/// Longest path that fits into the header itself.
const NAME_BYTES_MAX: usize = 100;
/// An archive is written in records of 20 blocks, as tar does.
const RECORD_BYTES: u64 = 20 * BLOCK;

/// A tar archive as a sink.
pub struct TarSink<W> {
    output: W,
    written: u64,
    /// Padding after the data of the most recent item.
    padding: u64,
    /// Sockets are written as fifos with a record that [`TarSource`](super::TarSource) knows.
    has_sockets: bool,
}

impl<W: Write> TarSink<W> {
    /// An archive that begins where `output` is.
    pub const fn new(output: W) -> Self {
        Self { output, written: 0, padding: 0, has_sockets: false }
    }

    /// With sockets, which no other program finds in an archive.
    #[must_use]
    pub fn with_sockets(mut self) -> Self {
        self.has_sockets = true;
        self
    }

    fn put(&mut self, bytes: &[u8]) -> Step {
        self.written += bytes.len() as u64;
        self.output.write_all(bytes).map_err(|error| {
            let kind = kind_of(&error);
            Error::with_source(kind, "the archive cannot be written", error).into()
        })
    }

    fn put_padding(&mut self, bytes: u64) -> Step {
        const ZEROES: [u8; RECORD_BYTES as usize] = [0; RECORD_BYTES as usize];
        self.put(&ZEROES[..usize::try_from(bytes).unwrap_or(0).min(ZEROES.len())])
    }

    fn put_records(&mut self, records: &Records) -> Step {
        let bytes = records.encode();
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::XHeader);
        set_name(&mut header, b"././@PaxHeader");
        header.set_mode(0o644);
        header.set_size(bytes.len() as u64);
        header.set_cksum();
        self.put(header.as_bytes())?;
        self.put(&bytes)?;
        self.put_padding(padding(bytes.len() as u64))
    }
}

/// Sets the name in a header, truncated to fit.
fn set_name(header: &mut Header, name: &[u8]) {
    let field = &mut header.as_old_mut().name;
    let length = name.len().min(field.len());
    field.fill(0);
    field[..length].copy_from_slice(&name[..length]);
}

fn set_link(header: &mut Header, link: &[u8]) {
    let field = &mut header.as_old_mut().linkname;
    let length = link.len().min(field.len());
    field[..length].copy_from_slice(&link[..length]);
}

/// The list of data of GNU's sparse format 1.0, in whole blocks.
fn map(item: &Item) -> Vec<u8> {
    let mut ranges: Vec<_> = item.data.iter().map(|range| (range.start, range.end - range.start)).collect();
    if item.data.last().is_none_or(|last| last.end < item.size) {
        ranges.push((item.size, 0));
    }
    let mut map = format!("{}\n", ranges.len());
    for (offset, length) in ranges {
        map.push_str(&format!("{offset}\n{length}\n"));
    }
    let mut map = map.into_bytes();
    map.resize(map.len() + usize::try_from(padding(map.len() as u64)).unwrap_or(0), 0);
    map
}

fn is_plain(text: &[u8]) -> bool {
    text.len() <= NAME_BYTES_MAX && text.is_ascii()
}

impl<W: Write> Sink for TarSink<W> {
    fn add(&mut self, item: &Item) -> Step<Added> {
        let kind = match item.kind() {
            _ if item.link_to.is_some() => EntryType::Link,
            libc::S_IFREG => EntryType::Regular,
            libc::S_IFDIR => EntryType::Directory,
            libc::S_IFLNK => EntryType::Symlink,
            libc::S_IFCHR => EntryType::Char,
            libc::S_IFBLK => EntryType::Block,
            libc::S_IFIFO => EntryType::Fifo,
            libc::S_IFSOCK if self.has_sockets => EntryType::Fifo,
            _ => {
                let text = format!("{}: skipped: tar archives cannot contain sockets", shown(&item.path));
                return Err(Stop::Skip(text));
            }
        };
        let mut path = if item.path.is_empty() { b".".to_vec() } else { item.path.clone() };
        if kind == EntryType::Directory {
            path.push(b'/');
        }
        let mut records = Records::default();
        if kind == EntryType::Fifo && item.kind() == libc::S_IFSOCK {
            records.push(SOCKET, "");
        }
        let has_content = kind == EntryType::Regular;
        let data_bytes = item.data_bytes();
        let map = if has_content && data_bytes < item.size { map(item) } else { Vec::new() };
        let bytes = if has_content { data_bytes + map.len() as u64 } else { 0 };
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        if map.is_empty() {
            set_name(&mut header, &path);
            if !is_plain(&path) {
                records.push("path", &path);
            }
        } else {
            set_name(&mut header, b"GNUSparseFile.0/data");
            records.push("GNU.sparse.major", "1");
            records.push("GNU.sparse.minor", "0");
            records.push("GNU.sparse.name", &path);
            records.push("GNU.sparse.realsize", item.size.to_string());
        }
        let link = item.link_to.as_ref().unwrap_or(&item.target);
        if std::str::from_utf8(&path).is_err() || std::str::from_utf8(link).is_err() {
            // Otherwise bsdtar takes names for UTF-8.
            records.push("hdrcharset", "BINARY");
        }
        set_link(&mut header, link);
        if !is_plain(link) {
            records.push("linkpath", link);
        }
        header.set_mode(item.mode & 0o7777);
        for (key, id) in [("uid", item.uid), ("gid", item.gid)] {
            let plain = if id > ID_MAX { 0 } else { u64::from(id) };
            if key == "uid" {
                header.set_uid(plain)
            } else {
                header.set_gid(plain)
            }
            if id > ID_MAX {
                records.push(key, id.to_string());
            }
        }
        header.set_size(if bytes > SIZE_MAX { 0 } else { bytes });
        if bytes > SIZE_MAX {
            records.push("size", bytes.to_string());
        }
        let seconds = u64::try_from(item.modified.seconds).unwrap_or(0);
        header.set_mtime(if seconds > SIZE_MAX { 0 } else { seconds });
        records.push("mtime", pax::time_text(item.modified));
        records.push("atime", pax::time_text(item.accessed));
        if matches!(kind, EntryType::Char | EntryType::Block) {
            let set = header.set_device_major(item.device.0).and_then(|()| header.set_device_minor(item.device.1));
            set.map_err(|error| Error::from_io("a device number", error))?;
        }
        if item.link_to.is_none() {
            for (key, value) in &item.xattrs {
                let text_key = match key.as_slice() {
                    ACL_ACCESS => "SCHILY.acl.access",
                    ACL_DEFAULT => "SCHILY.acl.default",
                    _ => {
                        records.push([&b"SCHILY.xattr."[..], &encoded(key)].concat(), value);
                        continue;
                    }
                };
                if let Some(text) = acl::to_text(value) {
                    records.push(text_key, text);
                }
            }
        }
        header.set_cksum();
        self.put_records(&records)?;
        self.put(header.as_bytes())?;
        self.put(&map)?;
        self.padding = padding(bytes);
        Ok(Added::New)
    }

    fn write(&mut self, _: u64, data: Bytes) -> Step {
        self.put(&data)
    }

    fn end(&mut self, item: &Item) -> Step {
        let padding = std::mem::take(&mut self.padding);
        self.put_padding(padding)?;
        // After the content: a message from `add` skips the item.
        skip_if_any(&acls_left_out(item))
    }

    fn finish(&mut self) -> Step<Vec<String>> {
        self.put_padding(2 * BLOCK)?;
        self.put_padding(self.written.next_multiple_of(RECORD_BYTES) - self.written)?;
        self.output.flush().map_err(|error| Error::from_io("the archive cannot be written", error))?;
        Ok(Vec::new())
    }
}

/// Lines about the ACLs of an item that have no text.
fn acls_left_out(item: &Item) -> Vec<String> {
    let has_none = |(key, value): &&(Vec<u8>, Vec<u8>)| is_acl(key) && acl::to_text(value).is_none();
    let lost = item.xattrs.iter().filter(|_| item.link_to.is_none()).filter(has_none);
    let line = |key: &[u8]| {
        let what = if key == ACL_DEFAULT { "default ACL" } else { "ACL" };
        format!("{}: its {what} is skipped: it is damaged, or of an unknown kind", shown(&item.path))
    };
    lost.map(|(key, _)| line(key)).collect()
}

/// A name of an extended attribute as GNU tar writes it.
fn encoded(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    for &byte in name {
        match byte {
            b'=' => out.extend(b"%3D"),
            b'%' => out.extend(b"%25"),
            _ => out.push(byte),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::{Got, Source, Tally, copy};
    use super::*;
    use std::sync::atomic::AtomicBool;

    impl Source for std::vec::IntoIter<Item> {
        fn next(&mut self) -> Step<Option<Item>> {
            Ok(Iterator::next(self))
        }
        fn read(&mut self, _: u64, _: &mut [u8]) -> Step<Got> {
            Ok(Got::All)
        }
    }

    #[test]
    fn an_acl_without_text_is_told() {
        let acl = |entry: [u8; 8]| [&2_u32.to_le_bytes()[..], &entry].concat();
        let known = acl([0x20, 0, 4, 0, 0xff, 0xff, 0xff, 0xff]);
        let unknown = acl([0x40, 0, 4, 0, 0xff, 0xff, 0xff, 0xff]);
        let item = |path: &str, mode, xattrs: &[(&[u8], &Vec<u8>)]| Item {
            path: path.into(),
            mode,
            size: 3,
            data: std::iter::once(0..3).collect(),
            xattrs: xattrs.iter().map(|(key, value)| (key.to_vec(), (*value).clone())).collect(),
            ..Item::default()
        };
        let both: [(&[u8], _); 2] = [(ACL_ACCESS, &unknown), (ACL_DEFAULT, &unknown)];
        let items = vec![
            item("good", libc::S_IFREG, &[(ACL_ACCESS, &known)]),
            item("d", libc::S_IFDIR, &both),
            item("file", libc::S_IFREG, &both[..1]),
            Item { link_to: Some(b"file".to_vec()), ..item("again", libc::S_IFREG, &both[..1]) },
            item("last", libc::S_IFREG, &[]),
        ];
        let (mut bytes, mut tally) = (Vec::new(), Tally::default());
        let mut sink = TarSink::new(&mut bytes);
        let done = copy(&mut items.into_iter(), &mut sink, &AtomicBool::new(false), &mut tally, &mut |_, _| {});
        assert!(done.is_ok());
        let why = "is skipped: it is damaged, or of an unknown kind";
        let expected = [format!("d: its ACL {why}; d: its default ACL {why}"), format!("file: its ACL {why}")];
        assert_eq!((tally.problems, &tally.lines[..]), (2, &expected[..]));
        // Everything else about these is in the archive.
        assert_eq!((tally.files, tally.directories, tally.links), (3, 1, 1));
        assert_eq!(bytes.windows(11).filter(|window| window == b"SCHILY.acl.").count(), 1);
    }
}
