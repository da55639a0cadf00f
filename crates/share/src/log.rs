//! The intent log: changes made durable by `fsync` since the last commit of the namespace's
//! database, in a file of the object space itself.
//!
//! # Location of records
//!
//! The file has two halves. Records of commit number N go into half N % 2, consecutively, each
//! starting on a block: when those of N + 2 arrive, commit N is durable, and its records are no
//! longer needed. A record is: magic 8, session 8, commit 8, number within the commit 8, length of
//! the body 8, xxh3-64 of these and of the body 8, then the body; little-endian. Valid if and only
//! if all of these are as expected; the first invalid one ends the log of its commit.
//!
//! The session is a different number at each opening of the share: a record that survived a power
//! loss while its predecessor was lost is thus never accepted later.

use std::sync::Arc;

use bytes::Bytes;
use surface::{LOG_FILE, ObjectSpace};
use xxhash_rust::xxh3::xxh3_64;

/// The file of the object space that holds it.
pub(crate) const LOG: u64 = LOG_FILE;

const MAGIC: [u8; 8] = *b"SHLTLOG1";
const BLOCK: u64 = 4096;
const HEADER_BYTES: usize = 48;

/// Capacity of a half. Anything more is committed instead, which takes some 0.1 s for that many
/// changes.
const HALF_BYTES: u64 = 4 << 20;

/// The log of a session.
pub(crate) struct Log {
    space: Arc<dyn ObjectSpace>,
    session: u64,
    commit: u64,
    number: u64,
    /// Bytes of the half that are used.
    used: u64,
}

/// Where a half begins.
fn begin(commit: u64) -> u64 {
    commit % 2 * HALF_BYTES
}

fn header(session: u64, commit: u64, number: u64, body: &[u8]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    for field in [session, commit, number, body.len() as u64] {
        out.extend(field.to_le_bytes());
    }
    let sum = xxh3_64(&[&out[..], body].concat());
    out.extend(sum.to_le_bytes());
    out
}

impl Log {
    pub(crate) fn new(space: Arc<dyn ObjectSpace>, session: u64) -> Self {
        Self { space, session, commit: 0, number: 0, used: 0 }
    }

    /// Writes a record that belongs to a commit; `false` if it does not fit. Durable with the next
    /// flush.
    pub(crate) fn append(&mut self, commit: u64, body: &[u8]) -> surface::Result<bool> {
        if commit != self.commit {
            (self.commit, self.number, self.used) = (commit, 0, 0);
        }
        let length = (HEADER_BYTES + body.len()) as u64;
        if self.used + length > HALF_BYTES {
            return Ok(false);
        }
        let record = [&header(self.session, commit, self.number, body), body].concat();
        self.space.write(LOG, begin(commit) + self.used, Bytes::from(record))?;
        self.number += 1;
        self.used += length.next_multiple_of(BLOCK);
        Ok(true)
    }

    /// Bodies of the records that a session left for a commit.
    pub(crate) fn left(space: &dyn ObjectSpace, session: u64, commit: u64) -> surface::Result<Vec<Vec<u8>>> {
        let (mut bodies, mut at) = (Vec::new(), 0);
        while at + BLOCK <= HALF_BYTES {
            let mut head = [0; HEADER_BYTES];
            space.read(LOG, begin(commit) + at, &mut head)?;
            let length = head[32..40].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            let whole = length.saturating_add(HEADER_BYTES as u64);
            if head[..8] != MAGIC || at.saturating_add(whole) > HALF_BYTES {
                break;
            }
            // At most a half.
            let mut body = vec![0; length as usize];
            space.read(LOG, begin(commit) + at + HEADER_BYTES as u64, &mut body)?;
            if head[..] != header(session, commit, bodies.len() as u64, &body) {
                break;
            }
            bodies.push(body);
            at += whole.next_multiple_of(BLOCK);
        }
        Ok(bodies)
    }

    /// Gives the space of the log back, when a commit has all that is in it.
    pub(crate) fn clear(&self) -> surface::Result<()> {
        self.space.discard(LOG, 0..2 * HALF_BYTES)
    }
}
