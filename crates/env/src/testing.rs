//! The contract of a trait of this crate, for the tests of its implementations. Not for production
//! code.

mod contract;

pub use contract::map_store_contract;
