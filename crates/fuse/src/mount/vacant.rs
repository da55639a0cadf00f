//! Whether a directory may become a mount point: a mount hides everything below it, so the
//! directory must be empty and must not be a mount point already (as with `overlay=off` in ZFS).

use std::path::Path;

use surface::{Error, ErrorKind, Result};

use super::mountinfo::mounted_at;

/// Refuses a mount point at which something would be hidden. `dir` is an absolute path without
/// symbolic links. A mount there is found in the kernel's list, without asking its server.
///
/// # Errors
/// [`ErrorKind::Exists`] with the content in the message; other errors of reading the directory.
pub fn check_vacant(dir: &Path) -> Result<()> {
    let refused = |found: String, remedy: &str| {
        let text = format!(
            "mount at {}: {found}, which the mount would hide: {remedy} or choose another directory (--overlay mounts over it)",
            dir.display()
        );
        Err(Error::new(ErrorKind::Exists, text))
    };
    if let Some(mount) = mounted_at(dir) {
        return refused(format!("{} of type {} is mounted there", mount.source, mount.kind), "unmount it");
    }
    let about = |error| Error::from_io(format!("mount at {}: cannot read the directory", dir.display()), error);
    match std::fs::read_dir(dir).map_err(about)?.next() {
        Some(entry) => {
            let name = entry.map_err(about)?.file_name();
            refused(format!("the directory is not empty: it has '{}'", name.display()), "move its content away")
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_is_refused_with_the_object_that_it_would_hide() {
        let dir = std::env::temp_dir().join(format!("vacant-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        check_vacant(&dir).unwrap();
        std::fs::write(dir.join("file"), b"").unwrap();
        let refused = check_vacant(&dir);
        std::fs::remove_dir_all(&dir).unwrap();
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exists);
        assert!(error.to_string().contains("it has 'file'"), "{error}");
        let error = check_vacant(Path::new("/proc")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exists);
        assert!(error.to_string().contains("of type proc is mounted there"), "{error}");
    }
}
