//! The log of one incarnation: reading its records, and finding the newest. Records are created
//! once, under dense numbers, and their keys never disappear: the whole protocol rests on that.
//! Owns no state but names: readers and writers keep the newest record that they know. Any task may
//! use it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use codec::Workspace;
use format::FormatError;
use object_store::ObjectStoreExt;

use crate::error::Error;
use crate::names::{self, BlobKey, Inc, OpId};
use crate::protocol::life::{self, Hint, Life};
use crate::protocol::record::{Done, Record};
use crate::store::backend::{Backend, READ_TRIES};

/// A hint is written with the first record and with each whose number is a multiple of this: it
/// usually leads to the newest record in 3 reads.
const HINT_EVERY: u64 = 8;
/// Longest step of a gallop; beyond it the search continues by bisection.
const GALLOP_MAX: u64 = 1 << 32;
/// Tries before a missing blob is reported as gone. Nothing is written in that case, so a wrong
/// answer of the store does no harm.
const GONE_TRIES: u32 = 3;

/// The log of one incarnation of a blob.
#[derive(Debug, Clone)]
pub struct Log {
    pub(crate) backend: Backend,
    pub(crate) key: BlobKey,
    pub(crate) inc: Inc,
    pub(crate) life: u64,
}

impl Log {
    /// Opens the blob at a key, and returns its newest record: 2 to 5 reads when there is a hint.
    ///
    /// # Errors
    /// [`Error::Missing`] when there is no blob at the key.
    pub async fn open(backend: Backend, key: BlobKey) -> Result<(Self, Arc<Record>), Error> {
        let (hint, record) = life::hint(&backend, &key).await?.unzip();
        if let (Some(hint), Some(Some(record))) = (hint, record) {
            let log = Self { backend: backend.clone(), key: key.clone(), inc: hint.inc, life: hint.life };
            let head = log.newest_after_hint(Arc::new(record)).await?;
            // A blob is closed before its life ends: while the log is open, the life log need not
            // be read.
            if !head.closed {
                return Ok((log, head));
            }
        }
        let (life, entry) = life::newest(&backend, &key, hint).await?;
        let Some(Life::Born(inc)) = entry else {
            return Err(Error::Missing(key.path().to_string()));
        };
        let log = Self { backend, key, inc, life };
        let from = match hint.filter(|hint| hint.inc == inc) {
            Some(hint) => hint.seq,
            None => life::last_number(&log.backend, &log.key.log(inc)).await?.unwrap_or(0),
        };
        let head = log.newest(log.read_existing(from).await?).await?;
        if head.closed {
            // The client that removes it has not done the last step: this one does.
            life::claim(&log.backend, &log.key, life + 1, Life::Gone).await?;
            return Err(Error::Missing(log.key.path().to_string()));
        }
        Ok((log, head))
    }

    /// Opens the log of an incarnation that may have been removed, such as an origin whose packs
    /// are still pinned.
    ///
    /// # Errors
    /// [`Error::Missing`] when the key never had it.
    pub async fn open_incarnation(backend: Backend, key: BlobKey, inc: Inc) -> Result<(Self, Arc<Record>), Error> {
        let (newest, _) = life::newest(&backend, &key, None).await?;
        for life in (1..=newest).rev() {
            if life::read_existing(&backend, &key, life).await? == Life::Born(inc) {
                let log = Self { backend, key, inc, life };
                let known = life::last_number(&log.backend, &log.key.log(inc)).await?.unwrap_or(0);
                let head = log.newest(log.read_existing(known).await?).await?;
                return Ok((log, head));
            }
        }
        Err(Error::Missing(format!("{}, incarnation {inc}", key.path())))
    }

    /// Opens the blob at a key, or creates one. The newest record of a new blob is
    /// [`Record::genesis`].
    ///
    /// # Errors
    /// When the store fails.
    pub async fn open_or_create(backend: Backend, key: BlobKey) -> Result<(Self, Arc<Record>), Error> {
        loop {
            match Self::open(backend.clone(), key.clone()).await {
                Err(Error::Missing(_)) => {}
                opened => return opened,
            }
            match Self::create(backend.clone(), key.clone()).await {
                Err(Error::Exists(_)) => {}
                created => return created.map(|log| (log.clone(), Arc::new(Record::genesis(log.inc)))),
            }
        }
    }

    /// Creates a blob at a key that has none. It has no record yet.
    ///
    /// # Errors
    /// [`Error::Exists`] when there is one, or another client was first.
    pub async fn create(backend: Backend, key: BlobKey) -> Result<Self, Error> {
        let hint = life::hint(&backend, &key).await?.map(|(hint, _)| hint);
        let (life, entry) = life::newest(&backend, &key, hint).await?;
        if let Some(Life::Born(_)) = entry {
            return Err(Error::Exists(key.path().to_string()));
        }
        Self::create_at(backend, key, life + 1).await
    }

