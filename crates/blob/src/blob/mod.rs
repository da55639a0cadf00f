//! A blob as a program uses it: write, append, read a range, list versions. Joins the uploader, the
//! committer and the reader; owns no protocol of its own. All methods take `&self` and may be
//! called from any task.
//!
//! Every change makes one version, of any length. Appends and writes of many clients may run
//! at the same time: each gets its offset when it is committed, and is applied completely or not at
//! all.

pub(crate) mod audit;
pub(crate) mod groups;
pub(crate) mod holes;
pub(crate) mod image;
pub(crate) mod list;
pub(crate) mod nesting;
pub(crate) mod optimize;
pub(crate) mod profile;
pub(crate) mod push;
pub(crate) mod ranges;
pub(crate) mod staged;
pub(crate) mod survey;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt};

use crate::data::chunk::Chunk;
use crate::data::extent::{FRAME_BYTES, PackRef, Session};
use crate::data::fetch::Fetcher;
use crate::data::pack::PackBuilder;
use crate::data::read::{CACHE_BYTES, Reader};
use crate::data::tree::Tree;
use crate::data::upload::{self, UploadOptions, Uploaded};
use crate::error::Error;
use crate::names::{self, BlobKey, Inc, OpId};
use crate::protocol::commit::{Boxed, CommitOptions, Committed, Committer, Fold, Folder};
use crate::protocol::log::Log;
use crate::protocol::ops::{Action, Op, Patch};
use crate::protocol::record::Record;
use crate::store::connect::{At, Connection};
use crate::texts::{check_message, check_tag};

/// First read of a stream, kept short for callers that stop early.
pub(crate) const WINDOW_FIRST: u64 = 1 << 20;
/// Size of the later reads of a stream.
pub(crate) const WINDOW_MAX: u64 = 8 << 20;
/// Reads of a stream in flight: the one being waited for and two ahead, 24 MiB in all.
pub(crate) const WINDOWS_AT_ONCE: usize = 3;
/// Records read at once for a log.
const RECORDS_AT_ONCE: usize = 16;

/// An open blob. Cheap to share: all methods take `&self`.
#[derive(Debug)]
pub struct Blob {
    committer: Committer,
    pub(crate) reader: Reader,
    fetcher: Fetcher,
}

/// An entry of a blob's log.
pub type Entry = Arc<Record>;

impl Blob {
    /// Opens the blob at a key, in 4 requests if there is a hint.
    ///
    /// # Errors
    /// [`Error::Missing`] when there is no blob at the key.
    pub async fn open(connection: &Connection, key: BlobKey) -> Result<Self, Error> {
        let (log, head) = Log::open(connection.backend.clone(), key).await?;
        Ok(Self::with(connection, log, head))
    }

    /// Opens an incarnation that may have been removed from its key: a version that is pinned in it
    /// can still be read.
    ///
    /// # Errors
    /// [`Error::Missing`] when the key never had this incarnation.
    pub async fn open_incarnation(connection: &Connection, key: BlobKey, inc: Inc) -> Result<Self, Error> {
        let (log, head) = Log::open_incarnation(connection.backend.clone(), key, inc).await?;
        Ok(Self::with(connection, log, head))
    }

    /// Opens the blob at a key, or creates an empty one.
    ///
    /// # Errors
    /// [`Error::Refused`] when the key is below another blob's, or has blobs below it; when the
    /// store fails.
    pub async fn open_or_create(connection: &Connection, key: BlobKey) -> Result<Self, Error> {
        let mut may_be_made = false;
        loop {
            match Log::open(connection.backend.clone(), key.clone()).await {
                Err(Error::Missing(_)) => {}
                opened => return opened.map(|(log, head)| Self::with(connection, log, head)),
            }
            if !std::mem::replace(&mut may_be_made, true) {
                nesting::refuse_nested(connection, &key).await?;
            }
            match Log::create(connection.backend.clone(), key.clone()).await {
                Err(Error::Exists(_)) => {}
                created => {
                    let log = created?;
                    let head = Arc::new(Record::genesis(log.inc()));
                    return Ok(Self::with(connection, log, head));
                }
            }
        }
    }

