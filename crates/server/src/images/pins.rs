//! The pins by which a pool holds the images of its volumes: one for each volume, an object in the
//! image's store that names the pool and the volume.
//!
//! A copy of a pool (`cp -r`, a snapshot of the file system below, a backup put back elsewhere) has
//! the pool's id and its volumes, and must not remove the pins of the original. So a pool's name is
//! its id and a number made of the machine and of the device and inode of its data and directory. A
//! pool that was moved is a copy, too: it makes pins of its own, and the earlier ones are for its
//! user to remove, because nothing shows that no other copy needs them.
//!
//! Several versions of one blob may be images of one pool, and blobs share objects: so a pin is
//! only ever taken away if no volume of the pool has its name, whatever that volume began as.

use ::blob::{Error as BlobError, NodeHash};
use env::{OriginError, RemoteImage};
use parking_lot::Mutex;

use super::{Images, named, open};

/// What identifies the machine; missing in some containers.
const MACHINE_ID: &str = "/etc/machine-id";

/// Names a copy of a pool. `copy`: device and inode of its data and of its directory.
pub fn pool_holder(pool_id: &str, copy: &[u8; 32]) -> String {
    let machine = std::fs::read(MACHINE_ID).unwrap_or_default();
    format!("{pool_id}/{:016x}", NodeHash::of(&[copy, &machine[..]].concat()).0 as u64)
}

/// Names the holder of an image for a volume.
pub fn holder(pool: &str, volume: &str) -> String {
    format!("{pool}/{volume}")
}

/// Returns whether a pin is of another copy of a pool.
pub fn is_of_another_copy(pool: &str, holder: &str) -> bool {
    let of =
        |name: &str| name.split_once('/').map(|(id, rest)| (id.to_owned(), rest.split('/').next().map(str::to_owned)));
    match (of(pool), of(holder)) {
        (Some((id, copy)), Some((held_id, held_copy))) => id == held_id && copy != held_copy,
        _ => false,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_a_pool_have_names_of_their_own() {
        let (original, copy) = (pool_holder("id", &[1; 32]), pool_holder("id", &[2; 32]));
        assert_eq!(original, pool_holder("id", &[1; 32]));
        assert_ne!(original, copy);
        assert!(original.starts_with("id/"));
        assert!(is_of_another_copy(&original, &holder(&copy, "vm")));
        assert!(!is_of_another_copy(&original, &holder(&original, "vm")));
        let other = pool_holder("other", &[2; 32]);
        assert!(!is_of_another_copy(&original, &holder(&other, "vm")) && !is_of_another_copy(&original, "vm"));
    }
}
