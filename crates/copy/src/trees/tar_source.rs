//! A tar archive as a source: read once, from the beginning to the end.

use std::io::Read;

use super::tar_header::{Headers, Reader};
use super::{Got, Item, Source, Step, is_of_snapshots, left_to_snapshots};

/// A tar archive as a source.
pub struct TarSource<R> {
    reader: Reader<R>,
    headers: Headers,
    /// For the most recent item: unread data, and the padding after it.
    left: (u64, u64),
    /// The copy is a share.
    is_for_share: bool,
    /// Whether an item with the name of a share's snapshots was reported.
    has_reported_snapshots: bool,
}

impl<R: Read> TarSource<R> {
    /// From the beginning of an archive, which is called `name`.
    pub fn new(input: R, name: &str) -> Self {
        Self {
            reader: Reader::new(input, name.to_owned()),
            headers: Headers::new(),
            left: (0, 0),
            is_for_share: false,
            has_reported_snapshots: false,
        }
    }

    /// Without the name that the root of a share has for its snapshots.
    #[must_use]
    pub fn for_share(mut self) -> Self {
        self.is_for_share = true;
        self
    }
}

impl<R: Read> Source for TarSource<R> {
    fn next(&mut self) -> Step<Option<Item>> {
        loop {
            let (data, padding) = std::mem::take(&mut self.left);
            self.reader.skip(data + padding)?;
            let Some(entry) = self.headers.next(&mut self.reader)? else { return Ok(None) };
            self.left = (entry.bytes, entry.padding);
            if !(self.is_for_share && is_of_snapshots(&entry.item.path)) {
                return Ok(Some(entry.item));
            }
            // Once, whether a directory comes first or not.
            if !std::mem::replace(&mut self.has_reported_snapshots, true) {
                return Err(left_to_snapshots());
            }
        }
    }

    fn read(&mut self, _: u64, out: &mut [u8]) -> Step<Got> {
        if out.len() as u64 > self.left.0 {
            return Ok(Got::End("the archive ends within it".to_owned()));
        }
        self.reader.exact(out)?;
        self.left.0 -= out.len() as u64;
        Ok(Got::All)
    }

    fn position(&self) -> Option<u64> {
        Some(self.reader.at)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Added, Sink, Tally, TarSink, copy};
    use super::*;
    use bytes::Bytes;
    use share::Time;
    use std::sync::atomic::AtomicBool;

    /// Records the items.
    #[derive(Default)]
    struct Recorder {
        items: Vec<(Item, Vec<(u64, Bytes)>)>,
    }

    impl Sink for Recorder {
        fn add(&mut self, item: &Item) -> Step<Added> {
            self.items.push((item.clone(), Vec::new()));
            Ok(Added::New)
        }
        fn write(&mut self, offset: u64, data: Bytes) -> Step {
            self.items.last_mut().unwrap().1.push((offset, data));
            Ok(())
        }
        fn end(&mut self, _: &Item) -> Step {
            Ok(())
        }
        fn finish(&mut self) -> Step<Vec<String>> {
            Ok(Vec::new())
        }
    }

