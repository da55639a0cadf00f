//! A mounted share whose server is killed, and which the next one resumes. Needs root, /dev/fuse
//! and Linux 6.9.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods, missing_docs)]

mod load;
mod resent;
mod server;
mod space;
mod unserved;
