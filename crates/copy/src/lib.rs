//! Copies data into and out of a pool: volumes in parallel pieces ([`transfer`]), directory trees
//! from a source of items to a sink of items ([`trees`]). Owns no pool: a volume is reached through
//! [`volume_io`], a share through its tree.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod transfer;
pub mod trees;
pub mod volume_io;
