//! Reading and writing the superblock's two copies.

use std::sync::Arc;

use env::{AlignedBuf, Disk, DiskLayer};
use format::{BATCH_ALIGN, COMPAT_INVENTORY, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock, SuperblockError};
use surface::{Error, ErrorKind, Result};

/// The two copies, or the error of each.
pub type Copies = [std::result::Result<Superblock, SuperblockError>; 2];

/// Reads both copies. An unreadable one is treated as damaged, so that the other one can be used.
///
/// # Errors
/// Those of the storage, if a copy cannot be read and the other one is unusable as well.
pub fn read_copies(disk: &dyn Disk) -> Result<Copies> {
    let mut buf = AlignedBuf::new(SUPERBLOCK_BYTES);
    let mut failure = None;
    let copies = SUPERBLOCK_OFFSETS.map(|offset| match disk.read_at(offset, &mut buf, SUPERBLOCK_BYTES) {
        Ok(()) => Superblock::decode(&buf[..SUPERBLOCK_BYTES]),
        Err(error) => {
            let copy = SuperblockError::Damaged(format!("it cannot be read: {error}"));
            let text = format!("reading the superblock at byte {offset} of the data file failed");
            failure.get_or_insert(Error::from_io(text, error));
            Err(copy)
        }
    });
    let says_nothing =
        |copy: &std::result::Result<_, _>| matches!(copy, Err(SuperblockError::Missing | SuperblockError::Damaged(_)));
    failure.filter(|_| copies.iter().all(says_nothing)).map_or(Ok(copies), Err)
}

/// The superblock in force: the good copy with the higher generation.
pub fn choose(copies: &Copies) -> Result<Superblock> {
    match copies {
        [Ok(a), Ok(b)] => Ok(if b.generation > a.generation { b.clone() } else { a.clone() }),
        // A copy that is too new is not outvoted by an older one.
        [Err(e @ SuperblockError::Unsupported(_)), _] | [_, Err(e @ SuperblockError::Unsupported(_))] => {
            Err(Error::new(ErrorKind::Unsupported, e.to_string()))
        }
        [Ok(good), Err(_)] | [Err(_), Ok(good)] => Ok(good.clone()),
        [Err(SuperblockError::Missing), Err(SuperblockError::Missing)] => {
            Err(Error::new(ErrorKind::NotFound, SuperblockError::Missing.to_string()))
        }
        [Err(first), Err(second)] => Err(Error::new(
            ErrorKind::Corrupt,
            format!("both copies of the superblock are unusable: {first}; {second}"),
        )),
    }
}

/// Updates both copies, durably, to `superblock`, the one in force: after a crash in the middle of
/// a rewrite the older one would be used as soon as the other one cannot be read. A damaged copy
/// next to a correct one is left to `check`.
///
/// # Errors
/// Those of the storage.
pub fn bring_up_to_date(disk: &dyn Disk, superblock: &Superblock) -> Result<()> {
    match read_copies(disk)? {
        [Ok(first), Ok(second)] if first == *superblock && second == *superblock => Ok(()),
        [Ok(copy), Err(_)] | [Err(_), Ok(copy)] if copy == *superblock => Ok(()),
        _ => write(disk, superblock),
    }
}

/// Records in both copies, durably, that there is an inventory of extents. Call this when there is
/// one.
///
/// # Errors
/// Those of the storage.
pub(crate) fn mark_inventory(disk: &dyn Disk) -> Result<()> {
    mark(disk, |superblock| superblock.features_compat |= COMPAT_INVENTORY)
}

/// Records an incompatible feature in both copies, durably. Call this before the pool uses it.
///
/// # Errors
/// Those of the storage.
pub fn mark_feature(disk: &dyn Disk, feature: u64) -> Result<()> {
    mark(disk, |superblock| superblock.features_incompat |= feature)
}

/// Changes the features in both copies, unless both have them already.
fn mark(disk: &dyn Disk, change: impl FnOnce(&mut Superblock)) -> Result<()> {
    let copies = read_copies(disk)?;
    let superblock = choose(&copies)?;
    let mut wanted = superblock.clone();
    change(&mut wanted);
    if wanted == superblock {
        // After a crash in the middle of a rewrite, the older copy may lack them. A damaged one is
        // left to `check`.
        return if copies.iter().flatten().all(|copy| *copy == wanted) { Ok(()) } else { write(disk, &wanted) };
    }
    wanted.generation += 1;
    write(disk, &wanted)
}

