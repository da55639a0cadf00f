//! Operations on the history of volumes: snapshots, clones, rollback, promote, rename, destroy.
//! Each is a change of descriptors in one batch of the log, durable on return, at a cost that does
//! not depend on the volume's size. Space that becomes unneeded is freed by the next checkpoints
//! (see `reap`). Owns no state; `objects` has the descriptors. Threads of clients call it, and the
//! keeper reparents clones (`reparent`); they wait for drains and for the log.
//!
//! A snapshot is taken in these steps:
//! 1. dirty data is drained while writers go on;
//! 2. the volume's gate is closed: requests in flight end, others wait;
//! 3. the few blocks that have become dirty since are drained: all acknowledged data is in the log,
//!    in the epoch in force;
//! 4. one batch makes the snapshot, which sees up to that epoch, and raises the volume's epoch; it
//!    is made durable, and with it all data of the snapshot.
//!
//! Lock order: `admin`, then gates in the order of objects, then the locks of a drain and an
//! append.

pub(crate) mod bookmarks;
pub(crate) mod diff;
pub(crate) mod folders;
pub(crate) mod holds;
pub(crate) mod parts;
pub(crate) mod reparent;
pub(crate) mod usage;

use std::collections::HashMap;
use std::sync::Arc;

use format::{BATCH_FIXED_BYTES, CUTS_MAX, Cut, Entry, ObjectDescriptor, ObjectState, Origin, header_bytes};
use store::base::options::Properties;
use store::base::status::SnapshotStatus;
use store::objects::level::Level;
use store::objects::names::{TITLE_BYTES_MAX, check_full_name, check_name, check_own_snapshot_name};
use store::objects::volume_ref::VolumeRef;
use store::objects::{Object, properties};
use surface::{DeviceId, Error, ErrorKind, Result};
use units::{Epoch, ObjectId};

use crate::history::holds::check_unheld;
use crate::history::parts::History;
use crate::pool::Pool;

/// Longest chain below an object: each level without a block costs a look at the map.
pub(crate) const LEVELS_MAX: usize = 32;
/// Names that a refusal lists.
const NAMES_LISTED_MAX: usize = 5;

fn refused(kind: ErrorKind, text: String) -> Error {
    Error::new(kind, text)
}

impl Pool {
    /// Takes a snapshot of a volume: it has everything acknowledged before the call, and nothing
    /// written after it.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::Exists`], [`ErrorKind::Invalid`] for a name, and the
    /// errors of a flush.
    pub fn snapshot(&self, volume: &str, name: &str) -> Result<()> {
        check_own_snapshot_name(name)?;
        self.take_snapshot(volume, name, false)
    }

    /// Like `snapshot`; a `scheduled` one may be removed by the schedule that made it.
    ///
    /// # Errors
    /// Those of [`snapshot`](Self::snapshot).
    pub fn take_snapshot(&self, volume: &str, name: &str, scheduled: bool) -> Result<()> {
        check_name(name)?;
        let core = &self.core;
        // Step 1. Done without the lock, so that others do not wait for it.
        core.objects.named(volume)?;
        core.writes.drain_all()?;
        let _admin = core.objects.admin.lock();
        let object = core.objects.named(volume)?;
        self.check_free(&format!("{volume}@{name}"))?;
        self.core.objects.check_no_receive(&object)?;
        if object.levels().len() >= LEVELS_MAX {
            return Err(too_deep(volume));
        }
        // Steps 2 and 3.
        let _gate = object.gate.write();
        core.writes.drain_past_current()?;
        // Step 4. The snapshot comes first: so the epoch that the volume leaves always has a point
        // that sees it.
        let head = object.descriptor.read().clone();
        let snapshot = ObjectDescriptor {
            state: ObjectState::Snapshot,
            origin: Some(Origin { object: head.id, epoch: head.epoch }),
            parent: Some(head.id),
            scheduled,
            created_unix_s: core.vitals.env.clock.unix_s(),
            properties: properties::of_moment(&head.properties),
            identity: Some(core.vitals.new_identity()?),
            ..ObjectDescriptor::volume(ObjectId(core.objects.next_id()), name, head.size_bytes)
        };
        let volume = ObjectDescriptor { epoch: next_epoch(&head)?, ..head };
        core.writes.append_durably(vec![Entry::Object(snapshot), Entry::Object(volume)])
    }

