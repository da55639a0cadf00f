//! A client of vhost-user-blk: the part of a virtual machine monitor that outlives servers, and a
//! guest's disk driver on shared memory. It is written after the standards alone, so that both ends
//! of the protocol do not have one mistake in common.
//!
//! Each request has a slot of guest memory: a header, a table, a status, and room for data. Ring
//! `q` and its slots lie in a window of their own. One thread drives it.

mod driver;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::MemfdFlags;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap};

pub use self::driver::{Answer, Op};
use crate::until;

/// Descriptors of a ring.
pub const RING_SIZE: u16 = 128;
/// Descriptors of a request that needs no table: header, two of data, status.
const SLOT_DESCRIPTORS: u16 = 4;
/// Requests under way in one ring.
pub const SLOTS: u16 = RING_SIZE / SLOT_DESCRIPTORS;
/// Room for the data of a request.
pub const DATA_BYTES: usize = 128 << 10;

const WINDOW: u64 = 16 << 20;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
/// The monitor's address of the memory; the guest's is [`BASE`].
const USER: u64 = 0x7000_0000_0000;
/// The first guest-physical address.
pub const BASE: u64 = 0x4000_0000;

/// Features of virtio that a driver may accept.
pub mod feature {
    /// The disk is read-only.
    pub const RO: u64 = 1 << 5;
    /// There are flushes.
    pub const FLUSH: u64 = 1 << 9;
    /// The write cache can be switched off.
    pub const CONFIG_WCE: u64 = 1 << 11;
    /// Discards.
    pub const DISCARD: u64 = 1 << 13;
    /// Zeroes.
    pub const WRITE_ZEROES: u64 = 1 << 14;
    /// Tables of descriptors.
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// Notifications by index.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// Features of the protocol.
    pub const PROTOCOL: u64 = 1 << 30;
}

/// A monitor with its guest.
pub struct Monitor {
    path: PathBuf,
    /// The guest's memory, from [`BASE`] on.
    pub memory: GuestMemoryMmap<()>,
    file: OwnedFd,
    rings: Vec<Driver>,
    /// Features that the driver accepts, as far as they are offered.
    pub wanted: u64,
    /// Features that both have.
    pub features: u64,
    /// Whether requests have their descriptors in tables.
    pub is_indirect: bool,
    inflight: Option<(OwnedFd, Vec<u8>)>,
    socket: Option<UnixStream>,
    events: Option<UnixStream>,
}

struct Driver {
    kick: OwnedFd,
    call: OwnedFd,
    available: u16,
    used: u16,
    free: Vec<u16>,
    lengths: BTreeMap<u16, usize>,
    answers: BTreeMap<u16, Answer>,
}

impl Monitor {
    /// A machine with so many queues that attaches the disk at a socket.
    ///
    /// # Panics
    /// When the server does not do its part.
    pub fn attach(path: &Path, queues: usize) -> Self {
        let mut monitor = Self::new(path, queues);
        monitor.reattach();
        monitor
    }

    /// The same, not attached yet.
    ///
    /// # Panics
    /// When there is no memory.
    pub fn new(path: &Path, queues: usize) -> Self {
        let file = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        let size = WINDOW * queues as u64;
        rustix::fs::ftruncate(&file, size).unwrap();
        let mapped = FileOffset::new(File::from(file.try_clone().unwrap()), 0);
        let ranges = [(GuestAddress(BASE), size as usize, Some(mapped))];
        let memory = GuestMemoryMmap::from_ranges_with_files(ranges).unwrap();
        let driver = |_| Driver {
            kick: eventfd(0, EventfdFlags::CLOEXEC).unwrap(),
            call: eventfd(0, EventfdFlags::CLOEXEC).unwrap(),
            available: 0,
            used: 0,
            free: (0..SLOTS).rev().collect(),
            lengths: BTreeMap::new(),
            answers: BTreeMap::new(),
        };
        Self {
            path: path.to_owned(),
            memory,
            file,
            rings: (0..queues).map(driver).collect(),
            wanted: u64::MAX,
            features: 0,
            is_indirect: false,
            inflight: None,
            socket: None,
            events: None,
        }
    }

