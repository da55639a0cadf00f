//! Pushes a snapshot: the changes since a version become the next version. Owns the choice of the
//! base version, and the transfer of groups from the pool to the store.
//!
//! The base of a push is, in this order: the version that an earlier push made of a snapshot that
//! the volume still has; the version that the volume was cloned from; nothing, for a blob that has
//! no version yet. A push to another key first makes a clone of the base there, which shares all
//! objects, and commits the changes on it.
//!
//! The blob's log records each push: the name of its operation is derived from the snapshot's
//! identity, which snapshots of any pools share only if they hold the same bytes. So each push is
//! done once, a copy of the pool cannot be confused with it, and the pool stores nothing about
//! pushes.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use ::blob::{
    At, Blob, BlobKey, BlobRef, Change, CommitOptions, Committed, Connection, Encoding, Error as BlobError, Inc,
    Location, NodeHash, OpId, PushOptions, Pushed, Record, StoredGroup, UploadOptions, clone_blob, frame_checksum,
    refuse_nested,
};
use codec::CodecId;
use engine::{GroupsPage, Pool, PushBase, Volume};
use env::{RemoteGroup, RemoteImage};
use format::crc32c;
use object_store::path::Path;
use surface::{BlockDevice, Error, ErrorKind, Result};
use units::GROUP_BYTES;

use super::Images;
use operations::PushWish;
use operations::names;

/// Groups requested from the pool at once: 4 MiB.
const PAGE_GROUPS: usize = 32;
/// Groups that wait to be uploaded.
const WAITING_GROUPS: usize = 64;
/// Maximum number of times that one snapshot can replace newer versions of one blob.
const AGAIN_MAX: u32 = 8;
/// Records read in the search for the last push, and records per request.
const RECORDS_MAX: u64 = 4096;
const RECORDS: u64 = 256;

/// Base of a push.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Base {
    /// State that the pool compares with.
    since: PushBase,
    /// The version with that state; 0: none.
    version: u64,
}

/// The outcome of a push.
#[derive(Debug, Clone)]
pub struct Done {
    /// The blob.
    pub blob: String,
    /// The version: the base, if nothing was changed.
    pub version: u64,
    /// The base version; 0: none.
    pub base: u64,
    /// Figures of the push.
    pub pushed: Pushed,
}

/// Returns the name of the push of a snapshot to a blob; `again` counts deliberate repetitions.
fn operation(snapshot: &impl fmt::Display, inc: Inc, again: u32) -> OpId {
    OpId(NodeHash::of(format!("push/{snapshot}/{inc}/{again}").as_bytes()).0)
}

/// A push and its inputs.
pub struct Push<'a> {
    /// The pool.
    pub pool: &'a Pool,
    /// The user's wish.
    pub wish: &'a PushWish,
    /// The image that the volume was cloned from.
    pub image: Option<RemoteImage>,
    /// Receives the bytes of the groups so far; returning `false` ends the push.
    pub progress: &'a (dyn Fn(u64) -> bool + Sync),
}

