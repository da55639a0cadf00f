//! The on-disk format: encoding, decoding, checksums, versions. No I/O, no clock, no allocation
//! sized by an unchecked length. `docs/FORMAT.md` is the normative text; all integers are
//! little-endian except in map keys, which are big-endian so that they sort.

mod batch;
mod catalogue;
mod checkpoint;
mod checksum;
mod crc;
mod cursor;
mod cuts;
mod delta;
mod descriptor;
mod dictionary;
mod image;
mod incarnations;
mod inventory;
mod keys;
mod learned;
mod losses;
mod opening;
mod receive;
mod recompress;
mod record;
mod scrub;
mod sort;
mod standby;
mod stream;
mod stream_set;
mod stream_token;
mod superblock;

pub use batch::{
    BATCH_ALIGN, BATCH_FIXED_BYTES, BATCH_MAGIC, Batch, BatchHeader, Entry, FRAGMENT_ENTRY_BYTES, FragmentEntry,
    HOLE_BLOCKS_MAX, HOLE_BYTES, MOVE_ENTRY_BYTES, Move, STREAMS, Stream, decode_batch, encode_batch,
    fragment_entry_bytes, header_bytes, hole_bytes, is_wide, move_entry_bytes,
};
pub use catalogue::{CATALOGUE_FIXED_BYTES, CataloguePart, CatalogueRef};
pub use checkpoint::{Checkpoint, OpenExtent, USAGE_PAGE_EXTENTS, decode_usage_page, encode_usage_page};
pub use checksum::{FragmentIdentity, fragment_checksum, reseal};
pub use crc::crc32c;
pub use cursor::{Cursor, FormatError, put_text, put_uint, seal, unseal};
pub use cuts::{CUTS_MAX, Cut, UNDONE_MAX, Undone};
pub use delta::{DeltaWriter, decode_delta};
pub use descriptor::{ObjectDescriptor, ObjectState, Origin, Reap, TreeNumbers};
pub use dictionary::{DICTIONARY_FRAME_BYTES, decode_dictionary, dictionary_content_bytes, encode_dictionary};
pub use image::ImagePart;
pub use incarnations::{INCARNATIONS_MAX, Incarnation, Incarnations, KEY_END, LogEnd};
pub use inventory::{
    ExtentEntry, Filled, INVENTORY_HEAD_BYTES, INVENTORY_HEADER_BYTES, Inventory, InventoryHeader, inventory_places,
};
pub use keys::{
    KEY_CHECKPOINT, KEY_SCRUB, KEY_SUPERBLOCK, RecordKey, delta_key, delta_key_range, doubt_key, doubt_key_range,
    object_key, object_key_range, parse_delta_key, parse_doubt_key, parse_object_key, parse_record_key,
    parse_usage_key, record_key, record_key_range, usage_key, usage_key_range,
};
pub use learned::{KEY_LEARNED, decode_learned, encode_learned};
pub use losses::{KEY_LOSSES, LOSS_TEXT_BYTES_MAX, LOSSES_MAX, LossNote, decode_losses, encode_losses};
pub use opening::{KEY_NOTED, OPENING_NOTE_BYTES, OPENING_NOTE_OFFSETS, OpeningNote};
pub use receive::{ReceiveState, SnapshotIdentity};
pub use recompress::{KEY_RECOMPRESS, RecompressState};
pub use record::{FragmentRef, Fragments, Record};
pub use scrub::{ScrubDamage, ScrubState};
pub use sort::{KEY_SORT, SortState};
pub use standby::{
    KEY_STANDBY, STANDBY_ALIGN, STANDBY_COMMIT_OFFSET, STANDBY_DURABLE_OFFSET, STANDBY_HEAD_OFFSET,
    STANDBY_HEADER_BYTES, STANDBY_INCARNATION_OFFSET, STANDBY_PATH_OFFSET, STANDBY_RING_OFFSET, STANDBY_SEQ_OFFSET,
    STANDBY_TAIL_OFFSET, StandbyHeader, StandbyKind, StandbyNeed, StandbyRecord, journal_key, journal_key_range,
    load_word, parse_journal_key, word_stores,
};
pub use stream::{
    STREAM_BODY_BYTES_MAX, STREAM_HEAD_BYTES, STREAM_MAGIC, STREAM_VERSION, StreamBegin, StreamChunk, StreamData,
    StreamEnd, StreamHead, StreamReader, StreamWriter, stream_checksum,
};
pub use stream_set::{STREAM_SET_VERSION, StreamSetBegin, StreamSetEnd};
pub use stream_token::ResumeToken;
pub use superblock::{
    COMPAT_INVENTORY, FORMAT_VERSION, INCOMPAT_BOOKMARKS, INCOMPAT_COMPACT_RECORDS, INCOMPAT_FOLDERS, INCOMPAT_IMAGES,
    INCOMPAT_KNOWN, INCOMPAT_NESTED_SHARES, INCOMPAT_SHARES, INCOMPAT_SMALL_FILES, SUPERBLOCK_BYTES, SUPERBLOCK_MAGIC,
    SUPERBLOCK_OFFSETS, SUPERBLOCK_TAIL_BYTES, Superblock, SuperblockError, capacity_bytes_max, superblock_end_offset,
};
