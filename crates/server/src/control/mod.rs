//! The pool's control socket: how commands reach the server that holds a pool.
//!
//! A client sends one JSON document per line and receives one for each. After a `bulk` request the
//! connection speaks binary frames for one volume instead (see [`bulk`]): import and export reach a
//! served pool this way, with files that the server reads and writes itself (see `lent`). After
//! `send` and `receive` it carries a stream (see `streams`), after `import_tree` the tree of a new share
//! (see `trees`). Only the owner may connect (mode 0600).

pub mod bulk;
mod client;
mod lent;
mod peer;
mod server;
mod streams;
mod trees;

pub use client::{Client, RemoteVolume, Unreached};
pub use server::ControlServer;
pub use streams::{RemoteSink, RemoteSource};
pub use trees::RemoteTree;
