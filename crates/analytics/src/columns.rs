//! Columns of numbers as bytes: varints, zigzag differences, runs of zeros. Pure.
//!
//! A column is a sequence of tokens: a varint that is not 0 is a value; a 0 is followed by a varint
//! `n` and stands for `n + 1` zeros. A column of differences has the zigzag code of the difference
//! of each value to the one before it, and to 0 at the start.

use crate::encoding::DecodeError;

pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads bytes from their start.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or(DecodeError("it ends too early"))?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DecodeError("a number has more than 64 bits"))
    }

    /// A varint of at most `max`.
    pub(crate) fn count(&mut self, max: usize) -> Result<usize, DecodeError> {
        let value = usize::try_from(self.varint()?).unwrap_or(usize::MAX);
        if value <= max { Ok(value) } else { Err(DecodeError("a count exceeds its bound")) }
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(DecodeError("it ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }
}

/// Appends a column of `values` as they are.
pub(crate) fn put_plain(out: &mut Vec<u8>, values: impl Iterator<Item = u64>) {
    let mut zeros = 0u64;
    for value in values {
        if value == 0 {
            zeros += 1;
            continue;
        }
        flush_zeros(out, &mut zeros);
        put_varint(out, value);
    }
    flush_zeros(out, &mut zeros);
}

fn flush_zeros(out: &mut Vec<u8>, zeros: &mut u64) {
    if *zeros > 0 {
        out.push(0);
        put_varint(out, *zeros - 1);
        *zeros = 0;
    }
}

/// Appends a column of differences.
pub(crate) fn put_differences(out: &mut Vec<u8>, values: impl Iterator<Item = u64>) {
    let mut before = 0u64;
    put_plain(
        out,
        values.map(|value| {
            let difference = value.wrapping_sub(before) as i64;
            before = value;
            ((difference << 1) ^ (difference >> 63)) as u64
        }),
    );
}

/// Reads a plain column of `count` values.
pub(crate) fn plain(reader: &mut Reader<'_>, count: usize) -> Result<Vec<u64>, DecodeError> {
    let mut values = Vec::with_capacity(count);
    while values.len() < count {
        match reader.varint()? {
            0 => {
                let zeros = reader.count(count - values.len() - 1)? + 1;
                values.resize(values.len() + zeros, 0);
            }
            value => values.push(value),
        }
    }
    Ok(values)
}

/// Reads a column of `count` differences.
pub(crate) fn differences(reader: &mut Reader<'_>, count: usize) -> Result<Vec<u64>, DecodeError> {
    let mut values = plain(reader, count)?;
    let mut before = 0u64;
    for value in &mut values {
        let difference = (*value >> 1) as i64 ^ -((*value & 1) as i64);
        before = before.wrapping_add(difference as u64);
        *value = before;
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_come_back_as_they_were() {
        let columns: [&[u64]; 6] =
            [&[], &[0], &[0, 0, 0], &[u64::MAX, 0, u64::MAX, 1], &[5, 5, 5, 0, 0, 7], &[1 << 63, 1, 127, 128]];
        for values in columns {
            let (mut first, mut second) = (Vec::new(), Vec::new());
            put_plain(&mut first, values.iter().copied());
            put_differences(&mut second, values.iter().copied());
            let mut reader = Reader(&first);
            assert_eq!(plain(&mut reader, values.len()).unwrap(), values);
            assert!(reader.0.is_empty());
            let mut reader = Reader(&second);
            assert_eq!(differences(&mut reader, values.len()).unwrap(), values);
            assert!(reader.0.is_empty());
        }
        let mut constant = Vec::new();
        put_differences(&mut constant, [1000; 60].into_iter());
        assert_eq!(constant.len(), 4, "a level that stays costs one value and one run");
    }

    #[test]
    fn nonsense_is_an_error() {
        for bytes in [&[][..], &[0x80], &[0xff; 11], &[0, 9], &[0, 0xff]] {
            assert!(plain(&mut Reader(bytes), 3).is_err(), "{bytes:?}");
        }
    }
}
