//! Recreates in another pool the volumes, snapshots and clones of a [`view`](super::view).
//!
//! A volume is rebuilt in these steps, which leave the other pool sound wherever they are
//! interrupted:
//! 1. It is created empty, or cloned from its origin, if that is a snapshot of another volume.
//! 2. For each of its snapshots, oldest first: copy the difference from the previous moment, then
//!    take the snapshot.
//! 3. Copy the difference from the last snapshot to the volume itself.
//! 4. Set its former quota and reservation, and the original creation times. Mark incomplete
//!    volumes as such.
//!
//! Differences are found by records ([`diff`](crate::history::diff)), so nothing is copied twice.
//! An unreadable block becomes a hole. Its record is remembered: all later moments that see the
//! same record see the same damage.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use format::{Entry, ObjectDescriptor};
use salvage::records::Figures;
use salvage::report::{SalvageProgress, SalvageReport, SalvageStep, SalvagedVolume};
use store::base::canary::Canary;
use store::base::options::Properties;
use store::map::compare::Comparison;
use store::map::group_pages::image_below;
use store::objects::images::remote_of;
use store::objects::level::Level;
use store::objects::names::TITLE_BYTES_MAX;
use store::objects::properties::HOLD_PREFIX;
use store::objects::{Object, properties};
use surface::{Allocation, BlockDevice, Error, ErrorKind, Result, WriteOptions};
use units::{BLOCK_BYTES, BlockIndex, BlockMask, Epoch, GroupIndex, ObjectId};

use super::images;
use crate::pool::Pool;
use crate::volume::Volume;

/// Bytes copied in one go.
const COPY_BYTES: u64 = 1 << 20;
/// Damaged records that are remembered; beyond that number, later moments do not list damage that
/// they share.
const BROKEN_MAX: usize = 1 << 16;
/// Added once when there are more.
const MORE_BROKEN: &str = "there is too much damage to list all of it; damage that later snapshots, and clones, \
     share with older ones is not counted";
/// Added when the log lacks data of more records than are remembered.
const MORE_GONE: &str = "too much data is missing to list all ranges, and all files of shares";
/// Properties that limit or promise space: they are set last, and until then those of the pool do
/// not apply either.
const SPACE_PROPERTIES: [&str; 2] = ["quota", "reservation"];
const BLOCK: u64 = BLOCK_BYTES as u64;

/// A record, and its group in the object.
pub(super) type Broken = BTreeMap<(ObjectId, Epoch, GroupIndex), (BlockMask, String)>;

pub(super) struct Rebuild<'a> {
    pub(super) old: &'a Pool,
    into: &'a Pool,
    lost: &'a BTreeSet<ObjectId>,
    pub(super) figures: &'a Figures,
    /// The figures count missing blocks one by one.
    pub(super) by_map: bool,
    report: &'a mut SalvageReport,
    progress: SalvageProgress<'a>,
    pub(super) broken: Broken,
    /// Not all damage could be remembered, and the report says so.
    is_told_of_more: bool,
    /// Names that snapshots have in the other pool.
    titles: HashMap<ObjectId, String>,
    /// Shares that contain others, by their names in the other pool, and their properties.
    holders: Vec<(String, Properties)>,
    done_bytes: u64,
    total_bytes: u64,
}

/// Rebuilds all volumes of `old` in `into`.
///
/// # Errors
/// Those of `into`, of the store below `old`, and of `progress`.
pub(crate) fn rebuild(
    old: &Pool,
    into: &Pool,
    lost: &BTreeSet<ObjectId>,
    figures: &Figures,
    report: &mut SalvageReport,
    progress: SalvageProgress<'_>,
) -> Result<()> {
    let by_map = report.by_map;
    let objects = &old.core.objects;
    let moments = |volume: &Arc<Object>| {
        let snapshots = objects.snapshots_of(volume.id);
        snapshots.iter().map(|snapshot| snapshot.logical_bytes()).sum::<u64>() + volume.logical_bytes()
    };
    let volumes = objects.volumes();
    let total_bytes = volumes.iter().map(moments).sum();
    let mut rebuild = Rebuild {
        old,
        into,
        lost,
        figures,
        by_map,
        report,
        progress,
        broken: Broken::new(),
        is_told_of_more: false,
        titles: HashMap::new(),
        holders: Vec::new(),
        done_bytes: 0,
        total_bytes,
    };
    rebuild.pool_properties();
    rebuild.folders()?;
    rebuild.volumes(volumes)?;
    rebuild.folder_quotas();
    if figures.is_more_gone {
        rebuild.report.notes.push(MORE_GONE.to_owned());
    }
    report.uncertain_bytes = report.volumes.iter().map(|salvaged| salvaged.uncertain_bytes).sum();
    into.checkpoint()
}

