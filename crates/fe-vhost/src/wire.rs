//! Messages of the vhost-user protocol as bytes, both ways. Pure: file descriptors that come with
//! a message are counted here and kept by the caller. May be called from any thread.
//!
//! Numbers and layouts: QEMU's `docs/interop/vhost-user.rst`. Integers have the machine's order,
//! which is little-endian wherever this is built.

/// Bytes of a header: request, flags, size of the body.
pub const HEADER_BYTES: usize = 12;
/// Longest body that is accepted. The longest defined one, a memory table of 32 regions, has 1,032.
pub const BODY_BYTES_MAX: u32 = 4096;
/// Most memory regions in one table, and so most file descriptors of one message.
pub const REGIONS_MAX: usize = 32;

const VERSION_MASK: u32 = 0x3;
const VERSION: u32 = 0x1;
const FLAG_REPLY: u32 = 0x4;
const FLAG_NEED_REPLY: u32 = 0x8;

/// Bit 8 of the message that brings a ring's descriptor: none comes.
const NO_DESCRIPTOR: u64 = 0x100;

/// Features of the protocol.
pub mod protocol {
    /// Several queues.
    pub const MQ: u64 = 1 << 0;
    /// Each message may ask for an answer.
    pub const REPLY_ACK: u64 = 1 << 3;
    /// A channel for messages of the server.
    pub const BACKEND_REQ: u64 = 1 << 5;
    /// The device's configuration is read and written by messages.
    pub const CONFIG: u64 = 1 << 9;
    /// In-flight requests are tracked in shared memory.
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    /// Memory regions come and go one by one.
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
}

/// The virtio feature bit that enables features of the protocol.
pub const F_PROTOCOL_FEATURES: u64 = 1 << 30;

/// A header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Number of the request.
    pub request: u32,
    /// Whether the sender waits for an answer, if both sides have agreed on that.
    pub needs_reply: bool,
    /// Bytes of the body.
    pub size: u32,
}

impl Header {
    /// Decodes a request's header.
    ///
    /// # Errors
    /// The reason why it is none.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, &'static str> {
        let mut fields = Fields(bytes);
        let (request, flags, size) = (fields.u32()?, fields.u32()?, fields.u32()?);
        if flags & VERSION_MASK != VERSION {
            return Err("the version of a message is not 1");
        }
        if flags & FLAG_REPLY != 0 {
            return Err("a reply came where a request was expected");
        }
        if size > BODY_BYTES_MAX {
            return Err("a message is too long");
        }
        Ok(Self { request, needs_reply: flags & FLAG_NEED_REPLY != 0, size })
    }

    /// Encodes the header of a reply to `request`.
    pub fn reply(request: u32, size: usize) -> [u8; HEADER_BYTES] {
        encode_header(request, VERSION | FLAG_REPLY, size)
    }

    /// Encodes the header of a request, as a client or the server's own channel sends it.
    pub fn request(request: u32, needs_reply: bool, size: usize) -> [u8; HEADER_BYTES] {
        encode_header(request, if needs_reply { VERSION | FLAG_NEED_REPLY } else { VERSION }, size)
    }
}

fn encode_header(request: u32, flags: u32, size: usize) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..4].copy_from_slice(&request.to_le_bytes());
    bytes[4..8].copy_from_slice(&flags.to_le_bytes());
    // Bodies are short: the longest has BODY_BYTES_MAX.
    bytes[8..].copy_from_slice(&(size as u32).to_le_bytes());
    bytes
}

/// The one message of the server's own channel: the configuration has changed.
pub const CONFIG_CHANGED: u32 = 2;

/// A region of guest memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Guest-physical address.
    pub guest: u64,
    /// Bytes.
    pub size: u64,
    /// Address in the monitor, by which rings are given.
    pub user: u64,
    /// Where it begins in its file.
    pub offset: u64,
}

/// The parts of a ring, as addresses in the monitor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingAddresses {
    /// Descriptor table.
    pub descriptors: u64,
    /// Used ring.
    pub used: u64,
    /// Available ring.
    pub available: u64,
}

/// The shape of in-flight memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InflightShape {
    /// Bytes.
    pub size: u64,
    /// Where it begins in its file.
    pub offset: u64,
    /// Queues.
    pub queues: u16,
    /// Descriptors of each.
    pub queue_size: u16,
}

/// Bytes of an encoded [`InflightShape`]: the fields, and four of padding.
const INFLIGHT_BYTES: usize = 24;