    /// Creates a volume with the content of a snapshot. It has the properties set on the snapshot's
    /// volume, but not its reservation and its network settings, changed by `properties`; it is
    /// incomplete if the snapshot is.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::Exists`], [`ErrorKind::Invalid`];
    /// [`ErrorKind::Unsupported`] for a clone of a clone of a clone, more than 30 times.
    pub fn clone_snapshot(&self, snapshot: &str, name: &str, properties: &Properties) -> Result<()> {
        check_full_name(name)?;
        properties::check(policy::Owner::Volume, properties)?;
        let core = &self.core;
        let _admin = core.objects.admin.lock();
        let snapshot = core.objects.snapshot_named(snapshot)?;
        self.check_free(name)?;
        let (folder, short) = core.history.place_for(name, snapshot.is_share())?;
        if snapshot.levels().len() >= LEVELS_MAX - 1 {
            return Err(too_deep(&snapshot.title()));
        }
        let from = snapshot.descriptor.read().clone();
        let parent = from.parent.and_then(|id| core.objects.get(id)).map(|parent| parent.descriptor.read().clone());
        let (own, numbers) = parent.map(|parent| (parent.properties, parent.numbers)).unwrap_or_default();
        let mut own = properties::with_moment(own, &from.properties);
        own.retain(|key, _| policy::is_cloned(key));
        own.extend(properties.clone());
        let id = ObjectId(core.objects.next_id());
        let reserved = properties::resolved_for(name, &core.objects.inherited_in(folder), &own)?.reservation_bytes;
        core.writes.check_reservation(id, reserved)?;
        let clone = ObjectDescriptor {
            origin: from.origin,
            parent: folder,
            created_unix_s: core.vitals.env.clock.unix_s(),
            properties: own,
            numbers,
            ..ObjectDescriptor::volume(id, short, from.size_bytes)
        };
        core.writes.append_durably(vec![Entry::Object(clone)])?;
        core.space.count_reservations();
        Ok(())
    }

