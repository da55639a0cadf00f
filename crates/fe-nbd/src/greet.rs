//! The handshake on a socket: moves bytes between it and [`crate::negotiate`], within a time limit.
//!
//! When the client starts TLS, the TLS handshake takes place within the same limit. No plaintext
//! received before it is processed after it: bytes that follow the request for TLS end the
//! connection, since an attacker may have inserted them.

use std::borrow::Cow;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustls::ServerConnection;
use surface::{Client, DeviceSet};

use crate::caller::Caller;
use crate::channel::{Channel, recv};
use crate::clock::{Deadline, timespec};
use crate::listen::Listen;
use crate::negotiate::{Established, Handshake, Next, Security};
use crate::records::{Records, drain};
use crate::secure::{Tls, name_of};
use crate::wire::option_reply;

/// Bytes received at once; most complete handshakes are shorter.
const RECEIVE_BYTES: usize = 4096;

/// Why a handshake failed.
pub type Failed = Cow<'static, str>;

const CLOSED: Failed = Cow::Borrowed("the client closed the connection in the handshake");
const BROKEN: Failed = Cow::Borrowed("the connection failed in the handshake");
const LATE: Failed = Cow::Borrowed("the handshake took too long");

/// The server's side of a handshake.
pub struct Terms<'a> {
    pub devices: &'a dyn DeviceSet,
    /// Why no export may be opened, if so.
    pub refusal: Option<String>,
    /// TLS, if the server speaks it.
    pub tls: Option<Arc<Tls>>,
    /// The address that the client connected to, which decides whether TLS is required.
    pub address: &'a Listen,
    pub deadline: Deadline,
}

/// The result of a handshake: the agreement, the channel, and bytes that the client sent after it.
pub type Greeted = (Established, Channel, Vec<u8>);

/// Performs the handshake.
pub fn greet(caller: &Arc<Caller>, terms: Terms<'_>) -> Result<Greeted, Failed> {
    let Terms { devices, refusal, tls, address, deadline } = terms;
    // A refused client only gets the reason, which needs no TLS.
    let tls = tls.filter(|_| refusal.is_none());
    let security = match &tls {
        None => Security::Unavailable,
        Some(tls) if tls.is_required(address) => Security::Required,
        Some(_) => Security::Offered,
    };
    let mut channel = Channel::plain(Arc::clone(caller.socket()));
    send(&channel, &option_reply::greeting(), deadline)?;
    let mut handshake = Handshake::new(devices, Arc::clone(caller) as Arc<dyn Client>, refusal, security);
    // Never longer than one option with its data and one receive: options are processed as they
    // arrive.
    let mut input = Vec::new();
    let mut out = Vec::new();
    loop {
        let (taken, next) = handshake.advance(&input, &mut out);
        input.drain(..taken);
        if matches!(next, Next::StartTls) && !input.is_empty() {
            return Err("data after the request for TLS, before its reply".into());
        }
        if !out.is_empty() {
            send(&channel, &out, deadline)?;
            out.clear();
        }
        match next {
            Next::Again => {}
            Next::Ready(established) => return Ok((*established, channel, input)),
            Next::Close(why) => {
                channel.close();
                return Err(why.into());
            }
            Next::StartTls => {
                let Some(tls) = &tls else { return Err(BROKEN) };
                let keys = start_tls(channel.socket(), tls, deadline)?;
                let name = keys.peer_certificates().and_then(|chain| name_of(chain.first()?));
                if let Some(permit) = &tls.permit {
                    let (permit, name) = (Arc::clone(permit), name.clone());
                    handshake.show_only(Box::new(move |export| name.as_ref().is_some_and(|name| permit(name, export))));
                }
                caller.set_certificate_name(name);
                channel.encrypt(Records::new(keys));
            }
            Next::More => {
                in_time(deadline)?;
                let filled = input.len();
                input.resize(filled + RECEIVE_BYTES, 0);
                // Before waiting for the socket: decrypted data may be buffered.
                let received = channel.recv(&mut input[filled..], RecvFlags::DONTWAIT);
                input.truncate(filled + received.unwrap_or(0));
                match received {
                    Ok(0) => return Err(CLOSED),
                    Ok(_) => {}
                    Err(Errno::AGAIN) => wait(channel.socket(), PollFlags::IN, deadline)?,
                    Err(Errno::PROTO) => return Err("TLS failed: a record cannot be decrypted".into()),
                    Err(_) => return Err(BROKEN),
                }
            }
        }
    }
}

