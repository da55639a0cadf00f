//! The beginning of a zstd frame, without decoding the rest of it.
//!
//! The library decodes whole blocks, and a unit is one block (hardly ever more). But it executes a
//! block's sequences in order, and each of them only after it has found that it fits: with room for
//! less than the whole it fails with "destination too small", and has written all that lies before.
//! It does not say how far it came, and its fast copies write up to [`OVERRUN`] bytes behind that
//! place. So the room behind the wanted bytes ends in a stretch filled with a [`MARK`], that begins
//! so far behind that only a copy whose end lies behind all that is wanted can reach it: if a byte
//! of it has changed, the wanted bytes are there. If none has (a sequence longer than the stretch,
//! or data like the mark), nothing is known, and the caller decodes all.
//!
//! None of this is in the library's documentation. It holds for the version that was read
//! ([`READ_VERSION`]): `ZSTD_execSequence` and `ZSTD_execSequenceEnd` for the order and the check,
//! `WILDCOPY_OVERLENGTH` for the overrun, and `ZSTD_allocateLiteralsBuffer` for where literals
//! wait: not in the destination while they have at most 64 KiB and the room is no larger than the
//! window. With any other version all is decoded; so is a payload that is not exactly one frame of
//! one compressed block, of which alone this was shown: a second frame may have a small window, and
//! its literals wait in the destination then.

/// What the library says of itself in the version that this was checked against: 1.5.7.
const READ_VERSION: u32 = 10_507;

/// Largest room in bytes of which no literal ever waits in the destination: a block cannot have
/// more of them than there is room.
const ROOM_MAX: usize = 64 << 10;
/// How far behind its end a copy may write: `WILDCOPY_OVERLENGTH` of the library.
const OVERRUN: usize = 32;
/// Bytes of the stretch that tells whether enough was decoded. A longer one is reached by more
/// units and costs more decoding.
const STRETCH: usize = 512;
/// Less than so many bytes at the end of a unit are decoded with the rest.
const WORTH: usize = 256;
/// What the stretch is filled with.
const MARK: u8 = 0xa5;
/// What the library returns when the destination is too small: minus `ZSTD_error_dstSize_tooSmall`.
const TOO_SMALL: usize = 0_usize.wrapping_sub(70);

/// Decodes the first `wanted` bytes of a frame into `dst`, which has the length of all of it, with
/// `decode` (a call of the library). False: unknown whether they are there, decode all.
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
    // Nothing but the size of the window in the header, as we write it.
    if header[0] != 0 || window_bytes(header[1]) < dst.len() {
        return false;
    }
    // The library refuses a block that has more literals than there is room.
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

/// Bytes of literals that a compressed block has which is the last of its frame and ends with
/// `bytes` (RFC 8878, 3.1.1.2 and 3.1.1.3.1.1).
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

    /// A change of the library's version needs a new reading of the functions that this file's head
    /// names. It also needs the test of prefixes, which would pass without the shortcut, only
    /// slower.
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

    /// Two frames, of which the second has a window of 1 KiB: while its first block is decoded,
    /// literals of it wait in the middle of the wanted bytes, and then its second block does not
    /// fit. They were taken for decoded data.
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

    /// What it is for: text is decoded in part, and the part is right, with the library and without
    /// help of the fallback.
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
