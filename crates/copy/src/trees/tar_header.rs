//! Headers of tar archives: the description of an item, with its preceding extended headers, in the
//! forms of GNU tar, bsdtar and POSIX (pax). Owns the position in the archive.

use std::io::{ErrorKind as Io, Read};
use std::ops::Range;

use share::Time;
use surface::{Error, ErrorKind};
use tar::{EntryType, GnuExtSparseHeader, Header};

use super::acl::{self, Names};
use super::pax::{self, Records};
use super::{ACL_ACCESS, ACL_DEFAULT, Item, RANGES_MAX, Step, Stop, is_acl, is_kept, shown};

/// Bytes of a block of an archive.
pub const BLOCK: u64 = 512;
/// Record of a fifo that is a socket.
pub const SOCKET: &str = "SHALE.socket";
/// Most bytes that an item has: no file is larger.
const BYTES_MAX: u64 = i64::MAX.cast_unsigned();
/// Largest major and minor number of a device, as Linux has them.
const MAJOR_MAX: i128 = 0xfff;
const MINOR_MAX: i128 = 0xf_ffff;
/// Most bytes of a long name (`L` and `K`): twice the kernel's limit for paths.
const LONG_NAME_BYTES_MAX: u64 = 8 << 10;

/// Reads blocks, and knows where it is.
pub struct Reader<R> {
    input: R,
    /// Bytes read so far.
    pub at: u64,
    name: String,
}

impl<R: Read> Reader<R> {
    /// From the beginning of an archive, which is called `name`.
    pub const fn new(input: R, name: String) -> Self {
        Self { input, at: 0, name }
    }

    /// Fills `out`; false at the end of the archive, if no bytes were left.
    fn fill(&mut self, out: &mut [u8]) -> Step<bool> {
        let mut done = 0;
        while done < out.len() {
            match self.input.read(&mut out[done..]) {
                Ok(0) if done == 0 => return Ok(false),
                Ok(0) => return Err(self.cut_off()),
                Ok(read) => {
                    done += read;
                    self.at += read as u64;
                }
                Err(error) if error.kind() == Io::Interrupted => {}
                Err(error) => {
                    let text = format!("{} cannot be read at byte {}", self.name, self.at);
                    return Err(Error::from_io(text, error).into());
                }
            }
        }
        Ok(true)
    }

    fn cut_off(&self) -> Stop {
        let text = format!("{} ends at byte {}, in the middle of an item: it is cut off", self.name, self.at);
        Error::new(ErrorKind::Corrupt, text).into()
    }

    /// Fills `out`.
    pub fn exact(&mut self, out: &mut [u8]) -> Step {
        if self.fill(out)? { Ok(()) } else { Err(self.cut_off()) }
    }

    /// Skips `bytes`.
    pub fn skip(&mut self, mut bytes: u64) -> Step {
        let mut piece = vec![0; usize::try_from(bytes).unwrap_or(usize::MAX).min(64 << 10)];
        while bytes > 0 {
            let length = usize::try_from(bytes).unwrap_or(usize::MAX).min(piece.len());
            self.exact(&mut piece[..length])?;
            bytes -= length as u64;
        }
        Ok(())
    }

    fn bytes(&mut self, length: u64, max: u64) -> Step<Vec<u8>> {
        if length > max {
            return Err(self.corrupt(&format!("has {length} bytes, more than {max}")));
        }
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        self.exact(&mut bytes)?;
        self.skip(padding(length))?;
        Ok(bytes)
    }

    fn corrupt(&self, what: &str) -> Stop {
        let text = format!("{}: the header before byte {} {what}", self.name, self.at);
        Error::new(ErrorKind::Corrupt, text).into()
    }
}

/// Bytes up to the next block.
pub const fn padding(length: u64) -> u64 {
    length.wrapping_neg() % BLOCK
}

/// An item of an archive, and the layout of its data.
pub struct Entry {
    /// The item.
    pub item: Item,
    /// Bytes of data that follow, to be read or skipped, without the padding.
    pub bytes: u64,
    /// Bytes of padding after the data.
    pub padding: u64,
}

/// Reads headers one after another.
#[derive(Default)]
pub struct Headers {
    /// Records that apply to all following items.
    global: Records,
    names: Names,
    /// Something was read.
    has_begun: bool,
}

/// Content of the headers that precede an item's own.
#[derive(Default)]
struct Before {
    records: Records,
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
}

impl Headers {
    /// For archives whose ACLs may name users of this machine.
    pub fn new() -> Self {
        Self { names: Names::of_machine(), ..Self::default() }
    }

