//! The syntax of names, sizes and properties on the command line. The engine checks again; checking
//! here gives the message before a pool is opened.

use std::collections::BTreeMap;

use surface::{Error, ErrorKind, Result};

/// Longest name, including folders and the snapshot: fits an NBD export name and a path component.
const NAME_BYTES_MAX: usize = 255;

/// Whether a part of a name is right: letters, digits, `.`, `_`, `-`, not starting with `.` or `-`.
fn is_part(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    !text.is_empty() && !text.starts_with(['.', '-']) && text.chars().all(allowed)
}

/// Checks the name of a volume, a share or a folder: those of the folders that it lies in and its
/// own, with a `/` between two.
///
/// # Errors
/// A message that names the allowed forms.
pub fn volume_name(text: &str) -> std::result::Result<String, String> {
    if text.len() > NAME_BYTES_MAX {
        return Err(format!("a name has at most {NAME_BYTES_MAX} bytes with its folders, and this one {}", text.len()));
    }
    if text.split('/').all(is_part) {
        return Ok(text.to_owned());
    }
    if text.contains('/') && text.split('/').any(str::is_empty) {
        return Err("a name in a folder is written FOLDER/NAME: without a / at its beginning or end, and without two \
                    in a row"
            .to_owned());
    }
    Err("a name has 1 to 255 letters, digits, '.', '_' or '-', and starts with neither '.' nor '-'; folders may \
         stand before it (FOLDER/NAME)"
        .to_owned())
}

/// Checks the name of a bookmark or a hold by itself.
///
/// # Errors
/// A message that names the allowed forms.
pub fn short_name(text: &str) -> std::result::Result<String, String> {
    if is_part(text) && text.len() <= NAME_BYTES_MAX {
        return Ok(text.to_owned());
    }
    Err("it has 1 to 255 letters, digits, '.', '_' or '-', and starts with neither '.' nor '-'".to_owned())
}

/// Checks a snapshot's full name, `VOLUME@SNAPSHOT`.
///
/// # Errors
/// A message that says how it is written.
pub fn snapshot_name(text: &str) -> std::result::Result<String, String> {
    let is_whole = text.split_once('@').is_some_and(|(v, s)| volume_name(v).is_ok() && is_part(s));
    if is_whole && text.len() <= NAME_BYTES_MAX {
        return Ok(text.to_owned());
    }
    if !text.contains('@') && volume_name(text).is_ok() {
        return Err(format!(
            "'{text}' names no snapshot: write {text}@SNAPSHOT; `shale list POOL -r {text}` lists what there is"
        ));
    }
    Err("a snapshot is named VOLUME@SNAPSHOT: a volume or a share (or FOLDER/NAME), '@', and a name of letters, digits, \
         '.', '_' or '-'; together at most 255 letters"
        .to_owned())
}

/// Checks the name of a snapshot, in which `*` and `?` stand for letters of the volume's name.
///
/// # Errors
/// A message that names the allowed forms.
pub fn snapshot_pattern(text: &str) -> std::result::Result<String, String> {
    let (volume, name) = text.split_once('@').unwrap_or((text, ""));
    snapshot_name(&format!("{}@{name}", volume.replace(['*', '?'], "x"))).map(|_| text.to_owned())
}

/// Checks the name of a volume, or of a snapshot.
///
/// # Errors
/// A message that names the allowed forms.
pub fn any_name(text: &str) -> std::result::Result<String, String> {
    if text.contains('@') { snapshot_name(text) } else { volume_name(text) }
}

/// Checks the name of a bookmark, given with the snapshot that it marks: `NAME`, `#NAME` or `VOLUME#NAME`.
///
/// # Errors
/// A message that names the allowed forms.
pub fn bookmark_word(text: &str) -> std::result::Result<String, String> {
    let (volume, name) = text.split_once('#').unwrap_or(("", text));
    if (volume.is_empty() || volume_name(volume).is_ok()) && short_name(name).is_ok() {
        return Ok(text.to_owned());
    }
    Err("a bookmark's name has letters, digits, '.', '_' or '-'; a '#', or the volume and a '#', may stand before it"
        .to_owned())
}

/// Checks the name of a volume, of a snapshot, or of a bookmark (`VOLUME#BOOKMARK`).
///
/// # Errors
/// A message that names the allowed forms.
pub fn destroyed_name(text: &str) -> std::result::Result<String, String> {
    match text.split_once('#') {
        Some((volume, _)) if !volume.is_empty() => bookmark_word(text),
        Some(_) => Err("a bookmark is named VOLUME#BOOKMARK".to_owned()),
        None => match text.split_once('@') {
            Some((volume, snapshots)) if snapshots.contains([',', '%']) => {
                volume_name(volume)?;
                ranges(snapshots).map(|_| text.to_owned())
            }
            _ => any_name(text),
        },
    }
}

/// From the first name to the second one; none: from the oldest, to the newest.
pub type SnapshotRange<'a> = (Option<&'a str>, Option<&'a str>);

