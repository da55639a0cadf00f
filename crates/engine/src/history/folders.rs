//! Operations on folders: create, list, rename, destroy, and a snapshot of everything in one at one
//! moment. A folder is a descriptor (`objects::folders`); creating and renaming one is one batch
//! with that descriptor, whatever it contains, durable on return.
//!
//! A snapshot of everything in a folder is taken in the steps of that of one volume (`history`),
//! with the gates of all volumes closed at the same time. So it holds one moment: of two writes to
//! two volumes, the second of which began when the first had been acknowledged, never the second
//! alone. If the descriptors do not fit into one batch, a crash may leave the snapshots of some
//! volumes; those are of that moment.

use std::sync::Arc;

use format::{
    BATCH_FIXED_BYTES, Entry, INCOMPAT_FOLDERS, INCOMPAT_NESTED_SHARES, ObjectDescriptor, ObjectState, Origin,
    header_bytes,
};
use policy::Owner;
use store::base::canary::Canary;
use store::base::options::Properties;
use store::base::status::FolderStatus;
use store::log::superblock_copies;
use store::objects::Object;
use store::objects::names::{check_full_name, check_own_snapshot_name};
use store::objects::properties;
use surface::{DeviceId, Error, ErrorKind, Result};
use units::{ObjectId, format_size};

use crate::history::holds::check_unheld;
use crate::history::parts::History;
use crate::history::{LEVELS_MAX, check_title, next_epoch, titles, too_deep};
use crate::pool::Pool;

impl Pool {
    /// Creates a folder in the one that its name gives, which must exist. Names the feature in the
    /// superblock. Durable on return.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for names and properties; [`ErrorKind::NotFound`] for the folder
    /// above; [`ErrorKind::Exists`].
    pub fn create_folder(&self, name: &str, properties: &Properties) -> Result<DeviceId> {
        check_full_name(name)?;
        properties::check(Owner::Folder, properties)?;
        let core = &self.core;
        let _admin = core.objects.admin.lock();
        self.check_free(name)?;
        let (parent, own) = core.history.place_for(name, false)?;
        let id = ObjectId(core.objects.next_id());
        let folder = ObjectDescriptor {
            created_unix_s: core.vitals.env.clock.unix_s(),
            properties: properties.clone(),
            ..ObjectDescriptor::folder(id, own, parent)
        };
        // Before the log has one: a program that does not know folders must not open the pool then.
        superblock_copies::mark_feature(&core.vitals.env, INCOMPAT_FOLDERS)
            .inspect_err(|error| core.vitals.fail(error))?;
        core.writes.append_durably(vec![Entry::Object(folder)])?;
        Ok(DeviceId(id.0))
    }

    /// Whether a folder has that name.
    pub fn is_folder(&self, name: &str) -> bool {
        self.core.objects.folder(name).is_some()
    }

    /// All folders, by name.
    pub fn folders(&self) -> Vec<FolderStatus> {
        let objects = &self.core.objects;
        let dirty = self.core.buffer.objects_with_data();
        let status = |folder: Arc<Object>| {
            let descriptor = folder.descriptor.read().clone();
            let below = objects.volumes_below(folder.id);
            let sum = |of: fn(&Object) -> u64| below.iter().map(|volume| of(volume)).fold(0, u64::saturating_add);
            let is_exact = |volume: &Arc<Object>| volume.is_exact() && !dirty.contains(&volume.id);
            FolderStatus {
                id: DeviceId(folder.id.0),
                name: folder.title(),
                volumes: below.len() as u64,
                allocated_bytes: sum(Object::allocated_bytes),
                stored_bytes: sum(Object::stored_now),
                created_unix_s: descriptor.created_unix_s,
                properties: descriptor.properties,
                is_exact: below.iter().all(is_exact),
            }
        };
        objects.folders().into_iter().map(status).collect()
    }

