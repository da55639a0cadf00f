//! The table of objects: descriptors in memory, by id and by name, and the points that see each
//! object's records. Owns names, properties and points; the log and the map own everything that
//! depends on them. Any thread may call it; the table changes only when a pool is opened and when
//! the log applies a batch.
//!
//! A descriptor comes in from the store or from the log and goes through these steps:
//! 1. The object's former name is forgotten, the descriptor replaced, and the object's chain of
//!    levels computed; so are the values from the folders above (`folders`).
//! 2. The points that it makes are entered; its former points are removed.
//! 3. Objects become due for reaping: a destroyed object, one that lost a point, and one whose
//!    points may need less than before (`clones`). A destroyed object that no point sees any more
//!    needs its own origin no longer, so that the origin may become due as well. When nothing is
//!    left of an object, its dictionaries lose their points.
//!
//! All of this depends on the descriptors alone, so that replay arrives at the same table.

pub mod allowance;
pub mod clone_needs;
pub mod effort;
pub mod file_layout;
pub mod folders;
pub mod images;
pub mod level;
pub(crate) mod log_tails;
pub mod names;
pub mod object;
pub mod pins;
pub mod properties;
pub mod timeline;
pub mod volume_ref;

mod bookmarks;
mod clones;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use format::{Cut, ObjectDescriptor, ObjectState, Origin, Reap};
use policy::{CleanMarks, Resolved, Settings};
use surface::{Error, ErrorKind, Result};
use units::{Epoch, ObjectId};

use crate::base::options::Properties;
use crate::base::ranked::{Mutex, RwLock};
use crate::base::ranks;
use crate::objects::level::Level;
use crate::objects::names::{missing, name_list};
pub use crate::objects::object::Object;
use crate::objects::pins::{Left, Look, Points};
use crate::objects::properties::{HOLD_PREFIX, PUSHED};
use crate::objects::timeline::{Made, Timelines, points_of};

/// Properties were checked when they were set; a pool from a newer version may hold ones that this
/// one does not know.
fn settings(pool: &Properties, own: &Properties) -> Settings {
    resolved(pool, own).settings
}

/// The same, with the rules, and the source of each.
fn resolved(pool: &Properties, own: &Properties) -> Resolved {
    // A snapshot's holds, and its pushed version, have no effect on writes.
    let own = own.iter().filter(|(key, _)| !key.starts_with(HOLD_PREFIX) && *key != PUSHED);
    let own = own.map(|(key, value)| (key.clone(), value.clone())).collect();
    policy::resolve(pool, &own).unwrap_or_default()
}

#[derive(Default)]
struct Table {
    by_id: HashMap<ObjectId, Arc<Object>>,
    /// Volumes by full name.
    by_name: BTreeMap<String, Arc<Object>>,
    /// Folders by full name.
    folders: BTreeMap<String, Arc<Object>>,
    /// Folder, and a volume or a folder in it.
    in_folder: BTreeSet<(ObjectId, ObjectId)>,
    /// By parent and name.
    snapshots: BTreeMap<(ObjectId, String), Arc<Object>>,
    /// By parent and name.
    bookmarks: BTreeMap<(ObjectId, String), Arc<Object>>,
    /// Volumes being received, by name.
    incoming: BTreeMap<String, Arc<Object>>,
    /// The snapshot being received for a volume, by that volume.
    partial: BTreeMap<ObjectId, Arc<Object>>,
    /// Those that hold the fetched groups of images.
    images: BTreeSet<ObjectId>,
    /// By parent, those that can be used.
    dictionaries: BTreeSet<(ObjectId, ObjectId)>,
    pool: Properties,
    clean_marks: CleanMarks,
    next: u64,
    points: Points,
    /// The points that each object has in `objects::pins`.
    made: HashMap<ObjectId, Made>,
    /// Objects whose reaping is due.
    reaping: BTreeSet<ObjectId>,
    /// Computed on demand.
    timelines: Option<Arc<Timelines>>,
}

