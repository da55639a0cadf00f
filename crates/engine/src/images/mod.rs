//! Images: volumes that fall through to something that lies elsewhere, of which a part has been
//! fetched.
//!
//! Of each image there is one object, the origin of all volumes that were cloned from it. **A block
//! of it that a record knows was fetched, or is a hole in the image; of any other block nothing is
//! known.** So whatever is lost of it, in a crash or to make room, is fetched again, and nothing is
//! ever taken for zeroes that has not been fetched.
//!
//! 1. A look-up tells the blocks of which nothing is known (`map`), and a request that needs one
//!    fails with `NotHere` beneath its error.
//! 2. The request lets go of all locks, fetches the groups (`fetch`), and is tried again. What has
//!    arrived is held in memory until then.
//!    A stream of reads has the groups before it fetched meanwhile (`ahead`).
//! 3. What has arrived is appended to the log as data of the image's object (`keep`), not synced.
//! 4. When it takes more than its share, or the pool has no room for a write, the groups that were
//!    not read for longest are dropped: the next full checkpoint takes their records out.
//! 5. In the background, the rest is fetched if a volume wants that (`hydrate`).
//! 6. When the process is about to end, no store is waited for any more (`ending`).
//!
//! `push` tells what a snapshot has that the image has not.

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
