//! Serves the kernel's requests by passing each to the tree. Owns the state of a mount that
//! requests need. Called by any thread that takes requests.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use fuse::wire::reply::{self, OpenFlags};
use fuse::{
    Answer, Attributes, Capabilities, Entry, Errno, FileSystem, Limits, Listing, ListingPlus, Notifier, Operation,
    Request, StatFs, WriteData,
};
use share::{Caller, Failure, Inode, SetAttributes, Time, TimeToSet, Tree};
use surface::{Allocation, Held};

use crate::closing::Closing;
use crate::direct::DirectUsers;
use crate::flags;
use crate::growing::Growing;
use crate::lookups::LookupCounts;
use crate::mount::MountOptions;
use crate::process::Process;
use crate::request_kind::{Counting, Counts, is_change};
use crate::shown_tree::ShownTree;
use crate::snapshots::{self, SnapshotDirs};
use crate::waiting::{CHANGES, READS, Waiting};
use crate::writing::Write;

/// Lifetime of cached entries, practically without limit: a share changes through its mount, and the
/// kernel is notified of any other change.
pub(crate) const TTL: Duration = Duration::from_secs(1 << 30);

/// Requests in flight without a waiting caller: read-ahead and writes of dirty pages.
const BACKGROUND_REQUESTS_MAX: u16 = 256;

/// Cookie of the directory of snapshots in a listing: after the dots, before all names.
const COOKIE_SNAPSHOTS: u64 = share::COOKIE_DOT_DOT + 1;

/// The unit of `statfs`.
const BLOCK_BYTES: u32 = 4096;

/// The state of a mounted share.
pub(crate) struct Served {
    pub(crate) tree: ShownTree,
    pub(crate) lookups: LookupCounts,
    pub(crate) growing: Growing,
    pub(crate) closing: Closing,
    /// Whether reads update access times.
    pub(crate) has_access_times: bool,
    /// Whether changes are refused.
    pub(crate) is_read_only: AtomicBool,
    /// Set when the connection is negotiated, before the first request.
    pub(crate) notifier: OnceLock<Notifier>,
    /// Its snapshots, if any can be shown.
    pub(crate) snapshots: Option<SnapshotDirs>,
    /// Counters of requests.
    pub(crate) counts: Option<Arc<dyn Counts>>,
    /// Writes that wait for space; started with the first of them, `None` if that failed.
    pub(crate) held: OnceLock<Option<Held>>,
    /// Set while the mount ends: writes do not wait any longer.
    pub(crate) is_unmounting: AtomicBool,
    pub(crate) direct: DirectUsers,
    /// Requests that may wait for a disk.
    pub(crate) waiting: Waiting,
    /// For the threads of lanes, and the one that retries held writes.
    pub(crate) this: Weak<Self>,
}

pub(crate) fn errno(failure: Failure) -> Errno {
    Errno::new(failure.errno())
}

fn from_fuse(time: fuse::Time) -> Time {
    Time { seconds: time.seconds, nanoseconds: time.nanoseconds }
}

fn time_to_set(wanted: fuse::TimeToSet) -> TimeToSet {
    match wanted {
        fuse::TimeToSet::Now => TimeToSet::Now,
        fuse::TimeToSet::At(time) => TimeToSet::At(from_fuse(time)),
    }
}

