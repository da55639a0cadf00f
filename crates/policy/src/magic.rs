//! Detects the type of a file from its first bytes or its name: one word, its usual extension. Owns
//! the signatures and the synonyms of extensions; [`crate::rules`] uses the type.

use crate::log_names::{type_of_ending, type_of_log};

/// Bytes at the start of a file that matter: the last signature ends here.
pub const HEAD_BYTES: usize = 512;

/// Bytes at an offset that identify a type. The first match wins.
const SIGNATURES: &[(usize, &[u8], &str)] = &[
    // Compressed streams and archives.
    (0, b"\x1f\x8b", "gz"),
    (0, b"BZh", "bz2"),
    (0, b"\xfd7zXZ\0", "xz"),
    (0, b"\x28\xb5\x2f\xfd", "zst"),
    (0, b"\x04\x22\x4d\x18", "lz4"),
    (0, b"LZIP", "lz"),
    (0, b"PK\x03\x04", "zip"),
    (0, b"PK\x05\x06", "zip"),
    (0, b"7z\xbc\xaf\x27\x1c", "7z"),
    (0, b"Rar!\x1a\x07", "rar"),
    (0, b"!<arch>\ndebian-binary", "deb"),
    (0, b"\xed\xab\xee\xdb", "rpm"),
    (0, b"hsqs", "squashfs"),
    (0, b"PACK\0\0\0", "pack"),
    // Images, sound, films.
    (0, b"\xff\xd8\xff", "jpg"),
    (0, b"\x89PNG\r\n\x1a\n", "png"),
    (0, b"GIF8", "gif"),
    (8, b"WEBP", "webp"),
    (4, b"ftypheic", "heic"),
    (4, b"ftypavif", "avif"),
    (4, b"ftyp", "mp4"),
    (0, b"\x1a\x45\xdf\xa3", "mkv"),
    (0, b"OggS", "ogg"),
    (0, b"fLaC", "flac"),
    (0, b"ID3", "mp3"),
    (0, b"\xff\xfb", "mp3"),
    (0, b"\xff\xf3", "mp3"),
    (8, b"AVI LIST", "avi"),
    (8, b"WAVEfmt ", "wav"),
    (0, b"II*\0", "tiff"),
    (0, b"MM\0*", "tiff"),
    // Documents.
    (0, b"%PDF-", "pdf"),
    (0, b"%!PS", "ps"),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "ole"),
    (0, b"wOF2", "woff2"),
    (0, b"wOFF", "woff"),
    // Databases and data.
    (0, b"SQLite format 3\0", "sqlite"),
    (0, b"CDF\x01", "nc"),
    (0, b"CDF\x02", "nc"),
    (0, b"CDF\x05", "nc"),
    (0, b"\x89HDF\r\n\x1a\n", "h5"),
    (0, b"PAR1", "parquet"),
    // FITS: cards of text, and then numbers.
    (0, b"SIMPLE  =", "fits"),
    (0, b"ORC", "orc"),
    // Programs.
    (0, b"\x7fELF", "elf"),
    (0, b"!<arch>\n", "a"),
    (0, b"BC\xc0\xde", "bc"),
    (0, b"\xca\xfe\xba\xbe", "class"),
    (0, b"\0asm", "wasm"),
    (0, b"MZ", "exe"),
    (0, b"\xde\x12\x04\x95", "mo"),
    // Disks.
    (0, b"QFI\xfb", "qcow2"),
    (0, b"KDMV", "vmdk"),
    (0, b"LUKS\xba\xbe", "luks"),
    // Containers of other files.
    (257, b"ustar", "tar"),
    // Text with a signature.
    (0, b"<?xml", "xml"),
    (0, b"<!DOCTYPE html", "html"),
    (0, b"<!doctype html", "html"),
    (0, b"<html", "html"),
    (0, b"From ", "mbox"),
];

