//! Operations, and their effect on a record. All of it is pure, so a writer that lost a race
//! applies the same operation to the newer record without reading or uploading anything again. Owns
//! every check that keeps a record from naming a pack that may be deleted.

use crate::data::extent::Piece;
use crate::data::layout::{Layout, Run};
use crate::error::Error;
use crate::names::OpId;
use crate::protocol::record::{Done, EXPIRED_MAX, OpKind, Origin, Record, TAGS_MAX};
use crate::texts::{check_message, check_tag};

/// A change to a blob.
#[derive(Debug, Clone)]
pub struct Op {
    /// Its name, which the record carries: chosen once, and used until the outcome is known.
    pub id: OpId,
    /// The smallest `born` of all sessions whose packs it names for the first time, in its pieces
    /// or in nodes below them; `u64::MAX` if it names none.
    pub born: u64,
    /// Bytes of data that it adds.
    pub raw: u64,
    /// Bytes that the data takes in packs.
    pub stored: u64,
    /// Message of its writer.
    pub message: String,
    /// The change itself.
    pub action: Action,
}

/// The change that an operation makes.
#[derive(Debug, Clone)]
pub enum Action {
    /// Appends at the end, wherever it is at the commit.
    Append(Run),
    /// Writes bytes at an offset; a gap after the end reads as zeroes.
    Write {
        /// The first byte.
        at: u64,
        /// The bytes.
        run: Run,
    },
    /// Writes bytes at several offsets, in ascending order and without overlaps.
    Writes(Vec<(u64, Run)>),
    /// Replaces all content.
    Put(Run),
    /// Creates the first version of a blob that has no record yet.
    Create(Run),
    /// Truncates the blob, or extends it with zeroes.
    Resize(u64),
    /// Stores the same content elsewhere; ranges that have changed since are left alone.
    Rewrite(Vec<Patch>),
    /// Makes an older version the newest.
    Restore {
        /// The version.
        version: u64,
        /// Its size.
        size: u64,
        /// Its layout.
        layout: Layout,
    },
    /// Replaces all pieces with others derived from those of a version: a change in any number of
    /// places, already folded.
    Replace(Box<Replacement>),
    /// Makes another blob's version, whose packs are pinned, the first version of this blob.
    Adopt {
        /// The blobs that own the packs.
        origins: Vec<Origin>,
        /// The size.
        size: u64,
        /// The layout, whose packs refer to `origins`.
        layout: Layout,
    },
    /// Tags a version.
    Tag {
        /// The name.
        name: String,
        /// The version.
        version: u64,
    },
    /// Removes a tag.
    Untag {
        /// The name.
        name: String,
    },
    /// Expires versions, in ranges from first to last, except those that a tag names. The caller
    /// has left out those that are pinned.
    Expire(Vec<(u64, u64)>),
    /// Fences all sessions born before a record.
    Fence(u64),
    /// Closes the blob before its removal.
    Close,
}

/// New pieces for a whole version.
#[derive(Debug, Clone)]
pub struct Replacement {
    /// The version from whose pieces it was made, which must still be live.
    pub version: u64,
    /// The pieces and the size that the newest record must have; `None` to replace it
    /// unconditionally.
    pub expected: Option<(Layout, u64)>,
    /// The pieces.
    pub layout: Layout,
    /// The size.
    pub size: u64,
    /// The kind in the log: [`OpKind::Write`], or [`OpKind::Rewrite`] if the content is the same.
    pub kind: OpKind,
    /// The first byte that it changes.
    pub at: u64,
    /// Bytes from there to the last one that it changes.
    pub len: u64,
}

/// A range whose content is stored elsewhere.
#[derive(Debug, Clone)]
pub struct Patch {
    /// The first byte.
    pub from: u64,
    /// The byte after the last one.
    pub to: u64,
    /// The pieces there, clipped to the range. If they have changed, the range is left alone.
    pub before: Vec<Piece>,
    /// The pieces that replace them.
    pub after: Vec<Piece>,
}

impl Patch {
    /// Applies it to a layout that still has the same pieces; returns whether it had.
    pub fn lay_over(&self, layout: &mut Layout) -> bool {
        let now = layout.overlapping(self.from, self.to).iter().filter_map(|piece| piece.clip(self.from, self.to));
        let same = now.eq(self.before.iter().cloned());
        if same || crate::canary!("rewrite-over-newer-write") {
            layout.replace(self.from, self.to, self.after.clone());
            return true;
        }
        false
    }
}

impl Op {
    /// Creates an operation without data.
    pub const fn without_data(id: OpId, action: Action) -> Self {
        Self { id, born: u64::MAX, raw: 0, stored: 0, message: String::new(), action }
    }

    /// Applies it to `next`, a record that inherits everything from `base`, the newest one; returns
    /// its entry in the record.
    ///
    /// # Errors
    /// When it is not valid in the state of `base`.
    pub(crate) fn apply(&self, base: &Record, next: &mut Record) -> Result<Done, Error> {
        if base.closed && !matches!(self.action, Action::Expire(_)) {
            return Err(Error::Removed);
        }
        // New packs of a session that GC has fenced may have been deleted, or may be at any time.
        if self.born < base.fence && !crate::canary!("fence-not-checked") {
            return Err(Error::Fenced { fence: base.fence });
        }
        check_message(&self.message)?;
        let (kind, at, len) = self.change(base, next)?;
        next.raw += self.raw;
        next.stored += self.stored;
        if !self.message.is_empty() {
            next.message.clone_from(&self.message);
        }
        Ok(Done { op: self.id, kind, at, len })
    }