impl FileSystem for Served {
    fn capabilities(&self, _offered: Capabilities) -> Capabilities {
        // Not ATOMIC_O_TRUNC (see the crate's documentation), no writeback cache, and locks stay
        // with the kernel. Not ASYNC_DIO: the kernel drops cached pages before an asynchronous
        // direct write, but not after it, so a buffered read in between would leave old bytes in
        // the cache. Dropping them from here would wait for pages that readers have locked, and a
        // server that is killed at that point could not end before the next one answers those
        // readers.
        let taken = Capabilities::EXPORT_SUPPORT
            .with(Capabilities::DONT_MASK)
            .with(Capabilities::HAS_IOCTL_DIR)
            .with(Capabilities::DO_READDIRPLUS)
            .with(Capabilities::READDIRPLUS_AUTO)
            .with(Capabilities::PARALLEL_DIROPS)
            .with(self.tree.xattrs.capability())
            .with(Capabilities::HANDLE_KILLPRIV_V2)
            .with(Capabilities::CREATE_SUPP_GROUP)
            .with(Capabilities::HAS_EXPIRE_ONLY)
            .with(Capabilities::DIRECT_IO_ALLOW_MMAP);
        if self.has_access_times {
            return taken;
        }
        taken
            .with(Capabilities::NO_OPEN_SUPPORT)
            .with(Capabilities::NO_OPENDIR_SUPPORT)
            .with(Capabilities::CACHE_SYMLINKS)
    }

    fn limits(&self) -> Limits {
        Limits { write_bytes_max: fuse::REQUEST_BYTES_MAX, background_max: BACKGROUND_REQUESTS_MAX }
    }

    fn forget(&self, node: u64, lookups: u64) {
        // Snapshots never change, so their look-ups are not counted.
        if snapshots::is_in_other_view(node) {
            return;
        }
        if self.lookups.forget(node, lookups)
            && let Err(failure) = self.tree.forget(node)
        {
            log::error!("inode {node} cannot be removed: {failure:?}");
        }
    }

    /// Does the requests in lanes, then tries held writes a last time, and answers them.
    fn ended(&self) {
        self.waiting.close();
        if let Some(Some(held)) = self.held.get() {
            held.close();
        }
    }

    fn serve<A: Answer>(&self, request: &Request<'_>, answer: A) {
        let traffic = self.counts.as_ref().map(|counts| counts.of(request.pid));
        let counting = Counting::begin(traffic, request);
        self.serve_counted(request, answer, &counting);
        counting.end(traffic);
    }
}

impl Served {
    pub(crate) fn new(
        tree: ShownTree,
        lookups: LookupCounts,
        snapshots: Option<SnapshotDirs>,
        options: &MountOptions,
    ) -> io::Result<Self> {
        Ok(Self {
            tree,
            lookups,
            growing: Growing::default(),
            closing: Closing::default(),
            has_access_times: options.has_access_times,
            is_read_only: AtomicBool::new(options.is_read_only),
            notifier: OnceLock::new(),
            snapshots,
            counts: options.counts.clone(),
            held: OnceLock::new(),
            is_unmounting: AtomicBool::new(false),
            direct: DirectUsers::default(),
            waiting: Waiting::new()?,
            this: Weak::new(),
        })
    }

    /// Shares it with the threads that serve, those of lanes, and the one that retries held writes.
    pub(crate) fn shared(self) -> Arc<Self> {
        Arc::new_cyclic(|this| Self { this: this.clone(), ..self })
    }

    /// Carries out a request and answers it, here or in a lane, which takes `counting`.
    fn serve_counted<A: Answer>(&self, request: &Request<'_>, answer: A, counting: &Counting) {
        if self.closing.takes(request) {
            return Closing::serve(request, answer);
        }
        if let Some(errno) = self.tree.xattrs.refusal(&request.operation) {
            return answer.fail(errno);
        }
        if self.has_access_times
            && let Some(flags) = self.open_flags(request)
        {
            return answer.opened(0, flags);
        }
        if let Some(shown) = self.snapshots.as_ref().filter(|_| SnapshotDirs::takes(request)) {
            return shown.serve(self, request, answer, counting);
        }
        if snapshots::names_another_view(&request.operation) {
            return answer.fail(Errno::new(libc::EXDEV));
        }
        // The previous server of the mount may have carried it out without answering it.
        if request.is_resent()
            && let Some(result) = self.tree.was_done(request.number())
        {
            return self.answer_done(request, result, answer);
        }
        if self.is_read_only.load(Ordering::Relaxed) && is_change(&request.operation) {
            return answer.fail(Errno::EROFS);
        }
        share::answering(request.number(), || self.do_and_answer(request, answer, counting));
    }

