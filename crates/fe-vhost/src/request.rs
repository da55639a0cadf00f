//! Requests of a virtio block device, out of their chains. Pure but for reading guest memory; may
//! be called from any thread.

use smallvec::SmallVec;
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_ID_BYTES, VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_DISCARD,
    VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_WRITE_ZEROES,
    VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
};
use vm_memory::GuestAddress;

use crate::chain::{Chain, Segments, bytes_of, take_front, take_last};
use crate::memory::Guest;

/// Bytes of a sector, independent of the block size.
pub const SECTOR_BYTES: u64 = 512;
/// Bytes of a serial number.
pub const SERIAL_BYTES: usize = VIRTIO_BLK_ID_BYTES as usize;
/// Most ranges of one discard.
pub const DISCARD_RANGES_MAX: u32 = 16;
/// Most ranges of one request for zeroes.
pub const ZEROES_RANGES_MAX: u32 = 1;

const RANGE_BYTES: u32 = 16;

/// The answer's last byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Ok,
    /// It failed.
    Failed,
    /// It is not supported.
    Unsupported,
}

impl Status {
    /// The byte.
    pub const fn code(self) -> u8 {
        match self {
            Self::Ok => VIRTIO_BLK_S_OK as u8,
            Self::Failed => VIRTIO_BLK_S_IOERR as u8,
            Self::Unsupported => VIRTIO_BLK_S_UNSUPP as u8,
        }
    }
}

/// A range that is to read as zeroes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZeroRange {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Whether its space may be freed.
    pub may_unmap: bool,
}

/// The operation of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// Fills [`Request::data`] from an offset.
    Read(u64),
    /// Stores [`Request::data`] at an offset.
    Write(u64),
    /// Makes all durable that was answered before.
    Flush,
    /// Makes ranges read as zeroes, and gives their space back.
    Discard(SmallVec<[ZeroRange; 1]>),
    /// Makes ranges read as zeroes.
    WriteZeroes(SmallVec<[ZeroRange; 1]>),
    /// The serial number.
    Identify,
    /// Nothing: this is the answer.
    Refused(Status),
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Its first descriptor, by which the guest knows it.
    pub head: u16,
    /// The operation.
    pub work: Work,
    /// Memory for its data.
    pub data: Segments,
    /// Where the status goes.
    pub status: GuestAddress,
}

impl Request {
    /// Reads a request's header and ranges.
    ///
    /// # Errors
    /// The reason why it cannot even be refused: there is no place for a status.
    pub fn parse(memory: &Guest, head: u16, chain: Chain) -> Result<Self, &'static str> {
        let Chain { mut readable, mut writable } = chain;
        let status = take_last(&mut writable).ok_or("a request has no room for its status")?;
        let refused = |status_code| Self { head, work: Work::Refused(status_code), data: Segments::new(), status };
        let Some(header) = take_front::<16>(memory, &mut readable) else { return Ok(refused(Status::Failed)) };
        // Little-endian: the kind, a priority, and the sector, which has the upper half.
        let header = u128::from_le_bytes(header);
        let (kind, offset) = (header as u32, ((header >> 64) as u64).checked_mul(SECTOR_BYTES));
        let is_whole = |segments: &Segments| u64::from(bytes_of(segments)).is_multiple_of(SECTOR_BYTES);
        let (work, data) = match (kind, offset) {
            (VIRTIO_BLK_T_IN, Some(offset)) if is_whole(&writable) => (Work::Read(offset), writable),
            (VIRTIO_BLK_T_OUT, Some(offset)) if is_whole(&readable) => (Work::Write(offset), readable),
            (VIRTIO_BLK_T_FLUSH, _) => (Work::Flush, Segments::new()),
            (VIRTIO_BLK_T_GET_ID, _) => (Work::Identify, writable),
            (VIRTIO_BLK_T_DISCARD, _) => match ranges(memory, readable, DISCARD_RANGES_MAX, false) {
                Ok(ranges) => (Work::Discard(ranges), Segments::new()),
                Err(code) => return Ok(refused(code)),
            },
            (VIRTIO_BLK_T_WRITE_ZEROES, _) => match ranges(memory, readable, ZEROES_RANGES_MAX, true) {
                Ok(ranges) => (Work::WriteZeroes(ranges), Segments::new()),
                Err(code) => return Ok(refused(code)),
            },
            (VIRTIO_BLK_T_IN | VIRTIO_BLK_T_OUT, _) => return Ok(refused(Status::Failed)),
            _ => return Ok(refused(Status::Unsupported)),
        };
        Ok(Self { head, work, data, status })
    }
}

fn ranges(
    memory: &Guest,
    mut data: Segments,
    most: u32,
    takes_unmap: bool,
) -> Result<SmallVec<[ZeroRange; 1]>, Status> {
    let bytes = bytes_of(&data);
    if bytes == 0 || !bytes.is_multiple_of(RANGE_BYTES) || bytes / RANGE_BYTES > most {
        return Err(Status::Failed);
    }
    let mut ranges = SmallVec::new();
    while let Some(range) = take_front::<16>(memory, &mut data) {
        // The sector, then the number of sectors, then flags.
        let range = u128::from_le_bytes(range);
        let may_unmap = match (range >> 96) as u32 {
            0 => false,
            VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP if takes_unmap => true,
            _ => return Err(Status::Unsupported),
        };
        let offset = (range as u64).checked_mul(SECTOR_BYTES).ok_or(Status::Failed)?;
        let length = u64::from((range >> 64) as u32) * SECTOR_BYTES;
        ranges.push(ZeroRange { offset, length, may_unmap });
    }
    // Fewer than announced: some lie outside of guest memory.
    if ranges.len() == (bytes / RANGE_BYTES) as usize { Ok(ranges) } else { Err(Status::Failed) }
}
