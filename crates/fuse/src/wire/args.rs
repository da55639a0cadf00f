//! A reader for the arguments of a request. Plain value; no I/O.
//!
//! `/dev/fuse` delivers the arguments as one piece. A ring delivers the fixed structure in the
//! header and the rest as the payload. The reader consumes the first piece, then the second.

use super::request::Malformed;
use super::{u32_at, u64_at};

/// The arguments that have not been read yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Args<'a> {
    now: &'a [u8],
    later: &'a [u8],
}

impl<'a> Args<'a> {
    pub(super) fn new(first: &'a [u8], rest: &'a [u8]) -> Self {
        if first.is_empty() { Self { now: rest, later: &[] } } else { Self { now: first, later: rest } }
    }

    /// Reads a structure of this many bytes.
    pub(super) fn fixed(&mut self, bytes: usize) -> Result<Fixed<'a>, Malformed> {
        let (taken, left) = self.now.split_at_checked(bytes).ok_or(Malformed)?;
        *self = Self::new(left, self.later);
        Ok(Fixed(taken))
    }

    /// Reads a name up to its terminating NUL, which is not included.
    pub(super) fn name(&mut self) -> Result<&'a [u8], Malformed> {
        let end = self.now.iter().position(|&byte| byte == 0).ok_or(Malformed)?;
        let name = &self.now[..end];
        *self = Self::new(&self.now[end + 1..], self.later);
        Ok(name)
    }

    /// Reads this many bytes of data.
    pub(super) fn data(&mut self, bytes: usize) -> Result<&'a [u8], Malformed> {
        self.fixed(bytes).map(|fixed| fixed.0)
    }

    /// Removes the extensions from the end of the last piece.
    pub(super) fn take_extensions(&mut self, bytes: usize) -> Result<&'a [u8], Malformed> {
        let last = if self.later.is_empty() { &mut self.now } else { &mut self.later };
        let at = last.len().checked_sub(bytes).ok_or(Malformed)?;
        let (kept, taken) = last.split_at(at);
        *last = kept;
        Ok(taken)
    }
}

/// A structure of the protocol, read by the offsets of its fields.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fixed<'a>(&'a [u8]);

impl Fixed<'_> {
    pub(super) fn u32(&self, at: usize) -> u32 {
        u32_at(self.0, at)
    }

    pub(super) fn i32(&self, at: usize) -> i32 {
        u32_at(self.0, at).cast_signed()
    }

    pub(super) fn u64(&self, at: usize) -> u64 {
        u64_at(self.0, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_in_which_arguments_come_read_alike() {
        let whole = b"\x01\x00\x00\x00old\0new\0";
        for (first, rest) in [(&whole[..], &b""[..]), (&whole[..4], &whole[4..])] {
            let mut args = Args::new(first, rest);
            assert_eq!(args.fixed(4).unwrap().u32(0), u32::from_ne_bytes([1, 0, 0, 0]));
            assert_eq!((args.name().unwrap(), args.name().unwrap()), (&b"old"[..], &b"new"[..]));
            assert!(args.name().is_err());
        }
    }

    #[test]
    fn nothing_is_read_behind_the_end() {
        assert!(Args::new(b"abc", b"").fixed(4).is_err());
        // A structure never crosses the boundary between the pieces.
        assert!(Args::new(b"ab", b"cd").fixed(4).is_err());
        assert!(Args::new(b"no end", b"").name().is_err());
        assert!(Args::new(b"", b"abc").take_extensions(4).is_err());
        assert_eq!(Args::new(b"", b"abc").data(3).unwrap(), b"abc");
    }

    #[test]
    fn extensions_leave_the_rest() {
        let mut args = Args::new(b"fix", b"name\0extended");
        assert_eq!(args.take_extensions(8).unwrap(), b"extended");
        args.fixed(3).unwrap();
        assert_eq!(args.name().unwrap(), b"name");
        assert!(args.data(1).is_err());
    }
}
