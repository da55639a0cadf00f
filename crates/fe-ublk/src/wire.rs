//! The kernel's structures for ublk: `include/uapi/linux/ublk_cmd.h`. All numbers are in the
//! machine's byte order. No I/O, no state.

/// Bytes of the command area of a submission.
pub const COMMAND_BYTES: usize = 80;
/// Bytes of `struct ublksrv_ctrl_dev_info`.
pub const INFO_BYTES: usize = 64;
/// Bytes of `struct ublksrv_io_desc`.
pub const DESCRIPTOR_BYTES: usize = 24;
/// Bytes of `struct ublk_params` up to the end of `discard`, the last part that is set.
pub const PARAMETERS_BYTES: usize = 60;
/// Bytes of a sector, independent of the block size.
pub const SECTOR_BYTES: u64 = 512;
/// `UBLK_MAX_QUEUE_DEPTH`.
pub const DEPTH_MAX: u16 = 4096;
/// `UBLK_MAX_NR_QUEUES`.
pub const QUEUES_MAX: u16 = 4096;

/// Bytes of `struct ublksrv_ctrl_cmd`, by which its commands are encoded.
const CONTROL_BYTES: u32 = 32;
/// Bytes of `struct ublksrv_io_cmd`, likewise.
const IO_BYTES: u32 = 16;

/// `_IOR('u', number, struct)`.
const fn read(number: u32) -> u32 {
    2 << 30 | CONTROL_BYTES << 16 | (b'u' as u32) << 8 | number
}

/// `_IOWR('u', number, struct)`.
const fn write(number: u32, bytes: u32) -> u32 {
    3 << 30 | bytes << 16 | (b'u' as u32) << 8 | number
}

/// Commands for `/dev/ublk-control`.
pub mod control {
    use super::{CONTROL_BYTES, read, write};

    pub const GET_INFO: u32 = read(0x02);
    pub const ADD: u32 = write(0x04, CONTROL_BYTES);
    pub const DELETE: u32 = write(0x05, CONTROL_BYTES);
    pub const START: u32 = write(0x06, CONTROL_BYTES);
    pub const STOP: u32 = write(0x07, CONTROL_BYTES);
    pub const SET_PARAMETERS: u32 = write(0x08, CONTROL_BYTES);
    pub const GET_PARAMETERS: u32 = read(0x09);
    pub const START_RECOVERY: u32 = write(0x10, CONTROL_BYTES);
    pub const END_RECOVERY: u32 = write(0x11, CONTROL_BYTES);
    pub const GET_FEATURES: u32 = read(0x13);
    pub const DELETE_ASYNC: u32 = read(0x14);
    pub const UPDATE_SIZE: u32 = write(0x15, CONTROL_BYTES);
    pub const QUIESCE: u32 = write(0x16, CONTROL_BYTES);
}

/// `UBLK_U_IO_FETCH_REQ`.
pub const FETCH: u32 = write(0x20, IO_BYTES);
/// `UBLK_U_IO_COMMIT_AND_FETCH_REQ`.
pub const COMMIT_AND_FETCH: u32 = write(0x21, IO_BYTES);
/// `UBLK_IO_RES_ABORT`: the driver hands no more requests over with this tag.
pub const ABORTED: i32 = -libc::ENODEV;

/// Features of the driver, and flags of a device.
pub mod features {
    pub const USER_RECOVERY: u64 = 1 << 3;
    pub const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    pub const IOCTL_ENCODE: u64 = 1 << 6;
    pub const UPDATE_SIZE: u64 = 1 << 10;
    pub const QUIESCE: u64 = 1 << 12;
}

/// Operations of a request: the lowest byte of `op_flags`.
pub mod operation {
    pub const READ: u8 = 0;
    pub const WRITE: u8 = 1;
    pub const FLUSH: u8 = 2;
    pub const DISCARD: u8 = 3;
    pub const WRITE_ZEROES: u8 = 5;
}

/// `UBLK_IO_F_FUA`: a bit of `op_flags`.
pub const FUA: u32 = 1 << 13;
/// `UBLK_IO_F_NOUNMAP`: zeroes must be stored.
pub const NO_UNMAP: u32 = 1 << 15;

