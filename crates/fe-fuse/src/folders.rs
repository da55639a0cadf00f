//! The directories of a mount: its root, and the folders of the set. Owns the entries of each, and
//! the mapping from names to devices and folders.
//!
//! The inode number of a folder is derived from its number, like that of a device. Its name is
//! looked up for each request, so a folder can be renamed while a process works in it.

use std::collections::BTreeSet;

use fuse::{Attributes, Entry, Errno, Listing, ListingPlus};
use surface::{DeviceId, DeviceInfo, ErrorKind, FolderInfo};

use crate::directory::DeviceDirectory;
use crate::filesystem::TTL;
use crate::nodes::{ROOT_INO, device_of, ino_of};

/// A directory of the mount, in its current state.
pub(crate) struct Directory {
    ino: u64,
    /// Prefix of the names in it: empty for the root, else the folder's name and a `/`.
    prefix: String,
    /// None for the root.
    created_unix_s: Option<u64>,
}

/// The entries of a directory when it was opened: positions stay valid while it is read.
pub(crate) struct Entries {
    directory: Directory,
    /// The parent directory; of the root, the root itself.
    above: u64,
    listed: Vec<Listed>,
}

/// An entry, with its name in the directory.
enum Listed {
    Dots(&'static str, u64),
    Folder(String, FolderInfo),
    Device(String, DeviceInfo),
}

impl Directory {
    const fn root() -> Self {
        Self { ino: ROOT_INO, prefix: String::new(), created_unix_s: None }
    }

    fn of(folder: &FolderInfo) -> Self {
        let prefix = format!("{}/", folder.name);
        Self { ino: ino_of(folder.id), prefix, created_unix_s: Some(folder.created_unix_s) }
    }

    /// The name within this directory of an item of the set, if it is in this directory.
    fn own<'a>(&self, name: &'a str) -> Option<&'a str> {
        name.strip_prefix(&self.prefix).filter(|own| !own.contains('/'))
    }
}

impl Entries {
    fn at(&self, position: u64) -> Option<Listed> {
        let listed = match position {
            0 => Listed::Dots(".", self.directory.ino),
            1 => Listed::Dots("..", self.above),
            _ => match self.listed.get(usize::try_from(position - 2).ok()?)? {
                Listed::Dots(name, ino) => Listed::Dots(name, *ino),
                Listed::Folder(name, info) => Listed::Folder(name.clone(), info.clone()),
                Listed::Device(name, info) => Listed::Device(name.clone(), info.clone()),
            },
        };
        Some(listed)
    }

    /// The names from `offset` on.
    pub(crate) fn names(&self, offset: u64, size: u32) -> Listing {
        let mut out = Listing::new(size);
        for position in offset.. {
            let has_room = match self.at(position) {
                Some(Listed::Dots(name, ino)) => out.add(ino, position + 1, libc::S_IFDIR, name.as_bytes()),
                Some(Listed::Folder(name, info)) => {
                    out.add(ino_of(info.id), position + 1, libc::S_IFDIR, name.as_bytes())
                }
                Some(Listed::Device(name, info)) => {
                    out.add(ino_of(info.id), position + 1, libc::S_IFREG, name.as_bytes())
                }
                None => false,
            };
            if !has_room {
                break;
            }
        }
        out
    }
}

impl DeviceDirectory {
    fn folders(&self) -> Result<Vec<FolderInfo>, Errno> {
        self.devices.folders().map_err(|error| self.complain(".", "looking up folders", &error))
    }

    /// The directory of an inode number; none if the number belongs to something else.
    pub(crate) fn directory(&self, ino: u64) -> Result<Option<Directory>, Errno> {
        let Some(id) = device_of(ino) else { return Ok(Some(Directory::root())) };
        // A device that the kernel knows is no folder.
        if self.nodes.get(ino).is_some() {
            return Ok(None);
        }
        Ok(self.folders()?.iter().find(|folder| folder.id == id).map(Directory::of))
    }

