//! Copies of the superblock far from the first two: one at the end of the data file or device, one
//! in the map store. They are used only if neither of the first two can be. They describe a pool
//! whose beginning has been overwritten.
//!
//! 1. Both are written after the first two are durable. So a crash in between leaves an older
//!    copy, or none, and never a newer one.
//! 2. Each opening writes copies that are missing, older or damaged. That repairs the result of a
//!    crash in step 1.
//! 3. The copy at the end follows the bytes that the pool uses. A file is extended for it. A device
//!    that the pool fills to the end has none.
//!
//! Opening a pool by one of these copies overwrites its beginning, so it is done on demand only
//! (`repair`), and under two conditions: the copy names the pool of the map, and the log holds
//! batches of that pool. Another pool may have left a copy at the end of the device.

use env::{AlignedBuf, Disk, MapBatch, MapStore};
use format::{
    Checkpoint, KEY_CHECKPOINT, KEY_SUPERBLOCK, SUPERBLOCK_BYTES, SUPERBLOCK_TAIL_BYTES, Superblock, SuperblockError,
    superblock_end_offset,
};
use surface::{Error, ErrorKind, Result};
use units::ExtentIndex;

use crate::base::options::PoolEnv;
use crate::base::status::Problem;
use crate::base::store_error::store_error;
use crate::log::geometry::Geometry;
use crate::log::superblock_io::{self, choose, mark_inventory, read_copies};
use crate::log::{extent_scan, foreign};

/// Upper bound of extents in which batches of the pool are searched. The catalogue's are the first
/// of them; one batch is enough.
const EXTENTS_TRIED_MAX: usize = 64;

/// The copy at the end, and where it is.
pub type EndCopy = (u64, std::result::Result<Superblock, SuperblockError>);

/// Reads the bytes where the copy at the end belongs; `None` if nothing can be read there.
pub fn read_end(disk: &dyn Disk) -> Option<EndCopy> {
    let offset = superblock_end_offset(disk.size_bytes().ok()?)?;
    let mut buf = AlignedBuf::new(SUPERBLOCK_BYTES);
    disk.read_at(offset, &mut buf, SUPERBLOCK_BYTES).ok()?;
    Some((offset, Superblock::decode(&buf[..SUPERBLOCK_BYTES])))
}

/// Returns where the end copy of that superblock belongs, if there is room after the bytes that the
/// pool uses.
pub(crate) fn end_place(disk: &dyn Disk, superblock: &Superblock) -> Option<u64> {
    superblock_end_offset(disk.size_bytes().ok()?).filter(|offset| *offset >= superblock.capacity_bytes)
}

/// Bytes of the data file with room for the copy at the end.
pub const fn bytes_with_end(capacity_bytes: u64) -> u64 {
    capacity_bytes.next_multiple_of(SUPERBLOCK_BYTES as u64) + SUPERBLOCK_TAIL_BYTES
}

/// Upper bound of bytes that a pool may use on storage that cannot grow, if it leaves room for the
/// copy at the end; `capacity_bytes` if that is less.
pub fn capacity_with_end(disk: &dyn Disk, capacity_bytes: u64) -> u64 {
    let Ok(size) = disk.size_bytes() else { return capacity_bytes };
    if disk.may_grow() || capacity_bytes > size {
        return capacity_bytes;
    }
    superblock_end_offset(size).map_or(capacity_bytes, |most| capacity_bytes.min(most))
}

/// Updates the copy at the end to the superblock, durably. A file without room for it is extended.
/// Errors of the storage are ignored: this is the last of several copies.
///
/// # Errors
/// When the sync failed.
pub fn write_end(disk: &dyn Disk, superblock: &Superblock) -> Result<()> {
    let failed = |error| Error::from_io("syncing the copy of the superblock at the end of the data file failed", error);
    if end_place(disk, superblock).is_none() && disk.may_grow() {
        if disk.grow(bytes_with_end(superblock.capacity_bytes)).is_err() {
            return Ok(());
        }
        disk.sync().map_err(failed)?;
    }
    let Some(offset) = end_place(disk, superblock) else { return Ok(()) };
    let mut buf = AlignedBuf::new(SUPERBLOCK_BYTES);
    buf[..SUPERBLOCK_BYTES].copy_from_slice(&superblock.encode());
    match disk.write_at(offset, &buf, SUPERBLOCK_BYTES) {
        Ok(()) => disk.sync().map_err(failed),
        Err(_) => Ok(()),
    }
}

/// Step 1 for both.
///
/// # Errors
/// When the sync or the store failed.
pub fn write(disk: &dyn Disk, store: &dyn MapStore, superblock: &Superblock) -> Result<()> {
    write_end(disk, superblock)?;
    let mut batch = MapBatch::default();
    batch.put(KEY_SUPERBLOCK, superblock.encode());
    store.commit(batch).and_then(|()| store.persist()).map_err(store_error)
}

/// Describes damage of the copy at the end, if there is any.
pub fn end_damage(found: Option<&EndCopy>) -> Option<String> {
    match found {
        Some((offset, Err(error @ SuperblockError::Damaged(_)))) => {
            Some(format!("the copy of the superblock at byte {offset}, near the end of the data: {error}"))
        }
        _ => None,
    }
}

/// Describes damage of the copy in the map, if there is any.
pub fn stored_damage(store: &dyn MapStore) -> Option<String> {
    let bytes = store.get(KEY_SUPERBLOCK).ok().flatten()?;
    let error = Superblock::decode(&bytes).err()?;
    matches!(error, SuperblockError::Damaged(_)).then(|| format!("the copy of the superblock in the map: {error}"))
}

