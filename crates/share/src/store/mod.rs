//! The namespace as its users see it: the database as of its last commit, overlaid with all later
//! changes. Owns the caches.
//!
//! # Tables
//!
//! | name | key | value |
//! | --- | --- | --- |
//! | `inode` | number | record (`inode.rs`) |
//! | `entry` | directory, cookie (`names.rs`) | inode, type, name |
//! | `xattr` | inode, name | value |
//! | `orphan` | inode without a name that is still open | nothing |
//! | `trim` | file of the object space | first byte that is to be discarded 8, once this is durable; of a cut, its inode 8 |
//! | `meta` | `secret`, `used`, `reserved`, `clean`, `commit`, `session`, `replayed`, `loose`, `generation` | number |
//!
//! Numbers in keys are 8 bytes, big-endian; in values little-endian.
//!
//! # Layers
//! # Layers
//!
//! A lookup consults the *active* overlay, which takes changes, then the *frozen* one, which a
//! commit is writing into the database, then the database as of the previous commit. So neither
//! readers nor writers wait for a commit.
//! # Numbers
//!
//! Inodes and files of the object space have numbers from one sequence, and none is ever used
//! twice. A commit writes `used`, the next number, and `reserved`, a number up to which may be used
//! before the next commit. After a loss of power numbers from `used` to `reserved` may have been
//! given out and lost: their data is discarded, and the sequence goes on behind them.
//!
//! A rollback reverts `used`, and a difference brings that of another pool. The space knows how far
//! the sequence had come ([`Lineage`]), and has another generation then: so the sequence goes on
//! after all numbers of earlier states. New inodes have the generation of the space.

mod database;
mod rebuilt;
mod tables;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use redb::Database;
use surface::Lineage;

use self::database::{Base, Meta};
pub(crate) use self::database::{FACTS, Frozen, META, Reopen, TABLES, create, meta};
pub(crate) use self::rebuilt::{Rebuilt, Surviving};
use crate::backend::Facts;
use crate::failure::{Failure, Result};
use crate::inode::Inode;
use crate::overlay::{self, Key, Merged, Overlay, Table, Value};
use crate::tree::MountPoints;

/// Numbers available between two commits; a commit comes before they run out.
const RESERVE: u64 = 1 << 16;

/// Numbers that are reserved in the space at one time. Each reservation is a flush.
const SPACE_RESERVE: u64 = 1 << 20;

/// The first number assigned. Lower ones belong to the root and the log, or are reserved.
pub(crate) const FIRST_NUMBER: u64 = 16;

/// Greater than all keys: numbers stay below 2^63.
pub(crate) const AFTER_ALL_KEYS: [u8; 9] = [0xff; 9];
/// Most inodes in the cache, some 250 bytes each, plus the content of small files.
const CACHED_MAX: usize = 1 << 16;

/// Approximate memory for changes before a commit is due. While it is written, as much again may
/// accumulate.
const OVERLAY_BYTES: usize = 32 << 20;

/// The largest record of the log. More is committed: that costs less than to write it twice.
const RECORD_BYTES_MAX: usize = 1 << 20;

/// Changes that are remembered for the next record of the log. More would not fit.
const UNLOGGED_MAX: usize = 1 << 14;

/// Fewest bytes written by a commit: heads, the tables of tables, and the map of free pages, some
/// of them with their copies.
const COMMIT_BYTES: u64 = 128 << 10;

/// Bytes that a change of a key makes a commit write at most, about: a leaf, and its part of the
/// pages above and of their copies.
const KEY_BYTES: u64 = 6 << 10;

/// Commits up to this size are made without checking for space first.
const COMMIT_BYTES_SMALL: u64 = 3 * COMMIT_BYTES;

/// Fraction of the available space that one commit may need: while it is written, as much again may
/// accumulate.
const ROOM_DIVISOR: u64 = 4;

/// After a commit that found no space, no early one is tried before the changes have grown by this
/// fraction.
const POSTPONED_DIVISOR: u64 = 8;

