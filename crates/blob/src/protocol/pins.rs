//! Pins: versions that a clone or a volume needs. Each pin is an object of its own below the blob's
//! prefix. Owns the names and the encoding of pins, how a pin is made, and the only way to remove
//! one. docs/internals/BLOBS.md explains why a pinned version is safe. Holds no state; any task may
//! call it.
//!
//! The steps of making a pin, in this order:
//!
//! 1. The version is live as of the newest known record. Otherwise nothing is written.
//! 2. The object is written under a name that no other pin ever has, and acknowledged.
//! 3. The log is listed. If the version is live as of the newest record listed, the pin holds;
//!    otherwise its object is removed and the caller gets an error.
//!
//! A collector knows record `h` before it lists the pins. A pin missing from its list was
//! acknowledged after the list began, so step 3 sees `h`, and refuses a version that is dead there.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use format::{FormatError, put_text, put_uint};
use futures_util::StreamExt;
use object_store::path::Path;
use xxhash_rust::xxh3::xxh3_128;

use crate::error::Error;
use crate::names::{Inc, OpId};
use crate::protocol::commit::Committer;
use crate::protocol::delete;
use crate::protocol::log::Log;
use crate::protocol::record::{Record, TEXT_BYTES_MAX};
use crate::sealed::{self, wide};
use crate::store::backend::READ_TRIES;

const MAGIC: &[u8; 8] = b"SHLBPIN1";
const STRUCTURE: &str = "pin of a version";
/// Pins read, and holders looked up, at once: a blob may have thousands.
pub(crate) const AT_ONCE: usize = 16;

/// A version retained for a holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// Its name, which no other pin has.
    pub op: OpId,
    /// The version.
    pub version: u64,
    /// Key of the blob that needs it, or the identity of a pool's copy and its volume.
    pub holder: String,
    /// Number in the holder's life log under which it is born; 0 for a holder that is not a blob.
    pub life: u64,
}

/// The pins of a blob.
#[derive(Debug, Default)]
pub struct Pins {
    /// Pins that can be read.
    pub valid: Vec<Pin>,
    /// Errors of the others, each with the key of the object.
    pub damaged: Vec<Error>,
}

/// A selection of holders. The key of a pin contains a hash of its holder, so the pins of named
/// holders are found, or skipped, without reading the others.
#[derive(Clone, Copy)]
pub enum Holders<'a> {
    /// These holders.
    Named(&'a BTreeSet<String>),
    /// Holders that `is_meant` accepts; it is not called for those in `kept`.
    #[allow(missing_docs, reason = "described above")]
    Accepted { is_meant: &'a dyn Fn(&str) -> bool, kept: &'a BTreeSet<String> },
}

impl Holders<'_> {
    fn are(&self, holder: &str) -> bool {
        match self {
            Self::Named(names) => names.contains(holder),
            Self::Accepted { is_meant, kept } => !kept.contains(holder) && is_meant(holder),
        }
    }
}

/// The key of a pin: enough to retain the version, and to find the pins of one holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PinName {
    version: u64,
    holder: u128,
    op: OpId,
}

/// Returns the part of a pin's key that all pins of a holder share.
fn hash(holder: &str, life: u64) -> u128 {
    let mut bytes = life.to_le_bytes().to_vec();
    bytes.extend_from_slice(holder.as_bytes());
    xxh3_128(&bytes)
}

impl Pin {
    fn name(&self) -> PinName {
        PinName { version: self.version, holder: hash(&self.holder, self.life), op: self.op }
    }

    fn encode(&self, inc: Inc) -> Vec<u8> {
        let mut out = sealed::begin(MAGIC);
        sealed::put_wide(&mut out, inc.0);
        sealed::put_wide(&mut out, self.op.0);
        put_uint(&mut out, self.version, 8);
        put_uint(&mut out, self.life, 8);
        put_text(&mut out, &self.holder);
        sealed::seal(out)
    }

    fn decode(inc: Inc, name: &PinName, bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = sealed::open(STRUCTURE, MAGIC, bytes)?;
        let of = Inc(wide(&mut cursor)?);
        let op = OpId(wide(&mut cursor)?);
        let (version, life) = (cursor.u64()?, cursor.u64()?);
        let pin = Self { op, version, holder: cursor.text()?.to_owned(), life };
        cursor.end()?;
        if of != inc || pin.name() != *name {
            return Err(FormatError::new(STRUCTURE, "its key belongs to a different pin"));
        }
        Ok(pin)
    }
}

