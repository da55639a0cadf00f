//! Guest memory that a monitor shares. Owns the mappings. The session changes the table; the queues
//! take the present one for each round, and a request keeps the one with which it began.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap};

use crate::wire::Region;

/// Whether a file has these bytes. An access past the end of a mapped file would end the server.
pub fn has_bytes(file: &OwnedFd, offset: u64, size: u64) -> bool {
    let end = offset.checked_add(size);
    rustix::fs::fstat(file).is_ok_and(|found| end.is_some_and(|end| end <= u64::try_from(found.st_size).unwrap_or(0)))
}

/// The guest's memory at one moment.
pub type Guest = GuestMemoryMmap<()>;

/// Most regions: monitors plug memory in by pieces. Each keeps a descriptor.
pub const SLOTS_MAX: usize = 64;

/// See the module's text.
#[derive(Default)]
pub struct Memory {
    regions: Vec<Region>,
    shared: Shared,
}

/// The present table, for the threads of queues.
#[derive(Clone, Default)]
pub struct Shared(Arc<Mutex<Arc<Guest>>>);

impl Shared {
    /// The present table.
    pub fn current(&self) -> Arc<Guest> {
        Arc::clone(&self.0.lock())
    }
}

impl Memory {
    /// The handle for queues.
    pub fn shared(&self) -> Shared {
        self.shared.clone()
    }

    /// Whether no region is mapped.
    pub const fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Replaces the table.
    ///
    /// # Errors
    /// The reason why it cannot be mapped; the old table stays.
    pub fn set(&mut self, regions: Vec<(Region, OwnedFd)>) -> Result<(), String> {
        let mut next = Self::default();
        for (region, file) in regions {
            next.add(region, file)?;
        }
        self.regions = next.regions;
        *self.shared.0.lock() = next.shared.current();
        Ok(())
    }

    /// Adds a region.
    ///
    /// # Errors
    /// The reason why it cannot be mapped.
    pub fn add(&mut self, region: Region, file: OwnedFd) -> Result<(), String> {
        if self.regions.len() >= SLOTS_MAX {
            return Err(format!("more than {SLOTS_MAX} memory regions"));
        }
        let is_overlong = |start: u64| start.checked_add(region.size).is_none();
        if region.size == 0 || is_overlong(region.guest) || is_overlong(region.user) {
            return Err(format!("a memory region of {} bytes at {:#x}", region.size, region.guest));
        }
        let fail = |error: &dyn std::fmt::Display| {
            format!("cannot map {} bytes of guest memory at {:#x}: {error}", region.size, region.guest)
        };
        if !has_bytes(&file, region.offset, region.size) {
            return Err(fail(&"its file is shorter than that"));
        }
        let size = usize::try_from(region.size).map_err(|error| fail(&error))?;
        let file = FileOffset::new(File::from(file), region.offset);
        let mapped = GuestRegionMmap::from_range(GuestAddress(region.guest), size, Some(file));
        let mapped = Arc::new(mapped.map_err(|error| fail(&error))?);
        let with_it = self.shared.current().insert_region(mapped).map_err(|error| fail(&error))?;
        self.regions.push(region);
        *self.shared.0.lock() = Arc::new(with_it);
        Ok(())
    }

    /// Removes a region. Requests that have begun keep its mapping until they are answered.
    ///
    /// # Errors
    /// When no region has this address and size.
    pub fn remove(&mut self, region: &Region) -> Result<(), String> {
        let is_it = |own: &Region| (own.guest, own.size, own.user) == (region.guest, region.size, region.user);
        let unknown = || format!("no memory region of {} bytes at {:#x}", region.size, region.guest);
        let index = self.regions.iter().position(is_it).ok_or_else(unknown)?;
        let without = self.shared.current().remove_region(GuestAddress(region.guest), region.size);
        let (without, _) = without.map_err(|_| unknown())?;
        self.regions.remove(index);
        *self.shared.0.lock() = Arc::new(without);
        Ok(())
    }

    /// The guest-physical address of an address in the monitor.
    pub fn guest_address(&self, user: u64) -> Option<GuestAddress> {
        let within = |region: &&Region| user.checked_sub(region.user).is_some_and(|offset| offset < region.size);
        let region = self.regions.iter().find(within)?;
        Some(GuestAddress(region.guest + (user - region.user)))
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::MemfdFlags;
    use vm_memory::Bytes;

    use super::*;

    fn file(size: u64) -> OwnedFd {
        let file = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, size).unwrap();
        file
    }

    const ONE: Region = Region { guest: 0x10000, size: 0x2000, user: 0x7000_0000, offset: 0 };

    #[test]
    fn addresses_of_the_monitor_are_found_and_others_are_not() {
        let mut memory = Memory::default();
        memory.add(ONE, file(0x2000)).unwrap();
        memory.add(Region { guest: 0x4000, user: 0x8000_0000, ..ONE }, file(0x2000)).unwrap();
        assert_eq!(memory.guest_address(0x7000_1fff), Some(GuestAddress(0x11fff)));
        assert_eq!(memory.guest_address(0x8000_0000), Some(GuestAddress(0x4000)));
        assert_eq!((memory.guest_address(0x7000_2000), memory.guest_address(0)), (None, None));
        memory.remove(&ONE).unwrap();
        assert_eq!(memory.guest_address(0x7000_0000), None);
        assert!(memory.shared().current().read_obj::<u8>(GuestAddress(0x10000)).is_err());
        assert!(memory.remove(&ONE).is_err());
    }

    #[test]
    fn regions_that_cannot_be_are_refused_and_change_nothing() {
        let mut memory = Memory::default();
        memory.add(ONE, file(0x2000)).unwrap();
        for (bad, size) in [
            (Region { guest: 0x11000, ..ONE }, 0x2000),
            (Region { guest: 0x20000, ..ONE }, 0x1fff),
            (Region { guest: 0x20000, offset: 0x1000, ..ONE }, 0x2000),
            (Region { guest: 0x20000, offset: u64::MAX, ..ONE }, 0x2000),
            (Region { guest: 0x20000, offset: 1, ..ONE }, 0x4000),
            (Region { guest: 0x20000, size: 0, ..ONE }, 0x2000),
            (Region { guest: u64::MAX, ..ONE }, 0x2000),
            (Region { guest: 0x20000, user: u64::MAX, ..ONE }, 0x2000),
        ] {
            assert!(memory.add(bad, file(size)).is_err(), "{bad:x?} of {size:#x}");
        }
        assert_eq!(memory.regions, [ONE]);
        assert!(memory.set(vec![(Region { guest: 0x20000, size: 0, ..ONE }, file(0x2000))]).is_err());
        assert_eq!(memory.guest_address(0x7000_0000), Some(GuestAddress(0x10000)));
    }
}
