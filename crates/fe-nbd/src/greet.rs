//! The handshake on a socket: moves bytes between it and [`crate::negotiate`], within a time limit.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use surface::{Client, DeviceSet};

use crate::caller::Caller;
use crate::clock::{Deadline, timespec};
use crate::connection::Ended;
use crate::negotiate::{Established, Handshake, Next};
use crate::receive::recv;
use crate::wire::option_reply;

/// Bytes received at once; most complete handshakes are shorter.
const RECEIVE_BYTES: usize = 4096;

/// Holds the handshake. Returns the agreement, and the bytes that the client sent after it.
pub fn greet(
    caller: &Arc<Caller>,
    devices: &dyn DeviceSet,
    refusal: Option<String>,
    deadline: Deadline,
) -> Result<(Established, Vec<u8>), Ended> {
    let socket = caller.socket();
    send(socket, &option_reply::greeting(), deadline)?;
    let mut handshake = Handshake::new(devices, Arc::clone(caller) as Arc<dyn Client>, refusal);
    // Never longer than one option with its data and one receive: options are processed as they
    // arrive.
    let mut input = Vec::new();
    let mut out = Vec::new();
    loop {
        let (taken, next) = handshake.advance(&input, &mut out);
        input.drain(..taken);
        if !out.is_empty() {
            send(socket, &out, deadline)?;
            out.clear();
        }
        match next {
            Next::Again => {}
            Next::Ready(established) => return Ok((*established, input)),
            Next::Close(why) => return Err(why),
            Next::More => {
                wait(socket, PollFlags::IN, deadline)?;
                let filled = input.len();
                input.resize(filled + RECEIVE_BYTES, 0);
                match recv(socket, &mut input[filled..], RecvFlags::DONTWAIT) {
                    Ok(0) => return Err("the client closed the connection in the handshake"),
                    Ok(count) => input.truncate(filled + count),
                    Err(Errno::AGAIN) => input.truncate(filled),
                    Err(_) => return Err("the connection failed in the handshake"),
                }
            }
        }
    }
}

fn send(socket: &OwnedFd, mut bytes: &[u8], deadline: Deadline) -> Result<(), Ended> {
    while !bytes.is_empty() {
        match rustix::net::send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait(socket, PollFlags::OUT, deadline)?,
            Err(_) => return Err("the client closed the connection in the handshake"),
        }
    }
    Ok(())
}

fn wait(socket: &OwnedFd, for_what: PollFlags, deadline: Deadline) -> Result<(), Ended> {
    loop {
        match poll(&mut [PollFd::new(socket, for_what)], Some(&timespec(deadline.left()))) {
            Ok(0) => return Err("the handshake took too long"),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(_) => return Err("the connection failed in the handshake"),
        }
    }
}
