//! The handshake as a state machine without I/O: bytes of the client go in, bytes for the client
//! come out. Owns the negotiated state; knows neither sockets nor time.
//!
//! 1. The server sends [`greeting`](option_reply::greeting), the client its flags.
//! 2. The client sends options; each is answered before the next is examined.
//! 3. `STARTTLS` resets the negotiation: earlier options are dropped, since an attacker may have
//!    inserted them.
//! 4. `GO` or `EXPORT_NAME` opens a device and ends the handshake; `ABORT`, invalid bytes and too
//!    many options close the connection.

use std::sync::Arc;

use surface::{BlockDevice, Client, DeviceInfo, DeviceSet, Error, ErrorKind};
use units::format_size;

use crate::admit::Session;
use crate::wire::option::{self, InfoRequest, MetaRequest, OptionHeader, info};
use crate::wire::reply::Replies;
use crate::wire::{
    CONTEXT_ALLOCATION, CONTEXT_ALLOCATION_ID, PAYLOAD_BYTES_MAX, handshake_flag, option_reply, transmission_flag,
};

/// Longest option data that is examined: a name and a few queries, each at most 4 KiB.
pub const OPTION_BYTES_MAX: usize = 32 << 10;
/// Longest option data that is skipped and refused; beyond it the connection is closed. Enough for
/// any honest mistake, little enough to cost nothing.
pub const OPTION_SKIP_BYTES_MAX: usize = 1 << 20;
/// Most options of one handshake before the client has seen any export. Clients use fewer than ten.
pub const OPTIONS_MAX: u32 = 1024;
/// Options that a client may send on top for each export that a LIST has named: tools that list
/// them ask two to four times about each, all on one connection, and each snapshot is an export.
pub const OPTIONS_PER_EXPORT_MAX: u32 = 8;

/// The handshake's result: a device, and how to talk about it.
pub struct Established {
    /// The device.
    pub device: Arc<dyn BlockDevice>,
    /// Its name.
    pub name: String,
    /// The agreement.
    pub session: Session,
}

/// Next action.
pub enum Next {
    /// More bytes are needed before anything can be done.
    More,
    /// Send the bytes in `out`, then continue with the rest of the input.
    Again,
    /// Send the bytes in `out`; transmission begins with the rest of the input.
    Ready(Box<Established>),
    /// Send the bytes in `out`, then start TLS, and continue with decrypted bytes. The rest of the
    /// input must be empty.
    StartTls,
    /// Send the bytes in `out`, then close. The text gives the reason.
    Close(&'static str),
}

/// TLS in a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Security {
    /// The server does not speak it.
    Unavailable,
    /// The client may start it.
    Offered,
    /// The client must start it before anything else.
    Required,
    /// It was started.
    Encrypted,
}

/// Whether the client may know of the export with a name.
pub type Visible = Box<dyn Fn(&str) -> bool>;

/// One client's handshake, from its flags on.
pub struct Handshake<'a> {
    devices: &'a dyn DeviceSet,
    /// The client for whom a device is opened.
    caller: Arc<dyn Client>,
    /// Why no export may be opened, if so: the server is full.
    refusal: Option<String>,
    security: Security,
    /// The exports that there are for this client; none: all.
    visible: Option<Visible>,
    /// The client's flags, once received.
    client: Option<ClientFlags>,
    options: u32,
    /// Most exports that a LIST has named. Not their sum: a client cannot raise its limit by asking
    /// again.
    named: u32,
    skip: Option<Skip>,
    replies: Replies,
    /// The export for which `base:allocation` was selected last. Holds for that one only.
    allocation_for: Option<String>,
}

#[derive(Clone, Copy)]
struct ClientFlags {
    fixed: bool,
    zeroes: bool,
}

/// Option data too long to be examined.
struct Skip {
    option: u32,
    left: usize,
}

/// An error to an option: type of the reply and text.
type Refused = (u32, String);

impl<'a> Handshake<'a> {
    /// Starts a handshake of `caller` about `devices`. With a `refusal` it is completed, but no
    /// export is listed or opened: the client gets that text.
    pub fn new(
        devices: &'a dyn DeviceSet,
        caller: Arc<dyn Client>,
        refusal: Option<String>,
        security: Security,
    ) -> Self {
        Self {
            devices,
            caller,
            refusal,
            security,
            visible: None,
            client: None,
            options: 0,
            named: 0,
            skip: None,
            replies: Replies::Simple,
            allocation_for: None,
        }
    }

