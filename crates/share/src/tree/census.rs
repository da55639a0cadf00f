//! All that a namespace holds, and what in it contradicts itself.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::backend::ROOT;
use crate::failure::Result;
use crate::inode::{Flags, Inode};
use crate::names::{self, Named};
use crate::store::State;
use crate::tree::xattr;

/// Directories above one another that a path is told of: those of a path that a program can use,
/// many times over.
const DEPTH_MAX: usize = 4096;

/// A name: the directory and the cookie that it is at, and what it says.
pub(super) struct Entry {
    pub(super) directory: u64,
    pub(super) cookie: u64,
    pub(super) named: Named,
}

/// A fault. Entries are told by their index.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wrong {
    /// There is no root.
    NoRoot,
    /// A name in an inode that is no directory.
    Stray(usize),
    /// A name that means an inode which is not there.
    Nothing(usize),
    /// A name that says another type than its inode.
    Kind(usize),
    /// A name at a place where no look-up finds it.
    Misplaced(usize),
    /// A directory's second name.
    SecondName(usize),
    /// A directory that says of another one that it is in it.
    Parent(usize),
    /// A directory that is below itself, so that no path leads to it from the root.
    InItself(u64),
    /// An inode that has no name, and is not waiting to be removed.
    Nameless(u64),
    /// An inode that counts another number of names than it has.
    Links { inode: u64, expected: u32 },
    /// Listed as one that is to be removed, and it has a name, or it is not there.
    NotAnOrphan(u64),
    /// To be removed, and not listed as such.
    Unlisted(u64),
    /// Extended attributes of an inode that is not there.
    Xattrs(u64),
    /// An inode that says that it has an access ACL, and has none.
    AccessAcl(u64),
    /// A directory that says that it has an ACL for new files in it, and has none.
    DefaultAcl(u64),
    /// A file that says that it has capabilities, and has none.
    Capability(u64),
    /// An inode that has an ACL or capabilities, and does not say so: they do not count.
    Unsaid(u64),
    /// Two inodes with the same data.
    SharedData(u64, u64),
    /// A file whose data has no place.
    NoData(u64),
}

impl Wrong {
    /// In which order they are mended: each step may show that what comes later is not wrong.
    pub(super) fn step(&self) -> u32 {
        match self {
            Self::InItself(_) => 1,
            Self::Nameless(_) => 2,
            Self::Links { .. } | Self::NotAnOrphan(_) | Self::Unlisted(_) | Self::Xattrs(_) | Self::SharedData(..) => 3,
            Self::AccessAcl(_) | Self::DefaultAcl(_) | Self::Capability(_) | Self::Unsaid(_) => 3,
            _ => 0,
        }
    }
}

/// A namespace as it was at one moment.
pub(super) struct Census {
    pub(super) inodes: HashMap<u64, Inode>,
    pub(super) entries: Vec<Entry>,
    orphans: BTreeSet<u64>,
    /// Inodes that have extended attributes, with the flags that stand for these.
    with_xattrs: BTreeMap<u64, Flags>,
    /// Of each inode that is named, one of its names.
    name_of: HashMap<u64, usize>,
    secret: u64,
}

impl Census {
    pub(super) fn take(state: &State) -> Result<Self> {
        let inodes = state.all_inodes()?.into_iter().collect();
        let entries: Vec<_> = state
            .all_entries()?
            .into_iter()
            .map(|(directory, cookie, named)| Entry { directory, cookie, named })
            .collect();
        let mut name_of = HashMap::new();
        for (index, entry) in entries.iter().enumerate() {
            name_of.entry(entry.named.inode).or_insert(index);
        }
        let orphans = state.orphans()?.into_iter().collect();
        let with_xattrs = state.xattr_owners(xattr::flag_of)?;
        Ok(Self { inodes, entries, orphans, with_xattrs, name_of, secret: state.secret() })
    }

    fn is_directory(&self, inode: u64) -> bool {
        self.inodes.get(&inode).is_some_and(Inode::is_directory)
    }

