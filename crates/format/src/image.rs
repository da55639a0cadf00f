//! The remote part of a descriptor: the image whose fetched groups an object holds.

use crate::FormatError;
use crate::cursor::{Cursor, put_text, put_uint};

/// Longest location, in bytes: it goes into the log with its descriptor.
const LOCATION_BYTES_MAX: usize = 4096;

/// An image stored elsewhere, whose version never changes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ImagePart {
    /// Its location.
    pub location: String,
    /// Distinguishes it from other images that existed at the same location.
    pub incarnation: u128,
    /// Its version.
    pub version: u64,
    /// Its length in bytes.
    pub len: u64,
}

impl ImagePart {
    /// Appends location, incarnation 16, version 8, length 8.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        put_text(out, &self.location);
        put_uint(out, self.incarnation as u64, 8);
        put_uint(out, (self.incarnation >> 64) as u64, 8);
        put_uint(out, self.version, 8);
        put_uint(out, self.len, 8);
    }

    /// Inverse of [`put`](Self::put).
    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<Self, FormatError> {
        let location = cursor.text()?;
        if location.is_empty() || location.len() > LOCATION_BYTES_MAX {
            return Err(cursor.fail(format!("the location of an image with {} bytes", location.len())));
        }
        let (low, high) = (cursor.u64()?, cursor.u64()?);
        let incarnation = u128::from(high) << 64 | u128::from(low);
        Ok(Self { location, incarnation, version: cursor.u64()?, len: cursor.u64()? })
    }
}