    /// Returns the next item; none at the end. The data of the previous one must have been read or
    /// skipped.
    pub fn next(&mut self, reader: &mut Reader<impl Read>) -> Step<Option<Entry>> {
        let mut before = Before::default();
        loop {
            let mut header = Header::new_old();
            if !reader.fill(header.as_mut_bytes())? {
                if !self.has_begun {
                    return Err(
                        Error::new(ErrorKind::Invalid, format!("{} is empty, not a tar archive", reader.name)).into()
                    );
                }
                let text = format!("{} has no end mark: it may be cut off", reader.name);
                return Err(Error::new(ErrorKind::Corrupt, text).into());
            }
            if header.as_bytes().iter().all(|&byte| byte == 0) {
                return Ok(None);
            }
            self.verify(reader, &header)?;
            let size = header.entry_size().ok().filter(|&size| size <= BYTES_MAX);
            let size = size.ok_or_else(|| reader.corrupt("has no valid size"))?;
            match header.entry_type() {
                EntryType::XHeader => {
                    let bytes = reader.bytes(size, pax::BYTES_MAX)?;
                    before.records = Records::parse(&bytes).ok_or_else(|| reader.corrupt("has broken records"))?;
                }
                EntryType::XGlobalHeader => {
                    let bytes = reader.bytes(size, pax::BYTES_MAX)?;
                    self.global = Records::parse(&bytes).ok_or_else(|| reader.corrupt("has broken records"))?;
                }
                EntryType::GNULongName => before.name = Some(text(reader.bytes(size, LONG_NAME_BYTES_MAX)?)),
                EntryType::GNULongLink => before.link = Some(text(reader.bytes(size, LONG_NAME_BYTES_MAX)?)),
                // The label of a volume.
                other if other.as_byte() == b'V' => reader.skip(size + padding(size))?,
                _ => return self.entry(reader, &header, size, before).map(Some),
            }
        }
    }

    fn verify(&mut self, reader: &Reader<impl Read>, header: &Header) -> Step {
        let bytes = header.as_bytes();
        let sum: u32 = bytes
            .iter()
            .enumerate()
            .map(|(at, &byte)| u32::from(if (148..156).contains(&at) { b' ' } else { byte }))
            .sum();
        if header.cksum().is_ok_and(|expected| expected == sum) {
            self.has_begun = true;
            return Ok(());
        }
        if self.has_begun {
            return Err(reader.corrupt("does not match its checksum"));
        }
        let packed = [
            (&b"\x1f\x8b"[..], "gzip", "zcat"),
            (b"\x28\xb5\x2f\xfd", "zstd", "zstdcat"),
            (b"\xfd7zXZ", "xz", "xzcat"),
            (b"BZh", "bzip2", "bzcat"),
            (b"\x04\x22\x4d\x18", "lz4", "lz4cat"),
        ];
        let name = &reader.name;
        let text = match packed.iter().find(|(magic, ..)| bytes.starts_with(magic)) {
            Some((_, by, cat)) => format!("{name} is compressed with {by}: {cat} FILE | shale import POOL SHARE -"),
            None => format!("{name} is not a tar archive: its first {BLOCK} bytes are not a header"),
        };
        Err(Error::new(ErrorKind::Invalid, text).into())
    }