/// Performs the TLS handshake.
fn start_tls(socket: &OwnedFd, tls: &Tls, deadline: Deadline) -> Result<ServerConnection, Failed> {
    let failed = |error: rustls::Error| Cow::Owned(format!("TLS failed: {error}"));
    let mut keys = ServerConnection::new(tls.certificates.config()).map_err(failed)?;
    let (mut out, mut received) = (Vec::new(), [0; RECEIVE_BYTES]);
    loop {
        in_time(deadline)?;
        drain(&mut keys, &mut out);
        send_plain(socket, &out, deadline)?;
        out.clear();
        if !keys.is_handshaking() {
            return Ok(keys);
        }
        let mut rest = match recv(socket, &mut received, RecvFlags::DONTWAIT) {
            Ok(0) => return Err("the client closed the connection in the TLS handshake".into()),
            Ok(count) => &received[..count],
            Err(Errno::AGAIN) => {
                wait(socket, PollFlags::IN, deadline)?;
                continue;
            }
            Err(_) => return Err(BROKEN),
        };
        // All of it: data after the handshake is buffered with the keys, and fits there.
        while !rest.is_empty() {
            let taken = keys.read_tls(&mut rest).map_err(|_| BROKEN)?;
            if let Err(error) = keys.process_new_packets() {
                // The alert for the client, if the socket has room.
                drain(&mut keys, &mut out);
                let _ = rustix::net::send(socket, &out, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
                return Err(failed(error));
            }
            if taken == 0 {
                // Nothing is read after close_notify.
                break;
            }
        }
    }
}

fn send(channel: &Channel, bytes: &[u8], deadline: Deadline) -> Result<(), Failed> {
    send_with(channel.socket(), bytes, deadline, |bytes, flags| channel.send(bytes, flags))
}

fn send_plain(socket: &OwnedFd, bytes: &[u8], deadline: Deadline) -> Result<(), Failed> {
    send_with(socket, bytes, deadline, |bytes, flags| rustix::net::send(socket, bytes, flags))
}

fn send_with(
    socket: &OwnedFd,
    mut bytes: &[u8],
    deadline: Deadline,
    send: impl Fn(&[u8], SendFlags) -> rustix::io::Result<usize>,
) -> Result<(), Failed> {
    while !bytes.is_empty() {
        match send(bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait(socket, PollFlags::OUT, deadline)?,
            Err(_) => return Err(CLOSED),
        }
    }
    Ok(())
}

/// Checked before each receive: a client that always has something to read is never waited for.
fn in_time(deadline: Deadline) -> Result<(), Failed> {
    if deadline.left().is_zero() { Err(LATE) } else { Ok(()) }
}

fn wait(socket: &OwnedFd, for_what: PollFlags, deadline: Deadline) -> Result<(), Failed> {
    loop {
        match poll(&mut [PollFd::new(socket, for_what)], Some(&timespec(deadline.left()))) {
            Ok(0) => return Err(LATE),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(_) => return Err(BROKEN),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use testkit::{Memory, MemorySet};

    use super::*;
    use crate::wire::{OPTION_MAGIC, option};

    #[test]
    fn a_client_that_never_pauses_has_the_time_of_a_handshake_too() {
        let greeted = |patience| {
            let (ours, client) =
                socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
            let go = [0, 0, 0, 4, b'd', b'i', b's', b'k', 0, 0];
            let length = (go.len() as u32).to_be_bytes();
            let sent = [&3u32.to_be_bytes()[..], &OPTION_MAGIC.to_be_bytes(), &option::GO.to_be_bytes(), &length, &go];
            rustix::io::write(&client, &sent.concat()).unwrap();
            let devices = MemorySet::of(&[("disk", &Memory::new(1 << 20))]);
            let address = Listen::Unix("socket".into());
            let deadline = Deadline::after(patience);
            let terms = Terms { devices: &devices, refusal: None, tls: None, address: &address, deadline };
            greet(&Caller::new(Arc::new(ours)), terms).map(drop)
        };
        assert_eq!(greeted(Duration::from_secs(3600)), Ok(()));
        assert_eq!(greeted(Duration::ZERO), Err(LATE));
    }
}