/// Verifies that the storage is as large as the superblock requires. Growing extends the storage
/// first, shrinking cuts it off last, so shorter storage has lost its end. With `repair` the
/// description of the damage is returned.
///
/// # Errors
/// [`ErrorKind::Corrupt`] without `repair`, or if the storage cannot be extended; and those of the
/// storage.
pub fn find_end(disk: &dyn Disk, superblock: &Superblock, repair: bool) -> Result<Option<String>> {
    let failed = |error| Error::from_io("the size of the pool's data cannot be determined", error);
    let (has, needs) = (disk.size_bytes().map_err(failed)?, superblock.capacity_bytes);
    if has >= needs {
        return Ok(None);
    }
    let what = format!("the data file or device has {has} bytes, the pool uses {needs}: its end has been cut off");
    if !repair {
        let advice = "restore it from where it was copied; `check --repair` reports the lost data, and with \
             --accept-loss opens the pool with the rest; `salvage` recovers the rest without changing anything";
        return Err(Error::new(ErrorKind::Corrupt, format!("{what}; {advice}")));
    }
    if !disk.may_grow() {
        // Refuse before anything is repaired.
        let advice = "make the device larger, or move the data to a larger one; `salvage` recovers the rest \
             without changing anything";
        return Err(Error::new(ErrorKind::Corrupt, format!("{what}; {advice}")));
    }
    Ok(Some(what))
}

/// Extends storage that has lost its end to its former length, without its content. Call it after
/// the repair of the map, which may be refused: the length is the only evidence of the loss.
///
/// # Errors
/// Those of the storage.
pub fn lengthen(disk: &dyn Disk, superblock: &Superblock) -> Result<()> {
    let failed = |error| Error::from_io("the pool's data cannot be extended to its former length", error);
    disk.grow(superblock.capacity_bytes).map_err(failed)
}

/// Storage that has lost its end, shown at its former length: the missing part reads as zeroes.
pub struct WithoutEnd(pub Arc<dyn Disk>);

impl DiskLayer for WithoutEnd {
    fn below(&self) -> &dyn Disk {
        &*self.0
    }
    fn read_at(&self, offset: u64, buf: &mut AlignedBuf, len: usize) -> std::io::Result<()> {
        let left = self.0.size_bytes()?.saturating_sub(offset);
        if left >= len as u64 {
            return self.0.read_at(offset, buf, len);
        }
        // Only whole 4 KiB are of use.
        let left = left as usize / BATCH_ALIGN * BATCH_ALIGN;
        if left > 0 {
            self.0.read_at(offset, buf, left)?;
        }
        buf[left..len].fill(0);
        Ok(())
    }
}

/// Returns whether there is, or was, a pool. A damaged first copy without a second one is none: the
/// second is written when the first is durable, so this is the result of a crash while a pool was
/// being created.
pub fn hold_pool(copies: &Copies) -> bool {
    use SuperblockError::{Damaged, Missing};
    !matches!(copies, [Err(Missing | Damaged(_)), Err(Missing)])
}

/// Writes both copies, the second after the first is durable; the copy in force is written last. So
/// after any crash, and in any previous state, one copy is whole.
pub fn write(disk: &dyn Disk, superblock: &Superblock) -> Result<()> {
    let mut offsets = SUPERBLOCK_OFFSETS;
    match read_copies(disk)? {
        [Ok(a), Ok(b)] if b.generation > a.generation => {}
        [Ok(_), _] => offsets.reverse(),
        _ => {}
    }
    let mut buf = AlignedBuf::new(SUPERBLOCK_BYTES);
    buf[..SUPERBLOCK_BYTES].copy_from_slice(&superblock.encode());
    for offset in offsets {
        disk.write_at(offset, &buf, SUPERBLOCK_BYTES).and_then(|()| disk.sync()).map_err(|e| {
            Error::from_io(format!("writing the superblock at byte {offset} of the data file failed"), e)
        })?;
    }
    Ok(())
}
