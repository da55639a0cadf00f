//! Snapshots of a share in its own mount: `.shale/snapshots/NAME/` at its root, which is read-only.
//! Owns the numbering of their nodes and the snapshots that are open. [`Visibility`] decides who
//! may enter, and whether a listing shows it. The kernel checks that by the mode of `.shale`, and
//! looks it up again after a second. Shared by all threads that serve.
//!
//! The upper 16 bits of a node's number select a *view*: 0 is the current share, 65535 the
//! directories that lead to snapshots, all others are one snapshot each. The lower 48 bits are the
//! inode's number there. A view's number is derived from the snapshot's, so a server that takes
//! over a mount understands the kernel's node numbers. A snapshot's tree is opened when it is
//! accessed.

use std::collections::{BTreeMap, btree_map};
use std::sync::Arc;
use std::time::Duration;

use fuse::wire::reply;
use fuse::{Answer, Attributes, Entry, Errno, Listing, ListingPlus, Operation, Request};
use parking_lot::Mutex;
use share::{Failure, Inode, KEPT_NAME, Tree};
use surface::Allocation;

use crate::process::Process;
use crate::request_kind::Counting;
use crate::served::{self, Served, TTL, answer_sized, errno};
use crate::shown_tree::ShownTree;
use crate::waiting::READS;
use crate::xattr_support::XattrSupport;

const VIEW_SHIFT: u32 = 48;
/// The view of the directories that lead to snapshots.
const SIGNS: u64 = 0xffff << VIEW_SHIFT;
const SHALE: u64 = SIGNS | 1;
const SNAPSHOTS: u64 = SIGNS | 2;
/// The file of [`crate::closing`].
pub(crate) const FIRST_CLOSED: u64 = SIGNS | 3;
/// Numbers that a view can have. If two snapshots have the same number, the one that was accessed
/// first is shown.
const VIEWS: u64 = 0xfffe;
/// Trees that are open at the same time; each has caches.
const OPEN_MAX: usize = 8;
/// Time for which the kernel caches the name of a snapshot.
const NAME_TTL: Duration = Duration::from_secs(1);
const SNAPSHOTS_NAME: &[u8] = b"snapshots";

/// A snapshot of the share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareSnapshot {
    /// Its identity, independent of its name.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// Time at which it was taken, in seconds since 1970.
    pub taken_unix_s: u64,
}

/// Who can see the snapshots of a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visibility {
    /// All users, and a listing of the root shows them.
    Listed,
    /// All users who know the name.
    Hidden,
    /// Root.
    Root,
    /// No user.
    Off,
}

impl Visibility {
    /// Returns the permissions of the directory that leads to the snapshots.
    const fn permissions(self) -> u32 {
        match self {
            Self::Listed | Self::Hidden => 0o555,
            Self::Root => 0o500,
            Self::Off => 0,
        }
    }
}

/// The snapshots of a share, provided by its owner. Called by any thread that serves.
pub trait Snapshots: Send + Sync {
    /// Returns who can see them, which may change at any time.
    fn visibility(&self) -> Visibility;

    /// Returns all of them, oldest first.
    fn list(&self) -> Vec<ShareSnapshot>;

    /// Returns the tree of a snapshot. Changes to it are not stored.
    ///
    /// # Errors
    /// When it was deleted, or cannot be read.
    fn open(&self, id: u64) -> surface::Result<Arc<Tree>>;
}

struct View {
    snapshot: u64,
    tree: Option<ShownTree>,
    /// Number of the last access, counted over all views.
    used: u64,
}

#[derive(Default)]
struct State {
    /// By their numbers.
    views: BTreeMap<u64, View>,
    looks: u64,
    /// Number of the access at which idle trees were last closed.
    closed_at: u64,
}

/// The directories and snapshots below `.shale`.
pub(crate) struct SnapshotDirs {
    snapshots: Arc<dyn Snapshots>,
    /// Generation of the directories that lead to snapshots, which is the share's own.
    generation: u32,
    /// The extended attributes of the share's mount.
    xattrs: XattrSupport,
    state: Mutex<State>,
    /// The visibility when the kernel was last notified to list the root again.
    listed: Mutex<Visibility>,
}

/// Returns whether a node is in a view other than the current share.
pub(crate) const fn is_in_other_view(node: u64) -> bool {
    node >> VIEW_SHIFT != 0
}

/// Returns whether a request looks up the name of the snapshots, or would remove it. Requests that
/// would give that name to another file are refused by the tree.
fn concerns_snapshots(operation: &Operation<'_>) -> bool {
    match operation {
        Operation::Lookup { name }
        | Operation::Unlink { name }
        | Operation::RemoveDirectory { name }
        | Operation::Rename { name, .. } => *name == KEPT_NAME,
        _ => false,
    }
}

