//! The NBD handshake on arbitrary bytes in pieces of arbitrary length: it ends or asks for more, the
//! pieces make no difference, it never consumes bytes that have not arrived, and a client can parse
//! every reply.
//!
//! Input: byte 0 is the number of exports (bits 0-1), whether the server is full (bit 2), and the length of the pieces
//! (bits 3-7, 0 for all at once); the rest is what the client sends.
#![cfg_attr(not(test), no_main)]

use std::sync::Arc;

use bytes::Bytes;
use fe_nbd::negotiate::{Handshake, Next, Security};
use fe_nbd::wire::{Cursor, OPTION_REPLY_MAGIC};
use libfuzzer_sys::fuzz_target;
use surface::{
    BlockDevice, DeviceId, DeviceInfo, DeviceSet, Error, ErrorKind, PendingRead, Result, Run, WriteOptions, ZeroOptions,
};

struct Nothing;

impl BlockDevice for Nothing {
    fn size_bytes(&self) -> u64 {
        1 << 20
    }
    fn block_bytes(&self) -> (u32, u32) {
        (4096, 4096)
    }
    fn read(&self, _: u64, _: &mut [u8]) -> Result<()> {
        unreachable!("a handshake reads nothing")
    }
    fn read_cached(&self, _: u64, _: &mut [u8]) -> Result<bool> {
        unreachable!("a handshake reads nothing")
    }
    fn reads_together(&self) -> bool {
        false
    }
    fn read_many(&self, _: &mut dyn FnMut() -> Option<Box<dyn PendingRead>>) {
        unreachable!("a handshake reads nothing")
    }
    fn write(&self, _: u64, _: Bytes, _: WriteOptions) -> Result<()> {
        unreachable!("a handshake writes nothing")
    }
    fn write_would_wait(&self) -> bool {
        false
    }
    fn flush(&self) -> Result<()> {
        unreachable!("a handshake flushes nothing")
    }
    fn discard(&self, _: u64, _: u64) -> Result<()> {
        unreachable!("a handshake discards nothing")
    }
    fn write_zeroes(&self, _: u64, _: u64, _: ZeroOptions) -> Result<()> {
        unreachable!("a handshake zeroes nothing")
    }
    fn allocation(&self, _: u64, _: u64, _: usize) -> Result<Vec<Run>> {
        unreachable!("a handshake asks for nothing")
    }
    fn prefetch(&self, _: u64, _: u64) -> Result<()> {
        unreachable!("a handshake fetches nothing")
    }
    fn allocated_bytes(&self) -> u64 {
        0
    }
}

struct Devices(usize);

const NAMES: [&str; 3] = ["a", "volume", "c.2"];

impl DeviceSet for Devices {
    fn list(&self) -> Result<Vec<DeviceInfo>> {
        (0..self.0 as u64).map(|number| self.look(DeviceId(number))).collect()
    }
    fn find(&self, name: &str) -> Result<DeviceInfo> {
        let found = NAMES[..self.0].iter().position(|n| *n == name);
        self.look(DeviceId(found.unwrap_or(NAMES.len()) as u64))
    }
    fn look(&self, id: DeviceId) -> Result<DeviceInfo> {
        let found = NAMES[..self.0].get(id.0 as usize).ok_or_else(|| Error::new(ErrorKind::NotFound, "nobody"))?;
        let name = (*found).to_owned();
        Ok(DeviceInfo { id, name, size_bytes: 1 << 20, allocated_bytes: 0, created_unix_s: 0, read_only: false })
    }
    fn open(&self, id: DeviceId, _caller: &Arc<dyn surface::Client>) -> Result<Arc<dyn BlockDevice>> {
        self.look(id)?;
        // The last of three is always in use.
        if id.0 == 2 { Err(Error::new(ErrorKind::InUse, "busy")) } else { Ok(Arc::new(Nothing)) }
    }
}

/// What a whole handshake came to.
#[derive(Debug, PartialEq)]
struct Outcome {
    sent: Vec<u8>,
    consumed: usize,
    end: Option<std::result::Result<(String, bool, bool), &'static str>>,
}

fn run(devices: &Devices, full: bool, security: Security, input: &[u8], piece: usize) -> Outcome {
    let client = surface::NamedClient::shared("fuzzer");
    let mut handshake = Handshake::new(devices, client, full.then(|| "full".to_owned()), security);
    let mut is_encrypted = false;
    let mut outcome = Outcome { sent: Vec::new(), consumed: 0, end: None };
    let mut available = 0;
    loop {
        let rest = &input[outcome.consumed..available];
        let before = outcome.sent.len();
        let (taken, next) = handshake.advance(rest, &mut outcome.sent);
        assert!(taken <= rest.len());
        assert!(outcome.sent.len() - before < 64 << 10, "an answer out of proportion");
        outcome.consumed += taken;
        match next {
            Next::Again => assert!(taken > 0, "no progress"),
            Next::More if available == input.len() => return outcome,
            Next::More => available = (available + piece).min(input.len()),
            // The rest stands for what TLS decrypts.
            Next::StartTls => {
                assert!(!is_encrypted && security != Security::Unavailable);
                is_encrypted = true;
            }
            Next::Ready(ready) => {
                assert!(is_encrypted || security != Security::Required);
                outcome.end = Some(Ok((ready.name, ready.session.replies.in_chunks(), ready.session.allocation)));
                return outcome;
            }
            Next::Close(why) => {
                outcome.end = Some(Err(why));
                return outcome;
            }
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&knobs, input)) = data.split_first() else { return };
    let devices = Devices(usize::from(knobs & 3));
    let full = knobs & 4 != 0;
    let security = match knobs >> 3 & 3 {
        1 => Security::Offered,
        2 => Security::Required,
        _ => Security::Unavailable,
    };
    let whole = run(&devices, full, security, input, input.len().max(1));
    let pieces = run(&devices, full, security, input, usize::from(knobs >> 3).max(1));
    assert_eq!(whole, pieces);

    if let Some(Ok((name, structured, allocation))) = &whole.end {
        assert!(!full && NAMES[..2].contains(&name.as_str()) && (*structured || !*allocation));
    }
    // All that was sent are replies to options, but for the answer to EXPORT_NAME at the end.
    let mut cursor = Cursor::new(&whole.sent);
    while !cursor.is_empty() {
        let magic = cursor.u64();
        if magic != Some(OPTION_REPLY_MAGIC) {
            assert!(matches!(whole.end, Some(Ok(_))) && magic == Some(1 << 20));
            break;
        }
        let (_option, kind, length) = (cursor.u32().unwrap(), cursor.u32().unwrap(), cursor.u32().unwrap());
        let text = cursor.bytes(length as usize).unwrap();
        assert!(kind >> 31 == 0 || (length <= 4096 && std::str::from_utf8(text).is_ok()));
    }
});
