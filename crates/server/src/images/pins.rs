//! The pins that keep the images of a pool's volumes: one per volume, an object in the image's
//! store that names the pool and the volume.
//!
//! A copy of a pool (`cp -r`, a snapshot of the file system below, a backup restored elsewhere) has
//! the pool's id and its volumes, and must not remove the pins of the original. So a pool's name is
//! its id and a number derived from the machine and from the [place](super::place) of its data and
//! directory. A pool that was moved is a copy, too: it makes pins of its own, and its user removes
//! the earlier ones, because nothing shows that no other copy needs them.
//!
//! Several versions of one blob may be images of one pool, and blobs share objects: so a pin is
//! removed only if no volume of the pool has its name, whatever image that volume began as.

use ::blob::{Error as BlobError, Holders, NodeHash};
use env::{OriginError, RemoteImage};
use parking_lot::Mutex;

use super::{Images, named, open};

/// File that identifies the machine; missing in some containers.
const MACHINE_ID: &str = "/etc/machine-id";

/// Returns the name of the copy of a pool at that [place](super::place_of).
pub fn pool_holder(pool_id: &str, place: &str) -> String {
    let machine = std::fs::read(MACHINE_ID).unwrap_or_default();
    format!("{pool_id}/{:016x}", NodeHash::of(&[place.as_bytes(), &machine[..]].concat()).0 as u64)
}

/// Returns the name of the holder of an image for a volume.
pub fn holder(pool: &str, volume: &str) -> String {
    format!("{pool}/{volume}")
}

/// Returns whether a pin belongs to another copy of a pool.
pub fn is_of_another_copy(pool: &str, holder: &str) -> bool {
    let of =
        |name: &str| name.split_once('/').map(|(id, rest)| (id.to_owned(), rest.split('/').next().map(str::to_owned)));
    match (of(pool), of(holder)) {
        (Some((id, copy)), Some((held_id, held_copy))) => id == held_id && copy != held_copy,
        _ => false,
    }
}

impl Images {
    /// Ensures that an image exists, as seen by this process, and is pinned for a volume.
    ///
    /// # Errors
    /// Why it is not.
    pub fn hold(&self, image: &RemoteImage, holder: &str) -> Result<(), OriginError> {
        let done = self.attempt(image, async {
            self.opened(image).await?.image.pin(holder).await.map_err(|error| named(error, image))
        });
        if done.is_err() {
            self.forget(image);
        }
        done
    }

    /// Ensures that an image exists, and is pinned for all of its volumes.
    ///
    /// # Errors
    /// Why it is not.
    pub fn hold_all(&self, image: &RemoteImage, holders: &[String]) -> Result<(), OriginError> {
        let done = self.attempt(image, async {
            self.opened(image).await?.image.pin_all(holders).await.map_err(|error| named(error, image))
        });
        if done.is_err() {
            self.forget(image);
        }
        done
    }

    /// Returns whether any pin keeps an image. A pinned image is not gone, although an abandoned
    /// version gets no new pins: a renamed volume holds it under its earlier name.
    pub fn has_pins(&self, image: &RemoteImage) -> bool {
        self.attempt(image, async { self.opened(image).await?.image.has_pins().await }).unwrap_or(false)
    }

    /// Removes the selected pins, of any version of the blob.
    ///
    /// # Errors
    /// When the store fails.
    pub fn let_go(&self, image: &RemoteImage, holders: Holders<'_>) -> Result<(), OriginError> {
        // The version may be abandoned already: then nothing holds it.
        let work = async {
            match open(image, &Mutex::default()).await {
                Ok(open) => open.unpin(holders).await.map(drop),
                Err(
                    BlobError::Expired(_) | BlobError::NoVersion(_) | BlobError::Missing(_) | BlobError::Vanished(_),
                ) => Ok(()),
                Err(error) => Err(error),
            }
        };
        self.attempt(image, work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_a_pool_have_names_of_their_own() {
        let (original, copy) = (pool_holder("id", "here"), pool_holder("id", "there"));
        assert_eq!(original, pool_holder("id", "here"));
        assert_ne!(original, copy);
        assert!(original.starts_with("id/"));
        assert!(is_of_another_copy(&original, &holder(&copy, "vm")));
        assert!(!is_of_another_copy(&original, &holder(&original, "vm")));
        let other = pool_holder("other", "there");
        assert!(!is_of_another_copy(&original, &holder(&other, "vm")) && !is_of_another_copy(&original, "vm"));
    }
}