    /// The volumes and shares in a folder and in the folders in it, or a share and those in it, by
    /// name.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn volumes_in(&self, folder: &str) -> Result<Vec<(DeviceId, String)>> {
        let folder = self.core.objects.folder_named(folder)?;
        let volumes = self.core.objects.volumes_of(&folder);
        let mut named: Vec<_> = volumes.iter().map(|volume| (DeviceId(volume.id.0), volume.title())).collect();
        named.sort_by(|a, b| a.1.cmp(&b.1));
        Ok(named)
    }

    /// Takes a snapshot of each volume and share in a folder, and in the folders in it, or of a
    /// share and those in it, all at one moment; their full names.
    ///
    /// # Errors
    /// Those of [`snapshot`](Self::snapshot) for any of them: then none is taken.
    pub fn snapshot_folder(&self, folder: &str, name: &str) -> Result<Vec<String>> {
        check_own_snapshot_name(name)?;
        let core = &self.core;
        let holder = core.objects.folder_named(folder)?;
        if Canary::SnapshotsOfManyMoments.is_planted() {
            let volumes = core.objects.volumes_of(&holder).into_iter();
            return volumes.map(|v| self.snapshot(&v.title(), name).map(|()| v.title())).collect();
        }
        self.take_together(|| {
            let volumes = core.objects.volumes_of(&core.objects.folder_named(folder)?);
            if volumes.is_empty() {
                return Err(Error::new(ErrorKind::NotFound, format!("the folder '{folder}' contains no volume")));
            }
            Ok(volumes.into_iter().map(|volume| (volume, name)).collect())
        })
    }

    /// Takes several snapshots, `VOLUME@SNAPSHOT`, of one volume or share each, all at one moment.
    ///
    /// # Errors
    /// Those of [`snapshot`](Self::snapshot) for any of them, and [`ErrorKind::Invalid`] for two of
    /// one volume: then none is taken.
    pub fn snapshot_together(&self, titles: &[String]) -> Result<Vec<String>> {
        self.take_together(|| {
            let mut wanted = Vec::with_capacity(titles.len());
            for title in titles {
                let (volume, name) = title.split_once('@').unwrap_or((title, ""));
                check_own_snapshot_name(name)?;
                wanted.push((self.core.objects.named(volume)?, name));
            }
            wanted.sort_by_key(|(volume, _)| volume.id);
            if let Some(pair) = wanted.windows(2).find(|pair| pair[0].0.id == pair[1].0.id) {
                let text =
                    format!("'{}' is named twice: one moment can have only one snapshot of it", pair[0].0.title());
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            Ok(wanted)
        })
    }

    /// Takes the snapshots selected by `wanted` under the lock, in the order of the volumes'
    /// numbers, all at one moment; returns their full names.
    fn take_together<'a>(&self, wanted: impl FnOnce() -> Result<Vec<(Arc<Object>, &'a str)>>) -> Result<Vec<String>> {
        let core = &self.core;
        // Step 1. The lock is not needed for it, and others need not wait for it.
        core.writes.drain_all()?;
        let _admin = core.objects.admin.lock();
        let volumes = wanted()?;
        let mut taken = Vec::with_capacity(volumes.len());
        for (volume, name) in &volumes {
            let title = format!("{}@{name}", volume.title());
            self.check_free(&title)?;
            self.core.objects.check_no_receive(volume)?;
            if volume.levels().len() >= LEVELS_MAX {
                return Err(too_deep(&volume.title()));
            }
            next_epoch(&volume.descriptor.read())?;
            taken.push(title);
        }
        // Steps 2 and 3, in the order of the volumes' numbers.
        let _gates: Vec<_> = volumes.iter().map(|(volume, _)| volume.gate.write()).collect();
        core.writes.drain_past_current()?;
        // Step 4.
        let (mut entries, mut bytes) = (Vec::new(), 0);
        let (now, mut id) = (core.vitals.env.clock.unix_s(), core.objects.next_id());
        for (volume, name) in &volumes {
            let head = volume.descriptor.read().clone();
            let snapshot = ObjectDescriptor {
                state: ObjectState::Snapshot,
                origin: Some(Origin { object: head.id, epoch: head.epoch }),
                parent: Some(head.id),
                created_unix_s: now,
                properties: properties::of_moment(&head.properties),
                identity: Some(core.vitals.new_identity()?),
                ..ObjectDescriptor::volume(ObjectId(id), *name, head.size_bytes)
            };
            id += 1;
            let pair = [Entry::Object(snapshot), Entry::Object(ObjectDescriptor { epoch: next_epoch(&head)?, ..head })];
            let more = header_bytes(&pair) - BATCH_FIXED_BYTES;
            if !entries.is_empty() && bytes + more > self.step_bytes_max() {
                core.writes.append_applied(std::mem::take(&mut entries))?;
                bytes = 0;
            }
            bytes += more;
            entries.extend(pair);
        }
        core.writes.append_durably(entries)?;
        taken.sort();
        Ok(taken)
    }

    /// Destroys a folder, or a share that holds others; with `recursive` everything in it, the
    /// deepest first. A crash may leave a part. The caller holds `admin`.
    pub(crate) fn destroy_folder(&self, folder: &Arc<Object>, recursive: bool) -> Result<()> {
        self.check_folder_goes(folder, recursive)?;
        let objects = &self.core.objects;
        let mut going = objects.below_folder(folder.id);
        going.insert(0, folder.clone());
        let moments = |volume: &Arc<Object>| objects.snapshots_of(volume.id);
        let snapshots: Vec<_> = going.iter().map(moments).collect();
        for volume in &going {
            if let Some(partial) = objects.partial_of(volume.id) {
                self.give_up_receive(&partial)?;
            }
        }
        // Partial receives are gone.
        for (object, snapshots) in going.iter().zip(snapshots).rev() {
            let state = object.descriptor.read().state;
            if !matches!(state, ObjectState::Volume | ObjectState::Folder) {
                continue;
            }
            let mut gone = objects.bookmarks_of(object.id);
            gone.extend(snapshots);
            gone.push(object.clone());
            self.destroy_in_steps(&gone)?;
        }
        self.core.signals.wake_keeper();
        Ok(())
    }

    /// Checks that a folder, or a share that contains others, can be destroyed.
    pub(crate) fn check_folder_goes(&self, folder: &Arc<Object>, recursive: bool) -> Result<()> {
        let objects = &self.core.objects;
        let mut going = objects.below_folder(folder.id);
        if !going.is_empty() && !recursive {
            let (name, there) = (folder.title(), titles(&going));
            let kind = if folder.is_share() { "share" } else { "folder" };
            let text = format!(
                "the {kind} '{name}' is not empty ({there}): destroy its content first, or everything \
                     together (-r)"
            );
            return Err(Error::new(ErrorKind::InUse, text));
        }
        going.insert(0, folder.clone());
        let moments = |volume: &Arc<Object>| objects.snapshots_of(volume.id);
        let snapshots: Vec<_> = going.iter().map(moments).collect();
        check_unheld(snapshots.iter().flatten())
    }

    /// The descriptor of a volume or a folder under another full name, with everything in it.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for its folder; [`ErrorKind::Invalid`] if names become too long;
    /// [`ErrorKind::Full`] if it does not fit into the quota of its new folder.
    pub(crate) fn renamed(&self, object: &Arc<Object>, new: &str) -> Result<ObjectDescriptor> {
        let core = &self.core;
        let (parent, own) = core.history.place_for(new, object.is_share())?;
        let held = object.descriptor.read().clone();
        let (old, before, passed_on) = (object.title(), core.objects.inherited(&held), held.properties.clone());
        let descriptor = ObjectDescriptor { name: own, parent, ..held };
        let base = core.objects.inherited(&descriptor);
        self.check_moved(object, (&old, &before), (new, &base))?;
        for below in core.objects.below_folder(object.id) {
            let held = below.descriptor.read().clone();
            let title = below.title();
            let then = format!("{new}{}", title.strip_prefix(&old).unwrap_or_default());
            let before = core.objects.inherited(&held);
            let after = core.objects.inherited_through(&held, object.id, &base, &passed_on);
            self.check_moved(&below, (&title, &before), (&then, &after))?;
        }
        core.history.check_moved_into(object, parent)?;
        Ok(descriptor)
    }

    /// Checks that a volume or a folder can have the full name `new`, with the properties inherited
    /// there, in place of `old`.
    fn check_moved(&self, object: &Arc<Object>, old: (&str, &Properties), new: (&str, &Properties)) -> Result<()> {
        let objects = &self.core.objects;
        let listed = objects.snapshots_of(object.id).into_iter().chain(objects.partial_of(object.id));
        let listed = listed.chain(objects.bookmarks_of(object.id));
        let names = listed.map(|snapshot| snapshot.descriptor.read().name.len());
        check_title(new.0.len() + names.max().map_or(0, |longest| longest + 1))?;
        if !object.is_live() {
            return Ok(());
        }
        let own = object.descriptor.read().properties.clone();
        properties::check_rename(old, new, &own)
            .map_err(|error| error.context(format_args!("volume '{}' keeps its name", old.0)))
    }

    /// Returns the descriptor of a folder with changed properties, if the volumes in it accept
    /// them.
    pub(crate) fn folder_with(
        &self,
        folder: &Arc<Object>,
        changes: &[(String, Option<String>)],
    ) -> Result<ObjectDescriptor> {
        let mut descriptor = folder.descriptor.read().clone();
        descriptor.properties = properties::changed(Owner::Folder, &descriptor.properties, changes)?;
        self.check_below(&descriptor)?;
        Ok(descriptor)
    }

    /// Fails if the volumes in a folder or a share cannot accept the properties that they would
    /// inherit from this descriptor.
    pub(crate) fn check_below(&self, descriptor: &ObjectDescriptor) -> Result<()> {
        let objects = &self.core.objects;
        let base = objects.inherited(descriptor);
        for volume in objects.volumes_below(descriptor.id) {
            let held = volume.descriptor.read().clone();
            let (before, own) = (objects.inherited(&held), &held.properties);
            let after = objects.inherited_through(&held, descriptor.id, &base, &descriptor.properties);
            properties::resolved_after(&volume.title(), (&before, own), (&after, own))?;
        }
        Ok(())
    }
}

