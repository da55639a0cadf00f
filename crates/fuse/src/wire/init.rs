//! The negotiation at the start of a connection: `struct fuse_init_in`, `struct fuse_init_out`. No
//! I/O, no state.

use super::u32_at;

/// Major version of the protocol; minor versions only add to it.
const MAJOR: u32 = 7;

/// Newest minor version that this crate implements: that of Linux 6.18.
const MINOR: u32 = 45;

/// Oldest minor version of a kernel that is supported: Linux 5.4, since which the structures have
/// had their present length.
const MINOR_MIN: u32 = 31;

/// Bytes of `struct fuse_init_out`.
const INIT_OUT_BYTES: usize = 64;

/// Capabilities of a connection, by the bits of the protocol.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capabilities(u64);

macro_rules! capabilities {
    ($($(#[$doc:meta])* $name:ident = $bit:expr),* $(,)?) => {
        impl Capabilities {
            $($(#[$doc])* pub const $name: Self = Self(1 << $bit);)*
        }
    };
}

capabilities! {
    /// Reads of one file may be in flight at the same time.
    ASYNC_READ = 0,
    /// `O_TRUNC` is sent with the open. **Never together with an open that is answered with
    /// `ENOSYS`**: the kernel then believes that the open has truncated the file.
    ATOMIC_O_TRUNC = 3,
    /// `.` and `..` can be looked up, for file handles.
    EXPORT_SUPPORT = 4,
    /// Writes of more than a page.
    BIG_WRITES = 5,
    /// The file system applies the umask, because a default ACL may replace it.
    DONT_MASK = 6,
    /// `ioctl` on directories.
    HAS_IOCTL_DIR = 11,
    /// Listings can include attributes.
    DO_READDIRPLUS = 13,
    /// The kernel chooses when.
    READDIRPLUS_AUTO = 14,
    /// Direct I/O may be asynchronous.
    ASYNC_DIO = 15,
    /// Opens may be answered with `ENOSYS`, after which they are not sent any more.
    NO_OPEN_SUPPORT = 17,
    /// Look-ups and listings of one directory may be in flight at the same time.
    PARALLEL_DIROPS = 18,
    /// POSIX ACLs.
    POSIX_ACL = 20,
    /// `max_pages` is valid.
    MAX_PAGES = 22,
    /// Targets of symbolic links are cached.
    CACHE_SYMLINKS = 23,
    /// As `NO_OPEN_SUPPORT`, for directories.
    NO_OPENDIR_SUPPORT = 24,
    /// The file system clears set-user-id and set-group-id bits where the kernel says so.
    HANDLE_KILLPRIV_V2 = 28,
    /// `SETXATTR` has more flags.
    SETXATTR_EXT = 29,
    /// The upper half of the flags is valid.
    INIT_EXT = 30,
    /// New files come with the group of the directory, if the caller is in it.
    CREATE_SUPP_GROUP = 34,
    /// A name can be expired, not only invalidated.
    HAS_EXPIRE_ONLY = 35,
    /// `mmap` of files that are open for direct I/O.
    DIRECT_IO_ALLOW_MMAP = 36,
    /// Requests that a server took before it died are sent again on demand.
    HAS_RESEND = 39,
    /// Requests can come over io_uring.
    OVER_IO_URING = 41,
}

impl Capabilities {
    /// Returns the union of both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns these capabilities without `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the intersection of both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns whether all of `other` are included.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Limits announced to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The largest write, in bytes.
    pub write_bytes_max: u32,
    /// Requests in flight without a waiting caller.
    pub background_max: u16,
}

/// Reads `struct fuse_init_in`: the kernel's capabilities and its read-ahead in bytes; `None` if
/// its protocol is not supported.
pub fn offered(arguments: &[u8]) -> Option<(Capabilities, u32)> {
    let (major, minor) = (u32_at(arguments, 0), u32_at(arguments, 4));
    if major != MAJOR || minor < MINOR_MIN {
        return None;
    }
    let low = u32_at(arguments, 12);
    // The upper half is present if the lower half says so.
    let high = if Capabilities(u64::from(low)).has(Capabilities::INIT_EXT) { u32_at(arguments, 16) } else { 0 };
    Some((Capabilities(u64::from(high) << 32 | u64::from(low)), u32_at(arguments, 8)))
}

/// Encodes `struct fuse_init_out`.
pub fn answer(taken: Capabilities, readahead_bytes: u32, limits: Limits) -> Vec<u8> {
    let mut out = Vec::with_capacity(INIT_OUT_BYTES);
    let (low, high) = (taken.0 as u32, (taken.0 >> 32) as u32);
    for number in [MAJOR, MINOR, readahead_bytes, low] {
        out.extend(number.to_ne_bytes());
    }
    // max_background, congestion_threshold
    out.extend([limits.background_max, limits.background_max].into_iter().flat_map(u16::to_ne_bytes));
    // max_write; time_gran: times are exact to the nanosecond
    out.extend([limits.write_bytes_max, 1].into_iter().flat_map(u32::to_ne_bytes));
    // max_pages, map_alignment
    let pages = u16::try_from(limits.write_bytes_max.div_ceil(4096)).unwrap_or(u16::MAX);
    out.extend([pages, 0].into_iter().flat_map(u16::to_ne_bytes));
    out.extend(high.to_ne_bytes());
    out.resize(INIT_OUT_BYTES, 0);
    out
}

/// Returns the capabilities in an answer.
pub fn taken(answer: &[u8]) -> Capabilities {
    Capabilities(u64::from(u32_at(answer, 32)) << 32 | u64::from(u32_at(answer, 12)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn init(numbers: &[u32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
    }

    #[test]
    fn the_upper_half_of_the_flags_counts_only_if_the_lower_says_so() {
        let (flags, readahead) = offered(&init(&[7, 45, 131_072, 1 << 30 | 1, 1 << 9])).unwrap();
        assert!(flags.has(Capabilities::OVER_IO_URING.with(Capabilities::ASYNC_READ)));
        assert_eq!(readahead, 131_072);
        let (flags, _) = offered(&init(&[7, 31, 0, 1, 1 << 9])).unwrap();
        assert!(!flags.has(Capabilities::OVER_IO_URING));
    }

    #[test]
    fn another_protocol_is_refused() {
        assert_eq!((offered(&init(&[8, 0, 0, 0])), offered(&init(&[7, 30, 0, 0])), offered(b"")), (None, None, None));
    }

    #[test]
    fn an_answer_has_the_kernels_layout() {
        let taken_here = Capabilities::OVER_IO_URING.with(Capabilities::MAX_PAGES);
        let out = answer(taken_here, 1024, Limits { write_bytes_max: 1 << 20, background_max: 256 });
        assert_eq!((out.len(), taken(&out)), (INIT_OUT_BYTES, taken_here));
        assert_eq!((u32_at(&out, 20), u32_at(&out, 24), u32_at(&out, 28)), (1 << 20, 1, 256));
        assert_eq!(u32_at(&out, 16), 256 << 16 | 256);
    }
}