/// Whether a commit is due before the next change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// It need not.
    Not,
    /// It should come, if there is space for it. Otherwise changes wait in memory.
    Early,
    /// It must.
    Now,
}

/// Changes since the last record of the log.
#[derive(Default)]
struct Unlogged {
    /// Keys that have changed.
    keys: BTreeSet<(Table, Key)>,
    /// Nodes of which more than times has changed.
    nodes: BTreeSet<u64>,
    /// There were too many to record: only a commit makes them durable.
    is_too_much: bool,
}

impl Unlogged {
    fn add(&mut self, table: Table, key: &[u8]) {
        self.keys.insert((table, key.into()));
        self.is_too_much |= self.keys.len() > UNLOGGED_MAX;
        if self.is_too_much {
            self.keys.clear();
            self.nodes.clear();
        }
    }

    /// Whether more than the times of a node may have changed.
    fn may_concern(&self, node: u64) -> bool {
        self.is_too_much || self.nodes.contains(&node)
    }
}

/// The part of the changes for the log.
pub(crate) enum ToLog {
    /// The database or the log has all changes.
    Nothing,
    /// A record.
    Record {
        commit: u64,
        body: Vec<u8>,
        /// Whether it depends on data that may not be durable: writes must be ordered before it.
        must_order_first: bool,
    },
    /// Too large for a record: a commit is required.
    TooMuch,
}

/// The namespace.
pub(crate) struct State {
    base: Base,
    active: Overlay,
    frozen: Option<Arc<Overlay>>,
    unlogged: Unlogged,
    unlogged_frozen: Unlogged,
    /// Nodes whose changes are being made durable by the log.
    in_log_turn: Unlogged,
    cache: Mutex<HashMap<u64, Inode>>,
    next: u64,
    reserved: u64,
    reserved_by_commit: u64,
    /// The space reserves numbers below this one for the tree; `None` if it reserves none.
    space_reserved: Option<u64>,
    meta: Meta,
    /// Changes since the share was opened; the last one's number.
    pub(crate) changes: u64,
    /// Trims that the next commit makes due.
    trims: Vec<(u64, u64)>,
    /// Whether a change depends on something that no flush may have made durable: data that a size
    /// shows, or a discard.
    pub(crate) must_order_first: bool,
    /// Keys changed by the current operation, if there is a journal.
    touched: Vec<(Table, Key)>,
    pub(crate) keeps_journal: bool,
    /// Bytes of records that went to the journal for the next commit.
    pub(crate) journal_bytes: usize,
    /// Files with smaller numbers may have data past their ends, because an earlier session did not
    /// end cleanly.
    loose_below: u64,
    /// Files whose ends were tidied since.
    tidied: HashSet<u64>,
    /// Files that may have data past their ends from a refused write.
    refused: HashSet<u64>,
    /// A commit found no room, and its changes wait for the next one.
    pub(crate) is_behind: bool,
    /// A commit hit a damaged page, and its changes wait for one that does not: no change is
    /// accepted before.
    pub(crate) is_stuck: bool,
    /// Whether the page for the next new inode is readable.
    takes_inodes: bool,
    /// No early commit is made that writes fewer bytes: one of this size found no space.
    postponed_bytes: u64,
    /// Directories reserved for mounts of other trees.
    pub(crate) mount_points: MountPoints,
    /// Of the database.
    facts: Arc<Facts>,
    reopen: Reopen,
}

impl State {
    /// The namespace as of the last commit, for a new session. No number may be assigned before a
    /// commit.
    pub(crate) fn open(database: &Database, facts: Arc<Facts>, reopen: Reopen) -> Result<Self> {
        let meta = database::meta(database)?;
        Ok(Self {
            base: Base::read(database, reopen.clone())?,
            reopen,
            active: Overlay::default(),
            frozen: None,
            unlogged: Unlogged::default(),
            unlogged_frozen: Unlogged::default(),
            in_log_turn: Unlogged::default(),
            cache: Mutex::default(),
            next: meta.used,
            reserved: meta.used,
            reserved_by_commit: 0,
            space_reserved: None,
            meta: Meta { commit: meta.commit + 1, ..meta },
            // The changes made by opening must be committed.
            changes: 1,
            trims: Vec::new(),
            must_order_first: false,
            touched: Vec::new(),
            keeps_journal: false,
            journal_bytes: 0,
            loose_below: 0,
            tidied: HashSet::new(),
            refused: HashSet::new(),
            is_behind: false,
            is_stuck: false,
            takes_inodes: false,
            postponed_bytes: 0,
            mount_points: MountPoints::default(),
            facts,
        })
    }