impl History {
    /// Returns the folder for a new object of that full name; `is_share` says whether the object is
    /// a share. If the folder is a share, the superblock names that feature first. The caller holds
    /// `admin`.
    ///
    /// # Errors
    /// Those of [`place`](store::objects::Objects::place), and of the storage.
    pub(crate) fn place_for(&self, name: &str, is_share: bool) -> Result<(Option<ObjectId>, String)> {
        let place = self.objects.place(name, is_share)?;
        let holder = place.0.and_then(|id| self.objects.get(id));
        if holder.is_some_and(|holder| holder.is_share()) {
            superblock_copies::mark_feature(&self.vitals.env, INCOMPAT_NESTED_SHARES)
                .inspect_err(|error| self.vitals.fail(error))?;
        }
        Ok(place)
    }

    /// Fails if an object that moves into the folder `into` would exceed its quota, or that of a
    /// folder above.
    ///
    /// # Errors
    /// [`ErrorKind::Full`].
    pub(crate) fn check_moved_into(&self, object: &Object, into: Option<ObjectId>) -> Result<()> {
        let objects = &self.objects;
        let held = object.descriptor.read().clone();
        let is_above: Vec<_> = objects.above(&held).iter().map(|folder| folder.id).collect();
        let moved = objects.stored_now_with(object);
        for folder in objects.above(&ObjectDescriptor { parent: into, ..held }) {
            let Some(quota) = folder.settings.read().quota_bytes else { continue };
            if is_above.contains(&folder.id) {
                continue;
            }
            let stored = objects.stored_now_with(&folder);
            if stored.saturating_add(moved) > quota {
                let (name, title) = (folder.title(), object.title());
                let kind = if folder.is_share() { "share" } else { "folder" };
                let text = format!(
                    "'{title}' takes {}, but the {kind} '{name}' already uses {} of its quota of {}: raise \
                     the quota, or free space in it",
                    format_size(moved),
                    format_size(stored),
                    format_size(quota)
                );
                return Err(Error::new(ErrorKind::Full, text));
            }
        }
        Ok(())
    }
}
