//! LZO1X, written from the public description of its stream. Any LZO1X decoder reads what this
//! writes; this reads what any LZO1X compressor writes (the crate's tests check both against
//! another implementation).
//!
//! The stream is a sequence of instructions, distinguished by their first byte and the preceding
//! instruction. Those written here:
//!
//! | instruction | means |
//! | --- | --- |
//! | `17 + L` as the first byte | L literal bytes, 1 to 238 |
//! | `0000 LLLL` | 3 + L literal bytes; L = 0: 18 + extension |
//! | `LLLD DDSS`, `DDDD DDDD` (high ones) | copy of L + 1 (3 to 8) bytes from 1 + D (at most 2 KiB) back |
//! | `001L LLLL`, `DDDD DDSS`, `DDDD DDDD` | copy of L + 2 bytes, L = 0: 33 + extension, from 1 + D (at most 16 KiB) back |
//! | `0001 DLLL`, `DDDD DDSS`, `DDDD DDDD` | copy of L + 2 bytes, L = 0: 9 + extension, from 16 KiB + D back; D = 0 with L = 1 is the end |
//!
//! S literal bytes follow a copy. An extension is a number: 255 for each zero byte, then one byte
//! that is not zero. Only read: `0000 DDSS`, `DDDD DDDD` (high ones): after a copy with S > 0, two
//! bytes from 1 + D back; after a run of literals, three from 2049 + D back.

use crate::bytes::{LastSeen, Output, same, word32};

const M2_LEN_MAX: usize = 8;
const M2_DISTANCE_MAX: usize = 1 << 11;
const M3_LEN_MAX: usize = 33;
const M3_DISTANCE_MAX: usize = 1 << 14;
const M3_MARKER: u8 = 0b0010_0000;
const M4_LEN_MAX: usize = 9;
const M4_DISTANCE_MAX: usize = M3_DISTANCE_MAX + (1 << 15) - 1;
const M4_MARKER: u8 = 0b0001_0000;
/// The end: a copy of three bytes from 16 KiB back.
const END: [u8; 3] = [M4_MARKER | 1, 0, 0];
/// Values of a stream's first byte above this encode a number of literal bytes.
const FIRST_RUN: usize = 17;
/// Longest run that the first byte can say.
const FIRST_RUN_MAX: usize = 255 - FIRST_RUN;
/// Longest run that an instruction encodes without an extension.
const RUN_MAX: usize = 18;
/// Shortest copy that the search finds: the bytes covered by the hash.
const COPY_MIN: usize = 4;
/// After 2^5 positions without a copy every second one is tried, and so on: noise passes quickly.
const PATIENCE: u32 = 5;

/// A compressor whose hash table (64 KiB) is reused from call to call.
pub(crate) struct Compressor {
    seen: LastSeen<14>,
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
        // `written` is the start of the input not yet covered by an instruction, `at` the position
        // of the search.
        let (mut written, mut at) = (0, 0);
        while at + COPY_MIN <= src.len() {
            let value = word32(src, at);
            let last = self.seen.replace(value, at);
            let Some(last) = last.filter(|last| at - last <= M4_DISTANCE_MAX && word32(src, *last) == value) else {
                at += 1 + ((at - written) >> PATIENCE);
                continue;
            };
            let mut len = COPY_MIN + same(src, last + COPY_MIN, at + COPY_MIN, usize::MAX - COPY_MIN);
            let (mut from, mut to) = (last, at);
            while to > written && from > 0 && src[from - 1] == src[to - 1] {
                (from, to, len) = (from - 1, to - 1, len + 1);
            }
            run(&mut out, &src[written..to])?;
            copy(&mut out, to - from, len)?;
            (written, at) = (to + len, to + len);
            // Records one position within the copy, so that a match overlapping its end is found.
            self.seen.replace(word32(src, at - 2), at - 2);
        }
        run(&mut out, &src[written..])?;
        out.extend(&END)?;
        Some(out.at)
    }
}