/// Returns a snapshot's former name, truncated if `VOLUME@SNAPSHOT` would be too long: then its
/// object's number makes it unique.
fn fitting_name(volume: &str, was: &str, id: ObjectId) -> String {
    let room = TITLE_BYTES_MAX.saturating_sub(volume.len() + 1);
    if was.len() <= room {
        return was.to_owned();
    }
    let number = id.0.to_string();
    let kept = room.saturating_sub(number.len() + 1);
    let kept: String = was.chars().take(kept).filter(char::is_ascii).collect();
    if kept.is_empty() { number } else { format!("{kept}-{number}") }
}

fn is_of_space(key: &str) -> bool {
    SPACE_PROPERTIES.contains(&key)
}

/// Properties with neither quota nor reservation.
fn unlimited() -> Properties {
    SPACE_PROPERTIES.map(|key| (key.to_owned(), "none".to_owned())).into()
}

/// A property that disables scheduled snapshots.
fn no_snapshots() -> (String, String) {
    ("snapshots".to_owned(), "off".to_owned())
}

impl Rebuild<'_> {
    /// Properties that are already set on the other pool stay.
    fn pool_properties(&mut self) {
        let there = self.into.core.objects.pool_properties();
        let mine = self.old.core.objects.pool_properties();
        let missing = mine.into_iter().filter(|(key, _)| !there.contains_key(key));
        for (key, value) in missing {
            let change = (key.clone(), Some(value.clone()));
            if let Err(error) = self.into.set_properties(None, &[change]) {
                self.report.notes.push(format!("the pool's property {key}={value} was not set: {error}"));
            }
        }
    }

    /// Creates missing folders, the higher ones first, without their quotas. If one cannot be
    /// created, only names are lost: the volumes in it get others.
    fn folders(&mut self) -> Result<()> {
        for folder in self.old.core.objects.folders() {
            let (title, was) = (folder.title(), folder.descriptor.read().clone());
            if self.into.is_folder(&title) {
                continue;
            }
            let own: Properties = was.properties.into_iter().filter(|(key, _)| !is_of_space(key)).collect();
            let mut made = self.into.create_folder(&title, &own);
            if let Err(error) = &made
                && error.kind() == ErrorKind::Invalid
            {
                self.report.notes.push(format!("the folder '{title}' was created without its properties: {error}"));
                made = self.into.create_folder(&title, &Properties::new());
            }
            match made {
                Ok(id) => self.date_back(ObjectId(id.0), was.created_unix_s)?,
                Err(error) if matches!(error.kind(), ErrorKind::Exists | ErrorKind::Invalid | ErrorKind::NotFound) => {
                    self.report.notes.push(format!("the folder '{title}' was not created: {error}"));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Step 4 for the folders, and for the shares that contain others: their contents exist by now.
    fn folder_quotas(&mut self) {
        for (title, own) in std::mem::take(&mut self.holders) {
            if let Err(error) = self.limit(&title, &own) {
                self.report.notes.push(format!("the share '{title}' lacks its quota or its reservation: {error}"));
            }
        }
        for folder in self.old.core.objects.folders() {
            let (title, own) = (folder.title(), folder.descriptor.read().properties.clone());
            let changes: Vec<_> = own.into_iter().filter(|(key, _)| is_of_space(key)).collect();
            let changes: Vec<_> = changes.into_iter().map(|(key, value)| (key, Some(value))).collect();
            if changes.is_empty() || !self.into.is_folder(&title) {
                continue;
            }
            if let Err(error) = self.into.set_properties(Some(&title), &changes) {
                self.report.notes.push(format!("the folder '{title}' lacks its quota: {error}"));
            }
        }
    }

    /// The origins of others first.
    fn volumes(&mut self, mut left: Vec<Arc<Object>>) -> Result<()> {
        let by_timeline = self.old.core.objects.snapshots_by_timeline();
        while !left.is_empty() {
            let origin = |volume: &Arc<Object>| Pool::origin_of(volume, &by_timeline);
            // The folder of a share comes before it.
            let is_placed = |volume: &Arc<Object>| {
                let holder = volume.descriptor.read().parent;
                left.iter().all(|other| Some(other.id) != holder)
            };
            let is_ready = |volume: &Arc<Object>| {
                is_placed(volume) && origin(volume).is_none_or(|s| self.titles.contains_key(&s.id))
            };
            // If each waits for another one, the oldest is copied whole.
            let oldest = || left.iter().enumerate().min_by_key(|(_, volume)| volume.id).map(|(index, _)| index);
            let Some(index) = left.iter().position(is_ready).or_else(oldest) else { break };
            let volume = left.swap_remove(index);
            let from = origin(&volume).filter(|snapshot| self.titles.contains_key(&snapshot.id));
            self.volume(&volume, from)?;
        }
        Ok(())
    }

    fn volume(&mut self, volume: &Arc<Object>, from: Option<Arc<Object>>) -> Result<()> {
        let descriptor = volume.descriptor.read().clone();
        let snapshots = self.old.core.objects.snapshots_of(volume.id);
        let name = self.free_name(&volume.title(), volume, &snapshots);
        let mut properties = descriptor.properties.clone();
        properties.extend(unlimited());
        // Step 1.
        let mut levels: Arc<[Level]> = Arc::new([]);
        let title = from.as_ref().and_then(|from| self.titles.get(&from.id)).cloned();
        if let (Some(from), Some(title)) = (&from, title) {
            self.make(&name, &properties, |into, own| into.clone_snapshot(&title, &name, own))?;
            levels = from.levels();
        } else {
            let first = snapshots.first().unwrap_or(volume);
            let below = image_below(&volume.levels()).cloned();
            let object = below.as_ref().and_then(|level| self.old.core.objects.get(level.object));
            let image = object.as_ref().and_then(|object| object.descriptor.read().image.clone());
            if let (Some(object), Some(image)) = (object, image) {
                let remote = remote_of(&image);
                let size = Some(first.size_bytes());
                self.make(&name, &properties, |into, own| into.clone_image(&remote, &name, size, own).map(drop))?;
                images::copy((self.old, &object), self.into, &image, &mut self.report.notes)?;
                levels = below.into_iter().collect();
            } else {
                self.make(&name, &properties, |into, own| into.create(&name, first.size_bytes(), own).map(drop))?;
            }
        }
        let target = self.into.volume(&name)?;
        // Steps 2 and 3.
        for snapshot in &snapshots {
            let mut salvaged = self.moment(snapshot, &levels, &target, &name)?;
            if Canary::SalvageBoundsForgetSnapshots.is_planted() {
                salvaged.uncertain_bytes = 0;
            }
            let (id, was, scheduled) = {
                let descriptor = snapshot.descriptor.read();
                (descriptor.id, descriptor.name.clone(), descriptor.scheduled)
            };
            let own = fitting_name(&name, &was, id);
            salvaged.name = format!("{name}@{own}");
            if own != was {
                self.report
                    .notes
                    .push(format!("the name '{name}@{was}' is too long: it is now called '{}'", salvaged.name));
            }
            self.into.take_snapshot(&name, &own, scheduled)?;
            self.dress(&salvaged.name, snapshot, None);
            self.titles.insert(snapshot.id, salvaged.name.clone());
            self.report.volumes.push(salvaged);
            levels = snapshot.levels();
        }
        let salvaged = self.moment(volume, &levels, &target, &name)?;
        // Step 4.
        self.into.flush()?;
        self.dress(&name, volume, Some(&descriptor.properties));
        if self.old.core.objects.has_below(volume.id) {
            self.holders.push((name.clone(), descriptor.properties.clone()));
        }
        self.report.volumes.push(SalvagedVolume { name, is_lost: self.lost.contains(&volume.id), ..salvaged });
        Ok(())
    }

    /// Step 1: creates a volume with its properties. If they conflict, it is created without the
    /// schedule of snapshots; if this version does not know them, without any.
    fn make(
        &mut self,
        name: &str,
        properties: &Properties,
        make: impl Fn(&Pool, &Properties) -> Result<()>,
    ) -> Result<()> {
        let without_clock = |mut properties: Properties| {
            properties.extend([no_snapshots()]);
            properties
        };
        let mut bare = unlimited();
        bare.extend(properties::of_moment(properties));
        let tries = [
            ("", properties.clone()),
            (" scheduled snapshots", without_clock(properties.clone())),
            (" its properties", without_clock(bare)),
        ];
        let mut refused = None;
        for (lacks, properties) in tries {
            match make(self.into, &properties) {
                Err(error) if error.kind() == ErrorKind::Invalid => drop(refused.get_or_insert(error)),
                made => {
                    let why = refused.filter(|_| made.is_ok());
                    let note = why.map(|error| format!("volume '{name}' was created without{lacks}: {error}"));
                    self.report.notes.extend(note);
                    return made;
                }
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// Returns a volume's former full name, unless the other pool has that name already or lacks
    /// its folder, or it leaves no room for the names of its snapshots.
    fn free_name(&self, title: &str, volume: &Object, snapshots: &[Arc<Object>]) -> String {
        let (id, is_share) = (volume.id, volume.is_share());
        let fits = |name: &str| {
            let title = |s: &Arc<Object>| format!("{name}@{}", fitting_name(name, &s.descriptor.read().name, s.id));
            snapshots.iter().all(|snapshot| title(snapshot).len() <= TITLE_BYTES_MAX)
        };
        let objects = &self.into.core.objects;
        let is_taken = |name: &str| {
            let is_there = objects.named(name).is_ok() || objects.folder(name).is_some();
            is_there || objects.place(name, is_share).is_err() || !fits(name)
        };
        let numbered = |n: u64| format!("lost-{}-{n}", id.0);
        if !is_taken(title) {
            return title.to_owned();
        }
        (1..).map(numbered).find(|name| !is_taken(name)).unwrap_or_default()
    }

    /// Copies the difference between the moment that `levels` sees and the one that `object` sees.
    fn moment(
        &mut self,
        object: &Arc<Object>,
        levels: &[Level],
        target: &Arc<Volume>,
        name: &str,
    ) -> Result<SalvagedVolume> {
        let size_bytes = object.size_bytes();
        if target.size_bytes() != size_bytes {
            self.into.resize_volume(name, size_bytes)?;
        }
        let source = Volume::new(self.old.core.volumes.clone(), object.clone());
        let now = object.levels();
        let mut salvaged = SalvagedVolume { name: name.to_owned(), size_bytes, ..SalvagedVolume::default() };
        let mut at = 0;
        let stored = Comparison { map: &self.old.core.map, head: None };
        loop {
            let page = stored.page((levels, &now), (size_bytes, size_bytes), at)?;
            for change in page.changes {
                match change.now {
                    Allocation::Hole => target.discard(change.offset, change.length)?,
                    Allocation::Data => self.copy(&source, target, change.offset, change.length, &mut salvaged)?,
                }
            }
            let Some(next) = page.next else { break };
            let reached = if object.is_share() { salvaged.copied_bytes } else { next };
            (self.progress)(SalvageStep::Copy, self.done_bytes + reached, self.total_bytes)?;
            at = next;
        }
        self.done_bytes += object.logical_bytes();
        (self.progress)(SalvageStep::Copy, self.done_bytes, self.total_bytes)?;
        self.damages(object, &mut salvaged)?;
        self.gone(object, &mut salvaged)?;
        salvaged.uncertain_bytes = self.figures.uncertain(&now).saturating_mul(BLOCK).min(size_bytes);
        salvaged.missing_bytes_max = self.missing_max(&source)?;
        Ok(salvaged)
    }

    fn copy(
        &mut self,
        source: &Volume,
        target: &Volume,
        offset: u64,
        length: u64,
        salvaged: &mut SalvagedVolume,
    ) -> Result<()> {
        let (mut at, end) = (offset, offset + length);
        while at < end {
            let len = (end - at).min(COPY_BYTES - at % COPY_BYTES);
            self.copy_piece(source, target, at, len, salvaged)?;
            at += len;
        }
        Ok(())
    }

    /// Copies all at once, or block by block if some cannot be read.
    fn copy_piece(
        &mut self,
        source: &Volume,
        target: &Volume,
        offset: u64,
        length: u64,
        salvaged: &mut SalvagedVolume,
    ) -> Result<()> {
        let mut buf = vec![0; length as usize];
        match source.read(offset, &mut buf) {
            Ok(()) => {
                target.write(offset, Bytes::from(buf), WriteOptions::default())?;
                salvaged.copied_bytes += length;
            }
            Err(_) if length > BLOCK => {
                for at in (offset..offset + length).step_by(BLOCK_BYTES) {
                    self.copy_piece(source, target, at, BLOCK.min(offset + length - at), salvaged)?;
                }
            }
            Err(error) => {
                // Data of the previous moment must not show here.
                target.discard(offset, length)?;
                if !self.remember(&source.object, offset, &error)? {
                    salvaged.damaged_bytes += BLOCK.min(salvaged.size_bytes.saturating_sub(offset));
                    if !self.is_told_of_more {
                        self.report.notes.push(MORE_BROKEN.to_owned());
                        self.is_told_of_more = true;
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns whether there was room for it.
    fn remember(&mut self, object: &Object, at: u64, error: &Error) -> Result<bool> {
        let block = BlockIndex::containing(at);
        let mask = BlockMask::run(block.in_group(), 1);
        for piece in self.old.core.map.lookup_stored(&object.levels(), block.group(), mask)? {
            let key = (piece.object, piece.epoch, block.group());
            if self.broken.len() >= BROKEN_MAX && !self.broken.contains_key(&key) {
                return Ok(false);
            }
            let broken = self.broken.entry(key).or_insert_with(|| (BlockMask::EMPTY, error.to_string()));
            broken.0 = broken.0.or(mask);
        }
        Ok(true)
    }

    /// Sets the original creation time and the former properties of a snapshot or of a volume. A
    /// failure here loses no data.
    fn dress(&mut self, title: &str, old: &Object, properties: Option<&Properties>) {
        if let Err(error) = self.try_dress(title, old, properties) {
            self.report.notes.push(format!(
                "'{title}' has not its former creation time, or lacks some \
                 properties: {error}"
            ));
        }
    }

    fn try_dress(&self, title: &str, old: &Object, properties: Option<&Properties>) -> Result<()> {
        let core = &self.into.core;
        {
            let _admin = core.objects.admin.lock();
            let object = core.objects.readable(title)?;
            let created_unix_s = old.descriptor.read().created_unix_s;
            let mut descriptor = object.descriptor.read().clone();
            if created_unix_s > 0 {
                descriptor.created_unix_s = created_unix_s;
            }
            if properties.is_none() {
                // Holds are kept. Bookmarks are not: the epochs of the other pool are different.
                let was = old.descriptor.read().properties.clone();
                descriptor.properties = properties::of_moment(&was);
                descriptor.properties.extend(was.into_iter().filter(|(key, _)| key.starts_with(HOLD_PREFIX)));
            }
            // A clone has inherited those of its origin's volume, too.
            if let Some(own) = properties {
                descriptor.properties.retain(|key, _| own.contains_key(key) || is_of_space(key));
                // A name that is too long for them.
                if properties::resolved_for(title, &core.objects.inherited(&descriptor), &descriptor.properties)
                    .is_err()
                {
                    descriptor.properties.extend([no_snapshots()]);
                }
            }
            core.writes.append_applied(vec![Entry::Object(descriptor)])?;
        }
        match properties {
            Some(own) if !self.old.core.objects.has_below(old.id) => self.limit(title, own),
            _ => Ok(()),
        }
    }

    /// Gives a volume its quota and its reservation.
    fn limit(&self, title: &str, own: &Properties) -> Result<()> {
        // Each separately: a reservation that does not fit does not prevent the quota.
        let set = |key: &str| self.into.set_properties(Some(title), &[(key.to_owned(), own.get(key).cloned())]);
        SPACE_PROPERTIES.map(set).into_iter().collect()
    }

    /// Sets an object's former creation time.
    fn date_back(&self, id: ObjectId, created_unix_s: u64) -> Result<()> {
        let core = &self.into.core;
        let _admin = core.objects.admin.lock();
        let Some(object) = core.objects.get(id) else { return Ok(()) };
        let descriptor = ObjectDescriptor { created_unix_s, ..object.descriptor.read().clone() };
        core.writes.append_applied(vec![Entry::Object(descriptor)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_with_too_long_a_name_gets_one_that_fits() {
        let (volume, id) = ("v".repeat(200), ObjectId(71));
        assert_eq!(fitting_name(&volume, &"s".repeat(54), id), "s".repeat(54));
        assert_eq!(fitting_name(&volume, &"s".repeat(55), id), format!("{}-71", "s".repeat(51)));
        assert_eq!(fitting_name(&"v".repeat(251), "snapshot", id), "71");
    }
}