/// The snapshots of a volume that `A,B%C` names: from the first name of each pair to the second
/// one, in the order in which they were taken; none: the oldest, the newest.
///
/// # Errors
/// A message that says how they are written.
pub fn ranges(text: &str) -> std::result::Result<Vec<SnapshotRange<'_>>, String> {
    let wrong = || {
        format!(
            "'@{text}' names no snapshots: write @A, @A,B or @A%B (from A to B; @%B from the oldest, @A% to the newest)"
        )
    };
    let checked = |name: &'_ str| is_part(name).then_some(()).ok_or_else(wrong);
    let mut all = Vec::new();
    for part in text.split(',') {
        let (from, to) = part.split_once('%').map_or((Some(part), Some(part)), |(from, to)| {
            (Some(from).filter(|name| !name.is_empty()), Some(to).filter(|name| !name.is_empty()))
        });
        for name in [from, to].into_iter().flatten() {
            checked(name)?;
        }
        all.push((from, to));
    }
    Ok(all)
}

/// The volume of a volume's, a snapshot's or a bookmark's name.
pub fn volume_of(name: &str) -> &str {
    name.split(['@', '#']).next().unwrap_or(name)
}

/// A size as people write it, for clap.
///
/// # Errors
/// A message that says how a size is written.
pub fn size(text: &str) -> std::result::Result<u64, String> {
    units::parse_size(text).map_err(|error| error.to_string())
}

/// The first sixteen digits of a pool's id, for clap; more of them, as `status` has it, are as
/// good.
///
/// # Errors
/// A message that names the allowed forms.
pub fn pool_prefix(text: &str) -> std::result::Result<[u8; 8], String> {
    let digits = text.get(..16).filter(|_| text.len() <= 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let number = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    number.map(u64::to_be_bytes).ok_or_else(|| "a pool's id has 16 to 32 hexadecimal digits".to_owned())
}

/// Slowest pace of work that goes through a whole pool: with less it would rest for minutes between
/// two slices.
const RATE_MIN: u64 = 64 << 10;

/// Bytes in a second, or `max`.
///
/// # Errors
/// A message that names the allowed forms.
pub fn rate(text: &str) -> std::result::Result<u64, String> {
    match text {
        "max" => Ok(u64::MAX),
        _ => match size(text)? {
            rate if rate < RATE_MIN => Err("must be at least 64K a second, or 'max'".to_owned()),
            rate => Ok(rate),
        },
    }
}

/// A size that must fit 32 bits (an extent's).
///
/// # Errors
/// See [`size`].
pub fn small_size(text: &str) -> std::result::Result<u32, String> {
    u32::try_from(size(text)?).map_err(|_| "is too large".to_owned())
}

/// Properties of ZFS that are something else here.
const OF_ZFS: &[(&str, &str)] = &[
    ("available", "`shale df POOL` shows the space that is left"),
    ("canmount", "`shale serve POOL --shares DIR` mounts the shares, `--volume NAME` only some"),
    ("compressratio", "`shale list POOL -o name,ratio` shows ratios"),
    ("copies", "names and inodes of shares are stored twice, everything else once"),
    ("dedup", "equal data is not shared, but by clones"),
    ("mountpoint", "a share is mounted at its name below DIR of `shale serve POOL --shares DIR`"),
    ("sharenfs", "the property is `nfs`"),
    ("sharesmb", "the property is `smb`"),
    ("used", "`shale list POOL -o name,stored` shows the space that is used"),
    ("volsize", "`shale resize POOL VOLUME SIZE` changes the size of a volume"),
];

/// The answer to a property of ZFS that is something else here.
pub fn of_zfs(key: &str) -> Option<&'static str> {
    OF_ZFS.iter().find(|(known, _)| *known == key).map(|(_, answer)| *answer)
}

/// The stored name of a property: `recordsize`, the name in ZFS, is `unit`.
///
/// # Errors
/// When it is empty.
pub fn property_key(text: &str) -> std::result::Result<String, String> {
    match text.trim() {
        "" => Err("the name of a property is missing".to_owned()),
        "recordsize" => Ok("unit".to_owned()),
        key => of_zfs(key)
            .map_or_else(|| Ok(key.to_owned()), |answer| Err(format!("there is no property '{key}': {answer}"))),
    }
}

/// `key=value`: the value may be empty.
///
/// # Errors
/// When there is no `=`, or nothing before it.
pub fn key_value(text: &str) -> std::result::Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((property_key(key)?, value.trim().to_owned())),
        _ => Err("a property is written key=value, such as compression=zstd-3".to_owned()),
    }
}

/// Properties to set: key, and value or none to inherit again.
pub type Changes = BTreeMap<String, Option<String>>;