    pub(crate) fn attributes_of(&self, directory: &Directory) -> Attributes {
        let changed_ns = directory.created_unix_s.is_none().then_some(self.mounted_unix_ns);
        Attributes {
            mode: libc::S_IFDIR | u32::from(self.directory_permissions),
            links: 2,
            ..self.attributes(directory.ino, 0, 0, directory.created_unix_s.unwrap_or(0), changed_ns)
        }
    }

    fn entry_of(&self, directory: &Directory) -> Entry {
        Entry {
            node: directory.ino,
            generation: 0,
            name_valid: TTL,
            attributes_valid: TTL,
            attributes: self.attributes_of(directory),
        }
    }

    /// The device or folder with that name in a directory.
    pub(crate) fn lookup(&self, parent: u64, name: &[u8]) -> Result<Entry, Errno> {
        let directory = self.directory(parent)?.ok_or(Errno::ENOENT)?;
        let name = std::str::from_utf8(name).map_err(|_| Errno::ENOENT)?;
        let full = format!("{}{name}", directory.prefix);
        match self.devices.find(&full) {
            Ok(info) => {
                let node = self.nodes.looked_up(info.id, &info.name, info.created_unix_s);
                Ok(self.entry(&node, info.into()))
            }
            Err(error) => {
                let folder = self.folders()?.into_iter().find(|folder| folder.name == full);
                let folder = folder.ok_or_else(|| self.complain(&full, "lookup", &error))?;
                Ok(self.entry_of(&Directory::of(&folder)))
            }
        }
    }

    /// The entries of a directory as they are now.
    pub(crate) fn entries(&self, ino: u64) -> Result<Entries, Errno> {
        let directory = self.directory(ino)?.ok_or(Errno::ENOTDIR)?;
        let devices = self.devices.list().map_err(|error| self.complain(".", "opendir", &error))?;
        let ids: BTreeSet<DeviceId> = devices.iter().map(|info| info.id).collect();
        self.nodes.retain(|id| ids.contains(&id));
        let folders = self.folders()?;
        let above = directory.prefix.trim_end_matches('/').rsplit_once('/').map_or("", |(above, _)| above);
        let above = folders.iter().find(|folder| folder.name == above).map_or(ROOT_INO, |folder| ino_of(folder.id));
        let mut listed = Vec::new();
        for folder in folders {
            let own = directory.own(&folder.name).map(str::to_owned);
            listed.extend(own.map(|own| Listed::Folder(own, folder)));
        }
        for device in devices {
            let own = directory.own(&device.name).map(str::to_owned);
            listed.extend(own.map(|own| Listed::Device(own, device)));
        }
        Ok(Entries { directory, above, listed })
    }

    /// The entries from `offset` on, with their attributes.
    pub(crate) fn list_with_attributes(&self, entries: &Entries, offset: u64, size: u32) -> ListingPlus {
        let mut out = ListingPlus::new(size);
        for position in offset.. {
            let has_room = match entries.at(position) {
                Some(Listed::Dots(name, ino)) => {
                    // The kernel does not count these as lookups.
                    let directory = Directory { ino, prefix: String::new(), created_unix_s: None };
                    out.add(&self.entry_of(&directory), position + 1, name.as_bytes())
                }
                Some(Listed::Folder(name, info)) => {
                    out.add(&self.entry_of(&Directory::of(&info)), position + 1, name.as_bytes())
                }
                Some(Listed::Device(name, listed)) => {
                    let info = match self.devices.look(listed.id) {
                        Ok(info) => info,
                        Err(error) if error.kind() == ErrorKind::NotFound => continue,
                        Err(error) => {
                            // It must not vanish from the list for that.
                            self.complain(&listed.name, "readdir", &error);
                            listed
                        }
                    };
                    let node = self.nodes.looked_up(info.id, &info.name, info.created_unix_s);
                    let has_room = out.add(&self.entry(&node, info.into()), position + 1, name.as_bytes());
                    if !has_room {
                        self.nodes.forget(node.ino(), 1);
                    }
                    has_room
                }
                None => false,
            };
            if !has_room {
                break;
            }
        }
        out
    }
}