    /// Creates a blob under a chosen number of the life log: the number in its pins.
    pub(crate) async fn create_at(backend: Backend, key: BlobKey, life: u64) -> Result<Self, Error> {
        let inc = Inc(names::random(&*backend.entropy)?);
        if life::claim(&backend, &key, life, Life::Born(inc)).await? != Life::Born(inc) {
            return Err(Error::Exists(key.path().to_string()));
        }
        Ok(Self { backend, key, inc, life })
    }

    /// Returns the incarnation.
    pub const fn inc(&self) -> Inc {
        self.inc
    }

    /// Returns the blob's key.
    pub const fn key(&self) -> &BlobKey {
        &self.key
    }

    /// Returns the store, the clock and the random numbers that it uses.
    pub const fn backend(&self) -> &Backend {
        &self.backend
    }

    /// Reads a record; `None` if the store reports that there is none, which may be wrong for a
    /// while.
    ///
    /// # Errors
    /// [`Error::Damaged`] when every read returns bytes that are not a valid record of this number;
    /// [`Error::Newer`] when a newer program wrote it.
    pub async fn read(&self, seq: u64) -> Result<Option<Arc<Record>>, Error> {
        if seq == 0 {
            return Ok(Some(Arc::new(Record::genesis(self.inc))));
        }
        let path = self.key.record(self.inc, seq);
        let mut tries = 0;
        loop {
            let Some(bytes) = self.backend.get(&path).await? else {
                return Ok(None);
            };
            match self.decode(seq, &bytes) {
                Ok(record) => return Ok(Some(Arc::new(record))),
                Err(source) if source.is_newer || tries + 1 == READ_TRIES => {
                    return Err(Error::undecodable(path, source));
                }
                Err(_) => tries += 1,
            }
            self.backend.pause(tries).await;
        }
    }

    fn decode(&self, seq: u64, bytes: &Bytes) -> Result<Record, FormatError> {
        let record = Record::decode(bytes, &mut Workspace::new())?;
        if record.seq != seq || record.inc != self.inc {
            let detail = format!("record {} of {} instead of {seq} of {}", record.seq, record.inc, self.inc);
            return Err(FormatError::new("record of a blob", detail));
        }
        Ok(record)
    }

    /// Reads a record that must exist because it was seen, or a later one was. Waits while the
    /// store does not find it.
    pub(crate) async fn read_existing(&self, seq: u64) -> Result<Arc<Record>, Error> {
        for tries in 1..=READ_TRIES {
            if let Some(record) = self.read(seq).await? {
                return Ok(record);
            }
            self.backend.pause(tries).await;
        }
        self.check_there().await?;
        Err(Error::StoreInconsistent(format!(
            "the store does not find {}, although it exists: let it recover, then try again",
            self.key.record(self.inc, seq)
        )))
    }

    /// Checks that the blob still exists in its store: the entry of the life log with which it was
    /// born never changes.
    ///
    /// # Errors
    /// [`Error::Vanished`] when it does not, or another blob has its key.
    pub(crate) async fn check_there(&self) -> Result<(), Error> {
        for tries in 1..=GONE_TRIES {
            match life::read(&self.backend, &self.key, self.life).await? {
                Some(Life::Born(inc)) if inc == self.inc => return Ok(()),
                Some(_) => break,
                None if tries < GONE_TRIES => self.backend.pause(tries).await,
                None => {}
            }
        }
        Err(Error::Vanished(self.key.path().to_string()))
    }

    /// Checks that the blob and the record of a version still exist in the store.
    ///
    /// # Errors
    /// [`Error::Vanished`], [`Error::Lost`].
    pub(crate) async fn check_version_there(&self, seq: u64) -> Result<(), Error> {
        self.check_there().await?;
        let path = self.key.record(self.inc, seq);
        for tries in 1..=GONE_TRIES {
            if self.backend.exists(&path).await? {
                return Ok(());
            }
            self.backend.pause(tries).await;
        }
        Err(Error::Lost { path: path.to_string() })
    }

    /// Reads the record of version `seq`, if the version is live as of `head` or pinned.
    ///
    /// # Errors
    /// [`Error::NoVersion`], [`Error::Expired`].
    pub async fn version(&self, head: &Record, seq: u64) -> Result<Arc<Record>, Error> {
        if seq == 0 || seq > head.seq {
            return Err(Error::NoVersion(seq));
        }
        if !head.is_live(seq) && !self.is_pinned(seq).await? {
            return Err(Error::Expired(seq));
        }
        let record = self.read_existing(seq).await?;
        if record.tombstone { Err(Error::Expired(seq)) } else { Ok(record) }
    }