    /// Attaches the disk, or attaches it again: requests under way stay so, and the server finds
    /// them in the in-flight memory. Waits for a server.
    ///
    /// # Panics
    /// When the server does not do its part.
    pub fn reattach(&mut self) {
        (self.socket, self.events) = (None, None);
        until("the server answers", || self.try_attach().is_ok());
    }

    /// Closes the connection.
    pub fn detach(&mut self) {
        (self.socket, self.events) = (None, None);
    }

    fn try_attach(&mut self) -> std::io::Result<()> {
        self.socket = Some(UnixStream::connect(&self.path)?);
        let offered = self.number(1)?;
        self.features = offered & self.wanted | feature::PROTOCOL;
        self.set(2, &self.features.to_le_bytes(), &[])?;
        let protocol = self.number(15)?;
        self.set(16, &protocol.to_le_bytes(), &[])?;
        self.set(3, &[], &[])?;
        if self.number(17)? < self.rings.len() as u64 {
            return Err(std::io::Error::other("too few queues"));
        }
        let (ours, theirs) = UnixStream::pair()?;
        self.set(21, &[], &[theirs.as_fd()])?;
        self.events = Some(ours);
        self.bring_inflight()?;
        let region = [BASE, WINDOW * self.rings.len() as u64, USER, 0];
        let table: Vec<u8> = std::iter::once(1).chain(region).flat_map(u64::to_le_bytes).collect();
        self.set(5, &table, &[self.file.as_fd()])?;
        (0..self.rings.len()).try_for_each(|ring| self.start_ring(ring))
    }

    fn bring_inflight(&mut self) -> std::io::Result<()> {
        if let Some((file, shape)) = &self.inflight {
            return self.set(32, shape, &[file.as_fd()]);
        }
        let mut shape = vec![0; 24];
        shape[16..18].copy_from_slice(&(self.rings.len() as u16).to_le_bytes());
        shape[18..20].copy_from_slice(&RING_SIZE.to_le_bytes());
        let (shape, mut files) = self.ask(31, &shape)?;
        self.inflight = files.pop().map(|file| (file, shape));
        Ok(())
    }

    fn start_ring(&self, ring: usize) -> std::io::Result<()> {
        let state = |value: u32| [(ring as u32).to_le_bytes(), value.to_le_bytes()].concat();
        let start = USER + WINDOW * ring as u64;
        let places = [start, start + USED, start + AVAILABLE, 0];
        let places: Vec<u8> = state(0).into_iter().chain(places.into_iter().flat_map(u64::to_le_bytes)).collect();
        let Driver { kick, call, used, .. } = &self.rings[ring];
        self.set(8, &state(u32::from(RING_SIZE)), &[])?;
        self.set(10, &state(u32::from(*used)), &[])?;
        self.set(9, &places, &[])?;
        self.set(13, &(ring as u64).to_le_bytes(), &[call.as_fd()])?;
        self.set(12, &(ring as u64).to_le_bytes(), &[kick.as_fd()])?;
        self.set(18, &state(1), &[])
    }

    /// Requests of a ring that are marked as under way in the in-flight memory.
    ///
    /// # Panics
    /// When there is no such memory.
    pub fn marked(&self, ring: usize) -> usize {
        let (file, _) = self.inflight.as_ref().unwrap();
        // A header of 16 bytes, then 16 for each descriptor, rounded up to 64.
        let part = (16 + 16 * usize::from(RING_SIZE)).next_multiple_of(64);
        let mut bytes = vec![0; part];
        assert_eq!(rustix::io::pread(file, &mut bytes, (part * ring) as u64), Ok(part));
        (0..usize::from(RING_SIZE)).filter(|entry| bytes[16 + 16 * entry] == 1).count()
    }

    /// Stops a ring, and returns its base.
    ///
    /// # Panics
    /// When the server does not answer.
    pub fn stop_ring(&self, ring: usize) -> u32 {
        let state = [(ring as u32).to_le_bytes(), [0; 4]].concat();
        let (body, _) = self.ask(11, &state).unwrap();
        u32::from_le_bytes(body[4..8].try_into().unwrap())
    }

    /// Starts it again.
    ///
    /// # Panics
    /// When the server refuses.
    pub fn restart_ring(&self, ring: usize) {
        self.start_ring(ring).unwrap();
    }