    /// Applies changes from a record of a log or a journal, belonging to the commit `commit`, with
    /// the next number at that time. Returns whether any of them changes names, files or
    /// attributes.
    pub(crate) fn replay(&mut self, commit: u64, next: u64, changes: &[u8]) -> Result<bool> {
        self.next = self.next.max(next);
        // Numbers of commits are not used twice.
        self.meta.commit = self.meta.commit.max(commit + 1);
        let mut is_for_users = false;
        overlay::apply(changes, |table, key, value| {
            // A commit also records on its own that it has discarded data.
            is_for_users |= table != Table::Trims;
            self.set(table, key, value);
        })?;
        Ok(is_for_users)
    }

    /// Starts a session after all replay: returns the numbers that the previous one may have
    /// assigned and lost. `replayed`: the session whose journal was replayed. `lineage`: that of
    /// the space.
    pub(crate) fn begin_session(&mut self, replayed: u64, lineage: Option<Lineage>) -> Result<std::ops::Range<u64>> {
        let lost = self.begin_after_last(replayed)?;
        let Some(lineage) = lineage else { return Ok(lost) };
        self.space_reserved = Some(lineage.numbers);
        if self.meta.generation != lineage.generation {
            self.meta.generation = lineage.generation;
            if !crate::canary!("number-taken-back") {
                self.next = self.next.max(lineage.numbers);
                self.reserved = self.next;
            }
        }
        Ok(lost)
    }

    /// Starts a session whose numbers follow those of the last session in the same state.
    fn begin_after_last(&mut self, replayed: u64) -> Result<std::ops::Range<u64>> {
        self.meta.session += 1;
        self.meta.replayed = replayed;
        self.loose_below = self.meta.loose;
        // Discards requested by the last session, which may not have happened.
        self.trims = self.open_trims()?;
        if self.meta.clean {
            return Ok(0..0);
        }
        let lost = self.next..self.meta.reserved;
        if !crate::canary!("number-reused") {
            self.next = self.meta.reserved;
        }
        self.reserved = self.next;
        (self.loose_below, self.meta.loose) = (self.next, self.next);
        Ok(lost)
    }

    /// Generation of new inodes.
    pub(crate) fn generation(&self) -> u32 {
        self.meta.generation
    }

    /// Numbers below this one must be reserved in the space before the next commit; `None` if they
    /// are.
    pub(crate) fn numbers_to_reserve(&self) -> Option<u64> {
        let needed = self.reserved + RESERVE;
        (self.space_reserved? < needed).then_some(needed + SPACE_RESERVE)
    }

    /// Records that the space reserves numbers below this one.
    pub(crate) fn numbers_are_reserved(&mut self, end: u64) {
        self.space_reserved = Some(end);
    }

    /// Number of this opening of the share.
    pub(crate) fn session(&self) -> u64 {
        self.meta.session
    }

    /// Number of the commit that the next changes belong to.
    pub(crate) fn commit_number(&self) -> u64 {
        self.meta.commit
    }

    /// Whether a commit is due before the next change. `room` returns how much more the database
    /// may grow, and `journal_bytes` is the limit for the journal's records.
    pub(crate) fn commit_due(&self, journal_bytes: usize, room: impl FnOnce() -> u64) -> Due {
        if self.reserved.saturating_sub(self.next) < 8
            || self.active.bytes() >= OVERLAY_BYTES
            || self.journal_bytes >= journal_bytes
        {
            return Due::Now;
        }
        // In a nearly full space a commit comes early, as long as there is space for it.
        let bytes = self.commit_bytes();
        let is_early = bytes > COMMIT_BYTES_SMALL.max(self.postponed_bytes) && bytes > room() / ROOM_DIVISOR;
        if is_early { Due::Early } else { Due::Not }
    }

