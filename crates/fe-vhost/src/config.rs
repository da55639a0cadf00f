//! Features and configuration space of a disk. Pure; may be called from
//! any thread.

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ,
    VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_SIZE_MAX, VIRTIO_BLK_F_TOPOLOGY, VIRTIO_BLK_F_WRITE_ZEROES,
};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

use crate::chain::{SEGMENT_BYTES_MAX, SEGMENTS_MAX};
use crate::request::{DISCARD_RANGES_MAX, SECTOR_BYTES, ZEROES_RANGES_MAX};
use crate::wire::F_PROTOCOL_FEATURES;

/// Bytes of the configuration that mean something; the rest reads as zeroes.
const CONFIG_BYTES: usize = 60;
/// Longest part that a monitor may ask for, by the protocol.
const PART_BYTES_MAX: u32 = 256;
/// Where the byte lies that says whether writes are cached: the one that a guest may change.
pub const WRITE_CACHE_OFFSET: u32 = 32;
/// Longest range of one discard or of one request for zeroes: the pool does longer ones in steps,
/// and a guest that gives up a request waits for a GiB at most.
const RANGE_BYTES_MAX: u64 = 1 << 30;

/// The feature that requests are made durable by flushes.
pub const F_FLUSH: u64 = 1 << VIRTIO_BLK_F_FLUSH;
/// The feature that the guest may switch the write cache off.
pub const F_CONFIG_WCE: u64 = 1 << VIRTIO_BLK_F_CONFIG_WCE;
/// The feature that notifications are suppressed by indices.
pub const F_EVENT_IDX: u64 = 1 << VIRTIO_RING_F_EVENT_IDX;

/// The facts about a disk that a guest reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disk {
    /// Size in bytes. A guest does not reach a partial sector at the end.
    pub size_bytes: u64,
    /// Whether every change is refused.
    pub is_read_only: bool,
    /// Sizes that are served best, in bytes: the least, and the preferred one.
    pub block_bytes: (u32, u32),
    /// Most queues.
    pub queues: u16,
    /// Whether writes may be answered before they are durable.
    pub is_write_back: bool,
}

impl Disk {
    /// The features that it offers.
    pub const fn features(&self) -> u64 {
        let always = 1 << VIRTIO_F_VERSION_1
            | 1 << VIRTIO_RING_F_INDIRECT_DESC
            | F_EVENT_IDX
            | F_PROTOCOL_FEATURES
            | 1 << VIRTIO_BLK_F_SIZE_MAX
            | 1 << VIRTIO_BLK_F_SEG_MAX
            | 1 << VIRTIO_BLK_F_BLK_SIZE
            | 1 << VIRTIO_BLK_F_TOPOLOGY
            | 1 << VIRTIO_BLK_F_MQ
            | F_FLUSH;
        let changing = F_CONFIG_WCE | 1 << VIRTIO_BLK_F_DISCARD | 1 << VIRTIO_BLK_F_WRITE_ZEROES;
        always | if self.is_read_only { 1 << VIRTIO_BLK_F_RO } else { changing }
    }

