//! The descriptors of one request, followed through guest memory. Pure but for reading that memory;
//! may be called from any thread.
//!
//! The guest may write anything there, at any time. Each descriptor is read once; the way through
//! them is bounded in steps and in bytes, and malformed chains are refused.

use smallvec::SmallVec;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Address, Bytes, GuestAddress};

use crate::memory::Guest;

/// Most descriptors of a chain. The configuration limits the guest to [`SEGMENTS_MAX`] for data.
const DESCRIPTORS_MAX: usize = 1024;
/// Limit on data descriptors in the configuration: with the header and the status they fit
/// in a ring of 128, the size that monitors choose.
pub const SEGMENTS_MAX: u32 = 126;
/// Limit on the bytes of one data descriptor in the configuration.
pub const SEGMENT_BYTES_MAX: u32 = 256 << 10;
/// Most bytes of a chain. The limits in the configuration allow 31.5 MiB of data.
pub const BYTES_MAX: u64 = 32 << 20;

const DESCRIPTOR_BYTES: u64 = size_of::<Descriptor>() as u64;

/// A piece of guest memory. Nothing is known of it until it is accessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Where it begins.
    pub address: GuestAddress,
    /// Bytes.
    pub length: u32,
}

/// Pieces of guest memory, in their order.
pub type Segments = SmallVec<[Segment; 4]>;

/// A request's memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chain {
    /// Memory that the guest has filled: header and data.
    pub readable: Segments,
    /// Memory for the answer: data and status.
    pub writable: Segments,
}

/// Follows the chain that begins at `head` of a table of `size` descriptors.
///
/// # Errors
/// The reason why it is no chain.
pub fn follow(memory: &Guest, table: GuestAddress, size: u16, head: u16) -> Result<Chain, &'static str> {
    let mut chain = Chain::default();
    let (mut table, mut size, mut index) = (table, u32::from(size), u32::from(head));
    let (mut steps, mut bytes, mut is_indirect) = (0, 0, false);
    loop {
        if index >= size {
            return Err("a descriptor lies outside of its table");
        }
        steps += 1;
        if steps > DESCRIPTORS_MAX {
            return Err("a chain has too many descriptors");
        }
        let address = table.checked_add(u64::from(index) * DESCRIPTOR_BYTES).ok_or("a table wraps around")?;
        let found: Descriptor = memory.read_obj(address).map_err(|_| "a descriptor lies outside of guest memory")?;
        if found.refers_to_indirect_table() {
            if is_indirect || found.has_next() {
                return Err("an indirect table is neither the only one nor the last descriptor");
            }
            let entries = u64::from(found.len()) / DESCRIPTOR_BYTES;
            if !u64::from(found.len()).is_multiple_of(DESCRIPTOR_BYTES) || entries > DESCRIPTORS_MAX as u64 {
                return Err("an indirect table has an odd size");
            }
            (table, size, index, is_indirect) = (found.addr(), entries as u32, 0, true);
            continue;
        }
        bytes += u64::from(found.len());
        if bytes > BYTES_MAX {
            return Err("a chain has too many bytes");
        }
        let segment = Segment { address: found.addr(), length: found.len() };
        if found.is_write_only() {
            chain.writable.push(segment);
        } else if chain.writable.is_empty() {
            chain.readable.push(segment);
        } else {
            return Err("a descriptor to be read follows one to be written");
        }
        if !found.has_next() {
            return Ok(chain);
        }
        index = u32::from(found.next());
    }
}

/// Bytes of all of them.
pub fn bytes_of(segments: &[Segment]) -> u32 {
    // BYTES_MAX bounds it.
    segments.iter().map(|segment| segment.length).sum()
}

/// Reads the first bytes, and takes them off; `None`: there are too few, or they are not in guest
/// memory.
pub fn take_front<const N: usize>(memory: &Guest, segments: &mut Segments) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        let first = segments.first_mut()?;
        let count = (first.length as usize).min(N - filled);
        memory.read_slice(&mut bytes[filled..filled + count], first.address).ok()?;
        filled += count;
        // It fits: `count` is at most the length.
        first.length -= count as u32;
        first.address = first.address.checked_add(count as u64)?;
        if first.length == 0 {
            segments.remove(0);
        }
    }
    Some(bytes)
}

/// Takes the last byte off, and returns its address.
pub fn take_last(segments: &mut Segments) -> Option<GuestAddress> {
    loop {
        let last = segments.last_mut()?;
        if let Some(length) = last.length.checked_sub(1) {
            last.length = length;
            let address = last.address.checked_add(u64::from(length));
            if length == 0 {
                segments.pop();
            }
            return address;
        }
        segments.pop();
    }
}

/// Copies guest memory into `out`, which is as long as the segments.
///
/// # Errors
/// When a segment lies outside of guest memory.
pub fn read(memory: &Guest, segments: &[Segment], out: &mut [u8]) -> Result<(), &'static str> {
    let mut rest = out;
    for segment in segments {
        let (here, behind) = rest.split_at_mut_checked(segment.length as usize).ok_or("the data is too long")?;
        memory.read_slice(here, segment.address).map_err(|_| "data lies outside of guest memory")?;
        rest = behind;
    }
    Ok(())
}

/// Copies `data`, which is as long as the segments, into guest memory.
///
/// # Errors
/// When a segment lies outside of guest memory.
pub fn write(memory: &Guest, segments: &[Segment], data: &[u8]) -> Result<(), &'static str> {
    let mut rest = data;
    for segment in segments {
        let (here, behind) = rest.split_at_checked(segment.length as usize).ok_or("the data is too short")?;
        memory.write_slice(here, segment.address).map_err(|_| "a buffer lies outside of guest memory")?;
        rest = behind;
    }
    Ok(())
}
