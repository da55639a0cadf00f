//! Blobs: versioned byte sequences on an object store, written, appended to and read by many clients at once, with no server
//! of ours between them. Owns the frames, packs, layouts and nodes that hold a blob's bytes, and the log that orders its
//! versions. Never names the engine.
//!
//! From the bottom: a [`Frame`] is up to 128 KiB of data, raw or compressed; an [`Extent`] is a run of frames in one pack; a
//! [`Layout`] says which extents make up a version, and the record of a version carries it.

mod extent;
mod layout;

pub use extent::{
    EXTENT_FRAMES_MAX, Extent, FRAME_BYTES, Frame, NODE_BYTES_MAX, NodeHash, NodeRef, PackRef, Piece, Place, Session,
    Span,
};
pub use layout::{LAYOUT_BYTES_MAX, Layout, Run};
