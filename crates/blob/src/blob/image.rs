//! A version of a blob as the image of volumes. Owns the pins that retain it while a volume needs
//! it: a volume is not a blob, so only its pool knows when it is gone. Any task may call it.
//!
//! The order keeps the objects from being deleted: first the version is *pinned* in every blob
//! whose packs it names, in the volume's name; then the volume is *created*. The pins are removed
//! when no volume of the pool needs the image any more, or by hand when the pool is gone.

use std::collections::BTreeSet;

use object_store::path::Path;

use crate::blob::{Blob, Entry};
use crate::error::Error;
use crate::names::{BlobKey, Inc};
use crate::protocol::clone::{BlobRef, pin_everywhere, places};
use crate::protocol::pins::{Holders, Pin};
use crate::store::connect::{At, Connection};

/// A version, and the blobs that own its packs.
#[derive(Debug)]
pub struct Image {
    blob: Blob,
    version: Entry,
    location: String,
    origins: Vec<(Blob, String)>,
}

impl Image {
    /// Opens the newest incarnation at a key.
    ///
    /// # Errors
    /// As [`Blob::open`] and [`Blob::version`].
    pub async fn open(connection: &Connection, key: BlobKey, at: &At) -> Result<Self, Error> {
        let blob = Blob::open(connection, key).await?;
        let version = match at {
            At::Newest => blob.newest_or_rewritten().await?,
            at => blob.version(at).await?,
        };
        Self::with(connection, blob, version).await
    }

    /// Opens an incarnation that may have been removed from its key, if a pin still retains the
    /// version.
    ///
    /// # Errors
    /// [`Error::Missing`] when the key never had it; [`Error::Expired`] when the version has
    /// expired.
    pub async fn open_incarnation(
        connection: &Connection,
        key: BlobKey,
        inc: Inc,
        version: u64,
    ) -> Result<Self, Error> {
        let blob = match Blob::open(connection, key.clone()).await {
            Ok(blob) if blob.log().inc() == inc => blob,
            Ok(_) | Err(Error::Missing(_)) => Blob::open_incarnation(connection, key, inc).await?,
            Err(error) => return Err(error),
        };
        let version = blob.version(&At::Number(version)).await?;
        Self::with(connection, blob, version).await
    }

    async fn with(connection: &Connection, blob: Blob, version: Entry) -> Result<Self, Error> {
        let mut origins = Vec::with_capacity(version.origins.len());
        for origin in &version.origins {
            let key = BlobKey::new(Path::from(origin.location.as_str()));
            origins.push((Blob::open_incarnation(connection, key, origin.inc).await?, origin.location.clone()));
        }
        let location = blob.log().key().path().to_string();
        Ok(Self { blob, version, location, origins })
    }

    /// Returns the blob.
    pub const fn blob(&self) -> &Blob {
        &self.blob
    }

    /// Returns the version.
    pub const fn version(&self) -> &Entry {
        &self.version
    }

    fn places(&self) -> (BlobRef<'_>, Vec<BlobRef<'_>>) {
        let origins = self.origins.iter().map(|(blob, location)| BlobRef { committer: blob.committer(), location });
        (BlobRef { committer: self.blob.committer(), location: &self.location }, origins.collect())
    }

    /// Pins the version for a volume; returns the new pins.
    async fn pin_again(&self, holder: &str) -> Result<Vec<(BlobRef<'_>, Pin)>, Error> {
        let (source, origins) = self.places();
        match pin_everywhere(source, &self.version, &origins, holder, 0).await {
            Err(Error::Removed) => Err(Error::Refused(format!(
                "{} was removed, or uses objects of a blob that was removed: copy it with `shale blob cp`",
                self.location
            ))),
            pinned => pinned,
        }
    }

    /// Pins the version for a volume, unless it is pinned for it already.
    ///
    /// # Errors
    /// [`Error::Expired`] when it has expired.
    pub async fn pin(&self, holder: &str) -> Result<(), Error> {
        let (source, origins) = self.places();
        for (place, version) in places(source, &self.version, &origins) {
            place.committer.log().check_version_there(version).await?;
            if !place.committer.log().is_pinned_for(version, holder).await? {
                return self.pin_again(holder).await.map(drop);
            }
        }
        Ok(())
    }

    /// Pins the version for many volumes, except those for which it is pinned already.
    ///
    /// # Errors
    /// As [`pin`](Self::pin).
    pub async fn pin_all(&self, holders: &[String]) -> Result<(), Error> {
        let (source, origins) = self.places();
        let mut missing = BTreeSet::new();
        for (place, version) in places(source, &self.version, &origins) {
            place.committer.log().check_version_there(version).await?;
            missing.extend(place.committer.log().unpinned_among(version, holders).await?);
        }
        for holder in missing {
            self.pin_again(holder).await?;
        }
        Ok(())
    }

    /// Returns whether the version has any pin, of a volume or of a clone.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn has_pins(&self) -> Result<bool, Error> {
        self.blob.log().is_pinned(self.version.seq).await
    }

    /// Returns whether the version is pinned for a volume.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn is_pinned(&self, holder: &str) -> Result<bool, Error> {
        self.blob.log().is_pinned_for(self.version.seq, holder).await
    }

    /// Pins the version for a volume, then awaits `make`, which creates the volume. If that fails,
    /// the new pin is removed.
    ///
    /// # Errors
    /// As [`pin`](Self::pin), and the errors of `make`.
    pub async fn pinned<T, E: From<Error>>(
        &self,
        holder: &str,
        make: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        if crate::canary!("pin-after-clone") {
            let made = make.await?;
            let _ = self.pin(holder).await;
            return Ok(made);
        }
        // An existing pin may belong to a process that was killed before it knew whether the pin
        // holds, so another one is made.
        let pins = self.pin_again(holder).await?;
        let made = make.await;
        if made.is_err() {
            for (place, pin) in pins {
                // A pin that stays because the store is unreachable only retains too much; `stat`
                // shows it.
                let _ = place.committer.log().remove_pin(&pin).await;
            }
        }
        made
    }

    /// Removes the pins of the selected volumes from all versions; returns their number.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn unpin(&self, holders: Holders<'_>) -> Result<u64, Error> {
        let mut taken = self.blob.unpin(holders).await?;
        for (origin, _) in &self.origins {
            taken += origin.unpin(holders).await?;
        }
        Ok(taken)
    }
}

impl Blob {
    /// Removes the pins of the selected volumes from this blob; returns their number. Pins of
    /// clones stay: gc knows when the clones are gone.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn unpin(&self, holders: Holders<'_>) -> Result<u64, Error> {
        let pins = self.log().pins_of_volumes(holders).await?;
        for pin in &pins {
            self.log().remove_pin(pin).await?;
        }
        Ok(pins.len() as u64)
    }

    /// Returns the oldest record that has the pieces of the newest version, followed only by tags,
    /// fences and the like: the record that made the version, or the last one that reordered its
    /// frames. So all volumes that start from the newest version start from the same record.
    pub async fn newest_or_rewritten(&self) -> Result<Entry, Error> {
        let head = self.refresh().await?;
        let is_content = |entry: &Entry| entry.layout == head.layout && entry.size == head.size;
        let mut found = head.clone();
        while !found.is_version() && found.seq > 1 {
            match self.version(&At::Number(found.seq - 1)).await {
                Ok(older) if is_content(&older) => found = older,
                Ok(_) | Err(Error::NoVersion(_) | Error::Expired(_)) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }
}
