//! A blob, as a program uses it: write, append, read a range, look at versions. Joins the uploader, the committer and the reader; owns no
//! protocol of its own.
//!
//! Every change makes one version, whatever its length. Appends and writes of many clients go on at the same time: each learns its
//! place when it is committed, and is there as a whole or not at all.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt};

use crate::chunk::Chunk;
use crate::commit::{Boxed, CommitOptions, Committed, Committer, Fold, Folder};
use crate::connect::{At, Connection};
use crate::error::Error;
use crate::extent::{FRAME_BYTES, PackRef, Session};
use crate::fetch::Fetcher;
use crate::log::Log;
use crate::names::{self, BlobKey, Inc, OpId};
use crate::nest;
use crate::ops::{Op, Patch, What};
use crate::pack::PackBuilder;
use crate::read::{CACHE_BYTES, Reader};
use crate::record::Record;
use crate::texts::{check_message, check_tag};
use crate::tree::Tree;
use crate::upload::{self, UploadOptions, Uploaded};

/// The first read of a stream: a caller that stops soon has not read much in vain.
pub(crate) const WINDOW_FIRST: u64 = 1 << 20;
/// Later reads of a stream.
pub(crate) const WINDOW_MAX: u64 = 8 << 20;
/// Reads of a stream under way: the one that is waited for, and two ahead, 24 MiB in all.
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

/// One line of a blob's log.
pub type Entry = Arc<Record>;

impl Blob {
    /// Opens the blob at a key: 4 requests where there is a hint.
    ///
    /// # Errors
    /// [`Error::Missing`] when there is none.
    pub async fn open(connection: &Connection, key: BlobKey) -> Result<Self, Error> {
        let (log, head) = Log::open(connection.world.clone(), key).await?;
        Ok(Self::with(connection, log, head))
    }

    /// Opens an incarnation, which may be gone from its key: a version that is pinned there can
    /// still be read.
    ///
    /// # Errors
    /// [`Error::Missing`] when the key never had it.
    pub async fn open_incarnation(connection: &Connection, key: BlobKey, inc: Inc) -> Result<Self, Error> {
        let (log, head) = Log::open_incarnation(connection.world.clone(), key, inc).await?;
        Ok(Self::with(connection, log, head))
    }

    /// Opens the blob at a key, or makes an empty one.
    ///
    /// # Errors
    /// [`Error::Refused`] when the key is below another blob's, or has blobs below it; when the store fails.
    pub async fn open_or_create(connection: &Connection, key: BlobKey) -> Result<Self, Error> {
        let mut may_be_made = false;
        loop {
            match Log::open(connection.world.clone(), key.clone()).await {
                Err(Error::Missing(_)) => {}
                opened => return opened.map(|(log, head)| Self::with(connection, log, head)),
            }
            if !std::mem::replace(&mut may_be_made, true) {
                nest::refuse_nested(connection, &key).await?;
            }
            match Log::create(connection.world.clone(), key.clone()).await {
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
            world: connection.world.clone(),
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

    /// Returns the log, for what is not done through a blob.
    pub const fn log(&self) -> &Log {
        self.committer.log()
    }

    /// Returns what commits operations that were made by hand.
    pub const fn committer(&self) -> &Committer {
        &self.committer
    }

    pub(crate) const fn fetcher(&self) -> &Fetcher {
        &self.fetcher
    }

    /// Replaces all bytes by those of a stream, as one version.
    ///
    /// # Errors
    /// [`Error::Source`] when the stream fails; [`Error::Unknown`] when the store has not told the outcome; else nothing was changed.
    pub async fn put(
        &self,
        source: impl Stream<Item = std::io::Result<impl Into<Chunk>>>,
        message: &str,
        options: &UploadOptions,
    ) -> Result<Committed, Error> {
        let uploaded = self.upload(source, message, options).await?;
        self.commit(message, uploaded, options, What::Put).await
    }

    /// Makes the first version of the bytes of a stream. Of several clients that try, one succeeds: the log decides.
    ///
    /// # Errors
    /// [`Error::Exists`] when the blob has a record already; as [`put`](Self::put).
    pub async fn create(
        &self,
        source: impl Stream<Item = std::io::Result<impl Into<Chunk>>>,
        message: &str,
        options: &UploadOptions,
    ) -> Result<Committed, Error> {
        let uploaded = self.upload(source, message, options).await?;
        let created = self.commit(message, uploaded, options, What::Create).await;
        created.map_err(|error| self.named(error))
    }

    /// Names the blob in an error of the log, which does not know where it is.
    pub(crate) fn named(&self, error: Error) -> Error {
        match error {
            Error::Exists(_) => Error::Exists(self.log().key().path().to_string()),
            error => error,
        }
    }

    /// Puts the bytes of a stream behind the end, wherever that is when they are committed; [`Committed::at`] tells where.
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
        self.commit(message, uploaded, options, What::Append).await
    }

    /// Puts the bytes of a stream at byte `at`, over what is there; a gap behind the end reads as zeroes.
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
        self.commit(message, uploaded, options, |run| What::Write { at, run }).await
    }

    async fn upload(
        &self,
        source: impl Stream<Item = std::io::Result<impl Into<Chunk>>>,
        message: &str,
        options: &UploadOptions,
    ) -> Result<Uploaded, Error> {
        // Not only when all is uploaded.
        check_message(message)?;
        let born = self.committer.head().await.seq;
        upload::upload(&self.fetcher, born, options, source).await
    }

    async fn commit(
        &self,
        message: &str,
        uploaded: Uploaded,
        options: &UploadOptions,
        what: impl FnOnce(crate::layout::Run) -> What,
    ) -> Result<Committed, Error> {
        let id = match &options.session {
            Some(session) => session.op(),
            None => OpId::random(&*self.fetcher.world.entropy)?,
        };
        let op = Op {
            id,
            born: uploaded.born,
            raw: uploaded.run.len,
            stored: uploaded.stored,
            message: message.to_owned(),
            what: what(uploaded.run),
        };
        options.tally.committing.store(true, Ordering::SeqCst);
        match &options.session {
            Some(session) if session.is_resumed() => self.committer.resume(op, session.born()).await,
            _ => self.committer.commit(op).await,
        }
    }

    /// Gives a version a name, which keeps it.
    ///
    /// # Errors
    /// [`Error::NoVersion`], [`Error::Expired`]; [`Error::Refused`] for a name that is none.
    pub async fn tag(&self, name: &str, version: u64) -> Result<Committed, Error> {
        check_tag(name)?;
        self.committer.change(What::Tag { name: name.to_owned(), version }).await.map(|(_, committed)| committed)
    }

    /// Takes a name away.
    ///
    /// # Errors
    /// [`Error::Refused`] when there is no such tag.
    pub async fn untag(&self, name: &str) -> Result<Committed, Error> {
        self.committer.change(What::Untag { name: name.to_owned() }).await.map(|(_, committed)| committed)
    }

    /// Looks for newer versions and returns the newest record: 1 request when there is none.
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

    /// Returns the newest record that changed bytes: 1 request if it is not the newest of all. If
    /// it is given up, the newest record has the same bytes and is returned.
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

    /// Returns how many versions are live as of a record. Numbers that tags, pins and the like took
    /// are no versions. 2 requests for each range of expired numbers, 1 for each version in it that
    /// is kept.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn live_versions(&self, head: &Record) -> Result<u64, Error> {
        let read = async |numbers: Vec<u64>| -> Result<Vec<Entry>, Error> {
            let reads = numbers.into_iter().map(|seq| self.log().known(seq));
            futures_util::stream::iter(reads).buffered(RECORDS_AT_ONCE).try_collect().await
        };
        let ends = read(head.expired.iter().flat_map(|(first, last)| [first - 1, *last]).collect()).await?;
        let counts = ends.chunks(2).filter_map(|pair| Some((pair.first()?.versions, pair.get(1)?.versions)));
        let expired: u64 = counts.map(|(before, after)| after.saturating_sub(before)).sum();
        let kept = read(head.kept_though_expired()).await?;
        let kept = kept.iter().filter(|record| record.is_version() && !record.tombstone).count() as u64;
        let newest = u64::from(!head.is_version() && head.is_version_as_of(head));
        Ok(head.versions.saturating_sub(expired) + kept + newest)
    }

