//! Objects that come into the log whole: the descriptor and all of the content in one batch. So no
//! crash leaves a part of one, and none is visible before its content is.

use codec::Codec;
use format::{Entry, FragmentEntry, FragmentIdentity, ObjectDescriptor, fragment_checksum, header_bytes};
use policy::Settings;
use store::base::buffers::BufferPool;
use store::base::scratch;
use store::log::prepared::Prepared;
use units::{BLOCK_BYTES, BlockIndex, Epoch};

use crate::codecs::compress::compress_with;

/// The codec of the content: it is compressed once.
const CONTENT_CODEC: &str = "zstd-9";

/// Makes the batch of a new object. `blocks`: its content, whole blocks in ascending order.
/// `unit_blocks`: maximum blocks of a unit, a divisor of a group.
pub(crate) fn batch(
    descriptor: ObjectDescriptor,
    blocks: &[(BlockIndex, &[u8])],
    unit_blocks: u32,
    buffers: &BufferPool,
) -> Prepared {
    let (object, epoch) = (descriptor.id, descriptor.epoch);
    debug_assert_eq!(epoch, Epoch(0), "a new object");
    let codec: Codec = CONTENT_CODEC.parse().unwrap_or(Codec::Off);
    let settings = Settings::default();
    let (mut payloads, mut fragments) = (Vec::new(), Vec::new());
    let mut target = vec![0; unit_blocks as usize * BLOCK_BYTES];
    let is_one_unit = |(one, _): &(BlockIndex, &[u8]), (next, _): &(BlockIndex, &[u8])| {
        one.0 + 1 == next.0 && next.0 % u64::from(unit_blocks) != 0
    };
    for unit in blocks.chunk_by(is_one_unit) {
        let raw: Vec<u8> = unit.iter().flat_map(|(_, block)| block.iter().copied()).collect();
        let target = &mut target[..raw.len()];
        let (id, stored) = scratch::with(|s| compress_with(&mut s.codecs, codec, &raw, target, &settings));
        let (first, count, codec) = (unit[0].0, unit.len() as u8, id.0);
        let payload = &target[..stored];
        let checksum = fragment_checksum(&FragmentIdentity { object, epoch, first, count, codec }, payload);
        fragments.push(FragmentEntry { first, count, codec, stored: stored as u32, checksum });
        payloads.extend_from_slice(payload);
    }
    let entries = vec![Entry::Object(descriptor), Entry::Fragments { object, epoch, fragments }];
    let header = header_bytes(&entries);
    let mut buf = buffers.get(header + payloads.len());
    buf[header..header + payloads.len()].copy_from_slice(&payloads);
    Prepared::new(entries, payloads.len(), buf, Vec::new())
}
