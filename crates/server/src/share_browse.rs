//! Files of shares over HTTP: one page of a directory, or one part of a file. Links are never
//! followed and `..` is refused, so that no path leaves its share.

use report::{FileEntry, FileKind, FileVersion, FilesReport};
use share::{Inode, Tree};
use surface::{Error, ErrorKind, Result};

use crate::share_files::Opened;
use crate::share_trees::error_of;

/// Maximum number of entries of a page.
const PAGE_MAX: u32 = 1000;
/// Maximum length of a path in bytes: the kernel's limit, with room for escaped bytes.
const PATH_BYTES_MAX: usize = 4 * 4096;

/// A path in a share.
pub(crate) struct FilePlace {
    pub(crate) opened: Opened,
    /// Name of the share or of a snapshot of it.
    pub(crate) share: String,
    /// Path from the root of the share.
    pub(crate) path: String,
}

/// A range of bytes of a file.
#[derive(Debug, Clone, Default)]
pub(crate) struct Part {
    pub(crate) offset: u64,
    /// Maximum number of bytes.
    pub(crate) length: u32,
    /// Required version of the file.
    pub(crate) version: Option<String>,
}

/// Refuses paths that lead upwards or are too long. Names with escaped bytes are checked when they
/// are decoded ([`is_name`](crate::share_files::is_name)).
///
/// # Errors
/// `Invalid`.
pub(crate) fn check_path(path: &str) -> Result<()> {
    let text = match path {
        _ if path.len() > PATH_BYTES_MAX => format!("a path has at most {PATH_BYTES_MAX} bytes, not {}", path.len()),
        _ if path.split('/').any(|name| name == "..") => {
            format!("'{path}' contains '..': specify the path from the root of the share")
        }
        _ if path.contains('\0') => "a path cannot contain a zero byte".to_owned(),
        _ => return Ok(()),
    };
    Err(Error::new(ErrorKind::Invalid, text))
}

fn entry(opened: &Opened, node: u64, name: String, inode: &Inode) -> FileEntry {
    let kind = kind_of(inode.kind());
    let stored = match (kind, inode.content()) {
        (FileKind::File, Some(content)) => Some(content.len() as u64),
        // Without settling: listing a directory makes no client's data durable.
        (FileKind::File, None) => opened.files.stored(inode.data_file(), 0).ok().map(|stored| stored.stored_bytes),
        _ => None,
    };
    let target = (kind == FileKind::Symlink).then(|| opened.tree.read_link(node).ok()).flatten();
    FileEntry {
        name,
        kind,
        size_bytes: if kind == FileKind::File { inode.size } else { 0 },
        stored_bytes: stored,
        modified_unix_s: inode.modified.seconds,
        mode: inode.mode & 0o7777,
        target: target.map(|target| share::in_words(&target)),
    }
}

const fn kind_of(mode: u32) -> FileKind {
    match mode {
        libc::S_IFREG => FileKind::File,
        libc::S_IFDIR => FileKind::Directory,
        libc::S_IFLNK => FileKind::Symlink,
        _ => FileKind::Other,
    }
}

fn name_of(path: &str) -> String {
    path.rsplit('/').find(|name| !name.is_empty() && *name != ".").unwrap_or_default().to_owned()
}

/// Lists a page of a directory; a file has no entries.
///
/// # Errors
/// `NotFound`, `Invalid` for an invalid cursor, and those of the share.
pub(crate) fn list(place: &FilePlace, limit: u32, cursor: Option<&str>) -> Result<FilesReport> {
    let FilePlace { opened, share, path } = place;
    let (node, inode) = opened.find(share, path)?;
    let mut report =
        FilesReport { path: path.clone(), entry: entry(opened, node, name_of(path), &inode), ..FilesReport::default() };
    if !inode.is_directory() {
        return Ok(report);
    }
    let after = match cursor.map(str::parse::<u64>) {
        None => share::COOKIE_DOT_DOT,
        Some(Ok(after)) => after.max(share::COOKIE_DOT_DOT),
        Some(Err(_)) => return Err(Error::new(ErrorKind::Invalid, "the cursor does not belong to this list")),
    };
    let limit = limit.clamp(1, PAGE_MAX) as usize;
    let mut found: Vec<(share::Listed, Option<Inode>)> = Vec::new();
    let listed = opened.tree.list_names(node, after, |listed, inode| {
        found.push((listed, inode.ok()));
        found.len() <= limit
    });
    listed.map_err(|failure| error_of(share, &format!("'{path}' cannot be listed"), failure))?;
    if found.len() > limit {
        found.truncate(limit);
        report.next = found.last().map(|(listed, _)| listed.cookie.to_string());
    }
    let line = |(listed, inode): (share::Listed, Option<Inode>)| {
        let name = share::in_words(&listed.name);
        match inode {
            Some(inode) => entry(opened, listed.node, name, &inode),
            // Its attributes are damaged.
            None => FileEntry { name, kind: kind_of(listed.kind), ..FileEntry::default() },
        }
    };
    report.entries = found.into_iter().map(line).collect();
    Ok(report)
}

