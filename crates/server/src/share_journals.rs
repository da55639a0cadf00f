//! Journals of mounted shares, stored next to the server's standby memory. Owns their recovery when
//! a pool is opened after a server was killed.
//!
//! A server with standby memory keeps the names of its shares next to it, in one file per share
//! (`fe_share::JournalPlace`). Data and names go together:
//!
//! 1. Opening a pool brings the data in standby memory to the log. Standby memory that does not
//!    apply takes the journals along (`env::Standby::pass_over_beside`): names are not replayed
//!    without their data.
//! 2. Then the names of each journal are replayed durably into the tree of its share, for any
//!    command that opens the pool: nothing sees the share without them. Files without a name stay,
//!    because the mount may have outlived the server.
//! 3. The journal is marked as replayed, because a keeper may have it as well, and removed.
//!
//! A journal belongs to one pool, one copy of it, one boot of the machine, one share, and one
//! session of that share's tree. A journal that cannot be replayed is a loss: the pool records it
//! durably (`Pool::remember_loss`) before the journal is kept under another name.
//!
//! A missing journal is a loss as well. So the pool durably notes which shares have one
//! (`Pool::note_journal`) before any name is journalled. The note is deleted before the file, and
//! after the journal's names are durable or their loss is recorded. An opening may be killed at any
//! of these steps.

use std::fs::File;
use std::io;
use std::sync::Arc;

use engine::{Files, Pool, TreeUse};
use env::{Beside, FileStandby, Standby};
use fe_share::{FoundJournal, JournalPlace};
use parking_lot::Mutex;
use share::{Left, Tree};
use surface::{DeviceId, Error, ErrorKind, ObjectSpace, Result};

use crate::share_trees::{self, PATIENCE};

/// Length of the pool's id, which precedes the boot's at the beginning of a journal's owner.
const POOL_BYTES: usize = 16;
const BOOT_BYTES: usize = 16;

/// The journals of one pool's shares.
#[derive(Debug)]
pub struct Journals {
    files: Arc<FileStandby>,
    pool: [u8; POOL_BYTES],
    /// Boot of the machine; if unknown, nothing is journalled or replayed.
    boot: Option<[u8; BOOT_BYTES]>,
    /// Journals that were not replayed, for `status`.
    notes: Mutex<Vec<String>>,
}

/// Outcome of replaying a journal.
enum Outcome {
    /// So many changes were missing in the tree and are in it now.
    Replayed(u64),
    /// The tree has all of its changes.
    Empty,
    /// It belongs to another boot.
    Void,
    /// It does not apply, for this reason.
    Refused(String),
}

impl Journals {
    /// Journals of a pool, next to its standby memory in that place.
    pub fn new(pool: &Pool, files: Arc<FileStandby>) -> Self {
        let boot = files.boot().ok();
        Self { files, pool: pool.id(), boot, notes: Mutex::default() }
    }

    /// Returns the identification of a share's journal.
    fn owner(&self, share: DeviceId) -> Vec<u8> {
        [&self.pool[..], &self.boot.unwrap_or_default(), &self.files.copy(), &share.0.to_le_bytes()].concat()
    }

    /// Returns the existing journals.
    pub fn left(&self) -> Vec<Beside> {
        self.files.left_beside(&self.pool)
    }

    /// Replays all journals that a killed server left. Those that lack space for it stay; all
    /// others that cannot be replayed are kept and reported, and so are missing ones.
    pub fn bring_back(&self, pool: &Pool) {
        let left = self.left();
        if let Err(error) = self.expect_all(pool, &left, None) {
            self.note(&error);
        }
        for file in left {
            match self.bring_back_one(pool, &file) {
                Ok(0) => {}
                Ok(changes) => {
                    let name = pool.volume_of(DeviceId(file.number)).map(|volume| volume.name()).unwrap_or_default();
                    let (what, were) = if changes == 1 { ("change", "was") } else { ("changes", "were") };
                    log::info!(
                        "{changes} {what} of names in share '{name}' that a server had acknowledged before it died \
                         {were} restored"
                    );
                }
                Err(error) => self.note(&error),
            }
        }
    }

