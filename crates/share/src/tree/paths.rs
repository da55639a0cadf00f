//! Paths of files, found by one pass over all names: those of an open tree, or, for a damaged one,
//! those that can be read in its database, without opening it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use surface::ObjectSpace;

use super::Tree;
use crate::backend::ROOT;
use crate::failure::Result as TreeResult;
use crate::inode::Inode;
use crate::names::{self, Named};
use crate::overlay::Table;
use crate::reading::{self, Take};
use crate::store::AFTER_ALL_KEYS;

/// Most nested directories in a displayed path.
const DEPTH_MAX: usize = 4096;
/// Pairs of a table examined before changes of the tree continue.
const STEP: usize = 1 << 12;

/// Most paths listed for one file.
const PATHS_MAX: usize = 20;

/// All paths of a file, the first of them in full.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Paths {
    told: Vec<Vec<u8>>,
    more: usize,
}

impl Paths {
    /// Adds one.
    pub fn add(&mut self, path: Vec<u8>) {
        if self.told.len() < PATHS_MAX { self.told.push(path) } else { self.more += 1 }
    }

    /// The listed paths.
    pub fn listed(&self) -> &[Vec<u8>] {
        &self.told
    }
}

impl fmt::Display for Paths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut told = self.told.iter().map(|path| names::in_words(path));
        write!(f, "{}", told.next().unwrap_or_default())?;
        let mut others: Vec<_> = told.collect();
        if self.more > 0 {
            others.push(format!("{} more", self.more));
        }
        if others.is_empty() { Ok(()) } else { write!(f, " (also {})", others.join(", ")) }
    }
}

/// A name: the directory that it is in, and the name itself.
type EntryName = (u64, Vec<u8>);

/// One name of each directory, and all names of files that are asked for.
#[derive(Default)]
struct Places {
    of_directories: HashMap<u64, EntryName>,
    of_files: BTreeMap<u64, Vec<EntryName>>,
}

impl Places {
    fn add(&mut self, directory: u64, named: Named) {
        let place = (directory, named.name);
        if named.kind == libc::S_IFDIR {
            self.of_directories.entry(named.inode).or_insert(place);
        } else {
            self.of_files.entry(named.inode).or_default().push(place);
        }
    }

    /// The path of a name; `None` if a directory above is unknown.
    fn path(&self, (directory, name): &EntryName) -> Option<Vec<u8>> {
        let (mut parts, mut at): (Vec<&[u8]>, u64) = (vec![name], *directory);
        while at != ROOT && parts.len() < DEPTH_MAX {
            let (directory, name) = self.of_directories.get(&at)?;
            parts.push(name);
            at = *directory;
        }
        parts.reverse();
        Some([&b"/"[..], &parts.join(&b'/')].concat())
    }

    /// The paths of an inode that are known.
    fn paths(&self, inode: u64) -> Paths {
        let mut paths = Paths::default();
        if inode == ROOT {
            paths.add(b"/".to_vec());
        }
        let places = self.of_directories.get(&inode).into_iter().chain(self.of_files.get(&inode).into_iter().flatten());
        places.filter_map(|place| self.path(place)).for_each(|path| paths.add(path));
        paths
    }
}

fn number(key: &[u8]) -> u64 {
    key.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

/// Collects the inodes with some data, and the names of these and of all directories.
struct OfData<'a> {
    files: &'a BTreeSet<u64>,
    /// Which file of the space an inode has.
    file_of: HashMap<u64, u64>,
    places: Places,
}

