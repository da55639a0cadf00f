//! Bookmarks: the memory of a destroyed snapshot, from which a difference can still be sent. A
//! bookmark is an object without records that makes no point in time visible: it keeps no data, and
//! costs a descriptor. It holds the snapshot's identity, its size and its position: epoch *e* of
//! timeline *t*.
//!
//! **Changes since then**, as a later snapshot *s* sees them, follow from epochs alone. If *e* is
//! in the chain of *s*, a look from *e* saw the lower part of the data that *s* sees:
//!
//! 1. A block that *s* finds in an epoch after *e*, or in a clone of *t*, may have changed. It is
//!    sent.
//! 2. A block that *s* finds at *e* or below has not changed. Past epochs are never written;
//!    blocks that *s* finds are not trimmed while *s* exists; moves keep object and epoch.
//! 3. A block that *s* finds nowhere may have held data that was trimmed together with the
//!    snapshot and with the hole that hid it. It is sent as a hole. The receiver skips holes
//!    that hide nothing.
//!
//! The difference may contain more than has changed, never less. *e* is not in the chain if the
//! volume was rolled back to a point before it: then the bookmark can no longer be used. The cuts
//! of rollbacks show this, undone cuts included: the map has lost the undone data, but the receiver
//! has it.
//!
//! The superblock says that a pool may have bookmarks ([`superblock_copies`]), because older
//! programs do not know their state.

use format::{Entry, INCOMPAT_BOOKMARKS, ObjectDescriptor, ObjectState, Origin, SnapshotIdentity};
use store::log::superblock_copies;
use store::objects::Object;
use store::objects::level::Level;
use store::objects::names::check_name;
use surface::{Error, ErrorKind, Result};
use units::ObjectId;

use crate::history::check_title;
use crate::history::parts::History;
use crate::pool::Pool;

/// A bookmark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BookmarkStatus {
    /// The volume that it is listed under.
    pub volume: String,
    /// Name: the part after the `#`.
    pub name: String,
    /// Identity of its snapshot in all pools.
    pub identity: SnapshotIdentity,
    /// When the snapshot was taken, in seconds since 1970.
    pub created_unix_s: u64,
}

impl Pool {
    /// Makes a bookmark of a snapshot (`VOLUME@SNAPSHOT`), under the snapshot's volume. Durable on
    /// return.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::Exists`], [`ErrorKind::Invalid`] for a name,
    /// [`ErrorKind::Unsupported`] for a share, of which no stream can begin at a bookmark.
    pub fn bookmark(&self, snapshot: &str, name: &str) -> Result<()> {
        check_name(name)?;
        let core = &self.core;
        let _admin = core.objects.admin.lock();
        let object = core.objects.snapshot_named(snapshot)?;
        if object.is_share() {
            let text = format!(
                "'{snapshot}' is of a share, whose differences cannot be sent from a bookmark: keep the snapshot"
            );
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let from = object.descriptor.read().clone();
        let volume = snapshot.split('@').next().unwrap_or_default();
        let title = format!("{volume}#{name}");
        check_title(title.len())?;
        if core.objects.bookmark_named(&title).is_ok() {
            return Err(Error::new(ErrorKind::Exists, format!("the pool has '{title}' already")));
        }
        let bookmark = ObjectDescriptor {
            state: ObjectState::Bookmark,
            origin: from.origin,
            parent: from.parent,
            created_unix_s: from.created_unix_s,
            identity: from.identity,
            ..ObjectDescriptor::volume(ObjectId(core.objects.next_id()), name, from.size_bytes)
        };
        // Before the log has one: a program that does not know them must not open the pool then.
        superblock_copies::mark_feature(&core.vitals.env, INCOMPAT_BOOKMARKS)
            .inspect_err(|error| core.vitals.fail(error))?;
        core.writes.append_durably(vec![Entry::Object(bookmark)])
    }

    /// Destroys a bookmark (`VOLUME#BOOKMARK`). Durable on return.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn destroy_bookmark(&self, name: &str) -> Result<()> {
        let _admin = self.core.objects.admin.lock();
        let bookmark = self.core.objects.bookmark_named(name)?;
        self.destroy_in_steps(&[bookmark])?;
        self.core.signals.wake_keeper();
        Ok(())
    }

