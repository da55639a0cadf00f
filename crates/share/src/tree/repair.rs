//! Repairs an inconsistent namespace. Facts that can be derived from others are corrected; an inode
//! that has lost its name gets one in `lost+found`; a name without an inode is removed.
//!
//! Works in rounds, because the first repairs may reveal more faults: names, then directories below
//! themselves, then nameless inodes, and finally link counts.

use std::collections::BTreeSet;

use surface::Allocation;

use super::attributes::FILE_BYTES_MAX;
use super::census::{Census, Wrong};
use super::{Change, Tree, xattr};
use crate::acl::{self, Acl};
use crate::backend::ROOT;
use crate::failure::{Failure, Result};
use crate::inode::{Flags, Inode, Time};
use crate::names;
use crate::store::FIRST_NUMBER;

/// Where that goes which has no name.
const LOST_AND_FOUND: &[u8] = b"lost+found";

/// Most rounds: a name, its directory, that one's count, and as many again.
const ROUNDS_MAX: usize = 12;

/// Runs of a file requested at once.
const RUNS_MAX: usize = 256;

/// Result of a repair.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Repaired {
    /// Faults with their remedies, a sentence each.
    pub mended: Vec<String>,
    /// Faults that are left.
    pub left: Vec<String>,
}

impl Tree {
    /// Repairs the faults of the namespace. `files`: the files of the space that hold data, or of
    /// which the space has any record; those that belong to no inode are adopted if `adopts` is set
    /// and they hold data, else discarded. No other process and no mount may have the tree open.
    ///
    /// # Errors
    /// Those of the namespace and of the space.
    pub fn repair(&self, files: &BTreeSet<u64>, adopts: bool) -> Result<Repaired> {
        let mut repaired = Repaired::default();
        let mut spare: BTreeSet<u64> = files.iter().copied().filter(|file| *file >= FIRST_NUMBER).collect();
        {
            let state = self.state.read();
            for (_, inode) in state.all_inodes()? {
                spare.remove(&inode.data_file());
            }
        }
        self.mend_all(&mut spare, &mut repaired)?;
        for file in spare {
            let size = if adopts { self.data_end(file)? } else { 0 };
            if size == 0 {
                self.space.discard(file, 0..u64::MAX)?;
                if adopts {
                    let text = format!("the remains of file {file} hold no data and belong to no inode: removed");
                    repaired.mended.push(text);
                }
                continue;
            }
            let name = self.adopt(file, size)?;
            repaired.mended.push(format!("data of file {file} belongs to no inode: saved as {name}"));
        }
        self.space.finish_discards()?;
        // `lost+found` may be new.
        self.mend_all(&mut BTreeSet::new(), &mut repaired)?;
        self.commit()?;
        repaired.left = self.check()?;
        Ok(repaired)
    }

    fn mend_all(&self, spare: &mut BTreeSet<u64>, repaired: &mut Repaired) -> Result<()> {
        for _ in 0..ROUNDS_MAX {
            let census = Census::take(&self.state.read())?;
            let mut wrongs = census.wrongs();
            let step = wrongs.iter().map(Wrong::step).min();
            wrongs.retain(|wrong| Some(wrong.step()) == step);
            let before = repaired.mended.len();
            for wrong in wrongs {
                // Moving one directory of a cycle suffices: the others are then below it.
                if matches!(wrong, Wrong::InItself(_)) && repaired.mended.len() > before {
                    break;
                }
                if let Some(done) = self.mend(&census, &wrong, spare)? {
                    repaired.mended.push(format!("{}: {done}", census.words(&wrong)));
                }
            }
            if repaired.mended.len() == before {
                break;
            }
        }
        Ok(())
    }

