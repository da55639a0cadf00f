//! Making a volume from an image.

use env::RemoteImage;
use format::{Entry, INCOMPAT_IMAGES, ImagePart, ObjectDescriptor, ObjectState, Origin};
use policy::Owner;
use surface::{DeviceId, Error, ErrorKind, Result};
use units::{BLOCK_BYTES, Epoch, OBJECT_BYTES_MAX, ObjectId, format_size};

use crate::base::options::Properties;
use crate::log::superblock_copies;
use crate::objects::names::check_full_name;
use crate::objects::properties;
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

/// What messages call it.
fn name_of(image: &RemoteImage) -> String {
    let location: String = image.location.chars().take(NAME_BYTES_MAX / 4).collect();
    format!("{location}@{}", image.version)
}

impl Pool {
    /// Makes a volume that begins as an image is, without fetching any of it. It is as large as the
    /// image, rounded up to 4096 bytes, or of `size_bytes` if that is more; behind the image it
    /// reads as zeroes. From then on older programs do not open the pool. Its number; durable on
    /// return.
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
        // Its log may say anything.
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
        let _admin = core.admin.lock();
        self.check_free(name)?;
        let (parent, short) = core.place_for(name, false)?;
        let inherited = core.objects.inherited_in(parent);
        let reserved = properties::resolved_for(name, &inherited, own)?.reservation_bytes;
        let mut entries = Vec::new();
        // One that some point sees stays; one that none sees is on its way out.
        let object = match core.objects.of_image(&part) {
            Some(object) => object.id,
            None => {
                let id = ObjectId(core.objects.next_id());
                let size_bytes = least.max(1);
                entries.push(Entry::Object(ObjectDescriptor {
                    state: ObjectState::Deleting,
                    created_unix_s: core.env.clock.unix_s(),
                    image: Some(Box::new(part)),
                    ..ObjectDescriptor::volume(id, name_of(image), size_bytes)
                }));
                id
            }
        };
        let id = ObjectId(core.objects.next_id().max(object.0 + 1));
        core.check_reservation(id, reserved)?;
        superblock_copies::mark_feature(&core.env, INCOMPAT_IMAGES).inspect_err(|error| core.fail(error))?;
        entries.push(Entry::Object(ObjectDescriptor {
            origin: Some(Origin { object, epoch: Epoch(0) }),
            parent,
            created_unix_s: core.env.clock.unix_s(),
            properties: own.clone(),
            ..ObjectDescriptor::volume(id, short, size_bytes)
        }));
        core.append_durably(entries)?;
        core.count_reservations();
        // It may need what all others have overwritten.
        core.images.state.lock().contacts.entry(object).or_default().is_whole = false;
        Ok(DeviceId(id.0))
    }
}
