//! Status of images: how much of them has been fetched, and the state of their stores.

use std::sync::Arc;

use env::RemoteImage;
use store::objects::Object;
use store::objects::images::remote_of;
use surface::Result;
use units::BLOCK_BYTES;

use crate::pool::Pool;
use crate::read::ending::Unwritten;
use crate::read::lacking::Patience;

/// An image that volumes of the pool need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageStatus {
    /// The image.
    pub image: RemoteImage,
    /// The volumes that are backed by it, by name.
    pub volumes: Vec<String>,
    /// The volumes being received that will be backed by it.
    pub incoming: Vec<String>,
    /// Bytes of it that are fetched and are not zeroes: exact at a checkpoint, estimated since.
    pub local_bytes: u64,
    /// Their stored size.
    pub stored_bytes: u64,
    /// Groups that have been fetched since the pool was opened.
    pub fetched_groups: u64,
    /// Their bytes, as received.
    pub fetched_bytes: u64,
    /// Attempts that failed since then.
    pub failures: u64,
    /// Why the last attempt failed, if it did.
    pub last_error: Option<String>,
    /// It is gone, or a part of it, and volumes need it.
    pub is_gone: bool,
    /// A part of it arrived damaged, and has not arrived whole since.
    pub is_damaged: bool,
    /// Requests that wait for the store now.
    pub waiting: u64,
    /// The rest should be fetched in the background, but the pool is too full to keep it.
    pub lacks_room: bool,
    /// Fetching in the background is complete for all its volumes: the store is not needed.
    pub is_whole: bool,
}

impl Pool {
    /// Returns all images, oldest first.
    pub fn images(&self) -> Vec<ImageStatus> {
        self.core.objects.images().iter().filter_map(|object| self.image_status(object)).collect()
    }

    /// Returns the image that backs a volume or a snapshot; none if there is none.
    ///
    /// # Errors
    /// [`surface::ErrorKind::NotFound`].
    pub fn image_of(&self, name: &str) -> Result<Option<ImageStatus>> {
        let object = self.core.objects.readable(name)?;
        let below = object.levels().last().filter(|level| level.image.is_some()).map(|level| level.object);
        Ok(below.and_then(|id| self.core.objects.get(id)).and_then(|image| self.image_status(&image)))
    }

    /// Notes that an image could not be held for its volumes because it is gone: its status shows
    /// that.
    pub fn note_gone(&self, image: &RemoteImage, why: String) {
        if let Some(object) = self.object_of(image) {
            self.core.reads.images.state.lock().contacts.entry(object.id).or_default().unheld = Some(why);
        }
    }

    /// Notes that an image is held for its volumes. A part of it that was gone is requested again:
    /// it may be back.
    pub fn note_held(&self, image: &RemoteImage) {
        let Some(object) = self.object_of(image) else { return };
        let gone = {
            let mut state = self.core.reads.images.state.lock();
            let Some(contact) = state.contacts.get_mut(&object.id) else { return };
            (contact.unheld, contact.retry_at) = (None, 0);
            contact.gone
        };
        if let Some(key) = gone {
            // The outcome is in the image's status.
            let _ = self.core.fetches.fetch(&[key], &Patience::once(self.core.vitals.env.clock.now_ns()));
        }
    }

    /// Notes that the process is about to end: from now on no request waits long for the store of
    /// an image that does not answer. One that answers is still used.
    pub fn end_fetching(&self) {
        self.core.reads.images.end(self.core.vitals.env.clock.now_ns());
    }

    /// Returns the changes of volumes that failed since then.
    pub fn unwritten(&self) -> Vec<Unwritten> {
        self.core.reads.images.state.lock().unwritten.values().cloned().collect()
    }

    fn object_of(&self, image: &RemoteImage) -> Option<Arc<Object>> {
        let is_it = |object: &Arc<Object>| {
            object.descriptor.read().image.as_ref().is_some_and(|known| remote_of(known) == *image)
        };
        self.core.objects.images().into_iter().find(is_it)
    }

    fn image_status(&self, object: &Object) -> Option<ImageStatus> {
        let image = object.descriptor.read().image.clone()?;
        let sees = |volume: &Object| volume.levels().last().is_some_and(|level| level.object == object.id);
        let volumes = self.core.objects.volumes().into_iter().filter(|volume| sees(volume));
        let incoming = self.core.objects.all_incoming().into_iter().filter(|volume| sees(volume));
        let contact = self.core.reads.images.state.lock().contacts.get(&object.id).cloned().unwrap_or_default();
        Some(ImageStatus {
            image: remote_of(&image),
            volumes: volumes.map(|volume| volume.title()).collect(),
            incoming: incoming.map(|volume| volume.title()).collect(),
            local_bytes: object.allocated_bytes().min(image.len.next_multiple_of(BLOCK_BYTES as u64)),
            stored_bytes: object.stored_now(),
            fetched_groups: contact.fetched_groups,
            fetched_bytes: contact.fetched_bytes,
            failures: contact.failures,
            is_gone: (contact.gone.is_some() || contact.unheld.is_some()) && !contact.is_whole,
            is_damaged: contact.damaged.is_some() && !contact.is_whole,
            last_error: contact.last_error.or(contact.unheld),
            waiting: contact.waiting,
            lacks_room: contact.lacks_room && self.core.objects.hydration_of(object.id).is_some(),
            is_whole: contact.is_whole,
        })
    }
}