    fn with(connection: &Connection, log: Log, head: Arc<Record>) -> Self {
        let fetcher = Fetcher {
            backend: connection.backend.clone(),
            data: connection.data.clone(),
            key: log.key().clone(),
            inc: log.inc(),
            cache: connection.cache.clone(),
        };
        let tree = Arc::new(Tree::new(fetcher.clone()));
        let folder = NodeFolder { tree: tree.clone() };
        let options = CommitOptions { folder: Some(Arc::new(folder)), ..CommitOptions::default() };
        let reader = Reader::new(tree, CACHE_BYTES);
        Self { committer: Committer::new(log, head, options), reader, fetcher }
    }

    /// Returns the log, for operations that `Blob` does not offer.
    pub const fn log(&self) -> &Log {
        self.committer.log()
    }

    /// Returns the committer, for operations that the caller builds itself.
    pub const fn committer(&self) -> &Committer {
        &self.committer
    }

    pub(crate) const fn fetcher(&self) -> &Fetcher {
        &self.fetcher
    }

    /// Replaces all content with the bytes of a stream, as one version.
    ///
    /// # Errors
    /// [`Error::Source`] when the stream fails; [`Error::Unknown`] when the store did not report
    /// the outcome. After any other error, nothing has changed.
    pub async fn put(
        &self,
        source: impl Stream<Item = std::io::Result<impl Into<Chunk>>>,
        message: &str,
        options: &UploadOptions,
    ) -> Result<Committed, Error> {
        let uploaded = self.upload(source, message, options).await?;
        self.commit(message, uploaded, options, Action::Put).await
    }

    /// Creates the first version from the bytes of a stream. If several clients try, one succeeds:
    /// the log decides.
    ///
    /// # Errors
    /// [`Error::Exists`] when the blob already has a record; otherwise as [`put`](Self::put).
    pub async fn create(
        &self,
        source: impl Stream<Item = std::io::Result<impl Into<Chunk>>>,
        message: &str,
        options: &UploadOptions,
    ) -> Result<Committed, Error> {
        let uploaded = self.upload(source, message, options).await?;
        let created = self.commit(message, uploaded, options, Action::Create).await;
        created.map_err(|error| self.named(error))
    }

    /// Adds the blob's key to an error of the log, which does not know it.
    pub(crate) fn named(&self, error: Error) -> Error {
        match error {
            Error::Exists(_) => Error::Exists(self.log().key().path().to_string()),
            error => error,
        }
    }

