//! Decodes the beginning of a zstd frame without decoding the rest.
//!
//! The library decodes whole blocks, and a unit is nearly always one block. But it executes a
//! block's sequences in order, and checks each one before executing it: if the destination is too
//! small for the whole block, it fails with "destination too small" after writing all sequences
//! that fit. It does not report how far it got, and its fast copies write up to [`OVERRUN`] bytes
//! past that point. So the buffer past the wanted bytes ends in a guard stretch filled with
//! [`MARK`], placed so that only a copy that ends past all wanted bytes can reach it. If any byte
//! of the stretch changed, the wanted bytes are complete. If none did (a sequence longer than the
//! stretch, or data equal to the mark), nothing is known, and the caller decodes everything.
//!
//! The library does not document any of this. It was checked in the source of one version
//! ([`READ_VERSION`]): `ZSTD_execSequence` and `ZSTD_execSequenceEnd` for the order and the check,
//! `WILDCOPY_OVERLENGTH` for the overrun, and `ZSTD_allocateLiteralsBuffer` for where literals are
//! buffered: outside the destination as long as they are at most 64 KiB and the destination is no
//! larger than the window. With any other version, everything is decoded. So is any payload other
//! than a single frame with a single compressed block, the only case covered by this reasoning: a
//! second frame may have a small window, and then its literals are buffered in the destination.

/// Version number of the library that this was checked against: 1.5.7.
const READ_VERSION: u32 = 10_507;

/// Largest destination in bytes that never holds buffered literals: a block cannot have more
/// literals than the destination has room for.
const ROOM_MAX: usize = 64 << 10;
/// How far past its end a copy may write: the library's `WILDCOPY_OVERLENGTH`.
const OVERRUN: usize = 32;
/// Bytes of the guard stretch. More units reach a longer one, at the cost of more decoding.
const STRETCH: usize = 512;
/// If fewer bytes than this remain at the end of a unit, they are decoded with the rest.
const WORTH: usize = 256;
/// Fill byte of the guard stretch.
const MARK: u8 = 0xa5;
/// Error code for a destination that is too small: minus `ZSTD_error_dstSize_tooSmall`.
const TOO_SMALL: usize = 0_usize.wrapping_sub(70);

/// Decodes the first `wanted` bytes of a frame with `decode` (a call of the library) into `dst`,
/// which is as long as the whole frame. Returns false if they may be incomplete; the caller then
/// decodes everything.
pub(crate) fn decode(
    src: &[u8],
    dst: &mut [u8],
    wanted: usize,
    decode: impl FnOnce(&[u8], &mut [u8]) -> Result<usize, usize>,
) -> bool {
    if wanted > dst.len() || zstd_safe::version_number() != READ_VERSION {
        return false;
    }
    let Some((header, block)) = src.split_first_chunk::<2>() else { return false };
    // The frame header consists of the window size alone, as this crate writes it.
    if header[0] != 0 || window_bytes(header[1]) < dst.len() {
        return false;
    }
    // The library refuses a block with more literals than the destination has room for.
    let Some(literals) = literals_of_only_block(block) else { return false };
    let room = wanted.max(literals) + OVERRUN + STRETCH;
    if room > ROOM_MAX || room + WORTH > dst.len() {
        return false;
    }
    dst[wanted + OVERRUN..room].fill(MARK);
    decode(src, &mut dst[..room]) == Err(TOO_SMALL) && dst[wanted + OVERRUN..room].iter().any(|byte| *byte != MARK)
}

/// Size of the window (RFC 8878, 3.1.1.1.2).
fn window_bytes(descriptor: u8) -> usize {
    let base = 1_usize.checked_shl(10 + u32::from(descriptor >> 3)).unwrap_or(usize::MAX);
    base.saturating_add(base / 8 * usize::from(descriptor & 7))
}