/// Attributes of a device, in `struct ublk_param_basic`.
pub mod attribute {
    pub const READ_ONLY: u32 = 1 << 0;
    pub const VOLATILE_CACHE: u32 = 1 << 2;
    pub const FUA: u32 = 1 << 3;
}

/// `UBLK_PARAM_TYPE_BASIC`.
const TYPE_BASIC: u32 = 1 << 0;
/// `UBLK_PARAM_TYPE_DISCARD`.
const TYPE_DISCARD: u32 = 1 << 1;
/// Place of `basic.dev_sectors` in `struct ublk_params`.
const AT_SECTORS: usize = 24;

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

fn take<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut value = [0; N];
    value.copy_from_slice(&bytes[at..at + N]);
    value
}

/// The used part of `struct ublksrv_ctrl_cmd`: a device, a buffer, and one number.
#[derive(Debug, Clone, Copy, Default)]
pub struct ControlCommand {
    /// Number of the device; `u32::MAX`: none yet.
    pub device: u32,
    /// Address of the buffer.
    pub address: u64,
    /// Its bytes.
    pub length: u16,
    /// `data[0]`.
    pub data: u64,
}

impl ControlCommand {
    /// Encodes it for the command area of a submission.
    pub fn encode(&self) -> [u8; COMMAND_BYTES] {
        let mut bytes = [0; COMMAND_BYTES];
        put(&mut bytes, 0, &self.device.to_ne_bytes());
        // It is for no queue.
        put(&mut bytes, 4, &u16::MAX.to_ne_bytes());
        put(&mut bytes, 6, &self.length.to_ne_bytes());
        put(&mut bytes, 8, &self.address.to_ne_bytes());
        put(&mut bytes, 16, &self.data.to_ne_bytes());
        bytes
    }
}

/// Encodes `struct ublksrv_io_cmd` for the command area of a submission.
pub fn io_command(queue: u16, tag: u16, result: i32, address: u64) -> [u8; COMMAND_BYTES] {
    let mut bytes = [0; COMMAND_BYTES];
    put(&mut bytes, 0, &queue.to_ne_bytes());
    put(&mut bytes, 2, &tag.to_ne_bytes());
    put(&mut bytes, 4, &result.to_ne_bytes());
    put(&mut bytes, 8, &address.to_ne_bytes());
    bytes
}

/// The state of a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum State {
    /// It has no block device.
    #[default]
    Dead,
    /// A server serves it, or did until now.
    Live,
    /// Its server is gone, and its requests wait.
    Quiesced,
    /// Its server is gone, and its requests fail; or a state that is not known.
    Failing,
}

impl State {
    const fn code(self) -> u16 {
        match self {
            Self::Dead => 0,
            Self::Live => 1,
            Self::Quiesced => 2,
            Self::Failing => 3,
        }
    }

    const fn of(code: u16) -> Self {
        match code {
            0 => Self::Dead,
            1 => Self::Live,
            2 => Self::Quiesced,
            _ => Self::Failing,
        }
    }
}

/// `struct ublksrv_ctrl_dev_info`: a device as the driver knows it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Info {
    /// Queues.
    pub queues: u16,
    /// Requests of a queue at a time.
    pub depth: u16,
    /// State.
    pub state: State,
    /// Bytes of the buffer for each request.
    pub buffer_bytes: u32,
    /// Number: N of `/dev/ublkbN`.
    pub number: u32,
    /// Process of the server.
    pub pid: i32,
    /// Features that are in use.
    pub flags: u64,
    /// `ublksrv_flags`: stored by the driver for the server.
    pub mark: u64,
}

impl Info {
    /// Encodes it.
    pub fn encode(&self) -> [u8; INFO_BYTES] {
        let mut bytes = [0; INFO_BYTES];
        put(&mut bytes, 0, &self.queues.to_ne_bytes());
        put(&mut bytes, 2, &self.depth.to_ne_bytes());
        put(&mut bytes, 4, &self.state.code().to_ne_bytes());
        put(&mut bytes, 8, &self.buffer_bytes.to_ne_bytes());
        put(&mut bytes, 12, &self.number.to_ne_bytes());
        put(&mut bytes, 16, &self.pid.to_ne_bytes());
        put(&mut bytes, 24, &self.flags.to_ne_bytes());
        put(&mut bytes, 32, &self.mark.to_ne_bytes());
        bytes
    }