    /// Hides all other exports from now on.
    pub fn show_only(&mut self, visible: Visible) {
        self.visible = Some(visible);
    }

    /// Processes `input` from its start; returns the number of bytes consumed, and the next action.
    /// Bytes to send are appended to `out`.
    pub fn advance(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, Next) {
        let Some(client) = self.client else { return self.client_flags(input) };
        if let Some(skip) = &mut self.skip {
            let taken = skip.left.min(input.len());
            skip.left -= taken;
            if skip.left > 0 {
                return (taken, Next::More);
            }
            let text = format!("the option's data is longer than {OPTION_BYTES_MAX} bytes");
            let option = skip.option;
            self.skip = None;
            let (kind, text) = match self.security {
                Security::Required => tls_required(),
                _ => (option_reply::ERR_TOO_BIG, text),
            };
            option_reply::put_error(out, option, kind, &text);
            return (taken, Next::Again);
        }
        let Some((header, rest)) = input.split_first_chunk::<{ option::HEADER_BYTES }>() else {
            return (0, Next::More);
        };
        let Some(header) = OptionHeader::decode(header) else { return (0, Next::Close("wrong magic in an option")) };
        let length = header.length as usize;
        if length > OPTION_BYTES_MAX {
            if length > OPTION_SKIP_BYTES_MAX || !client.fixed || header.option == option::EXPORT_NAME {
                return (0, Next::Close("an option's data is too long"));
            }
            self.skip = Some(Skip { option: header.option, left: length });
            return (option::HEADER_BYTES, Next::Again);
        }
        let Some(data) = rest.get(..length) else { return (0, Next::More) };
        self.options += 1;
        if self.options > self.options_max() {
            return (0, Next::Close("too many options"));
        }
        (option::HEADER_BYTES + length, self.option(client, header.option, data, out))
    }

    fn options_max(&self) -> u32 {
        OPTIONS_MAX.saturating_add(self.named.saturating_mul(OPTIONS_PER_EXPORT_MAX))
    }

    fn client_flags(&mut self, input: &[u8]) -> (usize, Next) {
        let Some((flags, _)) = input.split_first_chunk::<4>() else { return (0, Next::More) };
        let flags = u32::from_be_bytes(*flags);
        let (fixed, no_zeroes) = (u32::from(handshake_flag::FIXED_NEWSTYLE), u32::from(handshake_flag::NO_ZEROES));
        if flags & !(fixed | no_zeroes) != 0 {
            return (0, Next::Close("unknown client flags"));
        }
        self.client = Some(ClientFlags { fixed: flags & fixed != 0, zeroes: flags & no_zeroes == 0 });
        (4, Next::Again)
    }

    fn option(&mut self, client: ClientFlags, option: u32, data: &[u8], out: &mut Vec<u8>) -> Next {
        if option == option::EXPORT_NAME && self.security == Security::Required {
            return Next::Close("EXPORT_NAME without TLS, which this address requires");
        }
        if option == option::EXPORT_NAME && self.replies.is_extended() {
            return Next::Close("EXPORT_NAME after extended headers, which exclude it");
        }
        if option == option::EXPORT_NAME {
            return match self.open(data) {
                Ok(established) => {
                    let flags = transmission_flags(&established.session);
                    option_reply::put_export(out, established.device.size_bytes(), flags, client.zeroes);
                    Next::Ready(Box::new(established))
                }
                Err(_) => Next::Close("EXPORT_NAME for an export that cannot be opened"),
            };
        }
        if !client.fixed {
            return Next::Close("an option other than EXPORT_NAME from a client without fixed newstyle");
        }
        let mark = out.len();
        let done = match option {
            option::STARTTLS => match self.start_tls(data) {
                Ok(()) => {
                    option_reply::put(out, option, option_reply::ACK, &[]);
                    return Next::StartTls;
                }
                Err(refused) => Err(refused),
            },
            option::ABORT => {
                option_reply::put(out, option, option_reply::ACK, &[]);
                return Next::Close("the client gave up");
            }
            _ if self.security == Security::Required => Err(tls_required()),
            option::LIST => self.list(data, out),
            option::INFO => self.info(option, data, out).map(drop),
            option::GO => match self.info(option, data, out) {
                Ok(established) => {
                    option_reply::put(out, option, option_reply::ACK, &[]);
                    return Next::Ready(Box::new(established));
                }
                Err(refused) => Err(refused),
            },
            option::STRUCTURED_REPLY => self.structured_reply(data),
            option::EXTENDED_HEADERS => self.extended_headers(data),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_context(option, data, out),
            _ => Err((option_reply::ERR_UNSUP, "unknown option".to_owned())),
        };
        match done {
            Ok(()) => option_reply::put(out, option, option_reply::ACK, &[]),
            Err((kind, text)) => {
                out.truncate(mark);
                option_reply::put_error(out, option, kind, &text);
            }
        }
        Next::Again
    }

