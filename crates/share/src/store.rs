//! The namespace's tables and what is cached of them. Owns the one open transaction: all changes since the last
//! commit are in it or in the cache of inodes, and every look-up sees them.
//!
//! # Tables
//!
//! | name | key | value |
//! | --- | --- | --- |
//! | `inode` | number | record (`inode.rs`) |
//! | `entry` | directory, cookie (`names.rs`) | inode, type, name |
//! | `xattr` | inode 8 big-endian, name | value |
//! | `orphan` | inode without a name that is still open | nothing |
//! | `trim` | file of the object space | first byte that is to be discarded, once this is durable |
//! | `meta` | `secret`, `used`, `reserved`, `clean` | number |
//!
//! # Numbers
//!
//! Inodes and files of the object space have numbers from one sequence, and none is ever used twice. A commit
//! writes `used`, the next number, and `reserved`, a number up to which may be used before the next commit. After a loss of power
//! numbers from `used` to `reserved` may have been given out and lost: their data is discarded, and the sequence goes on behind them.

use std::collections::{HashMap, HashSet};

use redb::{Database, ReadableTable, ReadableTableMetadata, TableDefinition, WriteTransaction};

use crate::failure::{Failure, Result};
use crate::inode::Inode;
use crate::names::{self, Named};

const INODES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("inode");
const ENTRIES: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("entry");
const XATTRS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("xattr");
const ORPHANS: TableDefinition<'_, u64, ()> = TableDefinition::new("orphan");
const TRIMS: TableDefinition<'_, u64, u64> = TableDefinition::new("trim");
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");

/// Numbers that may be used between two commits; a commit comes before they run out.
const RESERVE: u64 = 1 << 16;

/// The first number that is given out. Those below are the root's and kept.
pub(crate) const FIRST_NUMBER: u64 = 16;

/// Inodes that the cache holds, some 250 bytes each: clean ones go first. A commit comes before there are so many changed ones.
const CACHED_MAX: usize = 1 << 16;

struct Cached {
    inode: Inode,
    is_changed: bool,
}

/// The namespace since the last commit.
pub(crate) struct State {
    transaction: Option<WriteTransaction>,
    inodes: HashMap<u64, Cached>,
    changed_inodes: usize,
    next: u64,
    reserved: u64,
    secret: u64,
    /// Changes since the share was opened; the last one's number.
    pub(crate) changes: u64,
    /// Trims that the open transaction has added.
    trims: Vec<(u64, u64)>,
    /// Files of smaller numbers may have data behind their ends, because the session before did not end in order.
    loose_below: u64,
    /// Files whose end has been seen to since.
    tidied: HashSet<u64>,
}

impl State {
    /// The namespace of a new share. `secret` keys the hash of names.
    pub(crate) fn create(database: &Database, secret: u64) -> Result<Self> {
        let transaction = database.begin_write()?;
        // All tables are there from the beginning.
        transaction.open_table(INODES)?;
        transaction.open_table(ENTRIES)?;
        transaction.open_table(XATTRS)?;
        transaction.open_table(ORPHANS)?;
        transaction.open_table(TRIMS)?;
        transaction.open_table(META)?.insert("secret", secret)?;
        Ok(Self::new(transaction, FIRST_NUMBER, secret, 0))
    }

    /// The namespace as of the last commit.
    pub(crate) fn open(database: &Database) -> Result<Self> {
        let transaction = database.begin_write()?;
        let meta = |key| -> Result<u64> {
            let table = transaction.open_table(META)?;
            let value = table.get(key)?.map(|value| value.value());
            value.ok_or_else(|| Failure::damaged(format_args!("its table of facts has no '{key}'")))
        };
        let (secret, used, reserved, clean) = (meta("secret")?, meta("used")?, meta("reserved")?, meta("clean")?);
        if clean != 0 {
            return Ok(Self::new(transaction, used, secret, 0));
        }
        Ok(Self::new(transaction, reserved, secret, reserved))
    }

