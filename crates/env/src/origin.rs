//! Remote images: the origin of a volume that was cloned from outside the pool.
//!
//! The engine requests whole groups, from threads that hold no lock, and may request the same group
//! again at any time: an image's version never changes.

use std::fmt::{Debug, Display, Formatter};
use std::time::Duration;

/// A pool's record of an image: sufficient to request any group of it, even if everything else is
/// lost.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RemoteImage {
    /// Its location: a URL without version and without credentials.
    pub location: String,
    /// Distinguishes it from other images that existed at the same location.
    pub incarnation: u128,
    /// Its version.
    pub version: u64,
    /// Its length in bytes. Past the end there are zeroes, which are never requested.
    pub len: u64,
}

/// A group of an image: 128 KiB, of the last one the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemoteGroup {
    /// All zeroes. Must not be returned for unknown or lost groups.
    Zero,
    /// One unit of a codec that covers exactly the group, as stored remotely.
    Stored {
        /// Number of the codec.
        codec: u8,
        /// Bytes that it decodes to: the group's.
        data_len: u32,
        /// The unit.
        bytes: Vec<u8>,
        /// CRC-32C of `bytes` as the image has it: the engine verifies it.
        checksum: u32,
    },
    /// The decoded and verified bytes of a group that is not stored as a single unit.
    Plain(Vec<u8>),
}

/// Why a group could not be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OriginError {
    /// No answer, or not in time: it is asked for again.
    Unreachable(String),
    /// No credentials, or not the right ones: it is asked for again, since they may be renewed.
    Denied(String),
    /// The version, or a part of it, no longer exists.
    Gone(String),
    /// The store was reached, and the request cannot be done as things are.
    Refused(String),
    /// The data received is not the data that was stored.
    Damaged(String),
}

impl Display for OriginError {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let (what, text) = match self {
            Self::Unreachable(text) => ("the store does not respond", text),
            Self::Denied(text) => ("the store denied access", text),
            Self::Gone(text) => ("the image, or a part of it, no longer exists", text),
            Self::Refused(text) => ("the image cannot be used this way", text),
            Self::Damaged(text) => ("the image is damaged", text),
        };
        write!(f, "{what}: {text}")
    }
}

impl std::error::Error for OriginError {}

/// How long an answer is waited for.
#[derive(Clone, Copy)]
pub struct Wait<'a> {
    /// No longer than this.
    pub within: Duration,
    /// Returns whether the result is no longer wanted. Should be polled several times a second.
    pub is_over: &'a dyn Fn() -> bool,
}

impl Debug for Wait<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wait").field("within", &self.within).finish_non_exhaustive()
    }
}

/// Access to images. Called from several threads at once.
pub trait Origins: Send + Sync + Debug {
    /// Fetches groups of an image by number: one result for each, in the same order. Makes a single
    /// attempt, which `wait` may cut short by abandoning requests in progress. The caller decides
    /// about further attempts.
    fn fetch(&self, image: &RemoteImage, groups: &[u64], wait: &Wait<'_>) -> Vec<Result<RemoteGroup, OriginError>>;
}