    fn entry(&self, reader: &mut Reader<impl Read>, header: &Header, size: u64, before: Before) -> Step<Entry> {
        let records = if before.records.is_empty() { &self.global } else { &before.records };
        let get = |key| before.records.get(key).or_else(|| self.global.get(key));
        let size = match before.records.get("size") {
            Some(_) => before.records.number("size").filter(|&size| size <= BYTES_MAX),
            None => Some(size),
        };
        let size = size.ok_or_else(|| reader.corrupt("has no valid size"))?;
        let raw = get("GNU.sparse.name").or_else(|| get("path")).map(<[u8]>::to_vec).or(before.name);
        let raw = raw.unwrap_or_else(|| header.path_bytes().into_owned());
        let path = clean(&raw);
        let kind = match header.entry_type() {
            // Archives from before 1988 mark directories by the slash.
            EntryType::Regular | EntryType::Continuous if raw.ends_with(b"/") && size == 0 => libc::S_IFDIR,
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse | EntryType::Link => libc::S_IFREG,
            EntryType::Symlink => libc::S_IFLNK,
            EntryType::Char => libc::S_IFCHR,
            EntryType::Block => libc::S_IFBLK,
            EntryType::Directory => libc::S_IFDIR,
            // A directory of an incremental archive, with a list of names as its data.
            other if other.as_byte() == b'D' => libc::S_IFDIR,
            EntryType::Fifo if before.records.get(SOCKET).is_some() => libc::S_IFSOCK,
            EntryType::Fifo => libc::S_IFIFO,
            other => {
                reader.skip(size + padding(size))?;
                let kind = char::from(other.as_byte());
                return Err(Stop::Skip(format!("{}: has type '{kind}', which cannot be imported", shown(&raw))));
            }
        };
        let has_content = kind == libc::S_IFREG && header.entry_type() != EntryType::Link;
        let number = |key, plain: std::io::Result<u64>| {
            before.records.number(key).or_else(|| plain.ok()).and_then(|number| u32::try_from(number).ok()).unwrap_or(0)
        };
        let modified = before.records.time("mtime").unwrap_or_else(|| {
            let seconds = numeric(&header.as_old().mtime).and_then(|seconds| i64::try_from(seconds).ok());
            Time { seconds: seconds.unwrap_or(0), nanoseconds: 0 }
        });
        let mut item = Item {
            mode: kind | header.mode().unwrap_or(0) & 0o7777,
            uid: number("uid", header.uid()),
            gid: number("gid", header.gid()),
            accessed: before.records.time("atime").unwrap_or(modified),
            modified,
            ..Item::default()
        };
        let link = get("linkpath").map(<[u8]>::to_vec).or(before.link);
        let link =
            link.unwrap_or_else(|| header.link_name_bytes().map(std::borrow::Cow::into_owned).unwrap_or_default());
        let mut entry_bytes = size;
        if has_content {
            (item.size, item.data, entry_bytes) = map(reader, header, &before.records, size)?;
        }
        let wrong = |why: &str| Stop::Skip(format!("{}: {why}", shown(&raw)));
        let acl = self.xattrs(records, &mut item);
        let rest = entry_bytes + padding(entry_bytes);
        let Some(path) = path else {
            reader.skip(rest)?;
            return Err(wrong("leads out of the tree; skipped"));
        };
        if path.is_empty() && kind != libc::S_IFDIR {
            reader.skip(rest)?;
            return Err(wrong("names the root of the tree, but is not a directory; skipped"));
        }
        item.path = path;
        if matches!(kind, libc::S_IFCHR | libc::S_IFBLK) {
            match device(header) {
                Ok(device) => item.device = device,
                Err(why) => {
                    reader.skip(rest)?;
                    return Err(wrong(&why));
                }
            }
        }
        match header.entry_type() {
            EntryType::Symlink => item.target = link,
            EntryType::Link => match clean(&link).filter(|link| !link.is_empty()) {
                Some(first) => item.link_to = Some(first),
                None => {
                    reader.skip(rest)?;
                    return Err(wrong("is a hard link to a target outside of the tree; skipped"));
                }
            },
            _ => {}
        }
        if let Err(why) = acl {
            reader.skip(rest)?;
            return Err(wrong(&format!("is skipped: {why}")));
        }
        Ok(Entry { item, bytes: entry_bytes, padding: padding(entry_bytes) })
    }

    /// Extended attributes and ACLs, as GNU tar and bsdtar write them.
    fn xattrs(&self, records: &Records, item: &mut Item) -> Result<(), String> {
        for (key, value) in records.iter() {
            let acl = match key {
                b"SCHILY.acl.access" => ACL_ACCESS,
                b"SCHILY.acl.default" => ACL_DEFAULT,
                _ => {
                    // GNU tar writes `=` and `%` of a name as URLs have them.
                    if let Some(name) = key.strip_prefix(b"SCHILY.xattr.").map(decoded)
                        && is_kept(&name)
                    {
                        item.xattrs.retain(|(other, _)| *other != name);
                        item.xattrs.push((name, value.to_vec()));
                    }
                    continue;
                }
            };
            if item.kind() == libc::S_IFLNK || item.xattrs.iter().any(|(key, _)| is_acl(key) && key == acl) {
                continue;
            }
            let text = String::from_utf8_lossy(value);
            let bytes = acl::from_text(&text, &self.names).map_err(|why| format!("its ACL: {why}"))?;
            item.xattrs.push((acl.to_vec(), bytes));
        }
        Ok(())
    }
}

