//! The capability traits of a block device. All calls may be made from many threads at once; all
//! are synchronous: they return when their guarantee holds.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::{Client, Result};

/// Options of a write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// Force unit access: return only when this write is durable.
    pub fua: bool,
}

/// Advice on the data of a write, for its compression and placement. A wrong hint costs time or
/// space, and nothing else.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hint {
    /// How to compress it.
    pub how: Advice,
    /// The kind of content: data of one kind shares the memory of tests. 0: not known.
    pub kind: u16,
    /// In how many more copies it is stored. The engine sets it, by the properties of the device.
    pub copies: u8,
}

/// How to compress data. Codecs are identified by their numbers in the format; an unknown number is
/// treated as [`Usual`](Self::Usual).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Advice {
    /// As the properties of the device say.
    #[default]
    Usual,
    /// Chosen per unit, regardless of the properties.
    Auto,
    /// With this codec.
    Codec(u8),
    /// With this codec where the data matches; otherwise chosen per unit.
    Guess(u8),
}

/// Options for zeroing a range.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ZeroOptions {
    /// Return only when the zeroes are durable.
    pub fua: bool,
    /// The range must stay allocated (NBD_CMD_FLAG_NO_HOLE): zeroes are stored, compressed, instead
    /// of a hole.
    pub no_hole: bool,
}

/// Whether a range holds data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocation {
    /// Data is stored for it.
    Data,
    /// Not stored; reads as zeroes.
    Hole,
}

/// A range of one kind of allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Length in bytes, at least 1.
    pub length: u64,
    /// How the range is stored.
    pub allocation: Allocation,
}

/// A read that a client waits for, with room for its bytes.
pub trait PendingRead {
    /// First byte of the range.
    fn offset(&self) -> u64;

    /// The destination, exactly as long as the read.
    fn buf(&mut self) -> &mut [u8];

    /// Completes the read: the buffer is filled, or its content is undefined after an error. Must
    /// not wait for the client, nor call the device.
    fn finish(self: Box<Self>, result: Result<()>);
}

/// A block device of any byte size, addressed in bytes.
///
/// Consistency: a read that begins after a write returned sees that write. For writes that overlap
/// in time and in range, each 4 KiB block ends with the content of one of them.
///
/// Durability: writes acknowledged before a [`flush`](Self::flush) was called are durable when that
/// flush returns, regardless of connection or thread.
///
/// Ranges past the end are refused with [`ErrorKind::Invalid`](crate::ErrorKind::Invalid); no
/// operation is carried out partially.
pub trait BlockDevice: Send + Sync {
    /// Size in bytes. Changes when the device is resized.
    fn size_bytes(&self) -> u64;

    /// Whether every change is refused, with [`ErrorKind::ReadOnly`](crate::ErrorKind::ReadOnly):
    /// the device is a snapshot.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Size of the requests that the device serves best, in bytes: (minimum without
    /// read-modify-write, preferred).
    fn block_bytes(&self) -> (u32, u32);

    /// Fills `buf` from `offset`.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Whether [`read_many`](Self::read_many) has several reads under way at a time. If not, a
    /// caller that wants that needs threads.
    fn reads_together(&self) -> bool;

    /// Performs the reads returned by `next`, concurrently if the device can, and finishes them in
    /// any order; returns when `next` has returned `None`, which means that there are none at the
    /// moment, and all are done. Calls `next` again each time a read is done.
    fn read_many(&self, next: &mut dyn FnMut() -> Option<Box<dyn PendingRead>>);

    /// Like [`read`](Self::read), but only from memory: `Ok(true)` if `buf` is filled, or
    /// `Ok(false)` with undefined content of `buf`. Never waits for I/O.
    fn read_cached(&self, offset: u64, buf: &mut [u8]) -> Result<bool>;

    /// Writes `data` at `offset`. The device keeps a reference to `data` until it has been stored,
    /// so that large aligned requests are not copied; each request needs a buffer of its own.
    fn write(&self, offset: u64, data: Bytes, options: WriteOptions) -> Result<()>;

    /// Like [`write`](Self::write) without FUA, with a hint about the data. Devices without
    /// compression ignore the hint.
    fn write_hinted(&self, offset: u64, data: Bytes, hint: Hint) -> Result<()> {
        let _ = hint;
        self.write(offset, data, WriteOptions::default())
    }

    /// Whether a write without FUA would have to wait now, because the write buffer is full. A hint
    /// for front ends that prefer to hand such a write to another thread.
    fn write_would_wait(&self) -> bool;

