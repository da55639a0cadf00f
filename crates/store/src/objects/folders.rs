//! Folders in the table of objects: objects without data that contain volumes, shares and other
//! folders. A share can contain other shares in the same way, but no volumes, because a mounted
//! share is a directory and a volume is not. All statements about folders here apply to such a
//! share too. An object's descriptor has its folder and its own part of the name. The full name
//! follows from the folders above. So one descriptor renames a folder, whatever it contains.
//!
//! Each object caches the values that depend on the folders above it: its title, its settings, and
//! the folders that limit it. These are computed when the object is entered, and again for
//! everything in a folder when that folder is.

use std::sync::Arc;

use format::{ObjectDescriptor, ObjectState};
use surface::{Error, ErrorKind, Result};
use units::{ObjectId, SHARE_BYTES, did_you_mean};

use super::{Object, Objects, Table, dictionary_title, name_list, resolved};
use crate::base::canary::Canary;
use crate::base::options::Properties;

/// Upper bound of folders above an object. A name has at most 255 bytes, and each folder takes two
/// of them; only damaged descriptors have more.
pub const DEPTH_MAX: usize = 128;

/// Properties of a folder or a share itself: its content does not inherit these.
pub const OF_FOLDER_ITSELF: [&str; 3] = ["quota", "reservation", policy::INCOMPLETE];

impl Table {
    /// The folders above an object, the nearest first.
    pub(super) fn above(&self, descriptor: &ObjectDescriptor) -> Vec<Arc<Object>> {
        let mut above: Vec<Arc<Object>> = Vec::new();
        let mut at = descriptor.parent;
        while let Some(object) = at.and_then(|id| self.by_id.get(&id)).filter(|_| above.len() < DEPTH_MAX) {
            at = {
                let folder = object.descriptor.read();
                if !folder.holds_others() {
                    break;
                }
                folder.parent
            };
            above.push(object.clone());
        }
        above
    }

    /// Returns the full name of a volume or a folder. A folder without a descriptor is named by its
    /// number.
    fn full_name(&self, descriptor: &ObjectDescriptor) -> String {
        let above = self.above(descriptor);
        let highest = above.last().map_or(descriptor.parent, |folder| folder.descriptor.read().parent);
        let mut name = highest.map_or_else(String::new, |missing| format!("lost-{}/", missing.0));
        for folder in above.iter().rev() {
            name += &folder.descriptor.read().name;
            name.push('/');
        }
        name + &descriptor.name
    }

    /// The properties that an object with that descriptor inherits from the pool and from folders.
    pub(super) fn inherited(&self, descriptor: &ObjectDescriptor) -> Properties {
        self.inherited_from(&self.pool, descriptor)
    }

    fn inherited_from(&self, pool: &Properties, descriptor: &ObjectDescriptor) -> Properties {
        let mut inherited = pool.clone();
        for folder in self.above(descriptor).iter().rev() {
            inherited.extend(passed_on(&folder.descriptor.read().properties));
        }
        inherited
    }

    /// Computes the values that an object with this descriptor gets from the folders above it.
    pub(super) fn renew_settings(&self, object: &Object, descriptor: &ObjectDescriptor) {
        let inherited = match descriptor.state {
            // Of its settings only the quota is meaningful, which is its own.
            ObjectState::Folder => Properties::new(),
            _ => self.inherited(descriptor),
        };
        let resolved = resolved(&inherited, &descriptor.properties);
        object.set_settings(resolved.settings);
        // All objects are in memory: for others only the settings are meaningful.
        if descriptor.size_bytes == SHARE_BYTES {
            *object.in_force.write() = Arc::new(resolved);
        }
        object.quota.forget();
        let above = self.above(descriptor);
        above.iter().for_each(|folder| folder.quota.forget());
        let limits = above.into_iter().filter(|folder| folder.settings.read().quota_bytes.is_some());
        object.set_limits(limits.collect());
    }

    /// Removes a volume, a volume being received, or a folder from the table of names.
    pub(super) fn forget_name(&mut self, object: &Object, old: &ObjectDescriptor) {
        let title = object.title();
        let names = match old.state {
            ObjectState::Volume => &mut self.by_name,
            ObjectState::Incoming => &mut self.incoming,
            ObjectState::Folder => &mut self.folders,
            _ => return,
        };
        names.remove(&title);
        if let Some(folder) = old.parent {
            self.in_folder.remove(&(folder, object.id));
        }
    }