    /// Appends the bytes of a stream to the end, wherever the end is at the commit;
    /// [`Committed::at`] is the offset.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub async fn append(
        &self,
        source: impl Stream<Item = std::io::Result<impl Into<Chunk>>>,
        message: &str,
        options: &UploadOptions,
    ) -> Result<Committed, Error> {
        let uploaded = self.upload(source, message, options).await?;
        self.commit(message, uploaded, options, Action::Append).await
    }

    /// Writes the bytes of a stream at byte `at`, over the content there; a gap after the end reads
    /// as zeroes.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub async fn write(
        &self,
        at: u64,
        source: impl Stream<Item = std::io::Result<impl Into<Chunk>>>,
        message: &str,
        options: &UploadOptions,
    ) -> Result<Committed, Error> {
        let uploaded = self.upload(source, message, options).await?;
        self.commit(message, uploaded, options, |run| Action::Write { at, run }).await
    }

    async fn upload(
        &self,
        source: impl Stream<Item = std::io::Result<impl Into<Chunk>>>,
        message: &str,
        options: &UploadOptions,
    ) -> Result<Uploaded, Error> {
        // Checked here as well, before the upload.
        check_message(message)?;
        let born = self.committer.head().await.seq;
        upload::upload(&self.fetcher, born, options, source).await
    }

    async fn commit(
        &self,
        message: &str,
        uploaded: Uploaded,
        options: &UploadOptions,
        action: impl FnOnce(crate::data::layout::Run) -> Action,
    ) -> Result<Committed, Error> {
        let id = match &options.session {
            Some(session) => session.op(),
            None => OpId::random(&*self.fetcher.backend.entropy)?,
        };
        let op = Op {
            id,
            born: uploaded.born,
            raw: uploaded.run.len,
            stored: uploaded.stored,
            message: message.to_owned(),
            action: action(uploaded.run),
        };
        options.tally.committing.store(true, Ordering::SeqCst);
        match &options.session {
            Some(session) if session.is_resumed() => self.committer.resume(op, session.born()).await,
            _ => self.committer.commit(op).await,
        }
    }

    /// Tags a version with a name. A tagged version does not expire.
    ///
    /// # Errors
    /// [`Error::NoVersion`], [`Error::Expired`]; [`Error::Refused`] for an invalid name.
    pub async fn tag(&self, name: &str, version: u64) -> Result<Committed, Error> {
        check_tag(name)?;
        self.committer.change(Action::Tag { name: name.to_owned(), version }).await.map(|(_, committed)| committed)
    }

    /// Removes a tag.
    ///
    /// # Errors
    /// [`Error::Refused`] when there is no such tag.
    pub async fn untag(&self, name: &str) -> Result<Committed, Error> {
        self.committer.change(Action::Untag { name: name.to_owned() }).await.map(|(_, committed)| committed)
    }

    /// Looks for newer versions and returns the newest record, in 1 request if there is none.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn refresh(&self) -> Result<Entry, Error> {
        self.committer.refresh().await
    }

    /// Returns the record of a version.
    ///
    /// # Errors
    /// [`Error::NoVersion`], [`Error::Expired`], [`Error::NoTag`].
    pub async fn version(&self, at: &At) -> Result<Entry, Error> {
        let head = self.committer.head().await;
        let seq = match at {
            At::Newest => return Ok(head),
            At::Number(seq) => *seq,
            At::Tag(name) => {
                let tag = head.tags.iter().find(|(tag, _)| tag == name);
                tag.ok_or_else(|| Error::NoTag(name.clone()))?.1
            }
        };
        self.log().version(&head, seq).await
    }

    /// Returns the newest record that changed content, in 1 request if it is not the newest record.
    /// If that version has expired, returns the newest record, which has the same content.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn newest_version(&self) -> Result<Entry, Error> {
        let head = self.committer.head().await;
        if head.is_version() {
            return Ok(head);
        }
        match self.log().version(&head, head.version).await {
            Err(Error::NoVersion(_) | Error::Expired(_)) => Ok(head),
            found => found,
        }
    }

    /// Returns the number of live versions as of a record. Record numbers used by tags, pins and
    /// the like are not versions. Takes 2 requests for each range of expired numbers, and 1 for
    /// each version that a tag keeps.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn live_versions(&self, head: &Record) -> Result<u64, Error> {
        let read = async |numbers: Vec<u64>| -> Result<Vec<Entry>, Error> {
            let reads = numbers.into_iter().map(|seq| self.log().read_existing(seq));
            futures_util::stream::iter(reads).buffered(RECORDS_AT_ONCE).try_collect().await
        };
        let ends = read(head.expired.iter().flat_map(|(first, last)| [first - 1, *last]).collect()).await?;
        let counts = ends.chunks(2).filter_map(|pair| Some((pair.first()?.versions, pair.get(1)?.versions)));
        let expired: u64 = counts.map(|(before, after)| after.saturating_sub(before)).sum();
        let kept = read(head.expired_but_tagged()).await?;
        let kept = kept.iter().filter(|record| record.is_version() && !record.tombstone).count() as u64;
        let newest = u64::from(!head.is_version() && head.is_version_as_of(head));
        Ok(head.versions.saturating_sub(expired) + kept + newest)
    }

    /// Returns the bytes from `from` up to `to` of a version, at most 64 MiB, clipped to the end of
    /// the blob.
    ///
    /// # Errors
    /// [`Error::Damaged`] when stored bytes fail their checksum twice.
    pub async fn read(&self, version: &Record, from: u64, to: u64) -> Result<Bytes, Error> {
        self.reader.read(version, from, to).await
    }

    /// Returns the bytes of a range in order, a few MiB at a time, and reads ahead. While the
    /// stream is not polled its reads do not progress, and another read of the same blob may wait
    /// for them: drop the stream first, or poll both.
    pub fn stream<'a>(
        &'a self,
        version: &'a Record,
        from: u64,
        to: u64,
    ) -> impl Stream<Item = Result<Bytes, Error>> + 'a {
        let to = to.min(version.size);
        let windows = std::iter::successors(window(from, to, WINDOW_FIRST), move |(_, end, len)| {
            window(*end, to, (len * 2).min(WINDOW_MAX))
        });
        let reads = windows.map(|(from, to, _)| self.reader.read(version, from, to));
        futures_util::stream::iter(reads).buffered(WINDOWS_AT_ONCE)
    }

    /// Returns the records from `first` to `last`, oldest first, of every kind, including fences
    /// and tombstones.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn records(&self, first: u64, last: u64) -> Result<Vec<Entry>, Error> {
        let reads = (first.max(1)..=last).map(|seq| async move {
            let missing = || {
                Error::StoreInconsistent(format!(
                    "the store reports no record {seq}, although later ones exist: let it recover, then try again"
                ))
            };
            self.log().read(seq).await?.ok_or_else(missing)
        });
        let mut reads = futures_util::stream::iter(reads).buffered(RECORDS_AT_ONCE);
        let mut records = Vec::new();
        while let Some(record) = reads.next().await {
            records.push(record?);
        }
        Ok(records)
    }
}