    /// An early commit found no space: changes continue in memory, and some accumulate before the
    /// next attempt.
    pub(crate) fn postpone_commit(&mut self) {
        let bytes = self.commit_bytes();
        self.postponed_bytes = bytes + bytes / POSTPONED_DIVISOR;
    }

    /// Upper estimate of the bytes that a commit would write: each key may be in a different page,
    /// as far as there are that many pages.
    pub(crate) fn commit_bytes(&self) -> u64 {
        let database = self.facts.length();
        let pages = (self.active.keys() as u64 * KEY_BYTES).min(database + database / 16);
        COMMIT_BYTES + database / 1024 + pages + 2 * self.active.bytes() as u64
    }

    /// Whether a commit would free the space of deleted files.
    pub(crate) fn commit_frees(&self) -> bool {
        !self.trims.is_empty()
    }

    /// Whether the database has all changes.
    pub(crate) fn is_settled(&self) -> bool {
        self.active.keys() == 0 && self.frozen.is_none()
    }

    /// Returns an unused number.
    pub(crate) fn allocate(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }

    /// The same for a new inode, unless its target page is damaged: no commit could write it.
    ///
    /// # Errors
    /// Those of reading that page.
    pub(crate) fn allocate_inode(&mut self) -> Result<u64> {
        if !self.takes_inodes {
            self.base.get(Table::Inodes, &self.next.to_be_bytes())?;
            self.takes_inodes = true;
        }
        Ok(self.allocate())
    }