/// Pins a version for a holder: a blob, with the number in its life log under which it will be
/// born, or a volume, with 0. A pin that does not hold is removed again.
///
/// # Errors
/// [`Error::NoVersion`], [`Error::Expired`], [`Error::Removed`] when the version may have been
/// deleted, or may be at any time; [`Error::Vanished`] when the blob is missing from its store.
pub async fn pin_version(committer: &Committer, version: u64, holder: &str, life: u64) -> Result<Pin, Error> {
    let log = committer.log();
    if holder.len() > TEXT_BYTES_MAX {
        let why = format!("the holder's name has {} bytes, at most {TEXT_BYTES_MAX} are allowed", holder.len());
        return Err(Error::Refused(why));
    }
    let head = committer.refresh().await?;
    check_live(&head, version)?;
    let op = OpId::random(&*log.backend.entropy)?;
    let pin = Pin { op, version, holder: holder.to_owned(), life };
    let made = async {
        log.backend.put(&log.pin_path(&pin.name()), Bytes::from(pin.encode(log.inc))).await?;
        if crate::canary!("pin-not-looked-behind") {
            return Ok(());
        }
        check_live(&*log.newest_listed(head).await?, version)?;
        log.check_there().await
    };
    if let Err(error) = made.await {
        // A pin that stays because the store is unreachable now retains too much, never too little.
        let _ = log.remove_pin(&pin).await;
        return Err(error);
    }
    Ok(pin)
}

/// Refuses a version that is not live as of a record, ignoring pins.
fn check_live(head: &Record, version: u64) -> Result<(), Error> {
    match version {
        0 => Err(Error::NoVersion(version)),
        _ if version > head.seq => Err(Error::NoVersion(version)),
        _ if head.is_live(version) => Ok(()),
        _ if head.closed => Err(Error::Removed),
        _ => Err(Error::Expired(version)),
    }
}

impl Log {
    fn pin_path(&self, name: &PinName) -> Path {
        let PinName { version, holder, op } = name;
        self.key.pins(self.inc).join(format!("{version:020}")).join(format!("{holder:032x}")).join(format!("{op}"))
    }

    fn pins_of(&self, version: u64) -> Path {
        self.key.pins(self.inc).join(format!("{version:020}"))
    }

    /// Lists the names of all pins, with one request for each thousand.
    async fn pin_names(&self) -> Result<Vec<PinName>, Error> {
        let listed = self.backend.list(&self.key.pins(self.inc), None).await?;
        Ok(listed.iter().filter_map(parse).collect())
    }