/// Returns the node in another view that a request for a node of the current share also names, if
/// any.
pub(crate) fn names_another_view(operation: &Operation<'_>) -> bool {
    match operation {
        Operation::Rename { new_directory, .. } => is_in_other_view(*new_directory),
        Operation::Link { existing, .. } => is_in_other_view(*existing),
        Operation::CopyRange { to_node, .. } => is_in_other_view(*to_node),
        _ => false,
    }
}

fn sign(node: u64, time: fuse::Time, permissions: u32) -> Attributes {
    Attributes {
        inode: node,
        size: 0,
        blocks: 0,
        accessed: time,
        modified: time,
        changed: time,
        mode: libc::S_IFDIR | permissions,
        links: 2,
        uid: 0,
        gid: 0,
        device: 0,
        block_bytes: 4096,
    }
}

impl SnapshotDirs {
    /// Creates the snapshot directories of the share of `tree`.
    pub(crate) fn new(snapshots: Arc<dyn Snapshots>, tree: &ShownTree) -> Self {
        let (generation, xattrs) = (tree.space_number(), tree.xattrs);
        let listed = Mutex::new(snapshots.visibility());
        Self { snapshots, generation, xattrs, state: Mutex::default(), listed }
    }

    /// Returns the entry of a directory that leads to snapshots.
    fn sign_entry(&self, node: u64) -> Entry {
        let attributes = sign(node, fuse::Time::default(), self.snapshots.visibility().permissions());
        let generation = self.generation.into();
        Entry { node, generation, name_valid: NAME_TTL, attributes_valid: NAME_TTL, attributes }
    }

    /// Returns whether the listing of the root has changed since the last call because the
    /// snapshots have become visible or hidden.
    pub(crate) fn listing_has_changed(&self) -> bool {
        let now = self.snapshots.visibility();
        let before = std::mem::replace(&mut *self.listed.lock(), now);
        (before == Visibility::Listed) != (now == Visibility::Listed)
    }

    /// Returns the entry for the snapshots in a listing of the root; `None` if they are not listed.
    pub(crate) fn listed(&self) -> Option<Entry> {
        // Not counted as a look-up by the kernel.
        let entry = || Entry { node: 0, name_valid: Duration::ZERO, ..self.sign_entry(SHALE) };
        (self.snapshots.visibility() == Visibility::Listed).then(entry)
    }

    /// Returns whether a request is answered here.
    pub(crate) fn takes(request: &Request<'_>) -> bool {
        is_in_other_view(request.node) || request.node == Tree::ROOT && concerns_snapshots(&request.operation)
    }

    /// Closes the trees of all snapshots, or of those that were not accessed since the last call.
    pub(crate) fn close(&self, only_idle: bool) {
        let mut state = self.state.lock();
        let since = if only_idle { state.closed_at } else { u64::MAX };
        for view in state.views.values_mut().filter(|view| view.used <= since) {
            view.tree = None;
        }
        state.closed_at = state.looks;
    }

    /// Returns the number of a snapshot's view.
    fn view_of(&self, snapshot: u64) -> share::Result<u64> {
        let view = snapshot % VIEWS + 1;
        let mut state = self.state.lock();
        let known = state.views.entry(view).or_insert(View { snapshot, tree: None, used: 0 });
        if known.snapshot == snapshot {
            return Ok(view);
        }
        // It may have been deleted long ago.
        if self.snapshots.list().iter().any(|other| other.id == known.snapshot) {
            return Err(Failure::new(libc::EBUSY));
        }
        *known = View { snapshot, tree: None, used: 0 };
        Ok(view)
    }

    fn tree(&self, view: u64) -> share::Result<ShownTree> {
        let mut state = self.state.lock();
        state.looks += 1;
        let looks = state.looks;
        if let btree_map::Entry::Vacant(unknown) = state.views.entry(view) {
            // The previous server has answered look-ups of it.
            let meant = self.snapshots.list().into_iter().find(|snapshot| snapshot.id % VIEWS + 1 == view);
            let snapshot = meant.ok_or(Failure::new(libc::ESTALE))?.id;
            unknown.insert(View { snapshot, tree: None, used: 0 });
        }
        let found = state.views.get_mut(&view).ok_or(Failure::new(libc::ESTALE))?;
        found.used = looks;
        if let Some(tree) = &found.tree {
            return Ok(tree.clone());
        }
        // Others wait, so that no snapshot is opened twice.
        let opened = self.snapshots.open(found.snapshot).map_err(|error| {
            log::warn!("a snapshot cannot be shown: {error}");
            Failure::new(libc::ESTALE)
        })?;
        let opened = ShownTree::new(opened, self.xattrs);
        found.tree = Some(opened.clone());
        let open = || state.views.values().filter(|view| view.tree.is_some());
        let oldest = open().map(|view| view.used).min().filter(|_| open().count() > OPEN_MAX);
        if let Some(oldest) = oldest {
            state.views.values_mut().filter(|view| view.used == oldest).for_each(|view| view.tree = None);
        }
        Ok(opened)
    }

