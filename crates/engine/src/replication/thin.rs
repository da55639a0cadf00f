//! Thin streams: of a snapshot backed by an image, only the difference from the image, and the
//! image's identity.
//!
//! 1. The sender compares the snapshot with the image, as it does two snapshots: a part of the
//!    image that is cached in the pool is in both. It needs no store.
//! 2. The stream names the image. Beyond a volume's end, too, it has holes where the image has
//!    data: the volume may be made larger again.
//! 3. The receiver creates a volume backed by that image, and applies the difference. A partial
//!    thin receive can only be continued by a thin stream of the same image: any other has
//!    different content for the blocks that it leaves out.
//!
//! Differences between snapshots need none of that: they have no block that both share from an
//! image. The receiver's user ensures that the image's store keeps the version.

use std::sync::Arc;

use env::RemoteImage;
use format::{ImagePart, ObjectState, StreamBegin};
use store::objects::Object;
use store::objects::images::remote_of;
use surface::{Error, ErrorKind, Result};
use units::GroupIndex;

use crate::pool::Pool;
use crate::replication::receive::{Receiver, conflict};
use crate::replication::send::Sender;

/// Returns the error for an object without such a stream.
pub(super) fn no_image(object: &Object) -> Error {
    let text = format!("'{}' is not backed by an image: send it whole, without --thin", object.title());
    Error::new(ErrorKind::Invalid, text)
}

fn text_of(image: Option<&ImagePart>) -> String {
    image.map_or_else(
        || "a whole snapshot".to_owned(),
        |image| format!("the difference from the image {}@{}", image.location, image.version),
    )
}

impl Pool {
    /// Returns a stream with all data that `snapshot` (`VOLUME@SNAPSHOT`) has in addition to the
    /// image below it, for a receiver that has no data of it and can reach the image.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::Invalid`] without an image, and those of a checkpoint.
    pub fn send_thin(&self, snapshot: &str) -> Result<Sender> {
        let to = self.core.objects.snapshot_named(snapshot)?;
        let image = self.image_for(&to)?;
        self.sender(to, None, GroupIndex(0), Some(image))
    }

    pub(super) fn image_for(&self, to: &Object) -> Result<ImagePart> {
        self.core.images.image_below(to).ok_or_else(|| no_image(to))
    }

    /// Fails if a volume being received is backed by another image than its rest would be.
    pub(super) fn check_image(&self, volume: &Object, begin: &StreamBegin) -> Result<()> {
        let is_new = volume.descriptor.read().state == ObjectState::Incoming;
        let has = self.core.images.image_below(volume);
        if !is_new || has == begin.image {
            return Ok(());
        }
        Err(conflict(format!(
            "'{}' was partly received as {}, but the stream brings {}: continue with the resume token (status \
             shows it), or destroy it first (shale destroy --partial POOL {})",
            volume.title(),
            text_of(has.as_ref()),
            text_of(begin.image.as_ref()),
            volume.title()
        )))
    }

    /// Returns whether a part of a volume was received as the difference from an image.
    pub(super) fn is_thin(&self, volume: &Arc<Object>) -> bool {
        let is_new = volume.descriptor.read().state == ObjectState::Incoming;
        is_new && self.core.images.image_below(volume).is_some()
    }
}

impl Receiver {
    /// Returns the image that will back the received volume, once the beginning has been received.
    pub fn image(&self) -> Option<RemoteImage> {
        self.begin_chunk()?.image.as_ref().map(remote_of)
    }
}

impl Sender {
    /// Returns the image that will back the volume.
    pub fn image(&self) -> Option<RemoteImage> {
        self.begin().image.as_ref().map(remote_of)
    }
}