    /// How long a write that failed with [`ErrorKind::Full`](crate::ErrorKind::Full) is held and
    /// retried ([`Held`](crate::Held)) before the client gets the error; `None`: it gets the error
    /// immediately.
    fn full_wait(&self) -> Option<Duration> {
        None
    }

    /// Makes all that was acknowledged before the call durable.
    fn flush(&self) -> Result<()>;

    /// Makes `length` bytes at `offset` read as zeroes and gives their space back.
    /// Whole blocks become holes; the parts of blocks at the ends are overwritten with zeroes.
    fn discard(&self, offset: u64, length: u64) -> Result<()>;

    /// Makes `length` bytes at `offset` read as zeroes. Fast (no data is written) unless `no_hole`
    /// is asked for.
    fn write_zeroes(&self, offset: u64, length: u64, options: ZeroOptions) -> Result<()>;

    /// Returns the allocation of `length` bytes from `offset`: runs that cover the range from its
    /// start, adjacent ones of different kinds, at most `runs_max` (at least 1) of them. Truncated
    /// at that number, so their sum may be less than `length`.
    fn allocation(&self, offset: u64, length: u64, runs_max: usize) -> Result<Vec<Run>>;

    /// Loads the range into memory if there is space; a hint.
    fn prefetch(&self, offset: u64, length: u64) -> Result<()>;

    /// Logical bytes that hold data (not holes), for `st_blocks`. May lag by one checkpoint.
    fn allocated_bytes(&self) -> u64;
}

/// [`BlockDevice::read_many`] for devices that do one read after the other.
pub fn read_each(device: &(impl BlockDevice + ?Sized), next: &mut dyn FnMut() -> Option<Box<dyn PendingRead>>) {
    while let Some(mut read) = next() {
        let offset = read.offset();
        let result = device.read(offset, read.buf());
        read.finish(result);
    }
}

/// Identifies a device within its set: a small number that survives renames and is never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u64);

/// The facts about a device that are known without opening it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Which it is.
    pub id: DeviceId,
    /// Name, unique in its set: its folders and its own name, separated by `/`, together at most
    /// 255 bytes. Each part consists of `A-Z a-z 0-9 . _ -`, and does not start with `.` or `-`;
    /// the name of a snapshot has one `@` between its volume's name and its own. May be reused by
    /// another device later.
    pub name: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// As [`BlockDevice::allocated_bytes`].
    pub allocated_bytes: u64,
    /// When it was created, in seconds since 1970.
    pub created_unix_s: u64,
    /// Whether it is a snapshot.
    pub read_only: bool,
}

/// A folder of devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderInfo {
    /// Which it is: no device and no other folder has its number.
    pub id: DeviceId,
    /// Its name preceded by those of its folders, separated by `/`.
    pub name: String,
    /// When it was created, in seconds since 1970.
    pub created_unix_s: u64,
}

/// A set of devices. A name is looked up once; the device's number then identifies it, even after a
/// rename. Looking up a device does not open it, and waits for no client.
pub trait DeviceSet: Send + Sync {
    /// All devices, by name.
    fn list(&self) -> Result<Vec<DeviceInfo>>;
    /// All folders, by name.
    fn folders(&self) -> Result<Vec<FolderInfo>> {
        Ok(Vec::new())
    }
    /// Returns the facts about the device with that name.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound).
    fn find(&self, name: &str) -> Result<DeviceInfo>;
    /// Returns the facts about a device.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound).
    fn look(&self, id: DeviceId) -> Result<DeviceInfo>;
    /// Opens a device for a client, which holds it until the result is dropped. Waits briefly for a
    /// client that needs it exclusively, and for requests in progress of clients that have
    /// [disconnected](Client::is_gone).
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound),
    /// [`ErrorKind::InUse`](crate::ErrorKind::InUse).
    fn open(&self, id: DeviceId, client: &Arc<dyn Client>) -> Result<Arc<dyn BlockDevice>>;
    /// Runs `work` on a device that no other client has open through any front end, and returns the
    /// device. No other client gets it before `work` is done. Waits briefly for clients that are
    /// just closing it. A device that the caller obtained from [`open`](Self::open) also counts as
    /// open. A set that does not track open devices runs `work` immediately.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound),
    /// [`ErrorKind::InUse`](crate::ErrorKind::InUse), and those of `work`.
    fn open_alone(
        &self,
        id: DeviceId,
        client: &Arc<dyn Client>,
        work: &mut dyn FnMut(&dyn BlockDevice) -> Result<()>,
    ) -> Result<Arc<dyn BlockDevice>> {
        let device = self.open(id, client)?;
        work(&*device)?;
        Ok(device)
    }
}