    /// A part of the configuration.
    ///
    /// # Panics
    /// When there is no such part.
    pub fn config(&self, offset: u32, size: u32) -> Vec<u8> {
        let header = [offset.to_le_bytes(), size.to_le_bytes(), [0; 4]].concat();
        let (body, _) = self.ask(24, &[header, vec![0; size as usize]].concat()).unwrap();
        assert_eq!(body.len(), 12 + size as usize);
        body[12..].to_vec()
    }

    /// Changes a part of it; whether the server agrees.
    pub fn set_config(&self, offset: u32, bytes: &[u8]) -> bool {
        let header = [offset.to_le_bytes(), (bytes.len() as u32).to_le_bytes(), [0; 4]].concat();
        self.set(25, &[header, bytes.to_vec()].concat(), &[]).is_ok()
    }

    /// Waits until the server says that the configuration has changed.
    ///
    /// # Panics
    /// When it says something else.
    pub fn await_change(&mut self) {
        let mut header = [0; 12];
        self.events.as_mut().unwrap().read_exact(&mut header).unwrap();
        assert_eq!(header, [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    }

    /// Sends raw bytes, and returns whether the server closes the connection.
    ///
    /// # Panics
    /// When there is no connection.
    pub fn breaks(&mut self, bytes: &[u8]) -> bool {
        let socket = self.socket.as_mut().unwrap();
        // The server may close while this is sent.
        let _ = socket.write_all(bytes);
        drop(socket.shutdown(std::net::Shutdown::Write));
        let mut rest = Vec::new();
        drop(socket.read_to_end(&mut rest));
        rest.is_empty()
    }

    fn number(&self, request: u32) -> std::io::Result<u64> {
        let (body, _) = self.ask(request, &[])?;
        let bytes = body.try_into().map_err(|_| std::io::Error::other("no number"))?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// A message that is answered by whether it worked.
    fn set(&self, request: u32, body: &[u8], files: &[BorrowedFd<'_>]) -> std::io::Result<()> {
        // Before the features of the protocol are agreed on there is no such answer.
        let is_agreed = !matches!(request, 2 | 16) || self.events.is_some();
        self.send(request, if is_agreed { 9 } else { 1 }, body, files)?;
        if !is_agreed {
            return Ok(());
        }
        let (body, _) = self.receive(request)?;
        if body == [0; 8] { Ok(()) } else { Err(std::io::Error::other(format!("message {request} was refused"))) }
    }

    fn ask(&self, request: u32, body: &[u8]) -> std::io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        self.send(request, 1, body, &[])?;
        self.receive(request)
    }

    fn send(&self, request: u32, flags: u32, body: &[u8], files: &[BorrowedFd<'_>]) -> std::io::Result<()> {
        let header = [request, flags, body.len() as u32].map(u32::to_le_bytes).concat();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(files)));
        }
        let parts = [IoSlice::new(&header), IoSlice::new(body)];
        let sent = rustix::net::sendmsg(self.socket()?, &parts, &mut control, SendFlags::NOSIGNAL)?;
        assert_eq!(sent, header.len() + body.len());
        Ok(())
    }

    fn receive(&self, request: u32) -> std::io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut header = [0; 12];
        let mut parts = [IoSliceMut::new(&mut header)];
        let flags = RecvFlags::WAITALL | RecvFlags::CMSG_CLOEXEC;
        if rustix::net::recvmsg(self.socket()?, &mut parts, &mut control, flags)?.bytes != 12 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let rights = |message| match message {
            RecvAncillaryMessage::ScmRights(rights) => rights.collect(),
            _ => Vec::new(),
        };
        let files = control.drain().flat_map(rights).collect();
        let [number, flags, size] = [0, 4, 8].map(|at| u32::from_le_bytes(header[at..at + 4].try_into().unwrap()));
        assert_eq!((number, flags), (request, 5), "the reply's header");
        let mut body = vec![0; size as usize];
        let mut socket = self.socket()?;
        socket.read_exact(&mut body)?;
        Ok((body, files))
    }

    fn socket(&self) -> std::io::Result<&UnixStream> {
        self.socket.as_ref().ok_or_else(|| std::io::ErrorKind::NotConnected.into())
    }
}
