//! A pool as its users see it: created, opened, closed; its volumes, properties and figures. Owns
//! the parts of an open pool (`core`) and its threads (`threads`). It sees all rooms; those from
//! `volume` on see its `Core` and `Pool`, the others nothing of it. Any thread may call it.

mod clean;
pub(crate) mod core;
pub(crate) mod creation;
pub(crate) mod figures;
#[cfg(test)]
mod log_failure_tests;
#[cfg(test)]
mod log_writer_tests;
mod losses;
pub(crate) mod pool_properties;
#[cfg(test)]
mod slow_disk_tests;
pub(crate) mod standby;
#[cfg(test)]
mod superblock_copies_tests;
#[cfg(test)]
mod superblock_tests;
#[cfg(test)]
pub(crate) mod testing;
mod threads;
pub(crate) mod workers;
#[cfg(test)]
mod zero_ahead_tests;

use std::sync::Arc;

use env::MapBatch;
use format::{
    COMPAT_INVENTORY, CatalogueRef, Checkpoint, Entry, FORMAT_VERSION, INCOMPAT_BOOKMARKS, INCOMPAT_COMPACT_RECORDS,
    INCOMPAT_FOLDERS, INCOMPAT_IMAGES, INCOMPAT_NESTED_SHARES, KEY_CHECKPOINT, KEY_LEARNED, KEY_SUPERBLOCK,
    ObjectDescriptor, Superblock,
};
use policy::Owner;
use store::base::buffers::BufferPool;
use store::base::options::{FormatOptions, PoolEnv, PoolOptions};
use store::base::ranked::Mutex;
use store::base::shares::Shares;
use store::base::status::{PoolStatus, Problem, VolumeStatus};
use store::base::storage_check::checked;
use store::base::store_error::store_error;
use store::base::vitals::Vitals;
use store::buffer::write_buffer::WriteBuffer;
use store::log::catalogue::{Catalogue, Pins};
use store::log::geometry::EXTENTS_MIN;
use store::log::geometry::Geometry;
use store::log::inventory::{self, Inventories};
use store::log::log_reads::{Source, extents_ahead};
use store::log::{Log, Sink, superblock_copies, superblock_io};
use store::map::Map;
use store::map::apply::Applier;
use store::map::loaded;
use store::objects::volume_ref::VolumeRef;
use store::objects::{Object, Objects, properties};
use store::space::dead_map::Deaths;
use store::space::extents::Extents;
use surface::{DeviceId, Error, ErrorKind, Result};
use units::{EXTENT_BYTES_MAX, EXTENT_BYTES_MIN, ExtentIndex, OBJECT_BYTES_MAX, Seq, format_size};

use crate::checkpoint::opening;
use crate::checkpoint::state::CheckpointState;
use crate::codecs::chooser::Chooser;
use crate::codecs::pressure::{Meter, MeteredDisk};
use crate::pool::core::{Core, Parts};
use crate::repair::loss::Losses;
use crate::repair::mend::identities;
use crate::repair::recovery::Mending;
use crate::repair::standby_open;
use crate::repair::{loss, mend, recovery, standby_lost};
use crate::volume::Volume;

