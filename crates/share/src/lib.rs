//! A POSIX directory tree in an object space: namespace, attributes, data. Owns the semantics of
//! file system operations; knows neither the engine below nor the transport above.
//!
//! The namespace is a database in the space itself (`backend`, `store`), so that every snapshot and
//! stream of the space has the names that belong to its data. A file's content is one file of the
//! space, so that the location of a byte is simple arithmetic.

mod acl;
mod backend;
#[doc(hidden)]
pub mod canary;
mod compression;
mod contained;
mod empty;
mod failure;
mod foreign;
mod inode;
mod isolated;
mod journal;
mod log;
mod names;
mod overlay;
pub mod posix_acl;
mod reading;
mod scratch;
mod source;
mod store;
mod tree;

pub use acl::is_acl;
pub use contained::contains_panics;
pub use failure::{Failure, Result};
pub use inode::{Inode, Time};
pub use isolated::{NamesReader, StartNamesReader, read_foreign_names, read_foreign_names_with};
pub use journal::{JOURNAL_BYTES_MAX, Journal, Left, answering, journal_sum};
pub use names::{COOKIE_DOT, COOKIE_DOT_DOT, KEPT_NAME, NAME_BYTES_MAX, in_words, out_of_words};
pub use scratch::{Scratch, limit_scratch_memory};
pub use tree::{
    AttributesLost, Beginning, CAPABILITY, Caller, Listed, NamesSurvey, Options, Paths, RECORD_CONTENT_BYTES_MAX,
    Repaired, SetAttributes, SetId, Still, TimeToSet, Tree, Written,
};