    /// Decodes it.
    pub fn decode(bytes: &[u8; INFO_BYTES]) -> Self {
        Self {
            queues: u16::from_ne_bytes(take(bytes, 0)),
            depth: u16::from_ne_bytes(take(bytes, 2)),
            state: State::of(u16::from_ne_bytes(take(bytes, 4))),
            buffer_bytes: u32::from_ne_bytes(take(bytes, 8)),
            number: u32::from_ne_bytes(take(bytes, 12)),
            pid: i32::from_ne_bytes(take(bytes, 16)),
            flags: u64::from_ne_bytes(take(bytes, 24)),
            mark: u64::from_ne_bytes(take(bytes, 32)),
        }
    }
}

/// The used part of `struct ublk_params`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    /// Of [`attribute`].
    pub attributes: u32,
    /// Exponents of sizes in bytes: logical block, physical block, preferred and least request.
    pub shifts: [u8; 4],
    /// Sectors of the largest read or write.
    pub sectors_max: u32,
    /// Sectors of the device.
    pub sectors: u64,
    /// For devices that can be changed.
    pub discard: Option<Discard>,
}

/// `struct ublk_param_discard`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Discard {
    /// Bytes.
    pub granularity: u32,
    /// Sectors of the largest discard.
    pub sectors_max: u32,
    /// Sectors of the largest request for zeroes.
    pub zeroes_sectors_max: u32,
}

impl Parameters {
    /// Encodes them.
    pub fn encode(&self) -> [u8; PARAMETERS_BYTES] {
        let mut bytes = empty_parameters();
        let types = TYPE_BASIC | if self.discard.is_some() { TYPE_DISCARD } else { 0 };
        put(&mut bytes, 4, &types.to_ne_bytes());
        put(&mut bytes, 8, &self.attributes.to_ne_bytes());
        put(&mut bytes, 12, &self.shifts);
        put(&mut bytes, 16, &self.sectors_max.to_ne_bytes());
        put(&mut bytes, AT_SECTORS, &self.sectors.to_ne_bytes());
        if let Some(discard) = &self.discard {
            put(&mut bytes, 44, &discard.granularity.to_ne_bytes());
            put(&mut bytes, 48, &discard.sectors_max.to_ne_bytes());
            put(&mut bytes, 52, &discard.zeroes_sectors_max.to_ne_bytes());
            // The most ranges of one discard.
            put(&mut bytes, 56, &1_u16.to_ne_bytes());
        }
        bytes
    }
}

/// Room for the parameters of a device: only its length is set.
pub fn empty_parameters() -> [u8; PARAMETERS_BYTES] {
    let mut bytes = [0; PARAMETERS_BYTES];
    put(&mut bytes, 0, &(PARAMETERS_BYTES as u32).to_ne_bytes());
    bytes
}

/// Reads the sectors of a device out of its parameters.
pub fn sectors_of(parameters: &[u8; PARAMETERS_BYTES]) -> u64 {
    u64::from_ne_bytes(take(parameters, AT_SECTORS))
}

/// `struct ublksrv_io_desc`: a request, without its buffer, which is that of its tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// Operation, and flags above it.
    pub op_flags: u32,
    /// Number of sectors.
    pub sectors: u32,
    /// First sector.
    pub start_sector: u64,
}

impl Descriptor {
    /// Decodes it.
    pub fn decode(bytes: &[u8; DESCRIPTOR_BYTES]) -> Self {
        Self {
            op_flags: u32::from_ne_bytes(take(bytes, 0)),
            sectors: u32::from_ne_bytes(take(bytes, 4)),
            start_sector: u64::from_ne_bytes(take(bytes, 8)),
        }
    }
}

/// Bytes from the start of one queue's descriptors to those of the next, in `/dev/ublkcN`.
pub fn descriptors_stride(page_bytes: usize) -> usize {
    (usize::from(DEPTH_MAX) * DESCRIPTOR_BYTES).next_multiple_of(page_bytes)
}

/// Bytes of a queue's descriptors, as they must be mapped.
pub fn descriptors_bytes(depth: u16, page_bytes: usize) -> usize {
    (usize::from(depth) * DESCRIPTOR_BYTES).next_multiple_of(page_bytes)
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
