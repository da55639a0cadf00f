//! Operations on the tables of the namespace: entries, extended attributes, orphans, trims.

use std::collections::BTreeMap;

use super::{State, number};
use crate::failure::{Failure, Result};
use crate::inode::{Flags, Inode};
use crate::names::{self, Named};
use crate::overlay::Table;

impl State {
    // Entries.

    /// Cookie and meaning of a name.
    pub(crate) fn find(&self, directory: u64, name: &[u8]) -> Result<Option<(u64, Named)>> {
        let (found, _) = self.find_place(directory, name)?;
        Ok(found)
    }

    /// The name if it exists, and the cookie that it would get.
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

    /// Adds a new name.
    pub(crate) fn add_entry(&mut self, directory: u64, name: &[u8], inode: u64, kind: u32) -> Result<()> {
        let (_, cookie) = self.find_place(directory, name)?;
        self.check_place(name, cookie)?;
        self.set_entry(directory, cookie, name, inode, kind);
        Ok(())
    }

    /// Returns the cookie for a new name.
    ///
    /// # Errors
    /// `EEXIST`; `ENOSPC` if there are too many names of equal hash; those of the space.
    pub(crate) fn place_for(&self, directory: u64, name: &[u8]) -> Result<u64> {
        match self.find_place(directory, name)? {
            (Some(_), _) => Err(Failure::new(libc::EEXIST)),
            (None, cookie) => self.check_place(name, cookie).map(|()| cookie),
        }
    }

    fn check_place(&self, name: &[u8], cookie: u64) -> Result<()> {
        if cookie >= names::first_cookie(name, self.meta.secret) + names::TWINS_MAX {
            return Err(Failure::new(libc::ENOSPC));
        }
        Ok(())
    }

    /// Points an existing name to another inode.
    pub(crate) fn set_entry(&mut self, directory: u64, cookie: u64, name: &[u8], inode: u64, kind: u32) {
        self.put_value(Table::Entries, &names::key(directory, cookie), &names::encode(inode, kind, name));
        self.unlogged.nodes.insert(inode);
    }

    pub(crate) fn remove_entry(&mut self, directory: u64, cookie: u64) {
        self.set(Table::Entries, &names::key(directory, cookie), None);
    }

    /// Entries of a directory with cookies greater than `after`, until `wants_more` returns false.
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

    /// Discards a file of the object space from a byte on, once all changes so far are durable.
    pub(crate) fn trim(&mut self, data: u64, from: u64) {
        self.put_value(Table::Trims, &data.to_be_bytes(), &from.to_le_bytes());
        self.trims.push((data, from));
    }

    /// Records a cut of a node's file for the next session: this session makes it itself, and
    /// reports that with [`Self::trim_done`].
    pub(crate) fn note_trim(&mut self, data: u64, from: u64, node: u64) {
        self.put_value(Table::Trims, &data.to_be_bytes(), &[from.to_le_bytes(), node.to_le_bytes()].concat());
    }

    /// Reschedules discards that failed after this commit for the next one.
    pub(crate) fn trim_again(&mut self, trims: Vec<(u64, u64)>) {
        self.trims.extend(trims);
    }

    /// The discards left by a session. If the file has grown since a cut, the cut was carried out:
    /// repeating it would remove later data. It is dropped.
    pub(super) fn open_trims(&mut self) -> Result<Vec<(u64, u64)>> {
        let mut noted = Vec::new();
        self.all(Table::Trims, |key, value| {
            let word = |at: usize| value.get(at..).and_then(|rest| rest.first_chunk()).map(|b| u64::from_le_bytes(*b));
            noted.push((number(key), word(0).unwrap_or(0), word(8)));
            Ok(())
        })?;
        let mut trims = Vec::new();
        for (data, from, node) in noted {
            if from > 0 && self.has_grown(data, from, node)? {
                self.trim_done(data);
            } else {
                trims.push((data, from));
            }
        }
        Ok(trims)
    }

    /// Whether the file with that content is larger than it was cut to. `node`: its inode, if that
    /// was noted.
    fn has_grown(&self, data: u64, from: u64, node: Option<u64>) -> Result<bool> {
        if crate::canary!("cut-done-again") {
            return Ok(false);
        }
        // A file has its inode's number for data, unless it was emptied.
        let found = self.inode(node.unwrap_or(data)).ok().filter(|inode| inode.data == data);
        let found = match (found, node) {
            (None, None) => self.all_inodes()?.into_iter().map(|(_, inode)| inode).find(|inode| inode.data == data),
            (found, _) => found,
        };
        Ok(found.is_some_and(|inode| inode.size > from))
    }

    pub(crate) fn trim_done(&mut self, data: u64) {
        self.set(Table::Trims, &data.to_be_bytes(), None);
    }

    /// The same for a trim after a commit, unless a later one for the same file exists.
    pub(crate) fn trim_done_from(&mut self, data: u64, from: u64) {
        let noted = self.active.get(Table::Trims, &data.to_be_bytes()).and_then(|value| value.as_ref());
        let is_another = noted.is_some_and(|value| value.get(..8) != Some(&from.to_le_bytes()[..]));
        if !is_another {
            self.trim_done(data);
        }
    }

    /// Whether data may be past the end of a file: the previous session did not end cleanly, or a
    /// write was refused.
    pub(crate) fn has_loose_end(&self, data: u64) -> bool {
        data < self.loose_below && !self.tidied.contains(&data) || self.refused.contains(&data)
    }

    /// Records that a refused write may have left data past the end of a file.
    pub(crate) fn end_is_loose(&mut self, data: u64) {
        self.refused.insert(data);
    }

    /// The end of a file has been seen to.
    pub(crate) fn end_tidied(&mut self, data: u64) {
        self.tidied.insert(data);
        self.refused.remove(&data);
        // A cut that a session before noted is carried out by that.
        if !crate::canary!("cut-done-again")
            && let Ok(Some(value)) = self.get(Table::Trims, &data.to_be_bytes())
            && value.get(..8) != Some(&[0; 8][..])
        {
            self.trim_done(data);
        }
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

    /// Inodes with extended attributes, and the flags that correspond to these.
    pub(crate) fn xattr_owners(&self, flag_of: fn(&[u8]) -> Option<Flags>) -> Result<BTreeMap<u64, Flags>> {
        let mut owners = BTreeMap::<u64, Flags>::new();
        self.all(Table::Xattrs, |key, _| {
            let flags = owners.entry(number(key)).or_default();
            if let Some(flag) = key.get(8..).and_then(flag_of) {
                flags.set(flag, true);
            }
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