    /// The path of an inode, as far as it has one.
    pub(super) fn path(&self, inode: u64) -> String {
        let (mut parts, mut at) = (Vec::new(), inode);
        while at != ROOT {
            let Some(entry) = self.name_of.get(&at).map(|&index| &self.entries[index]) else {
                parts.push(format!("(inode {at})"));
                break;
            };
            parts.push(names::in_words(&entry.named.name));
            at = entry.directory;
            if parts.len() >= DEPTH_MAX {
                break;
            }
        }
        parts.reverse();
        format!("/{}", parts.join("/"))
    }

    /// The path of a name.
    pub(super) fn path_of(&self, index: usize) -> String {
        let entry = &self.entries[index];
        let above = if entry.directory == ROOT { String::new() } else { self.path(entry.directory) };
        format!("{above}/{}", names::in_words(&entry.named.name))
    }

    /// All that is wrong.
    pub(super) fn wrongs(&self) -> Vec<Wrong> {
        let mut wrong = Vec::new();
        if !self.is_directory(ROOT) {
            wrong.push(Wrong::NoRoot);
        }
        // Names by inode, and directories by the one that they are in.
        let (mut names, mut directories) = (HashMap::<u64, u32>::new(), HashMap::<u64, u32>::new());
        for (index, entry) in self.entries.iter().enumerate() {
            let named = &entry.named;
            let first = names::first_cookie(&named.name, self.secret);
            if !self.is_directory(entry.directory) {
                wrong.push(Wrong::Stray(index));
                continue;
            }
            if !(first..first + names::TWINS_MAX).contains(&entry.cookie) {
                wrong.push(Wrong::Misplaced(index));
            }
            let Some(inode) = self.inodes.get(&named.inode) else {
                wrong.push(Wrong::Nothing(index));
                continue;
            };
            if inode.kind() != named.kind {
                wrong.push(Wrong::Kind(index));
            }
            let count = names.entry(named.inode).or_default();
            *count += 1;
            if inode.is_directory() {
                if *count > 1 || named.inode == ROOT {
                    wrong.push(Wrong::SecondName(index));
                } else {
                    *directories.entry(entry.directory).or_default() += 1;
                    if inode.parent != entry.directory {
                        wrong.push(Wrong::Parent(index));
                    }
                }
            }
        }
        let mut data: HashMap<u64, u64> = HashMap::new();
        for (&number, inode) in &self.inodes {
            let named = names.get(&number).copied().unwrap_or(0);
            let is_orphan = self.orphans.contains(&number);
            let expected = match inode.is_directory() {
                // `.`, the name in its parent (the root's is its own), and `..` of those in it.
                true if named == 0 && number != ROOT => 0,
                true => 2 + directories.get(&number).copied().unwrap_or(0),
                false => named,
            };
            if named == 0 && number != ROOT && !is_orphan {
                wrong.push(Wrong::Nameless(number));
            } else if inode.links != expected {
                wrong.push(Wrong::Links { inode: number, expected });
            }
            if is_orphan && (named > 0 || number == ROOT) {
                wrong.push(Wrong::NotAnOrphan(number));
            }
            if inode.links == 0 && named > 0 && !is_orphan {
                wrong.push(Wrong::Unlisted(number));
            }
            if inode.data != 0
                && let Some(other) = data.insert(inode.data, number)
            {
                wrong.push(Wrong::SharedData(number.min(other), number.max(other)));
            }
            if inode.is_file() && inode.data == 0 {
                wrong.push(Wrong::NoData(number));
            }
            self.compare_attributes(number, inode.flags, &mut wrong);
            if inode.is_directory() && named > 0 && self.is_in_itself(number) {
                wrong.push(Wrong::InItself(number));
            }
        }
        let is_gone = |inode: &&u64| !self.inodes.contains_key(inode);
        wrong.extend(self.orphans.iter().filter(is_gone).map(|&orphan| Wrong::NotAnOrphan(orphan)));
        wrong.extend(self.with_xattrs.keys().filter(is_gone).map(|&inode| Wrong::Xattrs(inode)));
        wrong.sort();
        wrong
    }

