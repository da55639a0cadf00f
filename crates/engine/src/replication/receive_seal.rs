//! A share's seal ([`SEAL`]) says that this pool has written all metadata of the share's tree. No
//! stream may carry one, and none may stay where a stream changes the share: the seal's block is a
//! hole in each received snapshot, regardless of the stream.

use std::borrow::Cow;

use format::StreamData;
use store::objects::file_layout;
use surface::SEAL;
use units::BlockIndex;

/// Removes the seal from a chunk of a share and its payloads.
pub(crate) fn without_seal<'a>(data: &'a StreamData, payloads: &'a [u8]) -> (Cow<'a, StreamData>, Cow<'a, [u8]>) {
    let block = BlockIndex::containing(file_layout::window(SEAL));
    if !(data.from..data.next).contains(&block.group()) {
        return (Cow::Borrowed(data), Cow::Borrowed(payloads));
    }
    let has_block = |first: BlockIndex, blocks: u64| (first.0..first.0 + blocks).contains(&block.0);
    let mut received = StreamData { fragments: Vec::new(), ..data.clone() };
    let (mut kept, mut rest) = (Vec::new(), payloads);
    for fragment in &data.fragments {
        // A truncated payload is refused later.
        let (payload, others) = rest.split_at(rest.len().min(fragment.stored as usize));
        rest = others;
        if !has_block(fragment.first, fragment.count.into()) {
            received.fragments.push(*fragment);
            kept.extend_from_slice(payload);
        }
    }
    if !received.holes.iter().any(|(first, blocks)| has_block(*first, (*blocks).into())) {
        let place = received.holes.partition_point(|(first, _)| first.0 < block.0);
        received.holes.insert(place, (block, 1));
    }
    (Cow::Owned(received), Cow::Owned(kept))
}