impl Push<'_> {
    /// Pushes the snapshot.
    ///
    /// # Errors
    /// `Conflict` when there is a newer version; those of the store and the pool.
    pub fn run(&self, images: &Images) -> Result<Done> {
        images.work(self.push())
    }

    fn volume(&self) -> &str {
        names::volume_of(&self.wish.snapshot)
    }

    /// Finds the base of a push to a blob.
    async fn base(&self, blob: &Blob, location: &Location) -> Result<Base> {
        if let Some((snapshot, version)) = self.last_push(blob).await? {
            return Ok(Base { since: PushBase::Snapshot(snapshot), version });
        }
        match self.image.as_ref().filter(|image| image.location == location.to_string()) {
            Some(image) if image.incarnation != blob.log().inc().0 => {
                let why = format!(
                    "{location} was removed and recreated since {} was cloned: push to another key, without --to",
                    self.volume()
                );
                Err(Error::new(ErrorKind::Conflict, why))
            }
            Some(image) => Ok(Base { since: PushBase::Image, version: image.version }),
            None => Ok(Base { since: PushBase::Nothing, version: 0 }),
        }
    }

    /// Finds the newest version that was pushed from an earlier snapshot of the volume.
    async fn last_push(&self, blob: &Blob) -> Result<Option<(String, u64)>> {
        let inc = blob.log().inc();
        let this = self.pool.volume(&self.wish.snapshot)?.id();
        let mut known = HashMap::new();
        for snapshot in self.pool.snapshots(Some(self.volume()))? {
            // Oldest first; snapshots after this one cannot be its base.
            if snapshot.id == this {
                break;
            }
            let title = format!("{}@{}", self.volume(), snapshot.name);
            let identity = self.pool.snapshot_identity(&title)?;
            known.extend((0..AGAIN_MAX).map(|again| (operation(&identity, inc, again), title.clone())));
        }
        let head = blob.refresh().await.map_err(told)?;
        let mut last = head.seq;
        while last > 0 && !known.is_empty() && head.seq - last < RECORDS_MAX {
            let first = last.saturating_sub(RECORDS - 1).max(1);
            for record in blob.records(first, last).await.map_err(told)?.into_iter().rev() {
                if let Some(title) = record.ops.iter().find_map(|done| known.get(&done.op)) {
                    return Ok(Some((title.clone(), record.seq)));
                }
            }
            last = first - 1;
        }
        Ok(None)
    }

    async fn push(&self) -> Result<Done> {
        let invalid = |error: &dyn fmt::Display| Error::new(ErrorKind::Invalid, error.to_string());
        let source = self.wish.url.parse::<Location>().map_err(|error| invalid(&error))?;
        let to = self.wish.to.as_deref().map(str::parse::<Location>).transpose().map_err(|error| invalid(&error))?;
        let encoding = Encoding::parse(&self.wish.properties).map_err(|error| invalid(&error))?;
        let target = to.as_ref().unwrap_or(&source);
        let connection = Connection::open(target).map_err(told)?;
        let (blob, base) = match Blob::open(&connection, target.key()).await {
            Ok(blob) => {
                let base = self.base(&blob, target).await?;
                match &to {
                    Some(to) if base.version == 0 => self.cloned(&connection, &source, to).await?,
                    _ => (blob, base),
                }
            }
            Err(BlobError::Missing(_)) => match &to {
                Some(to) => self.cloned(&connection, &source, to).await?,
                None => {
                    let blob = Blob::open_or_create(&connection, target.key()).await.map_err(told)?;
                    (blob, Base { since: PushBase::Nothing, version: 0 })
                }
            },
            Err(error) => return Err(told(error)),
        };
        let on = match base.version {
            0 => Arc::new(Record::genesis(blob.log().inc())),
            version => blob.version(&At::Number(version)).await.map_err(told)?,
        };
        let pushed = self.push_on(&blob, &on, &base, encoding).await?;
        Ok(Done { blob: target.to_string(), version: pushed.committed.seq, base: base.version, pushed })
    }

    async fn push_on(&self, blob: &Blob, on: &Record, base: &Base, encoding: Encoding) -> Result<Pushed> {
        let snapshot = self.pool.volume(&self.wish.snapshot)?;
        let size = pushed_size(&snapshot, on)?;
        let options = PushOptions {
            upload: UploadOptions { encoding, ..UploadOptions::default() },
            id: self.name(blob).await?,
            message: self.wish.message.clone(),
            replace: self.wish.replace,
        };
        // Before the pool reads any data for it.
        if let Some(committed) = blob.check_push(on, size, &options).await.map_err(told)? {
            return Ok(Pushed { committed, is_earlier: true, groups: 0, as_stored: 0, zeroes: 0, stored: 0 });
        }
        let (send, mut receive) = tokio::sync::mpsc::channel(WAITING_GROUPS);
        let (pool, title, since) = (self.pool.clone(), self.wish.snapshot.clone(), base.since.clone());
        let read = move || read_groups(&pool, &title, &since, &send);
        let reader = std::thread::Builder::new().name("push".to_owned()).spawn(read);
        let reader = reader.map_err(|error| Error::from_io("cannot start a thread", error))?;
        let ended = || tokio::task::block_in_place(|| reader.join());
        let first = receive.recv().await;
        if first.is_none() && base.version > 0 && size == on.size && !options.replace {
            let died = |_| Error::new(ErrorKind::Io, format!("the thread that reads '{}' died", self.wish.snapshot));
            ended().map_err(died)?;
            let committed = Committed { seq: base.version, at: 0, len: 0 };
            return Ok(Pushed { committed, is_earlier: false, groups: 0, as_stored: 0, zeroes: 0, stored: 0 });
        }
        let changes = futures_util::stream::unfold((first, receive, 0), |(first, mut receive, groups)| async move {
            let item = match first {
                Some(first) => Some(first),
                None => receive.recv().await,
            };
            let item = if (self.progress)(groups * GROUP_BYTES as u64) { item? } else { Err(given_up()) };
            Some((item, (None, receive, groups + 1)))
        });
        let pushed = blob.push(on, size, Box::pin(changes), &options).await.map_err(told);
        // The channel is closed: the thread ends with its next group.
        let _ = ended();
        pushed
    }

    /// Returns the name of the operation: a new one only to replace other versions although this
    /// snapshot was pushed before them.
    async fn name(&self, blob: &Blob) -> Result<OpId> {
        let (inc, identity) = (blob.log().inc(), self.pool.snapshot_identity(&self.wish.snapshot)?);
        let name = |again| operation(&identity, inc, again);
        if !self.wish.replace {
            return Ok(name(0));
        }
        let head = blob.newest_version().await.map_err(told)?;
        for again in 0..AGAIN_MAX {
            match blob.log().find(name(again), 0, &head).await.map_err(told)? {
                Some((seq, _)) if seq != head.seq => {}
                _ => return Ok(name(again)),
            }
        }
        let why = format!("{} was pushed {AGAIN_MAX} times: take a new snapshot", self.wish.snapshot);
        Err(Error::new(ErrorKind::Invalid, why))
    }

    /// Makes the clone that a push to another key begins with, or finds the one of an earlier push
    /// that was interrupted.
    async fn cloned(&self, connection: &Connection, source: &Location, target: &Location) -> Result<(Blob, Base)> {
        if !source.shares_store(target) {
            let why = "--to shares objects with the image, so it must be in the same store; \
                       `shale blob cp` copies to another one";
            return Err(Error::new(ErrorKind::Invalid, why));
        }
        let from = Blob::open(connection, source.key()).await.map_err(told)?;
        let base = self.base(&from, source).await?;
        if base.version == 0 {
            let why = format!("{} is neither cloned from {source} nor pushed there: omit --to", self.volume());
            return Err(Error::new(ErrorKind::Invalid, why));
        }
        let version = from.version(&At::Number(base.version)).await.map_err(told)?;
        let blob = clone_of(connection, (source, &from), &version, target).await?;
        Ok((blob, Base { version: 1, ..base }))
    }
}

