//! Paths of files, told from the pages of a database that are whole, without opening it: for a tree
//! that is damaged.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::convert::Infallible;

use surface::ObjectSpace;

use super::Tree;
use crate::backend::ROOT;
use crate::inode::Inode;
use crate::names;
use crate::overlay::Table;
use crate::pages::{self, Take};

/// Directories above one another in a path that is told.
const DEPTH_MAX: usize = 4096;

/// Directory and name of inodes.
type NameOf = HashMap<u64, (u64, Vec<u8>)>;

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
        let number = key.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
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
        let number = key.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
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
}
