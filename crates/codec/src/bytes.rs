//! Helpers of the codecs implemented in this crate: output that cannot overflow, copies, and a hash
//! table that needs no clearing.

/// Bounded output: every method fails instead of writing past the end.
pub(crate) struct Output<'a> {
    pub dst: &'a mut [u8],
    pub at: usize,
}

impl<'a> Output<'a> {
    pub fn new(dst: &'a mut [u8]) -> Self {
        Self { dst, at: 0 }
    }

    /// Appends one byte; `None` when there is no room.
    #[inline]
    pub fn push(&mut self, byte: u8) -> Option<()> {
        *self.dst.get_mut(self.at)? = byte;
        self.at += 1;
        Some(())
    }

    /// Appends `bytes`; `None` when they do not all fit.
    #[inline]
    pub fn extend(&mut self, bytes: &[u8]) -> Option<()> {
        let end = self.at + bytes.len();
        self.dst.get_mut(self.at..end)?.copy_from_slice(bytes);
        self.at = end;
        Some(())
    }

    /// Appends `len` bytes from `src[from..]`; `None` when either slice is too short. Short runs
    /// are copied as one wide word where there is room: the surplus stays within the output, where
    /// it is overwritten or never returned.
    #[inline]
    pub fn literals(&mut self, src: &[u8], from: usize, len: usize) -> Option<()> {
        if len <= WIDE
            && let (Some(wide), Some(out)) = (chunk::<WIDE>(src, from), chunk_mut::<WIDE>(self.dst, self.at))
        {
            *out = *wide;
            self.at += len;
            return Some(());
        }
        let end = self.at.checked_add(len)?;
        self.dst.get_mut(self.at..end)?.copy_from_slice(src.get(from..from.checked_add(len)?)?);
        self.at = end;
        Some(())
    }

    /// Appends `len` bytes starting `distance` bytes back, which may include bytes appended by this
    /// call; `None` when there is no room or `distance` reaches before the start.
    #[inline]
    pub fn repeat(&mut self, distance: usize, len: usize) -> Option<()> {
        let (at, end) = (self.at, self.at.checked_add(len)?);
        let from = at.checked_sub(distance).filter(|_| distance > 0 && end <= self.dst.len())?;
        self.at = end;
        if len <= WIDE
            && distance >= WIDE
            && let Some(wide) = chunk::<WIDE>(self.dst, from).copied()
            && let Some(out) = chunk_mut::<WIDE>(self.dst, at)
        {
            *out = wide;
        } else if distance >= len {
            self.dst.copy_within(from..from + len, at);
        } else if distance == 1 {
            let byte = self.dst[from];
            self.dst[at..end].fill(byte);
        } else {
            // The output so far repeats with the distance, so each copy can take everything that
            // the previous ones wrote.
            let mut done = 0;
            while done < len {
                let part = (distance + done).min(len - done);
                self.dst.copy_within(from..from + part, at + done);
                done += part;
            }
        }
        Some(())
    }
}

/// Bytes copied as one word.
const WIDE: usize = 16;

#[inline]
fn chunk<const N: usize>(bytes: &[u8], at: usize) -> Option<&[u8; N]> {
    bytes.get(at..)?.first_chunk()
}

#[inline]
fn chunk_mut<const N: usize>(bytes: &mut [u8], at: usize) -> Option<&mut [u8; N]> {
    bytes.get_mut(at..)?.first_chunk_mut()
}

/// Returns four bytes as a number; bytes past the end read as 0.
#[inline]
pub(crate) fn word32(bytes: &[u8], at: usize) -> u32 {
    chunk(bytes, at).map_or(0, |b| u32::from_le_bytes(*b))
}

/// Length of the common run that starts at `a` and at `b` (`b` after `a`), at most `most`.
#[inline]
pub(crate) fn same(bytes: &[u8], a: usize, b: usize, most: usize) -> usize {
    let mut len = 0;
    while len + 8 <= most
        && let (Some(x), Some(y)) = (chunk::<8>(bytes, a + len), chunk::<8>(bytes, b + len))
    {
        let differing = u64::from_le_bytes(*x) ^ u64::from_le_bytes(*y);
        if differing != 0 {
            return len + differing.trailing_zeros() as usize / 8;
        }
        len += 8;
    }
    while len < most && bytes.get(b + len).is_some_and(|y| bytes[a + len] == *y) {
        len += 1;
    }
    len
}