/// Emits a run of literal bytes.
#[inline]
fn run(out: &mut Output<'_>, bytes: &[u8]) -> Option<()> {
    let len = bytes.len();
    match len {
        0 => return Some(()),
        1..=FIRST_RUN_MAX if out.at == 0 => out.push((FIRST_RUN + len) as u8)?,
        // The low bits of the last copy's distance, which is stored in the last byte but one.
        1..=3 => out.dst[out.at - 2] |= len as u8,
        4..=RUN_MAX => out.push((len - 3) as u8)?,
        _ => {
            out.push(0)?;
            extension(out, len - RUN_MAX)?;
        }
    }
    out.literals(bytes, 0, len)
}

/// A copy of `len` bytes (3 at least) from `distance` back.
#[inline]
fn copy(out: &mut Output<'_>, distance: usize, len: usize) -> Option<()> {
    if len <= M2_LEN_MAX && distance <= M2_DISTANCE_MAX {
        let d = distance - 1;
        out.push(((len - 1) << 5 | (d & 7) << 2) as u8)?;
        return out.push((d >> 3) as u8);
    }
    let d = if distance <= M3_DISTANCE_MAX {
        length(out, M3_MARKER, len, M3_LEN_MAX)?;
        distance - 1
    } else {
        let d = distance - M3_DISTANCE_MAX;
        length(out, M4_MARKER | (d >> 11 & 8) as u8, len, M4_LEN_MAX)?;
        d & (M3_DISTANCE_MAX - 1)
    };
    out.push((d << 2) as u8)?;
    out.push((d >> 6) as u8)
}

/// Emits a copy's instruction with its length, of which at most `most` fits into it.
#[inline]
fn length(out: &mut Output<'_>, marker: u8, len: usize, most: usize) -> Option<()> {
    if len <= most {
        return out.push(marker | (len - 2) as u8);
    }
    out.push(marker)?;
    extension(out, len - most)
}

fn extension(out: &mut Output<'_>, mut value: usize) -> Option<()> {
    while value > 255 {
        out.push(0)?;
        value -= 255;
    }
    out.push(value as u8)
}

/// State that an instruction leaves for the next one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    /// After a copy without literal bytes, or at the start of the stream.
    Copy,
    /// After one to three literal bytes that followed a copy.
    FewBytes,
    /// A run of bytes.
    Run,
}

/// Bounded input: reads fail instead of running past the end.
struct Input<'a> {
    src: &'a [u8],
    at: usize,
}

impl Input<'_> {
    #[inline]
    fn byte(&mut self) -> Option<usize> {
        let byte = *self.src.get(self.at)?;
        self.at += 1;
        Some(usize::from(byte))
    }

    #[inline]
    fn pair(&mut self) -> Option<usize> {
        Some(self.byte()? | self.byte()? << 8)
    }

    /// Returns `short` if it is not zero, else `long` plus the extension that follows.
    #[inline]
    fn length(&mut self, short: usize, long: usize) -> Option<usize> {
        if short > 0 {
            return Some(short);
        }
        let mut len = long;
        loop {
            match self.byte()? {
                0 => len += 255,
                last => return Some(len + last),
            }
        }
    }

    #[inline]
    fn run(&mut self, out: &mut Output<'_>, len: usize) -> Option<()> {
        out.literals(self.src, self.at, len)?;
        self.at += len;
        Some(())
    }
}