/// Progress of an object's reaping in a checkpoint.
#[derive(Debug, Clone)]
pub struct Reaped {
    pub id: ObjectId,
    /// [`Object::reap_number`] at the time of capture.
    pub number: u64,
    /// Its position now; `None`: done.
    pub after: Option<Reap>,
    /// Cuts within which nothing is left.
    pub dropped: Vec<Cut>,
    /// Nothing is left of the object.
    pub is_gone: bool,
}

impl Reaped {
    /// Enters it into the object's descriptor.
    pub fn enter(&self, descriptor: &mut ObjectDescriptor) {
        descriptor.reap = self.after;
        let (dropped, cuts) = descriptor.cuts.iter().partition(|cut| self.dropped.contains(cut));
        descriptor.cuts = cuts;
        let dropped: Vec<Cut> = dropped;
        dropped.into_iter().for_each(|cut| descriptor.undone.enter(cut));
    }
}

/// Returns the values that objects in this one inherit: its name, its folder and its properties;
/// none if it cannot contain any.
fn handed_down(descriptor: &ObjectDescriptor) -> Option<(String, Option<ObjectId>, Properties)> {
    let parts = || (descriptor.name.clone(), descriptor.parent, descriptor.properties.clone());
    descriptor.holds_others().then(parts)
}

/// The blocks of the image of which an object holds the fetched groups.
fn image_blocks(descriptor: &ObjectDescriptor) -> Option<u64> {
    descriptor.image.as_ref().map(|image| image.len.div_ceil(units::BLOCK_BYTES as u64))
}

impl Table {
    fn enter(&mut self, descriptor: ObjectDescriptor) {
        let id = descriptor.id;
        self.next = self.next.max(id.0 + 1);
        self.timelines = None;
        let known = self.by_id.get(&id).cloned();
        let is_dictionary = descriptor.state == ObjectState::Dictionary;
        let is_orphan = is_dictionary && !self.has_parent(&descriptor);
        let mut newly_destroyed = descriptor.state == ObjectState::Deleting || is_orphan;
        let mut has_moved = false;
        if let Some(object) = &known {
            let old = object.descriptor.read();
            has_moved = old.origin != descriptor.origin;
            newly_destroyed &= old.state != ObjectState::Deleting;
            // Another object may have the name of a destroyed one by now.
            match (old.state, old.parent) {
                (ObjectState::Snapshot, Some(parent)) => drop(self.snapshots.remove(&(parent, old.name.clone()))),
                (ObjectState::Bookmark, Some(parent)) => drop(self.bookmarks.remove(&(parent, old.name.clone()))),
                (ObjectState::Partial, Some(parent)) => drop(self.partial.remove(&parent)),
                (ObjectState::Dictionary, Some(parent)) => drop(self.dictionaries.remove(&(parent, id))),
                (ObjectState::Volume | ObjectState::Incoming | ObjectState::Folder, _) => {
                    self.forget_name(object, &old);
                }
                _ => {}
            }
        } else {
            // A descriptor from the store already says whether reaping is due.
            newly_destroyed &= descriptor.reap.is_none();
        }
        let names_below = known.as_ref().map(|known| handed_down(&known.descriptor.read()));
        let hands_down = handed_down(&descriptor);
        let object = known.unwrap_or_else(|| {
            let object = Arc::new(Object::new(descriptor.clone(), Settings::default()));
            self.by_id.insert(id, object.clone());
            object
        });
        self.renew_settings(&object, &descriptor);
        object.replace(descriptor.clone(), self.levels(&descriptor).into());
        if has_moved {
            self.renew_levels_through(id);
        }
        match (descriptor.state, descriptor.parent) {
            (ObjectState::Volume | ObjectState::Incoming | ObjectState::Folder, _) => {
                self.enter_name(&object, &descriptor);
            }
            (ObjectState::Snapshot, Some(parent)) => {
                let volume = self.by_id.get(&parent).map_or_else(|| "?".to_owned(), |parent| parent.title());
                object.set_title(format!("{volume}@{}", descriptor.name));
                self.snapshots.insert((parent, descriptor.name.clone()), object.clone());
            }
            (ObjectState::Bookmark, Some(parent)) => self.enter_bookmark(parent, &object),
            (ObjectState::Deleting, _) if descriptor.image.is_some() => drop(self.images.insert(id)),
            (ObjectState::Partial, Some(parent)) => {
                let volume = self.by_id.get(&parent).map_or_else(|| "?".to_owned(), |parent| parent.title());
                object.set_title(format!("{volume}@{}", descriptor.name));
                self.partial.insert(parent, object.clone());
            }
            (ObjectState::Dictionary, Some(parent)) => {
                let volume = self.by_id.get(&parent).map_or_else(|| "?".to_owned(), |parent| parent.title());
                object.set_title(dictionary_title(id, &volume));
                if !is_orphan {
                    self.dictionaries.insert((parent, id));
                }
            }
            _ => {}
        }
        // The head of a share changes with each snapshot, which does not affect its content.
        if names_below.as_ref() != Some(&hands_down) && (hands_down.is_some() || names_below.flatten().is_some()) {
            self.renew_below(id);
        }
        self.update_points(id);
        // With nothing below, holes hide nothing: the object may consist of nothing else.
        if newly_destroyed || has_moved && descriptor.origin.is_none() {
            object.restart_reap();
        }
        if object.descriptor.read().reap.is_some() {
            self.reaping.insert(id);
        }
    }

