//! The descriptor of an object: a volume, a share, which differs from a volume only in its size, or
//! a snapshot of one.
//!
//! An object is a timeline: its records carry epochs 0 to the current one. A snapshot has no
//! records of its own, only an origin: an epoch of a timeline. A clone is a volume with an origin;
//! so the three differ only in their state.

use std::collections::BTreeMap;

use units::{Epoch, GroupIndex, ObjectId, SHARE_BYTES};

use crate::FormatError;
use crate::cursor::{Cursor, put_text, put_uint, seal, unseal};
use crate::cuts::{CUTS_MAX, Cut, UNDONE_MAX, Undone, put_cut, read_cut, read_cuts};
use crate::image::ImagePart;
use crate::receive::{ReceiveState, SnapshotIdentity, read_identity};

/// State of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectState {
    /// A volume that can be used.
    Volume,
    /// Destroyed. Checkpoints gradually remove the records that no other object sees. The others
    /// stay as long as they are the origin of an object.
    Deleting,
    /// A point in time of a volume: read only, without records of its own.
    Snapshot,
    /// A snapshot that a stream has delivered in part: no client reads it. It becomes a snapshot
    /// when complete.
    Partial,
    /// A volume that a stream brings: hidden until its first snapshot is whole.
    Incoming,
    /// A point in time of a volume without its data: only its identity across pools and its
    /// position in the volume's history remain. Its origin may no longer exist.
    Bookmark,
    /// A trained dictionary of its parent, with the same lifetime; its content is produced by
    /// [`crate::encode_dictionary`].
    Dictionary,
    /// A folder: no data, only properties. Contains volumes, shares and other folders.
    Folder,
}

impl ObjectState {
    /// Whether an object in this state can have records: snapshots only refer to those of others,
    /// bookmarks to none, and folders have no data.
    pub const fn has_records(self) -> bool {
        !matches!(self, Self::Snapshot | Self::Partial | Self::Bookmark | Self::Folder)
    }
}

/// Where reads go for blocks that the object does not have itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// Object.
    pub object: ObjectId,
    /// Newest visible epoch of it.
    pub epoch: Epoch,
}

/// Numbers used up by a share. They belong to the share and not to a state of its tree: a rollback,
/// or receiving an incremental stream, leaves them unchanged or raises them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TreeNumbers {
    /// The tree may have handed out all file numbers below this one.
    pub reserved: u64,
    /// How often another state of the tree has replaced the one before.
    pub generation: u32,
}

/// The object has lost a point: all its groups must be visited once, cyclically, to find records
/// that no point needs any more. Holds the progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reap {
    /// The next group.
    pub next: GroupIndex,
    /// The group at which the circle began.
    pub stop: GroupIndex,
    /// Whether the end has been passed: then `stop` is where it ends.
    pub wrapped: bool,
}

impl Reap {
    /// A circle that begins at group `next`.
    pub const fn from(next: GroupIndex) -> Self {
        Self { next, stop: next, wrapped: false }
    }
}

/// An object's descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectDescriptor {
    /// Identifier.
    pub id: ObjectId,
    /// State.
    pub state: ObjectState,
    /// Name, unique among the volumes and folders of its folder; of a snapshot, unique among those
    /// of its parent.
    pub name: String,
    /// Size in bytes; for a share the size of its address space, [`SHARE_BYTES`].
    pub size_bytes: u64,
    /// Current epoch.
    pub epoch: Epoch,
    /// Origin of a clone or a snapshot.
    pub origin: Option<Origin>,
    /// The folder or share that contains a volume or a folder; the volume that lists a snapshot;
    /// the object whose fragments may need a dictionary.
    pub parent: Option<ObjectId>,
    /// A snapshot that was made by a schedule, which may also remove it.
    pub scheduled: bool,
    /// Cuts made by rollbacks, ordered by `before`.
    pub cuts: Vec<Cut>,
    /// Cuts without a point within.
    pub undone: Undone,
    /// Pending work on the object's records. Meaningless in a batch.
    pub reap: Option<Reap>,
    /// Seconds since 1970.
    pub created_unix_s: u64,
    /// Blocks that hold data, as of the checkpoint that wrote this.
    pub allocated_blocks: u64,
    /// Bytes of live payload, as of the checkpoint that wrote this.
    pub stored_bytes: u64,
    /// Properties set on the object itself.
    pub properties: BTreeMap<String, String>,
    /// Identity of a snapshot across pools; none for other objects.
    pub identity: Option<SnapshotIdentity>,
    /// Progress of a snapshot that is being received.
    pub receive: Option<Box<ReceiveState>>,
    /// Numbers of a share that do not belong to any one state of its tree; 0 in other objects.
    pub numbers: TreeNumbers,
    /// The image whose fetched groups this object holds. Such an object is not visible to users, so
    /// its state is `Deleting`; its clones keep it alive. Where it has no record, the content is
    /// unknown.
    pub image: Option<Box<ImagePart>>,
}

