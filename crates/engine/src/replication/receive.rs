//! Receiving: a stream becomes a snapshot of a new volume, or of one that has the stream's base
//! snapshot.
//!
//! 1. *Begin*: the stream must fit (`receive_fit`): a free name, or a volume whose newest snapshot
//!    is the parent, unchanged since; or a clone of the parent without snapshots of its own,
//!    unchanged since; or the partial result of an interrupted stream of the same snapshot. Nothing
//!    is created yet.
//! 2. The first *data* creates the partial snapshot, and the hidden volume if there is to be a new
//!    one (see `receives`).
//! 3. All data goes into an epoch that no point sees: the first one of a new volume, otherwise the
//!    one after the volume's head. The descriptor of the partial snapshot is updated along with it
//!    and records the amount (`receive_chunk`): after a crash, the stream can always continue
//!    there.
//! 4. *End*: if all data that was sent has arrived, and the volume is unchanged, one batch makes
//!    the partial snapshot a snapshot and raises the volume's epoch past it. It is made durable,
//!    and with it everything before it in the log. **Here the snapshot exists.**
//!
//! Data received before is skipped, so a stream may also begin before the place where another one
//! broke off.

use std::borrow::Cow;
use std::sync::Arc;

use format::{
    Entry, FormatError, ObjectDescriptor, ObjectState, Origin, ReceiveState, STREAM_HEAD_BYTES, STREAM_VERSION,
    StreamBegin, StreamChunk, StreamData, StreamHead, StreamReader,
};
use store::base::options::Properties;
use store::objects::Object;
use store::objects::names::{check_full_name, check_name};
use store::objects::properties;
use surface::{Error, ErrorKind, Result};
use units::{Epoch, GROUP_BYTES, GroupIndex, ObjectId, SHARE_BYTES};

use crate::history::{check_title, next_epoch};
use crate::pool::Pool;
use crate::replication::receive_chunk::Place;
use crate::replication::receive_seal::without_seal;

/// Properties that a volume does not keep: space is not reserved in a pool because it was in
/// another; scheduled snapshots of the copy would keep it from receiving more.
const LEFT_BEHIND: [&str; 3] = ["reservation", "snapshots", "keep"];

/// The outcome of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiveReport {
    /// The volume.
    pub volume: String,
    /// Its new snapshot: the part of the name after the `@`.
    pub snapshot: String,
    /// Whether the volume was created by it.
    pub is_new: bool,
    /// Size of the volume in bytes.
    pub size_bytes: u64,
    /// Bytes of the stream.
    pub stream_bytes: u64,
    /// Bytes of payload in it.
    pub payload_bytes: u64,
    /// Fragments in it.
    pub fragments: u64,
    /// Bytes that became zeroes.
    pub hole_bytes: u64,
}

/// A stream that is being received.
pub struct Receiver {
    pool: Pool,
    volume: String,
    properties: Properties,
    reader: StreamReader,
    begin: Option<StreamBegin>,
    failed: bool,
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver").field("volume", &self.volume).field("begin", &self.begin).finish_non_exhaustive()
    }
}

/// The objects that receive the data.
struct Target {
    volume: Arc<Object>,
    partial: Arc<Object>,
}

pub(crate) fn conflict(text: String) -> Error {
    Error::new(ErrorKind::Conflict, text)
}

fn damaged(error: FormatError) -> Error {
    Error::with_source(ErrorKind::Corrupt, "the stream cannot be received", error)
}

impl Pool {
    /// Begins to receive a stream into `volume`, which the first stream creates, with its
    /// properties changed by `properties`.
    pub fn receive(&self, volume: &str, properties: &Properties) -> Receiver {
        Receiver {
            pool: self.clone(),
            volume: volume.to_owned(),
            properties: properties.clone(),
            reader: StreamReader::default(),
            begin: None,
            failed: false,
        }
    }
}

impl Receiver {
    /// Adds the next chunk: its head and its body. Returns the report after the last one, when the
    /// snapshot exists.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for a stream that is damaged or not in order;
    /// [`ErrorKind::Unsupported`] for another version; [`ErrorKind::Conflict`] if it does not fit
    /// the volume; [`ErrorKind::Exists`], [`ErrorKind::NotFound`], [`ErrorKind::Full`], and errors
    /// of the storage. Nothing can be taken after an error; the part before stays, see
    /// [`Pool::receives`].
    pub fn take(&mut self, head: &[u8; STREAM_HEAD_BYTES], body: &[u8]) -> Result<Option<ReceiveReport>> {
        if self.failed {
            return Err(Error::new(ErrorKind::Invalid, "this stream has failed: start a new one"));
        }
        let result = self.take_next(head, body);
        self.failed = result.is_err();
        result
    }