    /// Rolls a volume back to one of its snapshots, size included. Newer snapshots are destroyed
    /// (which needs `recursive`); clones of them stay.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::InUse`] if there are newer snapshots, or one of them
    /// is held; [`ErrorKind::Unsupported`] for a snapshot that was taken when the data belonged to
    /// another volume (see [`promote`](Self::promote)).
    pub fn rollback<'a>(&self, snapshot: impl Into<VolumeRef<'a>>, recursive: bool) -> Result<()> {
        let core = &self.core;
        let _admin = core.objects.admin.lock();
        let snapshot = core.objects.resolve_snapshot(snapshot.into())?;
        let (volume, origin, newer) = self.check_goes_back(&snapshot, recursive)?;
        let ObjectDescriptor { size_bytes, properties: moment, .. } = snapshot.descriptor.read().clone();
        // Cuts go when the records that they hide are gone.
        while volume.descriptor.read().cuts.len() >= CUTS_MAX && core.objects.has_reaping() {
            core.checkpoints.take()?;
        }
        let cuts_that_stay = |head: &ObjectDescriptor, going: &[Arc<Object>]| {
            let cuts = core.history.cuts_still_needed(head, origin.epoch, going);
            if cuts.len() < CUTS_MAX {
                return Ok(cuts);
            }
            let text = format!(
                "'{}' has been rolled back {CUTS_MAX} times while clones of the discarded data exist: destroy \
                 some of them, or clone '{}'",
                volume.title(),
                snapshot.title()
            );
            Err(refused(ErrorKind::Unsupported, text))
        };
        // A rollback that cannot succeed must not destroy the newer snapshots.
        let head = volume.descriptor.read().clone();
        next_epoch(&head)?;
        cuts_that_stay(&head, &newer)?;
        core.writes.drain_all()?;
        self.destroy_in_steps(&newer)?;
        let _gate = volume.gate.write();
        // Dirty data belongs to the discarded past; writes in flight must not be ordered after it.
        core.writes.drain_past_current()?;
        let head = volume.descriptor.read().clone();
        let epoch = next_epoch(&head)?;
        let mut cuts = cuts_that_stay(&head, &[])?;
        cuts.push(Cut { after: origin.epoch, before: epoch });
        let numbers = head.numbers_of_next_state();
        let properties = properties::with_moment(head.properties, &moment);
        let head = ObjectDescriptor { epoch, cuts, size_bytes, properties, numbers, ..head };
        core.writes.append_durably(vec![Entry::Object(head)])?;
        core.signals.wake_keeper();
        Ok(())
    }

    /// Performs the checks of [`rollback`](Self::rollback) and changes nothing. Errors that only
    /// the operation itself can meet are not found.
    ///
    /// # Errors
    /// Those of [`rollback`](Self::rollback).
    pub fn check_rollback<'a>(&self, snapshot: impl Into<VolumeRef<'a>>, recursive: bool) -> Result<()> {
        let _admin = self.core.objects.admin.lock();
        let snapshot = self.core.objects.resolve_snapshot(snapshot.into())?;
        self.check_goes_back(&snapshot, recursive).map(drop)
    }

    /// Returns the volume that can be rolled back to a snapshot, the point that the snapshot sees,
    /// and the newer snapshots, which will be destroyed.
    fn check_goes_back(
        &self,
        snapshot: &Arc<Object>,
        recursive: bool,
    ) -> Result<(Arc<Object>, Origin, Vec<Arc<Object>>)> {
        let core = &self.core;
        let ObjectDescriptor { parent, origin, .. } = snapshot.descriptor.read().clone();
        let volume = parent.and_then(|id| core.objects.get(id)).filter(|volume| volume.is_live());
        let (Some(volume), Some(origin)) = (volume, origin) else {
            return Err(refused(ErrorKind::NotFound, format!("the volume of '{}' is gone", snapshot.title())));
        };
        self.core.objects.check_no_receive(&volume)?;
        if origin.object != volume.id {
            let text = format!(
                "'{}' was taken before '{}' became independent: clone it instead, and rename the clone",
                snapshot.title(),
                volume.title()
            );
            return Err(refused(ErrorKind::Unsupported, text));
        }
        let is_newer = |s: &Arc<Object>| {
            s.descriptor.read().origin.is_some_and(|o| o.object == volume.id && o.epoch > origin.epoch)
        };
        let newer: Vec<_> = core.objects.snapshots_of(volume.id).into_iter().filter(is_newer).collect();
        if !newer.is_empty() && !recursive {
            let text = format!(
                "'{}' has newer snapshots ({}), which a rollback to '{}' would destroy: allow that with -r, or \
                 clone it",
                volume.title(),
                titles(&newer),
                snapshot.title()
            );
            return Err(refused(ErrorKind::InUse, text));
        }
        check_unheld(&newer)?;
        Ok((volume, origin, newer))
    }

    /// Destroys a volume with its bookmarks, or a folder, or a snapshot (`VOLUME@SNAPSHOT`), or the
    /// received part of one that is being received. A volume's snapshots, and everything in a
    /// folder, are destroyed with it on request (`recursive`). Clones keep their data. Durable on
    /// return; the space is freed by the next checkpoints.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::InUse`] for a volume with snapshots, for a folder that
    /// is not empty, and for a snapshot that is held.
    pub fn destroy<'a>(&self, target: impl Into<VolumeRef<'a>>, recursive: bool) -> Result<()> {
        let (core, target) = (&self.core, target.into());
        let _admin = core.objects.admin.lock();
        if let VolumeRef::Name(name) = target
            && let Some(partial) = core.objects.partial_named(name)
        {
            self.give_up_receive(&partial)?;
            core.signals.wake_keeper();
            return Ok(());
        }
        if let VolumeRef::Name(name) = target
            && let Some(folder) = core.objects.folder(name)
        {
            return self.destroy_folder(&folder, recursive);
        }
        let object = core.objects.resolve(target)?;
        if object.is_live() && core.objects.has_below(object.id) {
            return self.destroy_folder(&object, recursive);
        }
        self.check_goes_alone(&object, recursive)?;
        let mut gone = vec![object.clone()];
        if object.is_live() {
            if let Some(partial) = core.objects.partial_of(object.id) {
                self.give_up_receive(&partial)?;
            }
            // A volume's bookmarks are of no use without it.
            let snapshots = core.objects.snapshots_of(object.id);
            gone.splice(0..0, core.objects.bookmarks_of(object.id).into_iter().chain(snapshots));
        }
        self.destroy_in_steps(&gone)?;
        core.signals.wake_keeper();
        Ok(())
    }

    /// Performs the checks of [`destroy`](Self::destroy) and changes nothing: for a caller that
    /// first disconnects clients.
    ///
    /// # Errors
    /// Those of [`destroy`](Self::destroy).
    pub fn check_destroy<'a>(&self, target: impl Into<VolumeRef<'a>>, recursive: bool) -> Result<()> {
        let (core, target) = (&self.core, target.into());
        let _admin = core.objects.admin.lock();
        let folder = match target {
            VolumeRef::Name(name) if core.objects.partial_named(name).is_some() => return Ok(()),
            VolumeRef::Name(name) => core.objects.folder(name),
            VolumeRef::Number(_) => None,
        };
        if let Some(folder) = folder {
            return self.check_folder_goes(&folder, recursive);
        }
        let object = core.objects.resolve(target)?;
        if object.is_live() && core.objects.has_below(object.id) {
            return self.check_folder_goes(&object, recursive);
        }
        self.check_goes_alone(&object, recursive)
    }

    /// Checks that a volume or a snapshot without content objects can be destroyed.
    fn check_goes_alone(&self, object: &Arc<Object>, recursive: bool) -> Result<()> {
        check_unheld([object])?;
        if !object.is_live() {
            return Ok(());
        }
        let snapshots = self.core.objects.snapshots_of(object.id);
        if recursive {
            return check_unheld(&snapshots);
        }
        self.core.objects.check_no_receive(object)?;
        if !snapshots.is_empty() {
            let (name, snapshots) = (object.title(), titles(&snapshots));
            let text = format!(
                "'{name}' has snapshots ({snapshots}): destroy them first, or everything together \
                 (-r)"
            );
            return Err(refused(ErrorKind::InUse, text));
        }
        Ok(())
    }

    /// Destroys the received part of a snapshot, and the volume if it was to come with it. The
    /// caller holds `admin`.
    pub(crate) fn give_up_receive(&self, partial: &Arc<Object>) -> Result<()> {
        let core = &self.core;
        let (parent, origin) = {
            let descriptor = partial.descriptor.read();
            (descriptor.parent, descriptor.origin)
        };
        let (Some(volume), Some(Origin { epoch: received, .. })) = (parent.and_then(|id| core.objects.get(id)), origin)
        else {
            return self.destroy_in_steps(std::slice::from_ref(partial));
        };
        if !volume.is_live() {
            return self.destroy_in_steps(&[partial.clone(), volume]);
        }
        // Cuts go when the records that they hide are gone.
        while volume.descriptor.read().cuts.len() >= CUTS_MAX && core.objects.has_reaping() {
            core.checkpoints.take()?;
        }
        let _gates = (volume.gate.write(), partial.gate.write());
        // Dirty data belongs to the epoch in force.
        core.writes.drain_past_current()?;
        let head = volume.descriptor.read().clone();
        if head.cuts.len() >= CUTS_MAX {
            let text = format!(
                "'{}' has been rolled back {CUTS_MAX} times while clones of the discarded data exist: destroy \
                 some of them first",
                volume.title()
            );
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let before = next_epoch(&ObjectDescriptor { epoch: received, ..head.clone() })?;
        let mut cuts = head.cuts.clone();
        cuts.push(Cut { after: head.epoch, before });
        let gone =
            ObjectDescriptor { state: ObjectState::Deleting, receive: None, ..partial.descriptor.read().clone() };
        core.writes
            .append_durably(vec![Entry::Object(gone), Entry::Object(ObjectDescriptor { epoch: before, cuts, ..head })])
    }

    /// Destroys objects in their order, as many in one batch as fit in a piece of an extent. A
    /// crash may leave the later ones.
    pub(crate) fn destroy_in_steps(&self, objects: &[Arc<Object>]) -> Result<()> {
        let mut rest = objects;
        while !rest.is_empty() {
            let (mut entries, mut gates) = (Vec::new(), Vec::new());
            let mut bytes = 0;
            for object in rest {
                let held = object.descriptor.read().clone();
                // The received part is of no use to any client.
                let descriptor = ObjectDescriptor { state: ObjectState::Deleting, receive: None, ..held };
                let entry = Entry::Object(descriptor);
                bytes += header_bytes(std::slice::from_ref(&entry)) - BATCH_FIXED_BYTES;
                if !entries.is_empty() && bytes > self.step_bytes_max() {
                    break;
                }
                entries.push(entry);
                gates.push(object.gate.write());
            }
            rest = &rest[entries.len()..];
            self.core.writes.append_durably(entries)?;
        }
        Ok(())
    }

    /// Bytes of descriptors that go into one batch.
    pub(crate) fn step_bytes_max(&self) -> usize {
        self.core.geometry.extent_bytes as usize / 4
    }

    /// Renames a volume, a folder with everything in it, or a snapshot (`VOLUME@NEW`). The new name
    /// of a volume or a folder may be in another folder, which must exist.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::Exists`]; [`ErrorKind::Invalid`], also if the
    /// snapshots that are taken of it by the clock would get too long names.
    pub fn rename(&self, old: &str, new: &str) -> Result<()> {
        let _admin = self.core.objects.admin.lock();
        match self.rename_entry(old, new)? {
            Some(descriptor) => self.core.writes.append_durably(vec![Entry::Object(descriptor)]),
            None => Ok(()),
        }
    }

    /// Checks that [`rename`](Self::rename) would succeed.
    ///
    /// # Errors
    /// As of that.
    pub fn check_rename(&self, old: &str, new: &str) -> Result<()> {
        let _admin = self.core.objects.admin.lock();
        self.rename_entry(old, new).map(drop)
    }

    /// Returns the descriptor of a renamed object; `None` if it has that name already.
    fn rename_entry(&self, old: &str, new: &str) -> Result<Option<ObjectDescriptor>> {
        let core = &self.core;
        let folder = core.objects.folder(old);
        let is_titled = folder.is_some() || !old.contains('@');
        let object = folder.map_or_else(|| core.objects.readable(old), Ok)?;
        let name = match (old.split_once('@'), new.split_once('@')) {
            (None, None) => new,
            (Some((volume, _)), Some((same, name))) if volume == same => name,
            (Some(_), Some(_)) => {
                let text = format!("a snapshot stays with its volume: '{old}' cannot be renamed to '{new}'");
                return Err(refused(ErrorKind::Invalid, text));
            }
            _ => {
                let text = format!(
                    "'{old}' cannot be renamed to '{new}': both must be volumes, or both \
                     VOLUME@SNAPSHOT"
                );
                return Err(refused(ErrorKind::Invalid, text));
            }
        };
        if old == new {
            return Ok(None);
        }
        if is_titled { check_full_name(name) } else { check_own_snapshot_name(name) }?;
        if is_titled && new.strip_prefix(old).is_some_and(|rest| rest.starts_with('/')) {
            let text = format!("'{old}' cannot be renamed to '{new}', which would be inside itself");
            return Err(refused(ErrorKind::Invalid, text));
        }
        self.check_free(new)?;
        Ok(Some(if is_titled {
            self.renamed(&object, new)?
        } else {
            ObjectDescriptor { name: name.to_owned(), ..object.descriptor.read().clone() }
        }))
    }

    /// Makes a clone the owner of its origin's history: the snapshots of the other volume up to the
    /// clone's origin become its own, and so do the bookmarks up to there. The other volume becomes
    /// a clone of it, and can be destroyed. Moves no data.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Invalid`] if it came from no other volume's snapshot;
    /// [`ErrorKind::Exists`] if a name is taken.
    pub fn promote(&self, name: &str) -> Result<()> {
        let core = &self.core;
        let _admin = core.objects.admin.lock();
        let object = core.objects.named(name)?;
        let origin = Self::origin_of(&object, &core.objects.snapshots_by_timeline());
        let Some(from) = origin.and_then(|s| s.descriptor.read().parent) else {
            let text = format!("'{name}' is not a clone of another volume's snapshot");
            return Err(refused(ErrorKind::Invalid, text));
        };
        let levels = object.levels();
        let is_inherited = |moment: &Arc<Object>| lies_on(moment, &levels);
        let mut entries = Vec::new();
        for bookmark in core.objects.bookmarks_of(from).into_iter().filter(is_inherited) {
            let descriptor = ObjectDescriptor { parent: Some(object.id), ..bookmark.descriptor.read().clone() };
            let title = format!("{name}#{}", descriptor.name);
            if core.objects.bookmark_named(&title).is_ok() {
                return Err(refused(ErrorKind::Exists, format!("the pool has '{title}' already")));
            }
            entries.push(Entry::Object(descriptor));
        }
        for snapshot in core.objects.snapshots_of(from).into_iter().filter(is_inherited) {
            let descriptor = ObjectDescriptor { parent: Some(object.id), ..snapshot.descriptor.read().clone() };
            self.check_free(&format!("{name}@{}", descriptor.name))?;
            entries.push(Entry::Object(descriptor));
        }
        // The oldest first: after a crash between two batches, the rest still belongs to the other
        // volume, and promoting again completes it.
        while !entries.is_empty() {
            let mut count = entries.len();
            while count > 1 && header_bytes(&entries[..count]) > self.step_bytes_max() {
                count /= 2;
            }
            let rest = entries.split_off(count);
            core.writes.append_durably(std::mem::replace(&mut entries, rest))?;
        }
        Ok(())
    }

    /// Whether a snapshot, a volume or a folder may have that full name.
    pub(crate) fn check_free(&self, title: &str) -> Result<()> {
        check_title(title.len())?;
        self.core.objects.check_not_coming(title)?;
        let is_folder = self.core.objects.folder(title).is_some();
        match self.core.objects.readable(title) {
            Err(_) if is_folder => Err(refused(ErrorKind::Exists, format!("the pool has a folder '{title}' already"))),
            Ok(_) => Err(refused(ErrorKind::Exists, format!("the pool has '{title}' already"))),
            Err(_) => Ok(()),
        }
    }

    /// Returns the snapshot of another volume from which a volume was cloned: the newest one in its
    /// chain, of all `by_timeline`.
    pub(crate) fn origin_of(volume: &Object, by_timeline: &HashMap<ObjectId, Vec<Arc<Object>>>) -> Option<Arc<Object>> {
        let levels = volume.levels();
        let is_origin = |snapshot: &&Arc<Object>| {
            snapshot.descriptor.read().parent != Some(volume.id) && lies_on(snapshot, &levels)
        };
        let newest = |level: &Level| by_timeline.get(&level.object)?.iter().rev().find(is_origin).cloned();
        levels.iter().find_map(newest)
    }

    /// The snapshots of a volume, of the volumes in a folder, or of all, oldest first within each
    /// volume.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn snapshots(&self, volume: Option<&str>) -> Result<Vec<SnapshotStatus>> {
        let objects = &self.core.objects;
        let mut found = Vec::new();
        for volume in objects.volume_or_all(volume)? {
            for snapshot in objects.snapshots_of(volume.id) {
                let descriptor = snapshot.descriptor.read();
                found.push(SnapshotStatus {
                    id: DeviceId(snapshot.id.0),
                    volume: volume.title(),
                    name: descriptor.name.clone(),
                    size_bytes: descriptor.size_bytes,
                    created_unix_s: descriptor.created_unix_s,
                    scheduled: descriptor.scheduled,
                    incomplete: policy::is_incomplete(&descriptor.properties),
                });
            }
        }
        Ok(found)
    }
}

