//! Paths of files, told by one look through all names: those of a tree that is open, or, for one
//! that is damaged, those in the pages of its database that are whole, without opening it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::convert::Infallible;

use surface::ObjectSpace;

use super::Tree;
use crate::backend::ROOT;
use crate::failure::Result as TreeResult;
use crate::inode::Inode;
use crate::names;
use crate::overlay::Table;
use crate::pages::{self, Take};
use crate::store::BEHIND_ALL;

/// Directories above one another in a path that is told.
const DEPTH_MAX: usize = 4096;
/// Pairs of a table that are looked at before changes of the tree go on.
const STEP: usize = 1 << 12;

/// Directory and name of inodes.
type NameOf = HashMap<u64, (u64, Vec<u8>)>;

/// The inode, or the directory, that a key is about.
fn number_of(key: &[u8]) -> u64 {
    key.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

/// The path of an inode; `None` if a name in it is not known.
fn path(name_of: &NameOf, inode: u64) -> Option<Vec<u8>> {
    let (mut parts, mut at): (Vec<&[u8]>, u64) = (Vec::new(), inode);
    while at != ROOT && parts.len() < DEPTH_MAX {
        let (directory, name) = name_of.get(&at)?;
        parts.push(name);
        at = *directory;
    }
    parts.reverse();
    Some([&b"/"[..], &parts.join(&b'/')].concat())
}

/// Takes the inodes that have some data, and the names of these and of all directories.
struct Names<'a> {
    files: &'a BTreeSet<u64>,
    /// Which file of the space an inode has.
    file_of: HashMap<u64, u64>,
    name_of: NameOf,
}

impl Take for Names<'_> {
    type Error = Infallible;

    fn pair(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), Infallible> {
        let number = number_of(key);
        match table {
            Table::Inodes => {
                if let Ok(inode) = Inode::decode(number, value)
                    && self.files.contains(&inode.data_file())
                {
                    self.file_of.insert(number, inode.data_file());
                }
            }
            // Tables come in the order of their numbers: inodes first.
            Table::Entries => {
                if let Ok(named) = names::decode(value)
                    && (named.kind == libc::S_IFDIR
                        || self.file_of.contains_key(&named.inode)
                        || self.files.contains(&named.inode))
                {
                    self.name_of.entry(named.inode).or_insert((number, named.name));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn fact(&mut self, _: &str, _: u64) {}
}

/// Takes the numbers of all inodes, and the names of directories and of files that are not among
/// them.
#[derive(Default)]
struct Recordless {
    inodes: HashSet<u64>,
    name_of: NameOf,
    files: BTreeSet<u64>,
}

impl Take for Recordless {
    type Error = Infallible;

    fn pair(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), Infallible> {
        let number = number_of(key);
        if table == Table::Inodes {
            self.inodes.insert(number);
        }
        if table == Table::Entries
            && let Ok(named) = names::decode(value)
        {
            let is_lost = named.kind == libc::S_IFREG && !self.inodes.contains(&named.inode);
            if is_lost {
                self.files.insert(named.inode);
            }
            if is_lost || named.kind == libc::S_IFDIR {
                self.name_of.entry(named.inode).or_insert((number, named.name));
            }
        }
        Ok(())
    }

    fn fact(&mut self, _: &str, _: u64) {}
}

impl Tree {
    /// Files of a space that have a name and no inode, for the page that had it is lost: the number
    /// of each with its path, or with its last name if a directory above is not known.
    pub fn without_records(space: &dyn ObjectSpace) -> BTreeMap<u64, Vec<u8>> {
        let mut found = Recordless::default();
        let Ok(_) = pages::survey(space, &mut found);
        let Recordless { name_of, files, .. } = found;
        let last = |inode: &u64| name_of.get(inode).map(|(_, name)| name.clone()).unwrap_or_default();
        files.into_iter().map(|inode| (inode, path(&name_of, inode).unwrap_or_else(|| last(&inode)))).collect()
    }

    /// Paths of the files of a space that hold such data, as far as they can be told.
    pub fn paths_of(space: &dyn ObjectSpace, files: &BTreeSet<u64>) -> BTreeMap<u64, Vec<u8>> {
        let mut names = Names { files, file_of: HashMap::new(), name_of: HashMap::new() };
        let Ok(_) = pages::survey(space, &mut names);
        let Names { mut file_of, name_of, .. } = names;
        // An inode that is lost has its own number for data, mostly.
        for file in files {
            if name_of.contains_key(file) {
                file_of.entry(*file).or_insert(*file);
            }
        }
        file_of.into_iter().filter_map(|(inode, file)| Some((file, path(&name_of, inode)?))).collect()
    }

    /// Paths of the files that hold such data, and of `others` files beside them at most, by the
    /// numbers of their data. Of several names one is told, and a file without a name is left out.
    /// The tree changes meanwhile: a file that is renamed may be left out, too.
    ///
    /// # Errors
    /// Those of the space.
    pub fn paths_of_files(&self, wanted: &BTreeSet<u64>, others: usize) -> TreeResult<BTreeMap<u64, Vec<u8>>> {
        // Until it is emptied, a file has the number of its inode.
        let has_own_number = |file: &u64| self.inode(*file).is_ok_and(|inode| inode.data_file() == *file);
        let (own, emptied): (BTreeSet<u64>, BTreeSet<u64>) = wanted.iter().partition(|file| has_own_number(file));
        let mut file_of: HashMap<u64, u64> = own.into_iter().map(|file| (file, file)).collect();
        if !emptied.is_empty() {
            self.each_pair(Table::Inodes, |key, value| {
                let number = number_of(key);
                let data = Inode::decode(number, value)?.data_file();
                if emptied.contains(&data) {
                    file_of.insert(number, data);
                }
                Ok(())
            })?;
        }
        let (mut name_of, mut beside) = (NameOf::new(), BTreeSet::new());
        self.each_pair(Table::Entries, |key, value| {
            let named = names::decode(value)?;
            let is_wanted = named.kind == libc::S_IFDIR || file_of.contains_key(&named.inode);
            let is_beside = !is_wanted && named.kind == libc::S_IFREG && beside.len() < others;
            if is_beside {
                beside.insert(named.inode);
            }
            if is_wanted || is_beside {
                name_of.entry(named.inode).or_insert((number_of(key), named.name));
            }
            Ok(())
        })?;
        for inode in beside {
            // It may have gone since. A content in its inode's record is in no file of the space.
            if let Ok(found) = self.inode(inode)
                && found.content().is_none()
            {
                file_of.insert(inode, found.data_file());
            }
        }
        Ok(file_of.into_iter().filter_map(|(inode, file)| Some((file, path(&name_of, inode)?))).collect())
    }

    /// Hands the pairs of a table to `each`, in steps.
    fn each_pair(&self, table: Table, mut each: impl FnMut(&[u8], &[u8]) -> TreeResult<()>) -> TreeResult<()> {
        let mut from = Vec::new();
        loop {
            let (mut left, mut last) = (STEP, Vec::new());
            self.state.read().range(table, &from, &BEHIND_ALL, |key, value| {
                each(key, value)?;
                left -= 1;
                if left == 0 {
                    last = key.to_vec();
                }
                Ok(left > 0)
            })?;
            if left > 0 {
                return Ok(());
            }
            last.push(0);
            from = last;
        }
    }
}
