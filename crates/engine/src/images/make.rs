//! Creates a volume from an image.

use env::RemoteImage;
use format::{Entry, INCOMPAT_IMAGES, ImagePart, ObjectDescriptor, ObjectState, Origin};
use policy::Owner;
use store::base::options::Properties;
use store::log::superblock_copies;
use store::map::group_pages::image_below;
use store::objects::Object;
use store::objects::names::check_full_name;
use store::objects::properties;
use surface::{DeviceId, Error, ErrorKind, Result};
use units::{BLOCK_BYTES, Epoch, OBJECT_BYTES_MAX, ObjectId, format_size};

use crate::images::parts::Images;
use crate::pool::Pool;

/// Longest part of a location in the name that messages give an image.
const NAME_BYTES_MAX: usize = 200;

fn part_of(image: &RemoteImage) -> ImagePart {
    ImagePart {
        location: image.location.clone(),
        incarnation: image.incarnation,
        version: image.version,
        len: image.len,
    }
}

/// The image's name in messages.
fn name_of(image: &ImagePart) -> String {
    let location: String = image.location.chars().take(NAME_BYTES_MAX / 4).collect();
    format!("{location}@{}", image.version)
}

impl Images {
    /// Returns the image at the bottom of an object's chain.
    pub(crate) fn image_below(&self, object: &Object) -> Option<ImagePart> {
        let id = image_below(&object.levels())?.object;
        let image = self.objects.get(id)?.descriptor.read().image.clone();
        image.map(|part| *part)
    }

    /// Returns the object of an image, and the entry that creates it if there is none. Names the
    /// feature in the superblock. The caller holds `admin`, and calls `mark_incomplete` when it has
    /// created the volume.
    ///
    /// # Errors
    /// Those of the storage.
    pub(crate) fn object_of_image(&self, part: ImagePart) -> Result<(ObjectId, Option<Entry>)> {
        superblock_copies::mark_feature(&self.vitals.env, INCOMPAT_IMAGES)
            .inspect_err(|error| self.vitals.fail(error))?;
        // One that some point sees stays; one that none sees is being removed.
        if let Some(object) = self.objects.of_image(&part) {
            return Ok((object.id, None));
        }
        let id = ObjectId(self.objects.next_id());
        let size_bytes = part.len.next_multiple_of(BLOCK_BYTES as u64).max(1);
        let name = name_of(&part);
        let descriptor = ObjectDescriptor {
            state: ObjectState::Deleting,
            created_unix_s: self.vitals.env.clock.unix_s(),
            image: Some(Box::new(part)),
            ..ObjectDescriptor::volume(id, name, size_bytes)
        };
        Ok((id, Some(Entry::Object(descriptor))))
    }

    /// Notes that another volume begins as this image: it may need groups that all others have
    /// overwritten.
    pub(crate) fn mark_incomplete(&self, image: ObjectId) {
        self.reads.images.state.lock().contacts.entry(image).or_default().is_whole = false;
    }
}

impl Pool {
    /// Creates a volume with the content of an image, without fetching any of it. It is as large as
    /// the image, rounded up to 4096 bytes, or of `size_bytes` if that is more; beyond the image it
    /// reads as zeroes. Names the feature in the superblock. Returns its number; durable on return.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for names, sizes and properties; [`ErrorKind::NotFound`] for its
    /// folder; [`ErrorKind::Exists`].
    pub fn clone_image(
        &self,
        image: &RemoteImage,
        name: &str,
        size_bytes: Option<u64>,
        own: &Properties,
    ) -> Result<DeviceId> {
        check_full_name(name)?;
        properties::check(Owner::Volume, own)?;
        // The store's log may contain anything.
        let least = image.len.checked_next_multiple_of(BLOCK_BYTES as u64).unwrap_or(u64::MAX);
        let size_bytes = size_bytes.unwrap_or(least).max(least);
        if size_bytes == 0 || size_bytes > OBJECT_BYTES_MAX {
            let size = format_size(size_bytes);
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("a volume cannot have {size}: the image has {}", image.len),
            ));
        }
        let part = part_of(image);
        let core = &self.core;
        let _admin = core.objects.admin.lock();
        self.check_free(name)?;
        let (parent, short) = core.history.place_for(name, false)?;
        let inherited = core.objects.inherited_in(parent);
        let reserved = properties::resolved_for(name, &inherited, own)?.reservation_bytes;
        core.writes.check_reservation(ObjectId(core.objects.next_id()), reserved)?;
        let (object, entry) = core.images.object_of_image(part)?;
        let mut entries: Vec<Entry> = entry.into_iter().collect();
        let id = ObjectId(core.objects.next_id().max(object.0 + 1));
        entries.push(Entry::Object(ObjectDescriptor {
            origin: Some(Origin { object, epoch: Epoch(0) }),
            parent,
            created_unix_s: core.vitals.env.clock.unix_s(),
            properties: own.clone(),
            ..ObjectDescriptor::volume(id, short, size_bytes)
        }));
        core.writes.append_durably(entries)?;
        core.space.count_reservations();
        core.images.mark_incomplete(object);
        Ok(DeviceId(id.0))
    }
}
