//! Finds the pool's identity and extent size if the superblock copies at the beginning of the data
//! are lost.
//!
//! 1. Batches have both: each names its pool and its extent, and only one extent size puts it
//!    there.
//! 2. They are searched for at the starts of extents, largest size first, because the other sizes
//!    have starts there as well.
//! 3. The copy at the end is used if the log holds no batches of another pool. Without that copy,
//!    the log alone decides, completed by the copy in the pool's map, if there is one.
//! 4. If there are batches of several pools, the caller must name one: leftovers of an earlier pool
//!    may outnumber the batches of the present one.

use std::collections::BTreeMap;

use env::{AlignedBuf, Disk, MapStore};
use format::{BATCH_ALIGN, BATCH_MAGIC, FORMAT_VERSION, Superblock, SuperblockError, decode_batch};
use store::log::superblock_copies::{beginning, read_end, read_stored};
use store::log::superblock_io::{choose, read_copies};
use surface::{Error, ErrorKind, Result};
use units::{EXTENT_BYTES_MAX, EXTENT_BYTES_MIN};

/// Places that are examined: enough for some hundred batches of a pool that has used one extent in
/// a hundred.
const PLACES_MAX: u64 = 64 << 10;
/// Number of batches that suffices.
const BATCHES_ENOUGH: u64 = 4096;

/// First bytes of a pool's identifier, as batches name it.
pub type PoolPrefix = [u8; 8];

/// Identity of a pool, and its source, if not the superblock at the beginning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub superblock: Superblock,
    pub origin_note: Option<String>,
}

/// Finds the identity. `id` names the pool, if there may be several.
///
/// # Errors
/// Those of the superblock, if there is no other source; [`ErrorKind::Conflict`] if there are
/// several pools and none is named.
pub fn find(disk: &dyn Disk, id: Option<PoolPrefix>) -> Result<Identity> {
    let error = match read_copies(disk).and_then(|copies| choose(&copies)) {
        Ok(superblock) if id.is_none_or(|id| superblock.pool.starts_with(&id)) => {
            return Ok(Identity { superblock, origin_note: None });
        }
        Ok(superblock) => {
            let text = format!("the superblock is that of pool {}", hex(&superblock.pool[..8]));
            Error::new(ErrorKind::NotFound, text)
        }
        Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
        Err(error) => error,
    };
    let there = beginning(disk);
    let size = disk.size_bytes().map_err(|e| Error::from_io("the size of the data cannot be determined", e))?;
    let mut pools = survey(disk, size);
    if let Some(id) = id {
        pools.retain(|(pool, _), _| *pool == id);
    }
    let copy = match read_end(disk) {
        Some((_, Err(error @ SuperblockError::Unsupported(_)))) => {
            return Err(Error::new(ErrorKind::Unsupported, error.to_string()));
        }
        Some((offset, Ok(copy))) if id.is_none_or(|id| copy.pool.starts_with(&id)) => Some((offset, copy)),
        _ => None,
    };
    let is_of = |copy: &Superblock| pools.keys().all(|(pool, _)| copy.pool.starts_with(pool));
    if let Some((offset, copy)) = copy.filter(|(_, copy)| is_of(copy)) {
        // An older copy may be of a smaller pool.
        let capacity_bytes = copy.capacity_bytes.max(size);
        let origin_note = format!("{error}{there}; the superblock comes from the copy at byte {offset}");
        return Ok(Identity { superblock: Superblock { capacity_bytes, ..copy }, origin_note: Some(origin_note) });
    }
    let names: std::collections::BTreeSet<_> = pools.keys().map(|(pool, _)| *pool).collect();
    if names.len() > 1 {
        let listed = pools.iter().map(|((pool, _), count)| format!("{} ({count} batches seen)", hex(pool)));
        let text = format!(
            "{error}{there}; the log holds batches of several pools: {}; choose one with salvage --id",
            listed.collect::<Vec<_>>().join(", ")
        );
        return Err(Error::new(ErrorKind::Conflict, text));
    }
    // A header that is valid by chance, or was copied, is the only one with its extent size.
    let Some(((prefix, extent_bytes), count)) = pools.into_iter().max_by_key(|(_, count)| *count) else {
        return Err(Error::new(error.kind(), format!("{error}{there}; no batch of a log was found either")));
    };
    let mut pool = [0; 16];
    pool[..8].copy_from_slice(&prefix);
    let superblock = Superblock {
        version: FORMAT_VERSION,
        features_incompat: 0,
        features_ro_compat: 0,
        features_compat: 0,
        pool,
        extent_bytes,
        capacity_bytes: size.min(format::capacity_bytes_max(extent_bytes)),
        created_unix_s: 0,
        generation: 0,
    };
    let origin_note = format!("{error}{there}; {count} batches of the log identify it as pool {}", hex(&prefix));
    Ok(Identity { superblock, origin_note: Some(origin_note) })
}