    fn take_next(&mut self, head: &[u8; STREAM_HEAD_BYTES], body: &[u8]) -> Result<Option<ReceiveReport>> {
        let head = StreamHead::decode(head).map_err(damaged)?;
        if let Some(version) = head.other_version(body) {
            let text =
                format!("the stream has version {version}, this program knows {STREAM_VERSION}: use a newer one");
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let at = self.reader.offset();
        match self.reader.take(&head, body).map_err(damaged)? {
            StreamChunk::Begin(begin) => {
                self.check_begin(&begin)?;
                self.begin = Some(*begin);
                Ok(None)
            }
            StreamChunk::Data { data, payloads } => {
                let context = |error: Error| error.context(format_args!("chunk at byte {at} of the stream"));
                self.data(&data, &body[payloads..]).map_err(context)?;
                Ok(None)
            }
            StreamChunk::End(end) => {
                let report = ReceiveReport {
                    volume: self.volume.clone(),
                    snapshot: self.begin()?.snapshot.clone(),
                    is_new: self.begin()?.from.is_none(),
                    size_bytes: self.begin()?.size_bytes,
                    stream_bytes: self.reader.offset(),
                    payload_bytes: end.payload_bytes,
                    fragments: end.fragments,
                    hole_bytes: end.hole_blocks * units::BLOCK_BYTES as u64,
                };
                self.finish()?;
                Ok(Some(report))
            }
        }
    }

    /// Returns the beginning of the stream, once it has been received.
    pub fn begin_chunk(&self) -> Option<&StreamBegin> {
        self.begin.as_ref()
    }

    fn begin(&self) -> Result<&StreamBegin> {
        self.begin.as_ref().ok_or_else(|| damaged(FormatError::new("stream", "it has no beginning")))
    }

    /// Returns the existing part of the stream's snapshot.
    fn existing(&self, begin: &StreamBegin) -> Result<Option<(Target, GroupIndex)>> {
        let objects = &self.pool.core.objects;
        let volume = objects.incoming(&self.volume).or_else(|| objects.named(&self.volume).ok());
        let Some(volume) = volume else { return Ok(None) };
        let Some(partial) = objects.partial_of(volume.id) else { return Ok(None) };
        let descriptor = partial.descriptor.read().clone();
        let Some(receive) = &descriptor.receive else { return Ok(None) };
        if (descriptor.identity, receive.from) != (Some(begin.to), begin.from) {
            let text = format!(
                "'{}' holds a part of '{}', but the stream brings another snapshot ('{}@{}'): continue the other \
                 one with its resume token (status shows it), or destroy it first (shale destroy --partial POOL \
                 {})",
                self.volume,
                partial.title(),
                begin.volume,
                begin.snapshot,
                if volume.is_live() { partial.title() } else { volume.title() }
            );
            return Err(conflict(text));
        }
        self.pool.check_image(&volume, begin)?;
        Ok(Some((Target { volume, partial }, receive.next)))
    }

    /// Step 1.
    fn check_begin(&self, begin: &StreamBegin) -> Result<()> {
        check_full_name(&self.volume)?;
        check_name(&begin.snapshot)?;
        check_title(self.volume.len() + 1 + begin.snapshot.len())?;
        properties::check(policy::Owner::Volume, &self.properties)?;
        self.pool.core.vitals.check_failed()?;
        if let Some((_, next)) = self.existing(begin)? {
            if begin.start > next {
                let text = format!(
                    "the stream continues at group {}, but '{}' needs it from group {}: use its newest resume \
                     token (status shows it)",
                    begin.start.0, self.volume, next.0
                );
                return Err(conflict(text));
            }
            return Ok(());
        }
        if begin.start > GroupIndex(0) {
            let text = format!(
                "the stream is the rest of an interrupted one, but '{}' has no part of '{}': send it from the \
                 beginning",
                self.volume, begin.snapshot
            );
            return Err(conflict(text));
        }
        self.check_fits(begin).map(drop)
    }

    /// Checks the preconditions of a new stream: no volume, or the volume with its parent.
    fn check_fits(&self, begin: &StreamBegin) -> Result<Option<(Arc<Object>, Arc<Object>)>> {
        let objects = &self.pool.core.objects;
        let Some(from) = begin.from else {
            if objects.named(&self.volume).is_ok() {
                let text = format!(
                    "the pool has '{}' already, and the stream brings a whole volume: receive it under another name, or send the \
                     difference from the newest snapshot that both have",
                    self.volume
                );
                return Err(Error::new(ErrorKind::Exists, text));
            }
            return self.own_properties(begin).map(|_| None);
        };
        let volume = objects.named(&self.volume).map_err(|error| {
            error.context(format_args!("the stream is the difference from '{}' and needs the volume", begin.parent))
        })?;
        let title = format!("{}@{}", self.volume, begin.snapshot);
        if self.pool.snapshot_identity(&title).is_ok_and(|here| here == begin.to) {
            return Err(Error::new(
                ErrorKind::Exists,
                format!("the pool already has the snapshot in the stream: '{title}'"),
            ));
        }
        let newest = self.pool.fitting(&volume, from, &begin.parent)?;
        self.pool.check_free(&title)?;
        self.pool.check_unchanged(&volume, &newest)?;
        Ok(Some((volume, newest)))
    }

    /// Returns the properties of a new volume, and the settings that follow.
    fn own_properties(&self, begin: &StreamBegin) -> Result<(Properties, policy::Settings)> {
        let mut own = begin.properties.clone();
        own.retain(|key, _| !LEFT_BEHIND.contains(&key.as_str()));
        own.extend(self.properties.clone());
        // They may come from a newer version.
        properties::check(policy::Owner::Volume, &own)
            .map_err(|error| error.context("the volume's properties in the stream"))?;
        let objects = &self.pool.core.objects;
        let inherited = objects.inherited_in(objects.place(&self.volume, begin.size_bytes == SHARE_BYTES)?.0);
        let settings = properties::resolved_for(&self.volume, &inherited, &own)?;
        Ok((own, settings))
    }

    /// Returns the partial snapshot, which must exist.
    fn made(&self) -> Result<Target> {
        let begin = self.begin()?;
        self.existing(begin)?.map(|(target, _)| target).ok_or_else(|| self.is_gone(begin))
    }

    /// Returns the error for a partial snapshot that is gone.
    fn is_gone(&self, begin: &StreamBegin) -> Error {
        let title = format!("{}@{}", self.volume, begin.snapshot);
        if self.pool.snapshot_identity(&title).is_ok_and(|here| here == begin.to) {
            return conflict(format!("another stream has completed '{title}'"));
        }
        conflict(format!("the received part of '{}' has been destroyed: send it from the beginning", self.volume))
    }

    /// Step 2.
    fn make(&self) -> Result<()> {
        let begin = self.begin()?;
        let core = &self.pool.core;
        let _admin = core.objects.admin.lock();
        if self.existing(begin)?.is_some() {
            return Ok(());
        }
        let next_id = core.objects.next_id();
        let mut entries = Vec::new();
        let volume = self.check_fits(begin)?.map(|(volume, _)| volume);
        let (mut gate, mut image) = (None, None);
        let origin = match &volume {
            Some(volume) => {
                let mut head = volume.descriptor.read().clone();
                if head.epoch == Epoch(0) {
                    // A clone that was promoted: while its gate is held, no reader expects records
                    // of any other epoch. So the gate is held until the promotion ends.
                    gate = Some(volume.gate.write());
                    core.writes.drain_past_current()?;
                    head = volume.descriptor.read().clone();
                    head.epoch = next_epoch(&head)?;
                    entries.push(Entry::Object(head.clone()));
                }
                Origin { object: head.id, epoch: next_epoch(&head)? }
            }
            None => {
                self.pool.check_free(&self.volume)?;
                let (parent, name) = core.history.place_for(&self.volume, begin.size_bytes == SHARE_BYTES)?;
                let (own, settings) = self.own_properties(begin)?;
                core.writes.check_reservation(ObjectId(next_id), settings.reservation_bytes)?;
                let below = begin.image.clone().map(|part| core.images.object_of_image(part)).transpose()?;
                let (object, entry) = below.unzip();
                entries.extend(entry.flatten());
                image = object;
                let id = ObjectId(next_id.max(object.map_or(0, |object| object.0 + 1)));
                entries.push(Entry::Object(ObjectDescriptor {
                    state: ObjectState::Incoming,
                    origin: object.map(|object| Origin { object, epoch: Epoch(0) }),
                    parent,
                    created_unix_s: core.vitals.env.clock.unix_s(),
                    properties: own,
                    ..ObjectDescriptor::volume(id, name, begin.size_bytes)
                }));
                Origin { object: id, epoch: Epoch(0) }
            }
        };
        let id = ObjectId(next_id.max(origin.object.0 + 1));
        let state = ReceiveState {
            from: begin.from,
            next: GroupIndex(0),
            payload_bytes: 0,
            expected_bytes: begin.expected_bytes,
        };
        entries.push(Entry::Object(ObjectDescriptor {
            state: ObjectState::Partial,
            origin: Some(origin),
            parent: Some(origin.object),
            created_unix_s: begin.created_unix_s,
            properties: properties::of_moment(&begin.properties),
            identity: Some(begin.to),
            receive: Some(Box::new(state)),
            ..ObjectDescriptor::volume(id, &begin.snapshot, begin.size_bytes)
        }));
        if begin.size_bytes == SHARE_BYTES {
            core.volumes.allow_shares()?;
        }
        let appended = core.writes.append_applied(entries);
        drop(gate);
        if let Some(image) = image {
            core.images.mark_incomplete(image);
        }
        appended
    }

    /// Step 3.
    fn data(&self, data: &StreamData, payloads: &[u8]) -> Result<()> {
        if data.from == GroupIndex(0) && self.existing(self.begin()?)?.is_none() {
            self.make()?;
        }
        let Target { volume, partial } = self.made()?;
        let _gate = partial.gate.write();
        let mut descriptor = partial.descriptor.read().clone();
        let (Some(state), Some(origin)) = (&mut descriptor.receive, descriptor.origin) else {
            return Err(self.is_gone(self.begin()?));
        };
        if data.next <= state.next {
            return Ok(());
        }
        if data.from > state.next {
            return Err(conflict(format!(
                "another stream for '{}' is being received at the same time",
                partial.title()
            )));
        }
        // The parent, or the image, may have been larger.
        let image_bytes = self.begin()?.image.as_ref().map_or(0, |image| image.len);
        let bytes = volume.size_bytes().max(descriptor.size_bytes).max(image_bytes);
        let groups = bytes.div_ceil(GROUP_BYTES as u64);
        if let Some((first, blocks)) = data.holes.last()
            && first.0 + u64::from(*blocks) > GroupIndex(groups).first_block().0
        {
            let text = format!("{blocks} blocks from block {} on are no part of '{}'", first.0, partial.title());
            // The volume may have become smaller since the stream began.
            if let Some(from) = state.from {
                let newest = self.pool.fitting(&volume, from, &self.begin()?.parent)?;
                Pool::check_size_unchanged(&volume, &newest)?;
            }
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        let from = state.from;
        state.next = data.next;
        state.payload_bytes += payloads.len() as u64;
        let is_share = self.begin()?.size_bytes == SHARE_BYTES;
        let (data, payloads) =
            if is_share { without_seal(data, payloads) } else { (Cow::Borrowed(data), Cow::Borrowed(payloads)) };
        let place = Place { volume: &volume, epoch: origin.epoch };
        // If the parent has gone in the meantime, the end reports it.
        let parent = from.and_then(|from| self.pool.fitting(&volume, from, "").ok());
        let holes = match &parent {
            Some(parent) => self.pool.core.intake.holes_that_hide(&data.holes, &parent.levels())?,
            None => data.holes.clone(),
        };
        self.pool.core.intake.take_in(&place, &StreamData { holes, ..data.into_owned() }, &payloads, descriptor)
    }

    /// Step 4.
    fn finish(&self) -> Result<()> {
        let Target { volume, partial } = self.made()?;
        let core = &self.pool.core;
        // Draining dirty data takes long; the lock and the gate need not wait for it.
        core.writes.drain_all()?;
        let _admin = core.objects.admin.lock();
        let _gates = (volume.gate.write(), partial.gate.write());
        core.writes.drain_past_current()?;
        let descriptor = partial.descriptor.read().clone();
        let head = volume.descriptor.read().clone();
        let (ObjectState::Partial, Some(origin), Some(receive)) =
            (descriptor.state, descriptor.origin, descriptor.receive.clone())
        else {
            return Err(self.is_gone(self.begin()?));
        };
        if receive.next.first_block().offset_bytes() < descriptor.size_bytes {
            let text = format!("'{}' has nothing from group {} on", partial.title(), receive.next.0);
            return Err(conflict(text));
        }
        let mut own = head.properties.clone();
        if let Some(from) = receive.from {
            let newest = self.pool.fitting(&volume, from, &self.begin()?.parent)?;
            self.pool.check_unchanged(&volume, &newest)?;
            own = properties::with_moment(own, &descriptor.properties);
        }
        let epoch = next_epoch(&ObjectDescriptor { epoch: origin.epoch, ..head.clone() })?;
        let size_bytes = descriptor.size_bytes;
        let snapshot = ObjectDescriptor { state: ObjectState::Snapshot, receive: None, ..descriptor };
        let numbers = head.numbers_of_next_state();
        let volume =
            ObjectDescriptor { state: ObjectState::Volume, epoch, size_bytes, properties: own, numbers, ..head };
        core.writes.append_durably(vec![Entry::Object(snapshot), Entry::Object(volume)])?;
        core.space.count_reservations();
        Ok(())
    }
}