    fn has_parent(&self, descriptor: &ObjectDescriptor) -> bool {
        descriptor.parent.is_some_and(|parent| self.by_id.contains_key(&parent))
    }

    /// The dictionaries of an object, oldest first.
    fn dictionaries_of(&self, parent: ObjectId) -> impl DoubleEndedIterator<Item = ObjectId> {
        self.dictionaries.range((parent, ObjectId(0))..(ObjectId(parent.0 + 1), ObjectId(0))).map(|(_, id)| *id)
    }

    /// Returns the chain of levels of an object, itself first.
    fn levels(&self, descriptor: &ObjectDescriptor) -> Vec<Level> {
        let mut levels = Vec::with_capacity(1);
        if descriptor.state.has_records() {
            levels.push(Level {
                object: descriptor.id,
                epoch: descriptor.epoch,
                newest: self.by_id.get(&descriptor.id).filter(|_| descriptor.epoch == Epoch(0)).map(|o| o.newest()),
                cuts: descriptor.cuts.clone(),
                image: image_blocks(descriptor),
            });
        }
        let mut below = descriptor.origin;
        while let Some(Origin { object, epoch }) = below {
            let Some(found) = self.by_id.get(&object) else { break };
            let found = found.descriptor.read();
            let cuts = found.cuts.iter().filter(|cut| cut.before <= epoch).copied().collect();
            levels.push(Level { object, epoch, newest: None, cuts, image: image_blocks(&found) });
            below = found.origin;
        }
        levels
    }

    /// Replaces the points that an object made before by its present ones.
    fn update_points(&mut self, id: ObjectId) {
        let Some(object) = self.by_id.get(&id) else { return };
        let made = {
            let descriptor = object.descriptor.read();
            points_of(&descriptor, self.points.any(id), self.has_parent(&descriptor))
        };
        let old = self.made.insert(id, made).unwrap_or_default();
        if old == made {
            return;
        }
        self.timelines = None;
        // New ones first: a point that moves from one descriptor to another was never gone.
        let added = |new: Option<Look>, old| new.filter(|_| new != old);
        if let Some(head) = added(made.0, old.0) {
            self.points.add(head);
        }
        if let Some(look) = added(made.1, old.1) {
            self.points.add(look);
            // A destroyed object that is still seen; when the table is loaded, it comes before the
            // objects that see it.
            self.update_points(look.object);
        }
        for look in [added(old.0, made.0), added(old.1, made.1)].into_iter().flatten() {
            match self.points.remove(look) {
                Left::Nobody => self.lost_a_point(look.object),
                Left::Less => self.begin_circle(look.object),
                Left::Same => {}
            }
        }
    }