    /// Returns the pinned versions. A caller may delete a version's data only if, before this call,
    /// it knew the record in which the version is dead.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn pinned(&self) -> Result<BTreeSet<u64>, Error> {
        Ok(self.pin_names().await?.into_iter().map(|name| name.version).collect())
    }

    /// Returns whether a version has a pin.
    pub(crate) async fn is_pinned(&self, version: u64) -> Result<bool, Error> {
        Ok(self.backend.list(&self.pins_of(version), None).await?.iter().any(|path| parse(path).is_some()))
    }

    /// Returns whether a volume has a pin of a version.
    pub(crate) async fn is_pinned_for(&self, version: u64, volume: &str) -> Result<bool, Error> {
        let prefix = self.pins_of(version).join(format!("{:032x}", hash(volume, 0)));
        Ok(self.backend.list(&prefix, None).await?.iter().any(|path| parse(path).is_some()))
    }

    /// Returns the volumes that have no pin of a version: one request for each thousand pins of the
    /// version.
    pub(crate) async fn unpinned_among<'a>(&self, version: u64, volumes: &'a [String]) -> Result<Vec<&'a str>, Error> {
        let listed = self.backend.list(&self.pins_of(version), None).await?;
        let known: BTreeSet<u128> = listed.iter().filter_map(parse).map(|name| name.holder).collect();
        Ok(volumes.iter().map(String::as_str).filter(|volume| !known.contains(&hash(volume, 0))).collect())
    }

    /// Reads all pins, by version. A pin that was removed since the list is left out.
    ///
    /// # Errors
    /// When the store fails. Damaged pins are returned separately, not as an error: they still
    /// retain their versions.
    pub async fn pins(&self) -> Result<Pins, Error> {
        self.read_pins(self.pin_names().await?).await
    }

    /// Reads the pins of volumes, only those that may match the selection.
    pub(crate) async fn pins_of_volumes(&self, holders: Holders<'_>) -> Result<Vec<Pin>, Error> {
        let hashes = |names: &BTreeSet<String>| names.iter().map(|name| hash(name, 0)).collect::<BTreeSet<_>>();
        let (named, is_wanted) = match holders {
            Holders::Named(names) => (hashes(names), true),
            Holders::Accepted { kept, .. } => (hashes(kept), false),
        };
        let mut names = self.pin_names().await?;
        names.retain(|name| named.contains(&name.holder) == is_wanted);
        let mut pins = self.read_pins(names).await?.valid;
        pins.retain(|pin| pin.life == 0 && holders.are(&pin.holder));
        Ok(pins)
    }

    async fn read_pins(&self, mut names: Vec<PinName>) -> Result<Pins, Error> {
        names.sort_unstable();
        let reads = names.into_iter().map(|name| async move { self.read_pin(&name).await });
        let mut reads = futures_util::stream::iter(reads).buffered(AT_ONCE);
        let mut pins = Pins::default();
        while let Some(read) = reads.next().await {
            match read {
                Ok(pin) => pins.valid.extend(pin),
                Err(error @ (Error::Damaged { .. } | Error::Newer { .. })) => pins.damaged.push(error),
                Err(error) => return Err(error),
            }
        }
        Ok(pins)
    }

    async fn read_pin(&self, name: &PinName) -> Result<Option<Pin>, Error> {
        let path = self.pin_path(name);
        let mut tries = 0;
        loop {
            let Some(bytes) = self.backend.get(&path).await? else { return Ok(None) };
            match Pin::decode(self.inc, name, &bytes) {
                Ok(pin) => return Ok(Some(pin)),
                Err(source) if source.is_newer || tries + 1 == READ_TRIES => {
                    return Err(Error::undecodable(path, source));
                }
                Err(_) => tries += 1,
            }
            self.backend.pause(tries).await;
        }
    }

    /// Removes a pin; all removals go through here. A pin that is missing counts as removed.
    ///
    /// # Errors
    /// When the store fails or refuses.
    pub async fn remove_pin(&self, pin: &Pin) -> Result<(), Error> {
        let path = self.pin_path(&pin.name());
        delete::delete(self, &path).await.map_err(|error| Error::store(format!("deleting {path}"), error))
    }

    /// Finds the newest record, starting from a known one, by a list: a read may wrongly find
    /// nothing (A2), a list of the log may not (A4).
    async fn newest_listed(&self, known: Arc<Record>) -> Result<Arc<Record>, Error> {
        let after = self.key.record(self.inc, known.seq);
        let listed = self.backend.list(&self.key.log(self.inc), Some(&after)).await?;
        let numbers = listed.iter().filter_map(|path| path.filename()?.parse::<u64>().ok());
        match numbers.max().filter(|last| *last > known.seq) {
            Some(last) => self.newest(self.read_existing(last).await?).await,
            None => Ok(known),
        }
    }
}

fn parse(path: &Path) -> Option<PinName> {
    let mut parts = path.as_ref().rsplit('/');
    let op = OpId(u128::from_str_radix(parts.next()?, 16).ok()?);
    let holder = u128::from_str_radix(parts.next()?, 16).ok()?;
    Some(PinName { version: parts.next()?.parse().ok()?, holder, op })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_come_back_as_they_were_and_damage_is_seen() {
        let pin = Pin { op: OpId(7 << 90), version: 5, holder: "pool-1/vm1".into(), life: 0 };
        let (inc, name) = (Inc(3), pin.name());
        let bytes = pin.encode(inc);
        assert_eq!(Pin::decode(inc, &name, &bytes).unwrap(), pin);
        for bit in 0..bytes.len() * 8 {
            let mut turned = bytes.clone();
            turned[bit / 8] ^= 1 << (bit % 8);
            assert!(Pin::decode(inc, &name, &turned).is_err(), "bit {bit}");
        }
        assert!(Pin::decode(Inc(4), &name, &bytes).is_err(), "another blob's");
        for other in [Pin { version: 6, ..pin.clone() }, Pin { life: 1, ..pin.clone() }, Pin { op: OpId(1), ..pin }] {
            assert!(Pin::decode(inc, &other.name(), &bytes).is_err(), "the key of {other:?}");
        }
    }

    #[test]
    fn the_key_of_a_pin_says_what_it_keeps() {
        let key = crate::BlobKey::new(Path::from("images/disk"));
        let pin = Pin { op: OpId(9), version: 12, holder: "copy".into(), life: 2 };
        let backend = crate::Backend {
            store: Arc::new(object_store::memory::InMemory::new()),
            clock: Arc::new(env::SystemClock::default()),
            entropy: Arc::new(env::SystemEntropy),
        };
        let log = Log { backend, key, inc: Inc(1), life: 1 };
        let path = log.pin_path(&pin.name());
        assert_eq!(parse(&path), Some(pin.name()));
        assert!(path.as_ref().starts_with(&format!("images/disk/{:032x}/pin/{:020}/", 1, 12)), "{path}");
        assert_ne!(hash("a", 1), hash("a", 0), "a volume is no blob");
    }
}
