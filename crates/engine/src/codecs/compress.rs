//! Compresses a unit with a given codec.

use codec::{Codec, CodecId, Workspace};
use format::{FragmentEntry, stream_checksum};
use policy::{Settings, dst_limit};
use units::{BLOCK_BYTES, BlockIndex};

/// Compresses into the target; raw if that saves too little.
pub(crate) fn compress_with(
    codecs: &mut Workspace,
    codec: Codec,
    raw: &[u8],
    target: &mut [u8],
    settings: &Settings,
) -> (CodecId, usize) {
    let limit = dst_limit(raw.len(), settings);
    if let Some(len) = codecs.compress(codec, raw, &mut target[..limit]) {
        return (codec.id(), len);
    }
    target.copy_from_slice(raw);
    (CodecId::RAW, raw.len())
}

/// Compresses a unit with a codec, or leaves it raw if that saves too little, and gives it a
/// stream's checksum.
pub(crate) fn with_unit(
    first: BlockIndex,
    raw: &[u8],
    codec: CodecId,
    codecs: &mut Workspace,
    settings: &Settings,
    take: &mut dyn FnMut(FragmentEntry, &[u8]),
) {
    let mut target = vec![0; dst_limit(raw.len(), settings)];
    let compressed = Codec::all()
        .find(|known| known.id() == codec && *known != Codec::Off)
        .and_then(|codec| Some((codec.id(), codecs.compress(codec, raw, &mut target)?)));
    let (id, payload) = match compressed {
        Some((id, len)) => (id, &target[..len]),
        None => (CodecId::RAW, raw),
    };
    let count = (raw.len() / BLOCK_BYTES) as u8;
    let fragment = FragmentEntry { first, count, codec: id.0, stored: payload.len() as u32, checksum: 0 };
    take(FragmentEntry { checksum: stream_checksum(&fragment, payload), ..fragment }, payload);
}
