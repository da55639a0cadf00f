//! [`MapStore`] on fjall 3, an LSM library. Owns its directory: `lsm` (the library's files) and
//! `durable` (how many commits were durable, see below). Does not interpret the map's records.
//!
//! # Assumptions
//!
//! From the sources of fjall 3.1 and lsm-tree 3.1, and tested in `fjall_store_tests.rs`:
//!
//! 1. A batch goes to the journal between a start and an end marker with an xxh3 checksum over its
//!    items, under one lock, and then to the memtable under the same lock: a memtable, and so a
//!    table file, never holds part of a batch.
//! 2. Before a memtable is written as a table, its journal is synced. Tables, the list of tables
//!    and directories are synced before anything that they replace is removed. So tables are never
//!    ahead of the journal.
//! 3. At open the journals are replayed; the last one is cut at the first incomplete batch.
//! 4. Every block of a table (data, index, filter) has an xxh3-128 checksum that is verified when
//!    it is read from the file; so have the list of tables and the tables' tails.
//! 5. A table written directly (*ingestion*) is synced before the list of tables names it. Earlier
//!    commits become tables first, though without a sync of their journal, and its sequence number
//!    is greater than all of theirs; at open, batches of a journal are skipped up to the greatest
//!    number of any table. So nothing from a journal overrides it later.
//! 6. When writing or syncing the journal fails, or the background thread fails, the library is
//!    *poisoned*: commits and persists fail from then on, reads still work. Only reopening helps,
//!    which replays the data that reached the disk.
//!
//! # Gaps in the library, and their workarounds
//!
//! - *Damage in a journal looks like its end*: everything after it is dropped silently, durable or
//!   not. So each commit writes a counter with its batch, [`persist`](MapStore::persist) records
//!   the counter in the file `durable` once the journal is synced, and opening fails when the store
//!   has fewer commits than recorded.
//! - *A torn last batch is sometimes refused rather than dropped*, see `journal_tail`. So it is cut
//!   off before the library sees it, and the counter shows whether that was legitimate; if not, the
//!   journal is restored.
//! - *After a failed sync, pages that exist only in memory pass for written*: the system keeps
//!   those pages and marks them clean. So the cached pages of a journal are dropped before it is
//!   read.
//! - *It removes the tables of a keyspace whose file `current` is missing*, because it considers
//!   such a keyspace unfinished. So it is not allowed to open such a store (`fjall_lists`).
//! - *It does not notice that its files were deleted.* Open journals accept writes, and lose them.
//!   So [`persist`](MapStore::persist) checks whether the file `durable` still has its name.
//! - *Waiting for a dead background thread never ends* in the library. So its limits are never
//!   reached, and [`commit`](MapStore::commit) waits here, where the poison is visible.
//! - *It writes everything to a journal first*, in batches of any size, and keeps up to 64 MB of
//!   that after the tables contain it. So a large batch is written as a table directly, which is
//!   durable as soon as it is committed; if that fails, this store fails, as the library does after
//!   a failed journal write.
//! - *Its memtable limit is fixed when the store is created*. So memtables are rotated here, by the
//!   budget given at open.
//!
//! # Costs
//!
//! Two cores, ext4, a budget of 96 MiB, each batch of 100,000 records persisted. Bytes written
//! include everything (tables, merges) per byte of key and value; CPU and bytes include two seconds
//! after the last batch, in which the second store still merges; memory includes the batch being
//! committed. In brackets the figures with all batches going through journal and memtable.
//!
//! | | 2 million records of 200 bytes, all keys new | 2 million of 541 bytes, 524,288 keys, at random |
//! | --- | --- | --- |
//! | records/s; CPU | 1,260,000 (246,000); 1.5 us each (2.3) | 568,000 (188,000); 2.4 us each (3.6) |
//! | bytes written per byte | 2.4 (3.5) | 1.4 (2.3) |
//! | resident memory, at most | 44 MiB (181) | 81 MiB (225) |
//! | bytes on disk per byte of live records, at the end and two seconds later | 1.5, 2.4 | 5.0, 3.8 |
//! | get of a missing key; of a present one, with a sixth and a fifth of the blocks cached | 1.1 us CPU; 7.3 | 1.1 us CPU; 7.2 |
//! | open after a clean end; verify | 0.14 s; 0.7 s | 0.04 s; 0.6 s |
//!
//! Tried and rejected: lz4 for data blocks (10 % fewer bytes, 30 % more CPU: locations and
//! checksums compress badly), hash indexes and other restart intervals in blocks (no faster),
//! pinning of all index and filter blocks (no faster, unbounded), 4 or 12 tables in level 0 (25 %
//! more bytes; no fewer).

