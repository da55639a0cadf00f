//! Zero detection.

/// Bytes tested between two checks for an early exit: enough for the compiler to keep several
/// vectors in flight, few enough that data other than zeroes costs only a few nanoseconds.
const STRIDE: usize = 256;

/// Whether all bytes are zero (also when there are none).
pub fn is_zero(bytes: &[u8]) -> bool {
    let (strides, tail) = bytes.as_chunks::<STRIDE>();
    strides.iter().all(stride_is_zero) && tail.iter().fold(0, |all, byte| all | byte) == 0
}

#[inline]
fn stride_is_zero(stride: &[u8; STRIDE]) -> bool {
    // Four independent chains of words, which become vector registers.
    let mut all = [0u64; 8];
    for words in stride.as_chunks::<64>().0 {
        for (sum, word) in all.iter_mut().zip(words.as_chunks::<8>().0) {
            *sum |= u64::from_ne_bytes(*word);
        }
    }
    all.iter().fold(0, |sum, word| sum | word) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_single_byte_counts() {
        for len in [0, 1, 7, 8, 255, 256, 257, 1000, 4096] {
            let mut bytes = vec![0u8; len];
            assert!(is_zero(&bytes), "{len}");
            for at in 0..len {
                for value in [1, 0x80] {
                    bytes[at] = value;
                    assert!(!is_zero(&bytes), "{len} bytes, {value} at {at}");
                }
                bytes[at] = 0;
            }
        }
    }

    #[test]
    fn alignment_does_not_matter() {
        let mut bytes = vec![0u8; 5000];
        bytes[4500] = 1;
        for start in 0..64 {
            assert!(is_zero(&bytes[start..4500]));
            assert!(!is_zero(&bytes[start..4501]));
        }
    }
}