/// An open pool. Clones share it. Without threads, dropping the last one without
/// [`close`](Self::close) is like a crash: unflushed data is lost, and the next open recovers. With
/// threads it does not even end the pool: they keep running, and hold the storage, until the
/// process ends.
#[derive(Clone)]
pub struct Pool {
    pub(crate) core: Arc<Core>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("id", &hex(&self.core.pool_id)).finish_non_exhaustive()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

impl Pool {
    /// Checks whether such a pool can be created, before anything is changed.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for impossible sizes and properties.
    pub fn check_format(options: &FormatOptions) -> Result<()> {
        let extent = options.extent_bytes;
        if !extent.is_power_of_two() || !(EXTENT_BYTES_MIN..=EXTENT_BYTES_MAX).contains(&extent) {
            let text = format!("an extent cannot have {extent} bytes: use a power of two from 32K to 16M");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let geometry = Geometry::new(extent, options.capacity_bytes);
        if geometry.extents() < EXTENTS_MIN || options.capacity_bytes > format::capacity_bytes_max(extent) {
            let least = format_size(u64::from(EXTENTS_MIN) * u64::from(extent));
            let most = format_size(format::capacity_bytes_max(extent) / u64::from(extent) * u64::from(extent));
            let (size, extent) = (format_size(options.capacity_bytes), format_size(extent.into()));
            let text =
                format!("a pool of {size} cannot have extents of {extent}: with those it takes {least} to {most}");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        properties::check(Owner::Pool, &options.properties)
    }

    /// Creates a pool: superblock, first checkpoint. Refuses data that already carries a
    /// superblock; to create a pool there anyway, overwrite its first 32 KiB with zeroes.
    ///
    /// # Errors
    /// Those of [`check_format`](Self::check_format), [`ErrorKind::Exists`], and those of the
    /// storage.
    pub fn format(env: &PoolEnv, options: &FormatOptions) -> Result<()> {
        Self::check_format(options)?;
        if superblock_io::hold_pool(&superblock_io::read_copies(&*env.disk)?) {
            return Err(Error::new(ErrorKind::Exists, "the data file holds a Shale pool already"));
        }
        let mut pool = [0; 16];
        env.entropy.fill(&mut pool).map_err(|e| Error::from_io("reading random bytes for the pool's identifier", e))?;
        let checkpoint = Checkpoint {
            pool,
            incarnation: 0,
            incarnation_first_seq: Seq(1),
            next_seq: Seq(1),
            open: Default::default(),
            extents: vec![ExtentIndex(1)],
            next_object: 1,
            number: 0,
            objects: 0,
            live_bytes: 0,
            deltas: 0,
            properties: options.properties.clone(),
            catalogue: CatalogueRef::default(),
        };
        let superblock = Superblock {
            version: FORMAT_VERSION,
            features_incompat: INCOMPAT_COMPACT_RECORDS,
            features_ro_compat: 0,
            features_compat: COMPAT_INVENTORY,
            pool,
            extent_bytes: options.extent_bytes,
            capacity_bytes: options.capacity_bytes,
            created_unix_s: env.clock.unix_s(),
            generation: 1,
        };
        let mut batch = MapBatch::default();
        batch.put(KEY_CHECKPOINT, checkpoint.encode());
        batch.put(KEY_SUPERBLOCK, superblock.encode());
        env.store.commit(batch).map_err(store_error)?;
        env.store.persist().map_err(store_error)?;
        // The superblock comes last: without it there is no pool, and formatting can be repeated.
        inventory::write_first(&*env.disk, &superblock)?;
        opening::write_note(&*env.disk, pool, 0)?;
        superblock_io::write(&*env.disk, &superblock)?;
        superblock_copies::write_end(&*env.disk, &superblock)
    }

    /// Opens a pool: verifies the superblock, loads the last checkpoint, applies the log after it,
    /// takes a checkpoint, and starts the threads.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] without a superblock, [`ErrorKind::Unsupported`] for an unknown
    /// version or feature, [`ErrorKind::Corrupt`] for damage, and those of the storage.
    pub fn open(env: PoolEnv, options: PoolOptions) -> Result<Self> {
        let began = env.clock.now_ns();
        let env = checked(env);
        let (superblock, beginning) = superblock_copies::find(&env, options.repair)?;
        let geometry = Geometry::new(superblock.extent_bytes, superblock.capacity_bytes);
        opening::check(&*env.store, &*env.disk, superblock.pool)?;
        let cut_off = superblock_io::find_end(&*env.disk, &superblock, options.repair)?;
        let mut mended = if options.repair { mend::mend(&env, &superblock, &geometry)? } else { Vec::new() };
        mended.extend(beginning);
        let cut = loss::Cut::of(&env, cut_off)?;
        let loaded = loaded::load(&*env.store, &superblock.pool, &geometry)?;
        let checkpoint = loaded.checkpoint;
        let shares = Shares::of(options.memory_bytes);
        let objects = Arc::new(Objects::new(checkpoint.properties.clone(), checkpoint.next_object));
        objects.load(&loaded.objects)?;
        let applier = Arc::new(Applier {
            map: Arc::new(Map::new(env.store.clone(), shares.groups, Arc::new(loaded.deltas.settled))),
            objects,
            buffer: Arc::new(WriteBuffer::new()),
            catalogue: Arc::new(Catalogue::new(Pins::of(&checkpoint.catalogue))),
            deaths: Mutex::new(Deaths::new(shares.deaths)),
            geometry: geometry.clone(),
            inventories: Inventories::load(&*env.disk, &checkpoint, geometry.extent_bytes),
        });
        let mut extents = Extents::new(&geometry, loaded.usage, checkpoint.number);
        extents.pin(applier.catalogue.pins().extents());
        extents.list(checkpoint.log_extents());
        let buffers = Arc::new(BufferPool::new(options.memory_bytes));
        let replayed = recovery::replay(
            Source { disk: &*cut.disk, geometry: &geometry, buffers: &buffers },
            &checkpoint,
            &applier,
            Mending { repairs: options.repair, cut_at: cut.at },
            if options.workers > 0 { extents_ahead(options.memory_bytes, geometry.extent_bytes) } else { 0 },
        )?;
        let mut position = replayed.position;
        let left = standby_open::find(&env, &superblock.pool, position.incarnation, position.next_seq)?;
        let loss = standby_lost::short(&left, position.next_seq, replayed.loss, options.repair)?;
        let mut losses = Losses::accept(&env, &options, loss, &cut, &applier.objects)?;
        mended.extend(cut.lengthen(&env, &superblock, &losses)?);
        mended.extend(replayed.damaged.into_iter().map(Problem::log_damage));
        mended.extend(losses.accepted.iter().flat_map(Problem::losses));
        let doubtful = identities::noted(&*env.store)?;
        let is_orderly = recovery::ended_at(&*env.store, position.incarnation, position.next_seq)?;
        losses.note_end(replayed.torn, position.next_seq, is_orderly);
        let missing = standby_lost::Missing::of(&env, &superblock.pool, &left, is_orderly, &applier.objects)?;
        let (missing, is_missing) = missing.remember(&env, &mut losses)?;
        // Batches after the end of the log never happened.
        position.incarnation += 1;
        position.incarnation_first_seq = position.next_seq;
        if let standby_open::Found::Left(left) = &left {
            left.goes_with(position.incarnation);
        }
        applier.catalogue.enter(position.incarnation, position.incarnation_first_seq, is_orderly);
        let vitals = Arc::new(Vitals::new(env, options));
        let Vitals { env, options, counters, .. } = &*vitals;
        counters.recovered_batches.set(replayed.batches);
        counters.recovered_bytes.set(replayed.bytes_read);
        let sink: Arc<dyn Sink> = applier.clone();
        let meter = Arc::new(Meter::new(env.clock.clone(), options.workers));
        let learned = env.store.get(KEY_LEARNED).map_err(store_error)?;
        let chooser = Chooser::new(env.clock.clone(), meter.clone(), options.memory_bytes, learned.as_deref());
        let log = Log::new(
            geometry.clone(),
            superblock.pool,
            Arc::new(MeteredDisk { inner: env.disk.clone(), meter }),
            sink,
            vitals.clone(),
            buffers.clone(),
            position,
            checkpoint.next_seq,
            shares.write_buffer / 4,
        );
        let core = Arc::new(Core::new(Parts {
            vitals,
            applier,
            pool_id: superblock.pool,
            buffers,
            log,
            extents,
            checkpoint: CheckpointState::new(checkpoint.number, loaded.deltas.keys),
            chooser,
            unreadable: replayed.unreadable,
        }));
        mended.extend(core.repairs.estrange(&doubtful)?);
        *core.repairs.mended.lock() = mended;
        *core.repairs.losses.lock() = losses;
        core.space.refresh_host_space();
        // Until here nothing has been written to the map, except repairs.
        superblock_io::bring_up_to_date(&*core.vitals.env.disk, &superblock)?;
        core.checkpoints.take()?;
        for (feature, is_there) in [
            (INCOMPAT_BOOKMARKS, core.objects.has_bookmarks()),
            (INCOMPAT_FOLDERS, core.objects.has_folders()),
            (INCOMPAT_NESTED_SHARES, core.objects.has_nested_shares()),
            (INCOMPAT_IMAGES, !core.objects.images().is_empty()),
        ] {
            if is_there {
                superblock_io::mark_feature(&*core.vitals.env.disk, feature)?;
            }
        }
        *core.repairs.opening_notes.lock() = superblock_copies::bring_up_to_date(&core.vitals.env)?;
        // Not earlier: until here another opening could have got the same number, and nothing may
        // be written under it.
        core.checkpoints.mark_opening();
        if core.checkpoints.is_catalogue_due() {
            core.checkpoints.take()?;
        } else {
            core.log.sync()?;
        }
        if !core.catalogue.is_wanted() {
            identities::forget(&*core.vitals.env.store, &doubtful)?;
        }
        core.checkpoints.punch_at_open();
        core.vitals.counters.recovery_ns.set(core.vitals.env.clock.now_ns().saturating_sub(began));
        let started = threads::start(&core).and_then(|()| core.repairs.take_over_standby(left, missing, is_missing));
        if let Err(error) = started {
            // Threads that wait for work would hold the pool's files until the process ends.
            core.reads.images.stop();
            core.workers.stop(&core.signals, &core.jobs, &core.log);
            return Err(error);
        }
        // The keeper leaves the standby memory alone until this has failed or has made some.
        let wants_standby = core.repairs.standby.lock().is_wanted;
        if wants_standby && let Err(why) = core.begin_standby() {
            core.repairs.standby.lock().why_none = Some(why);
        }
        Ok(Self { core })
    }

    /// Its identifier.
    pub fn id(&self) -> [u8; 16] {
        self.core.pool_id
    }

    /// Flushes, takes a checkpoint, and stops the threads. Remaining handles of volumes get errors
    /// from now on.
    ///
    /// # Errors
    /// When something could not be made durable; the pool is still closed.
    pub fn close(self) -> Result<()> {
        // Damage found by readers is entered into the list before the last checkpoint.
        let done = self.core.writes.flush();
        let entered = done.is_ok().then(|| self.core.repairs.enter_suspects());
        let done = done.and_then(|()| self.core.checkpoints.take_last()).and(entered.unwrap_or(Ok(())));
        self.core.reads.images.stop();
        self.core.workers.stop(&self.core.signals, &self.core.jobs, &self.core.log);
        self.core.vitals.close();
        self.core.end_standby(done.is_ok());
        self.core.end_log();
        done
    }

    /// Returns the repairs made when the pool was opened with [`repair`](PoolOptions::repair),
    /// until [`check`](Self::check) takes them into its report.
    pub fn mended(&self) -> Vec<Problem> {
        self.core.repairs.mended.lock().clone()
    }

    /// Destroys a volume that has no snapshots: see [`destroy`](Self::destroy).
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::InUse`] if it has some.
    pub fn destroy_volume(&self, name: &str) -> Result<()> {
        self.core.objects.named(name)?;
        self.destroy(name, false)
    }

    /// Changes a volume's size. Data beyond a smaller size is lost; an added range reads as zeroes.
    /// Durable on return. More than 512 MiB of dense data (1 TiB without data) are cut off piece by
    /// piece, from the end: after an error or a crash the volume has the size reached by then.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::Invalid`]; and those of the storage, with the volume's
    /// size if it was cut in part.
    pub fn resize_volume<'a>(&self, target: impl Into<VolumeRef<'a>>, size_bytes: u64) -> Result<()> {
        let target = target.into();
        let object = self.core.objects.resolve_volume(target)?;
        self.core.fetches.fetching(&object, &mut || self.resize_volume_to(target, size_bytes, true))
    }