    fn do_and_answer<A: Answer>(&self, request: &Request<'_>, answer: A, counting: &Counting) {
        let node = request.node;
        let numbered = (request.number(), counting);
        let caller = Caller { uid: request.uid, gid: request.gid };
        let tree = &self.tree;
        match request.operation {
            Operation::Lookup { name } => self.answer_lookup(node, name, answer),
            Operation::GetAttributes { .. } => {
                let mut inode = tree.inode(node);
                inode.iter_mut().for_each(|inode| self.growing.show(node, inode));
                answer.result(inode.map(|inode| self.shown_attributes(node, &inode)).map_err(errno));
            }
            Operation::SetAttributes(wanted) => {
                let process = Process::of(request);
                let kills = match self.kills_set_id(node, &wanted, process) {
                    Ok(kills) => kills,
                    Err(errno) => return answer.fail(errno),
                };
                let kill_every_sgid = kills && self.is_of_other_group(node, process);
                let wanted = SetAttributes {
                    mode: wanted.mode,
                    uid: wanted.uid,
                    gid: wanted.gid,
                    size: wanted.size,
                    accessed: wanted.accessed.map(time_to_set),
                    modified: wanted.modified.map(time_to_set),
                    kill_suid_sgid: kills,
                    kill_every_sgid,
                };
                let changed = tree.set_attributes(node, &wanted);
                answer.result(changed.map(|inode| self.shown_attributes(node, &inode)).map_err(errno));
            }
            Operation::ReadLink => {
                self.note_access(node);
                answer.result(tree.read_link(node).map_err(errno));
            }
            Operation::SymLink { name, target } => self.answer_made(tree.make_link(node, name, caller, target), answer),
            Operation::MakeNode { name, mode, device, umask } => {
                let mode = tree.xattrs.mode_of_new(mode, umask);
                self.answer_made(tree.make(node, name, caller, mode, umask, device), answer);
            }
            Operation::MakeDirectory { name, mode, umask } => {
                let mode = libc::S_IFDIR | tree.xattrs.mode_of_new(mode, umask) & 0o7777;
                self.answer_made(tree.make(node, name, caller, mode, umask, 0), answer);
            }
            Operation::TemporaryFile { mode, umask, .. } => {
                let mode = tree.xattrs.mode_of_new(mode, umask);
                self.answer_nameless(tree.make_nameless(node, caller, mode, umask), answer);
            }
            Operation::Unlink { name } => finish(tree.unlink(node, name), answer),
            Operation::RemoveDirectory { name } => finish(tree.remove_directory(node, name), answer),
            Operation::Rename { name, new_directory, new_name, flags } => {
                finish(tree.rename(node, name, new_directory, new_name, flags), answer);
            }
            Operation::Link { existing, name } => {
                self.answer_made(tree.link(existing, node, name).map(|inode| (existing, inode)), answer);
            }
            Operation::Read { offset, size, .. } => {
                self.read(tree, (node, offset, size), numbered, answer, move |served| served.note_access(node));
            }
            Operation::Write { offset, data, kill_suid_sgid, .. } => {
                if kill_suid_sgid
                    && self.is_of_other_group(node, Process::of(request))
                    && let Err(failure) = self.clear_set_id(node, true)
                {
                    return answer.fail(errno(failure));
                }
                let bytes = match data {
                    WriteData::Here(data) => Bytes::copy_from_slice(data),
                    WriteData::InAnswer(_) => Bytes::copy_from_slice(answer.data()),
                };
                let request = request.number();
                self.write(Write { request, node, offset, bytes, kill_suid_sgid, answer }, counting);
            }
            Operation::Fsync { data_only: true, .. } => self.sync(Some(node), counting, answer),
            Operation::Fsync { .. } | Operation::FsyncDirectory { .. } | Operation::SyncFs => {
                self.sync(None, counting, answer);
            }
            Operation::SetXattr { name, value, flags, clears_sgid } => {
                finish(tree.set_xattr(node, name, value, flags, clears_sgid), answer);
            }
            Operation::GetXattr { name, size } => answer_sized(tree.xattr(node, name), size, answer),
            Operation::ListXattr { size } => {
                answer_sized(tree.xattr_names_shown(node, Process::of(request)), size, answer);
            }
            // The kernel removes it before it asks whether owners may be changed.
            Operation::RemoveXattr { name: share::CAPABILITY }
                if self.is_refused_to_clear(node, Process::of(request)) =>
            {
                answer.fail(Errno::EPERM);
            }
            Operation::RemoveXattr { name } => finish(tree.remove_xattr(node, name), answer),
            Operation::ReadDirectory { offset, size, with_attributes, .. } => {
                self.note_access(node);
                self.list(node, offset, size.min(fuse::REQUEST_BYTES_MAX), with_attributes, answer);
            }
            Operation::Allocate { offset, length, mode, .. } => {
                let end = if mode & libc::FALLOC_FL_KEEP_SIZE == 0 { offset.saturating_add(length) } else { 0 };
                let process = Process::of(request);
                self.run_in_lane(CHANGES, 0, numbered, move |served, _| {
                    let allocate = || {
                        let change = |set_id| served.tree.allocate(node, offset, length, mode, set_id);
                        served.with_set_id(node, process, change)
                    };
                    served.growing.through(&served.tree, node, end, allocate, |done| finish(done, answer));
                });
            }
            Operation::Seek { offset, whence, .. } => {
                let wanted = match whence {
                    libc::SEEK_DATA => Allocation::Data,
                    libc::SEEK_HOLE => Allocation::Hole,
                    _ => return answer.fail(Errno::EINVAL),
                };
                self.run_in_lane(READS, 0, numbered, move |served, _| {
                    answer.result(served.tree.seek(node, offset, wanted).map(reply::offset).map_err(errno));
                });
            }
            Operation::CopyRange { offset, to_node, to_offset, length, wide, .. } => {
                // The answer has no room for 64 bits; the caller copies the rest with another
                // request.
                let length = if wide { length } else { length.min(1 << 30) };
                let (process, end) = (Process::of(request), to_offset.saturating_add(length));
                self.run_in_lane(CHANGES, 0, numbered, move |served, counting| {
                    let tree = &served.tree;
                    let copy = || {
                        let change = |set_id| tree.copy_range((node, offset), (to_node, to_offset), length, set_id);
                        served.with_set_id(to_node, process, change).map_err(errno)
                    };
                    served.growing.through(tree, to_node, end, copy, |copied| {
                        counting.moved.set(*copied.as_ref().unwrap_or(&0));
                        answer.result(copied.map(|bytes| {
                            if wide { reply::offset(bytes) } else { reply::written(u32::try_from(bytes).unwrap_or(0)) }
                        }));
                    });
                });
            }
            Operation::StatFs => answer.result(self.stat_fs().map(|found| reply::statfs(&found)).map_err(errno)),
            Operation::Ioctl { command, data, out_bytes, .. } => {
                answer.result(flags::ioctl(tree, node, command, data, out_bytes));
            }
            // After this answer, OPEN, OPENDIR, CREATE, FLUSH, ACCESS and STATX are never sent
            // again, nor is RELEASE without OPEN. The kernel ignores the answer to RELEASE.
            _ => answer.fail(Errno::ENOSYS),
        }
    }
}