impl InflightShape {
    /// Encodes it.
    pub fn encode(self) -> [u8; INFLIGHT_BYTES] {
        let mut bytes = [0; INFLIGHT_BYTES];
        bytes[..8].copy_from_slice(&self.size.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..18].copy_from_slice(&self.queues.to_le_bytes());
        bytes[18..20].copy_from_slice(&self.queue_size.to_le_bytes());
        bytes
    }
}

/// Which descriptor of a ring a message brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// The guest has added requests.
    Kick,
    /// Requests were answered.
    Call,
    /// The ring makes no sense.
    Error,
}

/// A request of the monitor.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields are named as in the protocol; `ring` is a queue's number")]
pub enum Message {
    /// Offered features of virtio.
    GetFeatures,
    /// Accepted ones.
    SetFeatures(u64),
    /// The session begins.
    SetOwner,
    /// It ends; kept for old monitors.
    ResetOwner,
    /// All memory regions at once, a descriptor for each.
    SetMemory(Vec<Region>),
    /// Size of a ring.
    SetRingSize { ring: u32, size: u32 },
    /// Place of a ring.
    SetRingAddresses { ring: u32, addresses: RingAddresses },
    /// First entry of the available ring that was not taken.
    SetRingBase { ring: u32, base: u32 },
    /// Stops a ring, and asks for its base.
    GetRingBase { ring: u32 },
    /// A descriptor for a ring, if there is one.
    SetSignal { ring: u8, signal: Signal, has_descriptor: bool },
    /// Offered features of the protocol.
    GetProtocolFeatures,
    /// Accepted ones.
    SetProtocolFeatures(u64),
    /// Most queues.
    GetQueueCount,
    /// Lets a ring run, or pauses it.
    SetRingEnabled { ring: u32, is_enabled: bool },
    /// The channel for messages of the server.
    SetBackendChannel,
    /// A part of the configuration.
    GetConfig { offset: u32, size: u32 },
    /// Changes it.
    SetConfig { offset: u32, bytes: Vec<u8> },
    /// New in-flight memory.
    GetInflight(InflightShape),
    /// In-flight memory that is there already.
    SetInflight(InflightShape),
    /// Most memory regions.
    GetMemorySlots,
    /// One more region.
    AddRegion(Region),
    /// One less.
    RemoveRegion(Region),
}

impl Message {
    /// Decodes the body of a request.
    ///
    /// # Errors
    /// The reason why it cannot be decoded: wrong length, unknown number, more than allowed.
    pub fn decode(request: u32, body: &[u8]) -> Result<Self, &'static str> {
        let mut fields = Fields(body);
        let message = match request {
            1 => Self::GetFeatures,
            2 => Self::SetFeatures(fields.u64()?),
            3 => Self::SetOwner,
            4 => Self::ResetOwner,
            5 => {
                let (count, _padding) = (fields.u32()? as usize, fields.u32()?);
                if count > REGIONS_MAX {
                    return Err("a memory table has too many regions");
                }
                Self::SetMemory((0..count).map(|_| fields.region()).collect::<Result<_, _>>()?)
            }
            8 => Self::SetRingSize { ring: fields.u32()?, size: fields.u32()? },
            9 => {
                let (ring, _flags) = (fields.u32()?, fields.u32()?);
                let addresses =
                    RingAddresses { descriptors: fields.u64()?, used: fields.u64()?, available: fields.u64()? };
                let _log = fields.u64()?;
                Self::SetRingAddresses { ring, addresses }
            }
            10 => Self::SetRingBase { ring: fields.u32()?, base: fields.u32()? },
            11 => {
                let (ring, _) = (fields.u32()?, fields.u32()?);
                Self::GetRingBase { ring }
            }
            12..=14 => {
                let value = fields.u64()?;
                let signal = match request {
                    12 => Signal::Kick,
                    13 => Signal::Call,
                    _ => Signal::Error,
                };
                // The low byte is the ring.
                Self::SetSignal { ring: value as u8, signal, has_descriptor: value & NO_DESCRIPTOR == 0 }
            }
            15 => Self::GetProtocolFeatures,
            16 => Self::SetProtocolFeatures(fields.u64()?),
            17 => Self::GetQueueCount,
            18 => Self::SetRingEnabled { ring: fields.u32()?, is_enabled: fields.u32()? != 0 },
            21 => {
                // Monitors send an empty body, or a number of no meaning.
                fields.0 = &[];
                Self::SetBackendChannel
            }
            24 => {
                let (offset, size, _flags) = (fields.u32()?, fields.u32()?, fields.u32()?);
                fields.bytes(size as usize)?;
                Self::GetConfig { offset, size }
            }
            25 => {
                let (offset, size, _flags) = (fields.u32()?, fields.u32()?, fields.u32()?);
                Self::SetConfig { offset, bytes: fields.bytes(size as usize)?.to_vec() }
            }
            31 => Self::GetInflight(fields.inflight()?),
            32 => Self::SetInflight(fields.inflight()?),
            36 => Self::GetMemorySlots,
            37 | 38 => {
                let _padding = fields.u64()?;
                let region = fields.region()?;
                if request == 37 { Self::AddRegion(region) } else { Self::RemoveRegion(region) }
            }
            _ => return Err("a message is not known"),
        };
        if fields.0.is_empty() { Ok(message) } else { Err("a message is longer than it should be") }
    }

    /// File descriptors that must come with it. Removing a region may bring one, which is not used.
    pub fn descriptors(&self) -> usize {
        match self {
            Self::SetMemory(regions) => regions.len(),
            Self::SetSignal { has_descriptor, .. } => usize::from(*has_descriptor),
            Self::SetBackendChannel | Self::SetInflight(_) | Self::AddRegion(_) => 1,
            _ => 0,
        }
    }

    /// Whether its answer has a body of its own; all else is answered on demand by a number.
    pub const fn has_reply(&self) -> bool {
        matches!(
            self,
            Self::GetFeatures
                | Self::GetRingBase { .. }
                | Self::GetProtocolFeatures
                | Self::GetQueueCount
                | Self::GetConfig { .. }
                | Self::GetInflight(_)
                | Self::GetMemorySlots
        )
    }
}