    fn start_tls(&mut self, data: &[u8]) -> Result<(), Refused> {
        if !data.is_empty() {
            return Err(invalid("STARTTLS takes no data"));
        }
        match self.security {
            Security::Encrypted => return Err(invalid("TLS was started already")),
            Security::Unavailable => {
                self.refuse()?;
                return Err((option_reply::ERR_POLICY, "this server does not speak TLS".to_owned()));
            }
            Security::Offered | Security::Required => self.security = Security::Encrypted,
        }
        // The count of options goes on.
        self.replies = Replies::Simple;
        self.allocation_for = None;
        Ok(())
    }

    fn list(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<(), Refused> {
        if !data.is_empty() {
            return Err(invalid("LIST takes no data"));
        }
        self.refuse()?;
        let devices = self.exports()?;
        for device in &devices {
            option_reply::put_server(out, option::LIST, &device.name);
        }
        self.named = self.named.max(u32::try_from(devices.len()).unwrap_or(u32::MAX));
        Ok(())
    }

    fn info(&self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Result<Established, Refused> {
        let request = InfoRequest::decode(data).ok_or_else(|| invalid("the lengths in the option are inconsistent"))?;
        let established = self.open(request.name)?;
        let device = &established.device;
        option_reply::put_info_export(out, option, device.size_bytes(), transmission_flags(&established.session));
        if request.wants_name {
            option_reply::put_info_text(out, option, info::NAME, &established.name);
        }
        if request.wants_description {
            let what = if established.session.read_only { "snapshot" } else { "volume" };
            let text = format!("Shale {what} '{}', {}", established.name, format_size(device.size_bytes()));
            option_reply::put_info_text(out, option, info::DESCRIPTION, &text);
        }
        // NBD's preferred size is the smallest that needs no read-modify-write, which is our
        // minimum. The protocol requires a power of two, at least 512.
        let preferred = device.block_bytes().0.clamp(512, PAYLOAD_BYTES_MAX);
        option_reply::put_info_block_size(out, option, preferred.checked_next_power_of_two().unwrap_or(512));
        Ok(established)
    }

    fn structured_reply(&mut self, data: &[u8]) -> Result<(), Refused> {
        if !data.is_empty() {
            return Err(invalid("STRUCTURED_REPLY takes no data"));
        }
        if self.replies.is_extended() {
            let text = "extended headers were agreed on, which say all that structured replies do".to_owned();
            return Err((option_reply::ERR_EXT_HEADER_REQD, text));
        }
        self.replies = Replies::Structured;
        Ok(())
    }

    fn extended_headers(&mut self, data: &[u8]) -> Result<(), Refused> {
        if !data.is_empty() {
            return Err(invalid("EXTENDED_HEADERS takes no data"));
        }
        self.replies = Replies::Extended;
        Ok(())
    }

    fn meta_context(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Result<(), Refused> {
        let is_set = option == option::SET_META_CONTEXT;
        if is_set {
            // An earlier selection is dropped even if this fails.
            self.allocation_for = None;
        }
        if !self.replies.in_chunks() {
            return Err(invalid(
                "metadata contexts require structured replies or extended headers, which must be negotiated first",
            ));
        }
        let request = MetaRequest::decode(data).ok_or_else(|| invalid("the lengths in the option are inconsistent"))?;
        self.refuse()?;
        let name = self.resolve(request.name)?.name;
        if is_set {
            if request.names_allocation {
                option_reply::put_meta_context(out, option, CONTEXT_ALLOCATION_ID, CONTEXT_ALLOCATION);
                self.allocation_for = Some(name);
            }
        } else if request.is_empty || request.names_allocation || request.names_base {
            // Ids are meaningless in a list.
            option_reply::put_meta_context(out, option, 0, CONTEXT_ALLOCATION);
        }
        Ok(())
    }

    fn refuse(&self) -> Result<(), Refused> {
        self.refusal.as_ref().map_or(Ok(()), |text| Err((option_reply::ERR_POLICY, text.clone())))
    }

    fn open(&self, name: &[u8]) -> Result<Established, Refused> {
        self.refuse()?;
        let DeviceInfo { id, name, .. } = self.resolve(name)?;
        let device = self.devices.open(id, &self.caller).map_err(|e| refused(&e))?;
        let allocation = self.replies.in_chunks() && self.allocation_for.as_ref() == Some(&name);
        let session = Session { replies: self.replies, allocation, read_only: device.is_read_only() };
        Ok(Established { device, name, session })
    }

    /// Resolves the export name: the empty name selects the only device, if there is only one
    /// besides snapshots.
    fn resolve(&self, name: &[u8]) -> Result<DeviceInfo, Refused> {
        if name.is_empty() {
            return self.resolve_unnamed();
        }
        let unknown = || {
            // Odd bytes of the client's name are escaped: the text goes to terminals and logs.
            let shown = &name[..name.len().min(64)];
            (option_reply::ERR_UNKNOWN, format!("no export named '{}'", shown.escape_ascii()))
        };
        let name = std::str::from_utf8(name).map_err(|_| unknown())?;
        if !self.shows(name) {
            return Err(unknown());
        }
        let found = self.devices.find(name).map_err(|error| match error.kind() {
            ErrorKind::NotFound => unknown(),
            _ => refused(&error),
        })?;
        // The name may stand for another one.
        if self.shows(&found.name) { Ok(found) } else { Err(unknown()) }
    }

    fn shows(&self, name: &str) -> bool {
        self.visible.as_ref().is_none_or(|visible| visible(name))
    }

    /// The exports that there are for this client.
    fn exports(&self) -> Result<Vec<DeviceInfo>, Refused> {
        let mut exports = self.devices.list().map_err(|e| refused(&e))?;
        exports.retain(|device| self.shows(&device.name));
        Ok(exports)
    }

    fn resolve_unnamed(&self) -> Result<DeviceInfo, Refused> {
        let mut volumes = self.exports()?;
        volumes.retain(|device| !device.read_only);
        match (volumes.pop(), volumes.is_empty()) {
            (Some(only), true) => Ok(only),
            (None, _) => Err((option_reply::ERR_UNKNOWN, "this server exports nothing".to_owned())),
            _ => {
                let text = "this server exports several devices: specify one of them".to_owned();
                Err((option_reply::ERR_UNKNOWN, text))
            }
        }
    }
}

/// Capabilities of an export.
fn transmission_flags(session: &Session) -> u16 {
    use transmission_flag as flag;
    let changes = flag::SEND_FUA | flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
    flag::HAS_FLAGS
        | flag::SEND_FLUSH
        | flag::CAN_MULTI_CONN
        | flag::SEND_CACHE
        | if session.read_only { flag::READ_ONLY } else { changes }
        | if session.replies.in_chunks() { flag::SEND_DF } else { 0 }
}

fn tls_required() -> Refused {
    (option_reply::ERR_TLS_REQD, "this address requires TLS".to_owned())
}

fn invalid(text: &str) -> Refused {
    (option_reply::ERR_INVALID, text.to_owned())
}

/// An error of the device set as a reply to an option.
fn refused(error: &Error) -> Refused {
    let kind = match error.kind() {
        ErrorKind::NotFound | ErrorKind::Invalid => option_reply::ERR_UNKNOWN,
        ErrorKind::InUse | ErrorKind::Exists | ErrorKind::Denied => option_reply::ERR_POLICY,
        ErrorKind::Full
        | ErrorKind::Corrupt
        | ErrorKind::Io
        | ErrorKind::ReadOnly
        | ErrorKind::Unsupported
        | ErrorKind::Conflict => option_reply::ERR_PLATFORM,
    };
    (kind, error.to_string())
}
