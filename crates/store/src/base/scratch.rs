//! Thread-local codec contexts and buffers, so that the hot paths do not allocate.

use std::cell::RefCell;

use codec::Workspace;
use env::AlignedBuf;
use units::GROUP_BYTES;

/// Largest read that goes into the thread's own buffer.
pub const READ_BYTES_MAX: usize = 256 << 10;

pub struct Scratch {
    pub codecs: Workspace,
    /// One unit, decoded or gathered.
    pub unit: Vec<u8>,
    /// The best compressed form of a unit so far, while others are tried; allocated on first use.
    pub spare: Vec<u8>,
    /// Raw bytes from the data file; grows to the size of the thread's reads.
    pub io: AlignedBuf,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::new());
}

/// Lends the thread's scratch space.
pub fn with<R>(work: impl FnOnce(&mut Scratch) -> R) -> R {
    SCRATCH.with(|scratch| match scratch.try_borrow_mut() {
        Ok(mut scratch) => work(&mut scratch),
        // In use further up the stack: a worker that helps with a read in the middle of a drain.
        Err(_) => work(&mut Scratch::new()),
    })
}

impl Scratch {
    fn new() -> Self {
        Self { codecs: Workspace::new(), unit: vec![0; GROUP_BYTES], spare: Vec::new(), io: AlignedBuf::new(64 << 10) }
    }

    /// The read buffer, at least `len` bytes long.
    pub fn grow_io(&mut self, len: usize) {
        if self.io.len() < len {
            self.io = AlignedBuf::new(len.next_power_of_two());
        }
    }
}