/// Size of a file, its data ranges, and the bytes that follow.
fn map(
    reader: &mut Reader<impl Read>,
    header: &Header,
    records: &Records,
    size: u64,
) -> Step<(u64, Vec<Range<u64>>, u64)> {
    let mut numbers = Vec::new();
    let mut left = size;
    let real = if let Some(gnu) = header.as_gnu().filter(|_| header.entry_type() == EntryType::GNUSparse) {
        let mut push = |sparse: &[tar::GnuSparseHeader]| {
            for part in sparse.iter().filter(|part| !part.is_empty()) {
                numbers.extend([part.offset().unwrap_or(u64::MAX), part.length().unwrap_or(u64::MAX)]);
            }
        };
        push(&gnu.sparse);
        let mut is_extended = gnu.is_extended();
        let mut blocks = 0;
        while is_extended {
            let mut extension = GnuExtSparseHeader::new();
            reader.exact(extension.as_mut_bytes())?;
            push(extension.sparse());
            is_extended = extension.is_extended();
            blocks += 1;
            if blocks > RANGES_MAX / extension.sparse().len() {
                return Err(reader.corrupt("has too long a list of holes"));
            }
        }
        gnu.real_size().map_err(|_| reader.corrupt("has no valid size"))?
    } else if records.get("GNU.sparse.major") == Some(b"1") {
        let (list, taken) = map_before_data(reader, size)?;
        numbers = list;
        left = size - taken;
        records.number("GNU.sparse.realsize").ok_or_else(|| reader.corrupt("lacks the size of the file"))?
    } else if let Some(list) = records.get("GNU.sparse.map") {
        let list = std::str::from_utf8(list).unwrap_or("");
        numbers = list.split(',').map(|number| number.parse().unwrap_or(u64::MAX)).collect();
        records.number("GNU.sparse.size").ok_or_else(|| reader.corrupt("lacks the size of the file"))?
    } else if let Some(real) = records.number("GNU.sparse.size") {
        let is_part = |key: &[u8]| key == b"GNU.sparse.offset" || key == b"GNU.sparse.numbytes";
        let parts = records.iter().filter(|(key, _)| is_part(key)).map(|(_, value)| value);
        numbers =
            parts.map(|value| std::str::from_utf8(value).ok()?.parse().ok()).map(|n| n.unwrap_or(u64::MAX)).collect();
        real
    } else {
        #[allow(clippy::single_range_in_vec_init, reason = "the one range of data that a file has")]
        let all = if size > 0 { vec![0..size] } else { Vec::new() };
        return Ok((size, all, size));
    };
    let mut ranges: Vec<Range<u64>> = Vec::with_capacity(numbers.len() / 2);
    let mut sum = 0_u64;
    for pair in numbers.chunks(2) {
        let (begin, length) = (pair[0], pair.get(1).copied().unwrap_or(u64::MAX));
        let end = begin.checked_add(length).filter(|&end| end <= real);
        let end = end.filter(|_| ranges.last().is_none_or(|last| last.end <= begin));
        let Some(end) = end else { return Err(reader.corrupt("has an invalid list of holes")) };
        if length > 0 {
            ranges.push(begin..end);
            sum += length;
        }
    }
    if sum != left {
        return Err(reader.corrupt(&format!("lists {sum} bytes of data, but has {left}")));
    }
    Ok((real, ranges, left))
}

/// The list of data of GNU's sparse format 1.0: decimal numbers in lines, in whole blocks.
fn map_before_data(reader: &mut Reader<impl Read>, size: u64) -> Step<(Vec<u64>, u64)> {
    let mut numbers = Vec::new();
    let mut wanted = None;
    let mut digits = String::new();
    let mut taken = 0;
    while wanted.is_none_or(|wanted| numbers.len() < wanted) {
        if taken + BLOCK > size {
            return Err(reader.corrupt("has an unterminated list of holes"));
        }
        let mut block = [0; BLOCK as usize];
        reader.exact(&mut block)?;
        taken += BLOCK;
        for byte in block {
            match byte {
                b'0'..=b'9' if digits.len() < 20 => digits.push(char::from(byte)),
                b'\n' => {
                    let number: u64 = digits.parse().map_err(|_| reader.corrupt("has an invalid list of holes"))?;
                    digits.clear();
                    match wanted {
                        None => {
                            let count = usize::try_from(number).ok().filter(|&count| count <= RANGES_MAX);
                            wanted = Some(2 * count.ok_or_else(|| reader.corrupt("has too long a list of holes"))?);
                        }
                        Some(_) => numbers.push(number),
                    }
                    if wanted.is_some_and(|wanted| numbers.len() >= wanted) {
                        break;
                    }
                }
                _ => return Err(reader.corrupt("has an invalid list of holes")),
            }
        }
    }
    Ok((numbers, taken))
}

