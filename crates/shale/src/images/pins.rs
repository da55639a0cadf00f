//! The pins by which a pool holds the images of its volumes: one for each volume, an object in the
//! image's store that names the pool's id and the volume.
//!
//! Several versions of one blob may be images of one pool, and blobs share objects: so a pin is
//! only ever taken away if no volume of the pool has its name, whatever that volume began as.

use ::blob::Error as BlobError;
use env::{OriginError, RemoteImage};
use parking_lot::Mutex;

use super::{Images, named, open};

/// Returns the name under which an image is pinned for a volume.
pub fn holder(pool_id: &str, volume: &str) -> String {
    format!("{pool_id}/{volume}")
}

impl Images {
    /// Makes sure that an image is there, as this process sees it, and held for a volume.
    ///
    /// # Errors
    /// Why not.
    pub fn hold(&self, image: &RemoteImage, holder: &str) -> Result<(), OriginError> {
        let done = self.attempt(image, async {
            self.opened(image).await?.image.pin(holder).await.map_err(|error| named(error, image))
        });
        if done.is_err() {
            self.forget(image);
        }
        done
    }

    /// Makes sure that an image is there, and held for all of its volumes.
    ///
    /// # Errors
    /// Why not.
    pub fn hold_all(&self, image: &RemoteImage, holders: &[String]) -> Result<(), OriginError> {
        let done = self.attempt(image, async {
            self.opened(image).await?.image.pin_all(holders).await.map_err(|error| named(error, image))
        });
        if done.is_err() {
            self.forget(image);
        }
        done
    }

    /// Takes the pins away that are meant, of whatever version of the blob.
    ///
    /// # Errors
    /// When the store fails.
    pub fn let_go(&self, image: &RemoteImage, is_meant: impl Fn(&str) -> bool) -> Result<(), OriginError> {
        // The version may be given up already: then nothing holds it.
        let work = async {
            match open(image, &Mutex::default()).await {
                Ok(open) => open.unpin(is_meant).await.map(drop),
                Err(
                    BlobError::Expired(_) | BlobError::NoVersion(_) | BlobError::Missing(_) | BlobError::Vanished(_),
                ) => Ok(()),
                Err(error) => Err(error),
            }
        };
        self.attempt(image, work)
    }
}
