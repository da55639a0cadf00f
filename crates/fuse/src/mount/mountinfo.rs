//! The kernel's list of mounts, in the format of proc(5). Each call reads it again.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The mounts of this process's namespace.
const MOUNTINFO: &str = "/proc/self/mountinfo";

/// Returns the mounts that this process sees, one per line; empty if they cannot be read.
pub fn mountinfo() -> String {
    String::from_utf8_lossy(&std::fs::read(MOUNTINFO).unwrap_or_default()).into_owned()
}

/// A mount in the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Device number of its file system: major and minor.
    pub device: (u32, u32),
    /// Its mount point.
    pub dir: PathBuf,
    /// Type of its file system.
    pub kind: String,
    /// The source of the mount.
    pub source: String,
}

/// Parses a list, keeping its order: of two mounts at one directory the later one is visible.
pub fn listed(mountinfo: &str) -> impl DoubleEndedIterator<Item = Listed> {
    mountinfo.lines().filter_map(|line| {
        let (place, file_system) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(2);
        let (major, minor) = place.next()?.split_once(':')?;
        let dir = OsString::from_vec(unescaped_bytes(place.nth(1)?));
        let mut file_system = file_system.split(' ');
        Some(Listed {
            device: (major.parse().ok()?, minor.parse().ok()?),
            dir: PathBuf::from(dir),
            kind: file_system.next()?.to_owned(),
            source: unescaped(file_system.next()?),
        })
    })
}

/// Returns the mount that is visible at `dir`, an absolute path without symbolic links. Asks no
/// file system, so it never waits for a server.
pub fn mounted_at(dir: &Path) -> Option<Listed> {
    listed(&mountinfo()).rfind(|mount| mount.dir == dir)
}

/// Decodes a path of mountinfo, in which spaces, tabs, newlines and backslashes are written as
/// three octal digits.
pub fn unescaped(text: &str) -> String {
    String::from_utf8_lossy(&unescaped_bytes(text)).into_owned()
}

fn unescaped_bytes(text: &str) -> Vec<u8> {
    let mut parts = text.split('\\');
    let mut path = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        match part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(code) => {
                path.push(code);
                path.extend_from_slice(&part.as_bytes()[3..]);
            }
            None => {
                path.push(b'\\');
                path.extend_from_slice(part.as_bytes());
            }
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_unescaped() {
        assert_eq!(unescaped("/a\\040b\\134c"), "/a b\\c");
        assert_eq!(unescaped("/plain"), "/plain");
        assert_eq!(unescaped("/odd\\9"), "/odd\\9");
    }

    #[test]
    fn of_two_mounts_at_a_directory_the_later_one_is_visible() {
        let mountinfo = "\
            21 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n\
            30 21 0:44 / /mnt/a\\040b rw,nosuid - fuse.shale /srv/pool rw,user_id=0\n\
            31 30 0:45 / /mnt/a\\040b rw shared:7 master:2 - tmpfs tmpfs rw\n";
        let at: Vec<Listed> = listed(mountinfo).filter(|mount| mount.dir == Path::new("/mnt/a b")).collect();
        assert_eq!(at.iter().map(|mount| mount.device).collect::<Vec<_>>(), [(0, 44), (0, 45)]);
        assert_eq!((at[0].kind.as_str(), at[0].source.as_str()), ("fuse.shale", "/srv/pool"));
        assert_eq!(listed(mountinfo).rfind(|mount| mount.dir == Path::new("/mnt/a b")).unwrap().kind, "tmpfs");
    }
}