    fn lost_a_point(&mut self, id: ObjectId) {
        self.begin_circle(id);
        self.update_points(id);
    }

    fn listed_under(&self, parent: ObjectId) -> Vec<Arc<Object>> {
        let from = (parent, String::new());
        let to = (ObjectId(parent.0 + 1), String::new());
        self.snapshots.range(from..to).map(|(_, object)| object.clone()).collect()
    }
}

/// All objects of a pool, and the pool's own properties.
#[derive(Default)]
pub struct Objects {
    table: RwLock<Table, ranks::Objects>,
    /// Held by all changes to the table.
    pub admin: Mutex<(), ranks::Admin>,
}

impl Objects {
    pub fn new(pool: Properties, next: u64) -> Self {
        let clean_marks = settings(&pool, &Properties::new()).clean_marks;
        let table = Table { pool, clean_marks, next, ..Table::default() };
        Self { table: RwLock::new(table), admin: Mutex::new(()) }
    }

    /// Enters the descriptors of a checkpoint, in the order of their ids.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if one needs another that is not there.
    pub fn load(&self, descriptors: &[ObjectDescriptor]) -> Result<()> {
        let mut table = self.table.write();
        for descriptor in descriptors {
            table.enter(descriptor.clone());
        }
        // Objects that no point sees may have outlived their origins.
        for (id, (_, origin)) in &table.made {
            if let Some(missing) = origin.filter(|origin| !table.by_id.contains_key(&origin.object)) {
                let text = format!(
                    "the pool's metadata is damaged: the descriptor of object {} is missing, which is the origin \
                     of object {}",
                    missing.object.0, id.0
                );
                return Err(Error::new(ErrorKind::Corrupt, text));
            }
        }
        Ok(())
    }

    /// Enters a descriptor from the log, or changes the object with its id. Its figures, and the
    /// progress of reaping, are known here and meaningless in the log.
    pub fn apply(&self, descriptor: &ObjectDescriptor) {
        let mut table = self.table.write();
        let mut descriptor = ObjectDescriptor { reap: None, ..descriptor.clone() };
        if let Some(object) = table.by_id.get(&descriptor.id) {
            descriptor.reap = object.descriptor.read().reap;
        }
        table.enter(descriptor);
    }

    /// Whether any point sees an object's records.
    #[inline]
    pub fn is_seen(&self, id: ObjectId) -> bool {
        self.table.read().points.any(id)
    }

    /// Returns whether some object's records must be reaped.
    pub fn has_reaping(&self) -> bool {
        !self.table.read().reaping.is_empty()
    }

    /// Returns the objects whose records must be reaped, with the position of that, and
    /// [`Object::reap_number`].
    pub fn reaping(&self) -> Vec<(ObjectId, Reap, u64)> {
        let table = self.table.read();
        let due = |id: &ObjectId| {
            let object = table.by_id.get(id)?;
            let reap = object.descriptor.read().reap?;
            Some((*id, reap, object.reap_number()))
        };
        table.reaping.iter().filter_map(due).collect()
    }

    /// Notes that a checkpoint's reaping of it is durable.
    pub fn reaped(&self, done: &Reaped) {
        let mut table = self.table.write();
        let Some(object) = table.by_id.get(&done.id).cloned() else { return };
        let holds = object.reaped(done.number, |descriptor| done.enter(descriptor));
        if holds && done.after.is_none() {
            table.reaping.remove(&done.id);
        }
        if holds && done.is_gone {
            table.by_id.remove(&done.id);
            table.images.remove(&done.id);
            table.made.remove(&done.id);
            let orphans: Vec<_> = table.dictionaries_of(done.id).collect();
            for id in orphans {
                table.dictionaries.remove(&(done.id, id));
                table.update_points(id);
            }
        }
        table.timelines = None;
    }

    /// Returns whether exactly one object sees that epoch of an object.
    pub fn is_alone_at(&self, object: ObjectId, epoch: Epoch) -> bool {
        self.table.read().points.is_alone(object, epoch)
    }

