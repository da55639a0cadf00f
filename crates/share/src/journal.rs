//! What a program has done since the last commit, kept where the death of the program does not
//! reach it.
//!
//! A change is acknowledged when it is in memory: a loss of power takes what no `fsync` asked for.
//! The death of the program alone must not take it: it was acknowledged, and where the mount
//! outlives the program, the kernel goes on with what it has cached. So each change goes to a
//! [`Journal`] before it is acknowledged, with the request that it answers: the next program has
//! the tree as its users saw it, and knows which requests were done.

use std::cell::Cell;

use xxhash_rust::xxh3::Xxh3Default;

/// Keeps records over the death of the program.
pub trait Journal: Send + Sync {
    /// Keeps a record of changes that belong to a commit. There is room: at most
    /// [`JOURNAL_BYTES_MAX`] come for one commit, and what commits before the one before this left
    /// is not needed any more.
    fn keep(&self, commit: u64, record: &[u8]);

    /// After so many bytes of records of one commit the next commit comes, and as many again come
    /// at most until then.
    fn commit_bytes(&self) -> usize {
        JOURNAL_BYTES
    }
}

/// What a journal left.
#[derive(Debug, Default)]
pub struct Left {
    /// The opening of the tree that it is of.
    pub session: u64,
    /// The tree has had all of it, durably: it only tells which requests were done.
    pub is_replayed: bool,
    /// Records with their commits, of each commit in the order in which they came.
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
    /// Whether there is any change in it, and not only requests that were done.
    pub fn has_changes(&self) -> bool {
        !self.is_replayed && self.records.iter().any(|(_, record)| record.len() > RECORD_HEAD_BYTES)
    }

    /// The commits that there are records of, in their order.
    pub(crate) fn commits(&self) -> Vec<u64> {
        let mut commits: Vec<u64> = self.records.iter().map(|(commit, _)| *commit).collect();
        commits.sort_unstable();
        commits.dedup();
        commits
    }
}

/// Request, result and next number, before the changes of a record.
pub(crate) const RECORD_HEAD_BYTES: usize = 24;

/// Bytes of records that come for one commit at most. A commit comes when half of it is full, which
/// leaves room for the changes of all threads that wait for it.
pub const JOURNAL_BYTES_MAX: usize = 32 << 20;

/// After so many bytes of records a commit comes.
pub(crate) const JOURNAL_BYTES: usize = JOURNAL_BYTES_MAX / 2;

thread_local! {
    static REQUEST: Cell<u64> = const { Cell::new(0) };
}

/// Does something that answers a request of that number (0: none that could come again). What it
/// changes is kept together with the number.
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
