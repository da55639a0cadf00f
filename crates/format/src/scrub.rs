//! Progress and findings of a scrub, stored in the map store so that they survive a restart.

use units::ExtentIndex;

use crate::FormatError;
use crate::cursor::{Cursor, put_text, put_uint, seal, unseal};

/// Something that scrubbing found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScrubDamage {
    /// Affected volume; empty if none is.
    pub volume: String,
    /// Byte offset in the volume.
    pub offset: u64,
    /// The damage found.
    pub detail: String,
    /// The extent that holds it.
    pub extent: ExtentIndex,
    /// Whether the administrator has acknowledged it.
    pub is_acknowledged: bool,
}

/// The state of scrubbing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScrubState {
    /// When it began, in seconds since 1970.
    pub started_unix_s: u64,
    /// The extent that is next; the number of extents when all are done.
    pub next: ExtentIndex,
    /// Fragments verified, and their bytes.
    pub fragments: u64,
    /// See `fragments`.
    pub bytes: u64,
    /// Damages found.
    pub found: u64,
    /// Known damage: for each extent, the findings of its most recent check, in this scrub or
    /// before.
    pub damages: Vec<ScrubDamage>,
    /// When it ended, in seconds since 1970; 0: it is still running.
    pub finished_unix_s: u64,
    /// Damage that is not listed, because the list is full, as of the last scrub that ended.
    pub unlisted: u64,
    /// The same for this one, so far.
    pub unlisted_so_far: u64,
    /// Damaged fragments that were repaired from another copy since it began.
    pub repaired: u64,
}

impl ScrubState {
    /// Encodes: started 8, next extent 4, fragments 8, bytes 8, found 8, number of damages 2, each
    /// as volume (2 + bytes), offset 8, detail (2 + bytes); finished 8, unlisted 8, unlisted so far
    /// 8, and of each damage its extent 4, acknowledged 1; repaired 8; crc32c 4.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_uint(&mut out, self.started_unix_s, 8);
        put_uint(&mut out, self.next.0.into(), 4);
        put_uint(&mut out, self.fragments, 8);
        put_uint(&mut out, self.bytes, 8);
        put_uint(&mut out, self.found, 8);
        put_uint(&mut out, self.damages.len() as u64, 2);
        for damage in &self.damages {
            put_text(&mut out, &damage.volume);
            put_uint(&mut out, damage.offset, 8);
            put_text(&mut out, &damage.detail);
        }
        put_uint(&mut out, self.finished_unix_s, 8);
        put_uint(&mut out, self.unlisted, 8);
        put_uint(&mut out, self.unlisted_so_far, 8);
        for damage in &self.damages {
            put_uint(&mut out, damage.extent.0.into(), 4);
            put_uint(&mut out, damage.is_acknowledged.into(), 1);
        }
        put_uint(&mut out, self.repaired, 8);
        seal(&mut out);
        out
    }

    /// Decodes and checks.
    ///
    /// # Errors
    /// When the checksum or a length is invalid.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new("scrub state", unseal("scrub state", bytes)?);
        let mut state = Self {
            started_unix_s: cursor.u64()?,
            next: ExtentIndex(cursor.u32()?),
            fragments: cursor.u64()?,
            bytes: cursor.u64()?,
            found: cursor.u64()?,
            ..Self::default()
        };
        for _ in 0..cursor.u16()? {
            let (volume, offset, detail) = (cursor.text()?, cursor.u64()?, cursor.text()?);
            state.damages.push(ScrubDamage { volume, offset, detail, ..ScrubDamage::default() });
        }
        state.finished_unix_s = cursor.u64()?;
        (state.unlisted, state.unlisted_so_far) = (cursor.u64()?, cursor.u64()?);
        for damage in &mut state.damages {
            (damage.extent, damage.is_acknowledged) = (ExtentIndex(cursor.u32()?), cursor.u8()? != 0);
        }
        state.repaired = cursor.u64()?;
        cursor.end()?;
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_and_cuts_are_noticed() {
        let damage = ScrubDamage {
            volume: "v".into(),
            offset: 4096,
            detail: "what".into(),
            extent: ExtentIndex(5),
            is_acknowledged: true,
        };
        let state = ScrubState {
            started_unix_s: 1,
            next: ExtentIndex(7),
            fragments: 3,
            bytes: 4,
            found: 2,
            damages: vec![damage.clone(), damage],
            finished_unix_s: 5,
            unlisted: 6,
            unlisted_so_far: 7,
            repaired: 8,
        };
        let bytes = state.encode();
        assert_eq!(ScrubState::decode(&bytes).unwrap(), state);
        for len in 0..bytes.len() {
            assert!(ScrubState::decode(&bytes[..len]).is_err());
        }
    }
}