/// Returns a negative look-up reply that the kernel may cache without limit.
pub(crate) fn absent() -> Entry {
    let none = Attributes {
        inode: 0,
        size: 0,
        blocks: 0,
        accessed: fuse::Time::default(),
        modified: fuse::Time::default(),
        changed: fuse::Time::default(),
        mode: 0,
        links: 0,
        uid: 0,
        gid: 0,
        device: 0,
        block_bytes: 0,
    };
    Entry { node: 0, generation: 0, name_valid: TTL, attributes_valid: Duration::ZERO, attributes: none }
}

fn is_absent<T>(found: &share::Result<T>) -> bool {
    found.as_ref().is_err_and(|failure| failure.errno() == libc::ENOENT)
}

fn finish<T>(result: share::Result<T>, answer: impl Answer) {
    match result {
        Ok(_) => answer.done(),
        Err(failure) => answer.fail(errno(failure)),
    }
}

/// Answers with a value, or with its length if `size` is 0.
pub(crate) fn answer_sized(value: share::Result<Vec<u8>>, size: u32, answer: impl Answer) {
    match value {
        // A value has at most 64 KiB.
        Ok(value) if size == 0 => answer.bytes(&reply::xattr_size(u32::try_from(value.len()).unwrap_or(u32::MAX))),
        Ok(value) if value.len() > size as usize => answer.fail(Errno::ERANGE),
        Ok(value) => answer.bytes(&value),
        Err(failure) => answer.fail(errno(failure)),
    }
}