use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fjall::compaction::Leveled;
use fjall::config::{BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry, PartitioningPolicy};
use fjall::{AbstractTree, Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use parking_lot::Mutex;

use crate::durable_mark::DurableMark;
use crate::fjall_errors::{deleted, failed, library_error, lost_commits, lost_list, lost_mark, missing};
use crate::fjall_lists::lists_gone;
use crate::journal_tail::{CutTail, Journal};
use crate::map_store::{MapBatch, MapError, MapStore, ScanStep};

pub(crate) const LSM_DIR: &str = "lsm";
pub(crate) const MARK_FILE: &str = "durable";
const KEYSPACE: &str = "map";
/// The key of the counter of commits. Hidden from users of the store.
const COUNTER_KEY: &[u8] = b"\xff\xff\xff\xff\xff\xff\xff\xffshale-commits";

/// Sealed memtables next to which a commit does not wait for the background thread: one is being
/// written while the next fills. The library itself waits, without checking for failures, at 4.
const SEALED_MAX: usize = 1;
/// Changes from which on a batch is written directly as a table, and not to journal and memtable
/// first: this takes a third of the time per change, and half of the space. A lower limit would
/// create tables so small that searching them costs more.
const TABLE_CHANGES_MIN: usize = 16 << 10;
/// Overhead of a record in a memtable: the key's and value's handles, the node, and the allocator's
/// rounding.
const RECORD_OVERHEAD_BYTES: u64 = 160;
/// Runs in level 0 at which a commit waits. The library slows down, blindly, at 20.
const L0_RUNS_MAX: usize = 18;
/// Tables in level 0 that are merged into level 1 together: the more, the fewer rewrites of level
/// 1, and the more filters per lookup. With 4, a quarter more is written; with 12, nothing is
/// gained.
const L0_TABLES: u8 = 8;
/// Size of a table. With [`L0_TABLES`] it sets level 1 to 512 MiB: the map of a 64 GiB volume
/// written at random fits, and is rewritten once per merge instead of once per level.
const TABLE_BYTES: u64 = 64 << 20;
/// Open table files: few compared to the usual limit of 1024 descriptors, and a fraction
/// ([`FILES_SHARE`]) of a lower limit, because the rest of the process needs some, too.
const FILES_MAX: usize = 128;
const FILES_SHARE: u64 = 8;
const FILES_MIN: usize = 8;
/// Interval for checking whether the background thread made room. The library offers no way to wait
/// for that.
const ROOM_POLL: Duration = Duration::from_millis(2);
/// Checks that find the background thread idle before a commit proceeds: longer than the gap
/// between two of its tasks. The library merges once per table written, and not always where the
/// waiting commit needs it; so only another table makes it continue.
const IDLE_POLLS_MAX: u32 = 100;

/// How a store is opened.
#[derive(Debug, Clone, Copy)]
pub struct FjallOptions {
    /// Budget for memtables and cached blocks, in bytes; at least
    /// [`FjallOptions::MEMORY_BYTES_MIN`]. A batch being committed comes on top.
    pub memory_bytes: u64,
}

impl FjallOptions {
    /// Least memory that makes sense: below it memtables become so small that tables are mere
    /// crumbs.
    pub const MEMORY_BYTES_MIN: u64 = 16 << 20;

    /// Size of a memtable: there are an active one, [`SEALED_MAX`] sealed ones, and briefly one
    /// more.
    fn memtable_bytes(self) -> u64 {
        self.memory_bytes.max(Self::MEMORY_BYTES_MIN) / 8
    }
    /// Budget left by the memtables.
    fn cache_bytes(self) -> u64 {
        self.memory_bytes.max(Self::MEMORY_BYTES_MIN) - 3 * self.memtable_bytes()
    }
}

impl Default for FjallOptions {
    fn default() -> Self {
        Self { memory_bytes: 96 << 20 }
    }
}

/// State carried from one commit to the next.
struct Writer {
    /// Number of batches ever committed.
    commits: u64,
    /// Estimated memory of the active memtable.
    active_bytes: u64,
}

/// The map store on disk.
pub struct FjallStore {
    dir: PathBuf,
    database: Database,
    keyspace: Keyspace,
    memtable_bytes: u64,
    /// Held while a batch is committed, so that the counter and the order agree.
    writer: Mutex<Writer>,
    /// The same number, readable without waiting for a commit.
    commits_done: AtomicU64,
    /// A table could not be written: whether its commit counts is known when the store is opened
    /// again.
    has_failed: AtomicBool,
    mark: Mutex<DurableMark>,
}

impl std::fmt::Debug for FjallStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FjallStore").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl FjallStore {
    /// Makes a new store in `dir`, which is created if need be.
    ///
    /// # Errors
    /// When `dir` holds a store already, or cannot be written to.
    pub fn create(dir: &Path, options: FjallOptions) -> Result<Self, MapError> {
        let mark = dir.join(MARK_FILE);
        if mark.try_exists().map_err(|e| failed(dir, e))?
            || dir.join(LSM_DIR).try_exists().map_err(|e| failed(dir, e))?
        {
            return Err(MapError {
                corrupt: false,
                full: false,
                message: format!("{} already holds a store", dir.display()),
            });
        }
        std::fs::create_dir_all(dir).map_err(|e| failed(dir, e))?;
        let (database, keyspace) = open_database(&dir.join(LSM_DIR), options).map_err(|e| library_error(dir, &e))?;
        // Last, because a store is incomplete without the mark: its creation was interrupted.
        let mark = DurableMark::create(&mark).map_err(|e| failed(&mark, e))?;
        sync_dir(dir)?;
        Ok(Self::assemble(dir, database, keyspace, options, 0, mark))
    }

    /// Opens the store in `dir`.
    ///
    /// # Errors
    /// `corrupt` when it is damaged, or has lost commits that were durable.
    pub fn open(dir: &Path, options: FjallOptions) -> Result<Self, MapError> {
        let mark_path = dir.join(MARK_FILE);
        let mark = DurableMark::open(&mark_path).map_err(|error| match error.kind() {
            ErrorKind::NotFound if dir.join(LSM_DIR).is_dir() => lost_mark(&mark_path, "is gone"),
            ErrorKind::InvalidData => lost_mark(&mark_path, "is damaged in both places"),
            ErrorKind::NotFound => missing(dir),
            _ => failed(&mark_path, error),
        })?;
        Self::open_with_mark(dir, options, Some(mark))
    }

    /// Opens the store with its mark, or recreates the mark.
    pub(crate) fn open_with_mark(
        dir: &Path,
        options: FjallOptions,
        mark: Option<DurableMark>,
    ) -> Result<Self, MapError> {
        let durable = mark.as_ref().map_or(0, DurableMark::value);
        let lsm = dir.join(LSM_DIR);
        // The library would make a new, empty store.
        if !lsm.join("version").try_exists().map_err(|e| failed(&lsm, e))? {
            return Err(MapError {
                corrupt: true,
                full: false,
                message: format!(
                    "{}/version is missing, but {durable} commits were durable in the store",
                    lsm.display()
                ),
            });
        }
        if let Some(gone) = lists_gone(&lsm).map_err(|e| failed(&lsm, e))?.first() {
            return Err(lost_list(gone));
        }
        // The store is empty, so nothing is lost with it; the library would consider it damaged.
        let lock = lsm.join("lock");
        std::fs::File::options().append(true).create(true).open(&lock).map_err(|e| failed(&lock, e))?;
        let cut = cut_torn_tail(&lsm)?;
        let opened =
            open_database(&lsm, options).map_err(|e| library_error(dir, &e)).and_then(|(database, keyspace)| {
                let commits = read_counter(&keyspace).map_err(|e| library_error(dir, &e))?;
                if commits < durable {
                    return Err(lost_commits(dir, durable, commits));
                }
                Ok((database, keyspace, commits))
            });
        if let Some(cut) = cut {
            // If this was not a batch torn by a crash, everything is left in place for further
            // analysis.
            if opened.is_ok() { cut.discard() } else { cut.restore() }.map_err(|e| failed(&lsm, e))?;
        }
        let (database, keyspace, commits) = opened?;
        let mark = match mark {
            Some(mark) => mark,
            None => {
                database.persist(PersistMode::SyncAll).map_err(|e| library_error(dir, &e))?;
                let path = dir.join(MARK_FILE);
                let made = DurableMark::replace(&path, commits).map_err(|e| failed(&path, e))?;
                sync_dir(dir)?;
                made
            }
        };
        Ok(Self::assemble(dir, database, keyspace, options, commits, mark))
    }

    fn assemble(
        dir: &Path,
        database: Database,
        keyspace: Keyspace,
        options: FjallOptions,
        commits: u64,
        mark: DurableMark,
    ) -> Self {
        let active_bytes = keyspace.tree.active_memtable().size() * 2;
        Self {
            dir: dir.to_owned(),
            database,
            keyspace,
            memtable_bytes: options.memtable_bytes(),
            writer: Mutex::new(Writer { commits, active_bytes }),
            has_failed: AtomicBool::new(false),
            commits_done: AtomicU64::new(commits),
            mark: Mutex::new(mark),
        }
    }

    /// Fails if a table could not be written before.
    fn check_failed(&self) -> Result<(), MapError> {
        if self.has_failed.load(Ordering::Acquire) { Err(self.error(&fjall::Error::Poisoned)) } else { Ok(()) }
    }

    fn error(&self, error: &fjall::Error) -> MapError {
        library_error(&self.dir, error)
    }

    /// Seals a memtable that a large batch has filled, so that it immediately becomes a table in
    /// the background: otherwise the next batch would do this, later, and opening the store before
    /// then would have to replay the whole journal.
    fn seal_if_full(&self) -> Result<(), MapError> {
        let mut writer = self.writer.lock();
        if writer.active_bytes > self.memtable_bytes { self.seal(&mut writer) } else { Ok(()) }
    }

    fn seal(&self, writer: &mut Writer) -> Result<(), MapError> {
        self.keyspace.rotate_memtable().map_err(|e| self.error(&e))?;
        writer.active_bytes = 0;
        Ok(())
    }

    /// Seals the memtable when `bytes` more do not fit, and waits until the background thread has
    /// caught up.
    fn make_room(&self, writer: &mut Writer, bytes: u64) -> Result<(), MapError> {
        if writer.active_bytes > 0 && writer.active_bytes + bytes > self.memtable_bytes {
            self.seal(writer)?;
        }
        // A batch larger than a memtable takes the sealed one's place, too.
        self.wait_for_tables(if bytes > self.memtable_bytes { 0 } else { SEALED_MAX })?;
        writer.active_bytes += bytes;
        Ok(())
    }

    /// Waits until the background thread has left no more than `sealed_max` memtables and has
    /// merged most tables of level 0.
    fn wait_for_tables(&self, sealed_max: usize) -> Result<(), MapError> {
        let mut idle_polls = 0;
        while self.keyspace.sealed_memtable_count() > sealed_max || self.keyspace.tree.l0_run_count() >= L0_RUNS_MAX {
            let is_idle = self.keyspace.sealed_memtable_count() == 0
                && self.database.outstanding_flushes() == 0
                && self.database.active_compactions() == 0;
            idle_polls = if is_idle { idle_polls + 1 } else { 0 };
            if idle_polls > IDLE_POLLS_MAX {
                break;
            }
            // Fails when the background thread died: nothing would make room.
            self.database.persist(PersistMode::Buffer).map_err(|e| self.error(&e))?;
            std::thread::sleep(ROOM_POLL);
        }
        Ok(())
    }

    /// Commits by way of memtable and journal: `bytes` in memory.
    fn write(&self, writer: &mut Writer, changes: Changes, bytes: u64) -> Result<(), MapError> {
        self.make_room(writer, bytes)?;
        let mut writes = fjall::OwnedWriteBatch::with_capacity(self.database.clone(), changes.len());
        for (key, value) in changes {
            match value {
                Some(value) => writes.insert(&self.keyspace, key, value),
                None => writes.remove(&self.keyspace, key),
            }
        }
        writes.commit().map_err(|e| self.error(&e))
    }

    /// Commits by writing a table, which is durable then.
    fn write_table(&self, writer: &mut Writer, changes: Changes) -> Result<(), MapError> {
        // The library writes earlier commits to a table first, but neither syncs their journal nor
        // shortens it.
        if writer.active_bytes > 0 {
            self.seal(writer)?;
        }
        if self.mark.lock().value() != writer.commits {
            self.database.persist(PersistMode::SyncAll).map_err(|e| self.error(&e))?;
        }
        self.wait_for_tables(usize::MAX)?;
        let write = || {
            let mut table = self.keyspace.start_ingestion()?;
            for (key, value) in changes {
                match value {
                    Some(value) => table.write(key, value)?,
                    None => table.write_tombstone(key)?,
                }
            }
            table.finish()
        };
        write().map_err(|error| {
            self.has_failed.store(true, Ordering::Release);
            self.error(&error)
        })
    }
}