    fn new(transaction: WriteTransaction, next: u64, secret: u64, loose_below: u64) -> Self {
        Self {
            transaction: Some(transaction),
            inodes: HashMap::new(),
            changed_inodes: 0,
            next,
            // Nothing may be given out before the first commit has reserved it.
            reserved: next,
            secret,
            // What opening has changed is to be committed.
            changes: 1,
            trims: Vec::new(),
            loose_below,
            tidied: HashSet::new(),
        }
    }

    /// Numbers that an earlier session may have given out and lost, as of the open transaction.
    pub(crate) fn lost_numbers(&self) -> Result<std::ops::Range<u64>> {
        let table = self.transaction()?.open_table(META)?;
        let number = |key| -> Result<u64> { Ok(table.get(key)?.map_or(0, |value| value.value())) };
        let (used, reserved) = (number("used")?, number("reserved")?);
        Ok(if number("clean")? != 0 { 0..0 } else { used..reserved })
    }

    fn transaction(&self) -> Result<&WriteTransaction> {
        // A commit that failed leaves none.
        self.transaction.as_ref().ok_or(Failure::new(libc::EIO))
    }

    /// Notes a change.
    fn changed(&mut self) {
        self.changes += 1;
    }

    /// Whether a commit must come before the next change.
    pub(crate) fn must_commit(&self) -> bool {
        self.reserved - self.next < 8 || self.changed_inodes >= CACHED_MAX / 2
    }

    /// A number that was never used.
    pub(crate) fn allocate(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }

    // Inodes.

    /// # Errors
    /// `ESTALE` if there is no such inode.
    pub(crate) fn inode(&mut self, number: u64) -> Result<Inode> {
        if let Some(cached) = self.inodes.get(&number) {
            return Ok(cached.inode.clone());
        }
        let inode = {
            let table = self.transaction()?.open_table(INODES)?;
            let bytes = table.get(number)?.ok_or(Failure::new(libc::ESTALE))?;
            Inode::decode(number, bytes.value())?
        };
        if self.inodes.len() >= CACHED_MAX {
            self.inodes.retain(|_, cached| cached.is_changed);
        }
        self.inodes.insert(number, Cached { inode: inode.clone(), is_changed: false });
        Ok(inode)
    }

    pub(crate) fn put(&mut self, number: u64, inode: Inode) {
        let before = self.inodes.insert(number, Cached { inode, is_changed: true });
        self.changed_inodes += usize::from(before.is_none_or(|cached| !cached.is_changed));
        self.changed();
    }

    pub(crate) fn remove_inode(&mut self, number: u64) -> Result<()> {
        let before = self.inodes.remove(&number);
        self.changed_inodes -= usize::from(before.is_some_and(|cached| cached.is_changed));
        self.transaction()?.open_table(INODES)?.remove(number)?;
        self.changed();
        Ok(())
    }

    // Entries.

    /// Cookie and meaning of a name.
    pub(crate) fn find(&self, directory: u64, name: &[u8]) -> Result<Option<(u64, Named)>> {
        let (found, _) = self.find_place(directory, name)?;
        Ok(found)
    }

    /// The name if it is there, and the cookie that it would get.
    fn find_place(&self, directory: u64, name: &[u8]) -> Result<(Option<(u64, Named)>, u64)> {
        let first = names::first_cookie(name, self.secret);
        let (from, to) = (names::key(directory, first), names::key(directory, first + names::TWINS_MAX - 1));
        let table = self.transaction()?.open_table(ENTRIES)?;
        let mut free = first;
        for entry in table.range::<&[u8]>(&from[..]..=&to[..])? {
            let (key, value) = entry?;
            let cookie = names::cookie_of(key.value()).ok_or(Failure::new(libc::EIO))?;
            if cookie == free {
                free += 1;
            }
            let named = names::decode(value.value())?;
            if named.name == name {
                return Ok((Some((cookie, named)), free));
            }
        }
        Ok((None, free))
    }