    /// The part of its configuration that begins at `offset`, as `struct virtio_blk_config` has it;
    /// `None`: no part may be that long.
    pub fn config(&self, offset: u32, size: u32) -> Option<Vec<u8>> {
        if size > PART_BYTES_MAX || offset.saturating_add(size) > PART_BYTES_MAX {
            return None;
        }
        let mut all = Vec::with_capacity(PART_BYTES_MAX as usize);
        let sectors = |bytes: u64| u32::try_from(bytes / SECTOR_BYTES).unwrap_or(u32::MAX);
        let (least, preferred) = (self.block_bytes.0.max(SECTOR_BYTES as u32), self.block_bytes.1);
        let at = |all: &mut Vec<u8>, bytes: &[u8]| all.extend_from_slice(bytes);
        at(&mut all, &(self.size_bytes / SECTOR_BYTES).to_le_bytes());
        at(&mut all, &SEGMENT_BYTES_MAX.to_le_bytes());
        at(&mut all, &SEGMENTS_MAX.to_le_bytes());
        // Cylinders, heads and sectors, which are not offered.
        at(&mut all, &[0; 4]);
        // Logical blocks are sectors: partition tables and images made for such disks stay valid.
        at(&mut all, &(SECTOR_BYTES as u32).to_le_bytes());
        // Physical blocks, by their exponent; aligned to the start; least and preferred sizes.
        let exponent = (least / SECTOR_BYTES as u32).ilog2() as u8;
        at(&mut all, &[exponent, 0]);
        at(&mut all, &((least / SECTOR_BYTES as u32).min(u32::from(u16::MAX)) as u16).to_le_bytes());
        at(&mut all, &(preferred / SECTOR_BYTES as u32).to_le_bytes());
        at(&mut all, &[u8::from(self.is_write_back), 0]);
        at(&mut all, &self.queues.to_le_bytes());
        // None of these is zero where the feature is offered: some guests divide by them.
        at(&mut all, &sectors(RANGE_BYTES_MAX).to_le_bytes());
        at(&mut all, &DISCARD_RANGES_MAX.to_le_bytes());
        at(&mut all, &sectors(u64::from(least)).to_le_bytes());
        at(&mut all, &sectors(RANGE_BYTES_MAX).to_le_bytes());
        at(&mut all, &ZEROES_RANGES_MAX.to_le_bytes());
        // Zeroes may be holes; then padding.
        at(&mut all, &[1, 0, 0, 0]);
        debug_assert_eq!(all.len(), CONFIG_BYTES);
        all.resize(PART_BYTES_MAX as usize, 0);
        Some(all[offset as usize..(offset + size) as usize].to_vec())
    }
}

#[cfg(test)]
mod tests {
    use virtio_bindings::virtio_blk::virtio_blk_config;

    use super::*;

    const DISK: Disk = Disk {
        size_bytes: (5 << 30) + 100,
        is_read_only: false,
        block_bytes: (4096, 131_072),
        queues: 3,
        is_write_back: true,
    };

    fn field(offset: usize, size: usize) -> u64 {
        let bytes = DISK.config(offset as u32, size as u32).unwrap();
        bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
    }

    #[test]
    fn the_fields_lie_where_the_standard_has_them() {
        use std::mem::offset_of;
        macro_rules! value {
            ($size:literal, $($field:ident).+) => { field(offset_of!(virtio_blk_config, $($field).+), $size) };
        }
        assert_eq!(value!(8, capacity), 10_485_760);
        assert_eq!((value!(4, size_max), value!(4, seg_max), value!(4, blk_size)), (262_144, 126, 512));
        assert_eq!((value!(1, physical_block_exp), value!(1, alignment_offset)), (3, 0));
        assert_eq!((value!(2, min_io_size), value!(4, opt_io_size)), (8, 256));
        assert_eq!((value!(1, wce), value!(2, num_queues)), (1, 3));
        assert_eq!(offset_of!(virtio_blk_config, wce), WRITE_CACHE_OFFSET as usize);
        let discard = (value!(4, max_discard_sectors), value!(4, max_discard_seg), value!(4, discard_sector_alignment));
        assert_eq!(discard, (1 << 21, 16, 8));
        assert_eq!((value!(4, max_write_zeroes_sectors), value!(4, max_write_zeroes_seg)), (1 << 21, 1));
        assert_eq!(value!(1, write_zeroes_may_unmap), 1);
    }

    #[test]
    fn parts_past_the_end_are_zeroes_or_refused() {
        assert_eq!(DISK.config(60, 196), Some(vec![0; 196]));
        assert_eq!(DISK.config(0, 257), None);
        assert_eq!(DISK.config(1, 256), None);
        assert_eq!(DISK.config(u32::MAX, 8), None);
    }

    #[test]
    fn a_snapshot_offers_nothing_that_changes_it() {
        let snapshot = Disk { is_read_only: true, ..DISK };
        let changing = 1 << VIRTIO_BLK_F_DISCARD | 1 << VIRTIO_BLK_F_WRITE_ZEROES | F_CONFIG_WCE;
        assert_eq!(snapshot.features() & changing, 0);
        assert_eq!(DISK.features() & changing, changing);
        assert_ne!(snapshot.features() & (1 << VIRTIO_BLK_F_RO), 0);
        assert_eq!(DISK.features() & (1 << VIRTIO_BLK_F_RO), 0);
    }
}
