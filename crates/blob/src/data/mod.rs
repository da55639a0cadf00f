//! The data of a blob: frames, the packs that hold them, and the layouts and nodes that name them,
//! from a stream of bytes to packs and back. Owns the encoding of data, and its cache. Decides
//! nothing about versions; that is in `protocol`. Any task may use it.

pub(crate) mod chunk;
pub(crate) mod extent;
pub(crate) mod fetch;
pub(crate) mod frame;
pub(crate) mod layout;
pub(crate) mod pack;
pub(crate) mod read;
pub(crate) mod scatter;
pub(crate) mod session;
pub(crate) mod tree;
pub(crate) mod upload;
pub(crate) mod upload_limit;