impl MapStore for FjallStore {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MapError> {
        if key == COUNTER_KEY {
            return Ok(None);
        }
        let value = self.keyspace.get(key).map_err(|e| self.error(&e))?;
        Ok(value.map(|v| v.to_vec()))
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> ScanStep) -> Result<(), MapError> {
        if from >= to {
            return Ok(());
        }
        for entry in self.keyspace.range(from..to) {
            let (key, value) = entry.into_inner().map_err(|e| self.error(&e))?;
            if *key != *COUNTER_KEY && visit(&key, &value) == ControlFlow::Break(()) {
                break;
            }
        }
        Ok(())
    }

    fn commit(&self, batch: MapBatch) -> Result<(), MapError> {
        let sizes = batch.changes.iter().map(|(key, value)| key.len() + value.as_ref().map_or(0, Vec::len));
        let bytes = sizes.sum::<usize>() as u64 + batch.changes.len() as u64 * RECORD_OVERHEAD_BYTES;
        let mut writer = self.writer.lock();
        self.check_failed()?;
        let commits = writer.commits + 1;
        let changes = last_changes(batch, commits);
        if changes.len() < TABLE_CHANGES_MIN {
            self.write(&mut writer, changes, bytes)?;
        } else {
            self.write_table(&mut writer, changes)?;
        }
        writer.commits = commits;
        self.commits_done.store(commits, Ordering::Release);
        Ok(())
    }

