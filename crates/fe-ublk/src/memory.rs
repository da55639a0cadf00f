//! Memory that a queue shares with the kernel: the descriptors of its requests, which the driver
//! writes, and a buffer for each tag. Owns the mappings, and checks each place that is asked for.
#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::{io, ptr, slice};

use rustix::mm::{MapFlags, ProtFlags};

use crate::wire::{DESCRIPTOR_BYTES, Descriptor, descriptors_bytes, descriptors_stride};

/// Bytes of a page.
fn page_bytes() -> usize {
    // SAFETY: it reads a constant of the system.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096)
}

/// A mapping, unmapped when it is dropped.
struct Mapping {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: it is plain memory, not tied to a thread; its users govern access to it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the memory any more: references borrow its owner.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.bytes) };
    }
}

/// The descriptors of a queue.
pub struct Descriptors {
    mapping: Mapping,
    depth: u16,
}

impl Descriptors {
    /// Maps those of a queue with so many tags from `/dev/ublkcN`.
    ///
    /// # Errors
    /// When the driver has none of that shape.
    pub fn map(device: impl AsFd, queue: u16, depth: u16) -> io::Result<Self> {
        let page = page_bytes();
        let (bytes, at) = (descriptors_bytes(depth, page), descriptors_stride(page) as u64 * u64::from(queue));
        // SAFETY: new memory at an address that the kernel chooses.
        let base = unsafe {
            // Pages are mapped at once: the driver has them anyway.
            let flags = MapFlags::SHARED | MapFlags::POPULATE;
            rustix::mm::mmap(ptr::null_mut(), bytes, ProtFlags::READ, flags, device, at)
        }?;
        Ok(Self { mapping: Mapping { base: base.cast(), bytes }, depth })
    }

    /// Reads the descriptor of a tag, for which the driver has just handed over a request; `None`:
    /// there is no such tag.
    pub fn read(&self, tag: u16) -> Option<Descriptor> {
        if tag >= self.depth {
            return None;
        }
        // SAFETY: within the mapping, which has `depth` descriptors. The driver writes to this one
        // again only after an answer; volatile, because it is not this program that writes.
        let bytes = unsafe {
            let at = self.mapping.base.add(usize::from(tag) * DESCRIPTOR_BYTES);
            at.cast::<[u8; DESCRIPTOR_BYTES]>().read_volatile()
        };
        Some(Descriptor::decode(&bytes))
    }
}

/// The buffers of a queue, one for each tag.
///
/// A buffer belongs to the kernel from the submission that hands its tag over until the completion
/// that hands a request over, and from then to that request, until its answer is submitted.
pub struct Buffers {
    mapping: Mapping,
    depth: u16,
    each: usize,
}

impl Buffers {
    /// Makes buffers of `each` bytes, which take memory as they are used.
    ///
    /// # Errors
    /// When there is not enough address space.
    pub fn new(depth: u16, each: usize) -> io::Result<Self> {
        let bytes = usize::from(depth).checked_mul(each).filter(|bytes| *bytes > 0);
        let bytes = bytes.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        // SAFETY: new memory at an address that the kernel chooses.
        let base = unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags)
        }?;
        Ok(Self { mapping: Mapping { base: base.cast(), bytes }, depth, each })
    }

    fn start(&self, tag: u16) -> *mut u8 {
        assert!(tag < self.depth, "tag {tag} of {}", self.depth);
        // SAFETY: within the mapping, as has just been asserted.
        unsafe { self.mapping.base.add(usize::from(tag) * self.each) }
    }

    /// The address of a buffer, for the kernel.
    pub fn address(&self, tag: u16) -> u64 {
        self.start(tag) as u64
    }

    /// The buffer of a tag.
    ///
    /// # Safety
    /// It belongs to the caller, who has no other reference to it.
    #[allow(clippy::mut_from_ref, reason = "the caller owns the buffer")]
    pub unsafe fn get_mut(&self, tag: u16) -> &mut [u8] {
        // SAFETY: mapped, initialised by the kernel, and the caller's.
        unsafe { slice::from_raw_parts_mut(self.start(tag), self.each) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    #[test]
    fn descriptors_are_read_where_the_driver_writes_them() {
        let page = page_bytes();
        let file = memfd_create("descriptors", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 2 * descriptors_stride(page) as u64).unwrap();
        let mut bytes = [0; DESCRIPTOR_BYTES];
        bytes[..4].copy_from_slice(&1_u32.to_ne_bytes());
        bytes[4..8].copy_from_slice(&8_u32.to_ne_bytes());
        bytes[8..16].copy_from_slice(&77_u64.to_ne_bytes());
        let at = descriptors_stride(page) + 3 * DESCRIPTOR_BYTES;
        rustix::io::pwrite(&file, &bytes, at as u64).unwrap();
        let descriptors = Descriptors::map(&file, 1, 4).unwrap();
        assert_eq!(descriptors.read(3), Some(Descriptor { op_flags: 1, sectors: 8, start_sector: 77 }));
        assert_eq!(descriptors.read(2), Some(Descriptor { op_flags: 0, sectors: 0, start_sector: 0 }));
        assert_eq!(descriptors.read(4), None);
    }

    #[test]
    fn buffers_do_not_overlap() {
        let buffers = Buffers::new(3, 4096).unwrap();
        for tag in 0..3 {
            // SAFETY: no other reference to this buffer.
            unsafe { buffers.get_mut(tag) }.fill(tag as u8 + 1);
        }
        for tag in 0..3 {
            // SAFETY: as above.
            assert_eq!(unsafe { buffers.get_mut(tag) }, [tag as u8 + 1; 4096]);
        }
        assert_eq!(buffers.address(2), buffers.address(0) + 8192);
        assert!(Buffers::new(0, 4096).is_err());
    }
}