    // Keys and values.

    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let changed = self.active.get(table, key);
        let changed = changed.or_else(|| self.frozen.as_ref().and_then(|frozen| frozen.get(table, key)));
        match changed {
            Some(value) => Ok(value.as_ref().map(|value| value.to_vec())),
            None => self.base.get(table, key),
        }
    }

    fn set(&mut self, table: Table, key: &[u8], value: Value) {
        // Of an entry, this is the directory.
        self.unlogged.nodes.insert(number(key));
        self.set_times(table, key, value);
    }

    /// The same for a change of nothing but times.
    fn set_times(&mut self, table: Table, key: &[u8], value: Value) {
        self.active.set(table, key, value);
        self.unlogged.add(table, key);
        if self.keeps_journal {
            self.touched.push((table, key.into()));
        }
        self.changes += 1;
    }

    fn put_value(&mut self, table: Table, key: &[u8], value: &[u8]) {
        self.set(table, key, Some(value.into()));
    }

    /// Keys and values from `from` up to `to`, as long as `each` wants more.
    pub(crate) fn range(
        &self,
        table: Table,
        from: &[u8],
        to: &[u8],
        mut each: impl FnMut(&[u8], &[u8]) -> Result<bool>,
    ) -> Result<()> {
        let mut changes = Merged::new(&self.active, self.frozen.as_deref(), table, from, to).peekable();
        let mut stored = self.base.range(table, from, to)?;
        let mut next_stored = stored.take_next()?;
        loop {
            let key = next_stored.as_ref().map(|(key, _)| key.value());
            let takes_change = match (changes.peek(), key) {
                (None, None) => return Ok(()),
                (Some((changed, _)), Some(key)) => ***changed <= *key,
                (changed, _) => changed.is_some(),
            };
            if !takes_change {
                if let Some((key, value)) = &next_stored
                    && !each(key.value(), value.value())?
                {
                    return Ok(());
                }
                next_stored = stored.take_next()?;
                continue;
            }
            let Some((changed, value)) = changes.next() else { return Ok(()) };
            if key.is_some_and(|key| *key == **changed) {
                next_stored = stored.take_next()?;
            }
            if let Some(value) = value
                && !each(changed, value)?
            {
                return Ok(());
            }
        }
    }

    fn all(&self, table: Table, mut each: impl FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()> {
        self.range(table, &[], &AFTER_ALL_KEYS, |key, value| each(key, value).map(|()| true))
    }

    // Inodes.

    /// # Errors
    /// `ESTALE` if there is no such inode.
    pub(crate) fn inode(&self, number: u64) -> Result<Inode> {
        self.look_at(number, Inode::clone)
    }

    /// Applies `look` to an inode.
    ///
    /// # Errors
    /// `ESTALE` if there is no such inode.
    pub(crate) fn look_at<T>(&self, number: u64, look: impl FnOnce(&Inode) -> T) -> Result<T> {
        if let Some(inode) = self.cache.lock().get(&number) {
            return Ok(look(inode));
        }
        let bytes = self.get(Table::Inodes, &number.to_be_bytes())?.ok_or(Failure::new(libc::ESTALE))?;
        let inode = Inode::decode(number, &bytes)?;
        let looked = look(&inode);
        self.remember(number, inode);
        Ok(looked)
    }

    fn remember(&self, number: u64, inode: Inode) {
        let mut cache = self.cache.lock();
        if cache.len() >= CACHED_MAX {
            cache.clear();
        }
        cache.insert(number, inode);
    }

    pub(crate) fn put(&mut self, number: u64, inode: Inode) {
        let (key, value) = (number.to_be_bytes(), Some(inode.encode().into()));
        // An operation that changes an inode has just read it.
        let before = self.cache.get_mut().get(&number);
        let changes_times_only = before.is_some_and(|before| inode.differs_in_times_only(before));
        if changes_times_only || crate::canary!("data-sync-loses-size") {
            self.set_times(Table::Inodes, &key, value);
        } else {
            self.set(Table::Inodes, &key, value);
        }
        self.remember(number, inode);
    }

    pub(crate) fn remove_inode(&mut self, number: u64) {
        self.cache.lock().remove(&number);
        self.set(Table::Inodes, &number.to_be_bytes(), None);
    }

    // Durability.

    /// A canary: names that have changed do not go into the log.
    #[cfg(feature = "canaries")]
    pub(crate) fn forget_unlogged_names(&mut self) {
        self.unlogged.keys.retain(|(table, _)| *table != Table::Entries);
    }

    /// Ends an operation and returns the journal record of its changes; `None` if there were none.
    /// `request` and `result`: the request's number and its result.
    pub(crate) fn end_operation(&mut self, request: u64, result: u64) -> Option<Vec<u8>> {
        if self.touched.is_empty() {
            return None;
        }
        let mut record = journal_record(request, result, self.next);
        for (table, key) in std::mem::take(&mut self.touched) {
            if let Some(value) = self.active.get(table, &key) {
                overlay::encode(&mut record, table, &key, value);
            }
        }
        self.journal_bytes += record.len();
        Some(record)
    }

    /// Whether the data of a node needs more than a flush to be found after a loss of power: more
    /// than its times has changed since the last record or commit that is durable.
    pub(crate) fn needs_record(&self, node: u64) -> bool {
        [&self.unlogged, &self.unlogged_frozen, &self.in_log_turn].iter().any(|changes| changes.may_concern(node))
    }

    /// Takes the changes whose durability makes everything so far durable. [`Self::log_is_durable`]
    /// or [`Self::log_failed`] must follow.
    pub(crate) fn take_for_log(&mut self) -> ToLog {
        let must_order_first = std::mem::take(&mut self.must_order_first);
        let (frozen, mut active) = (std::mem::take(&mut self.unlogged_frozen), std::mem::take(&mut self.unlogged));
        active.nodes.extend(frozen.nodes);
        active.is_too_much |= frozen.is_too_much;
        let mut keys = std::mem::take(&mut active.keys);
        self.in_log_turn = active;
        if self.in_log_turn.is_too_much {
            return ToLog::TooMuch;
        }
        keys.extend(frozen.keys);
        if keys.is_empty() {
            return ToLog::Nothing;
        }
        let mut body = self.next.to_le_bytes().to_vec();
        for (table, key) in keys {
            let changed = self.active.get(table, &key);
            let changed = changed.or_else(|| self.frozen.as_ref().and_then(|frozen| frozen.get(table, &key)));
            if let Some(value) = changed {
                overlay::encode(&mut body, table, &key, value);
            }
            if body.len() > RECORD_BYTES_MAX {
                return ToLog::TooMuch;
            }
        }
        ToLog::Record { commit: self.meta.commit, body, must_order_first }
    }

    /// The changes that were taken for the log are durable.
    pub(crate) fn log_is_durable(&mut self) {
        self.in_log_turn = Unlogged::default();
    }

    /// A record taken for the log was not written.
    pub(crate) fn log_failed(&mut self) {
        // Only a commit is certain to contain all of it.
        self.in_log_turn = Unlogged::default();
        self.unlogged.is_too_much = true;
        self.must_order_first = true;
    }

    /// Returns the changes for a commit to write. `is_last`: the session ends with it.
    ///
    /// # Errors
    /// `EIO` if the previous commit failed.
    pub(crate) fn freeze(&mut self, is_last: bool) -> Result<Frozen> {
        if self.frozen.is_some() {
            return Err(Failure::new(libc::EIO));
        }
        let overlay = Arc::new(std::mem::take(&mut self.active));
        self.frozen = Some(overlay.clone());
        self.unlogged_frozen = std::mem::take(&mut self.unlogged);
        self.reserved_by_commit = self.next + RESERVE;
        // Ends that were not tidied in this session are left to the next one.
        if !self.refused.is_empty() {
            self.meta.loose = self.next;
        }
        let meta = Meta { used: self.next, reserved: self.reserved_by_commit, clean: is_last, ..self.meta };
        self.meta.commit += 1;
        // Postponed changes stay in the journal, and so do those that depend on them.
        if !self.is_behind {
            self.journal_bytes = 0;
        }
        Ok(Frozen { overlay, meta, trims: std::mem::take(&mut self.trims), changes: self.changes })
    }

    /// Continues after a commit that found no space, or needs a damaged page: its changes wait for
    /// the next one.
    ///
    /// Records of the log and of the journal are in the half of their commit, which distinguishes
    /// two commits. So no third one starts before the postponed one is durable: the next commit
    /// holds back all changes, and if it fails too, it never existed.
    pub(crate) fn unfreeze(&mut self, frozen: Frozen) {
        self.frozen = None;
        self.active.absorb(&frozen.overlay);
        self.unlogged.is_too_much = true;
        self.unlogged_frozen = Unlogged::default();
        let since = std::mem::replace(&mut self.trims, frozen.trims);
        self.trims.extend(since);
        if self.is_behind {
            self.meta.commit = frozen.meta.commit;
        }
        self.is_behind = true;
    }

    /// Switches to a reopened database, as of the same commit.
    pub(crate) fn read_from(&mut self, database: &Database, facts: Arc<Facts>) -> Result<()> {
        self.base = Base::read(database, self.reopen.clone())?;
        (self.facts, self.takes_inodes) = (facts, false);
        Ok(())
    }

    /// Continues when the frozen changes are durable.
    pub(crate) fn thaw(&mut self, database: &Database, facts: Arc<Facts>) -> Result<()> {
        self.read_from(database, facts)?;
        self.is_stuck = false;
        self.frozen = None;
        self.unlogged_frozen = Unlogged::default();
        self.reserved = self.reserved_by_commit;
        self.postponed_bytes = 0;
        if std::mem::take(&mut self.is_behind) {
            self.journal_bytes = 0;
        }
        Ok(())
    }
}

/// The head of a record for the journal: request 8, result 8, next number 8; changes follow.
pub(crate) fn journal_record(request: u64, result: u64, next: u64) -> Vec<u8> {
    [request.to_le_bytes(), result.to_le_bytes(), next.to_le_bytes()].concat()
}

/// The number that a key begins with.
fn number(key: &[u8]) -> u64 {
    key.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}