/// Other extensions of the same thing; [`crate::log_names`] has those of logs.
const SYNONYMS: &[(&str, &str)] = &[
    ("jpeg", "jpg"),
    ("jpe", "jpg"),
    ("tgz", "gz"),
    ("tbz2", "bz2"),
    ("txz", "xz"),
    ("zstd", "zst"),
    ("m4a", "mp4"),
    ("m4v", "mp4"),
    ("mov", "mp4"),
    ("webm", "mkv"),
    ("oga", "ogg"),
    ("ogv", "ogg"),
    ("opus", "ogg"),
    ("tif", "tiff"),
    ("htm", "html"),
    ("xhtml", "html"),
    ("db", "sqlite"),
    ("sqlite3", "sqlite"),
    ("cdf", "nc"),
    ("nc4", "nc"),
    ("hdf5", "h5"),
    ("hdf", "h5"),
    ("fit", "fits"),
    ("fts", "fits"),
    ("o", "elf"),
    ("so", "elf"),
    ("ko", "elf"),
    ("dll", "exe"),
    ("sys", "exe"),
    ("yml", "yaml"),
    ("jsonl", "json"),
    ("ndjson", "json"),
    ("cc", "c"),
    ("cpp", "c"),
    ("h", "c"),
    ("hpp", "c"),
    ("text", "txt"),
    ("md", "txt"),
    ("rst", "txt"),
];

/// Longest extension that is one.
const EXTENSION_BYTES_MAX: usize = 16;
/// Share of a text's bytes that may be neither printable nor white space, as 1 in this many: a
/// stray form feed.
const TEXT_STRAYS: usize = 128;

/// Returns the type identified by the first bytes of a file (at most [`HEAD_BYTES`] are examined);
/// `txt` for text without a signature; `None` when unknown.
pub fn type_of_content(head: &[u8]) -> Option<&'static str> {
    let head = &head[..head.len().min(HEAD_BYTES)];
    let fits = |(at, bytes, _): &&(usize, &[u8], &str)| head.get(*at..at + bytes.len()) == Some(*bytes);
    match SIGNATURES.iter().find(fits) {
        Some((_, _, name)) => Some(name),
        None => is_text(head).then_some("txt"),
    }
}

/// Returns the type identified by a file's name: its last extension in lower case, synonyms
/// replaced. The version of a shared library (`libz.so.1.2.13`) is not an extension. Logs of
/// databases are known by their whole names.
pub fn type_of_name(name: &str) -> Option<String> {
    let base = name.rsplit('/').next().unwrap_or(name);
    if let Some(log) = type_of_log(base) {
        return Some(log.to_owned());
    }
    let is_version = |rest: &str| rest.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let base = match base.rsplit_once(".so.") {
        Some((stem, version)) if is_version(version) => &base[..stem.len() + ".so".len()],
        _ => base,
    };
    let (stem, extension) = base.rsplit_once('.')?;
    if stem.is_empty() {
        return None;
    }
    canonical(extension)
}

/// The word for an extension, synonyms replaced; `None` if it cannot be one: 1 to 16 letters,
/// digits, `_`, `+` or `-`.
pub fn canonical(extension: &str) -> Option<String> {
    let right = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'+' | b'-');
    if extension.is_empty() || extension.len() > EXTENSION_BYTES_MAX || !extension.bytes().all(right) {
        return None;
    }
    let small = extension.to_ascii_lowercase();
    let synonym = SYNONYMS.iter().find(|(other, _)| *other == small).map(|(_, word)| *word);
    Some(synonym.or_else(|| type_of_ending(&small)).map_or(small, str::to_owned))
}

