//! What the tables of the namespace mean: entries, extended attributes, orphans, trims.

use std::collections::BTreeSet;

use super::{State, number};
use crate::failure::{Failure, Result};
use crate::inode::Inode;
use crate::names::{self, Named};
use crate::overlay::Table;

impl State {
    // Entries.

    /// Cookie and meaning of a name.
    pub(crate) fn find(&self, directory: u64, name: &[u8]) -> Result<Option<(u64, Named)>> {
        let (found, _) = self.find_place(directory, name)?;
        Ok(found)
    }

    /// The name if it is there, and the cookie that it would get.
    fn find_place(&self, directory: u64, name: &[u8]) -> Result<(Option<(u64, Named)>, u64)> {
        let first = names::first_cookie(name, self.meta.secret);
        let (from, to) = (names::key(directory, first), names::key(directory, first + names::TWINS_MAX));
        let (mut free, mut found) = (first, None);
        self.range(Table::Entries, &from, &to, |key, value| {
            let cookie = names::cookie_of(key).ok_or(Failure::new(libc::EIO))?;
            if cookie == free {
                free += 1;
            }
            if names::name_of(value) == name {
                found = Some((cookie, names::decode(value)?));
            }
            Ok(found.is_none())
        })?;
        Ok((found, free))
    }

    /// Adds a name that is not there.
    pub(crate) fn add_entry(&mut self, directory: u64, name: &[u8], inode: u64, kind: u32) -> Result<()> {
        let (_, cookie) = self.find_place(directory, name)?;
        if cookie >= names::first_cookie(name, self.meta.secret) + names::TWINS_MAX {
            return Err(Failure::new(libc::ENOSPC));
        }
        self.set_entry(directory, cookie, name, inode, kind);
        Ok(())
    }

    /// Makes a name that is there mean another inode.
    pub(crate) fn set_entry(&mut self, directory: u64, cookie: u64, name: &[u8], inode: u64, kind: u32) {
        self.put_value(Table::Entries, &names::key(directory, cookie), &names::encode(inode, kind, name));
    }

    pub(crate) fn remove_entry(&mut self, directory: u64, cookie: u64) {
        self.set(Table::Entries, &names::key(directory, cookie), None);
    }

    /// Entries of a directory whose cookies are greater than `after`, as long as `wants_more` says
    /// so.
    pub(crate) fn list(
        &self,
        directory: u64,
        after: u64,
        mut wants_more: impl FnMut(u64, Named) -> bool,
    ) -> Result<()> {
        let (from, to) = (names::key(directory, after.saturating_add(1)), names::key(directory, u64::MAX));
        self.range(Table::Entries, &from, &to, |key, value| {
            let cookie = names::cookie_of(key).ok_or(Failure::new(libc::EIO))?;
            Ok(wants_more(cookie, names::decode(value)?))
        })
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
        self.get(Table::Xattrs, &xattr_key(inode, name))
    }

    pub(crate) fn set_xattr(&mut self, inode: u64, name: &[u8], value: &[u8]) {
        self.put_value(Table::Xattrs, &xattr_key(inode, name), value);
    }

    pub(crate) fn remove_xattr(&mut self, inode: u64, name: &[u8]) {
        self.set(Table::Xattrs, &xattr_key(inode, name), None);
    }

    pub(crate) fn xattr_names(&self, inode: u64) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        self.range(Table::Xattrs, &xattr_key(inode, b""), &xattr_key(inode + 1, b""), |key, _| {
            names.push(key.get(8..).unwrap_or_default().to_vec());
            Ok(true)
        })?;
        Ok(names)
    }

    // Orphans and trims.

    pub(crate) fn set_orphan(&mut self, inode: u64, is_orphan: bool) {
        self.set(Table::Orphans, &inode.to_be_bytes(), is_orphan.then(Box::default));
    }

    pub(crate) fn orphans(&self) -> Result<Vec<u64>> {
        let mut orphans = Vec::new();
        self.all(Table::Orphans, |key, _| {
            orphans.push(number(key));
            Ok(())
        })?;
        Ok(orphans)
    }

    /// Has a file of the object space discarded from a byte on, once what has changed until now is
    /// durable.
    pub(crate) fn trim(&mut self, data: u64, from: u64) {
        self.note_trim(data, from);
        self.trims.push((data, from));
    }

    /// As [`Self::trim`], for the next session: this one does it itself, and says so with
    /// [`Self::trim_done`].
    pub(crate) fn note_trim(&mut self, data: u64, from: u64) {
        self.put_value(Table::Trims, &data.to_be_bytes(), &from.to_le_bytes());
    }

    /// Has discarded behind the next commit what could not be behind this one.
    pub(crate) fn trim_again(&mut self, trims: Vec<(u64, u64)>) {
        self.trims.extend(trims);
    }

    pub(super) fn open_trims(&self) -> Result<Vec<(u64, u64)>> {
        let mut trims = Vec::new();
        self.all(Table::Trims, |key, value| {
            trims.push((number(key), value.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))));
            Ok(())
        })?;
        Ok(trims)
    }

    pub(crate) fn trim_done(&mut self, data: u64) {
        self.set(Table::Trims, &data.to_be_bytes(), None);
    }

    /// Whether data may lie behind the end of a file: the session before did not end in order, or a
    /// write was refused.
    pub(crate) fn has_loose_end(&self, data: u64) -> bool {
        data < self.loose_below && !self.tidied.contains(&data) || self.refused.contains(&data)
    }

    /// A write behind the end of a file was refused, and may have left something there.
    pub(crate) fn end_is_loose(&mut self, data: u64) {
        self.refused.insert(data);
    }

    /// The end of a file has been seen to.
    pub(crate) fn end_tidied(&mut self, data: u64) {
        self.tidied.insert(data);
        self.refused.remove(&data);
    }

    // For checks.

    pub(crate) fn all_inodes(&self) -> Result<Vec<(u64, Inode)>> {
        let mut all = Vec::new();
        self.all(Table::Inodes, |key, value| {
            all.push((number(key), Inode::decode(number(key), value)?));
            Ok(())
        })?;
        Ok(all)
    }

    /// Directories, cookies, and names with their inodes.
    pub(crate) fn all_entries(&self) -> Result<Vec<(u64, u64, Named)>> {
        let mut all = Vec::new();
        self.all(Table::Entries, |key, value| {
            all.push((number(key), names::cookie_of(key).unwrap_or(0), names::decode(value)?));
            Ok(())
        })?;
        Ok(all)
    }

    /// Inodes that have extended attributes.
    pub(crate) fn xattr_owners(&self) -> Result<BTreeSet<u64>> {
        let mut owners = BTreeSet::new();
        self.all(Table::Xattrs, |key, _| {
            owners.insert(number(key));
            Ok(())
        })?;
        Ok(owners)
    }

    pub(crate) fn secret(&self) -> u64 {
        self.meta.secret
    }

    pub(crate) fn xattr_count(&self) -> Result<u64> {
        let mut count = 0;
        self.all(Table::Xattrs, |_, _| {
            count += 1;
            Ok(())
        })?;
        Ok(count)
    }
}

fn xattr_key(inode: u64, name: &[u8]) -> Vec<u8> {
    [&inode.to_be_bytes()[..], name].concat()
}