    /// Grows a volume to a size, unless it is larger already: nothing is ever cut off. Durable on
    /// return.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::Invalid`]; [`ErrorKind::Conflict`] if it is larger.
    pub fn enlarge_volume<'a>(&self, target: impl Into<VolumeRef<'a>>, size_bytes: u64) -> Result<()> {
        let target = target.into();
        let object = self.core.objects.resolve_volume(target)?;
        self.core.fetches.fetching(&object, &mut || self.resize_volume_to(target, size_bytes, false))
    }

    fn resize_volume_to(&self, target: VolumeRef<'_>, size_bytes: u64, may_shrink: bool) -> Result<()> {
        check_size(size_bytes)?;
        let _admin = self.core.objects.admin.lock();
        let object = self.core.objects.resolve_volume(target)?;
        if object.is_share() {
            let text = format!("'{}' is a share, which has no size: set its quota instead", object.title());
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        if !may_shrink && size_bytes < object.size_bytes() {
            let name = object.title();
            let (has, wanted) = (format_size(object.size_bytes()), format_size(size_bytes));
            let text = format!("volume '{name}' has {has} and would lose the data beyond {wanted}");
            return Err(Error::new(ErrorKind::Conflict, text));
        }
        let _gate = object.gate.write();
        let resized = |size_bytes| Entry::Object(ObjectDescriptor { size_bytes, ..object.descriptor.read().clone() });
        if size_bytes < object.size_bytes() {
            return self.core.volumes.cut_off(&object, size_bytes);
        }
        self.core.volumes.zero_past_end(&object)?;
        self.core.writes.append_durably(vec![resized(size_bytes)])
    }

    /// The volume of that name, or the snapshot (`VOLUME@SNAPSHOT`), which is read only.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn volume(&self, name: &str) -> Result<Arc<Volume>> {
        self.volume_by_ref(name.into())
    }

