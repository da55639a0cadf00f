//! Fetches groups of images that a request needs, keeps them in the pool, and drops them again.
//! Owns no state: `read::images` has the groups in progress. Threads of clients, readers and the
//! thread of `images::hydrate` call it; they wait for stores here, and hold no lock then.
//!
//! 1. A request that needs unknown blocks fails with `MissingGroups` as the source of its error. It
//!    releases all locks, fetches the groups (`requests`), and is retried. Arrived groups are held
//!    in memory until then. For a stream of reads, the next groups are fetched in parallel
//!    (`ahead`).
//! 2. Arrived groups are appended to the log as data of the image's object (`keep`), not synced.
//! 3. When they take more than their share, or the pool has no room for a write, the groups that
//!    were not read for longest are dropped: the next full checkpoint removes their records.
//!
//! `images` explains what a record of an image means.

mod ahead;
mod keep;
mod requests;
