//! Identity of a snapshot across pools, and the progress of one that is being received.

use units::GroupIndex;

use crate::FormatError;
use crate::cursor::{Cursor, put_uint};

/// A random number that a snapshot gets when it is taken and takes along in streams: snapshots of
/// any pools that have the same one hold the same bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotIdentity(pub [u8; 16]);

impl std::fmt::Display for SnapshotIdentity {
    /// As hexadecimal digits.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

pub(crate) fn read_identity(cursor: &mut Cursor<'_>) -> Result<SnapshotIdentity, FormatError> {
    let mut identity = [0; 16];
    identity.copy_from_slice(cursor.bytes(16)?);
    Ok(SnapshotIdentity(identity))
}

/// Appends a byte that marks whether there is an identity, and the identity or zeroes.
pub(crate) fn put_optional_identity(out: &mut Vec<u8>, identity: Option<&SnapshotIdentity>) {
    out.push(identity.is_some().into());
    out.extend_from_slice(&identity.map_or([0; 16], |identity| identity.0));
}

/// Inverse of [`put_optional_identity`].
pub(crate) fn read_optional_identity(cursor: &mut Cursor<'_>) -> Result<Option<SnapshotIdentity>, FormatError> {
    let is_there = cursor.u8()?;
    let identity = read_identity(cursor)?;
    match (is_there, identity) {
        (1, identity) => Ok(Some(identity)),
        (0, SnapshotIdentity([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])) => Ok(None),
        (other, _) => Err(cursor.fail(format!("invalid identity marker {other}"))),
    }
}

/// Progress of a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiveState {
    /// The snapshot on which the stream is based; none for a full stream.
    pub from: Option<SnapshotIdentity>,
    /// All groups before this one have been received.
    pub next: GroupIndex,
    /// Bytes of payload received.
    pub payload_bytes: u64,
    /// Bytes of payload that the sender expected to send in all; an estimate.
    pub expected_bytes: u64,
}

impl ReceiveState {
    /// Appends: whether there is a parent 1, its identity 16, next group 8, payload bytes 8,
    /// expected bytes 8.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        put_optional_identity(out, self.from.as_ref());
        put_uint(out, self.next.0, 8);
        put_uint(out, self.payload_bytes, 8);
        put_uint(out, self.expected_bytes, 8);
    }

    /// Inverse of [`put`](Self::put).
    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<Self, FormatError> {
        Ok(Self {
            from: read_optional_identity(cursor)?,
            next: GroupIndex(cursor.u64()?),
            payload_bytes: cursor.u64()?,
            expected_bytes: cursor.u64()?,
        })
    }
}
