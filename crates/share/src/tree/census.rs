//! The complete content of a namespace, and its inconsistencies.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::backend::ROOT;
use crate::failure::Result;
use crate::inode::{Flags, Inode};
use crate::names::{self, Named};
use crate::store::State;
use crate::tree::xattr;

/// Most nested directories in a displayed path: many times those of any usable path.
const DEPTH_MAX: usize = 4096;

/// A name: its directory and cookie, and its content.
pub(super) struct Entry {
    pub(super) directory: u64,
    pub(super) cookie: u64,
    pub(super) named: Named,
}

/// A fault. Entries are identified by their index.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wrong {
    /// There is no root.
    NoRoot,
    /// A name in an inode that is no directory.
    Stray(usize),
    /// A name whose inode does not exist.
    Nothing(usize),
    /// A name whose type differs from its inode's.
    Kind(usize),
    /// A name at a place where no look-up finds it.
    Misplaced(usize),
    /// A directory's second name.
    SecondName(usize),
    /// A directory whose parent pointer names another directory.
    Parent(usize),
    /// An inode without a name that is not awaiting removal.
    InItself(u64),
    /// An inode that has no name, and is not waiting to be removed.
    Nameless(u64),
    /// An inode that counts another number of names than it has.
    Links { inode: u64, expected: u32 },
    /// Listed for removal, but it has a name, or does not exist.
    NotAnOrphan(u64),
    /// Awaiting removal, but not listed.
    Unlisted(u64),
    /// Extended attributes of an inode that does not exist.
    Xattrs(u64),
    /// An inode whose flag for an access ACL is set, without one.
    AccessAcl(u64),
    /// A directory whose flag for a default ACL is set, without one.
    DefaultAcl(u64),
    /// A file whose flag for capabilities is set, without any.
    Capability(u64),
    /// An inode that has an ACL or capabilities, and does not say so: they do not count.
    Unsaid(u64),
    /// Two inodes with the same data.
    SharedData(u64, u64),
    /// A file without a location for its data.
    NoData(u64),
}

impl Wrong {
    /// Order of repair: each step may resolve faults of later ones.
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

/// A namespace at a point in time.
pub(super) struct Census {
    pub(super) inodes: HashMap<u64, Inode>,
    pub(super) entries: Vec<Entry>,
    orphans: BTreeSet<u64>,
    /// Inodes with extended attributes, and the flags that correspond to these.
    with_xattrs: BTreeMap<u64, Flags>,
    /// One of the names of each named inode.
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
                // `.`, the name in its parent (the root's is its own), and `..` of its
                // subdirectories.
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

    /// Compares the flags of an inode with the attributes that it has.
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
            Wrong::NoRoot => "/: the root directory is missing".to_owned(),
            Wrong::Stray(index) => {
                format!(
                    "{}: the name is in inode {}, which is not a directory",
                    self.path_of(index),
                    entry(index).directory
                )
            }
            Wrong::Nothing(index) => {
                format!(
                    "{}: the name refers to inode {}, which does not exist",
                    self.path_of(index),
                    entry(index).named.inode
                )
            }
            Wrong::Kind(index) => {
                format!("{}: the type in the name differs from that of its inode", self.path_of(index))
            }
            Wrong::Misplaced(index) => format!("{}: the name is in the wrong place for lookups", self.path_of(index)),
            Wrong::SecondName(index) => format!("{}: a second name of a directory", self.path_of(index)),
            Wrong::Parent(index) => {
                let inode = entry(index).named.inode;
                let says = self.inodes.get(&inode).map_or(0, |inode| inode.parent);
                let is_in = entry(index).directory;
                format!(
                    "{}: the directory is in inode {is_in}, but its parent is recorded as {says}",
                    self.path_of(index)
                )
            }
            Wrong::InItself(inode) => {
                format!("inode {inode}: the directory is below itself, without a path from the root")
            }
            Wrong::Nameless(inode) => format!("inode {inode} has no name"),
            Wrong::Links { inode, expected } => {
                let counted = self.inodes.get(&inode).map_or(0, |inode| inode.links);
                format!("{}: inode {inode} records {counted} links but has {expected}", self.path(inode))
            }
            Wrong::NotAnOrphan(inode) => match self.inodes.contains_key(&inode) {
                true => format!("{}: inode {inode} is listed as nameless, but has a name", self.path(inode)),
                false => format!("inode {inode} is listed as nameless, but does not exist"),
            },
            Wrong::Unlisted(inode) => {
                format!("{}: inode {inode} records no links, but is not listed as nameless", self.path(inode))
            }
            Wrong::Xattrs(inode) => format!("extended attributes belong to inode {inode}, which does not exist"),
            Wrong::AccessAcl(inode) => format!("{}: its access ACL is lost", self.path(inode)),
            Wrong::DefaultAcl(inode) => format!("{}: its default ACL is lost", self.path(inode)),
            Wrong::Capability(inode) => {
                format!("{}: its capabilities (security.capability) are lost", self.path(inode))
            }
            Wrong::Unsaid(inode) => {
                format!("{}: inode {inode} has an ACL or capabilities that it does not record", self.path(inode))
            }
            Wrong::SharedData(one, two) => {
                format!("{} and {}: inodes {one} and {two} have the same data", self.path(one), self.path(two))
            }
            Wrong::NoData(inode) => format!("{}: inode {inode} has no location for its data", self.path(inode)),
        }
    }
}