    /// Returns the bytes from `from` to before `to` of a version, at most 64 MiB; the end of the blob cuts them.
    ///
    /// # Errors
    /// [`Error::Damaged`] when stored bytes do not match their checksum, twice.
    pub async fn read(&self, version: &Record, from: u64, to: u64) -> Result<Bytes, Error> {
        self.reader.read(version, from, to).await
    }

    /// Returns the bytes of a range in order, a few MiB at a time, and reads ahead. While the
    /// stream is not polled its reads stand still, and another read of the same blob may wait for
    /// them: drop it first, or poll both.
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

    /// Returns the records from `first` to `last`, oldest first, with whatever they say: also fences and tombstones.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn records(&self, first: u64, last: u64) -> Result<Vec<Entry>, Error> {
        let reads = (first.max(1)..=last).map(|seq| async move {
            let missing =
                || Error::StoreLies(format!("the store denies record {seq}, which has a later one: let it recover"));
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

/// Returns a window that ends at the end of a frame of the blob, and its planned length.
pub(crate) fn window(from: u64, to: u64, len: u64) -> Option<(u64, u64, u64)> {
    let end = (from + len) / u64::from(FRAME_BYTES) * u64::from(FRAME_BYTES);
    (from < to).then_some((from, end.min(to), len))
}

/// Returns a stream of bytes that are in memory.
pub fn bytes(data: impl Into<Bytes>) -> impl Stream<Item = std::io::Result<Bytes>> {
    let data = data.into();
    futures_util::stream::iter((!data.is_empty()).then_some(Ok(data)))
}

/// Folds layouts into nodes of a pack of their own.
#[derive(Debug)]
struct NodeFolder {
    tree: Arc<Tree>,
}

impl Folder for NodeFolder {
    fn fold<'a>(&'a self, base: &'a Record) -> Boxed<'a, Result<Option<Fold>, Error>> {
        Box::pin(async move {
            let fetcher = self.tree.fetcher();
            let session = Session(names::random(&*fetcher.world.entropy)?);
            let name = PackRef { origin: 0, born: base.seq, session, number: 0 };
            let mut pack = PackBuilder::default();
            let after = self.tree.fold(base, &mut |node| pack.push_node(name, node)).await?;
            if pack.is_empty() {
                return Ok(None);
            }
            let path = fetcher.key.pack(fetcher.inc, &name);
            fetcher.world.put(&path, pack.finish().into()).await?;
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
