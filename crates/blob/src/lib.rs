//! Blobs: versioned byte sequences on an object store, written, appended to and read by many clients at once, with no server
//! of ours between them. Owns the frames, packs, layouts and nodes that hold a blob's bytes, and the log that orders its
//! versions. Never names the engine.
//!
//! From the bottom: a [`Frame`] is up to 128 KiB of data, raw or compressed; an [`Extent`] is a run of frames in one pack; a
//! [`Layout`] says which extents make up a version, and the record of a version carries it.

pub mod canary;
mod clone;
mod commit;
mod error;
mod expire;
mod extent;
mod gc;
mod layout;
mod life;
mod log;
mod names;
mod ops;
mod probe;
mod record;
mod rm;
mod walk;
mod world;

pub use clone::{Place as BlobPlace, clone_blob, drop_dead_pins};
pub use commit::{Boxed, CommitOptions, Committed, Committer, Fold, Folder};
pub use error::Error;
pub use expire::{ExpireRule, expire};
pub use extent::{
    EXTENT_FRAMES_MAX, Extent, FRAME_BYTES, Frame, NODE_BYTES_MAX, NodeHash, NodeRef, PackRef, Piece, Place, Session,
    Span,
};
pub use gc::{GcOptions, GcReport, gc};
pub use layout::{LAYOUT_BYTES_MAX, Layout, Run};
pub use life::{Hint, Life};
pub use log::Log;
pub use names::{BlobKey, Inc, Nonce, OpId};
pub use ops::{Op, Patch, What};
pub use probe::probe;
pub use record::{Done, OpKind, Origin, Pin, Record};
pub use rm::{Removed, remove, sweep_removed};
pub use world::World;