    /// Answers a request to a mount.
    pub(crate) fn serve<A: Answer>(&self, served: &Served, request: &Request<'_>, answer: A, counting: &Counting) {
        let is_off = self.snapshots.visibility() == Visibility::Off;
        match (request.node, request.operation) {
            (Tree::ROOT, Operation::Lookup { .. }) if is_off => answer.fail(Errno::new(libc::ENOENT)),
            // The kernel, or an NFS client, remembers a node.
            (node, _) if is_off && node != Tree::ROOT => answer.fail(Errno::new(libc::ESTALE)),
            // After this answer the kernel never sends them again; the others change something.
            (_, Operation::Open { .. } | Operation::OpenDirectory { .. } | Operation::Flush { .. })
            | (_, Operation::Release { .. } | Operation::ReleaseDirectory { .. } | Operation::Access { .. }) => {
                answer.fail(Errno::ENOSYS);
            }
            (_, Operation::Fsync { .. } | Operation::FsyncDirectory { .. } | Operation::SyncFs) => answer.done(),
            (_, Operation::Ioctl { .. }) => answer.fail(Errno::ENOTTY),
            (_, Operation::CopyRange { .. }) => answer.fail(Errno::new(libc::EXDEV)),
            (Tree::ROOT, Operation::Lookup { .. }) => answer.entry(&self.sign_entry(SHALE)),
            (Tree::ROOT, _) => answer.fail(Errno::new(libc::EPERM)),
            (node @ (SHALE | SNAPSHOTS), operation) => self.serve_sign(node, &operation, answer),
            (node, _) => match self.tree(node >> VIEW_SHIFT) {
                Ok(tree) => serve_snapshot(&tree, served, request, answer, counting),
                Err(failure) => answer.fail(errno(failure)),
            },
        }
    }

