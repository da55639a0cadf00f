//! The bookmarks in the table of objects, by volume and name; and the object that has a given identity.

use std::sync::Arc;

use format::{ObjectState, SnapshotIdentity};
use surface::{Error, ErrorKind, Result};
use units::ObjectId;

use super::{Object, Objects, Table, name_list};

impl Table {
    /// Enters a bookmark of the volume `parent` under its name.
    pub(super) fn enter_bookmark(&mut self, parent: ObjectId, object: &Arc<Object>) {
        let volume = self.by_id.get(&parent).map_or_else(|| "?".to_owned(), |parent| parent.title());
        let name = object.descriptor.read().name.clone();
        object.set_title(format!("{volume}#{name}"));
        self.bookmarks.insert((parent, name), object.clone());
    }

    /// Called when the volume has got its first or another name.
    pub(super) fn rename_bookmarks(&self, volume: ObjectId, name: &str) {
        for bookmark in self.bookmarks_under(volume) {
            let own = bookmark.descriptor.read().name.clone();
            bookmark.set_title(format!("{name}#{own}"));
        }
    }

    fn bookmarks_under(&self, volume: ObjectId) -> Vec<Arc<Object>> {
        let from = (volume, String::new());
        let to = (ObjectId(volume.0 + 1), String::new());
        self.bookmarks.range(from..to).map(|(_, object)| object.clone()).collect()
    }
}

impl Objects {
    /// The bookmark of that name, `VOLUME#BOOKMARK`.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], and [`ErrorKind::Invalid`] for the name of something else.
    pub fn bookmark_named(&self, name: &str) -> Result<Arc<Object>> {
        let Some((volume, bookmark)) = name.split_once('#') else {
            let text = format!("'{name}' is not a bookmark: use VOLUME#BOOKMARK");
            return Err(Error::new(ErrorKind::Invalid, text));
        };
        let parent = self.named(volume)?;
        let table = self.table.read();
        table.bookmarks.get(&(parent.id, bookmark.to_owned())).cloned().ok_or_else(|| {
            let listed = table.bookmarks_under(parent.id);
            let names: Vec<_> = listed.iter().map(|b| b.descriptor.read().name.clone()).collect();
            let there = name_list(names.iter().map(String::as_str));
            Error::new(ErrorKind::NotFound, format!("volume '{volume}' has no bookmark '{bookmark}'; it has {there}"))
        })
    }

    /// Whether there are bookmarks at all.
    pub fn has_bookmarks(&self) -> bool {
        !self.table.read().bookmarks.is_empty()
    }

    /// The bookmarks of a volume, oldest first.
    pub fn bookmarks_of(&self, volume: ObjectId) -> Vec<Arc<Object>> {
        let mut bookmarks = self.table.read().bookmarks_under(volume);
        bookmarks.sort_unstable_by_key(|bookmark| bookmark.id);
        bookmarks
    }

    /// Returns the snapshot with that identity; without one, a bookmark of it.
    pub fn with_identity(&self, identity: SnapshotIdentity) -> Option<Arc<Object>> {
        let of_state = |state| {
            let is_meant = |object: &Arc<Object>| {
                let descriptor = object.descriptor.read();
                descriptor.state == state && descriptor.identity == Some(identity)
            };
            self.all().into_iter().find(is_meant)
        };
        of_state(ObjectState::Snapshot).or_else(|| of_state(ObjectState::Bookmark))
    }
}
