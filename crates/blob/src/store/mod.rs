//! The store of a blob: connections, credentials, requests and their errors. Knows no blob's
//! content. Owns how often a request is repeated, and what an error of a store means. Any task may
//! use it.

pub(crate) mod backend;
pub(crate) mod cache;
pub(crate) mod connect;
pub(crate) mod counting;
pub(crate) mod credentials;
pub(crate) mod files;
pub(crate) mod probe;
pub(crate) mod settings;
pub(crate) mod store_errors;
