//! Requests of a device, out of their descriptors. Pure.

use crate::wire::{Descriptor, FUA, NO_UNMAP, SECTOR_BYTES, operation};

/// A range of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// The operation of a request. A long one that is done in steps holds the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Fills the buffer with so many bytes from an offset.
    Read { offset: u64, length: usize },
    /// Stores the buffer's first bytes at an offset.
    Write { offset: u64, length: usize, fua: bool },
    /// Makes all durable that was answered before.
    Flush,
    /// Makes a range read as zeroes, and gives its space back.
    Discard(Range),
    /// Makes a range read as zeroes.
    WriteZeroes { range: Range, no_hole: bool, fua: bool },
    /// Nothing: this errno is the answer.
    Refused(i32),
}

impl Work {
    /// Judges a request whose buffer has `buffer_bytes`.
    pub fn of(request: &Descriptor, buffer_bytes: usize) -> Self {
        // The lowest byte.
        let operation = request.op_flags as u8;
        if operation == operation::FLUSH {
            // It has no place: the kernel writes the largest number there.
            return Self::Flush;
        }
        let bytes = u64::from(request.sectors) * SECTOR_BYTES;
        let fua = request.op_flags & FUA != 0;
        let Some(offset) = request.start_sector.checked_mul(SECTOR_BYTES).filter(|at| at.checked_add(bytes).is_some())
        else {
            return Self::Refused(libc::EINVAL);
        };
        let range = Range { offset, length: bytes };
        // It fits: sectors have 32 bits.
        let length = bytes as usize;
        match operation {
            operation::READ | operation::WRITE if length == 0 || length > buffer_bytes => Self::Refused(libc::EINVAL),
            operation::READ => Self::Read { offset, length },
            operation::WRITE => Self::Write { offset, length, fua },
            operation::DISCARD => Self::Discard(range),
            operation::WRITE_ZEROES => Self::WriteZeroes { range, no_hole: request.op_flags & NO_UNMAP != 0, fua },
            _ => Self::Refused(libc::EOPNOTSUPP),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(op_flags: u32, sectors: u32, start_sector: u64) -> Work {
        Work::of(&Descriptor { op_flags, sectors, start_sector }, 4096)
    }

    #[test]
    fn requests_are_told_apart() {
        assert_eq!(of(0, 8, 3), Work::Read { offset: 1536, length: 4096 });
        assert_eq!(of(1, 1, 0), Work::Write { offset: 0, length: 512, fua: false });
        assert_eq!(of(1 | FUA, 1, 2), Work::Write { offset: 1024, length: 512, fua: true });
        assert_eq!((of(2, 0, 0), of(2, 0, u64::MAX)), (Work::Flush, Work::Flush));
        let range = Range { offset: 512, length: 1 << 30 };
        assert_eq!(of(3, 1 << 21, 1), Work::Discard(range));
        assert_eq!(of(5, 1 << 21, 1), Work::WriteZeroes { range, no_hole: false, fua: false });
        assert_eq!(of(5 | NO_UNMAP | FUA, 1 << 21, 1), Work::WriteZeroes { range, no_hole: true, fua: true });
        // Flags without a meaning here.
        assert_eq!(of(0x0001_0f00, 1, 0), Work::Read { offset: 0, length: 512 });
    }

    #[test]
    fn numbers_that_make_no_sense_are_refused() {
        let invalid = Work::Refused(libc::EINVAL);
        assert_eq!((of(0, 9, 0), of(1, 9, 0)), (invalid, invalid), "more than the buffer");
        assert_eq!((of(0, 0, 0), of(1, 0, 0)), (invalid, invalid));
        for operation in [0, 1, 3, 5] {
            assert_eq!(of(operation, 1, u64::MAX), invalid);
            assert_eq!(of(operation, 8, u64::MAX / 512), invalid);
        }
        for operation in [4, 10, 18, 0xff] {
            assert_eq!(of(operation, 1, 0), Work::Refused(libc::EOPNOTSUPP));
        }
    }
}