    fn change(&self, base: &Record, next: &mut Record) -> Result<(OpKind, u64, u64), Error> {
        Ok(match &self.action {
            Action::Append(run) => {
                let at = next.size;
                write(next, at, run)?;
                (OpKind::Append, at, run.len)
            }
            Action::Write { at, run } => {
                write(next, *at, run)?;
                (OpKind::Write, *at, run.len)
            }
            Action::Writes(runs) => {
                for (at, run) in runs {
                    write(next, *at, run)?;
                }
                let from = runs.first().map_or(0, |(at, _)| *at);
                let to = runs.last().map_or(from, |(at, run)| at.saturating_add(run.len));
                (OpKind::Write, from, to - from)
            }
            Action::Put(run) => {
                (next.layout, next.size) = (Layout::default(), 0);
                write(next, 0, run)?;
                (OpKind::Put, 0, run.len)
            }
            Action::Create(run) => {
                // Another operation of the same record may come first.
                if base.seq > 0 || !next.ops.is_empty() {
                    return Err(Error::Exists(String::new()));
                }
                write(next, 0, run)?;
                (OpKind::Put, 0, run.len)
            }
            Action::Resize(size) => {
                next.layout.clear(*size, u64::MAX);
                next.size = *size;
                (OpKind::Resize, 0, *size)
            }
            Action::Rewrite(patches) => {
                let laid = patches.iter().filter(|patch| patch.lay_over(&mut next.layout)).count();
                if laid == 0 {
                    return Err(Error::Refused("all ranges to be rewritten have changed in the meantime".into()));
                }
                (OpKind::Rewrite, 0, laid as u64)
            }
            Action::Restore { version, size, layout } => {
                live(base, *version)?;
                next.layout.clone_from(layout);
                next.size = *size;
                (OpKind::Restore, *version, *size)
            }
            Action::Replace(all) => {
                // A blob without a version consists of a hole, which needs no live version.
                if all.version > 0 {
                    live(base, all.version)?;
                }
                // Other operations of the same record may have changed content, too.
                let is_alone = next.ops.iter().all(|done| !done.kind.makes_version() && done.kind != OpKind::Rewrite);
                let is_same = |(layout, size): &(Layout, u64)| *size == base.size && *layout == base.layout && is_alone;
                if !all.expected.as_ref().is_none_or(is_same) && !crate::canary!("push-over-newer-version") {
                    // A version has a smaller number than its rewrites and tags.
                    let newest = if base.version > all.version { base.version } else { base.seq };
                    return Err(Error::Changed { base: all.version, newest });
                }
                next.layout.clone_from(&all.layout);
                next.size = all.size;
                (all.kind, all.at, all.len)
            }
            Action::Adopt { origins, size, layout } => {
                if base.seq != 0 {
                    return Err(Error::Refused("only a blob that has no version yet can become a clone".into()));
                }
                next.origins.clone_from(origins);
                next.layout.clone_from(layout);
                next.size = *size;
                (OpKind::Restore, 0, *size)
            }
            Action::Tag { name, version } => {
                live(base, *version)?;
                tag(next, name, *version)?;
                (OpKind::Tag, *version, 0)
            }
            Action::Untag { name } => {
                let before = next.tags.len();
                next.tags.retain(|(tag, _)| tag != name);
                if next.tags.len() == before {
                    return Err(Error::NoTag(name.clone()));
                }
                (OpKind::Untag, 0, 0)
            }
            Action::Expire(ranges) => {
                for (first, last) in ranges {
                    let (first, last) = ((*first).max(1), (*last).min(base.seq));
                    if first <= last {
                        next.expire(first, last);
                    }
                }
                if next.expired.len() > EXPIRED_MAX {
                    let why = format!(
                        "more than {EXPIRED_MAX} ranges of versions would be expired: expire contiguous ranges of versions"
                    );
                    return Err(Error::Refused(why));
                }
                (OpKind::Expire, 0, 0)
            }
            Action::Fence(born) => {
                next.fence = next.fence.max((*born).min(base.seq));
                (OpKind::Fence, next.fence, 0)
            }
            Action::Close => {
                next.closed = true;
                (OpKind::Close, 0, 0)
            }
        })
    }
}

fn live(base: &Record, version: u64) -> Result<(), Error> {
    match version {
        0 => Err(Error::NoVersion(version)),
        _ if version > base.seq => Err(Error::NoVersion(version)),
        _ if base.is_live(version) || crate::canary!("expired-version-named") => Ok(()),
        _ => Err(Error::Expired(version)),
    }
}

fn write(next: &mut Record, at: u64, run: &Run) -> Result<(), Error> {
    let Some(end) = at.checked_add(run.len).filter(|end| *end <= crate::data::layout::END_MAX) else {
        return Err(Error::Refused(format!("{} bytes at {at} exceed the size of the largest blob", run.len)));
    };
    next.layout.lay(at, run);
    next.size = next.size.max(end);
    Ok(())
}

fn tag(next: &mut Record, name: &str, version: u64) -> Result<(), Error> {
    check_tag(name)?;
    match next.tags.binary_search_by(|(tag, _)| tag.as_str().cmp(name)) {
        Ok(index) => next.tags[index].1 = version,
        Err(_) if next.tags.len() == TAGS_MAX => {
            return Err(Error::Refused(format!(
                "the blob has {TAGS_MAX} tags, the most possible: remove one with `shale blob tag URL NAME --delete`"
            )));
        }
        Err(index) => next.tags.insert(index, (name.to_string(), version)),
    }
    Ok(())
}