    /// Finds the newest record, starting from a known one: 1 read if that is the newest, else a
    /// gallop and a bisection.
    ///
    /// # Errors
    /// When the store fails, or does not find existing records.
    pub async fn newest(&self, known: Arc<Record>) -> Result<Arc<Record>, Error> {
        let mut newest = known;
        loop {
            // Usually there are no more than two newer records: these are read right away.
            for _ in 0..2 {
                match self.read(newest.seq + 1).await? {
                    Some(record) => newest = record,
                    None if newest.tombstone => return Err(self.lies(newest.seq + 1)),
                    None => return Ok(newest),
                }
            }
            let seq = self.gallop(newest.seq).await?;
            if seq == newest.seq {
                if newest.tombstone {
                    return Err(self.lies(seq + 1));
                }
                return Ok(newest);
            }
            newest = self.read_existing(seq).await?;
        }
    }

    /// Returns the number of the newest record that is older than `age`, by the wall clocks of the
    /// writers, found by bisection from `from` on; `from` itself if there is none. Times in a log
    /// ascend, or nearly so.
    pub(crate) async fn older_than(&self, head: &Record, from: u64, age: Duration) -> Result<u64, Error> {
        let before = self.backend.clock.unix_s().saturating_sub(age.as_secs());
        if head.unix_s <= before {
            return Ok(head.seq);
        }
        let (mut old, mut young) = (from, head.seq.max(from));
        while young - old > 1 {
            let middle = old + (young - old) / 2;
            if self.read_existing(middle).await?.unix_s <= before { old = middle } else { young = middle }
        }
        Ok(old)
    }

    fn lies(&self, seq: u64) -> Error {
        let record = self.key.record(self.inc, seq);
        Error::StoreInconsistent(format!(
            "the store does not find {record}, which must exist: let it recover, then try again"
        ))
    }

    async fn gallop(&self, known: u64) -> Result<u64, Error> {
        let exists = |seq| {
            let path = self.key.record(self.inc, seq);
            async move { self.backend.exists(&path).await }
        };
        let (mut there, mut step) = (known, 1);
        let mut missing = loop {
            let next = there + step;
            if !exists(next).await? {
                break next;
            }
            there = next;
            step = (step * 2).min(GALLOP_MAX);
        };
        while missing - there > 1 {
            let middle = there + (missing - there) / 2;
            if exists(middle).await? { there = middle } else { missing = middle }
        }
        Ok(there)
    }

    /// Searches every record after `after`, up to the newest, for an operation: for one whose
    /// outcome is unknown, and when an upload is resumed. Returns the record that carries it.
    ///
    /// # Errors
    /// When the store fails, or does not find a record below `head`.
    pub async fn find(&self, op: OpId, after: u64, head: &Record) -> Result<Option<(u64, Done)>, Error> {
        for seq in after + 1..=head.seq {
            let record = self.read_existing(seq).await?;
            if let Some(done) = record.find(op) {
                return Ok(Some((seq, *done)));
            }
        }
        Ok(None)
    }

    /// Finds the newest record, starting from the one in a hint, by bisection: there are rarely
    /// more newer records than between two hints.
    async fn newest_after_hint(&self, hinted: Arc<Record>) -> Result<Arc<Record>, Error> {
        let expected = hinted.seq + HINT_EVERY;
        // Most blobs are written once.
        let mut probe = if hinted.seq == 1 { 2 } else { hinted.seq + HINT_EVERY / 2 };
        let (mut newest, mut denied) = (hinted, None);
        loop {
            match self.read(probe).await? {
                Some(record) => newest = record,
                None => denied = Some(probe),
            }
            let end = denied.unwrap_or(expected);
            probe = match end.saturating_sub(newest.seq) {
                0 => return self.newest(newest).await,
                1 if denied.is_some() && newest.tombstone => return Err(self.lies(end)),
                1 if denied.is_some() => return Ok(newest),
                1 => end,
                apart => newest.seq + apart / 2,
            };
        }
    }

    /// Writes a hint with the bytes of a record if one is due, so that the next client starts
    /// there. Its failure does no harm.
    pub(crate) async fn leave_hint(&self, seq: u64, record: &[u8]) {
        if seq != 1 && !seq.is_multiple_of(HINT_EVERY) {
            return;
        }
        let mut bytes = Hint { life: self.life, inc: self.inc, seq }.encode();
        bytes.extend_from_slice(record);
        let _ = self.backend.store.put(&self.key.hint(), Bytes::from(bytes).into()).await;
    }
}