/// Returns the size of the version. A volume has whole blocks, but an image may end in a partial
/// one: it keeps its size if nothing was written beyond its end.
fn pushed_size(snapshot: &Volume, on: &Record) -> Result<u64> {
    let size = snapshot.size_bytes();
    if on.size == size || on.size.next_multiple_of(units::BLOCK_BYTES as u64) != size {
        return Ok(size);
    }
    let mut tail = vec![0; (size - on.size) as usize];
    // It may have to be fetched, on this thread.
    tokio::task::block_in_place(|| snapshot.read(on.size, &mut tail))?;
    Ok(if policy::is_zero(&tail) { on.size } else { size })
}

type Item = std::io::Result<(u64, Change)>;

fn given_up() -> std::io::Error {
    std::io::Error::other(Error::new(ErrorKind::InUse, "the push was cancelled"))
}

/// Reads the changed groups, page by page, until all are sent or the receiver is gone.
fn read_groups(pool: &Pool, title: &str, since: &PushBase, send: &tokio::sync::mpsc::Sender<Item>) {
    let mut next = Some(0);
    while let Some(from) = next {
        let page = pool.changed_groups(title, since, from, PAGE_GROUPS);
        let GroupsPage { groups, next: following } = match page {
            Ok(page) => page,
            Err(error) => {
                drop(send.blocking_send(Err(std::io::Error::other(error))));
                return;
            }
        };
        for (number, group) in groups {
            if send.blocking_send(change(number, group).map(|change| (number, change))).is_err() {
                return;
            }
        }
        next = following;
    }
}