    /// Returns the snapshots of a bookmark's volume to which a difference from it can be sent,
    /// oldest first: names without the volume.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::Invalid`].
    pub fn snapshots_since(&self, bookmark: &str) -> Result<Vec<String>> {
        let objects = &self.core.objects;
        let bookmark = objects.bookmark_named(bookmark)?;
        let (parent, identity) = {
            let descriptor = bookmark.descriptor.read();
            (descriptor.parent, descriptor.identity)
        };
        let mut snapshots = parent.map_or_else(Vec::new, |parent| objects.snapshots_of(parent));
        snapshots.retain(|snapshot| {
            snapshot.descriptor.read().identity != identity
                && self.core.history.check_bookmark(&bookmark, snapshot).is_ok()
        });
        Ok(snapshots.into_iter().map(|snapshot| snapshot.descriptor.read().name.clone()).collect())
    }

    /// Returns the identity of a snapshot (`VOLUME@SNAPSHOT`) in all pools.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::Invalid`].
    pub fn snapshot_identity(&self, snapshot: &str) -> Result<SnapshotIdentity> {
        let object = self.core.objects.snapshot_named(snapshot)?;
        let identity = object.descriptor.read().identity;
        identity.ok_or_else(|| Error::new(ErrorKind::Corrupt, format!("'{snapshot}' has no identity")))
    }

    /// Returns the snapshot with an identity, `VOLUME@SNAPSHOT`: of `volume`, if that has one.
    pub fn snapshot_with_identity(&self, identity: SnapshotIdentity, volume: Option<&str>) -> Option<String> {
        let objects = &self.core.objects;
        let has = |snapshot: &std::sync::Arc<Object>| snapshot.descriptor.read().identity == Some(identity);
        let own = volume.and_then(|name| objects.named(name).ok());
        let own = own.and_then(|own| objects.snapshots_of(own.id).into_iter().find(has));
        let any = || objects.with_identity(identity).filter(|found| found.is_readable());
        own.or_else(any).map(|snapshot| snapshot.title())
    }

    /// The bookmarks of a volume, or of all, oldest first within each volume.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn bookmarks(&self, volume: Option<&str>) -> Result<Vec<BookmarkStatus>> {
        let objects = &self.core.objects;
        let mut found = Vec::new();
        for volume in objects.volume_or_all(volume)? {
            for bookmark in objects.bookmarks_of(volume.id) {
                let descriptor = bookmark.descriptor.read();
                let Some(identity) = descriptor.identity else { continue };
                found.push(BookmarkStatus {
                    volume: volume.title(),
                    name: descriptor.name.clone(),
                    identity,
                    created_unix_s: descriptor.created_unix_s,
                });
            }
        }
        Ok(found)
    }
}

/// Returns the chain of levels from a bookmark, as a part of that of a later moment; none if it is
/// not a part of it.
pub(crate) fn levels_from(origin: Origin, later: &[Level]) -> Option<Vec<Level>> {
    let at = later.iter().position(|level| level.object == origin.object)?;
    let level = later.get(at).filter(|level| level.sees(origin.epoch))?;
    let cuts = level.cuts.iter().filter(|cut| cut.before <= origin.epoch).copied().collect();
    let mut levels = vec![Level { epoch: origin.epoch, newest: None, cuts, ..level.clone() }];
    levels.extend(later[at + 1..].iter().cloned());
    Some(levels)
}

impl History {
    /// Fails if a bookmark is no base for a difference up to the snapshot `to`.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`].
    pub(crate) fn check_bookmark(&self, bookmark: &Object, to: &Object) -> Result<()> {
        let lies_on = |origin: &Origin| {
            // The levels no longer list undone epochs.
            let is_taken_back = self.objects.get(origin.object).is_none_or(|timeline| {
                let undone = timeline.descriptor.read().undone.clone();
                undone.hides(origin.epoch) || undone.forgotten.is_some_and(|cut| cut.hides(origin.epoch, cut.before))
            });
            !is_taken_back && levels_from(*origin, &to.levels()).is_some()
        };
        // Before the table of objects is read, which a batch that changes the bookmark updates
        // first.
        let origin = bookmark.descriptor.read().origin;
        if origin.as_ref().is_some_and(lies_on) {
            return Ok(());
        }
        let text = format!(
            "'{}' is not in the history of '{}': it is of a later moment, or the volume was rolled back to a \
             snapshot before it; send the difference from a snapshot or bookmark that the receiver has, or the \
             whole",
            bookmark.title(),
            to.title()
        );
        Err(Error::new(ErrorKind::Conflict, text))
    }
}