    /// Adds a name that is not there.
    pub(crate) fn add_entry(&mut self, directory: u64, name: &[u8], inode: u64, kind: u32) -> Result<()> {
        let (_, cookie) = self.find_place(directory, name)?;
        if cookie >= names::first_cookie(name, self.secret) + names::TWINS_MAX {
            return Err(Failure::new(libc::ENOSPC));
        }
        let (key, value) = (names::key(directory, cookie), names::encode(inode, kind, name));
        self.transaction()?.open_table(ENTRIES)?.insert(&key[..], &value[..])?;
        self.changed();
        Ok(())
    }

    /// Makes a name that is there mean another inode.
    pub(crate) fn set_entry(&mut self, directory: u64, cookie: u64, name: &[u8], inode: u64, kind: u32) -> Result<()> {
        let (key, value) = (names::key(directory, cookie), names::encode(inode, kind, name));
        self.transaction()?.open_table(ENTRIES)?.insert(&key[..], &value[..])?;
        self.changed();
        Ok(())
    }

    pub(crate) fn remove_entry(&mut self, directory: u64, cookie: u64) -> Result<()> {
        self.transaction()?.open_table(ENTRIES)?.remove(&names::key(directory, cookie)[..])?;
        self.changed();
        Ok(())
    }

    /// Entries of a directory whose cookies are greater than `after`, as long as `wants_more` says so.
    pub(crate) fn list(
        &self,
        directory: u64,
        after: u64,
        mut wants_more: impl FnMut(u64, Named) -> bool,
    ) -> Result<()> {
        let (from, to) = (names::key(directory, after.saturating_add(1)), names::key(directory, u64::MAX));
        let table = self.transaction()?.open_table(ENTRIES)?;
        for entry in table.range::<&[u8]>(&from[..]..=&to[..])? {
            let (key, value) = entry?;
            let cookie = names::cookie_of(key.value()).ok_or(Failure::new(libc::EIO))?;
            if !wants_more(cookie, names::decode(value.value())?) {
                break;
            }
        }
        Ok(())
    }

    pub(crate) fn is_empty(&self, directory: u64) -> Result<bool> {
        let mut is_empty = true;
        self.list(directory, names::COOKIE_DOT_DOT, |_, _| {
            is_empty = false;
            false
        })?;
        Ok(is_empty)
    }

    // Extended attributes.

    pub(crate) fn xattr(&self, inode: u64, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let table = self.transaction()?.open_table(XATTRS)?;
        Ok(table.get(&xattr_key(inode, name)[..])?.map(|value| value.value().to_vec()))
    }

    pub(crate) fn set_xattr(&mut self, inode: u64, name: &[u8], value: &[u8]) -> Result<()> {
        self.transaction()?.open_table(XATTRS)?.insert(&xattr_key(inode, name)[..], value)?;
        self.changed();
        Ok(())
    }

    /// Whether it was there.
    pub(crate) fn remove_xattr(&mut self, inode: u64, name: &[u8]) -> Result<bool> {
        let was_there = self.transaction()?.open_table(XATTRS)?.remove(&xattr_key(inode, name)[..])?.is_some();
        self.changed();
        Ok(was_there)
    }

    pub(crate) fn xattr_names(&self, inode: u64) -> Result<Vec<Vec<u8>>> {
        let (from, to) = (xattr_key(inode, b""), xattr_key(inode + 1, b""));
        let table = self.transaction()?.open_table(XATTRS)?;
        let mut names = Vec::new();
        for entry in table.range::<&[u8]>(&from[..]..&to[..])? {
            names.push(entry?.0.value().get(8..).unwrap_or_default().to_vec());
        }
        Ok(names)
    }

    // Orphans and trims.

    pub(crate) fn set_orphan(&mut self, inode: u64, is_orphan: bool) -> Result<()> {
        {
            let mut table = self.transaction()?.open_table(ORPHANS)?;
            if is_orphan {
                table.insert(inode, ())?
            } else {
                table.remove(inode)?
            };
        }
        self.changed();
        Ok(())
    }

    pub(crate) fn orphans(&self) -> Result<Vec<u64>> {
        let table = self.transaction()?.open_table(ORPHANS)?;
        table.iter()?.map(|entry| Ok(entry?.0.value())).collect()
    }