/// A number in a field of a header: octal digits, or, where the first bit is set, a binary number
/// that may be negative.
fn numeric(field: &[u8]) -> Option<i128> {
    let (&first, rest) = field.split_first()?;
    if first & 0x80 != 0 {
        // The bit after the first is the sign.
        let begin = i128::from((first << 1).cast_signed() >> 1);
        return Some(rest.iter().fold(begin, |number, &byte| number << 8 | i128::from(byte)));
    }
    let digits = std::str::from_utf8(field).ok()?.trim_matches(['\0', ' ']);
    i128::from_str_radix(digits, 8).ok()
}

/// The numbers of a device node.
fn device(header: &Header) -> Result<(u32, u32), String> {
    let Some(ustar) = header.as_ustar() else {
        // GNU's header has the same fields in this place.
        let Some(gnu) = header.as_gnu() else { return Ok((0, 0)) };
        return device_of(&gnu.dev_major, &gnu.dev_minor);
    };
    device_of(&ustar.dev_major, &ustar.dev_minor)
}

fn device_of(major: &[u8], minor: &[u8]) -> Result<(u32, u32), String> {
    // An empty field is 0.
    let read = |field: &[u8]| {
        let is_empty = field.iter().all(|byte| matches!(byte, 0 | b' '));
        if is_empty { Some(0) } else { numeric(field) }
    };
    let (major, minor) = (read(major), read(minor));
    let fits = |number: Option<i128>, max| number.filter(|number| (0..=max).contains(number));
    match (fits(major, MAJOR_MAX), fits(minor, MINOR_MAX)) {
        (Some(major), Some(minor)) => Ok((u32::try_from(major).unwrap_or(0), u32::try_from(minor).unwrap_or(0))),
        _ => {
            let text = |number: Option<i128>| number.map_or_else(|| "?".to_owned(), |number| number.to_string());
            Err(format!("is skipped: invalid device numbers {}:{}", text(major), text(minor)))
        }
    }
}

/// A name up to its end mark.
fn text(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    bytes.truncate(end);
    bytes
}

/// Normalises a path relative to the root of the tree; none if it leads out of the tree.
fn clean(path: &[u8]) -> Option<Vec<u8>> {
    let names: Vec<&[u8]> = path.split(|&byte| byte == b'/').filter(|name| !matches!(*name, b"" | b".")).collect();
    let is_inside = !names.contains(&&b".."[..]) && !path.contains(&0);
    is_inside.then(|| names.join(&b'/'))
}

/// A name of an extended attribute without its escapes.
fn decoded(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&byte, behind)) = rest.split_first() {
        let escaped = match rest.get(..3) {
            Some(b"%3D" | b"%3d") => Some(b'='),
            Some(b"%25") => Some(b'%'),
            _ => None,
        };
        out.push(escaped.unwrap_or(byte));
        rest = if escaped.is_some() { &rest[3..] } else { behind };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(first: u8, rest: &[u8], length: usize) -> Vec<u8> {
        let mut field = vec![first; length - rest.len()];
        if first != 0xff {
            field[1..].fill(0);
        }
        field.extend(rest);
        field
    }

    #[test]
    fn numbers_are_octal_or_binary_and_may_be_negative() {
        assert_eq!(numeric(b"00000000755\0"), Some(0o755));
        assert_eq!(numeric(b"  755 \0"), Some(0o755));
        assert_eq!(numeric(b"\0\0\0"), None);
        assert_eq!(numeric(b"00000008\0"), None);
        assert_eq!(numeric(&field(0x80, &259_u32.to_be_bytes(), 8)), Some(259));
        assert_eq!(numeric(&field(0xff, &(-315_521_816_i64).to_be_bytes(), 12)), Some(-315_521_816));
        assert_eq!(numeric(&[0xff; 12]), Some(-1));
    }

    #[test]
    fn devices_that_cannot_be_are_refused() {
        assert_eq!(device_of(&field(0x80, &[1, 3], 8), b"0000454\0"), Ok((259, 300)));
        assert_eq!(device_of(&[0; 8], &[0; 8]), Ok((0, 0)));
        for (major, minor) in
            [(&b"7777777\0"[..], &b"0000000\0"[..]), (b"0000001\0", &[0xff; 8]), (b"00x0001\0", b"0000001\0")]
        {
            assert!(device_of(major, minor).unwrap_err().contains("invalid device numbers"), "{major:?}");
        }
    }

    #[test]
    fn padding_ends_a_block_whatever_the_length() {
        for (length, expected) in [(0, 0), (1, 511), (511, 1), (512, 0), (u64::MAX, 1), (u64::MAX - 511, 0)] {
            assert_eq!(padding(length), expected, "{length}");
        }
    }
}
