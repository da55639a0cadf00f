//! A connection to the kernel: negotiated, served, and ended. Owns the threads that take requests.
//!
//! A connection ends when the kernel drops it (an unmount, an abort). All reader threads notice
//! that and end, and then [`FileSystem::ended`] is called once.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crate::answer::Answer;
use crate::device::{self, Reader};
use crate::io_flusher::become_io_flusher;
use crate::lanes;
use crate::notify::Notifier;
use crate::ring::Rings;
use crate::wire::errno::Errno;
use crate::wire::init::{self, Capabilities, Limits};
use crate::wire::request::{Malformed, Operation, Request};
use crate::wire::{IN_HEADER_BYTES, opcode, reply, u32_at, u64_at};

/// The implementation of requests. All methods may be called by several threads.
pub trait FileSystem: Send + Sync + 'static {
    /// Returns the capabilities to use of those that the kernel offers, in addition to those of
    /// every connection.
    fn capabilities(&self, offered: Capabilities) -> Capabilities;

    /// Returns the limits to announce to the kernel.
    fn limits(&self) -> Limits;

    /// Answers a request, at once or later from another thread. Operations without an answer never
    /// reach it.
    fn serve<A: Answer>(&self, request: &Request<'_>, answer: A);

    /// Called when the kernel drops this many look-ups of a node.
    fn forget(&self, node: u64, lookups: u64);

    /// Called when no more requests come; all requests taken must be answered before this returns.
    fn ended(&self);
}

/// Serves a decoded request.
pub(crate) fn dispatch<F: FileSystem>(file_system: &F, decoded: Result<Request<'_>, Malformed>, answer: impl Answer) {
    match decoded {
        Ok(request) => match request.operation {
            // `ENOSYS` makes the kernel stop sending interruptions; requests are never cancelled
            // halfway.
            Operation::Interrupt | Operation::Unknown => answer.fail(Errno::ENOSYS),
            Operation::Destroy => answer.done(),
            _ => file_system.serve(&request, answer),
        },
        Err(Malformed) => {
            log::error!("the kernel sent a malformed request");
            answer.fail(Errno::EIO);
        }
    }
}

/// The transport of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Through the device.
    Device,
    /// Through a ring of io_uring for each CPU.
    Rings,
}

impl Transport {
    /// Returns rings if the kernel has them and its administrator allows them, else the device.
    pub fn best() -> Self {
        if crate::ring::is_offered() { Self::Rings } else { Self::Device }
    }
}

/// How a connection is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionOptions {
    /// The transport. If the kernel refuses [`Transport::Rings`] after all, the connection is lost.
    pub transport: Transport,
    /// Threads that take requests from the device, at least 1.
    pub threads: usize,
    /// Whether the device can be opened again for each thread.
    pub can_clone: bool,
}

/// A negotiated connection.
pub struct Session<F> {
    file_system: Arc<F>,
    /// The connection's descriptors, one for each thread that takes requests.
    devices: Vec<Arc<OwnedFd>>,
    threads: usize,
    rings: Option<Rings<F>>,
    can_resend: bool,
}

/// Used by every connection if offered: they change the layout of messages that [`crate::wire`]
/// reads, or cost nothing.
const ALWAYS: Capabilities = Capabilities::ASYNC_READ
    .with(Capabilities::BIG_WRITES)
    .with(Capabilities::MAX_PAGES)
    .with(Capabilities::SETXATTR_EXT)
    .with(Capabilities::INIT_EXT)
    .with(Capabilities::HAS_RESEND);

