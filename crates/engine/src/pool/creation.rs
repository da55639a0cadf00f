//! Creation of volumes and shares. Each is created by one batch of the log: after a crash at any
//! point it exists whole, or not at all.

use bytes::Bytes;
use format::{Entry, FragmentEntry, ObjectDescriptor};
use policy::{Owner, Settings};
use store::base::options::Properties;
use store::log::Purpose;
use store::objects::file_layout::{self, WINDOW_BYTES};
use store::objects::names::check_full_name;
use store::objects::{Object, properties};
use surface::{DeviceId, Error, ErrorKind, Result};
use units::{BLOCK_BYTES, BlockIndex, ObjectId, SHARE_BYTES};

use super::check_size;
use crate::make_room::Asks;
use crate::pool::Pool;
use crate::write::whole_object;

/// A block of 4 KiB of a file: the file's number, the offset in it, the content.
pub type FileBlock = (u64, u64, Bytes);

impl Pool {
    /// Creates a volume; its [number](crate::Volume::id). Durable on return.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for names, sizes (0, above 1 PiB) and properties;
    /// [`ErrorKind::NotFound`] for its folder; [`ErrorKind::Exists`].
    pub fn create_volume(&self, name: &str, size_bytes: u64, properties: &Properties) -> Result<DeviceId> {
        check_size(size_bytes)?;
        self.create(name, size_bytes, properties)
    }

    /// Creates an empty share; returns its [number](crate::Volume::id). Names the feature in the
    /// superblock. Durable on return.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for names and properties; [`ErrorKind::Exists`].
    pub fn create_share(&self, name: &str, properties: &Properties) -> Result<DeviceId> {
        self.create(name, SHARE_BYTES, properties)
    }

    /// Creates a share with initial content.
    ///
    /// # Errors
    /// Those of [`create_share`](Self::create_share); [`ErrorKind::Full`]; [`ErrorKind::Invalid`]
    /// for content that does not lie in whole blocks of the first MiB of its files.
    pub fn create_share_with(&self, name: &str, properties: &Properties, content: &[FileBlock]) -> Result<DeviceId> {
        let mut blocks = content.iter().map(place_of).collect::<Result<Vec<_>>>()?;
        blocks.sort_unstable_by_key(|(block, _)| *block);
        self.create_whole(name, SHARE_BYTES, properties, &blocks)
    }

    /// Creates a volume, or a share if the size is `SHARE_BYTES`.
    pub(crate) fn create(&self, name: &str, size_bytes: u64, properties: &Properties) -> Result<DeviceId> {
        self.create_whole(name, size_bytes, properties, &[])
    }

    fn create_whole(
        &self,
        name: &str,
        size_bytes: u64,
        properties: &Properties,
        blocks: &[(BlockIndex, &[u8])],
    ) -> Result<DeviceId> {
        check_full_name(name)?;
        properties::check(Owner::Volume, properties)?;
        let core = &self.core;
        let _admin = core.objects.admin.lock();
        if core.objects.named(name).is_ok() {
            return Err(Error::new(ErrorKind::Exists, format!("the pool has a volume '{name}' already")));
        }
        self.check_free(name)?;
        let (parent, own) = core.history.place_for(name, size_bytes == SHARE_BYTES)?;
        let descriptor = ObjectDescriptor {
            parent,
            created_unix_s: core.vitals.env.clock.unix_s(),
            properties: properties.clone(),
            ..ObjectDescriptor::volume(ObjectId(core.objects.next_id()), own, size_bytes)
        };
        let inherited = core.objects.inherited(&descriptor);
        let settings = properties::resolved_for(name, &inherited, properties)?;
        let id = descriptor.id;
        core.writes.check_reservation(id, settings.reservation_bytes)?;
        if descriptor.is_share() {
            core.volumes.allow_shares()?;
        }
        match blocks {
            [] => core.writes.append_durably(vec![Entry::Object(descriptor)])?,
            blocks => self.append_whole(descriptor, settings, blocks)?,
        }
        core.space.count_reservations();
        Ok(DeviceId(id.0))
    }

    /// Appends an object with its content, durably.
    fn append_whole(
        &self,
        descriptor: ObjectDescriptor,
        settings: Settings,
        blocks: &[(BlockIndex, &[u8])],
    ) -> Result<()> {
        let core = &self.core;
        core.vitals.check_failed()?;
        core.checkpoints.heal()?;
        // The content gets the room that a tree would get for writing it.
        let object = Object::new(descriptor.clone(), settings);
        let _room = core.make_room.admit_new(&object, (blocks.len() * BLOCK_BYTES) as u64, 0, Asks::Tree)?;
        let batch = whole_object::batch(descriptor, blocks, core.geometry.unit_blocks_max(), &core.buffers);
        let copies =
            core.writes.parts_of_copies(&batch, |_, fragment: &FragmentEntry| object.copies_of(fragment.first.group()));
        let mut ticket = core.writes.append(batch, Purpose::Data)?;
        for mut copy in copies {
            copy.begun = Some(ticket.incarnation);
            ticket = core.writes.append(copy, Purpose::Data)?;
        }
        core.log.wait_applied(ticket)?;
        core.log.sync()
    }
}

/// Where a block of a file lies in its share.
fn place_of((file, offset, block): &FileBlock) -> Result<(BlockIndex, &[u8])> {
    let is_block = block.len() == BLOCK_BYTES && offset % BLOCK_BYTES as u64 == 0;
    if !is_block || *offset >= WINDOW_BYTES {
        let text = format!("{} bytes at byte {offset} of file {file} cannot be written with a new share", block.len());
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    Ok((BlockIndex::containing(file_layout::window(*file) + offset), block))
}