    fn persist(&self) -> Result<(), MapError> {
        self.check_failed()?;
        let mut mark = self.mark.lock();
        // The system accepts writes to files without a name, and reports success.
        if mark.is_deleted().map_err(|e| failed(&self.dir, e))? {
            return Err(deleted(&self.dir));
        }
        let commits = self.commits_done.load(Ordering::Acquire);
        if mark.value() == commits {
            // Everything is durable; but a store that has failed must say so.
            return self.database.persist(PersistMode::Buffer).map_err(|e| self.error(&e));
        }
        self.database.persist(PersistMode::SyncAll).map_err(|e| self.error(&e))?;
        mark.write(commits).map_err(|e| failed(&self.dir.join(MARK_FILE), e))?;
        self.seal_if_full()
    }

    fn occupied_bytes(&self) -> u64 {
        occupied(&self.dir)
    }

    fn verify(&self) -> Result<(), MapError> {
        for table in self.keyspace.tree.current_version().iter_tables() {
            let found = hash_file(&table.path).map_err(|e| failed(&table.path, e))?;
            let expected = table.checksum().into_u128();
            if found != expected {
                return Err(MapError {
                    corrupt: true,
                    full: false,
                    message: format!(
                        "table {} is damaged: its checksum is {found:032x}, expected {expected:032x}",
                        table.path.display()
                    ),
                });
            }
        }
        self.scan(&[], &[0xff; 32], &mut |_, _| ControlFlow::Continue(()))
    }
}

