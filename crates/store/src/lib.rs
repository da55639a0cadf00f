//! The parts of a pool that hold its data and its accounts: a log of compressed fragments, a map from
//! blocks to fragments, the write buffer, the objects, the space. Owns no thread and no policy:
//! `engine` composes the parts, and decides what happens when. Uses files, time and randomness only
//! through `env`.
//!
//! The rooms, from the lowest floor up: `base`; `buffer` and `log`; `objects` and `space`; `map`. A
//! room names only rooms below it (`tools/rooms.txt`), and the head of each names the state that it
//! owns.
//!
//! Only `engine` and `salvage` use this crate; its interface is whatever they need, and is no promise
//! to anyone else. Functions of a few lines that they call often are `#[inline]`, because a release
//! build has no link-time optimisation.
#![allow(missing_docs, reason = "the interface is for `engine` and `salvage` only")]

pub mod base;
pub mod buffer;
pub mod log;
pub mod map;
pub mod objects;
pub mod space;