    /// All volumes, by name. Stored bytes are those of the last checkpoint.
    pub fn volumes(&self) -> Vec<VolumeStatus> {
        let by_timeline = self.core.objects.snapshots_by_timeline();
        let dirty = self.core.buffer.objects_with_data();
        let status = |object: Arc<Object>| {
            let descriptor = object.descriptor.read().clone();
            VolumeStatus {
                id: DeviceId(object.id.0),
                name: object.title(),
                size_bytes: object.size_bytes(),
                allocated_bytes: object.allocated_bytes(),
                stored_bytes: object.stored_now(),
                created_unix_s: descriptor.created_unix_s,
                properties: descriptor.properties,
                epoch: descriptor.epoch.0,
                origin: Self::origin_of(&object, &by_timeline).map(|snapshot| snapshot.title()),
                is_exact: object.is_exact() && !dirty.contains(&object.id),
            }
        };
        self.core.objects.volumes().into_iter().map(status).collect()
    }

    /// Figures of the pool. Live and dead bytes are exact at a checkpoint and estimated since; free
    /// ones are those of the last checkpoint.
    pub fn status(&self) -> PoolStatus {
        let core = &self.core;
        let extent_bytes = u64::from(core.geometry.extent_bytes);
        let volumes = self.volumes();
        let seen: std::collections::BTreeSet<_> = core.objects.volumes().iter().map(|object| object.id).collect();
        let all = core.objects.all();
        let dictionaries = core.objects.dictionaries();
        let dictionary_bytes = dictionaries.iter().map(|object| object.stored_now()).sum::<u64>();
        // Dictionaries are also objects that are no volumes, and are listed separately.
        let of_unlisted = |bytes: fn(&Object) -> u64| {
            let unlisted = all.iter().filter(|object| !seen.contains(&object.id)).map(|object| bytes(object));
            unlisted.sum::<u64>().saturating_sub(dictionaries.iter().map(|object| bytes(object)).sum())
        };
        let unlisted_bytes = of_unlisted(Object::stored_now);
        let unlisted_allocated_bytes = of_unlisted(Object::allocated_bytes);
        let pins = core.catalogue.pins();
        let (live_bytes, free, catalogue_extents) = {
            let extents = core.space.extents.lock();
            let idle = pins.extents().into_iter().filter(|extent| extents.is_idle(*extent)).count() as u64;
            (extents.live_bytes(), extents.free(), idle)
        };
        let since = all.iter().map(|object| object.stored_now().cast_signed() - object.stored_bytes().cast_signed());
        let settled_bytes = live_bytes;
        let live_bytes = live_bytes.saturating_add_signed(since.sum::<i64>());
        let extents_total = u64::from(core.geometry.extents()) - 1;
        let extents_free = free + core.log.ahead() as u64;
        let damages = core.clean.damages.lock().clone();
        let c = &core.vitals.counters;
        PoolStatus {
            id: hex(&core.pool_id),
            capacity_bytes: u64::from(core.geometry.extents()) * extent_bytes,
            extent_bytes,
            extents_free,
            extents_total,
            logical_bytes: volumes.iter().map(VolumeStatus::logical_bytes).sum(),
            allocated_bytes: volumes.iter().map(|v| v.allocated_bytes).sum(),
            live_bytes,
            unlisted_bytes,
            unlisted_allocated_bytes,
            dictionaries: dictionaries.len() as u64,
            dictionary_bytes,
            reaping: core.objects.reaping().len() as u64,
            dead_bytes: ((extents_total - extents_free.min(extents_total)) * extent_bytes).saturating_sub(live_bytes),
            free_bytes: core.space.free_bytes_below(extents_free),
            reserved_bytes: core.space.reserved_unmet(),
            reserved_for: core.space.reserved_for(),
            kept_bytes: core.geometry.reserve_extents() * extent_bytes,
            returning_bytes: settled_bytes.saturating_sub(live_bytes),
            available_bytes: core.space.available_bytes(),
            is_full: core.space.is_full(),
            is_short_below: core.space.is_short_below(extents_free),
            refused_writes: c.refused_writes.get(),
            is_exact: core.buffer.bytes() == 0 && all.iter().all(|object| object.is_exact()),
            map_bytes: core.vitals.env.store.occupied_bytes(),
            written_bytes: c.written_bytes.get(),
            fragment_bytes: c.fragment_bytes.get(),
            log_bytes: c.log_bytes.get(),
            read_disk_bytes: c.read_disk_bytes.get(),
            read_bytes: c.read_bytes.get(),
            ahead_bytes: c.ahead_bytes.get(),
            ahead_used_bytes: c.ahead_used_bytes.get(),
            checkpoints: c.checkpoints.get(),
            light_checkpoints: c.light_checkpoints.get(),
            folded_groups: c.folded_groups.get(),
            flushes: c.flushes.get(),
            syncs: c.syncs.get(),
            recovered_batches: c.recovered_batches.get(),
            recovered_bytes: c.recovered_bytes.get(),
            recovery_ns: c.recovery_ns.get(),
            cleaned_extents: c.cleaned_extents.get(),
            moved_bytes: c.moved_bytes.get(),
            rewritten_bytes: c.rewritten_bytes.get(),
            cleaning_ns: c.cleaning_ns.get(),
            reads_of_copies: c.reads_of_copies.get(),
            repaired_fragments: c.repaired_fragments.get(),
            cold_before_bytes: c.cold_before_bytes.get(),
            cold_after_bytes: c.cold_after_bytes.get(),
            catalogue_bytes: if pins.as_of.is_some() { pins.bytes } else { 0 },
            catalogue_extents,
            damages,
            standby: core.standby_status(),
            failed: core.vitals.failure(),
        }
    }

