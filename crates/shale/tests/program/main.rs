//! The program as a user starts it: its commands, their messages, and their exit codes.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod administrator;
mod callers;
mod cli;
mod devices;
mod endings;
mod forced;
mod front_ends;
mod habits;
mod history;
mod imports;
mod init;
mod jobs;
mod metadata_damage;
mod objects;
mod salvage;
mod served;
mod streams;
mod support;
mod traffic;
mod transfer;
mod upkeep;
mod vhost;
