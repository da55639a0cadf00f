//! An NBD server for any [`surface::DeviceSet`]: fixed newstyle handshake,
//! structured replies, extended headers, block status, several exports, many requests in flight,
//! answered out of order, TLS with certificates.
//!
//! ```text
//! listen ── server ── greet ── negotiate ──┐            bytes of the handshake, pure
//!              │        │                  wire, admit   bytes and rules of requests, pure
//!              │        └─ secure, certificates          TLS: who must, who may, with which keys
//!              └── connection
//!                   │      │
//!                receive  pool ── execute                threads for requests that wait
//!                polling     │
//!                          └──────── outbox              replies, accounts, the writer thread
//!                                       │
//!                                    channel ── records  the socket, and TLS on it
//! ```
//!
//! Each connection has a reader thread, which executes requests that need not wait, and a writer
//! thread, which waits for a client that is slow to read its replies; the pool is shared. A hostile
//! client can only waste its own connection: see the bounds in [`ServerOptions`], [`negotiate`] and
//! `outbox`.

mod caller;
mod certificate_files;
mod certificates;
mod channel;
mod clock;
mod connection;
mod errno;
mod execute;
mod greet;
mod listen;
mod outbox;
mod polling;
mod receive;
mod records;
mod secure;
mod server;
mod shortage;

pub mod admit;
mod budget;
pub mod negotiate;
pub mod wire;

pub use certificate_files::{CertificateFiles, FileContent};
pub use certificates::Certificates;
pub use errno::Errno;
pub use listen::{Listen, Listener};
pub use secure::{Permit, Tls};
pub use server::{Log, Server, ServerOptions};
pub use shortage::Shortage;
