//! Images that lie elsewhere: what a volume was cloned from, in another place than the pool.
//!
//! The engine asks for whole groups, from threads that hold no lock, and may ask for the same group
//! again at any time: an image's version never changes.

use std::fmt::{Debug, Display, Formatter};
use std::time::Duration;

/// What a pool remembers of an image: enough to ask for any group of it, whatever else is lost.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RemoteImage {
    /// Where it lies: a URL without version and without credentials.
    pub location: String,
    /// Which one of those that have ever lain there.
    pub incarnation: u128,
    /// Its version.
    pub version: u64,
    /// Its length in bytes. Behind the end there are zeroes, which are never asked for.
    pub len: u64,
}

/// A group of an image: 128 KiB, of the last one the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemoteGroup {
    /// All of it is zeroes. Nothing else may be answered so: not what is unknown, nor what is
    /// lost.
    Zero,
    /// One unit of the codec, exactly the group, as it is stored there.
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
    /// The decoded and verified bytes of a group that is no single unit there.
    Plain(Vec<u8>),
}

/// Why a group could not be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OriginError {
    /// No answer, or not in time: it is asked for again.
    Unreachable(String),
    /// No credentials, or not the right ones: it is asked for again, since they may be renewed.
    Denied(String),
    /// The version, or a part of it, is not there any more.
    Gone(String),
    /// The store was reached, and the request cannot be done as things are.
    Refused(String),
    /// What came is not what was put there.
    Damaged(String),
}

impl Display for OriginError {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let (what, text) = match self {
            Self::Unreachable(text) => ("the store does not answer", text),
            Self::Denied(text) => ("the store denies access", text),
            Self::Gone(text) => ("the image, or a part of it, is not there any more", text),
            Self::Refused(text) => ("the image cannot be used so", text),
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
    /// Tells whether the answer is not wanted any more. To be asked several times a second.
    pub is_over: &'a dyn Fn() -> bool,
}

impl Debug for Wait<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wait").field("within", &self.within).finish_non_exhaustive()
    }
}

/// The way to images. Called from several threads at once.
pub trait Origins: Send + Sync + Debug {
    /// Groups of an image, by their numbers: an answer for each, in the same order. May take as
    /// long as one attempt takes, and no longer than `wait` says: then what is under way is given
    /// up. Whether there is another attempt is decided by the caller.
    fn fetch(&self, image: &RemoteImage, groups: &[u64], wait: &Wait<'_>) -> Vec<Result<RemoteGroup, OriginError>>;
}
