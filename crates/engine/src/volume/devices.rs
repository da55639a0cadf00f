//! The volumes of a pool as a set of devices, and the figures of each. Owns nothing.

use std::sync::Arc;
use std::time::Duration;

use store::objects::Object;
use store::objects::volume_ref::VolumeRef;
use surface::{BlockDevice, Client, DeviceId, DeviceInfo, DeviceSet, Error, ErrorKind, FolderInfo, Result};
use units::BLOCK_BYTES;

use crate::pool::Pool;
use crate::volume::Volume;
use crate::volume::claims::{TreeClaim, TreeUse};
use crate::volume::parts::Volumes;

impl Volumes {
    /// Information on a volume or a snapshot.
    fn device_info(&self, object: &Object) -> DeviceInfo {
        DeviceInfo {
            id: DeviceId(object.id.0),
            name: object.title(),
            size_bytes: object.size_bytes(),
            allocated_bytes: self.allocated_bytes(object),
            created_unix_s: object.descriptor.read().created_unix_s,
            read_only: !object.is_live(),
        }
    }

    /// Logical bytes of a volume or a snapshot that hold data.
    pub(crate) fn allocated_bytes(&self, object: &Object) -> u64 {
        // First: blocks that leave the write buffer now are then in the other figures. If they were
        // in neither, a volume would seem empty to a program that copies files, and not be copied.
        let dirty = self.buffer.data_bytes_of(object.id) as u64;
        // Its own bytes and those that it may see of others: at least its content, and at most its
        // size.
        let below = object.levels();
        let below = below.iter().filter(|level| level.object != object.id);
        let seen = below.filter_map(|level| self.objects.get(level.object)).map(|o| o.allocated_bytes());
        // Unfetched groups of an image may hold data.
        let levels = object.levels();
        let image = levels.last().and_then(|level| level.image).unwrap_or(0) * BLOCK_BYTES as u64;
        let known = object.allocated_bytes() + seen.sum::<u64>() + image;
        known.max(dirty).min(object.size_bytes().next_multiple_of(BLOCK_BYTES as u64))
    }
}

impl Pool {
    /// Returns the volume or the snapshot with that [number](Volume::id).
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn volume_of(&self, id: DeviceId) -> Result<Arc<Volume>> {
        self.volume_by_ref(id.into())
    }

    /// Returns the volume or the snapshot.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn volume_by_ref(&self, which: VolumeRef<'_>) -> Result<Arc<Volume>> {
        let object = self.core.objects.resolve(which)?;
        Ok(Arc::new(Volume::new(self.core.volumes.clone(), object)))
    }

    /// Claims the tree of a share; waits for at most `patience` until it can. With
    /// [`TreeUse::Change`] it is not open while the claim lasts.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`].
    pub fn claim_tree(&self, share: DeviceId, wanted: TreeUse, patience: Duration) -> Result<TreeClaim> {
        self.core.volumes.tree_claims.claim(share, wanted, patience)
    }
}

impl Volume {
    /// Logical bytes that hold data, and their size in the log: exact at a checkpoint, estimated
    /// since.
    pub fn space(&self) -> (u64, u64) {
        (self.object.allocated_bytes(), self.object.stored_now())
    }
}

impl DeviceSet for Pool {
    /// Volumes, each followed by its snapshots. Shares are no devices.
    fn list(&self) -> Result<Vec<DeviceInfo>> {
        let mut found = Vec::new();
        for volume in self.core.objects.volumes().into_iter().filter(|volume| !volume.is_share()) {
            found.push(self.core.volumes.device_info(&volume));
            let snapshots = self.core.objects.snapshots_of(volume.id);
            found.extend(snapshots.iter().map(|snapshot| self.core.volumes.device_info(snapshot)));
        }
        Ok(found)
    }

    fn folders(&self) -> Result<Vec<FolderInfo>> {
        let info = |folder: Arc<Object>| FolderInfo {
            id: DeviceId(folder.id.0),
            name: folder.title(),
            created_unix_s: folder.descriptor.read().created_unix_s,
        };
        Ok(self.core.objects.folders().into_iter().map(info).collect())
    }

    fn find(&self, name: &str) -> Result<DeviceInfo> {
        let object = self.core.objects.readable(name)?;
        check_device(&object)?;
        Ok(self.core.volumes.device_info(&object))
    }

    fn look(&self, id: DeviceId) -> Result<DeviceInfo> {
        let object = self.volume_of(id)?.object.clone();
        check_device(&object)?;
        Ok(self.core.volumes.device_info(&object))
    }

    fn open(&self, id: DeviceId, _client: &Arc<dyn Client>) -> Result<Arc<dyn BlockDevice>> {
        let volume = self.volume_of(id)?;
        check_device(&volume.object)?;
        Ok(volume)
    }
}

/// Fails for a share: a front end for devices could only show its clients meaningless data.
fn check_device(object: &Object) -> Result<()> {
    if !object.is_share() {
        return Ok(());
    }
    let text = format!("'{}' is a share, not a volume: mount it with shale serve --shares DIR", object.title());
    Err(Error::new(ErrorKind::Unsupported, text))
}
