//! The command that rebuilds a pool whose map is lost.

use std::path::PathBuf;

use clap::Args;

use super::Access;
use operations::names;

/// See [`super::Command::Salvage`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale salvage /srv/pool --into /srv/new
  shale salvage /dev/nvme0n1p4 --into /srv/new --capacity 2T
  shale salvage /srv/pool --into /srv/new --json

For a pool whose metadata directory is lost or damaged: rebuilds volumes, snapshots and clones from the log alone, into a
new pool. The old one is only read; name its directory, or its data file or device if the directory is gone. Needs
room for the data, and for a temporary index of about 100 bytes for each piece of it in NEW, and --memory of at least 128M.
Exit code 12 if anything is lost, or may be: see the report. What is missing is known from an inventory that each
checkpoint writes to the beginning of the data; of what an older program has written last it cannot be known. Of a pool that was
not closed all is there up to a batch that the report names (up-to-batch). If the machine failed during the last checkpoint, the
map, if it is there, says whether what that checkpoint lists was durable; without it that is in doubt (in-doubt, exit code 12).
A map that is whole, and of the last checkpoint, also says block by block what is missing (by_map), so leave it where it is.
If it is another pool's than the data, it is not asked, the report says so (other_pool), and the exit code is 12: the data file by its own
name, or --id, says that the pool of the data is meant.
Interrupted, it removes NEW; after a crash NEW is no pool, and the same command begins anew.

If the beginning of the data is lost (a new partition table, a new file system), the copy of the superblock at its end is used,
or the log tells what pool it is of, and the map is asked all the same; the report says so.

What cannot be read is left out (it reads as zeroes) and listed, with the files of shares that it is in. So is what the map
says to be missing; without the map, all files of a damaged share that read as zeroes somewhere are named. Data of volumes of which no description is found becomes
volumes named lost-N. Not certain is only what was discarded or taken back long ago: if the log has forgotten that, but not the
data, it shows again; uncertain_bytes says how much that can be at most.

JSON fields: into, extents, batches, has_catalogue (names, sizes and properties are those of the last moment),
log_damaged_bytes, unreadable_bytes, uncertain_bytes, lossy, completeness (complete, up-to-batch, in-doubt,
incomplete, damaged or unknown), complete_up_to (the last batch up to which all is there, or null), missing_bytes (of the log),
by_map (the map told what is missing), other_pool (the map is another pool's than the data), seconds, notes (texts), volumes: list of {name, size_bytes, copied_bytes, damaged_bytes,
  damaged: list of {offset, length, detail}, lost, uncertain_bytes, missing_bytes_max (of a share 2^63: nothing bounds it),
  missing: list as damaged, by the map, tree: texts}; uncertain_bytes are those that this volume or snapshot may show, and in all
  their sum")]
pub struct SalvageArgs {
    /// Directory of the pool, or its data file or device
    pub pool: PathBuf,
    /// Directory for the new pool: empty or missing
    #[arg(long, value_name = "NEW")]
    pub into: PathBuf,
    /// Data file or block device of the new pool [default: NEW/data]
    #[arg(long, value_name = "FILE_OR_BLOCK_DEVICE")]
    pub data: Option<PathBuf>,
    /// Maximum bytes of data in the new pool [default: the block device's size, or 80 % of the free
    /// space]
    #[arg(long, value_name = "SIZE", value_parser = names::size)]
    pub capacity: Option<u64>,
    /// The pool to rebuild, if the beginning of the data is lost and its log contains several: the
    /// first 16 digits of its id
    #[arg(long, value_name = "ID", value_parser = names::pool_prefix)]
    pub id: Option<[u8; 8]>,
    /// Property of the new pool, which takes precedence over the old one's; may be repeated
    #[arg(short = 'o', value_name = "KEY=VALUE", value_parser = names::key_value)]
    pub properties: Vec<(String, String)>,
    /// Access to the pools
    #[command(flatten)]
    pub access: Access,
}
