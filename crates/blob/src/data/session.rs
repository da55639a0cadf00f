//! The session of an upload that may be interrupted: the state that a later process needs to resume
//! it. Owns the order in which packs are reported, and the hash by which the later process proves
//! that the data is still the same. The caller decides where to store it. Shared by the tasks of
//! one upload.
//!
//! The later process writes its packs under a session name of its own: a late request of the
//! earlier process must not change a pack that the later one has written.
//!
//! Safety does not depend on it: a session that has been fenced is refused at its commit, like any
//! other.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use env::Entropy;
use parking_lot::Mutex;
use xxhash_rust::xxh3::{Xxh3Default, xxh3_128};

use crate::blob::Blob;
use crate::data::extent::Session;
use crate::data::layout::Layout;
use crate::error::Error;
use crate::names::{self, OpId};

/// Hash of data by frames: xxh3, 128 bits, of the frames' hashes.
#[derive(Default)]
pub struct DataHash(Xxh3Default);

impl std::fmt::Debug for DataHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataHash").finish_non_exhaustive()
    }
}

impl DataHash {
    /// Returns the hash of one frame.
    pub fn of_frame(frame: &[u8]) -> u128 {
        xxh3_128(frame)
    }

    /// Adds a frame by its hash.
    pub fn add(&mut self, frame: u128) {
        self.0.update(&frame.to_le_bytes());
    }

    /// Returns the hash of all frames.
    pub fn finish(self) -> u128 {
        self.0.digest128()
    }
}

/// A pack that the store has acknowledged, and the range and hash of its data in the upload.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// Number of the pack in the upload, across all processes that took part.
    pub number: u32,
    /// Bytes of data in this pack and all before it.
    pub to: u64,
    /// Bytes that they take.
    pub stored: u64,
    /// Hash of the data from the end of the previous pack to `to`.
    pub hash: u128,
    /// The pieces of the same data.
    pub pieces: Layout,
}

impl Finished {
    /// Returns its bytes: number 4, to 8, stored 8, hash 16, the layout.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.number.to_le_bytes().to_vec();
        out.extend_from_slice(&self.to.to_le_bytes());
        out.extend_from_slice(&self.stored.to_le_bytes());
        out.extend_from_slice(&self.hash.to_le_bytes());
        self.pieces.encode(&mut out);
        out
    }

    /// Decodes the output of [`encode`](Self::encode); `None` if the bytes are invalid.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (number, rest) = bytes.split_first_chunk()?;
        let (to, rest) = rest.split_first_chunk()?;
        let (stored, rest) = rest.split_first_chunk()?;
        let (hash, rest) = rest.split_first_chunk()?;
        Some(Self {
            number: u32::from_le_bytes(*number),
            to: u64::from_le_bytes(*to),
            stored: u64::from_le_bytes(*stored),
            hash: u128::from_le_bytes(*hash),
            pieces: Layout::decode(rest).ok()?,
        })
    }
}

/// Stores the state that a later process needs. Called in the order of the packs, for each once it
/// and all before it are acknowledged.
pub trait Journal: Send + Sync {
    /// Records a finished pack. A failure costs only a repeated upload.
    fn finished(&self, finished: &Finished);
}

/// A session that can be resumed.
#[derive(Clone)]
pub struct Uploading(Arc<Inner>);

struct Inner {
    session: Session,
    born: u64,
    op: OpId,
    head: Option<Bytes>,
    done: Vec<Finished>,
    journal: Arc<dyn Journal>,
    waiting: Mutex<(u32, BTreeMap<u32, Finished>)>,
}

impl std::fmt::Debug for Uploading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uploading")
            .field("born", &self.0.born)
            .field("done", &self.0.done.len())
            .finish_non_exhaustive()
    }
}

impl Uploading {
    /// Begins a session on a blob in its current state.
    ///
    /// # Errors
    /// When the system's random numbers cannot be read.
    pub async fn begin(blob: &Blob, journal: Arc<dyn Journal>) -> Result<Self, Error> {
        let born = blob.committer().head().await.seq;
        let entropy: &dyn Entropy = &*blob.log().backend().entropy;
        let (session, op) = (names::random(entropy)?, OpId::random(entropy)?);
        Ok(Self::with(session, born, op, None, Vec::new(), journal))
    }

    /// Resumes a session after the packs in `done`, which are numbered from 0 without a gap, and
    /// whose data the caller has proved to be the same. `born` and `op` are those of the original
    /// session; `head` is the beginning of the data.
    ///
    /// # Errors
    /// When the system's random numbers cannot be read.
    pub fn resume(
        blob: &Blob,
        born: u64,
        op: OpId,
        head: Bytes,
        done: Vec<Finished>,
        journal: Arc<dyn Journal>,
    ) -> Result<Self, Error> {
        let session = names::random(&*blob.log().backend().entropy)?;
        Ok(Self::with(session, born, op, Some(head), done, journal))
    }

    fn with(
        session: u128,
        born: u64,
        op: OpId,
        head: Option<Bytes>,
        done: Vec<Finished>,
        journal: Arc<dyn Journal>,
    ) -> Self {
        let waiting = Mutex::new((done.len() as u32, BTreeMap::new()));
        Self(Arc::new(Inner { session: Session(session), born, op, head, done, journal, waiting }))
    }

    /// Returns the session's name.
    pub fn session(&self) -> Session {
        self.0.session
    }

    /// Returns the number of the newest record when the session began.
    pub fn born(&self) -> u64 {
        self.0.born
    }

    /// Returns the name of the operation.
    pub fn op(&self) -> OpId {
        self.0.op
    }

    /// Returns whether an earlier process began it.
    pub fn is_resumed(&self) -> bool {
        self.0.head.is_some()
    }

    pub(crate) fn head(&self) -> Option<Bytes> {
        self.0.head.clone()
    }

    pub(crate) fn done(&self) -> &[Finished] {
        &self.0.done
    }

    /// Reports a pack to the journal once all packs before it are acknowledged, too.
    pub(crate) fn acknowledged(&self, finished: Finished) {
        let mut waiting = self.0.waiting.lock();
        let (next, others) = &mut *waiting;
        others.insert(finished.number, finished);
        while let Some(finished) = others.remove(next) {
            self.0.journal.finished(&finished);
            *next += 1;
        }
    }
}
