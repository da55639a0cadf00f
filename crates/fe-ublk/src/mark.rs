//! The mark of a device: 64 bits that the driver keeps with it, so that the next server of the pool
//! finds the devices of one that has died. Pure.
//!
//! No file has to be kept in step with the kernel: a mark comes and goes with its device.

use surface::DeviceId;

/// A pool, as marks know it: 32 bits of a hash, 0 for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner(u32);

impl Owner {
    /// Hashes the facts that make a pool differ from all others of this machine, copies of it
    /// included. The same facts make the same owner in each version of the program.
    pub fn of(facts: &[u8]) -> Self {
        // FNV-1a, folded.
        let hash = facts
            .iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
        Self(((hash >> 32) as u32 ^ hash as u32).max(1))
    }

    /// The mark of a volume's device; `None` for a number that has no room in it.
    pub fn mark(self, id: DeviceId) -> Option<u64> {
        let number = u32::try_from(id.0).ok()?;
        Some(u64::from(self.0) << 32 | u64::from(number))
    }

    /// The volume of a device, by its mark; `None` if another owner, or none, has marked it.
    pub fn volume(self, mark: u64) -> Option<DeviceId> {
        ((mark >> 32) as u32 == self.0).then_some(DeviceId(mark & u64::from(u32::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_leads_to_its_owner_and_volume_only() {
        let (one, other) = (Owner::of(b"pool 1"), Owner::of(b"pool 2"));
        for number in [0, 1, 77, u64::from(u32::MAX)] {
            let mark = one.mark(DeviceId(number)).unwrap();
            assert_eq!((one.volume(mark), other.volume(mark)), (Some(DeviceId(number)), None));
        }
        assert_eq!(one.mark(DeviceId(1 << 32)), None);
        // Devices of other programs.
        assert_eq!((one.volume(0), one.volume(7)), (None, None));
    }

    #[test]
    fn owners_stay_the_same_in_later_versions() {
        // A device that waits carries this across an upgrade.
        assert_eq!(Owner::of(b""), Owner(0xcbf2_9ce4 ^ 0x8422_2325));
        assert_eq!(Owner::of(b"a"), Owner(0xaf63_dc4c ^ 0x8601_ec8c));
    }
}