impl Served {
    fn shown_attributes(&self, node: u64, inode: &Inode) -> Vec<u8> {
        reply::attributes(&self.tree.attributes(node, inode), TTL)
    }

    /// Answers a look-up. A missing name is cached by the kernel as well.
    fn answer_lookup(&self, directory: u64, name: &[u8], answer: impl Answer) {
        let mut found = self.tree.lookup(directory, name);
        if is_absent(&found) {
            self.lookups.add_absent(directory, name);
            // A name that was made before that is not reported to the kernel.
            if self.direct.are_there() {
                found = self.tree.lookup(directory, name);
            }
        }
        match found {
            Ok(_) => self.answer_made(found, answer),
            Err(_) if is_absent(&found) => answer.entry(&absent()),
            Err(failure) => answer.fail(errno(failure)),
        }
    }

    fn answer_nameless(&self, made: share::Result<(u64, Inode)>, answer: impl Answer) {
        match made {
            Ok((node, inode)) => {
                self.lookups.add(node);
                let opened = reply::opened(0, OpenFlags::KEEP_CACHE);
                answer.bytes(&[reply::entry(&self.tree.entry(node, &inode)), opened].concat());
            }
            Err(failure) => answer.fail(errno(failure)),
        }
    }

    /// Answers a request that was carried out already, with its `result`.
    fn answer_done(&self, request: &Request<'_>, result: u64, answer: impl Answer) {
        let made = || self.tree.inode(result).map(|inode| (result, inode));
        match request.operation {
            Operation::MakeNode { .. }
            | Operation::MakeDirectory { .. }
            | Operation::SymLink { .. }
            | Operation::Link { .. } => self.answer_made(made(), answer),
            Operation::TemporaryFile { .. } => self.answer_nameless(made(), answer),
            // At most the largest request.
            Operation::Write { .. } => answer.written(u32::try_from(result).unwrap_or(u32::MAX)),
            Operation::SetAttributes(_) => {
                let inode = self.tree.inode(request.node);
                let attributes = inode.map(|inode| self.shown_attributes(request.node, &inode));
                answer.result(attributes.map_err(errno));
            }
            _ => answer.done(),
        }
    }

    fn answer_made(&self, made: share::Result<(u64, Inode)>, answer: impl Answer) {
        match made {
            Ok((node, inode)) => {
                self.lookups.add(node);
                answer.entry(&self.tree.entry(node, &inode));
            }
            Err(failure) => answer.fail(errno(failure)),
        }
    }

