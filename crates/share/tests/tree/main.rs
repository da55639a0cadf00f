//! The tree against an in-memory model, with and without power losses, and the contracts of single
//! operations.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod allocate;
mod basics;
mod canaries;
mod compare;
mod compression;
mod crash;
mod creation;
mod damaged_leaves;
mod data_sync;
mod deaths;
mod foreign;
mod full;
mod ground;
mod handles;
mod large;
mod lost_attributes;
mod model;
mod moments;
mod pages;
mod paths;
mod pool_sync;
mod repair;
mod run;
mod small;
