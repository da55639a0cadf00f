//! Zero-length encoding: omits runs of zeroes and stores everything else as is. For data that is
//! sparse within its blocks, at the cost of a scan.
//!
//! The stream is a sequence of runs. Each begins with its head: `length * 2 + is_zeroes`, in 7 bits
//! a byte, low bits first, bit 7 set in all bytes but the last. The head of a run that is not all
//! zeroes is followed by the run's bytes.

use crate::bytes::Output;

/// Bytes tested together for zeroes: a shorter run costs about as much as it saves.
const GRAIN: usize = 4;
/// Bits of a run's length in a head's byte.
const HEAD_BITS: u32 = 7;
/// A head is at most this long, so that its value cannot overflow: 28 bits.
const HEAD_BYTES_MAX: usize = 4;

/// Compresses `src` into `dst` if it fits.
pub(crate) fn compress(src: &[u8], dst: &mut [u8]) -> Option<usize> {
    let mut out = Output::new(dst);
    let mut done = 0;
    while done < src.len() {
        let zeroes = next_zeroes(src, done);
        if zeroes.start > done {
            head(&mut out, zeroes.start - done, false)?;
            out.extend(&src[done..zeroes.start])?;
        }
        if !zeroes.is_empty() {
            head(&mut out, zeroes.len(), true)?;
        }
        done = zeroes.end;
    }
    Some(out.at)
}

/// Returns the next run of zeroes worth omitting; empty if there are no more.
fn next_zeroes(src: &[u8], from: usize) -> std::ops::Range<usize> {
    let (grains, _) = src[from..].as_chunks::<GRAIN>();
    let Some(found) = grains.iter().position(|grain| u32::from_ne_bytes(*grain) == 0) else {
        return src.len()..src.len();
    };
    let at = from + found * GRAIN;
    let before = src[from..at].iter().rev().take_while(|byte| **byte == 0).count();
    let whole = grains[found..].iter().take_while(|grain| u32::from_ne_bytes(**grain) == 0).count() * GRAIN;
    let behind = src[at + whole..].iter().take_while(|byte| **byte == 0).count();
    at - before..at + whole + behind
}

fn head(out: &mut Output<'_>, len: usize, is_zeroes: bool) -> Option<()> {
    let mut rest = len * 2 + usize::from(is_zeroes);
    while rest >= 1 << HEAD_BITS {
        out.push(rest as u8 | 1 << HEAD_BITS)?;
        rest >>= HEAD_BITS;
    }
    out.push(rest as u8)
}

/// Decodes at least `wanted` bytes; all of `dst` and all of `src` if `wanted` is `dst.len()`.
/// `None` when the stream is malformed.
pub(crate) fn decompress(src: &[u8], dst: &mut [u8], wanted: usize) -> Option<()> {
    let mut out = Output::new(dst);
    let mut at = 0;
    while out.at < wanted {
        let mut value = 0usize;
        let mut bytes = 0;
        loop {
            let byte = *src.get(at)?;
            value |= usize::from(byte & ((1 << HEAD_BITS) - 1)) << (bytes * HEAD_BITS);
            (at, bytes) = (at + 1, bytes + 1);
            if byte >> HEAD_BITS == 0 {
                break;
            }
            if bytes as usize == HEAD_BYTES_MAX {
                return None;
            }
        }
        let (len, is_zeroes) = (value / 2, value % 2 == 1);
        if len == 0 {
            return None;
        }
        if is_zeroes {
            let end = out.at + len;
            out.dst.get_mut(out.at..end)?.fill(0);
            out.at = end;
        } else {
            out.extend(src.get(at..at + len)?)?;
            at += len;
        }
    }
    (wanted < out.dst.len() || at == src.len()).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_by_table() {
        let mut long = vec![0u8; 1000];
        long[0] = 9;
        for (raw, stored) in [
            (&b"ab"[..], &[4, b'a', b'b'][..]),
            (&[0; 4], &[9]),
            (&[0; 3], &[6, 0, 0, 0]),
            (&[1, 0, 0, 0, 0, 0, 0, 0, 2], &[2, 1, 15, 2, 2]),
            (&long, &[2, 9, 0xcf, 0x0f]),
        ] {
            let mut dst = [0; 64];
            let len = compress(raw, &mut dst).unwrap();
            assert_eq!(&dst[..len], stored);
            assert!(compress(raw, &mut dst[..len - 1]).is_none());
            let mut back = vec![1; raw.len()];
            decompress(stored, &mut back, raw.len()).unwrap();
            assert_eq!(back, raw);
        }
    }

    #[test]
    fn heads_that_nobody_writes_are_refused() {
        let mut dst = [0; 16];
        for stored in [&[0u8][..], &[1], &[0x80, 0x80, 0x80, 0x80, 1], &[33, 0], &[32], &[31, 3, 2], &[]] {
            assert!(decompress(stored, &mut dst, 16).is_none(), "{stored:?}");
        }
    }
}
