//! How much of images is here, and how their stores answer.

use env::RemoteImage;
use surface::Result;
use units::BLOCK_BYTES;

use crate::objects::Object;
use crate::objects::images::remote_of;
use crate::pool::Pool;

/// An image of which volumes of the pool need something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageStatus {
    /// The image.
    pub image: RemoteImage,
    /// The volumes that fall through to it, by name.
    pub volumes: Vec<String>,
    /// The volumes that streams are bringing, and that will.
    pub incoming: Vec<String>,
    /// Bytes of it that are here and are not zeroes: exact at a checkpoint, estimated since.
    pub local_bytes: u64,
    /// What they take, as stored.
    pub stored_bytes: u64,
    /// Groups that have been fetched since the pool was opened.
    pub fetched_groups: u64,
    /// Their bytes, as they came.
    pub fetched_bytes: u64,
    /// Attempts that failed since then.
    pub failures: u64,
    /// Why the last attempt failed, if it did.
    pub last_error: Option<String>,
    /// Requests that wait for the store now.
    pub waiting: u64,
    /// The rest is to be fetched in the background, and the pool is too full to keep it.
    pub lacks_room: bool,
    /// Fetching in the background found all here that the volumes need: the store is not needed.
    pub is_whole: bool,
}

impl Pool {
    /// All of them, oldest first.
    pub fn images(&self) -> Vec<ImageStatus> {
        self.core.objects.images().iter().filter_map(|object| self.image_status(object)).collect()
    }

    /// The image that a volume or a snapshot falls through to; none if it does not.
    ///
    /// # Errors
    /// [`surface::ErrorKind::NotFound`].
    pub fn image_of(&self, name: &str) -> Result<Option<ImageStatus>> {
        let object = self.core.objects.readable(name)?;
        let below = object.levels().last().filter(|level| level.image.is_some()).map(|level| level.object);
        Ok(below.and_then(|id| self.core.objects.get(id)).and_then(|image| self.image_status(&image)))
    }

    fn image_status(&self, object: &Object) -> Option<ImageStatus> {
        let image = object.descriptor.read().image.clone()?;
        let sees = |volume: &Object| volume.levels().last().is_some_and(|level| level.object == object.id);
        let volumes = self.core.objects.volumes().into_iter().filter(|volume| sees(volume));
        let incoming = self.core.objects.all_incoming().into_iter().filter(|volume| sees(volume));
        let contact = self.core.images.state.lock().contacts.get(&object.id).cloned().unwrap_or_default();
        Some(ImageStatus {
            image: remote_of(&image),
            volumes: volumes.map(|volume| volume.title()).collect(),
            incoming: incoming.map(|volume| volume.title()).collect(),
            local_bytes: object.allocated_bytes().min(image.len.next_multiple_of(BLOCK_BYTES as u64)),
            stored_bytes: object.stored_now(),
            fetched_groups: contact.fetched_groups,
            fetched_bytes: contact.fetched_bytes,
            failures: contact.failures,
            last_error: contact.last_error,
            waiting: contact.waiting,
            lacks_room: contact.lacks_room && self.core.hydration_of(object.id).is_some(),
            is_whole: contact.is_whole,
        })
    }
}
