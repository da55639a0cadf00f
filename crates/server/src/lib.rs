//! Serves a pool: the layout of its directory, the requests on it, jobs, the control socket, and
//! the front ends of its volumes and shares.
//!
//! [`pool_dir`] opens a pool; [`service`] answers the requests of `operations` on it, for the
//! command that opened it and for the clients of a server ([`control`]); [`session`] is how a
//! command reaches either. [`front_ends`] are the doors of a server, [`exports`] the servers of
//! network protocols that it keeps.
//!
//! This crate owns no storage: it never interprets the engine's data file or map. Messages to the
//! user go through `log`, which prints warnings to standard error for every command.
// The storage stack takes time and files through `env` so that it can be simulated; nothing
// simulates the server.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod access;
pub mod audit;
mod blob_errors;
mod callers;
pub mod clients;
pub mod control;
pub mod devices;
pub mod documents;
mod estimates;
pub mod exports;
pub mod first_reads;
pub mod front_ends;
pub mod fullness;
pub mod health;
pub mod images;
pub mod jobs;
pub mod names_reader;
mod open_device;
pub mod pool_dir;
pub mod samples;
pub mod schedules;
pub mod service;
pub mod session;
mod share_browse;
pub mod share_check;
pub mod share_files;
pub mod share_journals;
mod share_losses;
mod share_reasons;
mod share_recompress;
pub mod share_trees;
mod share_trials;
mod share_unserved;
pub mod shares;
pub mod stream_io;
pub mod stream_plan;
pub mod traffic;

pub use blob_errors::blob_error;