/// Step 2. Also records in the first copies that there is an inventory of extents: the first
/// checkpoint of the opening is durable by now. Correct copies are not written. Returns a
/// description of damaged copies. A write torn by a crash looks the same, so this is not a problem
/// of the pool.
///
/// # Errors
/// As [`write`].
pub fn bring_up_to_date(env: &PoolEnv) -> Result<Vec<String>> {
    mark_inventory(&*env.disk)?;
    let superblock = choose(&read_copies(&*env.disk)?)?;
    let end = read_end(&*env.disk).filter(|(offset, _)| *offset >= superblock.capacity_bytes);
    let is_due = match &end {
        Some((_, copy)) => copy.as_ref() != Ok(&superblock),
        None => env.disk.may_grow(),
    };
    let damaged = end_damage(end.as_ref()).into_iter().chain(stored_damage(&*env.store));
    let notes = damaged.map(|what| format!("{what}; opening the pool has rewritten it")).collect();
    if is_due {
        write_end(&*env.disk, &superblock)?;
    }
    if read_stored(&*env.store).as_ref() != Some(&superblock) {
        let mut batch = MapBatch::default();
        batch.put(KEY_SUPERBLOCK, superblock.encode());
        env.store.commit(batch).and_then(|()| env.store.persist()).map_err(store_error)?;
    }
    Ok(notes)
}

/// Records an incompatible feature in all copies, durably, so that a program that does not know it
/// refuses the pool. Returns when the first two are durable.
///
/// # Errors
/// As [`write`].
pub fn mark_feature(env: &PoolEnv, feature: u64) -> Result<()> {
    superblock_io::mark_feature(&*env.disk, feature)?;
    bring_up_to_date(env).map(drop)
}

/// Reads the copy in the map store, if it is valid.
pub fn read_stored(store: &dyn MapStore) -> Option<Superblock> {
    let bytes = store.get(KEY_SUPERBLOCK).ok().flatten()?;
    Superblock::decode(&bytes).ok()
}

/// Returns the superblock in force. With `repair`, and if both first copies are unusable, returns
/// another copy and a report. Nothing is written: opening the pool restores the first copies.
///
/// # Errors
/// Those of the first copies, with a description of the bytes in their place and the remedy.
pub fn find(env: &PoolEnv, repair: bool) -> Result<(Superblock, Option<Problem>)> {
    let error = match read_copies(&*env.disk).and_then(|copies| choose(&copies)) {
        Ok(superblock) => return Ok((superblock, None)),
        Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
        Err(error) => error,
    };
    let there = beginning(&*env.disk);
    let Some((superblock, place)) = elsewhere(env)? else {
        return Err(Error::new(error.kind(), format!("{error}{there}")));
    };
    let what = format!("the beginning of the pool is overwritten ({error}{there}); {place} has the superblock");
    if repair {
        let detail = format!("{what}: both copies at the beginning are rewritten");
        return Ok((superblock, Some(Problem { kind: "superblock", detail, repaired: true, ..Problem::default() })));
    }
    let advice = "nothing has been changed; `check --repair` rewrites the beginning of the pool, replacing its \
         present content; `salvage` copies the data into another pool and changes nothing";
    // An unreadable copy is not certainly damaged.
    let kind = if error.kind() == ErrorKind::Io { ErrorKind::Io } else { ErrorKind::Corrupt };
    Err(Error::new(kind, format!("{what}; {advice}")))
}

/// Describes the beginning of the data, as a suffix for another message.
pub fn beginning(disk: &dyn Disk) -> String {
    foreign::at_beginning(disk).map(|what| format!("; its beginning holds {what}")).unwrap_or_default()
}

/// Returns the newest other copy that is of the map's pool, if the log has batches of that pool;
/// and its place.
fn elsewhere(env: &PoolEnv) -> Result<Option<(Superblock, String)>> {
    let bytes = env.store.get(KEY_CHECKPOINT).map_err(store_error)?;
    let Some(checkpoint) = bytes.and_then(|bytes| Checkpoint::decode(&bytes).ok()) else { return Ok(None) };
    let mut found: Vec<(Superblock, String)> = Vec::new();
    match read_end(&*env.disk) {
        Some((offset, Ok(copy))) => found.push((copy, format!("a copy at byte {offset}, near its end,"))),
        Some((_, Err(error @ SuperblockError::Unsupported(_)))) => {
            return Err(Error::new(ErrorKind::Unsupported, error.to_string()));
        }
        _ => {}
    }
    found.extend(read_stored(&*env.store).map(|copy| (copy, "a copy in the pool's map".to_owned())));
    found.retain(|(copy, _)| copy.pool == checkpoint.pool);
    found.sort_by_key(|(copy, _)| copy.generation);
    Ok(found.pop().filter(|(copy, _)| has_batches(&*env.disk, copy, &checkpoint)))
}

/// Whether some extent that the checkpoint names holds a batch of the pool.
fn has_batches(disk: &dyn Disk, superblock: &Superblock, checkpoint: &Checkpoint) -> bool {
    let geometry = Geometry::new(superblock.extent_bytes, superblock.capacity_bytes);
    let mut id = [0; 8];
    id.copy_from_slice(&superblock.pool[..8]);
    let len = superblock.extent_bytes as usize;
    let mut buf = AlignedBuf::new(len);
    let catalogue = &checkpoint.catalogue;
    let named = catalogue.base.iter().chain(&catalogue.since).copied().chain(checkpoint.log_extents());
    let mut holds = |extent: ExtentIndex| {
        disk.read_at(geometry.start(extent), &mut buf, len).is_ok()
            && extent_scan::batches(u64::from_le_bytes(id), extent, &buf[..len]).next().is_some()
    };
    named.filter(|extent| extent.0 < geometry.extents()).take(EXTENTS_TRIED_MAX).any(&mut holds)
}