    /// Enters such an object under its present name, and updates the titles of the snapshots,
    /// bookmarks and dictionaries listed under it.
    pub(super) fn enter_name(&mut self, object: &Arc<Object>, descriptor: &ObjectDescriptor) {
        let (id, title) = (object.id, self.full_name(descriptor));
        object.set_title(title.clone());
        let names = match descriptor.state {
            ObjectState::Volume => &mut self.by_name,
            ObjectState::Incoming => &mut self.incoming,
            ObjectState::Folder => &mut self.folders,
            _ => return,
        };
        names.insert(title.clone(), object.clone());
        if let Some(folder) = descriptor.parent {
            self.in_folder.insert((folder, id));
        }
        for snapshot in self.listed_under(id).into_iter().chain(self.partial.get(&id).cloned()) {
            let name = snapshot.descriptor.read().name.clone();
            snapshot.set_title(format!("{title}@{name}"));
        }
        self.rename_bookmarks(id, &title);
        for dictionary in self.dictionaries_of(id).filter_map(|d| self.by_id.get(&d)) {
            dictionary.set_title(dictionary_title(dictionary.id, &title));
        }
    }

    /// Updates the names and inherited properties of everything in a folder or a share that was
    /// added, removed or changed.
    pub(super) fn renew_below(&mut self, folder: ObjectId) {
        // The deeper ones come after their folders.
        let mut below = self.below_folder(folder);
        if Canary::FolderRenameLeavesOne.is_planted() {
            below.pop();
        }
        for object in &below {
            let descriptor = object.descriptor.read().clone();
            self.forget_name(object, &descriptor);
        }
        for object in &below {
            let descriptor = object.descriptor.read().clone();
            self.enter_name(object, &descriptor);
            self.renew_settings(object, &descriptor);
        }
    }

    /// Returns everything in a folder, and in the folders in it: each after its own folder.
    fn below_folder(&self, folder: ObjectId) -> Vec<Arc<Object>> {
        let (mut found, mut level) = (Vec::new(), vec![folder]);
        for _ in 0..DEPTH_MAX {
            let mut next = Vec::new();
            for folder in level {
                let inside = self.in_folder.range((folder, ObjectId(0))..(ObjectId(folder.0 + 1), ObjectId(0)));
                for object in inside.filter_map(|(_, id)| self.by_id.get(id)) {
                    if object.descriptor.read().holds_others() {
                        next.push(object.id);
                    }
                    found.push(object.clone());
                }
            }
            level = next;
            if level.is_empty() {
                break;
            }
        }
        found
    }
}