    /// Returns the directory of snapshots. The kernel does not cache it, and lists it again when
    /// its time has changed: so a snapshot that is created or deleted changes the time.
    fn snapshots(&self) -> Entry {
        let (mut seconds, mut mix) = (0, 0_u64);
        for snapshot in self.snapshots.list() {
            seconds = seconds.max(snapshot.taken_unix_s);
            mix = (mix ^ snapshot.id).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
            mix = snapshot.name.bytes().fold(mix, |mix, byte| (mix ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        }
        let nanoseconds = u32::try_from(mix % 1_000_000_000).unwrap_or(0);
        let permissions = self.snapshots.visibility().permissions();
        let time = fuse::Time { seconds: seconds.cast_signed(), nanoseconds };
        let attributes = sign(SNAPSHOTS, time, permissions);
        Entry { attributes_valid: Duration::ZERO, attributes, ..self.sign_entry(SNAPSHOTS) }
    }

    fn serve_sign<A: Answer>(&self, node: u64, operation: &Operation<'_>, answer: A) {
        match *operation {
            Operation::Lookup { name } if node == SHALE && name == SNAPSHOTS_NAME => {
                answer.entry(&self.snapshots());
            }
            Operation::Lookup { name } if node == SNAPSHOTS => match self.root_of(name) {
                Ok(entry) => answer.entry(&entry),
                Err(failure) => answer.fail(errno(failure)),
            },
            Operation::Lookup { .. } => answer.fail(Errno::new(libc::ENOENT)),
            Operation::GetAttributes { .. } => {
                let entry = if node == SHALE { self.sign_entry(node) } else { self.snapshots() };
                answer.bytes(&reply::attributes(&entry.attributes, entry.attributes_valid));
            }
            Operation::ReadDirectory { offset, size, with_attributes, .. } => {
                self.list_sign(node, offset, size.min(fuse::REQUEST_BYTES_MAX), with_attributes, answer);
            }
            Operation::GetXattr { .. } => answer.fail(Errno::new(libc::ENODATA)),
            Operation::ListXattr { size } => answer_sized(Ok(Vec::new()), size, answer),
            Operation::StatFs => answer.fail(Errno::ENOSYS),
            _ => answer.fail(Errno::new(libc::EROFS)),
        }
    }

    /// Returns the root of the snapshot of this name.
    fn root_of(&self, name: &[u8]) -> share::Result<Entry> {
        let snapshot = self.snapshots.list().into_iter().find(|snapshot| snapshot.name.as_bytes() == name);
        let view = self.view_of(snapshot.ok_or(Failure::new(libc::ENOENT))?.id)?;
        let tree = self.tree(view)?;
        let entry = tree.entry(view << VIEW_SHIFT | Tree::ROOT, &tree.inode(Tree::ROOT)?);
        Ok(Entry { name_valid: NAME_TTL, attributes_valid: NAME_TTL, ..entry })
    }

    fn list_sign(&self, node: u64, offset: u64, size: u32, with_attributes: bool, answer: impl Answer) {
        let mut names: Vec<(Vec<u8>, u64)> = vec![(b".".to_vec(), node), (b"..".to_vec(), Tree::ROOT)];
        if node == SHALE {
            names.push((SNAPSHOTS_NAME.to_vec(), SNAPSHOTS));
        } else {
            names.extend(self.snapshots.list().into_iter().filter_map(|snapshot| {
                let view = self.view_of(snapshot.id).ok()?;
                Some((snapshot.name.into_bytes(), view << VIEW_SHIFT | Tree::ROOT))
            }));
        }
        let (mut plain, mut plus) = (Listing::new(size), ListingPlus::new(size));
        for (index, (name, node)) in names.iter().enumerate().skip(usize::try_from(offset).unwrap_or(usize::MAX)) {
            let cookie = index as u64 + 1;
            let has_room = if with_attributes {
                // No node number is given: the kernel looks each name up when it is accessed.
                let nothing = Entry { node: 0, name_valid: Duration::ZERO, ..self.sign_entry(*node) };
                plus.add(&nothing, cookie, name)
            } else {
                plain.add(*node, cookie, libc::S_IFDIR, name)
            };
            if !has_room {
                break;
            }
        }
        answer.bytes(if with_attributes { plus.bytes() } else { plain.bytes() });
    }
}

/// Answers requests that only read a snapshot; all others would change it.
fn serve_snapshot<A: Answer>(tree: &ShownTree, served: &Served, request: &Request<'_>, answer: A, counting: &Counting) {
    let (node, numbered) = (request.node, (request.number(), counting));
    let (view, inode) = (node >> VIEW_SHIFT << VIEW_SHIFT, node & !(u64::MAX << VIEW_SHIFT));
    let shown = |(inode, found): (u64, Inode)| tree.entry(view | inode, &found);
    match request.operation {
        Operation::Lookup { name } => match tree.lookup(inode, name) {
            Ok(found) => answer.entry(&shown(found)),
            Err(failure) if failure.errno() == libc::ENOENT => answer.entry(&served::absent()),
            Err(failure) => answer.fail(errno(failure)),
        },
        Operation::GetAttributes { .. } => {
            let found = tree.inode(inode);
            answer.result(found.map(|found| reply::attributes(&tree.attributes(node, &found), TTL)).map_err(errno));
        }
        Operation::ReadLink => answer.result(tree.read_link(inode).map_err(errno)),
        Operation::Read { offset, size, .. } => {
            served.read(tree, (inode, offset, size), numbered, answer, |_| ());
        }
        Operation::GetXattr { name, size } => answer_sized(tree.xattr(inode, name), size, answer),
        Operation::ListXattr { size } => {
            answer_sized(tree.xattr_names_shown(inode, Process::of(request)), size, answer);
        }
        Operation::ReadDirectory { offset, size, with_attributes, .. } => {
            let size = size.min(fuse::REQUEST_BYTES_MAX);
            let (mut plain, mut plus) = (Listing::new(size), ListingPlus::new(size));
            let listed = tree.list_names(inode, offset, |listed, found| {
                let shown = view | listed.node;
                match found {
                    _ if !with_attributes => plain.add(shown, listed.cookie, listed.kind, &listed.name),
                    Ok(found) => plus.add(&tree.entry(shown, &found), listed.cookie, &listed.name),
                    Err(_) => plus.add_name(shown, listed.cookie, listed.kind, &listed.name),
                }
            });
            let bytes = if with_attributes { plus.bytes() } else { plain.bytes() };
            match listed {
                Err(failure) if bytes.is_empty() => answer.fail(errno(failure)),
                _ => answer.bytes(bytes),
            }
        }
        Operation::Seek { offset, whence, .. } => {
            let wanted = match whence {
                libc::SEEK_DATA => Allocation::Data,
                libc::SEEK_HOLE => Allocation::Hole,
                _ => return answer.fail(Errno::EINVAL),
            };
            let tree = tree.clone();
            served.run_in_lane(READS, 0, numbered, move |_, _| {
                answer.result(tree.seek(inode, offset, wanted).map(reply::offset).map_err(errno));
            });
        }
        _ => answer.fail(Errno::new(libc::EROFS)),
    }
}
