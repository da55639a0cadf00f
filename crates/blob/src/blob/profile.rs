//! The boot profile of an image: the groups that a machine reads first, in order. Owns the object
//! that stores the profile, and the rewrite that puts the frames of these groups into packs in this
//! order, so that a few long requests fetch all of them. Any task may call it.
//!
//! The profile is advice: it affects the order of requests, never their result. It is an object of
//! its own below the incarnation, `boot`. Bytes, little-endian: `SHLBOOT1`, the number of the
//! record that reordered the frames 8, number of groups 4, a group 8 each, crc32c of all preceding
//! bytes 4.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use format::{FormatError, put_uint};
use object_store::path::Path;

use crate::blob::Blob;
use crate::blob::groups::{Group, GroupError, StoredGroup};
use crate::blob::push::laid;
use crate::data::extent::{FRAME_BYTES, Frame, Piece};
use crate::data::frame::{Encoded, Encoder};
use crate::data::layout::Layout;
use crate::data::pack::PACK_BYTES_MAX;
use crate::data::upload::{Packer, UploadOptions};
use crate::error::Error;
use crate::names::OpId;
use crate::protocol::log::Log;
use crate::protocol::ops::{Action, Op, Replacement};
use crate::protocol::record::{OpKind, Record};
use crate::sealed;

const MAGIC: &[u8; 8] = b"SHLBOOT1";
const STRUCTURE: &str = "boot profile of a blob";
const GROUP_BYTES: u64 = FRAME_BYTES as u64;
/// Groups of a profile: 8 GiB of an image, far more than a boot reads.
const GROUPS_MAX: usize = 1 << 16;
/// Groups that are read at once: 8 MiB.
const AT_ONCE: usize = 64;
/// Attempts to lay the pieces while other clients commit.
const TRIES: usize = 16;

/// The groups that are read first, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Profile {
    /// The record that reordered them.
    pub seq: u64,
    /// Their numbers, each once.
    pub groups: Vec<u64>,
}

impl Profile {
    /// Returns its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = sealed::begin(MAGIC);
        put_uint(&mut out, self.seq, 8);
        put_uint(&mut out, self.groups.len() as u64, 4);
        for group in &self.groups {
            put_uint(&mut out, *group, 8);
        }
        sealed::seal(out)
    }

    /// Decodes the output of [`encode`](Self::encode).
    ///
    /// # Errors
    /// When the bytes are not a profile.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = sealed::open(STRUCTURE, MAGIC, bytes)?;
        let (seq, count) = (cursor.u64()?, cursor.u32()? as usize);
        if count > GROUPS_MAX {
            return Err(FormatError::new(STRUCTURE, format!("{count} groups, at most {GROUPS_MAX}")));
        }
        let groups = (0..count).map(|_| cursor.u64()).collect::<Result<_, _>>()?;
        cursor.end()?;
        Ok(Self { seq, groups })
    }

    fn path(log: &Log) -> Path {
        log.key.path().clone().join(log.inc.to_string()).join("boot")
    }
}

/// The result of reordering frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Arranged {
    /// The record that did it; 0 if there was nothing to do.
    pub seq: u64,
    /// Groups of the profile.
    pub groups: u64,
    /// Groups whose frames were stored again, in order.
    pub moved: u64,
    /// Bytes that they take.
    pub stored: u64,
}

/// A group that is moved, and its previous pieces.
struct Moved {
    range: Range<u64>,
    before: Vec<Piece>,
}

