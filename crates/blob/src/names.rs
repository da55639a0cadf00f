//! Names: incarnations, operations, nonces, and the keys of a blob's objects below its own key.
//! Plain values; no I/O.

use env::Entropy;
use object_store::path::Path;

use crate::error::Error;

/// The random name of one life of a blob: a key that is removed and created again gets another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Inc(pub u128);

/// The random name of one operation, chosen before its first request and kept until its outcome is
/// known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u128);

/// The random name of one body of a record, which makes two bodies distinguishable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce(pub u128);

/// Returns 128 random bits, never 0.
pub(crate) fn random(entropy: &dyn Entropy) -> Result<u128, Error> {
    let mut bytes = [0; 16];
    entropy.fill(&mut bytes).map_err(Error::Entropy)?;
    Ok(u128::from_le_bytes(bytes).max(1))
}

impl OpId {
    /// Creates a random name for an operation.
    ///
    /// # Errors
    /// When the system's random number generator fails.
    pub fn random(entropy: &dyn Entropy) -> Result<Self, Error> {
        random(entropy).map(Self)
    }
}

impl std::fmt::Display for Inc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl std::fmt::Display for OpId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A blob's key in its store: a directory, because the blob's objects are below it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BlobKey(Path);

/// Returns whether a key is that of a record that has a predecessor.
pub(crate) fn has_predecessor(path: &Path) -> bool {
    let mut parts = path.as_ref().rsplit('/');
    let number = parts.next().filter(|name| name.len() == 20).and_then(|name| name.parse::<u64>().ok());
    number.is_some_and(|number| number > 1) && parts.next() == Some("log")
}

impl BlobKey {
    /// Wraps a key of the store.
    pub const fn new(path: Path) -> Self {
        Self(path)
    }

    /// Returns the key of the store.
    pub const fn path(&self) -> &Path {
        &self.0
    }

    fn below(&self, rest: &str) -> Path {
        Path::from_iter(self.0.parts().chain(Path::from(rest).parts()))
    }

    /// Returns the key of entry `number` of the life log.
    pub fn life(&self, number: u64) -> Path {
        self.below(&format!("life/{number:020}"))
    }

    /// Returns the key of the hint.
    pub fn hint(&self) -> Path {
        self.below("hint")
    }

    /// Returns the key of record `seq`.
    pub fn record(&self, inc: Inc, seq: u64) -> Path {
        self.below(&format!("{inc}/log/{seq:020}"))
    }

    /// Returns the prefix of all records.
    pub fn log(&self, inc: Inc) -> Path {
        self.below(&format!("{inc}/log"))
    }

    /// Returns the prefix of all packs.
    pub fn packs(&self, inc: Inc) -> Path {
        self.below(&format!("{inc}/p"))
    }

    /// Returns the prefix of all pins.
    pub fn pins(&self, inc: Inc) -> Path {
        self.below(&format!("{inc}/pin"))
    }

    /// Returns the prefix of all offers.
    pub fn offers(&self, inc: Inc) -> Path {
        self.below(&format!("{inc}/q"))
    }

    /// Returns the key of an offer of an operation that is in no record up to `since`.
    pub fn offer(&self, inc: Inc, since: u64, op: OpId) -> Path {
        self.below(&format!("{inc}/q/{since:020}-{op}"))
    }

    /// Returns the key of a pack in this incarnation, ignoring the origin in its name.
    pub fn pack(&self, inc: Inc, pack: &crate::PackRef) -> Path {
        self.below(&format!("{inc}/{}", pack.path()))
    }
}
