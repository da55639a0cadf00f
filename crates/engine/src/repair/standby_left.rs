//! The ring that another process left, as its records are found (`format::standby` has the bytes).
//! Owns which of them are valid, and which are damaged; `standby_open` has the steps that an
//! opening takes with them.
//!
//! - A record whose commit word is 0 was never finished, so it was never acknowledged.
//! - Any other record before the ring's head that is not whole is damaged: it may have been
//!   acknowledged. Where its own head cannot be read, the next record is searched: each names its
//!   position.

use std::sync::Arc;

use bytes::Bytes;
use env::StandbyMemory;
use format::{
    STANDBY_ALIGN, STANDBY_COMMIT_OFFSET, STANDBY_HEAD_OFFSET, STANDBY_INCARNATION_OFFSET, STANDBY_RING_OFFSET,
    STANDBY_TAIL_OFFSET, StandbyHeader, StandbyKind, StandbyRecord, load_word,
};
use store::base::canary::Canary;
use store::buffer::standby::set_word;
use store::buffer::write_buffer::DirtyRun;
use store::objects::Objects;
use units::{BLOCK_BYTES, BlockIndex, GROUP_BLOCKS, ObjectId, format_size};

/// Upper bound of damaged records named in a text.
const NAMED_MAX: usize = 8;

/// A ring that another process left.
pub(crate) struct Left {
    memory: Arc<dyn StandbyMemory>,
    header: StandbyHeader,
    /// Valid records, in order.
    records: Vec<StandbyRecord>,
    damages: Vec<Damage>,
}

/// A part of a ring that may have been acknowledged, and cannot be read.
enum Damage {
    /// The blocks of a record.
    Record(StandbyRecord),
    /// Bytes of the ring in which no record is found.
    Unknown(u64),
    /// The words with the positions of records.
    Words,
}

/// A record found at its position.
enum Content {
    Whole(DirtyRun),
    Unfinished,
    Damaged,
}

impl Left {
    /// Reads all of a ring.
    pub(crate) fn read(memory: Arc<dyn StandbyMemory>, header: StandbyHeader) -> Self {
        let mut left = Self { memory, header, records: Vec::new(), damages: Vec::new() };
        let ends = left.word(STANDBY_TAIL_OFFSET).zip(left.word(STANDBY_HEAD_OFFSET));
        match ends {
            Some((tail, head)) if tail <= head && head - tail <= header.ring_bytes => left.read_records(tail, head),
            _ => left.damages.push(Damage::Words),
        }
        left
    }

    /// A word of the memory; `None` if it is damaged.
    pub(crate) fn word(&self, offset: usize) -> Option<u64> {
        load_word(|at| self.memory.load(at), self.header.session, offset)
    }

    /// The memory matches this incarnation of the log as well.
    pub(crate) fn goes_with(&self, incarnation: u64) {
        set_word(&*self.memory, self.header.session, STANDBY_INCARNATION_OFFSET, incarnation);
    }

    /// Makes it void: without the first word it is no longer a ring.
    pub(crate) fn void(self) {
        self.memory.store(0, 0);
    }

    fn read_records(&mut self, tail: u64, head: u64) {
        let mut position = tail;
        while position < head {
            let Some(record) = self.record_at(position, head) else {
                let places = (position..head).step_by(STANDBY_ALIGN).skip(1);
                let next = places.into_iter().find(|at| self.record_at(*at, head).is_some()).unwrap_or(head);
                self.damages.push(Damage::Unknown(next - position));
                position = next;
                continue;
            };
            position += record.bytes() as u64;
            if record.kind == StandbyKind::Pad {
                continue;
            }
            match self.content(&record) {
                Content::Whole(_) => self.records.push(record),
                Content::Unfinished => {}
                Content::Damaged => self.damages.push(Damage::Record(record)),
            }
        }
    }

    fn record_at(&self, position: u64, head: u64) -> Option<StandbyRecord> {
        let mut bytes = [0; STANDBY_COMMIT_OFFSET];
        if !self.memory.read(self.place(position), &mut bytes) {
            return None;
        }
        let room = (self.header.ring_bytes - position % self.header.ring_bytes).min(head - position);
        let record = StandbyRecord::decode(&bytes, position, self.header.session)?;
        (record.bytes() as u64 <= room).then_some(record)
    }

    fn place(&self, position: u64) -> usize {
        STANDBY_RING_OFFSET + (position % self.header.ring_bytes) as usize
    }

    fn content(&self, record: &StandbyRecord) -> Content {
        let at = self.place(record.position);
        let commit = self.memory.load(at + STANDBY_COMMIT_OFFSET);
        if commit == 0 {
            return Content::Unfinished;
        }
        let mut payload = vec![0; record.payload_bytes()];
        let (first, count) = (record.first.in_group(), record.count);
        if !self.memory.read(at + STANDBY_ALIGN, &mut payload) || first + count > GROUP_BLOCKS as u32 {
            return Content::Damaged;
        }
        let is_whole = commit == record.commit(self.header.session, &payload);
        if !is_whole && !Canary::StandbyRecordBeforePayload.is_planted() {
            return Content::Damaged;
        }
        Content::Whole(match record.kind {
            StandbyKind::Data => DirtyRun::of(first as u8, count as u8, Bytes::from(payload)),
            StandbyKind::Hole | StandbyKind::Pad => DirtyRun::hole(first as u8, count as u8),
        })
    }

    /// Returns the valid records, in order.
    pub(crate) fn records(&self) -> &[StandbyRecord] {
        &self.records
    }

    /// Bytes of data in the valid records.
    pub(crate) fn data_bytes(&self) -> u64 {
        self.records.iter().map(|record| record.payload_bytes() as u64).sum()
    }

    /// The incarnation of the log under which the ring was begun.
    pub(crate) const fn first_incarnation(&self) -> u64 {
        self.header.incarnation
    }

    /// Returns the run of a valid record.
    pub(crate) fn run(&self, record: &StandbyRecord) -> Option<DirtyRun> {
        match self.content(record) {
            Content::Whole(run) => Some(run),
            Content::Unfinished | Content::Damaged => None,
        }
    }

    /// Returns whether it can hold nothing that was acknowledged.
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty() && self.damages.is_empty()
    }

    /// Describes the acknowledged requests that cannot be read any more; `None` if all can.
    pub(crate) fn damage(&self, objects: &Objects) -> Option<String> {
        if Canary::StandbyDamageNotSeen.is_planted() {
            return None;
        }
        let text = |damage: &Damage| match *damage {
            Damage::Record(StandbyRecord { object, first: BlockIndex(first), count, .. }) => {
                let from = format_size(first * BLOCK_BYTES as u64);
                let bytes = format_size(u64::from(count) * BLOCK_BYTES as u64);
                format!("{bytes} at {from} of {}", title(objects, object))
            }
            Damage::Unknown(bytes) => format!("all requests in {} of its records", format_size(bytes)),
            Damage::Words => "all of its requests, because their positions are unknown".to_owned(),
        };
        let mut texts: Vec<String> = self.damages.iter().take(NAMED_MAX).map(text).collect();
        match self.damages.len() {
            0 => return None,
            all if all > NAMED_MAX => texts.push(format!("and {} more", all - NAMED_MAX)),
            _ => {}
        }
        Some(texts.join(", "))
    }
}

fn title(objects: &Objects, object: ObjectId) -> String {
    objects.get(object).map_or_else(|| "a volume that is gone".to_owned(), |object| format!("'{}'", object.title()))
}
