//! Staged writes: bytes that are in the store and in no version yet. Many processes stage parts,
//! and hand what they staged to one that commits all of them as one version. Owns the bytes of a
//! staged part, which go from process to process, and how parts become one operation.
//!
//! A part that is never committed is garbage that `gc` removes, as of any upload that broke off. A
//! part that is older than `gc` allows is refused at the commit.
//!
//! Bytes of a part, little-endian: `SHLSTAG1`, incarnation 16, born 8, stored bytes 8, data bytes
//! 8, its layout from byte 0, crc32c of all before 4.

use format::{FormatError, put_uint};
use futures_util::Stream;

use crate::blob::Blob;
use crate::chunk::Chunk;
use crate::commit::Committed;
use crate::error::Error;
use crate::extent::{PackRef, Piece, Session};
use crate::layout::{Layout, Run};
use crate::names::{self, Inc, OpId};
use crate::ops::{Op, Patch, What};
use crate::pack::PackBuilder;
use crate::record::Record;
use crate::sealed;
use crate::texts::check_message;
use crate::tree;
use crate::upload::{RUN_BYTES_MAX, UploadOptions, upload_to};

const MAGIC: &[u8; 8] = b"SHLSTAG1";
const STRUCTURE: &str = "staged part of a blob";
/// Ranges of a rewrite that stand or fall alone when another client writes meanwhile: as many as
/// `optimize` has in one record.
const PATCHES_MAX: usize = 64;

/// A part that is uploaded, and not committed.
#[derive(Debug, Clone, PartialEq)]
pub struct Staged {
    inc: Inc,
    born: u64,
    stored: u64,
    run: Run,
}

impl Staged {
    /// Returns bytes of data.
    pub const fn len(&self) -> u64 {
        self.run.len
    }

    /// Tells whether it has no data.
    pub const fn is_empty(&self) -> bool {
        self.run.len == 0
    }

    /// Returns bytes that it takes in the store.
    pub const fn stored(&self) -> u64 {
        self.stored
    }

    /// Returns the number of the newest record when its upload began.
    pub const fn born(&self) -> u64 {
        self.born
    }

    /// Returns the incarnation of the blob that it is for.
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

    /// Reads what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// When the bytes are no staged part.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let wrong = |detail: &str| FormatError::new(STRUCTURE, detail);
        let mut cursor = sealed::open(STRUCTURE, MAGIC, bytes)?;
        let inc = Inc(sealed::wide(&mut cursor)?);
        let (born, stored, len) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
        let layout = Layout::decode(cursor.bytes(cursor.remaining())?)?;
        let pieces = layout.pieces().to_vec();
        if pieces.last().is_some_and(|piece| piece.end() > len) {
            return Err(wrong("a piece ends behind its data"));
        }
        Ok(Self { inc, born, stored, run: Run { pieces, len } })
    }
}

/// What a commit of staged parts does with them.
#[derive(Debug, Clone, Copy)]
pub enum StagedAs<'a> {
    /// They replace all bytes; the places between them read as zeroes.
    Put,
    /// As `Put`, and only if the blob has no record yet.
    Create,
    /// They go behind the end; places count from there.
    Append,
    /// They replace the bytes at their places, and no others.
    Write,
    /// They are the bytes of this version, stored anew; where it changed since, they are left out.
    Rewrite(&'a Record),
}

impl Blob {
    /// Uploads the bytes of a stream, and commits nothing.
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

    /// Commits parts, each with its place, as one version. `again` says that an earlier process may
    /// have committed this operation, and at which record it began.
    ///
    /// # Errors
    /// [`Error::Refused`] when parts overlap or are of another blob; [`Error::Fenced`] when one is
    /// too old; [`Error::Exists`] when they cannot be the first version; as a commit.
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
        let what = match how {
            StagedAs::Put => What::Put(nodes.join(0, &parts, RUN_BYTES_MAX)),
            StagedAs::Create => What::Create(nodes.join(0, &parts, RUN_BYTES_MAX)),
            StagedAs::Append => What::Append(nodes.join(0, &parts, RUN_BYTES_MAX)),
            StagedAs::Write => {
                let runs = neighbours(&parts);
                let limit = RUN_BYTES_MAX / runs.len().max(1);
                What::Writes(runs.iter().map(|run| (run[0].0, nodes.join(run[0].0, run, limit))).collect())
            }
            StagedAs::Rewrite(base) => What::Rewrite(nodes.patches(base, &parts)),
        };
        if nodes.upload(self).await? {
            born = born.min(nodes.name.born);
        }
        let raw = if matches!(what, What::Rewrite(_)) { 0 } else { raw };
        let op = Op { id, born, raw, stored, message: message.to_owned(), what };
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
            let why = "a part was staged for another blob, or for one that was removed since: stage it again";
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

/// Groups parts that touch.
fn neighbours(parts: &[(u64, Staged)]) -> Vec<&[(u64, Staged)]> {
    parts.chunk_by(|(at, part), (next, _)| at + part.run.len == *next).collect()
}

/// The pack of the nodes that long lists of pieces are folded into.
struct Nodes {
    name: PackRef,
    pack: PackBuilder,
}

impl Nodes {
    async fn new(blob: &Blob) -> Result<Self, Error> {
        let born = blob.committer().head().await.seq;
        let session = Session(names::random(&*blob.fetcher().world.entropy)?);
        Ok(Self { name: PackRef { origin: 0, born, session, number: 0 }, pack: PackBuilder::default() })
    }

    /// Joins parts to a run whose byte 0 is at `from`, in about `limit` bytes.
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

    /// Makes patches of parts that hold the bytes of `base` at their places.
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

    /// Uploads the pack; tells whether there was one.
    async fn upload(&mut self, blob: &Blob) -> Result<bool, Error> {
        if self.pack.is_empty() {
            return Ok(false);
        }
        let path = blob.fetcher().key.pack(blob.log().inc(), &self.name);
        let bytes = std::mem::take(&mut self.pack).finish();
        blob.fetcher().world.put(&path, bytes.into()).await?;
        Ok(true)
    }
}
