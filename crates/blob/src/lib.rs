//! Blobs: versioned byte sequences on an object store, which many clients write, append to and read
//! at once, with no server of ours between them. Owns the frames, packs, layouts and nodes that
//! hold a blob's bytes, and the log that orders its versions. Never names the engine. All entry
//! points are async and may be called from any task.
//!
//! From the bottom: a [`Frame`] is up to 128 KiB of data, raw or compressed; an [`Extent`] is a run
//! of frames in one pack; a [`Layout`] lists the extents of a version, and the record of a version
//! carries it.

mod audit;
mod backend;
mod blob;
mod cache;
pub mod canary;
mod chunk;
mod clone;
mod commit;
mod connect;
mod counting;
mod credentials;
mod crowd;
mod delete;
mod error;
mod expire;
mod extent;
mod fetch;
mod files;
mod frame;
mod gc;
mod gc_progress;
mod groups;
mod holes;
mod image;
mod layout;
mod life;
mod list;
mod log;
mod names;
mod nesting;
mod offer;
mod ops;
mod optimize;
mod outcomes;
mod pack;
mod pins;
mod probe;
mod profile;
mod push;
mod ranges;
mod read;
mod record;
mod rm;
mod sealed;
mod session;
mod settings;
mod staged;
mod store_errors;
mod survey;
mod texts;
mod tree;
mod upload;
mod upload_limit;
mod walk;

pub use audit::Audited;
pub use backend::Backend;
pub use blob::{Blob, Entry, bytes};
pub use cache::StoredCache;
pub use chunk::Chunk;
pub use clone::{BlobRef, FindHolder, clone_blob, drop_dead_pins};
pub use commit::{Boxed, CommitOptions, Committed, Committer, Fold, Folder};
pub use connect::{At, Connection, Location, ParseLocationError, Prefix};
pub use counting::Requests;
pub use error::{Cause, Error};
pub use expire::{ExpirePlan, ExpireRule, expire};
pub use extent::{
    EXTENT_FRAMES_MAX, Extent, FRAME_BYTES, Frame, LEVEL_MAX, NODE_BYTES_MAX, NodeHash, NodeRef, PackRef, Piece, Place,
    Session, Span,
};
pub use frame::{Choice, ENCODING_KEYS, Encoded, Encoder, Encoding, Framer, frame_checksum};
pub use gc::{GcOptions, GcReport, gc};
pub use groups::{Group, GroupError, StoredGroup};
pub use image::Image;
pub use layout::{LAYOUT_BYTES_MAX, Layout, Run};
pub use life::{Hint, Life};
pub use list::{Listed, has_blobs, list};
pub use log::Log;
pub use names::{BlobKey, Inc, Nonce, OpId};
pub use nesting::refuse_nested;
pub use ops::{Action, Op, Patch, Replacement};
pub use optimize::Optimized;
pub use pack::{PACK_BYTES, PACK_BYTES_MAX, PACK_BYTES_MIN, PackBuilder, PackReport, verify_pack};
pub use pins::{Holders, Pin, Pins, pin_version};
pub use probe::probe;
pub use profile::{Arranged, Profile};
pub use push::{Change, PushOptions, Pushed};
pub use record::{Done, OpKind, Origin, Record};
pub use rm::{Removed, check_known, remove, sweep_removed};
pub use session::{DataHash, Finished, Journal, Uploading};
pub use settings::StoreSettings;
pub use staged::{Staged, StagedAs};
pub use store_errors::NO_CREDENTIALS;
pub use survey::{Damage, Usage, Verified};
pub use texts::{check_message, check_tag, copy_message};
pub use upload::{Tally, UploadOptions};
