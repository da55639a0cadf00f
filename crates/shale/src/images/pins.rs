//! The pins by which a pool holds the images of its volumes: one for each volume, under the pool's
//! id and the volume's name. Owns the rule where the two differ: a volume without a pin gets
//! one, a pin without a volume goes.

use ::blob::Error as BlobError;
use env::{OriginError, RemoteImage};

use super::{Images, open};

/// What holds an image for a volume.
pub fn holder(pool_id: &str, volume: &str) -> String {
    format!("{pool_id}/{volume}")
}

impl Images {
    /// Makes sure that an image is there, as this process sees it, and held for a volume.
    ///
    /// # Errors
    /// Why not.
    pub fn hold(&self, image: &RemoteImage, holder: &str) -> Result<(), OriginError> {
        let done = self.attempt(async { self.opened(image).await?.image.pin(holder).await });
        if done.is_err() {
            self.forget(image);
        }
        done
    }

    /// Holds an image for these volumes of a pool, and for no others of that pool.
    ///
    /// # Errors
    /// The first thing that could not be done.
    pub fn hold_for(&self, image: &RemoteImage, pool_id: &str, volumes: &[String]) -> Result<(), OriginError> {
        let holders: Vec<String> = volumes.iter().map(|volume| holder(pool_id, volume)).collect();
        for holder in &holders {
            self.hold(image, holder)?;
        }
        self.let_go(image, |known| {
            known.strip_prefix(pool_id).is_some_and(|rest| rest.starts_with('/'))
                && !holders.iter().any(|holder| holder == known)
        })
    }

    /// Takes pins away.
    ///
    /// # Errors
    /// When the store fails.
    pub fn let_go(&self, image: &RemoteImage, is_meant: impl Fn(&str) -> bool) -> Result<(), OriginError> {
        // The version may be given up already: then nothing holds it.
        let work = async {
            match open(image).await {
                Ok(open) => open.unpin(is_meant).await.map(drop),
                Err(BlobError::Expired(_) | BlobError::NoVersion(_) | BlobError::Missing(_)) => Ok(()),
                Err(error) => Err(error),
            }
        };
        self.attempt(work)
    }
}
