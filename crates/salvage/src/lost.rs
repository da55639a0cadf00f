//! Adds objects to the table that have no descriptor but must have existed: they have data, or are
//! the origin or the folder of another object.
//!
//! Most of them are volumes. One is a dictionary (whose descriptor is lost with the batch that
//! brought it, once the cleaner has moved its content) if whole units were compressed with it,
//! because an object number is assigned only once; or if its content is exactly that of a
//! dictionary.

use std::collections::{BTreeMap, BTreeSet};

use format::{ObjectDescriptor, ObjectState};
use store::objects::folders::DEPTH_MAX;
use units::{BLOCK_BYTES, Epoch, OBJECT_BYTES_MAX, ObjectId, SHARE_BYTES};

use super::log_objects::Table;
use super::scan::Scan;

/// Returns the table with everything that is needed to read it, and the added objects, which are
/// named `lost-N`.
pub fn complete(mut table: Table, scan: &Scan) -> (Table, BTreeSet<ObjectId>) {
    let mut lost = BTreeSet::new();
    let seen = scan.seen();
    let mut add = |table: &mut Table, id: ObjectId, least: Epoch| {
        let (epoch, end) = seen.get(&id).map_or((Epoch(0), 1), |(epoch, end)| (*epoch, end.0.max(1)));
        let size_bytes = match end.saturating_mul(BLOCK_BYTES as u64) {
            // No volume has data there.
            bytes if bytes > OBJECT_BYTES_MAX => SHARE_BYTES,
            bytes => bytes,
        };
        let descriptor = ObjectDescriptor {
            epoch: epoch.max(least),
            ..ObjectDescriptor::volume(id, format!("lost-{}", id.0), size_bytes)
        };
        table.next_object = table.next_object.max(id.0.saturating_add(1));
        table.objects.insert(id, descriptor);
        lost.insert(id);
    };
    let is_unknown = |table: &Table, id: &ObjectId| id.0 >= table.gone_below && !table.objects.contains_key(id);
    let unknown: Vec<_> = seen.keys().filter(|id| is_unknown(&table, id)).copied().collect();
    for id in unknown {
        add(&mut table, id, Epoch(0));
    }
    let needs = |descriptor: &ObjectDescriptor| {
        let origin = descriptor.origin.map(|origin| (origin.object, origin.epoch));
        // Units are decoded with a dictionary whether its parent exists or not. Folders come later.
        let needs_parent = descriptor.state != ObjectState::Dictionary && !lies_in_folder(descriptor);
        let parent = descriptor.parent.filter(|_| needs_parent);
        let parent = parent.map(|parent| (parent, Epoch(0)));
        [origin, parent].into_iter().flatten().collect::<Vec<_>>()
    };
    // Objects that no point sees may have outlived their origins.
    let alive =
        |descriptor: &&ObjectDescriptor| !matches!(descriptor.state, ObjectState::Deleting | ObjectState::Bookmark);
    let needed: Vec<_> = table.objects.values().filter(alive).flat_map(needs).collect();
    for (id, epoch) in needed {
        if !table.objects.contains_key(&id) {
            add(&mut table, id, Epoch(epoch.0.saturating_add(1)));
        }
    }
    // A destroyed object that is needed may in turn need one that does not exist: then nothing is
    // below it.
    let there: BTreeSet<_> = table.objects.keys().copied().collect();
    for descriptor in table.objects.values_mut() {
        descriptor.origin = descriptor.origin.filter(|origin| there.contains(&origin.object));
    }
    // Undone epochs left the map long ago, but the log still has them.
    for descriptor in table.objects.values_mut() {
        let undone = std::mem::take(&mut descriptor.undone.cuts);
        descriptor.cuts.extend(undone);
        descriptor.cuts.sort_unstable_by_key(|cut| cut.before);
    }
    complete_folders(&mut table);
    rename_twins(&mut table);
    (table, lost)
}

/// Returns whether the parent of an object is its folder.
fn lies_in_folder(descriptor: &ObjectDescriptor) -> bool {
    matches!(descriptor.state, ObjectState::Volume | ObjectState::Incoming | ObjectState::Folder)
}

/// Creates folders that are known only from the objects in them. An object whose folder is neither
/// a folder nor a share, or is inside itself, is in none.
fn complete_folders(table: &mut Table) {
    let named = table.objects.values().filter(|descriptor| lies_in_folder(descriptor));
    let named: BTreeSet<_> = named.filter_map(|descriptor| descriptor.parent).collect();
    for id in named {
        table.next_object = table.next_object.max(id.0.saturating_add(1));
        table.objects.entry(id).or_insert_with(|| ObjectDescriptor::folder(id, format!("lost-{}", id.0), None));
    }
    let ids: Vec<_> =
        table.objects.values().filter(|d| lies_in_folder(d) && d.parent.is_some()).map(|d| d.id).collect();
    for id in ids {
        let (mut at, mut is_right) = (table.objects.get(&id).and_then(|d| d.parent), true);
        for depth in 0.. {
            let Some(folder) = at.and_then(|id| table.objects.get(&id)) else { break };
            is_right = folder.holds_others() && folder.id != id && depth < DEPTH_MAX;
            if !is_right {
                break;
            }
            at = folder.parent;
        }
        if !is_right && let Some(descriptor) = table.objects.get_mut(&id) {
            descriptor.parent = None;
        }
    }
}

/// Enters these objects as dictionaries. They have no parent, which makes no difference to reads.
pub fn enter_dictionaries(table: &mut Table, lost: &mut BTreeSet<ObjectId>, found: BTreeMap<ObjectId, u64>) {
    for (id, size_bytes) in found {
        let state = ObjectState::Dictionary;
        table.objects.insert(id, ObjectDescriptor { state, ..ObjectDescriptor::volume(id, "dictionary", size_bytes) });
        lost.remove(&id);
    }
}

/// Of two volumes with the same name in one folder, or two such snapshots of one volume, the
/// younger keeps it. A catalogue never has any; single entries of different times may.
fn rename_twins(table: &mut Table) {
    let mut names = BTreeSet::new();
    for descriptor in table.objects.values_mut().rev() {
        // All dictionaries have the same name, which no user sees; bookmarks are not rebuilt.
        let unnamed = [ObjectState::Deleting, ObjectState::Dictionary, ObjectState::Bookmark];
        let is_named = !unnamed.contains(&descriptor.state);
        if is_named && !names.insert((descriptor.parent, descriptor.name.clone())) {
            descriptor.name = format!("lost-{}", descriptor.id.0);
        }
    }
}

/// Returns the chain of an object: itself, then its origin, and so on.
pub fn chain(table: &Table, object: ObjectId) -> Vec<ObjectId> {
    let mut chain = vec![object];
    let mut at = object;
    // An origin's number is smaller than the object's own: there is no circle.
    while let Some(origin) = table.objects.get(&at).and_then(|d| d.origin) {
        at = origin.object;
        chain.push(at);
    }
    chain
}