    /// Returns whether a crash of the process now would lose no acknowledged data.
    pub fn keeps_acknowledged(&self) -> bool {
        self.core.standby_status().place.is_some()
    }

    /// Makes all that was acknowledged durable.
    ///
    /// # Errors
    /// When the storage fails or is full.
    pub fn flush(&self) -> Result<()> {
        self.core.writes.flush()
    }

    /// Flushes, and brings the map on disk up to date.
    ///
    /// # Errors
    /// When the storage fails.
    pub fn checkpoint(&self) -> Result<()> {
        self.core.history.flush_and_checkpoint()
    }

    /// The same as cheaply as possible: dead extents become free, and recovery has less to do, but
    /// changes of the map may stay apart from its records.
    ///
    /// # Errors
    /// When the storage fails.
    pub fn light_checkpoint(&self) -> Result<()> {
        self.core.writes.flush()?;
        self.core.checkpoints.take_light()
    }

    /// Does background work that is due. The pool's own threads do this; without them, its user
    /// calls it.
    ///
    /// # Errors
    /// When the storage fails or is full.
    pub fn tick(&self) -> Result<()> {
        self.core.tick()
    }

    /// Empties the caches, for measurements of cold reads.
    pub fn drop_caches(&self) {
        self.core.map.drop_cache();
        self.core.reads.units.clear();
        self.core.dictionaries.clear();
    }
}

/// Whether a volume can have this size.
///
/// # Errors
/// [`ErrorKind::Invalid`] for 0 and above 1 PiB.
fn check_size(size_bytes: u64) -> Result<()> {
    let wrong = match size_bytes {
        0 => "must have at least 1 byte".to_owned(),
        _ if size_bytes > OBJECT_BYTES_MAX => format!("can have at most {}", format_size(OBJECT_BYTES_MAX)),
        _ => return Ok(()),
    };
    Err(Error::new(ErrorKind::Invalid, format!("a volume {wrong}, not {size_bytes} bytes")))
}

impl Drop for Core {
    fn drop(&mut self) {
        // Data dropped from now on without having been drained is for the next opening.
        if let Some(ring) = self.buffer.standby() {
            ring.freeze();
        }
        self.reads.images.stop();
        self.workers.stop(&self.signals, &self.jobs, &self.log);
    }
}
