//! Pushed snapshots: the descriptor of each records the version of the image that it became, like
//! holds. So the next push is the difference from it.

use env::RemoteImage;
use format::{Entry, ObjectDescriptor};
use store::objects::properties::PUSHED;
use surface::Result;

use crate::pool::Pool;

fn text_of(image: &RemoteImage) -> String {
    format!("{} {:x} {} {}", image.version, image.incarnation, image.len, image.location)
}

fn parse(text: &str) -> Option<RemoteImage> {
    let mut parts = text.splitn(4, ' ');
    let version = parts.next()?.parse().ok()?;
    let incarnation = u128::from_str_radix(parts.next()?, 16).ok()?;
    let len = parts.next()?.parse().ok()?;
    Some(RemoteImage { location: parts.next()?.to_owned(), incarnation, version, len })
}

impl Pool {
    /// Records that a snapshot (`VOLUME@SNAPSHOT`) is now a version of an image. Durable on return.
    ///
    /// # Errors
    /// [`surface::ErrorKind::NotFound`], and those of the storage.
    pub fn note_pushed(&self, snapshot: &str, image: &RemoteImage) -> Result<()> {
        let core = &self.core;
        let _admin = core.objects.admin.lock();
        let object = core.objects.snapshot_named(snapshot)?;
        let mut descriptor: ObjectDescriptor = object.descriptor.read().clone();
        descriptor.properties.insert(PUSHED.to_owned(), text_of(image));
        core.writes.append_durably(vec![Entry::Object(descriptor)])
    }

    /// Returns the snapshots of a volume that were pushed, oldest first, with the version of each.
    ///
    /// # Errors
    /// [`surface::ErrorKind::NotFound`].
    pub fn pushed(&self, volume: &str) -> Result<Vec<(String, RemoteImage)>> {
        let objects = &self.core.objects;
        let snapshots = objects.snapshots_of(objects.named(volume)?.id);
        let image = |properties: &crate::Properties| properties.get(PUSHED).and_then(|text| parse(text));
        let pushed = snapshots.iter().filter_map(|snapshot| {
            let image = image(&snapshot.descriptor.read().properties)?;
            Some((snapshot.title(), image))
        });
        Ok(pushed.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_round_trips() {
        let image =
            RemoteImage { location: "s3://b/a key with spaces".into(), incarnation: u128::MAX - 5, version: 3, len: 9 };
        assert_eq!(parse(&text_of(&image)), Some(image));
        assert_eq!(parse("3 5"), None);
    }
}
