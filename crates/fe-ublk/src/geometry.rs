//! Size, blocks and limits of a device, from the volume below. Pure.

use surface::BlockDevice;

use crate::wire::{Discard, Parameters, SECTOR_BYTES, attribute};

/// Bytes of the buffer of each request, and of the largest read or write: some units of the pool.
/// The kernel splits larger ones.
pub const BUFFER_BYTES: u32 = 256 << 10;
/// Largest range of one discard or of one request for zeroes: the volume does longer ones in steps,
/// and a program that gives one up waits for a GiB at most.
const RANGE_BYTES_MAX: u64 = 1 << 30;

/// Returns the whole sectors of a volume; no program reaches a part of one at the end.
pub fn sectors(device: &dyn BlockDevice) -> u64 {
    device.size_bytes() / SECTOR_BYTES
}

/// Returns the parameters of a device with buffers of that size.
pub fn parameters(device: &dyn BlockDevice, buffer_bytes: u32) -> Parameters {
    let (least, preferred) = device.block_bytes();
    let shift = |bytes: u32| bytes.max(SECTOR_BYTES as u32).ilog2() as u8;
    let is_read_only = device.is_read_only();
    let range_sectors = (RANGE_BYTES_MAX / SECTOR_BYTES) as u32;
    let discard = Discard {
        granularity: least.max(SECTOR_BYTES as u32),
        sectors_max: range_sectors,
        zeroes_sectors_max: range_sectors,
    };
    Parameters {
        attributes: if is_read_only { attribute::READ_ONLY } else { attribute::VOLATILE_CACHE | attribute::FUA },
        // Logical blocks are sectors: partition tables and images made for such disks stay valid.
        shifts: [shift(SECTOR_BYTES as u32), shift(least), shift(preferred), shift(least)],
        sectors_max: buffer_bytes / SECTOR_BYTES as u32,
        sectors: sectors(device),
        discard: (!is_read_only).then_some(discard),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use testkit::Memory;

    #[test]
    fn a_volume_has_its_whole_sectors_and_blocks() {
        let volume = Memory::new((1 << 20) + 700);
        let found = parameters(&*volume, BUFFER_BYTES);
        assert_eq!((found.sectors, found.sectors_max), (2049, 512));
        let (least, preferred) = volume.block_bytes();
        assert_eq!(found.shifts.map(|shift| 1 << shift), [512, least, preferred, least]);
        assert_eq!(found.attributes, attribute::VOLATILE_CACHE | attribute::FUA);
        assert_eq!(found.discard.unwrap().granularity, least);
    }

    #[test]
    fn a_snapshot_offers_nothing_that_changes_it() {
        let snapshot = Memory::new(1 << 20);
        snapshot.read_only.store(true, Ordering::Release);
        let found = parameters(&*snapshot, BUFFER_BYTES);
        assert_eq!((found.attributes, found.discard), (attribute::READ_ONLY, None));
    }
}
