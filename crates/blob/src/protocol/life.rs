//! The life log of a key, which names the current incarnation of the blob there. Its numbered
//! entries are created once and never change, so a key can be removed and reused without a late
//! request of the old life reaching the new one. Owns the encoding of the entries and of the hint,
//! which saves a search for the newest entry; docs/internals/BLOBS.md defines both. Holds no state.

use bytes::Bytes;
use codec::Workspace;
use format::{FormatError, put_uint};
use futures_util::TryStreamExt;
use object_store::ObjectStore;
use object_store::path::Path;

use crate::error::Error;
use crate::names::{BlobKey, Inc};
use crate::protocol::record::Record;
use crate::sealed::{self, wide};
use crate::store::backend::{Backend, Created, READ_TRIES, is_permanent};

const LIFE_MAGIC: &[u8; 8] = b"SHLLIFE1";
const HINT_MAGIC: &[u8; 8] = b"SHLHINT1";
/// Bytes of a hint; those of a record may follow.
const HINT_BYTES: usize = 44;
/// Tries for an entry whose outcome the store does not report: about a minute and a half with the
/// pauses in between.
const CLAIM_TRIES: u32 = 24;

/// An entry of the life log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// The blob lives under this incarnation.
    Born(Inc),
    /// There is no blob.
    Gone,
}

impl Life {
    /// Returns its bytes.
    pub fn encode(self) -> Vec<u8> {
        let (kind, inc) = match self {
            Self::Born(inc) => (1, inc.0),
            Self::Gone => (2, 0),
        };
        let mut out = sealed::begin(LIFE_MAGIC);
        put_uint(&mut out, kind, 1);
        sealed::put_wide(&mut out, inc);
        sealed::seal(out)
    }

    /// Decodes the output of [`encode`](Self::encode).
    ///
    /// # Errors
    /// When the bytes are not a valid entry.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = sealed::open("life of a blob", LIFE_MAGIC, bytes)?;
        let (kind, inc) = (cursor.u8()?, wide(&mut cursor)?);
        cursor.end()?;
        match (kind, inc) {
            (1, 1..) => Ok(Self::Born(Inc(inc))),
            (2, 0) => Ok(Self::Gone),
            _ => Err(FormatError::new("life of a blob", format!("kind {kind}, incarnation {inc:x}"))),
        }
    }
}

/// The newest entries when a client last looked. Only advice: a reader continues from there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hint {
    /// Number of the entry in the life log.
    pub life: u64,
    /// The incarnation in that entry.
    pub inc: Inc,
    /// Number of a record that existed in its log.
    pub seq: u64,
}

impl Hint {
    /// Returns its bytes.
    pub fn encode(self) -> Vec<u8> {
        let mut out = sealed::begin(HINT_MAGIC);
        put_uint(&mut out, self.life, 8);
        sealed::put_wide(&mut out, self.inc.0);
        put_uint(&mut out, self.seq, 8);
        sealed::seal(out)
    }

    /// Decodes the output of [`encode`](Self::encode).
    ///
    /// # Errors
    /// When the bytes are not a valid hint.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = sealed::open("hint of a blob", HINT_MAGIC, bytes)?;
        let hint = Self { life: cursor.u64()?, inc: Inc(wide(&mut cursor)?), seq: cursor.u64()? };
        cursor.end()?;
        Ok(hint)
    }
}

/// Reads an entry; `None` if the store reports it missing. Bytes that do not decode are
/// read again: the link may have corrupted them.
pub(crate) async fn read(backend: &Backend, key: &BlobKey, number: u64) -> Result<Option<Life>, Error> {
    let path = key.life(number);
    let mut tries = 0;
    loop {
        let Some(bytes) = backend.get(&path).await? else {
            return Ok(None);
        };
        match Life::decode(&bytes) {
            Ok(life) => return Ok(Some(life)),
            Err(source) if source.is_newer || tries + 1 == READ_TRIES => return Err(Error::undecodable(path, source)),
            Err(_) => tries += 1,
        }
        backend.pause(tries).await;
    }
}

/// Reads an entry that a list has shown. If the store does not find it for a while, the client must
/// not conclude that the key is free: it would begin a second life in parallel with the first.
pub(crate) async fn read_existing(backend: &Backend, key: &BlobKey, number: u64) -> Result<Life, Error> {
    for tries in 1..=READ_TRIES {
        if let Some(life) = read(backend, key, number).await? {
            return Ok(life);
        }
        backend.pause(tries).await;
    }
    let path = key.life(number);
    Err(Error::StoreInconsistent(format!(
        "the store lists {path} but does not find it: let it recover, then try again"
    )))
}

/// Creates entry `number` unless it exists. Returns its final content: `wanted`, or the entry of
/// another client.
pub(crate) async fn claim(backend: &Backend, key: &BlobKey, number: u64, wanted: Life) -> Result<Life, Error> {
    let path = key.life(number);
    let bytes = Bytes::from(wanted.encode());
    let mut tries = 0;
    loop {
        let error = match backend.create(&path, bytes.clone()).await {
            Created::Yes => return Ok(wanted),
            Created::Ask(error) => error,
        };
        if let Ok(Some(life)) = read(backend, key, number).await {
            return Ok(life);
        }
        tries += 1;
        if tries == CLAIM_TRIES || is_permanent(&error, tries) {
            return Err(Error::store(format!("creating {path}"), error));
        }
        backend.pause(tries).await;
    }
}

/// Finds the newest entry and its number, which is 0 if there is none. Continues from the hint if
/// there is one, else from a list.
pub(crate) async fn newest(backend: &Backend, key: &BlobKey, hint: Option<Hint>) -> Result<(u64, Option<Life>), Error> {
    let mut newest = match hint {
        Some(hint) => (hint.life, Some(Life::Born(hint.inc))),
        None => match last_number(backend, &key.path().clone().join("life")).await? {
            Some(number) => (number, Some(read_existing(backend, key, number).await?)),
            None => (0, None),
        },
    };
    // A key is removed and reused so rarely that this loop is short.
    while let Some(life) = read(backend, key, newest.0 + 1).await? {
        newest = (newest.0 + 1, Some(life));
    }
    Ok(newest)
}

/// Reads the hint and the record in it. A missing, outdated or damaged hint counts as none.
pub(crate) async fn hint(backend: &Backend, key: &BlobKey) -> Result<Option<(Hint, Option<Record>)>, Error> {
    let Some(bytes) = backend.get(&key.hint()).await? else { return Ok(None) };
    let (hint, record) = bytes.split_at(HINT_BYTES.min(bytes.len()));
    let Ok(hint) = Hint::decode(hint) else { return Ok(None) };
    let record = Record::decode(record, &mut Workspace::new()).ok();
    Ok(Some((hint, record.filter(|record| record.seq == hint.seq && record.inc == hint.inc))))
}

/// Returns the largest number among the names below a prefix, according to a list.
pub(crate) async fn last_number(backend: &Backend, prefix: &Path) -> Result<Option<u64>, Error> {
    let mut tries = 0;
    loop {
        let listed = backend.store.list(Some(prefix)).try_fold(None, |last, meta| async move {
            let number = meta.location.filename().and_then(|name| name.parse::<u64>().ok());
            Ok(last.max(number))
        });
        match listed.await {
            Ok(last) => return Ok(last),
            Err(error) if tries + 1 == READ_TRIES || is_permanent(&error, tries + 1) => {
                return Err(Error::store(format!("listing {prefix}"), error));
            }
            Err(_) => tries += 1,
        }
        backend.pause(tries).await;
    }
}
