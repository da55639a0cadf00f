//! The checksum of a fragment: crc32c over its identity, then over its payload. A fragment read
//! from the wrong place, or for the wrong block, fails it even if its bytes are intact.

use units::{BlockIndex, Epoch, ObjectId};

/// Owner of a fragment's bytes. Unchanged when the fragment is moved.
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

/// crc32c of the identity (22 bytes: object 8, epoch 4, first block 8, count 1, codec 1) followed
/// by the payload.
pub fn fragment_checksum(identity: &FragmentIdentity, payload: &[u8]) -> u32 {
    crate::crc::crc32c_append(who_checksum(identity), payload)
}

fn who_checksum(identity: &FragmentIdentity) -> u32 {
    let mut who = [0; 22];
    who[..8].copy_from_slice(&identity.object.0.to_le_bytes());
    who[8..12].copy_from_slice(&identity.epoch.0.to_le_bytes());
    who[12..20].copy_from_slice(&identity.first.0.to_le_bytes());
    who[20] = identity.count;
    who[21] = identity.codec;
    crate::crc::crc32c(&who)
}

/// Converts the checksum of a payload of `payload_bytes` bytes from the identity `from` to the
/// identity `to`, without the payload. If the payload changed since the old checksum was computed,
/// it does not match the new one either: unlike recomputing the sum from the payload, a change of
/// identity cannot hide damage.
///
/// A CRC is linear: the checksums of the same payload after two different prefixes differ by the
/// difference of the prefixes' checksums, multiplied by x to the number of bits that follow.
pub fn reseal(checksum: u32, from: &FragmentIdentity, to: &FragmentIdentity, payload_bytes: u32) -> u32 {
    checksum ^ shift(who_checksum(from) ^ who_checksum(to), payload_bytes)
}

/// A linear map of remainders: the image of each bit.
type Shift = [u32; 32];

/// The map for 1 byte of zeroes, 2, 4, 8, ... : enough for all lengths of four bytes.
const SHIFTS: [Shift; 32] = shifts();

/// The Castagnoli polynomial, lowest bit first.
const POLYNOMIAL: u32 = 0x82f6_3b78;

const fn apply(map: &Shift, remainder: u32) -> u32 {
    let (mut sum, mut bit) = (0, 0);
    while bit < 32 {
        if remainder >> bit & 1 == 1 {
            sum ^= map[bit];
        }
        bit += 1;
    }
    sum
}

const fn shifts() -> [Shift; 32] {
    let mut byte = [0; 32];
    let mut bit = 0;
    while bit < 32 {
        let (mut remainder, mut step) = (1u32 << bit, 0);
        while step < 8 {
            remainder = if remainder & 1 == 1 { remainder >> 1 ^ POLYNOMIAL } else { remainder >> 1 };
            step += 1;
        }
        byte[bit] = remainder;
        bit += 1;
    }
    let mut all = [byte; 32];
    let mut power = 1;
    while power < 32 {
        let mut bit = 0;
        while bit < 32 {
            all[power][bit] = apply(&all[power - 1], all[power - 1][bit]);
            bit += 1;
        }
        power += 1;
    }
    all
}

/// The remainder after `bytes` more zero bytes.
fn shift(remainder: u32, bytes: u32) -> u32 {
    SHIFTS.iter().enumerate().fold(
        remainder,
        |remainder, (power, map)| {
            if bytes >> power & 1 == 1 { apply(map, remainder) } else { remainder }
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_identity_needs_no_look_at_the_payload() {
        let bytes: Vec<u8> = (0..131_072u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let identity = |object, epoch, first, count| FragmentIdentity {
            object: ObjectId(object),
            epoch: Epoch(epoch),
            first: BlockIndex(first),
            count,
            codec: 65,
        };
        let (here, there) = (identity(7, 3, 96, 32), identity(u64::MAX, 0, 96, 32));
        for len in [0, 1, 2, 3, 7, 4095, 4096, 5000, 65_537, 131_072] {
            let payload = &bytes[..len];
            let old = fragment_checksum(&here, payload);
            assert_eq!(reseal(old, &here, &there, len as u32), fragment_checksum(&there, payload), "{len} bytes");
            assert_eq!(reseal(old, &here, &here, len as u32), old);
            // A damaged payload stays damaged.
            assert_ne!(reseal(old ^ 1, &here, &there, len as u32), fragment_checksum(&there, payload));
        }
    }
}
