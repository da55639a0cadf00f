//! Dispatches protocol requests to the directory, an open file or a lane. Owns the negotiation with
//! the kernel. The semantics of file operations are in `file_io`.
//!
//! Names, sizes, allocated bytes and modification times change without the kernel's knowledge
//! (volumes are created, resized and destroyed through other doors), so the kernel caches none of
//! them: all timeouts are zero. This costs a round trip for each `stat` and `open`, and none for a
//! read or write.

use std::sync::Arc;
use std::time::Duration;

use fuse::wire::reply::{self, OpenFlags};
use fuse::{Answer, Capabilities, Entry, Errno, FileSystem, Limits, Operation, Request, SetAttributes, StatFs};
use surface::{Allocation, Client, process_name, program_file};

use crate::directory::{BLOCK_BYTES, DeviceDirectory, EMPTYINGS, FileState, OPENS, READS};
use crate::file_io;
use crate::nodes::Node;
use crate::opener::Opener;
use crate::options::REQUEST_BYTES_MAX;

/// The kernel caches neither names nor attributes.
pub(crate) const TTL: Duration = Duration::ZERO;

/// Direct, whether the caller asked for it or not: see "Coherence" in the crate's documentation.
const OPEN_FLAGS: OpenFlags = OpenFlags::DIRECT_IO.with(OpenFlags::PARALLEL_DIRECT_WRITES).with(OpenFlags::NO_FLUSH);

/// Requests that the kernel may have under way without a caller waiting for each: direct I/O of a
/// loop device, io_uring, AIO. More than any disk gains from; bounds the pages that the kernel pins
/// to 256 x 1 MiB.
const BACKGROUND_REQUESTS_MAX: u16 = 256;

/// The longest name of a volume or a snapshot, with its folders: so that of a file, too.
const NAME_BYTES_MAX: u32 = 255;

impl FileSystem for DeviceDirectory {
    fn capabilities(&self, _offered: Capabilities) -> Capabilities {
        // The writeback cache stays off: with it, an acknowledged write might exist only in the
        // kernel. O_TRUNC comes with the open: as a separate truncation, it would look like
        // truncate(2). Opens are always answered here, never with ENOSYS, after which
        // ATOMIC_O_TRUNC would drop O_TRUNC.
        Capabilities::ASYNC_DIO
            .with(Capabilities::ATOMIC_O_TRUNC)
            .with(Capabilities::PARALLEL_DIROPS)
            .with(Capabilities::DO_READDIRPLUS)
            .with(Capabilities::READDIRPLUS_AUTO)
    }

    fn limits(&self) -> Limits {
        Limits { write_bytes_max: REQUEST_BYTES_MAX, background_max: BACKGROUND_REQUESTS_MAX }
    }

    fn ended(&self) {
        // Every accepted request is answered, even if no caller is left to receive it.
        self.files.held.close();
        self.lanes.close();
    }

    fn forget(&self, node: u64, lookups: u64) {
        self.nodes.forget(node, lookups);
    }

    fn serve<A: Answer>(&self, request: &Request<'_>, answer: A) {
        let node = request.node;
        match request.operation {
            Operation::Lookup { name } => answer.result(self.lookup(node, name).map(|entry| reply::entry(&entry))),
            Operation::GetAttributes { handle } => {
                answer.result(self.get_attributes(node, handle).map(|found| reply::attributes(&found, TTL)));
            }
            Operation::SetAttributes(wanted) => {
                answer.result(self.set_attributes(node, &wanted).map(|changed| reply::attributes(&changed, TTL)));
            }
            Operation::Open { flags } => self.serve_open(request, flags, answer),
            Operation::Read { handle, offset, size } => self.serve_read(handle, offset, size, answer),
            Operation::Write { handle, offset, data, flags, .. } => {
                self.serve_write(handle, offset, data, flags, answer);
            }
            // close(2) makes no guarantee about durability.
            Operation::Flush { .. } | Operation::FsyncDirectory { .. } => answer.done(),
            Operation::Release { handle } => {
                self.files.close(handle);
                answer.done();
            }
            Operation::Fsync { handle, .. } => self.serve_fsync(handle, answer),
            Operation::Allocate { handle, offset, length, mode } => {
                self.serve_fallocate(handle, offset, length, mode, answer);
            }
            Operation::Seek { handle, offset, whence } => self.serve_seek(handle, offset, whence, answer),
            Operation::OpenDirectory { .. } => {
                answer.result(self.open_directory(node).map(|handle| reply::opened(handle, OpenFlags::default())));
            }
            Operation::ReadDirectory { handle, offset, size, with_attributes } => {
                let listing = match self.listing(node, handle) {
                    Ok(listing) => listing,
                    Err(errno) => return answer.fail(errno),
                };
                let size = size.min(REQUEST_BYTES_MAX);
                if with_attributes {
                    answer.bytes(self.list_with_attributes(&listing, offset, size).bytes());
                } else {
                    answer.bytes(listing.names(offset, size).bytes());
                }
            }
            Operation::ReleaseDirectory { handle } => {
                self.listings.remove(handle);
                answer.done();
            }
            Operation::StatFs => answer.result(self.stat_fs().map(|found| reply::statfs(&found))),
            Operation::Create { name, .. } => answer.fail(self.refuse_change(name, "create")),
            Operation::MakeNode { name, .. } => answer.fail(self.refuse_change(name, "mknod")),
            Operation::MakeDirectory { name, .. } => answer.fail(self.refuse_change(name, "mkdir")),
            Operation::Unlink { name } => answer.fail(self.refuse_change(name, "unlink")),
            Operation::RemoveDirectory { name } => answer.fail(self.refuse_change(name, "rmdir")),
            Operation::SymLink { name, .. } => answer.fail(self.refuse_change(name, "symlink")),
            Operation::Link { name, .. } => answer.fail(self.refuse_change(name, "link")),
            Operation::Rename { name, .. } => answer.fail(self.refuse_change(name, "rename")),
            // The kernel does not ask again.
            _ => answer.fail(Errno::ENOSYS),
        }
    }
}