/// Reads a part of a file; the result is short at its end.
///
/// # Errors
/// `NotFound`; `Invalid` for anything but a file; `Conflict` if it has another version, or gets
/// one meanwhile.
pub(crate) fn read(place: &FilePlace, part: &Part) -> Result<(FileVersion, Vec<u8>)> {
    let FilePlace { opened, share, path } = place;
    let look = || {
        let (node, inode) = opened.find(share, path)?;
        if !inode.is_file() {
            let text = format!("'{path}' in share '{share}' is not a file: only files have content");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let version = version_of(&opened.tree, node, &inode);
        Ok((version, (node, inode)))
    };
    let bytes = |&(node, ref inode): &(u64, Inode)| {
        let left = inode.size.saturating_sub(part.offset);
        let mut bytes = vec![0; usize::try_from(left.min(part.length.into())).unwrap_or(0)];
        let mut done = 0;
        while done < bytes.len() {
            let read = opened.tree.read(node, part.offset + done as u64, &mut bytes[done..]);
            match read.map_err(|failure| error_of(share, &format!("'{path}' cannot be read"), failure))? {
                0 => break,
                read => done += read,
            }
        }
        bytes.truncate(done);
        Ok(bytes)
    };
    let Some((version, (node, inode), bytes)) = of_one_version(part.version.as_deref(), look, bytes)? else {
        let text = format!("'{path}' in share '{share}' was changed while it was read: read it again");
        return Err(Error::new(ErrorKind::Conflict, text));
    };
    Ok((FileVersion { entry: entry(opened, node, name_of(path), &inode), version }, bytes))
}

/// Reads what has the same version before and after, and the expected one, if any.
fn of_one_version<F, T>(
    expected: Option<&str>,
    mut look: impl FnMut() -> Result<(String, F)>,
    read: impl FnOnce(&F) -> Result<T>,
) -> Result<Option<(String, F, T)>> {
    let (version, found) = look()?;
    if expected.is_some_and(|expected| expected != version) {
        return Ok(None);
    }
    let bytes = read(&found)?;
    let is_same = look()?.0 == version;
    Ok(is_same.then_some((version, found, bytes)))
}

fn version_of(tree: &Tree, node: u64, inode: &Inode) -> String {
    let (changed, generation) = (inode.changed, tree.generation(node, inode));
    format!("{node:x}-{generation:x}-{:x}-{:x}.{:x}", inode.size, changed.seconds, changed.nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_leads_upwards_is_refused() {
        for good in ["", "a", "a/b c", "a..b/..c", "./a", "a\\xffb", "/a//b/"] {
            assert!(check_path(good).is_ok(), "{good}");
        }
        let long = "a/".repeat(PATH_BYTES_MAX);
        for bad in ["..", "a/..", "../a", "a/../../b", "a\0", &long] {
            assert_eq!(check_path(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad:.20}");
        }
        assert_eq!((name_of("a/b/"), name_of("a/."), name_of("")), ("b".to_owned(), "a".to_owned(), String::new()));
    }

    #[test]
    fn what_is_read_is_of_the_version_that_is_named() {
        let is_read = |versions: [&str; 2], expected| {
            let mut found = versions.into_iter();
            let look = || Ok((found.next().unwrap_or("none").to_owned(), ()));
            of_one_version(expected, look, |()| Ok(())).unwrap().is_some()
        };
        assert!(is_read(["1", "1"], None) && is_read(["1", "1"], Some("1")));
        assert!(!is_read(["2", "2"], Some("1")));
        assert!(!is_read(["1", "2"], Some("1")), "it was changed after the look");
        assert!(!is_read(["1", "2"], None));
    }
}
