//! Compresses a unit with a given codec.

use codec::{Codec, CodecId, Workspace};
use policy::{Settings, dst_limit};

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
