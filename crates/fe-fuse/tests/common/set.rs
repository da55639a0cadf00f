//! An in-memory set of devices with folders, and with exclusive opens.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Condvar, Mutex, RwLock};
use surface::{BlockDevice, Client, DeviceId, DeviceInfo, DeviceSet, Error, ErrorKind, FolderInfo, Result};
use testkit::{Memory, MemorySet};

/// Devices by name.
#[derive(Default)]
pub struct MemSet {
    devices: MemorySet,
    /// Number and time of creation, by name.
    folders: RwLock<BTreeMap<String, (DeviceId, u64)>>,
    /// Whether a client of another front end has all of them open.
    pub is_open_elsewhere: AtomicBool,
    /// A device under an exclusive operation: opening it waits.
    held: Mutex<Option<DeviceId>>,
    let_go: Condvar,
}

impl MemSet {
    pub fn add(&self, name: &str, device: Arc<Memory>, created_unix_s: u64) {
        self.devices.add(name, device, created_unix_s);
    }

    pub fn add_folder(&self, name: &str, created_unix_s: u64) {
        self.folders.write().insert(name.to_owned(), (self.devices.new_id(), created_unix_s));
    }

    /// Gives a folder another name, and everything in it.
    pub fn rename_folder(&self, old: &str, new: &str) {
        let inside = format!("{old}/");
        let renamed = |name: String| match name.strip_prefix(&inside) {
            Some(rest) => format!("{new}/{rest}"),
            None if name == old => new.to_owned(),
            None => name,
        };
        let mut folders = self.folders.write();
        self.devices.rename_all(renamed);
        *folders = std::mem::take(&mut *folders).into_iter().map(|(name, folder)| (renamed(name), folder)).collect();
    }

    pub fn remove(&self, name: &str) {
        self.devices.remove(name);
    }

    pub fn rename(&self, old: &str, new: &str) {
        self.devices.rename_all(|name| if name == old { new.to_owned() } else { name });
    }
}

impl DeviceSet for MemSet {
    fn list(&self) -> Result<Vec<DeviceInfo>> {
        self.devices.list()
    }

    fn folders(&self) -> Result<Vec<FolderInfo>> {
        let info = |(name, (id, created_unix_s)): (&String, &(DeviceId, u64))| FolderInfo {
            id: *id,
            name: name.clone(),
            created_unix_s: *created_unix_s,
        };
        Ok(self.folders.read().iter().map(info).collect())
    }

    fn find(&self, name: &str) -> Result<DeviceInfo> {
        self.devices.find(name)
    }

    fn look(&self, id: DeviceId) -> Result<DeviceInfo> {
        self.devices.look(id)
    }

    fn open(&self, id: DeviceId, client: &Arc<dyn Client>) -> Result<Arc<dyn BlockDevice>> {
        self.let_go.wait_while(&mut self.held.lock(), |held| *held == Some(id));
        self.devices.open(id, client)
    }

    fn open_alone(
        &self,
        id: DeviceId,
        client: &Arc<dyn Client>,
        work: &mut dyn FnMut(&dyn BlockDevice) -> Result<()>,
    ) -> Result<Arc<dyn BlockDevice>> {
        if self.is_open_elsewhere.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::InUse, format!("device {} is open elsewhere", id.0)));
        }
        let device = self.open(id, client)?;
        *self.held.lock() = Some(id);
        let result = work(&*device);
        *self.held.lock() = None;
        self.let_go.notify_all();
        result.map(|()| device)
    }
}