fn open_database(lsm: &Path, options: FjallOptions) -> fjall::Result<(Database, Keyspace)> {
    let database = Database::builder(lsm)
        .cache_size(options.cache_bytes())
        // Durability on demand: nothing is written to the file before `persist`, or before 8 KiB
        // have accumulated.
        .manual_journal_persist(true)
        // Values are checksummed, mostly incompressible lists of places.
        .journal_compression(fjall::CompressionType::None)
        .worker_threads(1)
        .max_cached_files(Some(crate::descriptors_share(FILES_SHARE, FILES_MIN, FILES_MAX)))
        .open()?;
    let keyspace = database.keyspace(KEYSPACE, keyspace_options)?;
    Ok((database, keyspace))
}

fn keyspace_options() -> KeyspaceCreateOptions {
    KeyspaceCreateOptions::default()
        .manual_journal_persist(true)
        // Out of reach: memtables are rotated by `make_room`.
        .max_memtable_size(u64::MAX)
        .filter_policy(FilterPolicy::all(FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(10.0))))
        // Unpartitioned, the filter of a large table takes half a megabyte. It did not stay in a
        // small cache, and was reread for most keys: in a map of 90 MiB, random writes took a fifth
        // more CPU, and 32 readers got a third less. In level 0 tables are small, and filters are
        // kept in memory.
        .filter_block_partitioning_policy(PartitioningPolicy::new([false, true]))
        .index_block_partitioning_policy(PartitioningPolicy::new([false, false, true]))
        .data_block_compression_policy(CompressionPolicy::disabled())
        .compaction_strategy(Arc::new(
            Leveled::default().with_l0_threshold(L0_TABLES).with_table_target_size(TABLE_BYTES),
        ))
}