impl DeviceDirectory {
    /// Device numbers are never reused, so all nodes have the same generation.
    pub(crate) fn entry(&self, node: &Node, state: FileState) -> Entry {
        Entry {
            node: node.ino(),
            generation: 0,
            name_valid: TTL,
            attributes_valid: TTL,
            attributes: self.file_attributes(node, state),
        }
    }

    fn get_attributes(&self, node: u64, handle: Option<u64>) -> Result<fuse::Attributes, Errno> {
        if let Some(directory) = self.directory(node)? {
            return Ok(self.attributes_of(&directory));
        }
        let file = handle.and_then(|handle| self.files.handles.get(handle));
        let node = self.node(node)?;
        let state = self.state(&node, file.as_deref())?;
        Ok(self.file_attributes(&node, state))
    }

    fn set_attributes(&self, node: u64, wanted: &SetAttributes) -> Result<fuse::Attributes, Errno> {
        if self.directory(node)?.is_some() {
            return Err(Errno::EPERM);
        }
        let file = wanted.handle.and_then(|handle| self.files.handles.get(handle));
        self.change_attributes(&*self.node(node)?, file.as_deref(), wanted)
    }

    fn serve_open(&self, request: &Request<'_>, flags: i32, answer: impl Answer) {
        let node = match self.node(request.node) {
            Ok(node) => node,
            Err(errno) => return answer.fail(errno),
        };
        let files = self.files.clone();
        // The program that served the mount before this one has opened it, and could not say so.
        if request.is_resent()
            && let Some(handle) = files.kept.get().and_then(|kept| kept.opened_by(request.number()))
        {
            return answer.bytes(&reply::opened(handle, OPEN_FLAGS));
        }
        let number = request.number();
        // Resolved now: a process that opens a file for another program, as losetup does, may have
        // exited when its name is needed.
        let program = std::fs::read(program_file(request.pid)).unwrap_or_default();
        let process = process_name(request.pid, &program, Some(request.uid));
        let client: Arc<dyn Client> = Arc::new(Opener { pid: request.pid, process });
        let lane = if flags & libc::O_TRUNC == 0 { OPENS } else { EMPTYINGS };
        self.lanes.run(lane, 0, move || {
            answer.result(files.open(node, flags, &client, number).map(|handle| reply::opened(handle, OPEN_FLAGS)));
        });
    }

    fn serve_seek(&self, handle: u64, offset: u64, whence: i32, answer: impl Answer) {
        let wanted = match whence {
            libc::SEEK_DATA => Ok(Allocation::Data),
            libc::SEEK_HOLE => Ok(Allocation::Hole),
            _ => Err(Errno::EINVAL),
        };
        let request = self.file(handle).and_then(|file| {
            let offset = i64::try_from(offset).map_err(|_| Errno::ENXIO)?.cast_unsigned();
            Ok((file, offset, wanted?))
        });
        match request {
            Ok((file, offset, wanted)) => self.lanes.run(READS, 0, move || {
                let found = file_io::seek(&*file.device, offset, wanted).map_err(|failure| file.fail("lseek", failure));
                answer.result(found.map(reply::offset));
            }),
            Err(errno) => answer.fail(errno),
        }
    }

    fn open_directory(&self, node: u64) -> Result<u64, Errno> {
        self.listings.insert(self.entries(node)?).ok_or(Errno::ENFILE)
    }

    /// Logical bytes: the size of the volumes, and how much of it holds data. The fill level of the
    /// pool is not known here.
    fn stat_fs(&self) -> Result<StatFs, Errno> {
        let mut listing = self.devices.list().map_err(|error| self.complain(".", "statfs", &error))?;
        // Snapshots promise no space.
        listing.retain(|info| !info.read_only);
        let size: u64 = listing.iter().map(|info| info.size_bytes).fold(0, u64::saturating_add);
        let allocated = listing.iter().map(|info| info.allocated_bytes).fold(0, u64::saturating_add);
        let block = u64::from(BLOCK_BYTES);
        let free = size.saturating_sub(allocated) / block;
        Ok(StatFs {
            blocks: size / block,
            blocks_free: free,
            blocks_available: free,
            files: listing.len() as u64,
            files_free: 0,
            block_bytes: BLOCK_BYTES,
            name_bytes_max: NAME_BYTES_MAX,
        })
    }
}