/// Decodes at least `wanted` bytes; all of `dst` and all of `src` if `wanted` is `dst.len()`.
/// `None` when the stream is malformed.
pub(crate) fn decompress(src: &[u8], dst: &mut [u8], wanted: usize) -> Option<()> {
    let whole = wanted == dst.len();
    let mut out = Output::new(dst);
    let mut input = Input { src, at: 0 };
    let mut after = After::Copy;
    if let Some(len) = usize::from(*src.first()?).checked_sub(FIRST_RUN).filter(|len| *len > 0) {
        input.at = 1;
        input.run(&mut out, len)?;
        after = if len <= 3 { After::FewBytes } else { After::Run };
    }
    while whole || out.at < wanted {
        let byte = input.byte()?;
        // Each arm: distance, length, number of bytes that follow.
        let (distance, len, few) = match byte {
            0..=15 => match after {
                After::Copy => {
                    let len = input.length(byte, 15)? + 3;
                    input.run(&mut out, len)?;
                    after = After::Run;
                    continue;
                }
                After::FewBytes => ((byte >> 2 | input.byte()? << 2) + 1, 2, byte & 3),
                After::Run => ((byte >> 2 | input.byte()? << 2) + M2_DISTANCE_MAX + 1, 3, byte & 3),
            },
            16..=31 => {
                let len = input.length(byte & 7, M4_LEN_MAX - 2)? + 2;
                let low = input.pair()?;
                let distance = (byte & 8) << 11 | low >> 2;
                if distance == 0 {
                    // The end marker is a copy of three bytes; no other length is allowed.
                    let right = len == 3 && whole && out.at == wanted && input.at == src.len();
                    return right.then_some(());
                }
                (distance + M3_DISTANCE_MAX, len, low & 3)
            }
            32..=63 => {
                let len = input.length(byte & 31, M3_LEN_MAX - 2)? + 2;
                let low = input.pair()?;
                ((low >> 2) + 1, len, low & 3)
            }
            _ => ((byte >> 2 & 7 | input.byte()? << 3) + 1, (byte >> 5) + 1, byte & 3),
        };
        out.repeat(distance, len)?;
        input.run(&mut out, few)?;
        after = if few > 0 { After::FewBytes } else { After::Copy };
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by hand from the description of the stream, the instructions that are only read among
    /// them.
    #[test]
    fn reads_streams_by_table() {
        let mut far = vec![0xaa; 2100];
        far[..4].copy_from_slice(b"wxyz");
        let mut far_stream = vec![0, 0, 0, 0, 0, 0, 0, 0, 0];
        // 2100 bytes: 18 + 8 x 255 + 42.
        far_stream.push(42);
        far_stream.extend_from_slice(&far);
        // Three bytes from 2049 + 51 = 2100 back: D = 51 = 12 << 2 | 3, then the end.
        far_stream.extend_from_slice(&[3 << 2, 12]);
        far_stream.extend_from_slice(&END);
        far.extend_from_slice(b"wxy");
        for (stored, raw) in [
            (&[18, b'a', 17, 0, 0][..], &b"a"[..]),
            (&[21, 1, 2, 3, 4, 17, 0, 0], &[1, 2, 3, 4]),
            // Copy of 5 from 2 back, then a byte, then two bytes from 3 back.
            (&[19, b'a', b'b', 4 << 5 | 1 << 2 | 1, 0, b'c', 2 << 2, 0, 17, 0, 0], b"abababacba"),
            (&[18, b'z', 0x20, 1, 0, 0, 17, 0, 0], &[b'z'; 35]),
            (&far_stream, &far),
        ] {
            let mut dst = vec![0; raw.len()];
            assert!(decompress(stored, &mut dst, raw.len()).is_some(), "{stored:?}");
            assert_eq!(dst, raw);
            for cut in 0..stored.len() {
                assert!(decompress(&stored[..cut], &mut dst, raw.len()).is_none());
            }
            let mut longer = stored.to_vec();
            longer.push(0);
            assert!(decompress(&longer, &mut dst, raw.len()).is_none());
        }
    }

    #[test]
    fn distances_and_lengths_at_the_edges_round_trip() {
        for distance in [4, 2047, 2048, 2049, 16383, 16384, 16385, 32767, 32768, 49150, 49151] {
            for len in [4, 5, 8, 9, 10, 33, 34, 264, 288, 289, 520, 5000] {
                // Noise without repeats, then its first bytes again.
                let mut raw: Vec<u8> =
                    (0..distance as u32).map(|i| (i.wrapping_mul(0x9e37_79b1) >> 11) as u8).collect();
                raw[..4].copy_from_slice(b"\x01\xfe\x02\xfd");
                for i in 0..len {
                    raw.push(raw[i]);
                }
                let mut dst = vec![0; raw.len() + raw.len() / 16 + 64];
                let stored = Compressor::new().compress(&raw, &mut dst).unwrap();
                let mut back = vec![0; raw.len()];
                decompress(&dst[..stored], &mut back, raw.len()).unwrap();
                assert!(back == raw, "{distance} {len}");
            }
        }
    }
}
