//! LZJB, the first codec of ZFS, written from the description of its stream; kept for comparison
//! and for users who trust it.
//!
//! The stream is a sequence of groups: a byte whose bits, lowest first, mark which of the up to
//! eight items after it are copies. A copy is two bytes: length - 3 in the high 6 bits, then the
//! distance in 10 bits, high bits first. Any other item is a literal byte. There is no end marker:
//! decoding stops at the raw length.

use crate::bytes::{LastSeen, Output, same};

/// Shortest copy.
const COPY_MIN: usize = 3;
/// Longest copy: 6 bits above the shortest.
const COPY_MAX: usize = COPY_MIN + 63;
/// Farthest copy: 10 bits.
const DISTANCE_MAX: usize = 1023;
/// Items that share a byte of bits.
const GROUP: u32 = 8;

/// A compressor whose hash table (4 KiB) is reused from call to call.
pub(crate) struct Compressor {
    seen: LastSeen<10>,
}

impl Compressor {
    pub(crate) fn new() -> Self {
        Self { seen: LastSeen::new() }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.seen.memory_bytes()
    }

    /// Compresses `src` into `dst` if it fits.
    pub(crate) fn compress(&mut self, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        self.seen.begin(u32::try_from(src.len()).ok()?);
        let mut out = Output::new(dst);
        let (mut at, mut item, mut bits_at) = (0, GROUP, 0);
        while at < src.len() {
            if item == GROUP {
                (item, bits_at) = (0, out.at);
                out.push(0)?;
            }
            let copy = self.copy_at(src, at);
            if let Some((distance, len)) = copy {
                out.dst[bits_at] |= 1 << item;
                out.push(((len - COPY_MIN) << 2 | distance >> 8) as u8)?;
                out.push(distance as u8)?;
                at += len;
            } else {
                out.push(src[at])?;
                at += 1;
            }
            item += 1;
        }
        Some(out.at)
    }

    /// Distance and length of the copy that the bytes at `at` are.
    #[inline]
    fn copy_at(&mut self, src: &[u8], at: usize) -> Option<(usize, usize)> {
        let [a, b, c] = *src[at..].first_chunk()?;
        let last = self.seen.replace(u32::from_le_bytes([a, b, c, 0]), at)?;
        let distance = at - last;
        let len = if distance <= DISTANCE_MAX { same(src, last, at, COPY_MAX) } else { 0 };
        (len >= COPY_MIN).then_some((distance, len))
    }
}

/// Decodes at least `wanted` bytes; all of `dst` and all of `src` if `wanted` is `dst.len()`.
/// `None` when the stream is malformed.
pub(crate) fn decompress(src: &[u8], dst: &mut [u8], wanted: usize) -> Option<()> {
    let mut out = Output::new(dst);
    let (mut at, mut item, mut bits) = (0, GROUP, 0u8);
    while out.at < wanted {
        if item == GROUP {
            (item, bits) = (0, *src.get(at)?);
            at += 1;
        }
        if bits >> item & 1 == 1 {
            let [high, low] = *src.get(at..)?.first_chunk()?;
            at += 2;
            // A copy past the end would hide that the stream is of another length.
            out.repeat(usize::from(high & 3) << 8 | usize::from(low), usize::from(high >> 2) + COPY_MIN)?;
        } else {
            out.push(*src.get(at)?)?;
            at += 1;
        }
        item += 1;
    }
    (wanted < out.dst.len() || at == src.len()).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by hand from the description of the stream.
    #[test]
    fn streams_by_table() {
        for (raw, stored) in [
            (&b"abcabcabcabcX"[..], &[0b0000_1000, b'a', b'b', b'c', (9 - 3) << 2, 3, b'X'][..]),
            (b"ab", &[0, b'a', b'b']),
            (&[7; 70], &[0b110, 7, 63 << 2, 1, 0, 66]),
            (b"123456789", &[0, b'1', b'2', b'3', b'4', b'5', b'6', b'7', b'8', 0, b'9']),
        ] {
            let mut dst = [0; 64];
            let len = Compressor::new().compress(raw, &mut dst).unwrap();
            assert_eq!(&dst[..len], stored);
            assert!(Compressor::new().compress(raw, &mut dst[..len - 1]).is_none());
            let mut back = vec![1; raw.len()];
            decompress(stored, &mut back, raw.len()).unwrap();
            assert_eq!(back, raw);
        }
    }

    #[test]
    fn a_copy_past_the_end_is_refused() {
        let stored = [0b10, 7, (22 - COPY_MIN as u8) << 2, 1];
        let mut dst = [0; 24];
        assert!(decompress(&stored, &mut dst[..23], 23).is_some());
        for other in [1, 2, 15, 22, 24] {
            assert!(decompress(&stored, &mut dst[..other], other).is_none(), "{other}");
        }
    }

    #[test]
    fn copies_of_nothing_are_refused() {
        let mut dst = [0; 16];
        for stored in [&[1u8, 0, 1][..], &[2, 7, 0, 0], &[2, 7, 0, 2], &[2, 7, 0xff], &[]] {
            assert!(decompress(stored, &mut dst, 16).is_none(), "{stored:?}");
        }
    }
}
