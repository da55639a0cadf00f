//! The changes since the last commit, stored where they survive the death of the program.
//!
//! A change is acknowledged when it is in memory: a power loss takes everything not covered by an
//! `fsync`. The death of the program alone must not: the change was acknowledged, and where the
//! mount outlives the program, the kernel continues with its cached state. So each change goes to a
//! [`Journal`] before it is acknowledged, together with the request that it answers. The next
//! program then has the tree as its users saw it, and knows which requests were completed.

use std::cell::Cell;

use xxhash_rust::xxh3::Xxh3Default;

/// Stores records that survive the death of the program.
pub trait Journal: Send + Sync {
    /// Stores a record of changes that belong to a commit. There is always space: at most
    /// [`JOURNAL_BYTES_MAX`] arrive for one commit, and records of commits before the previous one
    /// are no longer needed.
    fn keep(&self, commit: u64, record: &[u8]);

    /// Bytes of records of one commit after which the next commit is due; at most as many again
    /// arrive before it starts.
    fn commit_bytes(&self) -> usize {
        JOURNAL_BYTES
    }
}

/// The content of a journal left by another program.
#[derive(Debug, Default)]
pub struct Left {
    /// The opening of the tree that it is of.
    pub session: u64,
    /// Whether the tree already has all of it, durably: then it only lists completed requests.
    pub is_replayed: bool,
    /// Records with their commits, in order within each commit.
    pub records: Vec<(u64, Vec<u8>)>,
}

/// The checksum of a record of a commit.
pub fn journal_sum(commit: u64, record: &[u8]) -> u64 {
    let mut sum = Xxh3Default::new();
    sum.update(&commit.to_le_bytes());
    sum.update(record);
    sum.digest()
}

impl Left {
    /// Whether it has any changes, and not only completed requests.
    pub fn has_changes(&self) -> bool {
        !self.is_replayed && self.records.iter().any(|(_, record)| record.len() > RECORD_HEAD_BYTES)
    }

    /// The commits with records, in order.
    pub(crate) fn commits(&self) -> Vec<u64> {
        let mut commits: Vec<u64> = self.records.iter().map(|(commit, _)| *commit).collect();
        commits.sort_unstable();
        commits.dedup();
        commits
    }
}

/// Request, result and next number, before the changes of a record.
pub(crate) const RECORD_HEAD_BYTES: usize = 24;

/// Most bytes of records for one commit. A commit is due when half of it is full, which leaves
/// space for the changes of all threads that wait for it.
pub const JOURNAL_BYTES_MAX: usize = 32 << 20;

/// Bytes of records after which a commit is due.
pub(crate) const JOURNAL_BYTES: usize = JOURNAL_BYTES_MAX / 2;

thread_local! {
    static REQUEST: Cell<u64> = const { Cell::new(0) };
}

/// Executes an operation that answers the request with that number (0: one that cannot be
/// repeated). Its changes are stored together with the number.
pub fn answering<T>(request: u64, what: impl FnOnce() -> T) -> T {
    let before = REQUEST.replace(request);
    let done = what();
    REQUEST.set(before);
    done
}

/// The request that this thread answers.
pub(crate) fn request() -> u64 {
    REQUEST.get()
}
