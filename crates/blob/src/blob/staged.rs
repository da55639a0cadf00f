//! Staged writes: bytes that are in the store but not in any version yet. Many processes stage
//! parts and pass them to one process, which commits all of them as one version. Owns the encoding
//! of a staged part, in which it is passed between processes, and how parts become one operation.
//! Any task may stage or commit.
//!
//! A part that is never committed is garbage that `gc` removes, like the packs of any interrupted
//! upload. A part that is older than `gc` allows is refused at the commit.
//!
//! Bytes of a part, little-endian: `SHLSTAG1`, incarnation 16, born 8, stored bytes 8, data bytes
//! 8, its layout from byte 0, crc32c of all preceding bytes 4.

use format::{FormatError, put_uint};
use futures_util::Stream;

use crate::blob::Blob;
use crate::data::chunk::Chunk;
use crate::data::extent::{PackRef, Piece, Session};
use crate::data::layout::{Layout, Run};
use crate::data::pack::PackBuilder;
use crate::data::tree;
use crate::data::upload::{RUN_BYTES_MAX, UploadOptions, upload_to};
use crate::error::Error;
use crate::names::{self, Inc, OpId};
use crate::protocol::commit::Committed;
use crate::protocol::ops::{Action, Op, Patch};
use crate::protocol::record::Record;
use crate::sealed;
use crate::texts::check_message;

const MAGIC: &[u8; 8] = b"SHLSTAG1";
const STRUCTURE: &str = "staged part of a blob";
/// Ranges of a rewrite that fail separately when another client writes at the same time: as many as
/// `optimize` puts in one record.
const PATCHES_MAX: usize = 64;

/// A part that is uploaded but not committed.
#[derive(Debug, Clone, PartialEq)]
pub struct Staged {
    inc: Inc,
    born: u64,
    stored: u64,
    run: Run,
}

impl Staged {
    /// Returns the bytes of data.
    pub const fn len(&self) -> u64 {
        self.run.len
    }

    /// Returns whether it has no data.
    pub const fn is_empty(&self) -> bool {
        self.run.len == 0
    }

    /// Returns the bytes that it takes in the store.
    pub const fn stored(&self) -> u64 {
        self.stored
    }

    /// Returns the number of the newest record when its upload began.
    pub const fn born(&self) -> u64 {
        self.born
    }

    /// Returns the incarnation of its blob.
    pub const fn inc(&self) -> Inc {
        self.inc
    }

    /// Returns its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = sealed::begin(MAGIC);
        sealed::put_wide(&mut out, self.inc.0);
        for field in [self.born, self.stored, self.run.len] {
            put_uint(&mut out, field, 8);
        }
        Layout::of(self.run.pieces.clone()).encode(&mut out);
        sealed::seal(out)
    }

    /// Decodes the output of [`encode`](Self::encode).
    ///
    /// # Errors
    /// When the bytes are not a staged part.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let wrong = |detail: &str| FormatError::new(STRUCTURE, detail);
        let mut cursor = sealed::open(STRUCTURE, MAGIC, bytes)?;
        let inc = Inc(sealed::wide(&mut cursor)?);
        let (born, stored, len) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
        let layout = Layout::decode(cursor.bytes(cursor.remaining())?)?;
        let pieces = layout.pieces().to_vec();
        if pieces.last().is_some_and(|piece| piece.end() > len) {
            return Err(wrong("a piece ends beyond its data"));
        }
        Ok(Self { inc, born, stored, run: Run { pieces, len } })
    }
}

/// How staged parts are committed.
#[derive(Debug, Clone, Copy)]
pub enum StagedAs<'a> {
    /// They replace all content; gaps between them read as zeroes.
    Put,
    /// As `Put`, but only if the blob has no record yet.
    Create,
    /// They are appended; their offsets are relative to the end.
    Append,
    /// They replace the bytes in their ranges only.
    Write,
    /// They have the content of this version, stored again; where that has changed since, they are
    /// left out.
    Rewrite(&'a Record),
}

impl Blob {
    /// Uploads the bytes of a stream without a commit.
    ///
    /// # Errors
    /// [`Error::Source`] when the stream fails; when the store fails.
    pub async fn stage(
        &self,
        source: impl Stream<Item = std::io::Result<impl Into<Chunk>>>,
        options: &UploadOptions,
    ) -> Result<Staged, Error> {
        let born = self.committer().head().await.seq;
        let uploaded = upload_to(self.fetcher(), born, options, source, false).await?;
        let inc = self.log().inc();
        Ok(Staged { inc, born: uploaded.born, stored: uploaded.stored, run: uploaded.run })
    }