/// Returns whether a look-up down `levels` passes a snapshot's moment.
fn lies_on(snapshot: &Object, levels: &[Level]) -> bool {
    let Some(origin) = snapshot.descriptor.read().origin else { return false };
    levels.iter().any(|level| level.object == origin.object && level.sees(origin.epoch))
}

impl History {
    /// Returns the cuts of a volume that are still needed when it has been rolled back to the epoch
    /// `after`, and the snapshots `going`, which still exist, are gone. The new cut hides the
    /// records of an older cut within it from later readers. The older cut is not needed unless a
    /// point lies between the two.
    fn cuts_still_needed(&self, head: &ObjectDescriptor, after: Epoch, going: &[Arc<Object>]) -> Vec<Cut> {
        let goes = |point: Epoch| {
            let is_there = |s: &Arc<Object>| s.descriptor.read().origin.is_some_and(|origin| origin.epoch == point);
            self.objects.is_alone_at(head.id, point) && going.iter().any(is_there)
        };
        let timelines = self.objects.timelines();
        let mut points = timelines.get(&head.id).map_or_else(Vec::new, |timeline| timeline.points.clone());
        points.retain(|point| *point < head.epoch && !goes(*point));
        let looks_behind = |cut: &Cut| points.last().is_some_and(|point| *point >= cut.before);
        let mut cuts = head.cuts.clone();
        cuts.retain(|cut| cut.after < after || looks_behind(cut));
        cuts
    }
}

