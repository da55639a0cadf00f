//! Finds a volume or a snapshot that a request names by its name or by its number. Owns nothing.
//! Any thread may call it.
#![warn(missing_docs, reason = "`engine` exports these types")]

use std::sync::Arc;

use surface::{DeviceId, Error, ErrorKind, Result};
use units::ObjectId;

use crate::objects::{Object, Objects};

/// Names a volume or a snapshot in a request.
#[derive(Debug, Clone, Copy)]
pub enum VolumeRef<'a> {
    /// The object that has this name now.
    Name(&'a str),
    /// The one with this [number](crate::Volume::id), under any name.
    Number(DeviceId),
}

impl<'a> From<&'a str> for VolumeRef<'a> {
    fn from(name: &'a str) -> Self {
        Self::Name(name)
    }
}

impl<'a> From<&'a String> for VolumeRef<'a> {
    fn from(name: &'a String) -> Self {
        Self::Name(name)
    }
}

impl From<DeviceId> for VolumeRef<'_> {
    fn from(id: DeviceId) -> Self {
        Self::Number(id)
    }
}

impl Objects {
    /// Returns the volume or the snapshot.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn resolve(&self, which: VolumeRef<'_>) -> Result<Arc<Object>> {
        let id = match which {
            VolumeRef::Name(name) => return self.readable(name),
            VolumeRef::Number(id) => id,
        };
        self.get(ObjectId(id.0)).filter(|object| object.is_readable()).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("the pool has no volume or snapshot with the number {}", id.0))
        })
    }

    /// Returns the volume.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Invalid`] for a snapshot.
    pub fn resolve_volume(&self, which: VolumeRef<'_>) -> Result<Arc<Object>> {
        match which {
            VolumeRef::Name(name) => self.named(name),
            VolumeRef::Number(_) => {
                let object = self.resolve(which)?;
                if object.is_live() { Ok(object) } else { self.named(&object.title()) }
            }
        }
    }

    /// Returns the snapshot.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Invalid`] for a volume.
    pub fn resolve_snapshot(&self, which: VolumeRef<'_>) -> Result<Arc<Object>> {
        match which {
            VolumeRef::Name(name) => self.snapshot_named(name),
            VolumeRef::Number(_) => {
                let object = self.resolve(which)?;
                if object.is_live() { self.snapshot_named(&object.title()) } else { Ok(object) }
            }
        }
    }
}
