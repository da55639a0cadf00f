//! The contract of a trait of this crate, for the tests of all that implement it. Not for
//! production code.

mod contract;

pub use contract::map_store_contract;