    fn archive(items: &[(Item, Vec<Bytes>)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut sink = TarSink::new(&mut bytes).with_sockets();
        for (item, pieces) in items {
            assert!(matches!(sink.add(item), Ok(Added::New)));
            for (range, piece) in item.data.iter().zip(pieces) {
                assert!(sink.write(range.start, piece.clone()).is_ok());
            }
            assert!(sink.end(item).is_ok());
        }
        assert!(sink.finish().is_ok());
        bytes
    }

    fn read(bytes: &[u8]) -> (Recorder, Tally, Option<String>) {
        let (mut kept, mut tally) = (Recorder::default(), Tally::default());
        let mut source = TarSource::new(bytes, "test.tar");
        let done = copy(&mut source, &mut kept, &AtomicBool::new(false), &mut tally, &mut |_, _| {});
        (kept, tally, done.err().map(|failure| failure.to_string()))
    }

    #[test]
    fn an_archive_says_all_that_an_item_has() {
        let sparse = Item {
            path: [&b"d/"[..], &[0xff; 200], b"/sparse \n"].concat(),
            mode: libc::S_IFREG | 0o4755,
            uid: 5_000_000,
            gid: 7,
            size: 1 << 40,
            accessed: Time { seconds: -3, nanoseconds: 5 },
            modified: Time { seconds: 1 << 35, nanoseconds: 999_999_999 },
            xattrs: vec![(b"user.a=%b".to_vec(), b"\0\n=x".to_vec()), (b"trusted.t".to_vec(), vec![])],
            data: vec![4096..8192, 1 << 39..(1 << 39) + 100],
            ..Item::default()
        };
        let item = |path: &str, mode| Item { path: path.into(), mode, ..Item::default() };
        let items = [
            (item("", libc::S_IFDIR | 0o1777), vec![]),
            (item("d", libc::S_IFDIR | 0o2750), vec![]),
            (sparse.clone(), vec![Bytes::from(vec![1; 4096]), Bytes::from(vec![2; 100])]),
            (Item { link_to: Some(sparse.path.clone()), ..item("d/again", sparse.mode) }, vec![]),
            (Item { target: vec![b't'; 300], ..item("link", libc::S_IFLNK | 0o777) }, vec![]),
            (Item { device: (8, 300), ..item("null", libc::S_IFCHR | 0o666) }, vec![]),
            (item("fifo", libc::S_IFIFO | 0o600), vec![]),
            (item("socket", libc::S_IFSOCK | 0o640), vec![]),
            (item("empty", libc::S_IFREG), vec![]),
        ];
        let bytes = archive(&items);
        assert_eq!(bytes.len() % 512, 0);
        let (kept, tally, failure) = read(&bytes);
        assert_eq!((failure, tally.problems), (None, 0), "{:?}", tally.lines);
        assert_eq!(kept.items.len(), items.len());
        for ((found, data), (expected, pieces)) in kept.items.iter().zip(&items) {
            assert_eq!(found.path, expected.path);
            assert_eq!(found.link_to, expected.link_to);
            if expected.link_to.is_none() {
                assert_eq!(found, expected);
            }
            let data: Vec<_> = data.iter().map(|(_, bytes)| bytes.clone()).collect();
            assert_eq!(&data, pieces);
        }
        // Truncated anywhere, it is never taken for complete.
        let end = bytes.iter().rposition(|&byte| byte != 0).unwrap();
        for cut in (1..end).step_by(97) {
            assert!(read(&bytes[..cut]).2.is_some(), "cut at {cut}");
        }
    }

    #[test]
    fn what_is_no_archive_is_refused_with_advice() {
        let said = |bytes: &[u8]| read(bytes).2.unwrap();
        assert!(said(b"").contains("is empty"));
        assert!(said(&[&b"\x1f\x8b"[..], &[7; 1000]].concat()).contains("zcat"));
        assert!(said(&[7; 1000]).contains("not a tar archive"));
        let mut bytes = archive(&[(Item { path: b"a".into(), mode: libc::S_IFREG, ..Item::default() }, vec![])]);
        // After the extended header, which has two blocks.
        let last = 2 * 512 + 120;
        bytes[last] ^= 1;
        assert!(said(&bytes).contains("checksum"), "{}", said(&bytes));
    }

    /// An item as GNU tar writes it.
    fn gnu(path: &[u8], kind: tar::EntryType, data: &[u8], change: impl FnOnce(&mut tar::Header)) -> Vec<u8> {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..path.len()].copy_from_slice(path);
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_size(data.len() as u64);
        change(&mut header);
        header.set_cksum();
        let mut bytes = [header.as_bytes(), data].concat();
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes
    }

