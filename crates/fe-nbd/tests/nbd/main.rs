//! The server against a device in memory: raw sockets for every option, command and hostile case,
//! and real clients.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on says so by panicking"
)]

mod client;
mod clients;
mod concurrency;
mod extended;
mod gone;
mod handshake;
mod held;
mod hostile;
mod listening;
mod real_clients;
mod requests;
mod tls;
mod tls_hostile;