impl Blob {
    /// Returns the boot profile; `None` if there is no readable one.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn profile(&self) -> Result<Option<Profile>, Error> {
        let bytes = self.log().backend.get(&Profile::path(self.log())).await?;
        Ok(bytes.and_then(|bytes| Profile::decode(&bytes).ok()))
    }

    /// Stores the frames of groups of the newest version again, in this order and with the same
    /// encoding, and saves the order as the boot profile. Groups that other clients change at the
    /// same time are left alone.
    ///
    /// # Errors
    /// [`Error::Refused`] when there are too many groups; when the store fails. The content never
    /// changes.
    pub async fn arrange(&self, groups: &[u64], options: &UploadOptions) -> Result<Arranged, Error> {
        let head = self.refresh().await?;
        let mut seen = HashSet::new();
        let is_new = |group: &u64| group.saturating_mul(GROUP_BYTES) < head.size && seen.insert(*group);
        let groups: Vec<u64> = groups.iter().copied().filter(is_new).collect();
        if groups.len() > GROUPS_MAX {
            let why =
                format!("the profile names {} groups, at most {GROUPS_MAX}: trace for a shorter time", groups.len());
            return Err(Error::Refused(why));
        }
        let mut packer =
            Packer::new(self.fetcher(), head.seq, &UploadOptions { pack_bytes: PACK_BYTES_MAX, ..options.clone() })?;
        let moved = self.repack(&head, &groups, &mut packer, options).await?;
        let (pieces, stored, _) = packer.end().await?;
        let mut arranged = Arranged { groups: groups.len() as u64, stored, ..Arranged::default() };
        if !pieces.is_empty() {
            (arranged.seq, arranged.moved) = self.put_in_order(&head, &moved, pieces, stored).await?;
        }
        let profile = Profile { seq: arranged.seq.max(head.seq), groups };
        self.log().backend.put(&Profile::path(self.log()), Bytes::from(profile.encode())).await?;
        Ok(arranged)
    }

    /// Packs the frames of groups in their order; returns the groups that have frames.
    async fn repack(
        &self,
        head: &Record,
        groups: &[u64],
        packer: &mut Packer,
        options: &UploadOptions,
    ) -> Result<Vec<Moved>, Error> {
        let encoding = &options.encoding;
        let clock = self.log().backend.clock.clone();
        let encoder = Encoder::new(encoding.choose(&options.name, &[]), encoding.min_saving_permille(), clock);
        let encoder = Arc::new(encoder);
        let mut moved = Vec::new();
        for part in groups.chunks(AT_ONCE) {
            for (number, group) in part.iter().zip(self.groups(head, part).await) {
                let encoded = match group.map_err(unshare)? {
                    Group::Zero => continue,
                    Group::Stored(StoredGroup { codec, data_len, crc, bytes }) => {
                        let frame = Frame { stored: bytes.len() as u32, codec, crc };
                        Encoded { frame, raw_len: data_len, stored: bytes }
                    }
                    Group::Plain(data) => {
                        let encoder = encoder.clone();
                        let encoded = tokio::task::spawn_blocking(move || encoder.encode(vec![data]).pop()).await;
                        match encoded.ok().flatten() {
                            Some(encoded) => encoded,
                            None => return Err(Error::Refused("the upload was cancelled".into())),
                        }
                    }
                };
                let from = number * GROUP_BYTES;
                let range = from..(from + GROUP_BYTES).min(head.size);
                let before = self.reader.tree.extents(head, range.start, range.end).await?;
                packer.push_at(range.start, encoded).await?;
                moved.push(Moved { range, before });
            }
        }
        moved.sort_by_key(|moved| moved.range.start);
        Ok(moved)
    }

    /// Commits the pieces of groups that have not changed since; returns the record and the number
    /// of these groups.
    async fn put_in_order(
        &self,
        began: &Record,
        moved: &[Moved],
        pieces: Vec<Piece>,
        stored: u64,
    ) -> Result<(u64, u64), Error> {
        let id = OpId::random(&*self.log().backend.entropy)?;
        let all: Vec<Range<u64>> = moved.iter().map(|moved| moved.range.clone()).collect();
        let written = Layout::of(pieces);
        for _ in 0..TRIES {
            let head = self.refresh().await?;
            let opened = Layout::of(self.reader.tree.opened_at(&head, &all).await?);
            let clipped = |layout: &Layout, range: &Range<u64>| -> Vec<Piece> {
                let found = layout.overlapping(range.start, range.end).iter();
                found.filter_map(|piece| piece.clip(range.start, range.end)).collect()
            };
            let same = moved.iter().filter(|moved| clipped(&opened, &moved.range) == moved.before);
            let ranges: Vec<Range<u64>> = same.map(|moved| moved.range.clone()).collect();
            if ranges.is_empty() {
                return Ok((0, 0));
            }
            let after: Vec<Piece> = ranges.iter().flat_map(|range| clipped(&written, range)).collect();
            let replacement = Replacement {
                version: head.seq,
                expected: Some((head.layout.clone(), head.size)),
                layout: Layout::of(laid(opened.into_pieces(), &after, &ranges, head.size)),
                size: head.size,
                kind: OpKind::Rewrite,
                at: 0,
                len: ranges.len() as u64,
            };
            let action = Action::Replace(Box::new(replacement));
            let op = Op { id, born: began.seq, raw: 0, stored, message: String::new(), action };
            match self.commit_folded(head.seq, op).await {
                Ok(committed) => return Ok((committed.seq, ranges.len() as u64)),
                Err(Error::Changed { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::Refused("other clients commit continuously: try again when there are fewer".into()))
    }
}

/// Returns an owned error from one that other groups may share.
fn unshare(error: GroupError) -> Error {
    Arc::try_unwrap(error).unwrap_or_else(|shared| Error::Refused(shared.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_comes_back_and_every_bit_counts() {
        let profile = Profile { seq: 9, groups: vec![5, 0, 77] };
        let mut bytes = profile.encode();
        assert_eq!(Profile::decode(&bytes).unwrap(), profile);
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Profile::decode(&bytes).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
