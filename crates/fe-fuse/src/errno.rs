//! Maps error kinds to errnos; the only place that does.
//!
//! `ENOSYS` is never returned for an operation that is implemented: the kernel takes it to mean
//! "this file system does not support the operation" and never sends it again (for fsync it would
//! then report success without asking, which would break the guarantee of a flush).

use fuse::Errno;
use surface::ErrorKind;

/// The errno for `kind`.
pub(crate) const fn errno(kind: ErrorKind) -> Errno {
    match kind {
        ErrorKind::Invalid => Errno::EINVAL,
        ErrorKind::NotFound => Errno::ENOENT,
        ErrorKind::Exists => Errno::EEXIST,
        ErrorKind::InUse | ErrorKind::Conflict => Errno::EBUSY,
        ErrorKind::Full => Errno::ENOSPC,
        ErrorKind::Corrupt | ErrorKind::Io => Errno::EIO,
        ErrorKind::ReadOnly => Errno::EROFS,
        ErrorKind::Unsupported => Errno::EOPNOTSUPP,
        ErrorKind::Denied => Errno::EACCES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_errno() {
        let table = [
            (ErrorKind::Invalid, libc::EINVAL),
            (ErrorKind::NotFound, libc::ENOENT),
            (ErrorKind::Exists, libc::EEXIST),
            (ErrorKind::InUse, libc::EBUSY),
            (ErrorKind::Conflict, libc::EBUSY),
            (ErrorKind::Full, libc::ENOSPC),
            (ErrorKind::Corrupt, libc::EIO),
            (ErrorKind::Io, libc::EIO),
            (ErrorKind::Unsupported, libc::EOPNOTSUPP),
            (ErrorKind::Denied, libc::EACCES),
        ];
        for (kind, expected) in table {
            assert_eq!(errno(kind).code(), expected, "{}", kind.name());
        }
    }
}