const STATE_VOLUME: u8 = 1;
const STATE_DELETING: u8 = 2;
const STATE_SNAPSHOT: u8 = 3;
const STATE_PARTIAL: u8 = 4;
const STATE_INCOMING: u8 = 5;
const STATE_DICTIONARY: u8 = 6;
const STATE_BOOKMARK: u8 = 7;
const STATE_FOLDER: u8 = 8;

const FLAG_ORIGIN: u8 = 1;
const FLAG_SCHEDULED: u8 = 2;
const FLAG_REAP: u8 = 4;
const FLAG_WRAPPED: u8 = 8;
const FLAG_IDENTITY: u8 = 16;
const FLAG_RECEIVE: u8 = 32;
const FLAG_FORGOTTEN: u8 = 64;
const FLAG_IMAGE: u8 = 128;

/// Size of a folder; without meaning.
const FOLDER_BYTES: u64 = 1;

/// Longest name of an object, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 255;

impl ObjectDescriptor {
    /// A volume that is new, empty and all its own.
    pub fn volume(id: ObjectId, name: impl Into<String>, size_bytes: u64) -> Self {
        Self {
            id,
            state: ObjectState::Volume,
            name: name.into(),
            size_bytes,
            epoch: Epoch(0),
            origin: None,
            parent: None,
            scheduled: false,
            cuts: Vec::new(),
            undone: Undone::default(),
            reap: None,
            created_unix_s: 0,
            allocated_blocks: 0,
            stored_bytes: 0,
            properties: BTreeMap::new(),
            identity: None,
            receive: None,
            numbers: TreeNumbers::default(),
            image: None,
        }
    }

    /// Creates a folder within another, or at the top level.
    pub fn folder(id: ObjectId, name: impl Into<String>, parent: Option<ObjectId>) -> Self {
        Self { state: ObjectState::Folder, parent, ..Self::volume(id, name, FOLDER_BYTES) }
    }

    /// Whether it is a share, or a snapshot of one, as its size shows.
    pub const fn is_share(&self) -> bool {
        self.size_bytes == SHARE_BYTES
    }

    /// The numbers that it has when its tree gets another state. A volume has neither.
    pub const fn numbers_of_next_state(&self) -> TreeNumbers {
        let TreeNumbers { reserved, generation } = self.numbers;
        let generation = if self.is_share() { generation.wrapping_add(1) } else { generation };
        TreeNumbers { reserved, generation }
    }

    /// Whether it can contain others: a folder can contain anything, a share other shares.
    pub fn holds_others(&self) -> bool {
        self.state == ObjectState::Folder || self.state == ObjectState::Volume && self.is_share()
    }