    /// Commits parts, each with its offset, as one version. `again` means that an earlier process
    /// may have committed this operation, and is the record at which it began.
    ///
    /// # Errors
    /// [`Error::Refused`] when parts overlap or belong to another blob; [`Error::Fenced`] when one
    /// is too old; [`Error::Exists`] when they cannot be the first version; otherwise as a commit.
    pub async fn commit_staged(
        &self,
        parts: Vec<(u64, Staged)>,
        how: StagedAs<'_>,
        message: &str,
        id: OpId,
        again: Option<u64>,
    ) -> Result<Committed, Error> {
        check_message(message)?;
        let parts = self.in_order(parts)?;
        let mut born = parts.iter().map(|(_, part)| part.born).min().unwrap_or(u64::MAX);
        let stored = parts.iter().map(|(_, part)| part.stored).sum();
        let raw = parts.iter().map(|(_, part)| part.run.len).sum();
        let mut nodes = Nodes::new(self).await?;
        let action = match how {
            StagedAs::Put => Action::Put(nodes.join(0, &parts, RUN_BYTES_MAX)),
            StagedAs::Create => Action::Create(nodes.join(0, &parts, RUN_BYTES_MAX)),
            StagedAs::Append => Action::Append(nodes.join(0, &parts, RUN_BYTES_MAX)),
            StagedAs::Write => {
                let runs = neighbours(&parts);
                let limit = RUN_BYTES_MAX / runs.len().max(1);
                Action::Writes(runs.iter().map(|run| (run[0].0, nodes.join(run[0].0, run, limit))).collect())
            }
            StagedAs::Rewrite(base) => Action::Rewrite(nodes.patches(base, &parts)),
        };
        if nodes.upload(self).await? {
            born = born.min(nodes.name.born);
        }
        let raw = if matches!(action, Action::Rewrite(_)) { 0 } else { raw };
        let op = Op { id, born, raw, stored, message: message.to_owned(), action };
        let done = match again {
            Some(after) => self.committer().resume(op, after).await,
            None => self.committer().commit(op).await,
        };
        done.map_err(|error| self.named(error))
    }

    fn in_order(&self, mut parts: Vec<(u64, Staged)>) -> Result<Vec<(u64, Staged)>, Error> {
        parts.retain(|(_, part)| !part.is_empty());
        parts.sort_by_key(|(at, _)| *at);
        if parts.iter().any(|(_, part)| part.inc != self.log().inc()) {
            let why = "a part was staged for another blob, or for one that has been removed: stage it again";
            return Err(Error::Refused(why.into()));
        }
        for pair in parts.windows(2) {
            let (at, part) = &pair[0];
            if at.checked_add(part.run.len).is_none_or(|end| end > pair[1].0) {
                return Err(Error::Refused(format!("staged parts overlap at byte {}", pair[1].0)));
            }
        }
        Ok(parts)
    }
}

/// Groups parts that are adjacent.
fn neighbours(parts: &[(u64, Staged)]) -> Vec<&[(u64, Staged)]> {
    parts.chunk_by(|(at, part), (next, _)| at + part.run.len == *next).collect()
}

/// The pack for the nodes of long lists of pieces.
struct Nodes {
    name: PackRef,
    pack: PackBuilder,
}

impl Nodes {
    async fn new(blob: &Blob) -> Result<Self, Error> {
        let born = blob.committer().head().await.seq;
        let session = Session(names::random(&*blob.fetcher().backend.entropy)?);
        Ok(Self { name: PackRef { origin: 0, born, session, number: 0 }, pack: PackBuilder::default() })
    }

    /// Joins parts to a run whose byte 0 is at `from`, encoded in about `limit` bytes.
    fn join(&mut self, from: u64, parts: &[(u64, Staged)], limit: usize) -> Run {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut len = 0;
        for (at, part) in parts {
            for piece in &part.run.pieces {
                let mut piece = piece.clone();
                piece.set_start(at - from + piece.start());
                pieces.push(piece);
            }
            len = at - from + part.run.len;
        }
        if Layout::of(pieces.clone()).encoded_bytes() > limit {
            let (name, pack) = (self.name, &mut self.pack);
            pieces = tree::fold(pieces, limit, &mut |node| pack.push_node(name, node));
        }
        Run { pieces, len }
    }

    /// Makes patches from parts that have the same content as `base` in their ranges.
    fn patches(&mut self, base: &Record, parts: &[(u64, Staged)]) -> Vec<Patch> {
        let each = parts.len().div_ceil(PATCHES_MAX).max(1);
        let groups = neighbours(parts).into_iter().flat_map(|run| run.chunks(each)).collect::<Vec<_>>();
        let limit = 4 * RUN_BYTES_MAX / groups.len().max(1);
        let patch = |group: &[(u64, Staged)]| {
            let from = group[0].0;
            let run = self.join(from, group, limit);
            let to = from + run.len;
            let mut after = run.pieces;
            for piece in &mut after {
                piece.set_start(from + piece.start());
            }
            let now = base.layout.overlapping(from, to).iter();
            Patch { from, to, before: now.filter_map(|piece| piece.clip(from, to)).collect(), after }
        };
        groups.into_iter().map(patch).collect()
    }

    /// Uploads the pack; returns whether there was one.
    async fn upload(&mut self, blob: &Blob) -> Result<bool, Error> {
        if self.pack.is_empty() {
            return Ok(false);
        }
        let path = blob.fetcher().key.pack(blob.log().inc(), &self.name);
        let bytes = std::mem::take(&mut self.pack).finish();
        blob.fetcher().backend.put(&path, bytes.into()).await?;
        Ok(true)
    }
}