    fn note(&self, error: &Error) {
        log::warn!("{error}");
        self.notes.lock().push(error.to_string());
    }

    /// Records the loss of noted journals that are missing: of all shares, or of one.
    fn expect_all(&self, pool: &Pool, left: &[Beside], only: Option<DeviceId>) -> Result<()> {
        let noted = pool.noted_journals()?.into_iter().filter(|share| only.is_none_or(|only| only == *share));
        for share in noted.filter(|share| left.iter().all(|file| file.number != share.0)) {
            let Ok(volume) = pool.volume_of(share) else {
                pool.forget_journal(share)?;
                continue;
            };
            let name = volume.name();
            // The tree must not be in use. A mounted share has made a new journal.
            let _claimed = match Files::claimed(volume.clone(), volume, TreeUse::Change, PATIENCE) {
                Err(error) if error.kind() == ErrorKind::InUse => return Err(error),
                claimed => claimed.ok(),
            };
            let lost = format!(
                "the journal of share '{name}' is gone, so acknowledged names that were not synced before its server \
                 died may be missing"
            );
            pool.remember_loss(&lost)?;
            self.note(&Error::new(ErrorKind::Corrupt, lost));
            pool.forget_journal(share)?;
        }
        Ok(())
    }

    /// Replays the journal of one share, before its tree is opened: a new session must not begin
    /// without it.
    ///
    /// # Errors
    /// When there is a journal that cannot be replayed yet.
    pub fn bring_back_of(&self, pool: &Pool, share: DeviceId) -> Result<()> {
        let left = self.left();
        self.expect_all(pool, &left, Some(share))?;
        left.iter().filter(|file| file.number == share.0).try_for_each(|file| self.bring_back_one(pool, file).map(drop))
    }

    /// Returns the number of replayed changes that the tree did not have.
    fn bring_back_one(&self, pool: &Pool, file: &Beside) -> Result<u64> {
        let place = file.path.display();
        let name = pool.volume_of(DeviceId(file.number)).map(|volume| volume.name());
        let of = name.as_ref().map_or_else(|_| format!("share {}", file.number), |name| format!("share '{name}'"));
        let failed = |error: io::Error| Error::from_io(format!("the journal of {of}'s names"), error);
        let opened = self.files.open_beside(&file.path).map_err(failed)?;
        match self.replay(pool, file, &opened) {
            Ok(Outcome::Replayed(changes)) => {
                fe_share::mark_replayed(&opened).map_err(failed)?;
                pool.forget_journal(DeviceId(file.number))?;
                std::fs::remove_file(&file.path).map_err(failed)?;
                Ok(changes)
            }
            Ok(Outcome::Empty | Outcome::Void) => {
                pool.forget_journal(DeviceId(file.number))?;
                std::fs::remove_file(&file.path).map_err(failed)?;
                Ok(0)
            }
            Ok(Outcome::Refused(why)) => Err(self.set_aside(pool, &of, file, &why)?),
            Err(error) if error.kind() == ErrorKind::Full => {
                let text = format!(
                    "no space to restore acknowledged names in {of} after the death of a server: they are in \
                     {place}; make space and open the pool again, or remove that file to discard them"
                );
                Err(Error::with_source(ErrorKind::Full, text, error))
            }
            // It stays in place, and the next opening tries again.
            Err(error) if error.kind() == ErrorKind::InUse => Err(error),
            Err(error) => Err(self.set_aside(pool, &of, file, &error.to_string())?),
        }
    }

    /// Keeps a journal that does not apply, after the pool has recorded the loss.
    fn set_aside(&self, pool: &Pool, of: &str, file: &Beside, why: &str) -> Result<Error> {
        let lost = format!("the journal of {of} was not replayed, so names that were not synced are missing: {why}");
        pool.remember_loss(&lost)?;
        pool.forget_journal(DeviceId(file.number))?;
        let kept = match self.files.set_beside_aside(&file.path) {
            Ok(place) => format!("it is kept as {place} until you remove it"),
            Err(error) => format!("it stays as {} ({error})", file.path.display()),
        };
        Ok(Error::new(ErrorKind::Corrupt, format!("{lost}; {kept}")))
    }

