//! The checksum of a fragment: crc32c over who it is, then over what it holds. A fragment read from the wrong place, or for
//! the wrong block, fails it even if its bytes are intact.

use units::{BlockIndex, Epoch, ObjectId};

/// Whose bytes a fragment holds. It stays the same when the fragment is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FragmentIdentity {
    /// The object it was written for.
    pub object: ObjectId,
    /// The epoch it was written in.
    pub epoch: Epoch,
    /// First block of the unit.
    pub first: BlockIndex,
    /// Blocks of the unit, 1 to 32.
    pub count: u8,
    /// Codec number.
    pub codec: u8,
}

/// crc32c of the identity (22 bytes: object 8, epoch 4, first block 8, count 1, codec 1) followed by the payload.
pub fn fragment_checksum(identity: &FragmentIdentity, payload: &[u8]) -> u32 {
    let mut who = [0; 22];
    who[..8].copy_from_slice(&identity.object.0.to_le_bytes());
    who[8..12].copy_from_slice(&identity.epoch.0.to_le_bytes());
    who[12..20].copy_from_slice(&identity.first.0.to_le_bytes());
    who[20] = identity.count;
    who[21] = identity.codec;
    crc32c::crc32c_append(crc32c::crc32c(&who), payload)
}
