//! The extent that a stream of the log fills, as far as recovery has followed it, and the bytes at
//! the end of its last batch.

use std::ops::Range;

use env::AlignedBuf;
use format::{
    BATCH_ALIGN, BATCH_MAGIC, Batch, Entry, FragmentEntry, FragmentIdentity, Stream, decode_batch, fragment_checksum,
};
use store::base::pieces;
use store::log::log_reads::Source;
use units::{ExtentIndex, Seq};

use super::LogId;

/// The extent that a stream fills.
pub(super) struct Tail {
    pub extent: ExtentIndex,
    /// Its bytes; the buffer may be longer.
    pub buf: AlignedBuf,
    pub len: usize,
    /// Bytes of it that could not be read.
    pub unreadable: Vec<Range<usize>>,
    /// The first unreadable place after `at`, if it was retried alone.
    pub failed: Option<usize>,
    /// The end of the last batch so far.
    pub at: usize,
    /// Result of the last look at the end.
    pub found: Found,
}

/// Content of a place in the log.
pub(super) enum Found {
    /// A batch of this incarnation, whose payloads have not been verified.
    Batch(Batch),
    /// Anything else; with the reason why it is not a batch of this log.
    Other(String),
}

impl Tail {
    pub fn bytes(&self) -> &[u8] {
        &self.buf[..self.len]
    }

    /// Examines the bytes after the last batch: a batch is accepted only if it belongs to this log,
    /// and to `stream` if that is known. Parts that a larger read gave up are retried alone first.
    pub fn look(&mut self, source: Source<'_>, id: LogId, stream: Option<Stream>) {
        let next = self.unreadable.iter().find(|bad| bad.end > self.at).map(|bad| bad.start.max(self.at));
        if next != self.failed {
            let start = source.geometry.start(self.extent);
            self.failed = pieces::read_again(source.disk, start, &mut self.buf, &mut self.unreadable, self.at);
        }
        self.found = if self.at + BATCH_ALIGN > self.len {
            Found::Other("the end of an extent".to_owned())
        } else if self.unreadable_in(self.at..self.at + BATCH_ALIGN).is_some() {
            Found::Other("an unreadable area".to_owned())
        } else {
            match decode_batch(&self.bytes()[self.at..]) {
                Ok(batch) if id.has(&batch.header, self.extent) && stream.is_none_or(|s| s == batch.header.stream) => {
                    Found::Batch(batch)
                }
                Ok(_) => Found::Other("a batch of another pool, place, stream or opening".to_owned()),
                Err(error) => Found::Other(format!("no batch ({error})")),
            }
        };
    }

    /// Returns whether the batch of that number is there, whole or not.
    pub fn has(&self, seq: Seq) -> bool {
        matches!(&self.found, Found::Batch(batch) if batch.header.seq == seq)
    }

    /// The first byte of `range` that could not be read.
    pub fn unreadable_in(&self, range: Range<usize>) -> Option<usize> {
        let bad = self.unreadable.iter().find(|bad| bad.start < range.end && range.start < bad.end)?;
        Some(bad.start.max(range.start))
    }

    /// Returns whether there is something like a batch whose header is not whole.
    pub fn is_begun(&self) -> bool {
        let bytes = &self.bytes()[self.at..];
        bytes.starts_with(&BATCH_MAGIC.to_le_bytes()) && decode_batch(bytes).is_err()
    }

    /// Returns the bytes that the batch of that number may have taken, if it was written there.
    pub fn may_take(&self, seq: Seq) -> Range<usize> {
        let end = match &self.found {
            Found::Batch(batch) if batch.header.seq == seq => self.at + batch.batch_bytes,
            // Another batch is there.
            Found::Batch(_) => self.at,
            Found::Other(_) if self.is_begun() => self.len,
            Found::Other(_) => self.len.min(self.at + BATCH_ALIGN),
        };
        self.at..end
    }

    /// Returns, for each payload of a batch at byte `at` of the extent, whether it matches its
    /// checksum.
    pub fn payloads_match<'b>(&'b self, at: usize, batch: &'b Batch) -> impl Iterator<Item = bool> + 'b {
        let mut at = at + batch.header_bytes;
        batch.entries.iter().flat_map(Entry::payloads).map(move |(object, epoch, fragment)| {
            let payload = &self.bytes()[at..at + fragment.stored as usize];
            at += fragment.stored as usize;
            let FragmentEntry { first, count, codec, checksum, .. } = *fragment;
            let identity = FragmentIdentity { object, epoch, first, count, codec };
            fragment_checksum(&identity, payload) == checksum
        })
    }

    /// Returns whether all payloads of the batch match their checksums.
    pub fn is_whole(&self, batch: &Batch) -> bool {
        self.payloads_match(self.at, batch).all(|matches| matches)
    }

    /// Takes the batch that is there, if it is whole, or even if it is damaged.
    pub fn take(&mut self, even_damaged: bool) -> Option<Batch> {
        match std::mem::replace(&mut self.found, Found::Other(String::new())) {
            Found::Batch(batch) if even_damaged || self.is_whole(&batch) => Some(batch),
            found => {
                self.found = found;
                None
            }
        }
    }
}