    fn replay(&self, pool: &Pool, file: &Beside, opened: &File) -> Result<Outcome> {
        let Some(boot) = self.boot else {
            return Ok(Outcome::Refused("the system does not identify this boot".to_owned()));
        };
        let left = match fe_share::find_journal(opened, &self.owner(DeviceId(file.number))) {
            Ok(FoundJournal::Left(left)) => left,
            Ok(FoundJournal::Foreign { owner }) => {
                let of_boot = owner.get(POOL_BYTES..POOL_BYTES + BOOT_BYTES);
                let is_void = of_boot.is_some_and(|of_boot| of_boot != boot);
                let is_noted = pool.noted_journals()?.contains(&DeviceId(file.number));
                return Ok(match is_void {
                    // It replaced a journal of this boot.
                    true if is_noted => Outcome::Refused("it is from before the machine was started".to_owned()),
                    true => Outcome::Void,
                    false => Outcome::Refused("it belongs to another pool, or to another copy of this one".to_owned()),
                });
            }
            Err(error) => return Ok(Outcome::Refused(error.to_string())),
        };
        let Ok(volume) = pool.volume_of(DeviceId(file.number)) else { return Ok(Outcome::Void) };
        if !left.has_changes() {
            return Ok(Outcome::Empty);
        }
        let name = volume.name();
        let claimed = Files::claimed(volume.clone(), volume, TreeUse::Change, PATIENCE)?;
        let space: Arc<dyn ObjectSpace> = Arc::new(claimed);
        Self::replay_into(space, &left).map_err(|failure| match failure.errno() {
            libc::ESTALE => Error::new(ErrorKind::Conflict, "another program has opened the share since"),
            _ => share_trees::not_opened(&name, failure),
        })
    }

    fn replay_into(space: Arc<dyn ObjectSpace>, left: &Left) -> share::Result<Outcome> {
        let tree = Tree::take_over(space, share_trees::brief_options(), left)?;
        tree.close()?;
        Ok(Outcome::Replayed(tree.brought_back()))
    }

    /// Returns messages about journals that were not replayed.
    pub fn notes(&self) -> Vec<String> {
        self.notes.lock().clone()
    }

    /// Returns the place for the journal of a mounted share.
    pub fn place(self: &Arc<Self>, pool: &Pool, share: DeviceId) -> Arc<dyn JournalPlace> {
        Arc::new(Place { journals: Arc::clone(self), pool: pool.clone(), share })
    }
}

/// Place of one share's journal.
struct Place {
    journals: Arc<Journals>,
    pool: Pool,
    share: DeviceId,
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Place({})", self.share.0)
    }
}

impl JournalPlace for Place {
    fn make(&self, fill: &mut dyn FnMut(&File) -> io::Result<()>) -> io::Result<File> {
        let Journals { files, pool, boot, .. } = &*self.journals;
        if boot.is_none() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "the system does not identify this boot"));
        }
        if !self.pool.keeps_acknowledged() {
            return Err(io::Error::other("there is no standby memory for their data"));
        }
        let file = files.make_beside(pool, self.share.0, fill)?;
        // Before the first name is journalled; a note without a file would be reported as a loss.
        if let Err(error) = self.pool.note_journal(self.share) {
            files.remove_beside(pool, self.share.0, &file)?;
            return Err(io::Error::other(error));
        }
        Ok(file)
    }

    fn fault(&self, file: &File, bytes: u64) -> Option<String> {
        let Journals { files, pool, .. } = &*self.journals;
        files.fault_beside(pool, self.share.0, file, bytes)
    }

    fn owner(&self) -> Vec<u8> {
        self.journals.owner(self.share)
    }

    fn remove(&self, file: &File) {
        let Journals { files, pool, .. } = &*self.journals;
        let forgotten = self.pool.forget_journal(self.share).map_err(io::Error::other);
        if let Err(error) = forgotten.and_then(|()| files.remove_beside(pool, self.share.0, file)) {
            // Its session is over: it is not replayed.
            log::warn!("cannot remove a journal of names that is not needed any more: {error}");
        }
    }
}