    fn list(&self, node: u64, offset: u64, size: u32, with_attributes: bool, answer: impl Answer) {
        let (mut plain, mut plus) = (Listing::new(size), ListingPlus::new(size));
        let is_before_snapshots = node == Tree::ROOT && offset < COOKIE_SNAPSHOTS;
        let snapshots = self.snapshots.as_ref().filter(|_| is_before_snapshots).and_then(SnapshotDirs::listed);
        let is_listed = Cell::new(false);
        let list_moments = |plain: &mut Listing, plus: &mut ListingPlus| {
            let Some(entry) = snapshots.as_ref().filter(|_| !is_listed.replace(true)) else { return true };
            if with_attributes {
                return plus.add(entry, COOKIE_SNAPSHOTS, share::KEPT_NAME);
            }
            plain.add(entry.attributes.inode, COOKIE_SNAPSHOTS, libc::S_IFDIR, share::KEPT_NAME)
        };
        let listed = self.tree.list_names(node, offset, |listed, inode| {
            if listed.cookie > share::COOKIE_DOT_DOT && !list_moments(&mut plain, &mut plus) {
                return false;
            }
            if !with_attributes {
                return plain.add(listed.node, listed.cookie, listed.kind, &listed.name);
            }
            let Ok(inode) = inode else {
                return plus.add_name(listed.node, listed.cookie, listed.kind, &listed.name);
            };
            let has_room = plus.add(&self.tree.entry(listed.node, &inode), listed.cookie, &listed.name);
            // The kernel does not count the dots as look-ups.
            if has_room && listed.cookie > share::COOKIE_DOT_DOT {
                self.lookups.add(listed.node);
            }
            has_room
        });
        if listed.is_ok() {
            list_moments(&mut plain, &mut plus);
        }
        let bytes = if with_attributes { plus.bytes() } else { plain.bytes() };
        match listed {
            // Names before an error are returned now, and the error with the next request.
            Err(failure) if bytes.is_empty() => answer.fail(errno(failure)),
            _ => answer.bytes(bytes),
        }
    }

    fn stat_fs(&self) -> share::Result<StatFs> {
        let capacity = self.tree.capacity()?;
        let block = u64::from(BLOCK_BYTES);
        let free = capacity.free_bytes / block;
        Ok(StatFs {
            blocks: capacity.total_bytes / block,
            blocks_free: free,
            blocks_available: free,
            // As many as there is room for.
            files: capacity.total_bytes / block,
            files_free: free,
            block_bytes: BLOCK_BYTES,
            name_bytes_max: share::NAME_BYTES_MAX as u32,
        })
    }
}

#[cfg(test)]
mod tests {
    use share::{Options, Time};
    use sim::SimSpace;

    use super::*;
    use crate::xattr_support::XattrSupport;

    const OPTIONS: Options = Options { now: || Time { seconds: 9, nanoseconds: 1 }, cache_bytes: 1 << 20 };

    fn served(xattrs: XattrSupport) -> Served {
        let tree = Arc::new(Tree::create(SimSpace::new(), 7, OPTIONS).unwrap());
        Served::new(ShownTree::new(tree, xattrs), LookupCounts::default(), None, &MountOptions::default()).unwrap()
    }

    fn taken(has_access_times: bool) -> Capabilities {
        let mut served = served(XattrSupport::All);
        served.has_access_times = has_access_times;
        served.capabilities(Capabilities::default())
    }

    /// With it, the kernel keeps pages that a buffered reader read before an asynchronous direct
    /// write completed.
    #[test]
    fn asynchronous_direct_writes_are_not_offered() {
        assert!(!taken(false).has(Capabilities::ASYNC_DIO) && !taken(true).has(Capabilities::ASYNC_DIO));
    }

    /// With it, the kernel asks for the ACL of each node.
    #[test]
    fn acls_are_negotiated_where_files_have_them() {
        for (xattrs, has_acls) in
            [(XattrSupport::All, true), (XattrSupport::WithoutAcls, false), (XattrSupport::None, false)]
        {
            assert_eq!(served(xattrs).capabilities(Capabilities::default()).has(Capabilities::POSIX_ACL), has_acls);
        }
    }

    #[test]
    fn opens_come_where_access_times_move() {
        assert!(taken(false).has(Capabilities::NO_OPEN_SUPPORT.with(Capabilities::CACHE_SYMLINKS)));
        let none = Capabilities::NO_OPEN_SUPPORT.with(Capabilities::NO_OPENDIR_SUPPORT);
        assert_eq!(taken(true).and(none.with(Capabilities::CACHE_SYMLINKS)), Capabilities::default());
    }
}
