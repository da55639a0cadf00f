//! Images: volumes backed by an image in an object store, of which a part has been fetched. Owns no
//! state: `read::images` has the groups in progress. Threads of clients call it, and a thread of
//! its own for the background; they wait for the stores.
//!
//! Each image has one object, the origin of all volumes that were cloned from it. **A block of it
//! that has a record was fetched, or is a hole in the image; nothing is known about any other
//! block.** So any data of it that is lost, in a crash or to make room, is fetched again, and a
//! block that has not been fetched never reads as zeroes.
//!
//! 1. A volume is cloned from an image (`make`). A look-up in it returns the unknown blocks
//!    (`map`).
//! 2. The groups that a request needs are fetched and kept, while there is room (room `fetch`).
//! 3. In the background, the rest is fetched if a volume asks for that (`hydrate`).
//! 4. When the process is about to end, no request waits for a store any more (`read::ending`).
//!
//! `push` lists the data of a snapshot that the image does not have.

pub(crate) mod hydrate;
pub(crate) mod push;
pub(crate) mod pushed;

mod make;
pub(crate) mod parts;
mod status;

pub use status::ImageStatus;