impl<F: FileSystem> Session<F> {
    /// Answers `FUSE_INIT` on the device of a new mount, and prepares to serve.
    ///
    /// # Errors
    /// When the kernel's protocol is not supported, or the connection or a thread fails. The
    /// connection is unusable then.
    pub fn begin(device: OwnedFd, file_system: Arc<F>, options: SessionOptions) -> io::Result<Self> {
        let device = Arc::new(device);
        let mut reader = Reader::new(device.clone());
        if !reader.read()? {
            return Err(io::Error::other("the mount ended before it began"));
        }
        let message = reader.message();
        let first = message.get(IN_HEADER_BYTES..).filter(|_| u32_at(message, 4) == opcode::INIT);
        let offered = first.and_then(init::offered);
        let Some((offered, readahead)) = offered else {
            let header = reply::header(u64_at(message, 8), -libc::EPROTO, 0);
            let _ = rustix::io::write(&*device, &header);
            return Err(io::Error::other("the kernel uses another FUSE protocol: Linux 5.4 or later is needed"));
        };
        let mut taken = file_system.capabilities(offered).with(ALWAYS).without(Capabilities::OVER_IO_URING);
        if options.transport == Transport::Rings {
            if !offered.has(Capabilities::OVER_IO_URING) {
                return Err(io::Error::other("the kernel does not offer FUSE over io_uring"));
            }
            taken = taken.with(Capabilities::OVER_IO_URING);
        }
        let can_resend = offered.has(Capabilities::HAS_RESEND);
        let payload = init::answer(taken.and(offered), readahead, file_system.limits());
        let header = reply::header(u64_at(message, 8), 0, payload.len());
        rustix::io::write(&*device, &[&header[..], &payload].concat())?;
        let rings = match options.transport {
            Transport::Rings => Some(Rings::begin(file_system.clone(), device.clone())?),
            Transport::Device => None,
        };
        let mut devices = vec![device];
        for _ in 1..options.threads.max(1) {
            // Without a descriptor of its own a thread shares the first one, which is slower but
            // correct.
            let can_clone = options.can_clone && rings.is_none();
            devices.extend(can_clone.then(|| device::clone_of(&devices[0]).ok()).flatten().map(Arc::new));
        }
        Ok(Self { file_system, devices, threads: options.threads.max(1), rings, can_resend })
    }

    /// Takes over a connection that another program has negotiated and served, through the same
    /// descriptors: requests that it took and did not answer are sent again, marked as
    /// [resent](Request::is_resent).
    ///
    /// # Errors
    /// When the kernel cannot send requests again (before Linux 6.9), or there are no descriptors.
    pub fn take_over(devices: Vec<OwnedFd>, file_system: Arc<F>) -> io::Result<Self> {
        let devices: Vec<Arc<OwnedFd>> = devices.into_iter().map(Arc::new).collect();
        let first = devices.first().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        if device::has_ended(first) {
            return Err(io::Error::from(io::ErrorKind::NotConnected));
        }
        Notifier(first.clone()).resend()?;
        Ok(Self { file_system, threads: devices.len(), devices, rings: None, can_resend: true })
    }

    /// Returns the reason why no other program can [take it over](Self::take_over); `None` if one
    /// can.
    pub const fn cannot_be_taken_over(&self) -> Option<&'static str> {
        match (self.rings.is_some(), self.can_resend) {
            (true, _) => Some("its requests come over io_uring"),
            (false, false) => Some("this kernel cannot send requests again (Linux 6.9 can)"),
            (false, true) => None,
        }
    }

    /// Returns the descriptors of the connection, all of which must stay open for it to survive
    /// this program.
    pub fn descriptors(&self) -> Vec<Arc<OwnedFd>> {
        self.devices.clone()
    }

    /// Returns a sender of notifications to the kernel.
    pub fn notifier(&self) -> Notifier {
        Notifier(self.devices[0].clone())
    }

    /// Serves until the connection ends, on this thread and others.
    ///
    /// # Errors
    /// When the connection fails while it is mounted.
    pub fn run(self) -> io::Result<()> {
        become_io_flusher();
        let result = match &self.rings {
            Some(rings) => rings.serve_device(&self.devices[0]),
            None => self.serve_device(),
        };
        if let Some(rings) = self.rings {
            rings.finish(result.is_err());
        }
        self.file_system.ended();
        result
    }

    fn serve_device(&self) -> io::Result<()> {
        let receivers = self.threads;
        let serve = move |mut reader: Reader, file_system: &F| {
            lanes::receive_with(receivers);
            reader.serve(file_system)
        };
        let mut threads: Vec<JoinHandle<io::Result<()>>> = Vec::new();
        for number in 1..self.threads {
            let device = self.devices.get(number).unwrap_or(&self.devices[0]);
            let reader = Reader::new(device.clone());
            let file_system = self.file_system.clone();
            let started = thread::Builder::new().name(format!("fuse-{number}")).spawn(move || {
                become_io_flusher();
                serve(reader, &file_system)
            });
            match started {
                Ok(thread) => threads.push(thread),
                // Fewer threads are sufficient.
                Err(error) => log::warn!("a thread that takes requests cannot be started: {error}"),
            }
        }
        let mut result = serve(Reader::new(self.devices[0].clone()), &self.file_system);
        for thread in threads {
            let ended =
                thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread that takes requests panicked")));
            result = result.and(ended);
        }
        result
    }
}
