//! Journals of mounted shares, beside the server's standby memory. Owns what an opening of the pool
//! does with those that a killed server left.
//!
//! A server that keeps what it acknowledges in standby memory keeps the names of its shares beside
//! it, one file a share (`fe_share::JournalPlace`). Data and names go together:
//!
//! 1. An opening of the pool brings the data that is in standby memory to the log. Memory that does
//!    not count takes the journals along (`env::Standby::pass_over_beside`): names without their
//!    data are not replayed.
//! 2. Then the names of each journal are brought into the tree of its share, durably, whatever the
//!    command that opens the pool is for: nothing sees the share without them. Files without a name
//!    stay, because the mount may have outlived the server.
//! 3. The journal is marked as replayed, for a keeper may have it as well, and removed.
//!
//! A journal belongs to one pool, one copy of it, one boot of the machine, one share, and one
//! session of that share's tree. One that cannot be brought back is a loss: the pool remembers it
//! durably (`Pool::remember_loss`) before the journal is kept under another name.
//!
//! A journal that is gone is a loss as well. So the pool notes durably which shares have one
//! (`Pool::note_journal`), before it takes a name. The note goes before the file does, and after
//! its names are durable or their loss is remembered. An opening may die at any of these steps.

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

/// Bytes of what a journal says of its pool and of the boot, at the beginning of its owner.
const POOL_BYTES: usize = 16;
const BOOT_BYTES: usize = 16;

/// The journals of one pool's shares.
#[derive(Debug)]
pub struct Journals {
    files: Arc<FileStandby>,
    pool: [u8; POOL_BYTES],
    /// Of the machine; nothing is kept or replayed if it is not told.
    boot: Option<[u8; BOOT_BYTES]>,
    /// Journals that were not brought back, for `status`.
    notes: Mutex<Vec<String>>,
}

/// What became of a journal.
enum Outcome {
    /// So many changes are in the tree now that it did not have.
    Replayed(u64),
    /// It has nothing that the tree has not.
    Empty,
    /// It is of another boot.
    Void,
    /// It does not count: why.
    Refused(String),
}

impl Journals {
    /// Of a pool, whose standby memory is in that place.
    pub fn new(pool: &Pool, files: Arc<FileStandby>) -> Self {
        let boot = files.boot().ok();
        Self { files, pool: pool.id(), boot, notes: Mutex::default() }
    }

    /// What a journal of a share says of whose it is.
    fn owner(&self, share: DeviceId) -> Vec<u8> {
        [&self.pool[..], &self.boot.unwrap_or_default(), &self.files.copy(), &share.0.to_le_bytes()].concat()
    }

    /// The journals that are there.
    pub fn left(&self) -> Vec<Beside> {
        self.files.left_beside(&self.pool)
    }

    /// Brings back what all journals have that a killed server left. Those that cannot be brought
    /// back for want of room stay; all else that is not brought back is kept and told, and so is
    /// what is gone.
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
                        "{changes} {what} of names in share '{name}' that a server had acknowledged before it died {were} brought back"
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

    /// Remembers the loss of the journals that are noted and not among those that are left: all, or
    /// that of one share.
    fn expect_all(&self, pool: &Pool, left: &[Beside], only: Option<DeviceId>) -> Result<()> {
        let noted = pool.noted_journals()?.into_iter().filter(|share| only.is_none_or(|only| only == *share));
        for share in noted.filter(|share| left.iter().all(|file| file.number != share.0)) {
            let Ok(volume) = pool.volume_of(share) else {
                pool.forget_journal(share)?;
                continue;
            };
            let name = volume.name();
            // Nobody may use it meanwhile. The journal of a share that is mounted is made again.
            let _claimed = match Files::claimed(volume.clone(), volume, TreeUse::Change, PATIENCE) {
                Err(error) if error.kind() == ErrorKind::InUse => return Err(error),
                claimed => claimed.ok(),
            };
            let lost = format!(
                "the journal of share '{name}' is gone, so names that were acknowledged and not synced before its server died \
                 may be missing"
            );
            pool.remember_loss(&lost)?;
            self.note(&Error::new(ErrorKind::Corrupt, lost));
            pool.forget_journal(share)?;
        }
        Ok(())
    }

    /// The same for one share, before its tree is opened: it must not begin without them.
    ///
    /// # Errors
    /// When there are some, and they cannot be brought back yet.
    pub fn bring_back_of(&self, pool: &Pool, share: DeviceId) -> Result<()> {
        let left = self.left();
        self.expect_all(pool, &left, Some(share))?;
        left.iter().filter(|file| file.number == share.0).try_for_each(|file| self.bring_back_one(pool, file).map(drop))
    }

    /// Returns how many changes were brought back that the tree did not have.
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
                    "names in {of} that a server had acknowledged before it died find no room: they are in {place}; make room, and \
                     open the pool again, or remove that file to go on without them"
                );
                Err(Error::with_source(ErrorKind::Full, text, error))
            }
            // It stays where it is, and is asked for again.
            Err(error) if error.kind() == ErrorKind::InUse => Err(error),
            Err(error) => Err(self.set_aside(pool, &of, file, &error.to_string())?),
        }
    }

    /// Keeps a journal that does not count. The pool knows of the loss before.
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
            return Ok(Outcome::Refused("the system does not tell which boot this is".to_owned()));
        };
        let left = match fe_share::find_journal(opened, &self.owner(DeviceId(file.number))) {
            Ok(FoundJournal::Left(left)) => left,
            Ok(FoundJournal::Foreign { owner }) => {
                let of_boot = owner.get(POOL_BYTES..POOL_BYTES + BOOT_BYTES);
                let is_void = of_boot.is_some_and(|of_boot| of_boot != boot);
                let is_noted = pool.noted_journals()?.contains(&DeviceId(file.number));
                return Ok(match is_void {
                    // It took the place of one of this boot.
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
            libc::ESTALE => Error::new(ErrorKind::Conflict, "the share has been opened since by another program"),
            _ => share_trees::error_of(&name, share_trees::NOT_OPENED, failure),
        })
    }

    fn replay_into(space: Arc<dyn ObjectSpace>, left: &Left) -> share::Result<Outcome> {
        let tree = Tree::take_over(space, share_trees::brief_options(), left)?;
        tree.close()?;
        Ok(Outcome::Replayed(tree.brought_back()))
    }

    /// Tells which journals were not brought back.
    pub fn notes(&self) -> Vec<String> {
        self.notes.lock().clone()
    }

    /// Where the journal of a share that is mounted is made.
    pub fn place(self: &Arc<Self>, pool: &Pool, share: DeviceId) -> Arc<dyn JournalPlace> {
        Arc::new(Place { journals: Arc::clone(self), pool: pool.clone(), share })
    }
}

/// The place of one share's journal.
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
            return Err(io::Error::new(io::ErrorKind::Unsupported, "the system does not tell which boot this is"));
        }
        if !self.pool.keeps_acknowledged() {
            return Err(io::Error::other("there is no standby memory for their data"));
        }
        let file = files.make_beside(pool, self.share.0, fill)?;
        // Before it takes a name; a note without a file would be told as a loss.
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
            log::warn!("a journal of names that is not needed any more stays: {error}");
        }
    }
}