    /// Has a file of the object space discarded from a byte on, once what has changed until now is durable.
    pub(crate) fn trim(&mut self, data: u64, from: u64) -> Result<()> {
        self.transaction()?.open_table(TRIMS)?.insert(data, from)?;
        self.trims.push((data, from));
        self.changed();
        Ok(())
    }

    /// Trims that the last commit made durable and that no session has carried out.
    pub(crate) fn open_trims(&self) -> Result<Vec<(u64, u64)>> {
        let table = self.transaction()?.open_table(TRIMS)?;
        let trims = table.iter()?.map(|entry| {
            let (data, from) = entry?;
            Ok((data.value(), from.value()))
        });
        trims.collect()
    }

    pub(crate) fn trim_done(&mut self, data: u64) -> Result<()> {
        self.transaction()?.open_table(TRIMS)?.remove(data)?;
        Ok(())
    }

    /// Whether data may lie behind the end of a file, and this is the first time that the question is put.
    pub(crate) fn has_loose_end(&mut self, data: u64) -> bool {
        data < self.loose_below && self.tidied.insert(data)
    }

    // Commit.

    /// Writes what is cached into the transaction, and gives it away with the trims that its commit makes due.
    /// `is_last`: the session ends with it.
    pub(crate) fn freeze(&mut self, is_last: bool) -> Result<(WriteTransaction, Vec<(u64, u64)>)> {
        let reserved = self.next + RESERVE;
        {
            let transaction = self.transaction()?;
            let mut table = transaction.open_table(INODES)?;
            let mut numbers: Vec<u64> =
                self.inodes.iter().filter(|(_, cached)| cached.is_changed).map(|(&number, _)| number).collect();
            numbers.sort_unstable();
            for number in numbers {
                if let Some(cached) = self.inodes.get(&number) {
                    table.insert(number, &cached.inode.encode()[..])?;
                }
            }
            let mut meta = transaction.open_table(META)?;
            meta.insert("used", self.next)?;
            meta.insert("reserved", reserved)?;
            meta.insert("clean", u64::from(is_last))?;
        }
        self.inodes.values_mut().for_each(|cached| cached.is_changed = false);
        self.changed_inodes = 0;
        self.reserved = reserved;
        let transaction = self.transaction.take().ok_or(Failure::new(libc::EIO))?;
        Ok((transaction, std::mem::take(&mut self.trims)))
    }

    /// Goes on with a new transaction after a commit.
    pub(crate) fn thaw(&mut self, database: &Database) -> Result<()> {
        self.transaction = Some(database.begin_write()?);
        Ok(())
    }

    // For checks.

    pub(crate) fn all_inodes(&self) -> Result<Vec<(u64, Inode)>> {
        let table = self.transaction()?.open_table(INODES)?;
        let mut all = Vec::new();
        for entry in table.iter()? {
            let (number, bytes) = entry?;
            let number = number.value();
            // What is cached is newer.
            let cached = self.inodes.get(&number).map(|cached| cached.inode.clone());
            all.push((number, cached.map_or_else(|| Inode::decode(number, bytes.value()), Ok)?));
        }
        let known: HashSet<u64> = all.iter().map(|(number, _)| *number).collect();
        let new = self.inodes.iter().filter(|(number, _)| !known.contains(number));
        all.extend(new.map(|(&number, cached)| (number, cached.inode.clone())));
        Ok(all)
    }

    pub(crate) fn all_entries(&self) -> Result<Vec<(u64, Named)>> {
        let table = self.transaction()?.open_table(ENTRIES)?;
        let mut all = Vec::new();
        for entry in table.iter()? {
            let (key, value) = entry?;
            let directory = key.value().first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
            all.push((directory, names::decode(value.value())?));
        }
        Ok(all)
    }

    pub(crate) fn xattr_count(&self) -> Result<u64> {
        Ok(self.transaction()?.open_table(XATTRS)?.len()?)
    }
}

fn xattr_key(inode: u64, name: &[u8]) -> Vec<u8> {
    [&inode.to_be_bytes()[..], name].concat()
}