    /// Encodes: id 8, state 1, name, size 8, epoch 4, flags 1 (has an origin, made by a schedule,
    /// reap is due, reap has wrapped, identity follows, receive state follows, cuts were forgotten,
    /// image follows), origin object 8, origin epoch 4, parent 8 (0: none), reap's next group 8 and
    /// stop 8, number of cuts 1, per cut after 4 and before 4, the same for undone cuts, created 8,
    /// allocated blocks 8, stored bytes 8, properties, then if flagged: identity 16, receive state
    /// 41, range of forgotten cuts 8, image; for a share its numbers 8 and its generation 4; crc32c
    /// 4.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(160);
        put_uint(&mut out, self.id.0, 8);
        out.push(match self.state {
            ObjectState::Volume => STATE_VOLUME,
            ObjectState::Deleting => STATE_DELETING,
            ObjectState::Snapshot => STATE_SNAPSHOT,
            ObjectState::Partial => STATE_PARTIAL,
            ObjectState::Incoming => STATE_INCOMING,
            ObjectState::Dictionary => STATE_DICTIONARY,
            ObjectState::Bookmark => STATE_BOOKMARK,
            ObjectState::Folder => STATE_FOLDER,
        });
        put_text(&mut out, &self.name);
        put_uint(&mut out, self.size_bytes, 8);
        put_uint(&mut out, self.epoch.0.into(), 4);
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        out.push(
            flag(self.origin.is_some(), FLAG_ORIGIN)
                | flag(self.scheduled, FLAG_SCHEDULED)
                | flag(self.reap.is_some(), FLAG_REAP)
                | flag(self.reap.is_some_and(|r| r.wrapped), FLAG_WRAPPED)
                | flag(self.identity.is_some(), FLAG_IDENTITY)
                | flag(self.receive.is_some(), FLAG_RECEIVE)
                | flag(self.undone.forgotten.is_some(), FLAG_FORGOTTEN)
                | flag(self.image.is_some(), FLAG_IMAGE),
        );
        let origin = self.origin.unwrap_or(Origin { object: ObjectId(0), epoch: Epoch(0) });
        put_uint(&mut out, origin.object.0, 8);
        put_uint(&mut out, origin.epoch.0.into(), 4);
        put_uint(&mut out, self.parent.map_or(0, |p| p.0), 8);
        let reap = self.reap.unwrap_or(Reap::from(GroupIndex(0)));
        put_uint(&mut out, reap.next.0, 8);
        put_uint(&mut out, reap.stop.0, 8);
        for cuts in [&self.cuts, &self.undone.cuts] {
            out.push(cuts.len() as u8);
            cuts.iter().for_each(|cut| put_cut(&mut out, cut));
        }
        put_uint(&mut out, self.created_unix_s, 8);
        put_uint(&mut out, self.allocated_blocks, 8);
        put_uint(&mut out, self.stored_bytes, 8);
        put_properties(&mut out, &self.properties);
        if let Some(identity) = &self.identity {
            out.extend_from_slice(&identity.0);
        }
        if let Some(receive) = &self.receive {
            receive.put(&mut out);
        }
        if let Some(forgotten) = &self.undone.forgotten {
            put_cut(&mut out, forgotten);
        }
        if let Some(image) = &self.image {
            image.put(&mut out);
        }
        if self.is_share() {
            put_uint(&mut out, self.numbers.reserved, 8);
            put_uint(&mut out, self.numbers.generation.into(), 4);
        }
        seal(&mut out);
        out
    }

    /// Decodes and checks.
    ///
    /// # Errors
    /// When the checksum, the state, a flag, the name's or the object's size, the origin or a cut
    /// does not hold.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new("object descriptor", unseal("object descriptor", bytes)?);
        let id = ObjectId(cursor.u64()?);
        let state = match cursor.u8()? {
            STATE_VOLUME => ObjectState::Volume,
            STATE_DELETING => ObjectState::Deleting,
            STATE_SNAPSHOT => ObjectState::Snapshot,
            STATE_PARTIAL => ObjectState::Partial,
            STATE_INCOMING => ObjectState::Incoming,
            STATE_DICTIONARY => ObjectState::Dictionary,
            STATE_BOOKMARK => ObjectState::Bookmark,
            STATE_FOLDER => ObjectState::Folder,
            other => return Err(cursor.fail(format!("unknown state {other}"))),
        };
        let name = cursor.text()?;
        let size_bytes = cursor.u64()?;
        let epoch = Epoch(cursor.u32()?);
        let flags = cursor.u8()?;
        let origin = Origin { object: ObjectId(cursor.u64()?), epoch: Epoch(cursor.u32()?) };
        let parent = ObjectId(cursor.u64()?);
        let wrapped = flags & FLAG_WRAPPED != 0;
        let reap = Reap { next: GroupIndex(cursor.u64()?), stop: GroupIndex(cursor.u64()?), wrapped };
        let mut descriptor = Self {
            id,
            state,
            name,
            size_bytes,
            epoch,
            origin: (flags & FLAG_ORIGIN != 0).then_some(origin),
            parent: (parent != ObjectId(0)).then_some(parent),
            scheduled: flags & FLAG_SCHEDULED != 0,
            reap: (flags & FLAG_REAP != 0).then_some(reap),
            cuts: read_cuts(&mut cursor, CUTS_MAX)?,
            undone: Undone { cuts: read_cuts(&mut cursor, UNDONE_MAX)?, forgotten: None },
            created_unix_s: cursor.u64()?,
            allocated_blocks: cursor.u64()?,
            stored_bytes: cursor.u64()?,
            properties: read_properties(&mut cursor)?,
            identity: if flags & FLAG_IDENTITY != 0 { Some(read_identity(&mut cursor)?) } else { None },
            receive: if flags & FLAG_RECEIVE != 0 { Some(Box::new(ReceiveState::read(&mut cursor)?)) } else { None },
            numbers: TreeNumbers::default(),
            image: None,
        };
        if flags & FLAG_FORGOTTEN != 0 {
            descriptor.undone.forgotten = Some(read_cut(&mut cursor)?);
        }
        if flags & FLAG_IMAGE != 0 {
            descriptor.image = Some(Box::new(ImagePart::read(&mut cursor)?));
        }
        if descriptor.is_share() {
            descriptor.numbers = TreeNumbers { reserved: cursor.u64()?, generation: cursor.u32()? };
        }
        cursor.end()?;
        if descriptor.name.is_empty() || descriptor.name.len() > NAME_BYTES_MAX {
            return Err(cursor.fail(format!("name of {} bytes", descriptor.name.len())));
        }
        if size_bytes > units::OBJECT_BYTES_MAX && size_bytes != SHARE_BYTES {
            return Err(cursor.fail(format!("size of {size_bytes} bytes")));
        }
        // An object is newer than its origin, which rules out cycles.
        if descriptor.origin.is_some_and(|origin| origin.object >= id) {
            return Err(cursor.fail("its origin is newer than the object itself"));
        }
        let is_moment = matches!(state, ObjectState::Snapshot | ObjectState::Partial | ObjectState::Bookmark);
        if is_moment && (descriptor.origin.is_none() || descriptor.parent.is_none() || descriptor.identity.is_none()) {
            return Err(cursor.fail("a snapshot or bookmark without an origin"));
        }
        if (state == ObjectState::Partial) != descriptor.receive.is_some() {
            return Err(cursor.fail("inconsistent receive state"));
        }
        if state == ObjectState::Folder && (descriptor.origin.is_some() || descriptor.parent == Some(id)) {
            return Err(cursor.fail("a folder with an origin, or within itself"));
        }
        if descriptor.image.is_some() && (state != ObjectState::Deleting || descriptor.origin.is_some()) {
            return Err(cursor.fail("an image that is not deleted, or has an origin"));
        }
        // Fragments name it in four bytes. It is newer than the object that it was trained for.
        let is_dictionary_right = descriptor.origin.is_none()
            && descriptor.parent.is_some_and(|parent| parent < id)
            && u32::try_from(id.0).is_ok();
        if descriptor.state == ObjectState::Dictionary && !is_dictionary_right {
            return Err(cursor.fail("a dictionary without a parent, or with a number too large for fragments"));
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
            parent: Some(ObjectId(9)),
            scheduled: true,
            cuts: vec![Cut { after: Epoch(0), before: Epoch(2) }, Cut { after: Epoch(1), before: Epoch(3) }],
            undone: Undone { cuts: vec![Cut { after: Epoch(4), before: Epoch(9) }], forgotten: None },
            reap: Some(Reap { next: GroupIndex(77), stop: GroupIndex(8), wrapped: true }),
            created_unix_s: 1_790_000_000,
            allocated_blocks: 12,
            stored_bytes: 999,
            properties: [("compression".to_owned(), "zstd-3".to_owned())].into(),
            identity: Some(SnapshotIdentity([7; 16])),
            receive: None,
            numbers: TreeNumbers::default(),
            image: None,
        };
        let bytes = descriptor.encode();
        assert_eq!(ObjectDescriptor::decode(&bytes).unwrap(), descriptor);
        let receive = Some(Box::new(ReceiveState {
            from: Some(SnapshotIdentity([9; 16])),
            next: GroupIndex(1 << 33),
            payload_bytes: 5,
            expected_bytes: 6,
        }));
        let partial = ObjectDescriptor { state: ObjectState::Partial, receive, ..descriptor.clone() };
        assert_eq!(ObjectDescriptor::decode(&partial.encode()).unwrap(), partial);
        let bookmark = ObjectDescriptor { state: ObjectState::Bookmark, ..descriptor.clone() };
        assert_eq!(ObjectDescriptor::decode(&bookmark.encode()).unwrap(), bookmark);
        let folder = ObjectDescriptor::folder(ObjectId(8), "web", Some(ObjectId(11)));
        assert_eq!(ObjectDescriptor::decode(&folder.encode()).unwrap(), folder);
        let numbers = TreeNumbers { reserved: 5 << 40, generation: u32::MAX };
        let share = ObjectDescriptor { numbers, ..ObjectDescriptor::volume(ObjectId(8), "home", SHARE_BYTES) };
        assert_eq!(ObjectDescriptor::decode(&share.encode()).unwrap(), share);
        assert_eq!(share.numbers_of_next_state(), TreeNumbers { reserved: 5 << 40, generation: 0 });
        assert_eq!(descriptor.numbers_of_next_state(), TreeNumbers::default(), "a volume");
        crate::cursor::expect_every_bit_to_count(&share.encode(), |bytes| ObjectDescriptor::decode(bytes).is_err());
        let image = ImagePart { location: "s3://b/debian".into(), incarnation: 5 << 90 | 3, version: 9, len: 1 << 33 };
        let image = ObjectDescriptor {
            state: ObjectState::Deleting,
            image: Some(Box::new(image)),
            ..ObjectDescriptor::volume(ObjectId(8), "s3://b/debian@9", 1 << 33)
        };
        assert_eq!(ObjectDescriptor::decode(&image.encode()).unwrap(), image);
        crate::cursor::expect_every_bit_to_count(&image.encode(), |bytes| ObjectDescriptor::decode(bytes).is_err());
        let forgetful = |after, before| {
            let forgotten = Some(Cut { after: Epoch(after), before: Epoch(before) });
            ObjectDescriptor { undone: Undone { forgotten, ..partial.undone.clone() }, ..partial.clone() }
        };
        assert_eq!(ObjectDescriptor::decode(&forgetful(1, 3).encode()).unwrap(), forgetful(1, 3));
        assert_eq!(forgetful(1, 3).encode().len(), partial.encode().len() + 8);
        assert!(ObjectDescriptor::decode(&forgetful(3, 3).encode()).is_err());
        crate::cursor::expect_every_bit_to_count(&bytes, |bytes| ObjectDescriptor::decode(bytes).is_err());
        for wrong in [
            ObjectDescriptor { origin: Some(Origin { object: ObjectId(7), epoch: Epoch(0) }), ..descriptor.clone() },
            ObjectDescriptor { state: ObjectState::Snapshot, parent: None, ..descriptor.clone() },
            ObjectDescriptor { state: ObjectState::Bookmark, origin: None, ..descriptor.clone() },
            ObjectDescriptor { state: ObjectState::Bookmark, identity: None, ..descriptor.clone() },
            ObjectDescriptor { state: ObjectState::Snapshot, identity: None, ..descriptor.clone() },
            ObjectDescriptor { state: ObjectState::Partial, ..descriptor.clone() },
            ObjectDescriptor { cuts: vec![Cut { after: Epoch(2), before: Epoch(2) }], ..descriptor.clone() },
            ObjectDescriptor { name: String::new(), ..descriptor.clone() },
            ObjectDescriptor { state: ObjectState::Dictionary, ..descriptor.clone() },
            ObjectDescriptor { state: ObjectState::Folder, ..descriptor.clone() },
            ObjectDescriptor { parent: Some(folder.id), ..folder.clone() },
            ObjectDescriptor { state: ObjectState::Volume, ..image },
            ObjectDescriptor { state: ObjectState::Dictionary, origin: None, ..descriptor.clone() },
            ObjectDescriptor { state: ObjectState::Dictionary, origin: None, parent: None, ..descriptor },
        ] {
            assert!(ObjectDescriptor::decode(&wrong.encode()).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_dictionary_is_younger_than_its_parent_and_its_number_fits_a_fragment() {
        let dictionary = |id: u64| ObjectDescriptor {
            state: ObjectState::Dictionary,
            parent: Some(ObjectId(6)),
            ..ObjectDescriptor::volume(ObjectId(id), "dictionary", 4000)
        };
        for (id, is_valid) in [(6, false), (7, true), (u64::from(u32::MAX), true), (1 << 32, false)] {
            assert_eq!(ObjectDescriptor::decode(&dictionary(id).encode()).is_ok(), is_valid, "{id}");
        }
    }
}