/// Bytes of literals in a compressed block that is the last of its frame and starts with `bytes`
/// (RFC 8878, 3.1.1.2 and 3.1.1.3.1.1).
fn literals_of_only_block(bytes: &[u8]) -> Option<usize> {
    const LAST: u32 = 1;
    const COMPRESSED: u32 = 2;
    let (header, content) = bytes.split_first_chunk::<3>()?;
    let header = u32::from_le_bytes([header[0], header[1], header[2], 0]);
    if header & 7 != LAST | COMPRESSED << 1 || usize::try_from(header >> 3) != Ok(content.len()) {
        return None;
    }
    let bytes: [u8; 4] = content.first_chunk().copied()?;
    let section = u32::from_le_bytes(bytes);
    let is_plain = section & 3 < 2;
    let size = match ((section >> 2) & 3, is_plain) {
        (0 | 2, true) => (section >> 3) & 0x1f,
        (1, true) => (section >> 4) & 0xfff,
        (_, true) => (section >> 4) & 0xf_ffff,
        (0 | 1, false) => (section >> 4) & 0x3ff,
        (2, false) => (section >> 4) & 0x3fff,
        (_, false) => (section >> 4) & 0x3_ffff,
    };
    usize::try_from(size).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When the library's version changes, the functions named in this file's head have to be read
    /// again. The prefix tests alone would pass without the shortcut, only slower.
    #[test]
    fn the_library_is_the_one_that_was_read() {
        assert_eq!(zstd_safe::version_number(), READ_VERSION);
    }

    #[test]
    fn windows_and_literals_as_the_rfc_has_them() {
        assert_eq!([0, 0x29, 0x2f].map(window_bytes), [1024, 36 << 10, 60 << 10]);
        assert!(window_bytes(0xff) > 1 << 40);
        // Sections of raw (3 forms) and Huffman (3 forms) literals.
        let block = |section: u64| literals_of_only_block(&block(LAST_COMPRESSED, &section.to_le_bytes()));
        assert_eq!(block(31 << 3), Some(31));
        assert_eq!(block(0b01 << 2 | 4095 << 4), Some(4095));
        assert_eq!(block(0b11 << 2 | 70_000 << 4), Some(70_000));
        assert_eq!(block(2 | 0b01 << 2 | 1023 << 4 | 7 << 14), Some(1023));
        assert_eq!(block(2 | 0b10 << 2 | 16_383 << 4 | 7 << 18), Some(16_383));
        assert_eq!(block(3 | 0b11 << 2 | 131_072 << 4 | 7 << 22), Some(131_072));
    }

    const LAST_COMPRESSED: u32 = 5;

    /// A block of that content, with the three low bits of its header.
    fn block(kind: u32, content: &[u8]) -> Vec<u8> {
        let mut bytes = ((content.len() as u32) << 3 | kind).to_le_bytes()[..3].to_vec();
        bytes.extend(content);
        bytes
    }

    #[test]
    fn only_one_block_that_ends_with_its_frame_will_do() {
        let content = [0u8; 40];
        assert!(literals_of_only_block(&block(LAST_COMPRESSED, &content)).is_some());
        for kind in [0, 1, 2, 3, 4, 6, 7] {
            assert_eq!(literals_of_only_block(&block(kind, &content)), None, "{kind}");
        }
        let longer = [block(LAST_COMPRESSED, &content), vec![0]].concat();
        let whole = block(LAST_COMPRESSED, &content);
        assert_eq!((literals_of_only_block(&longer), literals_of_only_block(&whole[..42])), (None, None));
        assert_eq!(literals_of_only_block(&whole[..4]), None);
    }

    /// Two frames, the second with a window of 1 KiB: while its first block is decoded, its
    /// literals are buffered amid the wanted bytes, and then its second block does not fit. These
    /// literals were once mistaken for decoded data.
    #[test]
    fn literals_of_another_frame_are_not_taken_for_data() {
        // 10 raw literals and no sequences; 1024 times the same literal and no sequences; 3062
        // times a byte.
        let first = [&[10 << 3][..], &[7; 10], &[0]].concat();
        let second = [(1 | 0b01 << 2 | 1024_u32 << 4).to_le_bytes()[..2].to_vec(), vec![9, 0]].concat();
        let third = [((3062_u32 << 3) | 3).to_le_bytes()[..3].to_vec(), vec![5]].concat();
        let frames = [vec![0, 0x10], block(LAST_COMPRESSED, &first), vec![0, 0], block(4, &second), third].concat();
        let mut whole = vec![0; 4096];
        let mut workspace = crate::Workspace::new();
        let id = crate::CodecId(65);
        workspace.decompress(id, &frames, &mut whole).unwrap();
        let mut part = vec![0xee; 4096];
        workspace.decompress_prefix(id, &frames, &mut part, 2000).unwrap();
        assert_eq!(part[..2000], whole[..2000]);
    }

    /// The common case: text is decoded in part, the part is right, and no fallback is needed.
    #[test]
    fn most_prefixes_of_text_need_no_more() {
        let mut raw = Vec::new();
        for line in 0_u32.. {
            raw.extend(format!("{line}: {:x}, a line like others\n", line.wrapping_mul(2_654_435_761)).bytes());
            if raw.len() >= 32 << 10 {
                break;
            }
        }
        raw.truncate(32 << 10);
        let mut stored = vec![0; raw.len()];
        let len = crate::zstd::Compressor::new().unwrap().compress(1, &raw, &mut stored).unwrap();
        let mut context = zstd_safe::DCtx::create();
        context.set_parameter(zstd_safe::DParameter::Format(zstd_safe::FrameFormat::Magicless)).unwrap();
        for blocks in 1..8 {
            let (mut dst, wanted) = (vec![0; raw.len()], blocks * 4096);
            let mut rooms = 0;
            let done = decode(&stored[..len], &mut dst, wanted, |src, room| {
                rooms += room.len();
                context.decompress(room, src)
            });
            assert!(done && rooms < raw.len(), "{blocks}");
            assert_eq!(dst[..wanted], raw[..wanted]);
        }
    }
}