    /// Repairs one fault; returns a description of the repair, `None` if there is none.
    fn mend(&self, census: &Census, wrong: &Wrong, spare: &mut BTreeSet<u64>) -> Result<Option<String>> {
        let entry = |index: usize| &census.entries[index];
        let done = match *wrong {
            Wrong::NoRoot => {
                let mut state = self.change_in_part()?;
                state.put(ROOT, Inode { mode: libc::S_IFDIR | 0o755, ..self.blank(2, ROOT) });
                "it was recreated".to_owned()
            }
            Wrong::Stray(index) => {
                let (directory, named) = (entry(index).directory, &entry(index).named);
                if directory >= FIRST_NUMBER && !census.inodes.contains_key(&directory) {
                    // Its other names follow in the next round, if the number was not seen yet.
                    let mut state = self.change_in_part()?;
                    if state.inode(directory).is_err() {
                        state.put(directory, Inode { mode: libc::S_IFDIR | 0o700, ..self.blank(0, 0) });
                    }
                    return Ok(Some(format!("inode {directory} was recreated as a directory of root")));
                }
                let mut state = self.change_in_part()?;
                state.remove_entry(directory, entry(index).cookie);
                format!("the name was removed, and inode {} checked", named.inode)
            }
            Wrong::Nothing(index) => return self.mend_nothing(census, index, spare).map(Some),
            Wrong::Kind(index) => {
                let (at, named) = (entry(index), &entry(index).named);
                let mut state = self.change_in_part()?;
                let kind = state.inode(named.inode)?.kind();
                state.set_entry(at.directory, at.cookie, &named.name, named.inode, kind);
                "it was set to that of its inode".to_owned()
            }
            Wrong::Misplaced(index) => {
                let (at, named) = (entry(index), &entry(index).named);
                let mut state = self.change_in_part()?;
                state.remove_entry(at.directory, at.cookie);
                if state.find(at.directory, &named.name)?.is_some() || names::check(&named.name).is_err() {
                    "it was removed".to_owned()
                } else {
                    state.add_entry(at.directory, &named.name, named.inode, named.kind)?;
                    "it was moved to its place".to_owned()
                }
            }
            Wrong::SecondName(index) => {
                self.change_in_part()?.remove_entry(entry(index).directory, entry(index).cookie);
                "it was removed".to_owned()
            }
            Wrong::Parent(index) => {
                let mut state = self.change_in_part()?;
                let inode = state.inode(entry(index).named.inode)?;
                state.put(entry(index).named.inode, Inode { parent: entry(index).directory, ..inode });
                "the record was corrected".to_owned()
            }
            Wrong::InItself(inode) => {
                let mut state = self.change_in_part()?;
                for at in census.entries.iter().filter(|at| at.named.inode == inode) {
                    state.remove_entry(at.directory, at.cookie);
                }
                drop(state);
                format!("it is {} now", self.name_lost(inode)?)
            }
            Wrong::Nameless(inode) => format!("it is {} now", self.name_lost(inode)?),
            Wrong::Links { inode, expected } => {
                let mut state = self.change_in_part()?;
                let before = state.inode(inode)?;
                state.put(inode, Inode { links: expected, ..before });
                "the count was corrected".to_owned()
            }
            Wrong::NotAnOrphan(inode) => {
                self.change_in_part()?.set_orphan(inode, false);
                "it was removed from the list".to_owned()
            }
            Wrong::Xattrs(inode) => {
                let mut state = self.change_in_part()?;
                for name in state.xattr_names(inode)? {
                    state.remove_xattr(inode, &name);
                }
                "they were removed".to_owned()
            }
            Wrong::AccessAcl(inode) => return self.narrow(inode).map(Some),
            Wrong::DefaultAcl(inode) => {
                let mut state = self.change_in_part()?;
                state.set_xattr(inode, acl::DEFAULT, &Acl::of_owner(0o7).encode());
                "new entries belong to their owner alone until it gets another one".to_owned()
            }
            Wrong::Capability(inode) => {
                let mut state = self.change_in_part()?;
                let mut found = state.inode(inode)?;
                found.flags.set(Flags::CAPABILITY, false);
                state.put(inode, found);
                "the record was corrected".to_owned()
            }
            Wrong::Unsaid(inode) => {
                let mut state = self.change_in_part()?;
                let said = state.inode(inode)?.flags;
                for name in state.xattr_names(inode)? {
                    if xattr::flag_of(&name).is_some_and(|flag| !said.has(flag)) {
                        state.remove_xattr(inode, &name);
                    }
                }
                "they were removed".to_owned()
            }
            Wrong::NoData(inode) => {
                let mut state = self.change_in_part()?;
                let (before, data) = (state.inode(inode)?, state.allocate());
                // A small file has its content all the same.
                let size = before.content.as_ref().map_or(0, |content| content.len() as u64);
                state.put(inode, Inode { data, size, ..before });
                format!("it was given one, and {size} bytes")
            }
            // Counted with the links.
            Wrong::Unlisted(_) | Wrong::SharedData(..) => return Ok(None),
        };
        Ok(Some(done))
    }

    /// Revokes the rights of the group and of others on an inode whose ACL is lost: the mode has
    /// the ACL's mask, which may exceed the rights that any of them had.
    fn narrow(&self, inode: u64) -> Result<String> {
        let now = self.now();
        let mut state = self.change_in_part()?;
        let mut found = state.inode(inode)?;
        let before = found.mode & 0o7777;
        found.flags.set(Flags::ACCESS_ACL, false);
        found.mode &= !0o077;
        found.changed = now;
        let after = found.mode & 0o7777;
        state.put(inode, found);
        Ok(format!("its mode was changed from {before:04o} to {after:04o}, so that no user gains rights"))
    }

