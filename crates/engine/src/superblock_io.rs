//! Reading and writing the superblock's two copies.

use env::{AlignedBuf, Disk};
use format::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock, SuperblockError};
use surface::{Error, ErrorKind, Result};

/// What a copy is, or why it is none.
pub(crate) type Copies = [std::result::Result<Superblock, SuperblockError>; 2];

/// Reads both copies.
pub(crate) fn read_copies(disk: &dyn Disk) -> Result<Copies> {
    let mut buf = AlignedBuf::new(SUPERBLOCK_BYTES);
    let mut read = |offset| {
        disk.read_at(offset, &mut buf, SUPERBLOCK_BYTES).map_err(|e| {
            Error::from_io(format!("reading the superblock at byte {offset} of the data file failed"), e)
        })?;
        Ok(Superblock::decode(&buf[..SUPERBLOCK_BYTES]))
    };
    let [first, second] = SUPERBLOCK_OFFSETS;
    Ok([read(first)?, read(second)?])
}

/// The superblock in force: the good copy with the higher generation.
pub(crate) fn choose(copies: &Copies) -> Result<Superblock> {
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

/// Whether there is, or was, a pool. A damaged first copy without a second one is none: the second is written when the first is
/// durable, so this is what a crash in the middle of making a pool has torn.
pub(crate) fn hold_pool(copies: &Copies) -> bool {
    use SuperblockError::{Damaged, Missing};
    !matches!(copies, [Err(Missing | Damaged(_)), Err(Missing)])
}

/// Writes both copies, one after the other is durable: the one that is in force comes last. So whatever a crash in between leaves, and
/// whatever one before has left, one copy is whole.
pub(crate) fn write(disk: &dyn Disk, superblock: &Superblock) -> Result<()> {
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
