//! The program as a user starts it: its commands, what they say, and how they end.
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
mod init;
mod jobs;
mod metadata_damage;
mod salvage;
mod served;
mod streams;
mod support;
mod traffic;
mod transfer;
mod upkeep;