    /// Repairs a name whose inode does not exist, as far as the name itself describes it.
    fn mend_nothing(&self, census: &Census, index: usize, spare: &mut BTreeSet<u64>) -> Result<String> {
        let (at, named) = (&census.entries[index], &census.entries[index].named);
        let number = named.inode;
        // Inodes have their numbers for data, unless they were emptied.
        let has_data = named.kind == libc::S_IFREG && spare.contains(&number);
        let size = if has_data { self.data_end(number)? } else { 0 };
        let mut state = self.change_in_part()?;
        if state.inode(number).is_ok() {
            return Ok("another name of it was repaired".to_owned());
        }
        if named.kind == libc::S_IFDIR && number >= FIRST_NUMBER {
            state.put(number, Inode { mode: libc::S_IFDIR | 0o700, ..self.blank(2, at.directory) });
            return Ok("it was recreated as a directory of root".to_owned());
        }
        if has_data {
            spare.remove(&number);
            let mut file = Inode { mode: libc::S_IFREG | 0o600, size, data: number, ..self.blank(1, 0) };
            file.flags.set(Flags::SPARSE, true);
            state.put(number, file);
            return Ok("it was recreated as a file of root, with its data up to the end of the last block".to_owned());
        }
        state.remove_entry(at.directory, at.cookie);
        let is_file = named.kind == libc::S_IFREG;
        let held = if is_file { ", and with it an empty file or one of at most 512 bytes" } else { "" };
        Ok(format!("the name was removed{held}"))
    }

    /// An inode owned by root, of which nothing else is known.
    fn blank(&self, links: u32, parent: u64) -> Inode {
        let (now, unknown) = (self.now(), Time::default());
        Inode {
            mode: 0,
            uid: 0,
            gid: 0,
            links,
            device: 0,
            generation: 0,
            size: 0,
            data: 0,
            parent,
            accessed: now,
            modified: unknown,
            changed: now,
            born: unknown,
            target: Box::default(),
            flags: Flags::default(),
            content: None,
            compression: None,
        }
    }

    /// Creates a file from data that belongs to no inode, up to the end of the data.
    fn adopt(&self, file: u64, size: u64) -> Result<String> {
        let number = {
            let mut state = self.change_in_part()?;
            let number = if state.inode(file).is_ok() { state.allocate() } else { file };
            let mut found = Inode { mode: libc::S_IFREG | 0o600, size, data: file, ..self.blank(1, 0) };
            found.flags.set(Flags::SPARSE, true);
            state.put(number, found);
            number
        };
        self.name_lost(number)
    }

    /// Offset after the last byte of a file that is not a hole.
    fn data_end(&self, file: u64) -> Result<u64> {
        let (mut at, mut end) = (0, 0);
        while at < FILE_BYTES_MAX {
            let before = at;
            for run in self.space.allocation(file, at, FILE_BYTES_MAX - at, RUNS_MAX)? {
                at = at.saturating_add(run.length);
                if run.allocation == Allocation::Data {
                    end = at;
                }
            }
            if at == before {
                return Err(Failure::damaged(format_args!("the allocation of file {file} is unknown at {at}")));
            }
        }
        Ok(end.min(FILE_BYTES_MAX))
    }

    /// Gives an inode a name in `lost+found`; returns its path.
    fn name_lost(&self, number: u64) -> Result<String> {
        let mut state = self.change_in_part()?;
        let directory = self.lost_and_found(&mut state)?;
        let mut inode = state.inode(number)?;
        let mut name = format!("#{number}");
        while state.find(directory, name.as_bytes())?.is_some() {
            name.push('+');
        }
        state.add_entry(directory, name.as_bytes(), number, inode.kind())?;
        if inode.is_directory() {
            inode.parent = directory;
            // The count of links follows when all names are where they belong.
        }
        if inode.links == 0 {
            inode.links = if inode.is_directory() { 2 } else { 1 };
        }
        state.put(number, inode);
        Ok(format!("/{}/{name}", String::from_utf8_lossy(LOST_AND_FOUND)))
    }

    /// Returns the directory, creating it if it does not exist.
    fn lost_and_found(&self, state: &mut Change<'_>) -> Result<u64> {
        if let Some((cookie, named)) = state.find(ROOT, LOST_AND_FOUND)? {
            if matches!(state.inode(named.inode), Ok(inode) if inode.is_directory()) {
                return Ok(named.inode);
            }
            // The owner of the name keeps its data, and gets another name in the next round.
            state.remove_entry(ROOT, cookie);
        }
        let number = state.allocate();
        state.put(number, Inode { mode: libc::S_IFDIR | 0o700, ..self.blank(2, ROOT) });
        state.add_entry(ROOT, LOST_AND_FOUND, number, libc::S_IFDIR)?;
        Ok(number)
    }
}