/// Cuts the part after the last whole batch off the last journal that holds any. Older journals
/// were synced before the next one was started: any defect in them is damage.
fn cut_torn_tail(lsm: &Path) -> Result<Option<CutTail>, MapError> {
    CutTail::restore_all(lsm).map_err(|e| failed(lsm, e))?;
    let mut journals = Journal::all(lsm).map_err(|e| failed(lsm, e))?;
    // After a failed commit the library may have started another one, in which nothing was ever
    // committed.
    while journals.len() > 1 && journals.last().is_some_and(Journal::is_empty) {
        journals.pop();
    }
    let last = journals.pop();
    if let Some(journal) = journals.iter().find(|j| j.has_tail()) {
        let message = format!("journal {} is damaged; rebuild the map from the log", journal.path().display());
        return Err(MapError { corrupt: true, full: false, message });
    }
    let torn = last.filter(Journal::has_tail);
    torn.map(|journal| journal.cut().map_err(|e| failed(journal.path(), e))).transpose()
}

fn read_counter(keyspace: &Keyspace) -> fjall::Result<u64> {
    let value = keyspace.get(COUNTER_KEY)?;
    Ok(value.and_then(|v| <[u8; 8]>::try_from(&v[..]).ok()).map_or(0, u64::from_le_bytes))
}

/// Changes in the order of their keys, one for each.
type Changes = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// The last change for each key of a batch, and the counter of commits: all entries of a library
/// batch have the same sequence number, so the library could not order them.
fn last_changes(batch: MapBatch, commits: u64) -> Changes {
    let mut changes = batch.changes;
    changes.push((COUNTER_KEY.to_vec(), Some(commits.to_le_bytes().to_vec())));
    // Nearly always they are in order, and different.
    if changes.windows(2).all(|pair| pair[0].0 < pair[1].0) {
        return changes;
    }
    // Stable: equal keys stay in order. The last one is kept; it comes first if each has moved to
    // its predecessor's place.
    changes.sort_by(|a, b| a.0.cmp(&b.0));
    changes.dedup_by(|later, earlier| {
        let is_same = later.0 == earlier.0;
        if is_same {
            std::mem::swap(later, earlier);
        }
        is_same
    });
    changes
}

pub(crate) fn sync_dir(dir: &Path) -> Result<(), MapError> {
    let sync = |dir: &Path| std::fs::File::open(dir).and_then(|d| d.sync_all()).map_err(|e| failed(dir, e));
    sync(dir)?;
    dir.parent().filter(|p| !p.as_os_str().is_empty()).map_or(Ok(()), sync)
}

/// Bytes on disk of all files below, as far as they can be read: the journals are sparse.
fn occupied(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => occupied(&entry.path()),
        Ok(metadata) => metadata.blocks() * 512,
        Err(_) => 0,
    });
    sizes.sum()
}

pub(crate) fn hash_file(path: &Path) -> std::io::Result<u128> {
    use std::io::Read;
    let mut file = std::fs::File::open(path)?;
    let mut hash = xxhash_rust::xxh3::Xxh3::new();
    let mut piece = vec![0; 1 << 20];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hash.digest128()),
            count => hash.update(&piece[..count]),
        }
    }
}

#[cfg(test)]
#[path = "fjall_store_tests.rs"]
mod tests;