/// The part of a folder's properties that objects in it inherit.
fn passed_on(own: &Properties) -> Properties {
    let is_passed_on = |key: &str| !OF_FOLDER_ITSELF.contains(&key);
    own.iter().filter(|(key, _)| is_passed_on(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
}

impl Objects {
    /// The folder of that name, if there is one.
    pub fn folder(&self, name: &str) -> Option<Arc<Object>> {
        self.table.read().folders.get(name).cloned()
    }

    /// Returns the folder of that name, or the share, that can contain others.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], and [`ErrorKind::Invalid`] for the name of a volume.
    pub fn folder_named(&self, name: &str) -> Result<Arc<Object>> {
        let table = self.table.read();
        if let Some(folder) = table.folders.get(name) {
            return Ok(folder.clone());
        }
        if let Some(volume) = table.by_name.get(name) {
            if volume.is_share() {
                return Ok(volume.clone());
            }
            let text = format!("'{name}' is a volume, which cannot contain others: name a folder or a share");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let there = name_list(table.folders.keys().map(String::as_str));
        let suggestion = did_you_mean(name, table.folders.keys().map(String::as_str));
        Err(Error::new(ErrorKind::NotFound, format!("the pool has no folder '{name}'; it has {there}{suggestion}")))
    }

    /// All folders, by name.
    pub fn folders(&self) -> Vec<Arc<Object>> {
        self.table.read().folders.values().cloned().collect()
    }

    /// Whether there are folders at all.
    pub fn has_folders(&self) -> bool {
        !self.table.read().folders.is_empty()
    }

    /// Whether shares lie in shares.
    pub fn has_nested_shares(&self) -> bool {
        let table = self.table.read();
        let is_share = |id: &ObjectId| table.by_id.get(id).is_some_and(|object| object.is_share());
        table.in_folder.iter().any(|(holder, _)| is_share(holder))
    }

    /// Returns whether an object contains others.
    pub fn has_below(&self, holder: ObjectId) -> bool {
        self.table.read().in_folder.range((holder, ObjectId(0))..(ObjectId(holder.0 + 1), ObjectId(0))).next().is_some()
    }

    /// Returns where an object of that full name belongs: its folder or share, and its own part of
    /// the name. `is_share` says whether the object is a share.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such folder, [`ErrorKind::Invalid`] if a volume has
    /// its name, or a share that cannot hold it.
    pub fn place(&self, name: &str, is_share: bool) -> Result<(Option<ObjectId>, String)> {
        let Some((folder, own)) = name.rsplit_once('/') else { return Ok((None, name.to_owned())) };
        match self.folder_named(folder) {
            Ok(holder) if holder.is_share() && !is_share => {
                let text = format!("'{name}': '{folder}' is a share, which can only contain shares: use another name");
                Err(Error::new(ErrorKind::Invalid, text))
            }
            Ok(folder) => Ok((Some(folder.id), own.to_owned())),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let text = format!(
                    "there is no folder '{folder}' for '{name}': create it first, shale create POOL {folder} \
                     --folder"
                );
                Err(Error::new(ErrorKind::NotFound, text))
            }
            Err(error) => Err(error.context(format_args!("'{name}'"))),
        }
    }

    /// Returns everything in a folder, and in the folders in it: each after its own folder.
    pub fn below_folder(&self, folder: ObjectId) -> Vec<Arc<Object>> {
        self.table.read().below_folder(folder)
    }

    /// The volumes and shares in a folder, and in the folders in it, by number.
    pub fn volumes_below(&self, folder: ObjectId) -> Vec<Arc<Object>> {
        let mut volumes = self.below_folder(folder);
        volumes.retain(|object| object.is_live());
        volumes.sort_unstable_by_key(|volume| volume.id);
        volumes
    }

    /// A share and those in it, or the volumes and shares in a folder, by number.
    pub fn volumes_of(&self, holder: &Arc<Object>) -> Vec<Arc<Object>> {
        let mut volumes = self.volumes_below(holder.id);
        if holder.is_live() {
            volumes.push(holder.clone());
            volumes.sort_unstable_by_key(|volume| volume.id);
        }
        volumes
    }

    /// Returns the folders above an object with this descriptor, the nearest first.
    pub fn above(&self, descriptor: &ObjectDescriptor) -> Vec<Arc<Object>> {
        self.table.read().above(descriptor)
    }

    /// The properties that an object with this descriptor inherits from the pool and from the
    /// folders above.
    pub fn inherited(&self, descriptor: &ObjectDescriptor) -> Properties {
        self.table.read().inherited(descriptor)
    }

    /// The same if these were the pool's properties.
    pub fn inherited_from(&self, pool: &Properties, descriptor: &ObjectDescriptor) -> Properties {
        self.table.read().inherited_from(pool, descriptor)
    }

    /// The properties that objects of a folder inherit; without one, those of the pool.
    pub fn inherited_in(&self, folder: Option<ObjectId>) -> Properties {
        self.inherited(&ObjectDescriptor::folder(ObjectId(u64::MAX), "", folder))
    }

    /// The same for an object below a folder, if that inherited `base` and had the properties
    /// `own`.
    pub fn inherited_through(
        &self,
        descriptor: &ObjectDescriptor,
        folder: ObjectId,
        base: &Properties,
        own: &Properties,
    ) -> Properties {
        let above = self.above(descriptor);
        let between = above.iter().take_while(|between| between.id != folder).count();
        let mut inherited = base.clone();
        inherited.extend(passed_on(own));
        for folder in above[..between].iter().rev() {
            inherited.extend(passed_on(&folder.descriptor.read().properties));
        }
        inherited
    }

    /// Returns the name of the nearest folder above an object that sets a property.
    pub fn folder_that_set(&self, descriptor: &ObjectDescriptor, key: &str) -> Option<String> {
        let has_set = |folder: &Arc<Object>| passed_on(&folder.descriptor.read().properties).contains_key(key);
        self.above(descriptor).into_iter().find(has_set).map(|folder| folder.title())
    }

    /// Stored bytes of an object and of everything in it, estimated since the last checkpoint.
    pub fn stored_now_with(&self, holder: &Object) -> u64 {
        let below = self.below_folder(holder.id);
        below.iter().fold(holder.stored_now(), |sum, object| sum.saturating_add(object.stored_now()))
    }

    /// Stored bytes of an object and of everything in it, as of the last checkpoint.
    pub fn stored_with(&self, holder: &Object) -> u64 {
        let below = self.below_folder(holder.id);
        below.iter().fold(holder.stored_bytes(), |sum, object| sum.saturating_add(object.stored_bytes()))
    }
}