/// Returns a window that ends at a frame boundary of the blob, and its planned length.
pub(crate) fn window(from: u64, to: u64, len: u64) -> Option<(u64, u64, u64)> {
    let end = (from + len) / u64::from(FRAME_BYTES) * u64::from(FRAME_BYTES);
    (from < to).then_some((from, end.min(to), len))
}

/// Returns a stream of bytes held in memory.
pub fn bytes(data: impl Into<Bytes>) -> impl Stream<Item = std::io::Result<Bytes>> {
    let data = data.into();
    futures_util::stream::iter((!data.is_empty()).then_some(Ok(data)))
}

/// Folds layouts into nodes, in a pack of their own.
#[derive(Debug)]
struct NodeFolder {
    tree: Arc<Tree>,
}

impl Folder for NodeFolder {
    fn fold<'a>(&'a self, base: &'a Record) -> Boxed<'a, Result<Option<Fold>, Error>> {
        Box::pin(async move {
            let fetcher = self.tree.fetcher();
            let session = Session(names::random(&*fetcher.backend.entropy)?);
            let name = PackRef { origin: 0, born: base.seq, session, number: 0 };
            let mut pack = PackBuilder::default();
            let after = self.tree.fold(base, &mut |node| pack.push_node(name, node)).await?;
            if pack.is_empty() {
                return Ok(None);
            }
            let path = fetcher.key.pack(fetcher.inc, &name);
            fetcher.backend.put(&path, pack.finish().into()).await?;
            let to = base.layout.pieces().last().map_or(0, |piece| piece.end());
            let patch = Patch { from: 0, to, before: base.layout.pieces().to_vec(), after };
            Ok(Some(Fold { patches: vec![patch], born: base.seq }))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_grow_and_end_with_frames() {
        let frame = u64::from(FRAME_BYTES);
        let mut windows = Vec::new();
        let mut next = window(100, 40 << 20, WINDOW_FIRST);
        while let Some((from, to, len)) = next {
            assert!(from < to && (to % frame == 0 || to == 40 << 20) && to - from <= WINDOW_MAX);
            windows.push((from, to));
            next = window(to, 40 << 20, (len * 2).min(WINDOW_MAX));
        }
        assert_eq!(windows[0], (100, 1 << 20));
        assert!(windows.windows(2).all(|pair| pair[0].1 == pair[1].0));
        assert_eq!(windows.last().unwrap().1, 40 << 20);
    }
}