/// The last position of each hash in the input. Positions keep counting from one input to the next,
/// so positions of earlier inputs are recognised because they are too small; the table is cleared
/// only when the count wraps.
pub(crate) struct LastSeen<const BITS: u32> {
    table: Box<[u32]>,
    /// Position of the current input's first byte; positions of older inputs are smaller.
    base: u32,
    next: u32,
}

impl<const BITS: u32> LastSeen<BITS> {
    pub fn new() -> Self {
        Self { table: vec![0; 1 << BITS].into_boxed_slice(), base: 1, next: 1 }
    }

    /// Starts an input of `len` bytes.
    pub fn begin(&mut self, len: u32) {
        self.base = self.next;
        match self.base.checked_add(len) {
            Some(next) => self.next = next,
            None => {
                self.table.fill(0);
                (self.base, self.next) = (1, 1 + len);
            }
        }
    }

    /// Returns the hash's last position in this input, and records `at` as the new one.
    #[inline]
    pub fn replace(&mut self, value: u32, at: usize) -> Option<usize> {
        // Knuth's multiplicative hash: 2^32 divided by the golden ratio.
        let slot = &mut self.table[(value.wrapping_mul(0x9e37_79b1) >> (32 - BITS)) as usize];
        let last = std::mem::replace(slot, self.base + at as u32);
        last.checked_sub(self.base).map(|position| position as usize)
    }

    pub fn memory_bytes(&self) -> usize {
        std::mem::size_of_val(&*self.table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_are_those_of_a_byte_by_byte_copy() {
        for distance in 1..40 {
            for len in 0..70 {
                for room in [0, 5, 30] {
                    let start: Vec<u8> = (0..40).collect();
                    let mut expected = start.clone();
                    for _ in 0..len {
                        expected.push(expected[expected.len() - distance]);
                    }
                    let mut dst = start.clone();
                    dst.resize(40 + len + room, 0xee);
                    let mut out = Output { dst: &mut dst, at: 40 };
                    out.repeat(distance, len).unwrap();
                    assert_eq!(out.at, 40 + len);
                    assert_eq!(dst[..40 + len], expected, "{distance} {len}");
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_or_is_not_there_is_refused() {
        let mut dst = [0u8; 8];
        let mut out = Output::new(&mut dst);
        assert!(out.repeat(1, 1).is_none());
        out.extend(b"abcd").unwrap();
        for (distance, len) in [(5, 1), (0, 1), (1, 5), (1, usize::MAX)] {
            assert!(out.repeat(distance, len).is_none(), "{distance} {len}");
        }
        assert!(out.literals(b"xy", 1, 2).is_none());
        assert!(out.literals(b"xy", 3, 1).is_none());
        assert!(out.literals(b"xyxyx", 0, 5).is_none());
        assert!(out.literals(b"xy", usize::MAX, usize::MAX).is_none());
        assert_eq!(out.at, 4);
        out.literals(b"wxyz", 0, 4).unwrap();
        assert!(out.push(1).is_none());
        assert_eq!(&dst, b"abcdwxyz");
    }

    #[test]
    fn positions_of_earlier_inputs_are_forgotten_also_when_the_count_wraps() {
        let mut seen = LastSeen::<4>::new();
        seen.begin(10);
        assert_eq!(seen.replace(7, 3), None);
        assert_eq!(seen.replace(7, 5), Some(3));
        seen.begin(10);
        assert_eq!(seen.replace(7, 0), None);
        seen.next = u32::MAX - 5;
        seen.begin(10);
        assert_eq!(seen.base, 1);
        assert_eq!(seen.replace(7, 2), None);
        assert_eq!(seen.replace(7, 9), Some(2));
    }
}