    /// Returns which points see which records.
    pub fn timelines(&self) -> Arc<Timelines> {
        let mut table = self.table.write();
        if let Some(timelines) = &table.timelines {
            return timelines.clone();
        }
        let timelines = table.timelines_now();
        let timelines = Arc::new(timelines);
        table.timelines = Some(timelines.clone());
        timelines
    }

    /// Returns all snapshots by timeline, oldest first.
    pub fn snapshots_by_timeline(&self) -> HashMap<ObjectId, Vec<Arc<Object>>> {
        let mut found: HashMap<ObjectId, Vec<Arc<Object>>> = HashMap::new();
        for snapshot in self.table.read().snapshots.values() {
            if let Some(origin) = snapshot.descriptor.read().origin {
                found.entry(origin.object).or_default().push(snapshot.clone());
            }
        }
        for snapshots in found.values_mut() {
            snapshots.sort_unstable_by_key(|snapshot| snapshot.id);
        }
        found
    }

    /// Changes the pool's properties, and with them the inherited ones of volumes.
    pub(crate) fn apply_pool(&self, properties: &Properties) {
        let mut table = self.table.write();
        table.pool = properties.clone();
        table.clean_marks = settings(properties, &Properties::new()).clean_marks;
        for object in table.by_id.values() {
            let descriptor = object.descriptor.read().clone();
            table.renew_settings(object, &descriptor);
        }
    }

    pub fn pool_properties(&self) -> Properties {
        self.table.read().pool.clone()
    }

    /// Returns the marks for cleaning in the background.
    #[inline]
    pub fn clean_marks(&self) -> CleanMarks {
        self.table.read().clean_marks
    }

    /// The identifier that the next object gets.
    pub fn next_id(&self) -> u64 {
        self.table.read().next
    }

    #[inline]
    pub fn get(&self, id: ObjectId) -> Option<Arc<Object>> {
        self.table.read().by_id.get(&id).cloned()
    }