/// Completes a superblock of which the log gave the beginning of the pool's identifier and the
/// extent size, from the copy in the pool's map.
pub fn completed(superblock: Superblock, map: &dyn MapStore) -> Superblock {
    let is_its =
        |copy: &Superblock| copy.pool[..8] == superblock.pool[..8] && copy.extent_bytes == superblock.extent_bytes;
    let Some(copy) = read_stored(map).filter(is_its) else { return superblock };
    // The copy may be of a pool that was smaller.
    Superblock { capacity_bytes: copy.capacity_bytes.max(superblock.capacity_bytes), ..copy }
}

/// Bytes of an identifier, as messages name them.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Step 2: returns pools and extent sizes, with the number of batches seen of each.
fn survey(disk: &dyn Disk, size: u64) -> BTreeMap<(PoolPrefix, u32), u64> {
    let mut pools = BTreeMap::new();
    let (mut step, mut places, mut found) = (u64::from(EXTENT_BYTES_MAX), 0, 0);
    let mut buf = AlignedBuf::new(EXTENT_BYTES_MAX as usize);
    while step >= u64::from(EXTENT_BYTES_MIN) {
        // Even multiples were examined with the previous step.
        let stride = if step == u64::from(EXTENT_BYTES_MAX) { step } else { 2 * step };
        let mut at = step;
        while at + BATCH_ALIGN as u64 <= size && places < PLACES_MAX && found < BATCHES_ENOUGH {
            places += 1;
            if let Some(key) = read_header(disk, at, size, &mut buf) {
                *pools.entry(key).or_insert(0) += 1;
                found += 1;
            }
            at += stride;
        }
        step /= 2;
    }
    pools
}

/// Step 1, of the batch that begins at a byte.
fn read_header(disk: &dyn Disk, at: u64, size: u64, buf: &mut AlignedBuf) -> Option<(PoolPrefix, u32)> {
    disk.read_at(at, buf, BATCH_ALIGN).ok()?;
    if buf[..4] != BATCH_MAGIC.to_le_bytes() {
        return None;
    }
    let header_bytes = u32::from_le_bytes([buf[8], buf[9], buf[10], buf[11]]) as usize;
    let len = header_bytes.checked_next_multiple_of(BATCH_ALIGN)?;
    if len > buf.len() || at + len as u64 > size {
        return None;
    }
    if len > BATCH_ALIGN {
        disk.read_at(at, buf, len).ok()?;
    }
    // Payloads are not checked: their content does not matter here.
    let header = decode_batch(buf).ok()?.header;
    // The first batch of an extent lies at its start.
    let mut sizes = (EXTENT_BYTES_MIN.ilog2()..=EXTENT_BYTES_MAX.ilog2()).map(|log| 1u32 << log);
    let is_its = |extent_bytes: &u32| u64::from(header.extent.0) * u64::from(*extent_bytes) == at;
    sizes.find(is_its).map(|extent_bytes| (header.pool.to_le_bytes(), extent_bytes))
}