fn change(number: u64, group: RemoteGroup) -> std::io::Result<Change> {
    Ok(match group {
        RemoteGroup::Zero => Change::Zero,
        RemoteGroup::Plain(data) => Change::Plain(data.into()),
        RemoteGroup::Stored { codec, data_len, bytes, checksum } => {
            if crc32c(&bytes) != checksum {
                let text = format!("the pool returned damaged data for group {number}");
                return Err(std::io::Error::other(Error::new(ErrorKind::Corrupt, text)));
            }
            let crc = frame_checksum(CodecId(codec), data_len, &bytes);
            Change::Stored(StoredGroup { codec: CodecId(codec), data_len, crc, bytes: bytes.into() })
        }
    })
}

/// Makes a clone of a version, or finds an existing one.
async fn clone_of(
    connection: &Connection,
    (source, from): (&Location, &Blob),
    version: &Record,
    target: &Location,
) -> Result<Blob> {
    match Blob::open(connection, target.key()).await {
        Ok(blob) => {
            let first = blob.version(&At::Number(1)).await.ok();
            if first.is_some_and(|first| first.is_clone_of(from.log().inc(), version)) {
                return Ok(blob);
            }
            return Err(told(BlobError::Exists(target.to_string())));
        }
        Err(BlobError::Missing(_)) => {}
        Err(error) => return Err(told(error)),
    }
    refuse_nested(connection, &target.key()).await.map_err(told)?;
    let mut blobs = Vec::new();
    for origin in &version.origins {
        let key = BlobKey::new(Path::from(origin.location.as_str()));
        blobs.push((Blob::open_incarnation(connection, key, origin.inc).await.map_err(told)?, origin.location.clone()));
    }
    let origins: Vec<BlobRef<'_>> =
        blobs.iter().map(|(blob, location)| BlobRef { committer: blob.committer(), location }).collect();
    let name = |location: &Location| location.key().path().to_string();
    let (from_name, to_name) = (name(source), name(target));
    let place = BlobRef { committer: from.committer(), location: &from_name };
    let (backend, options) = (connection.backend().clone(), CommitOptions::default());
    clone_blob(place, version.seq, &origins, backend, target.key(), &to_name, options).await.map_err(told)?;
    Blob::open(connection, target.key()).await.map_err(told)
}

fn told(error: BlobError) -> Error {
    match error {
        BlobError::Changed { base: 0, newest } => {
            let why = format!(
                "the volume did not begin as a version of that blob, which has version {newest}: push to another \
                 key (--to URL), or replace that version (--replace)"
            );
            Error::new(ErrorKind::Conflict, why)
        }
        BlobError::Changed { base, newest } => {
            let why = format!(
                "version {newest} is newer than version {base}, the base of the push: push to another key (--to \
                 URL), or replace the newer version (--replace)"
            );
            Error::new(ErrorKind::Conflict, why)
        }
        BlobError::Source(error) => match error.downcast::<Error>() {
            Ok(of_the_pool) => of_the_pool,
            Err(error) => Error::from_io("the snapshot cannot be read", error),
        },
        error => crate::blob_error(&error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_snapshot_has_names_of_its_own() {
        let names: std::collections::HashSet<OpId> = [("a", 1, 0), ("b", 1, 0), ("a", 2, 0), ("a", 1, 1)]
            .into_iter()
            .map(|(snapshot, inc, again)| operation(&snapshot, Inc(inc), again))
            .collect();
        assert_eq!(names.len(), 4);
        assert_eq!(operation(&"a", Inc(1), 0), operation(&"a", Inc(1), 0));
    }
}