    /// Returns the object, from `last` if that was the last one requested.
    #[inline]
    pub fn get_again<'a>(&self, last: &'a mut Option<Arc<Object>>, id: ObjectId) -> Option<&'a Arc<Object>> {
        if last.as_ref().is_none_or(|object| object.id != id) {
            *last = self.get(id);
        }
        last.as_ref()
    }

    /// The volume of that name.
    pub fn named(&self, name: &str) -> Result<Arc<Object>> {
        let table = self.table.read();
        if name.contains('@') {
            let text = format!("'{name}' is the name of a snapshot, which cannot be changed: name a volume");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        table.by_name.get(name).cloned().ok_or_else(|| {
            if table.folders.contains_key(name) {
                return Error::new(
                    ErrorKind::NotFound,
                    format!("'{name}' is a folder: name a volume or a share in it"),
                );
            }
            missing("the pool has no volume or share", name, table.by_name.keys().map(String::as_str))
        })
    }

    /// The snapshot of that name, `VOLUME@SNAPSHOT`.
    pub fn snapshot_named(&self, name: &str) -> Result<Arc<Object>> {
        let Some((volume, snapshot)) = name.split_once('@') else {
            let object = self.named(name)?;
            let titles: Vec<_> = self.snapshots_of(object.id).iter().map(|snapshot| snapshot.title()).collect();
            let there = name_list(titles.iter().map(String::as_str));
            let text = format!("'{name}' is a {}: name one of its snapshots; it has {there}", object.kind_word());
            return Err(Error::new(ErrorKind::Invalid, text));
        };
        let parent = self.named(volume)?;
        let table = self.table.read();
        table.snapshots.get(&(parent.id, snapshot.to_owned())).cloned().ok_or_else(|| {
            let listed = table.listed_under(parent.id);
            let names: Vec<_> = listed.iter().map(|s| s.descriptor.read().name.clone()).collect();
            let what = format!("{} '{volume}' has no snapshot", parent.kind_word());
            missing(&what, snapshot, names.iter().map(String::as_str))
        })
    }

    /// Returns the volume of that name that is being received.
    pub fn incoming(&self, name: &str) -> Option<Arc<Object>> {
        self.table.read().incoming.get(name).cloned()
    }

    /// Returns all volumes being received.
    pub fn all_incoming(&self) -> Vec<Arc<Object>> {
        self.table.read().incoming.values().cloned().collect()
    }

    /// Returns the snapshot being received for a volume.
    pub fn partial_of(&self, volume: ObjectId) -> Option<Arc<Object>> {
        self.table.read().partial.get(&volume).cloned()
    }

    /// Returns all snapshots being received.
    pub fn partials(&self) -> Vec<Arc<Object>> {
        self.table.read().partial.values().cloned().collect()
    }

    /// Returns the snapshot being received with that full name, or for a volume of that name.
    pub fn partial_named(&self, title: &str) -> Option<Arc<Object>> {
        let table = self.table.read();
        let of_volume = table.incoming.get(title).and_then(|volume| table.partial.get(&volume.id));
        of_volume.or_else(|| table.partial.values().find(|partial| partial.title() == title)).cloned()
    }

    /// The volume or the snapshot of that name.
    pub fn readable(&self, name: &str) -> Result<Arc<Object>> {
        if name.contains('@') { self.snapshot_named(name) } else { self.named(name) }
    }

    /// The snapshots that are listed under a volume, oldest first.
    pub fn snapshots_of(&self, volume: ObjectId) -> Vec<Arc<Object>> {
        let mut snapshots = self.table.read().listed_under(volume);
        // An older snapshot has a lower object number, in whichever timeline.
        snapshots.sort_unstable_by_key(|s| s.id);
        snapshots
    }

    /// Returns the newest dictionaries, at most so many, of an object and of its origins, those of
    /// the nearest first, that `may_use` accepts; in the order of their numbers.
    pub fn newest_dictionaries(
        &self,
        object: &Object,
        most: usize,
        may_use: impl Fn(ObjectId) -> bool,
    ) -> Vec<ObjectId> {
        let levels = object.levels();
        let table = self.table.read();
        let mut newest = Vec::new();
        for id in levels.iter().flat_map(|level| table.dictionaries_of(level.object).rev()) {
            if newest.len() < most && !newest.contains(&id) && may_use(id) {
                newest.push(id);
            }
        }
        newest.sort_unstable();
        newest
    }

    /// The dictionaries of an object itself, oldest first.
    pub fn dictionaries_of(&self, parent: ObjectId) -> Vec<ObjectId> {
        self.table.read().dictionaries_of(parent).collect()
    }

    /// All dictionaries that can be used.
    pub fn dictionaries(&self) -> Vec<Arc<Object>> {
        let table = self.table.read();
        table.dictionaries.iter().filter_map(|(_, id)| table.by_id.get(id).cloned()).collect()
    }

    /// Returns the newest epoch of a volume that snapshots and clones see.
    pub fn seen_up_to(&self, object: &Object) -> Option<Epoch> {
        let head = object.epoch();
        self.table.read().points.newest_before(object.id, head)
    }

    /// All objects, by id.
    pub fn all(&self) -> Vec<Arc<Object>> {
        let mut all: Vec<_> = self.table.read().by_id.values().cloned().collect();
        all.sort_unstable_by_key(|o| o.id);
        all
    }

    /// All volumes, by name.
    pub fn volumes(&self) -> Vec<Arc<Object>> {
        self.table.read().by_name.values().cloned().collect()
    }

    /// Returns the volume of a name, those in the folder of a name, or without a name all of them,
    /// by name.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn volume_or_all(&self, name: Option<&str>) -> Result<Vec<Arc<Object>>> {
        let Some(name) = name else { return Ok(self.volumes()) };
        let Some(folder) = self.folder(name) else { return Ok(vec![self.named(name)?]) };
        let mut volumes = self.volumes_below(folder.id);
        volumes.sort_by_key(|volume| volume.title());
        Ok(volumes)
    }
}

/// Returns the name of a dictionary in messages.
fn dictionary_title(id: ObjectId, volume: &str) -> String {
    format!("{volume} (dictionary {})", id.0)
}
