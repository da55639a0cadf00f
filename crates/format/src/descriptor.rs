//! The descriptor of an object: a volume now, a file of a share later.

use std::collections::BTreeMap;

use units::{Epoch, ObjectId};

use crate::FormatError;
use crate::cursor::{Cursor, put_text, put_uint, seal, unseal};

/// What state an object is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectState {
    /// A volume that can be used.
    Volume,
    /// Destroyed; its records are being removed by checkpoint after checkpoint.
    Deleting,
}

/// Where an object falls through to where it has nothing of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// Object.
    pub object: ObjectId,
    /// Newest epoch of it that is seen.
    pub epoch: Epoch,
}

/// An object's descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectDescriptor {
    /// Identifier.
    pub id: ObjectId,
    /// State.
    pub state: ObjectState,
    /// Name, unique among the pool's volumes.
    pub name: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Epoch in force.
    pub epoch: Epoch,
    /// Origin of a clone.
    pub origin: Option<Origin>,
    /// Seconds since 1970.
    pub created_unix_s: u64,
    /// Blocks that hold data, as of the checkpoint that wrote this.
    pub allocated_blocks: u64,
    /// Bytes of live payload, as of the checkpoint that wrote this.
    pub stored_bytes: u64,
    /// Properties set on the object itself.
    pub properties: BTreeMap<String, String>,
}

const STATE_VOLUME: u8 = 1;
const STATE_DELETING: u8 = 2;

/// Longest name of an object, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 255;

impl ObjectDescriptor {
    /// Encodes: id 8, state 1, name, size 8, epoch 4, has-origin 1, origin object 8, origin epoch 4, created 8,
    /// allocated blocks 8, stored bytes 8, properties, crc32c 4.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        put_uint(&mut out, self.id.0, 8);
        out.push(match self.state {
            ObjectState::Volume => STATE_VOLUME,
            ObjectState::Deleting => STATE_DELETING,
        });
        put_text(&mut out, &self.name);
        put_uint(&mut out, self.size_bytes, 8);
        put_uint(&mut out, self.epoch.0.into(), 4);
        out.push(self.origin.is_some().into());
        let origin = self.origin.unwrap_or(Origin { object: ObjectId(0), epoch: Epoch(0) });
        put_uint(&mut out, origin.object.0, 8);
        put_uint(&mut out, origin.epoch.0.into(), 4);
        put_uint(&mut out, self.created_unix_s, 8);
        put_uint(&mut out, self.allocated_blocks, 8);
        put_uint(&mut out, self.stored_bytes, 8);
        put_properties(&mut out, &self.properties);
        seal(&mut out);
        out
    }

    /// Decodes and checks.
    ///
    /// # Errors
    /// When the checksum, the state, the name's or the object's size does not hold.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new("object descriptor", unseal("object descriptor", bytes)?);
        let id = ObjectId(cursor.u64()?);
        let state = match cursor.u8()? {
            STATE_VOLUME => ObjectState::Volume,
            STATE_DELETING => ObjectState::Deleting,
            other => return Err(cursor.fail(format!("unknown state {other}"))),
        };
        let name = cursor.text()?;
        let size_bytes = cursor.u64()?;
        let epoch = Epoch(cursor.u32()?);
        let has_origin = cursor.u8()? != 0;
        let origin = Origin { object: ObjectId(cursor.u64()?), epoch: Epoch(cursor.u32()?) };
        let descriptor = Self {
            id,
            state,
            name,
            size_bytes,
            epoch,
            origin: has_origin.then_some(origin),
            created_unix_s: cursor.u64()?,
            allocated_blocks: cursor.u64()?,
            stored_bytes: cursor.u64()?,
            properties: read_properties(&mut cursor)?,
        };
        cursor.end()?;
        if descriptor.name.is_empty() || descriptor.name.len() > NAME_BYTES_MAX {
            return Err(cursor.fail(format!("name of {} bytes", descriptor.name.len())));
        }
        if size_bytes > units::OBJECT_BYTES_MAX {
            return Err(cursor.fail(format!("size of {size_bytes} bytes")));
        }
        Ok(descriptor)
    }
}

/// Appends a number of properties (2), then each key and value.
pub(crate) fn put_properties(out: &mut Vec<u8>, properties: &BTreeMap<String, String>) {
    put_uint(out, properties.len() as u64 & 0xffff, 2);
    for (key, value) in properties {
        put_text(out, key);
        put_text(out, value);
    }
}

/// Inverse of [`put_properties`].
pub(crate) fn read_properties(cursor: &mut Cursor<'_>) -> Result<BTreeMap<String, String>, FormatError> {
    let count = cursor.u16()?;
    let mut properties = BTreeMap::new();
    for _ in 0..count {
        let key = cursor.text()?;
        let value = cursor.text()?;
        if properties.insert(key, value).is_some() {
            return Err(cursor.fail("a property is set twice"));
        }
    }
    Ok(properties)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_and_notices_damage() {
        let descriptor = ObjectDescriptor {
            id: ObjectId(7),
            state: ObjectState::Volume,
            name: "db".into(),
            size_bytes: 10 << 30,
            epoch: Epoch(3),
            origin: Some(Origin { object: ObjectId(2), epoch: Epoch(1) }),
            created_unix_s: 1_790_000_000,
            allocated_blocks: 12,
            stored_bytes: 999,
            properties: [("compression".to_owned(), "zstd-3".to_owned())].into(),
        };
        let mut bytes = descriptor.encode();
        assert_eq!(ObjectDescriptor::decode(&bytes).unwrap(), descriptor);
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(ObjectDescriptor::decode(&bytes).is_err());
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