/// Splits the words after `POOL` of `shale set` into the volume, if there is one, and the changes;
/// an empty value means that the property is inherited again.
///
/// # Errors
/// [`ErrorKind::Invalid`] when a word is neither.
pub fn set_words(words: &[String]) -> Result<(Option<String>, Changes)> {
    let (volume, pairs) = match words.split_first() {
        Some((first, rest)) if !first.contains('=') => (Some(first), rest),
        _ => (None, words),
    };
    let invalid = |message: String| Error::new(ErrorKind::Invalid, message);
    if let Some(snapshot) = volume.filter(|name| snapshot_name(name).is_ok()) {
        let text = format!("'{snapshot}' is a snapshot, which has no properties: name a volume, a share or a folder");
        return Err(invalid(text));
    }
    let volume = volume.map(|name| volume_name(name).map_err(|why| invalid(format!("'{name}': {why}")))).transpose()?;
    let mut changes = Changes::new();
    for pair in pairs {
        let (key, value) = key_value(pair).map_err(|why| invalid(format!("'{pair}': {why}")))?;
        changes.insert(key, (!value.is_empty()).then_some(value));
    }
    if changes.is_empty() {
        return Err(invalid("nothing to set; write key=value (key= to inherit again)".to_owned()));
    }
    Ok((volume, changes))
}

/// Rounds up to whole blocks.
///
/// # Errors
/// [`ErrorKind::Invalid`] above the largest volume.
pub fn round_up_to_block(bytes: u64) -> Result<u64> {
    bytes
        .checked_next_multiple_of(units::BLOCK_BYTES as u64)
        .filter(|size| *size <= units::OBJECT_BYTES_MAX)
        .ok_or_else(|| {
            let most = units::format_size(units::OBJECT_BYTES_MAX);
            Error::new(ErrorKind::Invalid, format!("{bytes} bytes are more than the largest volume, {most}"))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_break_a_path_or_a_flag_are_refused() {
        for good in ["a", "vm-1", "A.b_c", "0", "a/b", "projects/web/db.1", &"x".repeat(255)] {
            assert_eq!(volume_name(good).as_deref(), Ok(good));
        }
        for bad in [
            "",
            ".",
            "..",
            ".hidden",
            "-x",
            "/a",
            "a/",
            "a//b",
            "a/..",
            "a/../b",
            "a b",
            "ä",
            "a\0",
            "a=b",
            &"x".repeat(256),
        ] {
            assert!(volume_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn snapshots_are_named_with_their_volume() {
        assert_eq!(snapshot_name("vm@monday").as_deref(), Ok("vm@monday"));
        assert_eq!(any_name("vm").as_deref(), Ok("vm"));
        assert_eq!(snapshot_name("web/vm@monday").as_deref(), Ok("web/vm@monday"));
        assert!(short_name("offsite").is_ok() && short_name("off/site").is_err());
        for good in ["b", "#b", "vm#b"] {
            assert!(bookmark_word(good).is_ok(), "{good}");
        }
        for bad in ["", "#", "vm#", "v m#b", "vm#a#b", "vm@s#b"] {
            assert!(bookmark_word(bad).is_err(), "{bad}");
        }
        assert!(destroyed_name("vm#b").is_ok() && destroyed_name("#b").is_err() && destroyed_name("vm@s").is_ok());
        for good in ["vm@a,b", "vm@a%b", "vm@%b", "vm@a%", "vm@%", "web/vm@a,b%c"] {
            assert_eq!(destroyed_name(good).as_deref(), Ok(good));
        }
        for bad in ["vm@a,", "vm@,", "@a,b", "vm@a%b%c", "vm@a,b c", "vm@a@b,c"] {
            assert!(destroyed_name(bad).is_err(), "{bad}");
        }
        assert_eq!(ranges("a,%b").unwrap(), [(Some("a"), Some("a")), (None, Some("b"))]);
        assert_eq!(["vm", "vm@s", "vm#b"].map(volume_of), ["vm"; 3]);
        for bad in ["vm", "vm@", "@s", "vm@a@b", "vm@a/b", "vm@-s", "v m@s", &format!("{}@s", "x".repeat(255))] {
            assert!(snapshot_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn set_words_take_volume_first_and_empty_as_inherit() {
        let words = |list: &[&str]| list.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        let some = |v: &str| Some(v.to_owned());
        assert_eq!(
            set_words(&words(&["vm", "compression=zstd-3", "unit="])).unwrap(),
            (some("vm"), [("compression".to_owned(), some("zstd-3")), ("unit".to_owned(), None)].into())
        );
        for key in ["unit", "recordsize"] {
            let pair = format!("{key}=8K");
            assert_eq!(set_words(&words(&[&pair])).unwrap(), (None, [("unit".to_owned(), some("8K"))].into()));
        }
        for bad in [&["vm"][..], &[], &["=x"], &["vm", "unit"], &["v m", "unit=8K"]] {
            assert_eq!(set_words(&words(bad)).unwrap_err().kind(), ErrorKind::Invalid, "{bad:?}");
        }
    }

    #[test]
    fn rounding_stops_at_the_largest_volume() {
        assert_eq!(round_up_to_block(0).unwrap(), 0);
        assert_eq!(round_up_to_block(1).unwrap(), 4096);
        assert_eq!(round_up_to_block(4096).unwrap(), 4096);
        assert_eq!(round_up_to_block(units::OBJECT_BYTES_MAX).unwrap(), units::OBJECT_BYTES_MAX);
        assert!(round_up_to_block(units::OBJECT_BYTES_MAX + 1).is_err());
        assert!(round_up_to_block(u64::MAX).is_err());
    }
}
