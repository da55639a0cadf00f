//! The objects that hold the fetched groups of images.

use std::sync::Arc;

use env::RemoteImage;
use format::ImagePart;
use units::ObjectId;

use super::{Object, Objects};

/// Returns an object's image, in the form for requests to its store.
pub fn remote_of(image: &ImagePart) -> RemoteImage {
    RemoteImage {
        location: image.location.clone(),
        incarnation: image.incarnation,
        version: image.version,
        len: image.len,
    }
}

impl Objects {
    /// All of them that some point sees, by id.
    pub fn images(&self) -> Vec<Arc<Object>> {
        let table = self.table.read();
        let ids = table.images.iter().filter(|id| table.points.any(**id));
        ids.filter_map(|id| table.by_id.get(id).cloned()).collect()
    }

    /// Whether an object is one.
    pub fn is_image(&self, id: ObjectId) -> bool {
        self.table.read().images.contains(&id)
    }

    /// That of an image.
    pub fn of_image(&self, image: &ImagePart) -> Option<Arc<Object>> {
        let is_it = |object: &Arc<Object>| object.descriptor.read().image.as_deref() == Some(image);
        self.images().into_iter().find(is_it)
    }

    /// Returns the highest rate at which a volume asks for the rest of an image; none if none does.
    pub fn hydration_of(&self, image: ObjectId) -> Option<u64> {
        let sees = |object: &Object| object.levels().last().is_some_and(|level| level.object == image);
        let volumes = self.volumes().into_iter().filter(|volume| sees(volume));
        volumes.filter_map(|volume| volume.settings.read().remote.hydrate).max()
    }
}
