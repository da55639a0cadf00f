//! Listings of directories: `struct fuse_dirent` and `struct fuse_direntplus`, one after another,
//! each padded to 8 bytes. Plain values.

use super::attributes::{ENTRY_BYTES, Entry};

/// Bytes of `struct fuse_dirent` before the name.
const DIRENT_BYTES: usize = 24;

/// Names in the answer to a request, up to the requested size.
#[derive(Debug)]
pub struct Listing {
    out: Vec<u8>,
    bytes_max: usize,
}

impl Listing {
    /// Creates an empty listing of at most this many bytes.
    pub fn new(bytes_max: u32) -> Self {
        Self { out: Vec::new(), bytes_max: bytes_max as usize }
    }

    /// Adds a name. `next` is the offset from which the listing continues after it, `mode` the type
    /// of the file, as in `st_mode`. Returns `false`, and adds nothing, if there is no room.
    #[must_use]
    pub fn add(&mut self, inode: u64, next: u64, mode: u32, name: &[u8]) -> bool {
        if !self.has_room(DIRENT_BYTES + name.len()) {
            return false;
        }
        self.dirent(inode, next, mode, name);
        true
    }

    /// Returns the payload of the answer.
    pub fn bytes(&self) -> &[u8] {
        &self.out
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.out.len() + bytes.next_multiple_of(8) <= self.bytes_max
    }

    fn dirent(&mut self, inode: u64, next: u64, mode: u32, name: &[u8]) {
        // Names have at most 255 bytes; the type is that of `d_type`.
        let length = u32::try_from(name.len()).unwrap_or(0);
        let kind = (mode & libc::S_IFMT) >> 12;
        for number in [inode, next] {
            self.out.extend(number.to_ne_bytes());
        }
        for number in [length, kind] {
            self.out.extend(number.to_ne_bytes());
        }
        self.out.extend(name);
        self.out.resize(self.out.len().next_multiple_of(8), 0);
    }
}

/// A [`Listing`] with attributes. The kernel counts each name in it as a look-up, unless its entry
/// has node 0.
#[derive(Debug)]
pub struct ListingPlus(Listing);

impl ListingPlus {
    /// Creates an empty listing of at most this many bytes.
    pub fn new(bytes_max: u32) -> Self {
        Self(Listing::new(bytes_max))
    }

    /// Adds a name; as [`Listing::add`].
    #[must_use]
    pub fn add(&mut self, entry: &Entry, next: u64, name: &[u8]) -> bool {
        if !self.0.has_room(ENTRY_BYTES + DIRENT_BYTES + name.len()) {
            return false;
        }
        entry.encode(&mut self.0.out);
        self.0.dirent(entry.attributes.inode, next, entry.attributes.mode, name);
        true
    }

    /// Adds a name without attributes, if they cannot be read: the kernel requests them when it
    /// needs them. As [`Listing::add`].
    #[must_use]
    pub fn add_name(&mut self, inode: u64, next: u64, mode: u32, name: &[u8]) -> bool {
        if !self.0.has_room(ENTRY_BYTES + DIRENT_BYTES + name.len()) {
            return false;
        }
        // Node 0, and all else zero.
        self.0.out.resize(self.0.out.len() + ENTRY_BYTES, 0);
        self.0.dirent(inode, next, mode, name);
        true
    }

    /// Returns the payload of the answer.
    pub fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_padded_and_stop_at_the_size() {
        let mut listing = Listing::new(64);
        assert!(listing.add(5, 1, libc::S_IFDIR, b"abc"));
        assert_eq!(listing.bytes().len(), 32);
        assert_eq!(
            (&listing.bytes()[16..20], &listing.bytes()[20..24]),
            (&3_u32.to_ne_bytes()[..], &4_u32.to_ne_bytes()[..])
        );
        assert_eq!(&listing.bytes()[24..], b"abc\0\0\0\0\0");
        assert!(!listing.add(6, 2, libc::S_IFREG, b"longer than eight"));
        assert!(listing.add(6, 2, libc::S_IFREG, b"eight by"));
        assert!(!listing.add(7, 3, libc::S_IFREG, b""));
        assert_eq!(listing.bytes().len(), 64);
    }

    #[test]
    fn a_name_without_attributes_is_no_look_up() {
        let mut listing = ListingPlus::new(ENTRY_BYTES as u32 + 32);
        assert!(!listing.add_name(5, 1, libc::S_IFDIR, b"longer than eight"));
        assert!(listing.add_name(5, 1, libc::S_IFDIR, b"abc"));
        let (entry, name) = listing.bytes().split_at(ENTRY_BYTES);
        assert_eq!((entry, name[0], &name[24..27]), (&[0; ENTRY_BYTES][..], 5, &b"abc"[..]));
    }
}
