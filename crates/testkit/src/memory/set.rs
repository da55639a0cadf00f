//! Devices in memory by name.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use surface::{BlockDevice, Client, DeviceId, DeviceInfo, DeviceSet, Error, ErrorKind, Result};

use super::Memory;

struct Member {
    id: DeviceId,
    device: Arc<Memory>,
    created_unix_s: u64,
}

impl Member {
    fn info(&self, name: &str) -> DeviceInfo {
        DeviceInfo {
            id: self.id,
            name: name.to_owned(),
            size_bytes: self.device.size_bytes(),
            allocated_bytes: self.device.allocated_bytes(),
            created_unix_s: self.created_unix_s,
            read_only: self.device.is_read_only(),
        }
    }
}

/// A set whose devices can be added and removed, and which does not track clients. A front end that
/// needs more wraps it.
#[derive(Default)]
pub struct MemorySet {
    members: RwLock<BTreeMap<String, Member>>,
    next: AtomicU64,
}

impl MemorySet {
    /// A set of these devices.
    pub fn of(devices: &[(&str, &Arc<Memory>)]) -> Self {
        let set = Self::default();
        devices.iter().for_each(|(name, device)| set.add(name, Arc::clone(device), 0));
        set
    }

    /// An unused number.
    pub fn new_id(&self) -> DeviceId {
        DeviceId(self.next.fetch_add(1, Ordering::SeqCst))
    }

    /// Takes a device in.
    pub fn add(&self, name: &str, device: Arc<Memory>, created_unix_s: u64) {
        let member = Member { id: self.new_id(), device, created_unix_s };
        self.members.write().insert(name.to_owned(), member);
    }

    /// Takes a device out; those that have it open keep it.
    pub fn remove(&self, name: &str) {
        self.members.write().remove(name);
    }

    /// Renames all devices with `new`.
    pub fn rename_all(&self, new: impl Fn(String) -> String) {
        let mut members = self.members.write();
        *members = std::mem::take(&mut *members).into_iter().map(|(name, member)| (new(name), member)).collect();
    }

    /// The device of that number.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn device(&self, id: DeviceId) -> Result<Arc<Memory>> {
        self.member(id, |_, member| member.device.clone())
    }

    fn member<T>(&self, id: DeviceId, get: impl FnOnce(&str, &Member) -> T) -> Result<T> {
        let members = self.members.read();
        let found = members.iter().find(|(_, member)| member.id == id);
        let gone = || Error::new(ErrorKind::NotFound, format!("there is no device {}", id.0));
        found.map(|(name, member)| get(name, member)).ok_or_else(gone)
    }
}

impl DeviceSet for MemorySet {
    fn list(&self) -> Result<Vec<DeviceInfo>> {
        Ok(self.members.read().iter().map(|(name, member)| member.info(name)).collect())
    }

    fn find(&self, name: &str) -> Result<DeviceInfo> {
        let missing = || Error::new(ErrorKind::NotFound, format!("there is no device '{name}'"));
        self.members.read().get(name).map(|member| member.info(name)).ok_or_else(missing)
    }

    fn look(&self, id: DeviceId) -> Result<DeviceInfo> {
        self.member(id, |name, member| member.info(name))
    }

    fn open(&self, id: DeviceId, _client: &Arc<dyn Client>) -> Result<Arc<dyn BlockDevice>> {
        self.device(id).map(|device| device as Arc<dyn BlockDevice>)
    }
}