    /// What an inode says of its attributes, and those that it has.
    fn compare_attributes(&self, number: u64, said: Flags, wrong: &mut Vec<Wrong>) {
        let there = self.with_xattrs.get(&number).copied().unwrap_or_default();
        let faults = [
            (Flags::ACCESS_ACL, Wrong::AccessAcl(number)),
            (Flags::DEFAULT_ACL, Wrong::DefaultAcl(number)),
            (Flags::CAPABILITY, Wrong::Capability(number)),
        ];
        let is_unsaid = |flag: Flags| there.has(flag) && !said.has(flag);
        let has_unsaid = faults.iter().any(|(flag, _)| is_unsaid(*flag));
        wrong.extend(
            faults.into_iter().filter(|(flag, _)| said.has(*flag) && !there.has(*flag)).map(|(_, fault)| fault),
        );
        if has_unsaid {
            wrong.push(Wrong::Unsaid(number));
        }
    }

    /// Whether the directories above a directory lead back to it.
    fn is_in_itself(&self, directory: u64) -> bool {
        let mut at = directory;
        for _ in 0..DEPTH_MAX {
            match self.name_of.get(&at) {
                Some(&index) if at != ROOT => at = self.entries[index].directory,
                _ => return false,
            }
            if at == directory {
                return true;
            }
        }
        false
    }

    /// A sentence on a fault.
    pub(super) fn words(&self, wrong: &Wrong) -> String {
        let entry = |index: usize| &self.entries[index];
        match *wrong {
            Wrong::NoRoot => "/: the root directory is not there".to_owned(),
            Wrong::Stray(index) => {
                format!(
                    "{}: the name is in inode {}, which is no directory",
                    self.path_of(index),
                    entry(index).directory
                )
            }
            Wrong::Nothing(index) => {
                format!(
                    "{}: the name means inode {}, which is not there",
                    self.path_of(index),
                    entry(index).named.inode
                )
            }
            Wrong::Kind(index) => format!("{}: the name has another type than its inode", self.path_of(index)),
            Wrong::Misplaced(index) => format!("{}: the name is where no look-up finds it", self.path_of(index)),
            Wrong::SecondName(index) => format!("{}: a second name of a directory", self.path_of(index)),
            Wrong::Parent(index) => {
                let inode = entry(index).named.inode;
                let says = self.inodes.get(&inode).map_or(0, |inode| inode.parent);
                let is_in = entry(index).directory;
                format!("{}: the directory is in inode {is_in}, and says {says}", self.path_of(index))
            }
            Wrong::InItself(inode) => format!("inode {inode}: the directory is below itself, and no path leads to it"),
            Wrong::Nameless(inode) => format!("inode {inode} has no name"),
            Wrong::Links { inode, expected } => {
                let counted = self.inodes.get(&inode).map_or(0, |inode| inode.links);
                format!("{}: inode {inode} counts {counted} links and has {expected}", self.path(inode))
            }
            Wrong::NotAnOrphan(inode) => match self.inodes.contains_key(&inode) {
                true => format!("{}: inode {inode} is listed as one without a name, and has one", self.path(inode)),
                false => format!("inode {inode} is listed as one without a name, and is not there"),
            },
            Wrong::Unlisted(inode) => {
                format!("{}: inode {inode} counts no links, and is not listed as one without a name", self.path(inode))
            }
            Wrong::Xattrs(inode) => format!("extended attributes belong to inode {inode}, which is not there"),
            Wrong::AccessAcl(inode) => format!("{}: its access ACL is lost", self.path(inode)),
            Wrong::DefaultAcl(inode) => format!("{}: the ACL for what is made in it is lost", self.path(inode)),
            Wrong::Capability(inode) => {
                format!("{}: its capabilities (security.capability) are lost", self.path(inode))
            }
            Wrong::Unsaid(inode) => {
                format!("{}: inode {inode} has an ACL or capabilities that it does not tell of", self.path(inode))
            }
            Wrong::SharedData(one, two) => {
                format!("{} and {}: inodes {one} and {two} have the same data", self.path(one), self.path(two))
            }
            Wrong::NoData(inode) => format!("{}: inode {inode} has no place for its data", self.path(inode)),
        }
    }
}
