//! Images: volumes backed by an image in an object store, of which a part has been fetched.
//!
//! Each image has one object, the origin of all volumes that were cloned from it. **A block of it
//! that has a record was fetched, or is a hole in the image; nothing is known about any other
//! block.** So any data of it that is lost, in a crash or to make room, is fetched again, and a
//! block that has not been fetched never reads as zeroes.
//!
//! 1. A look-up returns the unknown blocks (`map`), and a request that needs one fails with
//!    `MissingGroups` as the source of its error.
//! 2. The request releases all locks, fetches the groups (`fetch`), and is retried. Arrived groups
//!    are held in memory until then. For a stream of reads, the next groups are fetched in parallel
//!    (`ahead`).
//! 3. Arrived groups are appended to the log as data of the image's object (`keep`), not synced.
//! 4. When they take more than their share, or the pool has no room for a write, the groups that
//!    were not read for longest are dropped: the next full checkpoint removes their records.
//! 5. In the background, the rest is fetched if a volume asks for that (`hydrate`).
//! 6. When the process is about to end, no request waits for a store any more (`ending`).
//!
//! `push` lists the data of a snapshot that the image does not have.

pub(crate) mod hydrate;
pub(crate) mod push;
pub(crate) mod pushed;

mod ahead;
mod ending;
mod fetch;
mod keep;
mod make;
mod state;
mod status;

pub use ending::Unwritten;
pub(crate) use state::Images;
pub use status::ImageStatus;
