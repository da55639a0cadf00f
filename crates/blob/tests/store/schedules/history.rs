//! The oracle: the clients' requests and answers, and the log that must result. It reads the true
//! state of the store.

use std::collections::BTreeMap;

use blob::{BlobKey, Committed, Inc, Layout, OpId, OpKind, Piece, Place, Record};
use codec::Workspace;
use parking_lot::Mutex;

use crate::lying_store::LyingStore;

/// A client's request.
#[derive(Debug, Clone)]
pub enum Request {
    Append(Vec<u8>),
    Write(#[allow(dead_code, reason = "shown when a schedule fails")] u64, Vec<u8>),
    Put(Vec<u8>),
    Resize(u64),
    Restore,
    /// Content is unchanged.
    Same,
}

/// The answer that the client got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Done(Committed),
    /// It was not applied, and never will be.
    Refused,
    /// No answer.
    Unknown,
}

#[derive(Debug, Default)]
pub struct History {
    ops: Mutex<BTreeMap<OpId, (Request, Answer)>>,
}

impl History {
    pub fn note_request(&self, op: OpId, request: Request) {
        self.ops.lock().insert(op, (request, Answer::Unknown));
    }

    pub fn note_answer(&self, op: OpId, answer: Answer) {
        if let Some(entry) = self.ops.lock().get_mut(&op) {
            entry.1 = answer;
        }
    }

    /// Checks one incarnation's log against all requests, and returns the number of its records.
    pub fn check(&self, store: &LyingStore, key: &BlobKey, inc: Inc) -> Result<u64, String> {
        let mut records: Vec<Record> = Vec::new();
        while let Some(bytes) = store.truth(&key.record(inc, records.len() as u64 + 1)) {
            let record = Record::decode(&bytes, &mut Workspace::new()).map_err(|error| error.to_string())?;
            records.push(record);
        }
        for seq in records.len() as u64 + 2..records.len() as u64 + 40 {
            if store.truth(&key.record(inc, seq)).is_some() {
                return Err(format!("record {} is not there, and {seq} is", records.len() + 1));
            }
        }
        let Some(head) = records.last().cloned() else { return Ok(0) };
        let ops = self.ops.lock();
        let mut found: BTreeMap<OpId, Committed> = BTreeMap::new();
        let mut versions: Vec<Vec<u8>> = vec![Vec::new()];
        let mut fence = 0;
        for (record, seq) in records.iter().zip(1..) {
            if record.seq != seq || record.inc != inc {
                return Err(format!("record {seq} says that it is {}", record.seq));
            }
            if !record.tombstone && std::mem::replace(&mut fence, record.fence) > record.fence {
                return Err(format!("the fence falls at record {seq}"));
            }
            let mut bytes = versions[seq as usize - 1].clone();
            for done in &record.ops {
                let committed = Committed { seq, at: done.at, len: done.len };
                if found.insert(done.op, committed).is_some() {
                    return Err(format!("operation {} is in two records, the second is {seq}", done.op));
                }
                let Some((request, _)) = ops.get(&done.op) else {
                    if matches!(done.kind, OpKind::Fence | OpKind::Expire) {
                        continue;
                    }
                    return Err(format!("operation {} of record {seq} was never requested", done.op));
                };
                apply(&mut bytes, request, done.at, &versions)?;
            }
            versions.push(bytes);
        }
        for (record, bytes) in records.iter().zip(&versions[1..]) {
            let live = head.is_live(record.seq);
            if record.tombstone {
                if live {
                    return Err(format!("record {} is live, and a tombstone", record.seq));
                }
                continue;
            }
            match read(store, key, inc, &record.layout, record.size) {
                Ok(read) if read == *bytes => {}
                Ok(read) => {
                    return Err(format!(
                        "version {} reads as {} bytes that are not the {} which were written",
                        record.seq,
                        read.len(),
                        bytes.len()
                    ));
                }
                Err(why) if live => return Err(format!("version {} is live, and {why}", record.seq)),
                Err(_) => {}
            }
        }
        for (op, (_, answer)) in ops.iter() {
            match (answer, found.get(op)) {
                (Answer::Done(answer), Some(found)) if answer == found => {}
                (Answer::Done(answer), found) => {
                    return Err(format!("operation {op} was acknowledged as {answer:?}, and the log has {found:?}"));
                }
                (Answer::Refused, Some(found)) => return Err(format!("operation {op} was refused, and is {found:?}")),
                (Answer::Refused, None) | (Answer::Unknown, _) => {}
            }
        }
        Ok(head.seq)
    }
}

fn apply(bytes: &mut Vec<u8>, request: &Request, at: u64, versions: &[Vec<u8>]) -> Result<(), String> {
    let at = at as usize;
    match request {
        Request::Append(data) => {
            if bytes.len() != at {
                return Err(format!("an append at {at} of a blob of {} bytes", bytes.len()));
            }
            bytes.extend_from_slice(data);
        }
        Request::Write(wanted, data) => {
            if *wanted != at as u64 {
                return Err(format!("a write at {wanted} was done at {at}"));
            }
            bytes.resize(bytes.len().max(at + data.len()), 0);
            bytes[at..at + data.len()].copy_from_slice(data);
        }
        Request::Put(data) => bytes.clone_from(data),
        Request::Resize(size) => bytes.resize(*size as usize, 0),
        Request::Restore => bytes.clone_from(versions.get(at).ok_or("a version that is not there was restored")?),
        Request::Same => {}
    }
    Ok(())
}

/// Reads a version as a reader does, from the true state. The frames of these tests are raw, and
/// each extent has one.
pub fn read(store: &LyingStore, key: &BlobKey, inc: Inc, layout: &Layout, size: u64) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; size as usize];
    for piece in layout.pieces() {
        let Piece::Extent(extent) = piece else { return Err("it has a node".into()) };
        let Place::Pack { pack, offset } = &extent.place else { return Err("it is in the record".into()) };
        let path = key.pack(inc, pack);
        let stored = store.truth(&path).ok_or_else(|| format!("{path} is not there"))?;
        let from = (*offset + extent.skip) as usize;
        let data = stored.get(from..from + extent.len as usize).ok_or("a pack is too short")?;
        bytes[extent.start as usize..][..data.len()].copy_from_slice(data);
    }
    Ok(bytes)
}