/// The rest of a body.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], &'static str> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or("a message is too short")?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        let (taken, rest) = self.0.split_first_chunk().ok_or("a message is too short")?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u16(&mut self) -> Result<u16, &'static str> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, &'static str> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, &'static str> {
        self.array().map(u64::from_le_bytes)
    }

    fn region(&mut self) -> Result<Region, &'static str> {
        Ok(Region { guest: self.u64()?, size: self.u64()?, user: self.u64()?, offset: self.u64()? })
    }

    fn inflight(&mut self) -> Result<InflightShape, &'static str> {
        let (size, offset, queues, queue_size) = (self.u64()?, self.u64()?, self.u16()?, self.u16()?);
        // Some monitors send the padding, some do not.
        if self.0.len() == INFLIGHT_BYTES - 20 {
            self.0 = &[];
        }
        Ok(InflightShape { size, offset, queues, queue_size })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_those_of_the_protocol_and_others_are_refused() {
        let bytes = [12, 0, 0, 0, 9, 0, 0, 0, 8, 0, 0, 0];
        assert_eq!(Header::decode(&bytes), Ok(Header { request: 12, needs_reply: true, size: 8 }));
        assert_eq!(Header::request(12, true, 8), bytes);
        assert_eq!(Header::reply(1, 8), [1, 0, 0, 0, 5, 0, 0, 0, 8, 0, 0, 0]);
        for (at, value) in [(4, 0), (4, 2), (4, 5), (9, 0x11)] {
            let mut bad = bytes;
            bad[at] = value;
            assert!(Header::decode(&bad).is_err(), "{at} {value}");
        }
    }

    #[test]
    fn bodies_of_every_other_length_are_refused() {
        let body = [0; 64];
        for request in 0..64 {
            let lengths: Vec<_> =
                (0..=64).filter(|length| Message::decode(request, &body[..*length]).is_ok()).collect();
            let expected: &[usize] = match request {
                1 | 3 | 4 | 15 | 17 | 36 => &[0],
                2 | 5 | 8 | 10..=14 | 16 | 18 => &[8],
                9 | 37 | 38 => &[40],
                24 | 25 => &[12],
                31 | 32 => &[20, 24],
                21 => {
                    assert_eq!(lengths.len(), 65);
                    continue;
                }
                _ => &[],
            };
            assert_eq!(lengths, expected, "request {request}");
        }
    }

    #[test]
    fn a_memory_table_has_as_many_regions_as_it_says_and_no_more_than_allowed() {
        let mut body = vec![0; 8 + 32 * (REGIONS_MAX + 1)];
        body[0] = REGIONS_MAX as u8 + 1;
        assert!(Message::decode(5, &body).is_err());
        body[0] = 2;
        body[8 + 32] = 7;
        let message = Message::decode(5, &body[..8 + 64]).unwrap();
        assert_eq!(message.descriptors(), 2);
        let Message::SetMemory(regions) = message else { panic!("{message:?}") };
        assert_eq!(regions[1], Region { guest: 7, size: 0, user: 0, offset: 0 });
    }
}