    #[test]
    fn fields_mean_what_gnu_tar_means() {
        let file = |path: &[u8], data: &[u8]| gnu(path, tar::EntryType::Regular, data, |_| {});
        let old = gnu(b"old", tar::EntryType::Regular, b"", |header| {
            header.as_old_mut().mtime = [0xff; 12];
            header.as_old_mut().mtime[4..].copy_from_slice(&(-315_521_816_i64).to_be_bytes());
        });
        let disk = |path: &[u8], major: [u8; 8]| {
            gnu(path, tar::EntryType::Block, b"", |header| {
                header.set_device_minor(7).unwrap();
                header.as_gnu_mut().unwrap().dev_major = major;
            })
        };
        let (disk, no_disk) =
            (disk(b"disk", [0x80, 0, 0, 0, 0, 0, 1, 3]), disk(b"no disk", [0x80, 0, 0, 0, 1, 0, 0, 0]));
        let end = vec![0; 1024];
        let archive = [old, disk, no_disk, file(b"./", b"hello"), file(b"after", b"x"), end.clone()].concat();
        let (kept, tally, failure) = read(&archive);
        assert_eq!((failure, tally.problems), (None, 2), "{:?}", tally.lines);
        let items: Vec<_> = kept.items.iter().map(|(item, _)| item).collect();
        assert_eq!(items.iter().map(|item| &item.path[..]).collect::<Vec<_>>(), [&b"old"[..], b"disk", b"after"]);
        assert_eq!((items[0].modified.seconds, items[1].device), (-315_521_816, (259, 7)));
        assert!(
            tally.lines[0].contains("16777216:7") && tally.lines[1].contains("is not a directory"),
            "{:?}",
            tally.lines
        );

        // A length that no file has: the next item cannot be found.
        for size in ["18446744073709551615", "9223372036854775808", "-1", "x"] {
            let mut records = super::super::pax::Records::default();
            records.push("size", size);
            for kind in [tar::EntryType::Regular, tar::EntryType::new(b'Z')] {
                let before = gnu(b"pax", tar::EntryType::XHeader, &records.encode(), |_| {});
                let bytes = [before, gnu(b"a", kind, b"data", |_| {}), file(b"after", b"x"), end.clone()].concat();
                let failure = read(&bytes).2.unwrap_or_default();
                assert!(failure.contains("no valid size"), "size={size}: {failure}");
            }
        }
    }

    #[test]
    fn the_name_of_the_snapshots_is_left_out_for_a_share() {
        let item = |path: &str, mode| Item { path: path.into(), mode: mode | 0o600, ..Item::default() };
        let bytes = archive(&[
            (item("before", libc::S_IFREG), vec![]),
            (
                Item { size: 3, data: std::iter::once(0..3).collect(), ..item(".shale/a", libc::S_IFREG) },
                vec![Bytes::from_static(b"abc")],
            ),
            (item(".shale/b", libc::S_IFREG), vec![]),
            (item("d/.shale", libc::S_IFREG), vec![]),
            (item(".shale2", libc::S_IFREG), vec![]),
        ]);
        let (mut kept, mut tally) = (Recorder::default(), Tally::default());
        let mut source = TarSource::new(&bytes[..], "test.tar").for_share();
        copy(&mut source, &mut kept, &AtomicBool::new(false), &mut tally, &mut |_, _| {}).unwrap();
        let paths: Vec<_> = kept.items.iter().map(|(item, _)| &item.path[..]).collect();
        assert_eq!(paths, [&b"before"[..], b"d/.shale", b".shale2"]);
        assert_eq!(tally.problems, 1, "{:?}", tally.lines);
        assert!(tally.lines[0].starts_with(".shale: skipped"), "{:?}", tally.lines);
        assert_eq!(read(&bytes).0.items.len(), 5, "not for a share");
    }

    #[test]
    fn names_that_lead_out_of_the_tree_are_left_out() {
        let item = |path: &str| Item { path: path.into(), mode: libc::S_IFREG | 0o600, ..Item::default() };
        let out = Item { link_to: Some(b"../../etc/passwd".to_vec()), ..item("link") };
        let (kept, tally, failure) = read(&archive(&[
            (item("../up"), vec![]),
            (item("/a/./b"), vec![]),
            (item("a/../../c"), vec![]),
            (out, vec![]),
        ]));
        assert_eq!((failure, tally.problems), (None, 3), "{:?}", tally.lines);
        assert_eq!(kept.items.iter().map(|(item, _)| &item.path[..]).collect::<Vec<_>>(), [b"a/b"]);
    }
}
