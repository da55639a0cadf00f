//! Offers: operations that lost a race, left where every committer finds them, so that the next
//! record carries them no matter which process writes it. Owns the encoding and the names of
//! offers; docs/internals/BLOBS.md defines both, and explains why an operation that two processes
//! try is applied once. Holds no state.
//!
//! Bytes, little-endian: `SHLOFFR1`, incarnation 16, operation 16, born 8, data bytes 8, stored
//! bytes 8, offset 8 (all ones: at the end), its layout from byte 0, crc32c of all preceding bytes
//! 4. The name contains the record up to which the operation is known to be absent.

use std::sync::Arc;

use bytes::Bytes;
use format::{FormatError, put_uint};
use futures_util::future::join_all;
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use crate::data::layout::{Layout, Run};
use crate::error::Error;
use crate::names::{Inc, OpId};
use crate::protocol::delete;
use crate::protocol::log::Log;
use crate::protocol::ops::{Action, Op};
use crate::sealed::{self, wide};

const MAGIC: &[u8; 8] = b"SHLOFFR1";
const STRUCTURE: &str = "offer of an operation";
/// The offset of an append.
const END: u64 = u64::MAX;
/// Bytes of an offer, small enough that several of them and a layout fit into one record.
const OFFER_BYTES_MAX: usize = 8 << 10;
/// Offers that one record carries in addition to the operations of its own process, and that are
/// read at once.
const OFFERS_MAX: usize = 64;

/// An operation of another process.
#[derive(Debug, Clone)]
pub(crate) struct Offer {
    /// The operation is in no record up to this one.
    pub(crate) since: u64,
    pub(crate) op: Arc<Op>,
}

/// Encodes an offer; `None` for an operation that only its own process may commit: one with a
/// message, because a record has one message; one that is neither an append nor a write; a long
/// one.
pub(crate) fn encode(inc: Inc, op: &Op) -> Option<Vec<u8>> {
    let (at, run) = match &op.action {
        Action::Append(run) => (END, run),
        Action::Write { at, run } if *at != END => (*at, run),
        _ => return None,
    };
    let mut out = sealed::begin(MAGIC);
    sealed::put_wide(&mut out, inc.0);
    sealed::put_wide(&mut out, op.id.0);
    for field in [op.born, run.len, op.stored, at] {
        put_uint(&mut out, field, 8);
    }
    Layout::of(run.pieces.clone()).encode(&mut out);
    let out = sealed::seal(out);
    (out.len() <= OFFER_BYTES_MAX && op.raw == run.len && op.message.is_empty()).then_some(out)
}

/// Decodes the output of [`encode`].
pub(crate) fn decode(inc: Inc, bytes: &[u8]) -> Result<Op, FormatError> {
    let wrong = |detail: &str| FormatError::new(STRUCTURE, detail);
    let mut cursor = sealed::open(STRUCTURE, MAGIC, bytes)?;
    let (of, id) = (Inc(wide(&mut cursor)?), OpId(wide(&mut cursor)?));
    if of != inc {
        return Err(wrong("it is for another incarnation"));
    }
    let (born, len, stored, at) = (cursor.u64()?, cursor.u64()?, cursor.u64()?, cursor.u64()?);
    let layout = Layout::decode(cursor.bytes(cursor.remaining())?)?;
    let pieces = layout.pieces().to_vec();
    if pieces.last().is_some_and(|piece| piece.end() > len) {
        return Err(wrong("a piece ends beyond its data"));
    }
    let run = Run { pieces, len };
    let action = if at == END { Action::Append(run) } else { Action::Write { at, run } };
    Ok(Op { id, born, raw: len, stored, message: String::new(), action })
}

/// Writes an offer. Its failure does no harm: the process then commits alone.
pub(crate) async fn leave(log: &Log, since: u64, op: OpId, bytes: Vec<u8>) {
    let path = log.key.offer(log.inc, since, op);
    let _ = log.backend.store.put(&path, Bytes::from(bytes).into()).await;
}

/// The name of an offer: the record up to which the operation is known to be absent, the operation,
/// the key.
pub(crate) type Name = (u64, OpId, Path);

/// Lists the offers that a committer may carry after reading every record after `from`, oldest
/// first. Empty if the store fails.
pub(crate) async fn list(log: &Log, from: u64) -> Vec<Name> {
    let mut listed = names(log).await.unwrap_or_default();
    listed.retain(|(since, _, _)| *since >= from);
    listed
}

/// Reads offers, at most as many as one record carries.
pub(crate) async fn read_all(log: &Log, wanted: impl Iterator<Item = Name>) -> Vec<Offer> {
    let reads: Vec<_> = wanted.take(OFFERS_MAX).map(|(since, id, path)| read(log, since, id, path)).collect();
    join_all(reads).await.into_iter().flatten().collect()
}

async fn read(log: &Log, since: u64, id: OpId, path: Path) -> Option<Offer> {
    let bytes = log.backend.store.get(&path).await.ok()?.bytes().await.ok()?;
    let op = decode(log.inc, &bytes).ok().filter(|op| op.id == id)?;
    Some(Offer { since, op: Arc::new(op) })
}

/// Deletes offers that a record carries now.
pub(crate) async fn take(log: &Log, taken: Vec<(u64, OpId)>) {
    let paths: Vec<_> = taken.into_iter().map(|(since, op)| Ok(log.key.offer(log.inc, since, op))).collect();
    let gone = log.backend.store.delete_stream(futures_util::stream::iter(paths).boxed());
    gone.for_each(|_| async {}).await;
}

/// Deletes the offers of processes that are gone: those left before record `before`.
pub(crate) async fn sweep(log: &Log, before: u64, requests_per_s: u32) -> Result<(), Error> {
    let mut old = names(log).await.map_err(|error| Error::store("listing offers", error))?;
    old.retain(|(since, _, _)| *since < before);
    delete::sweep(log, old.into_iter().map(|(_, _, path)| (path, 0)).collect(), requests_per_s).await;
    Ok(())
}

async fn names(log: &Log) -> object_store::Result<Vec<Name>> {
    let all = log.backend.store.list(Some(&log.key.offers(log.inc)));
    let mut names: Vec<_> = all.map_ok(|meta| meta.location).try_collect::<Vec<Path>>().await?;
    names.sort_unstable();
    let parse = |path: Path| {
        let (since, op) = path.filename()?.split_once('-')?;
        let (since, op) = (since.parse().ok()?, OpId(u128::from_str_radix(op, 16).ok()?));
        Some((since, op, path))
    };
    Ok(names.into_iter().filter_map(parse).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::extent::Piece;

    #[test]
    fn offers_come_back_as_they_were_and_damage_is_seen() {
        let inc = Inc(7);
        let action = Action::Write { at: 9, run: Run { pieces: Vec::<Piece>::new(), len: 5 } };
        let op = Op { id: OpId(3), born: 2, raw: 5, stored: 4, message: String::new(), action };
        let bytes = encode(inc, &op).unwrap();
        let back = decode(inc, &bytes).unwrap();
        assert_eq!(format!("{back:?}"), format!("{op:?}"));
        for bit in 0..bytes.len() * 8 {
            let mut turned = bytes.clone();
            turned[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(inc, &turned).is_err(), "bit {bit}");
        }
        assert!(decode(Inc(8), &bytes).is_err());
        assert!(encode(inc, &Op { message: "why".into(), ..op }).is_none());
        assert!(encode(inc, &Op::without_data(OpId(1), Action::Close)).is_none());
    }
}
