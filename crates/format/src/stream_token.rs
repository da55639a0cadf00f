//! The token by which a receiver resumes a stream: the snapshot, its base, the next group, and
//! whether the stream is relative to an image.

use units::GroupIndex;

use crate::cursor::{Cursor, put_uint, seal, unseal};
use crate::receive::{put_optional_identity, read_identity, read_optional_identity};
use crate::{FormatError, SnapshotIdentity};

/// A decoded token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResumeToken {
    /// The snapshot that is sent.
    pub to: SnapshotIdentity,
    /// The snapshot that the receiver has; none for a full stream.
    pub from: Option<SnapshotIdentity>,
    /// The first group that the receiver has not got.
    pub next: GroupIndex,
    /// Whether the received part is relative to the image that the snapshot falls through to.
    pub is_thin: bool,
}

/// Prefixes of tokens: of a full or incremental stream, and of one relative to an image.
const PREFIX: &str = "shale1-";
const PREFIX_THIN: &str = "shale2-";

impl std::fmt::Display for ResumeToken {
    /// `shale1-` or `shale2-` and hexadecimal digits: to 16, whether there is a parent 1, from 16,
    /// next group 8, crc32c 4.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut bytes = self.to.0.to_vec();
        put_optional_identity(&mut bytes, self.from.as_ref());
        put_uint(&mut bytes, self.next.0, 8);
        seal(&mut bytes);
        f.write_str(if self.is_thin { PREFIX_THIN } else { PREFIX })?;
        bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::str::FromStr for ResumeToken {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        let wrong = |what: &str| FormatError::new("resume token", what);
        let (text, is_thin) = (text.trim(), text.trim().starts_with(PREFIX_THIN));
        let digits = text.strip_prefix(if is_thin { PREFIX_THIN } else { PREFIX });
        let digits = digits.ok_or_else(|| wrong("it begins neither with shale1- nor with shale2-"))?;
        if !digits.len().is_multiple_of(2) || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(wrong("it is not hexadecimal, or cut off"));
        }
        let digit = |byte: u8| (byte as char).to_digit(16).unwrap_or(0) as u8;
        let bytes: Vec<u8> = digits.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect();
        let mut cursor = Cursor::new("resume token", unseal("resume token", &bytes)?);
        let to = read_identity(&mut cursor)?;
        let from = read_optional_identity(&mut cursor)?;
        let next = GroupIndex(cursor.u64()?);
        cursor.end()?;
        if is_thin && from.is_some() {
            return Err(wrong("it is relative to both an image and a snapshot"));
        }
        Ok(Self { to, from, next, is_thin })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_round_trip_and_notice_typing_errors() {
        for (from, is_thin) in [(None, false), (Some(SnapshotIdentity([3; 16])), false), (None, true)] {
            let token = ResumeToken { to: SnapshotIdentity([0xab; 16]), from, next: GroupIndex(1 << 33), is_thin };
            let text = token.to_string();
            assert_eq!(text.parse::<ResumeToken>().unwrap(), token);
            assert_eq!(format!(" {text}\n").parse::<ResumeToken>().unwrap(), token);
            for at in PREFIX.len()..text.len() {
                let mut wrong = text.clone().into_bytes();
                wrong[at] = if wrong[at] == b'0' { b'1' } else { b'0' };
                assert!(String::from_utf8(wrong).unwrap().parse::<ResumeToken>().is_err(), "digit {at}");
                assert!(text[..at].parse::<ResumeToken>().is_err());
            }
        }
        assert!("shale2-00".parse::<ResumeToken>().is_err());
        assert!("shale3-00".parse::<ResumeToken>().is_err());
        let both = ResumeToken {
            to: SnapshotIdentity([1; 16]),
            from: Some(SnapshotIdentity([2; 16])),
            next: GroupIndex(0),
            is_thin: true,
        };
        assert!(both.to_string().parse::<ResumeToken>().is_err());
        assert!("shale1-ä".parse::<ResumeToken>().is_err());
    }
}
