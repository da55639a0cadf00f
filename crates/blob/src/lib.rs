//! Blobs: versioned byte sequences on an object store, which many clients write, append to and read
//! at once, with no server of ours between them. Owns the frames, packs, layouts and nodes that
//! hold a blob's bytes, and the log that orders its versions. Never names the engine. All entry
//! points are async and may be called from any task.
//!
//! From the bottom: a [`Frame`] is up to 128 KiB of data, raw or compressed; an [`Extent`] is a run
//! of frames in one pack; a [`Layout`] lists the extents of a version, and the record of a version
//! carries it.

mod blob;
pub mod canary;
mod data;
mod error;
mod names;
mod protocol;
mod sealed;
mod store;
mod texts;

pub use blob::audit::Audited;
pub use blob::groups::{Group, GroupError, StoredGroup};
pub use blob::image::Image;
pub use blob::list::{Listed, has_blobs, list};
pub use blob::nesting::refuse_nested;
pub use blob::optimize::Optimized;
pub use blob::profile::{Arranged, Profile};
pub use blob::push::{Change, PushOptions, Pushed};
pub use blob::staged::{Staged, StagedAs};
pub use blob::survey::{Damage, Usage, Verified};
pub use blob::{Blob, Entry, bytes};
pub use data::chunk::Chunk;
pub use data::extent::{
    EXTENT_FRAMES_MAX, Extent, FRAME_BYTES, Frame, LEVEL_MAX, NODE_BYTES_MAX, NodeHash, NodeRef, PackRef, Piece, Place,
    Session, Span,
};
pub use data::frame::{Choice, ENCODING_KEYS, Encoded, Encoder, Encoding, Framer, frame_checksum};
pub use data::layout::{LAYOUT_BYTES_MAX, Layout, Run};
pub use data::pack::{PACK_BYTES, PACK_BYTES_MAX, PACK_BYTES_MIN, PackBuilder, PackReport, verify_pack};
pub use data::scatter::Sink;
pub use data::session::{DataHash, Finished, Journal, Uploading};
pub use data::upload::{Tally, UploadOptions};
pub use error::{Cause, Error};
pub use names::{BlobKey, Inc, Nonce, OpId};
pub use protocol::clone::{BlobRef, FindHolder, clone_blob, drop_dead_pins};
pub use protocol::commit::{Boxed, CommitOptions, Committed, Committer, Fold, Folder};
pub use protocol::expire::{ExpirePlan, ExpireRule, expire};
pub use protocol::gc::{GcOptions, GcReport, gc};
pub use protocol::life::{Hint, Life};
pub use protocol::log::Log;
pub use protocol::ops::{Action, Op, Patch, Replacement};
pub use protocol::pins::{Holders, Pin, Pins, pin_version};
pub use protocol::record::{Done, OpKind, Origin, Record};
pub use protocol::rm::{Removed, check_known, remove, sweep_removed};
pub use store::backend::Backend;
pub use store::cache::StoredCache;
pub use store::connect::{At, Connection, Location, ParseLocationError, Prefix};
pub use store::counting::Requests;
pub use store::probe::probe;
pub use store::settings::StoreSettings;
pub use store::store_errors::NO_CREDENTIALS;
pub use texts::{check_message, check_tag, copy_message};
