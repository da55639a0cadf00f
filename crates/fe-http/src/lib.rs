//! The HTTP front end: REST, events, metrics and the page.
//!
//! It runs as a process of its own ([`run`]), because code that parses untrusted bytes must not
//! be able to crash or read the storage server. The process has no rights, no files and no
//! credentials. It hands each request, with the cookie or the token that came with it, to the
//! server ([`wire`]), which decides.
//!
//! Owns listening sockets, connections, and the limits on both. It knows no engine and no pool.

#![allow(clippy::result_large_err, reason = "the error of a handler is a response, which is its usual value")]

mod api;
mod assets;
mod backend;
mod body;
mod connections;
mod events;
mod files;
mod guard;
mod metrics;
mod problem;
mod process;
mod rights;
mod router;
mod session;
mod tls;
pub mod wire;

pub use metrics::{CodecFigures, CodecWork, Figures, ObjectFigures};
pub use process::run;
pub use rights::give_up_rights;
pub use tls::fingerprint;