/// Text in ASCII, UTF-8 or Latin-1: no zeroes, and almost no other control characters.
fn is_text(head: &[u8]) -> bool {
    let strays = head.iter().filter(|byte| matches!(byte, 0x00..=0x08 | 0x0e..=0x1a | 0x1c..=0x1f | 0x7f)).count();
    let high = head.iter().filter(|byte| **byte >= 0x80).count();
    // The head may end within a character.
    let is_utf8 = str::from_utf8(head).map_or_else(|error| error.error_len().is_none(), |_| true);
    !head.is_empty() && !head.contains(&0) && strays <= head.len() / TEXT_STRAYS && (is_utf8 || high <= head.len() / 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_by_table() {
        let tar = {
            let mut head = [b'a'; 512];
            head[100..257].fill(0);
            head[257..262].copy_from_slice(b"ustar");
            head
        };
        for (head, name) in [
            (&b"\x1f\x8b\x08\0\0"[..], Some("gz")),
            (b"\xff\xd8\xff\xe0\0\x10JFIF", Some("jpg")),
            (b"RIFF\x10\x20\x30\x40WEBPVP8 ", Some("webp")),
            (b"RIFF\x10\x20\x30\x40AVI LIST", Some("avi")),
            (b"RIFF\x10\x20\x30\x40WAVEfmt \x10", Some("wav")),
            (b"\0\0\0\x18ftypmp42", Some("mp4")),
            (b"\0\0\0\x18ftypheic", Some("heic")),
            (b"SQLite format 3\0\x10\0", Some("sqlite")),
            (b"CDF\x01\0\0\0\0", Some("nc")),
            (b"SIMPLE  =                    T / conforms to FITS", Some("fits")),
            (b"SIMPLE = text of another kind", Some("txt")),
            (b"\x89HDF\r\n\x1a\n", Some("h5")),
            (b"\x7fELF\x02\x01\x01\0", Some("elf")),
            (b"!<arch>\ndebian-binary   ", Some("deb")),
            (b"!<arch>\n/               ", Some("a")),
            (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", Some("ole")),
            (b"%PDF-1.5\n", Some("pdf")),
            (&tar, Some("tar")),
            (b"From somebody Mon", Some("mbox")),
            (b"#include <stdio.h>\n", Some("txt")),
            ("Dialektgeschwätz, und mehr\n".as_bytes(), Some("txt")),
            ("Русский текст".as_bytes(), Some("txt")),
            (b"ab\0cd", None),
            (b"\x80\x81\x82\x83\x84", None),
            (b"\x01\x02\x03\x04", None),
            // Too short for the signature that it starts like.
            (b"\x1f", None),
            (b"", None),
        ] {
            assert_eq!(type_of_content(head), name, "{head:?}");
        }
    }

    #[test]
    fn names_by_table() {
        for (name, word) in [
            ("a.nc", Some("nc")),
            ("dir.d/x.JPEG", Some("jpg")),
            ("x.tar.gz", Some("gz")),
            ("x.tgz", Some("gz")),
            ("lib.so", Some("elf")),
            ("libc.so.6", Some("elf")),
            ("usr/lib/libz.so.1.2.13", Some("elf")),
            // A manual page, not a version.
            ("ld.so.8.gz", Some("gz")),
            ("x.so.conf", Some("conf")),
            ("printf.1", Some("1")),
            ("m31.FIT", Some("fits")),
            (".profile", None),
            ("Makefile", None),
            ("dir.d/README", None),
            ("x.", None),
            ("x.a very long one", None),
            ("x.abcdefghijklmnopq", None),
            ("x.c++", Some("c++")),
            ("", None),
        ] {
            assert_eq!(type_of_name(name).as_deref(), word, "{name}");
        }
    }

    #[test]
    fn every_word_is_its_own_canonical_form_and_no_signature_hides_another() {
        for (_, bytes, word) in SIGNATURES {
            assert_eq!(canonical(word).as_deref(), Some(*word));
            assert!(!bytes.is_empty());
        }
        for (synonym, word) in SYNONYMS {
            assert_eq!(canonical(word).as_deref(), Some(*word), "{synonym}");
            assert_eq!(canonical(synonym).as_deref(), Some(*word));
        }
        for (index, (at, bytes, word)) in SIGNATURES.iter().enumerate() {
            let mut head = vec![0u8; at + bytes.len()];
            head[*at..].copy_from_slice(bytes);
            assert_eq!(type_of_content(&head), Some(*word), "signature {index}");
            assert!(head.len() <= HEAD_BYTES);
        }
    }

    proptest::proptest! {
        #[test]
        fn anything_is_looked_at_without_harm(head: Vec<u8>, name: String) {
            type_of_content(&head);
            if let Some(word) = type_of_name(&name) {
                proptest::prop_assert_eq!(canonical(&word), Some(word));
            }
        }
    }
}