impl Take for OfData<'_> {
    type Error = Infallible;

    fn pair(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), Infallible> {
        match table {
            Table::Inodes => {
                if let Ok(inode) = Inode::decode(number(key), value)
                    && self.files.contains(&inode.data_file())
                {
                    self.file_of.insert(number(key), inode.data_file());
                }
            }
            // Tables arrive in the order of their numbers: inodes first.
            Table::Entries => {
                if let Ok(named) = names::decode(value)
                    && (named.kind == libc::S_IFDIR
                        || self.file_of.contains_key(&named.inode)
                        || self.files.contains(&named.inode))
                {
                    self.places.add(number(key), named);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn fact(&mut self, _: &str, _: u64) {}
}

/// Collects the names of some inodes, and of all directories.
struct OfInodes<'a> {
    inodes: &'a BTreeSet<u64>,
    places: Places,
}

impl Take for OfInodes<'_> {
    type Error = Infallible;

    fn pair(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), Infallible> {
        if table == Table::Entries
            && let Ok(named) = names::decode(value)
            && (named.kind == libc::S_IFDIR || self.inodes.contains(&named.inode))
        {
            self.places.add(number(key), named);
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
    places: Places,
}

impl Take for Recordless {
    type Error = Infallible;

    fn pair(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), Infallible> {
        if table == Table::Inodes {
            self.inodes.insert(number(key));
        }
        if table == Table::Entries
            && let Ok(named) = names::decode(value)
        {
            let is_lost = named.kind == libc::S_IFREG && !self.inodes.contains(&named.inode);
            if is_lost || named.kind == libc::S_IFDIR {
                self.places.add(number(key), named);
            }
        }
        Ok(())
    }

    fn fact(&mut self, _: &str, _: u64) {}
}

impl Tree {
    /// Files of a space that have a name and no inode, for the page that had it is lost: the number
    /// of each with its paths, or with its last name if a directory above is not known.
    pub fn without_records(space: Arc<dyn ObjectSpace>) -> BTreeMap<u64, Paths> {
        let mut found = Recordless::default();
        let Ok(_) = reading::read(&space, &mut found);
        let places = found.places;
        let paths = |(inode, named): (&u64, &Vec<EntryName>)| {
            let mut paths = Paths::default();
            for place in named {
                paths.add(places.path(place).unwrap_or_else(|| place.1.clone()));
            }
            (*inode, paths)
        };
        places.of_files.iter().map(paths).collect()
    }

    /// Paths of the files of a space with the given data, as far as known.
    pub fn paths_of(space: Arc<dyn ObjectSpace>, files: &BTreeSet<u64>) -> BTreeMap<u64, Paths> {
        let mut names = OfData { files, file_of: HashMap::new(), places: Places::default() };
        let Ok(_) = reading::read(&space, &mut names);
        let OfData { mut file_of, places, .. } = names;
        // An inode that is lost has its own number for data, mostly.
        for file in files {
            if places.of_files.contains_key(file) {
                file_of.entry(*file).or_insert(*file);
            }
        }
        let paths = file_of.into_iter().map(|(inode, file)| (file, places.paths(inode)));
        paths.filter(|(_, paths)| !paths.listed().is_empty()).collect()
    }

    /// Paths of inodes of a space, as far as known.
    pub fn paths_of_inodes(space: Arc<dyn ObjectSpace>, inodes: &BTreeSet<u64>) -> BTreeMap<u64, Paths> {
        let mut names = OfInodes { inodes, places: Places::default() };
        let Ok(_) = reading::read(&space, &mut names);
        let paths = inodes.iter().map(|inode| (*inode, names.places.paths(*inode)));
        paths.filter(|(_, paths)| !paths.listed().is_empty()).collect()
    }

    /// Paths of the files with the given data, and of at most `others` further files, by the
    /// numbers of their data. Of several names one is returned, and a file without a name is
    /// skipped. The tree may change in the meantime: a file that is renamed may be skipped, too.
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
                let inode = number(key);
                let data = Inode::decode(inode, value)?.data_file();
                if emptied.contains(&data) {
                    file_of.insert(inode, data);
                }
                Ok(())
            })?;
        }
        let (mut places, mut beside) = (Places::default(), BTreeSet::new());
        self.each_pair(Table::Entries, |key, value| {
            let named = names::decode(value)?;
            let is_wanted = named.kind == libc::S_IFDIR || file_of.contains_key(&named.inode);
            let is_beside = !is_wanted && named.kind == libc::S_IFREG && beside.len() < others;
            if is_beside {
                beside.insert(named.inode);
            }
            if is_wanted || is_beside {
                places.add(number(key), named);
            }
            Ok(())
        })?;
        for inode in beside {
            // It may have been removed since. A content in its inode's record is in no file of the
            // space.
            if let Ok(found) = self.inode(inode)
                && found.content().is_none()
            {
                file_of.insert(inode, found.data_file());
            }
        }
        let path = |inode: u64| places.paths(inode).listed().first().cloned();
        Ok(file_of.into_iter().filter_map(|(inode, file)| Some((file, path(inode)?))).collect())
    }

    /// Hands the pairs of a table to `each`, in steps.
    fn each_pair(&self, table: Table, mut each: impl FnMut(&[u8], &[u8]) -> TreeResult<()>) -> TreeResult<()> {
        let mut from = Vec::new();
        loop {
            let (mut left, mut last) = (STEP, Vec::new());
            self.state.read().range(table, &from, &AFTER_ALL_KEYS, |key, value| {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_paths_of_a_file_are_told_up_to_a_bound() {
        let mut paths = Paths::default();
        paths.add(b"/a".to_vec());
        assert_eq!(paths.to_string(), "/a");
        paths.add(b"/d/b".to_vec());
        assert_eq!(paths.to_string(), "/a (also /d/b)");
        (2..PATHS_MAX + 3).for_each(|n| paths.add(format!("/{n}").into_bytes()));
        assert_eq!(paths.listed().len(), PATHS_MAX);
        assert!(paths.to_string().ends_with(", 3 more)"), "{paths}");
    }
}