pub(crate) fn next_epoch(head: &ObjectDescriptor) -> Result<Epoch> {
    head.epoch.0.checked_add(1).map(Epoch).ok_or_else(|| {
        refused(ErrorKind::Unsupported, format!("'{}' has had 2^32 snapshots: copy it to a new volume", head.name))
    })
}

pub(crate) fn too_deep(name: &str) -> Error {
    let text = format!(
        "'{name}' is a clone of a clone, {LEVELS_MAX} levels deep: copy it to a new volume (export, import) and \
         continue with that"
    );
    refused(ErrorKind::Unsupported, text)
}

/// Fails for a full name, `VOLUME@SNAPSHOT` or `VOLUME`, that is too long.
pub(crate) fn check_title(bytes: usize) -> Result<()> {
    if bytes <= TITLE_BYTES_MAX {
        return Ok(());
    }
    let text = format!("the name is too long: VOLUME@SNAPSHOT can have at most {TITLE_BYTES_MAX} bytes");
    Err(refused(ErrorKind::Invalid, text))
}

pub(crate) fn titles(objects: &[Arc<Object>]) -> String {
    let mut names: Vec<_> = objects.iter().take(NAMES_LISTED_MAX).map(|o| o.title()).collect();
    if objects.len() > NAMES_LISTED_MAX {
        names.push(format!("{} more", objects.len() - NAMES_LISTED_MAX));
    }
    names.join(", ")
}
