//! Bounds-checked reading and plain writing of little-endian fields. Public, because the records
//! and nodes of the blob crate use it too.

/// Bytes that do not decode: the structure that was being read, and its fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormatError {
    /// The structure.
    pub structure: &'static str,
    /// The value found and the value expected.
    pub detail: String,
    /// The bytes are whole, and of a format that this program does not know.
    pub is_newer: bool,
}

impl FormatError {
    /// Names the structure and its fault.
    pub fn new(structure: &'static str, detail: impl Into<String>) -> Self {
        Self { structure, detail: detail.into(), is_newer: false }
    }

    /// Names a structure that a newer program wrote: its checksum matches.
    pub fn newer(structure: &'static str, detail: impl Into<String>) -> Self {
        Self { is_newer: true, ..Self::new(structure, detail) }
    }
}

impl std::fmt::Display for FormatError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.structure, self.detail)
    }
}

impl std::error::Error for FormatError {}

/// Reads fields one after another and fails at the end instead of past it.
#[derive(Debug)]
pub struct Cursor<'a> {
    structure: &'static str,
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    /// Begins at the first byte of `bytes`; errors name `structure`.
    pub const fn new(structure: &'static str, bytes: &'a [u8]) -> Self {
        Self { structure, rest: bytes }
    }
    /// Makes an error that names the structure.
    pub fn fail(&self, detail: impl Into<String>) -> FormatError {
        FormatError::new(self.structure, detail)
    }
    /// Returns how many bytes are left.
    pub const fn remaining(&self) -> usize {
        self.rest.len()
    }
    /// Takes the next `len` bytes.
    ///
    /// # Errors
    /// When fewer are left.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], FormatError> {
        let Some((head, rest)) = self.rest.split_at_checked(len) else {
            return Err(self.fail(format!("{len} bytes expected, {} left", self.rest.len())));
        };
        self.rest = rest;
        Ok(head)
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N)?);
        Ok(array)
    }
    /// Takes an unsigned integer of `width` bytes, at most 8.
    ///
    /// # Errors
    /// When fewer bytes are left.
    pub fn uint(&mut self, width: usize) -> Result<u64, FormatError> {
        let mut wide = [0; 8];
        wide[..width].copy_from_slice(self.bytes(width)?);
        Ok(u64::from_le_bytes(wide))
    }
    /// Takes an unsigned integer of 8 bits.
    ///
    /// # Errors
    /// When fewer bytes are left.
    pub fn u8(&mut self) -> Result<u8, FormatError> {
        Ok(self.array::<1>()?[0])
    }
    /// Takes an unsigned integer of 16 bits.
    ///
    /// # Errors
    /// When fewer bytes are left.
    pub fn u16(&mut self) -> Result<u16, FormatError> {
        Ok(u16::from_le_bytes(self.array()?))
    }
    /// Takes an unsigned integer of 32 bits.
    ///
    /// # Errors
    /// When fewer bytes are left.
    pub fn u32(&mut self) -> Result<u32, FormatError> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    /// Takes an unsigned integer of 64 bits.
    ///
    /// # Errors
    /// When fewer bytes are left.
    pub fn u64(&mut self) -> Result<u64, FormatError> {
        Ok(u64::from_le_bytes(self.array()?))
    }
    /// Reads a string preceded by its 16-bit length.
    ///
    /// # Errors
    /// When fewer bytes are left, or they are not UTF-8.
    pub fn text(&mut self) -> Result<String, FormatError> {
        let len = usize::from(self.u16()?);
        let bytes = self.bytes(len)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| self.fail("text is not UTF-8"))
    }
    /// Returns the bytes not read yet.
    pub const fn rest(&self) -> &[u8] {
        self.rest
    }

    /// Fails unless everything was read.
    ///
    /// # Errors
    /// When bytes are left.
    pub fn end(&self) -> Result<(), FormatError> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.fail(format!("{} bytes too many", self.rest.len()))) }
    }
}

/// Asserts that the bytes are refused with any single bit flipped.
#[cfg(test)]
pub(crate) fn expect_every_bit_to_count(bytes: &[u8], is_refused: impl Fn(&[u8]) -> bool) {
    let mut bytes = bytes.to_vec();
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(is_refused(&bytes), "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

/// Appends the low `width` bytes of `value`.
pub fn put_uint(out: &mut Vec<u8>, value: u64, width: usize) {
    debug_assert!(width == 8 || value >> (8 * width) == 0, "{value} does not fit {width} bytes");
    out.extend_from_slice(&value.to_le_bytes()[..width]);
}

/// Appends a string preceded by its 16-bit length. Callers bound the length; a longer string would
/// be truncated.
pub fn put_text(out: &mut Vec<u8>, text: &str) {
    let len = text.len().min(usize::from(u16::MAX));
    put_uint(out, len as u64, 2);
    out.extend_from_slice(&text.as_bytes()[..len]);
}

/// Appends the crc32c of everything in `out` so far.
pub fn seal(out: &mut Vec<u8>) {
    let crc = crate::crc::crc32c(out);
    out.extend_from_slice(&crc.to_le_bytes());
}

/// Returns the bytes before a trailing crc32c, if it matches.
///
/// # Errors
/// When it does not match, or there are too few bytes for it.
pub fn unseal<'a>(structure: &'static str, bytes: &'a [u8]) -> Result<&'a [u8], FormatError> {
    let Some((body, crc)) = bytes.split_last_chunk::<4>() else {
        return Err(FormatError::new(structure, format!("{} bytes are too few", bytes.len())));
    };
    let (found, expected) = (u32::from_le_bytes(*crc), crate::crc::crc32c(body));
    if found != expected {
        return Err(FormatError::new(structure, format!("checksum {found:#010x}, expected {expected:#010x}")));
    }
    Ok(body)
}
