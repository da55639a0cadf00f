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

For a pool whose metadata directory is lost or damaged: rebuilds volumes, snapshots and clones from the log alone, into a new
pool. The old one is only read; specify its directory, or its data file or device if the directory is gone. Needs space for the
data, and for a temporary index of about 100 bytes for each piece of it in NEW, and --memory of at least 128M. Exit code 12 if
any data is lost, or may be: see the report. Missing data is detected by an inventory that each checkpoint writes to the
beginning of the data. A pool that was not closed is complete up to a batch in the report (up-to-batch). If the machine failed
during the last checkpoint, the map, if it exists, shows whether the data in that checkpoint's inventory was durable; without it
that is in doubt (in-doubt, exit code 12). An intact map of the last checkpoint also identifies each missing block (by_map), so
leave it in place. A map of another pool than the data is ignored and reported (other_pool), and the exit code is 12: to select
the pool of the data, specify the data file itself, or --id. When interrupted, salvage removes NEW; after a crash NEW is not a
pool, and the same command starts over.

If the beginning of the data is lost (a new partition table, a new file system), the copy of the superblock at its end is used,
or the log identifies the pool, and the map is used as well; the report says so.

Unreadable data is omitted (it reads as zeroes) and listed, with the affected files of shares. So is data that is missing
according to the map; without the map, all files of a damaged share with ranges of zeroes are listed. Data of volumes without a
descriptor becomes volumes named lost-N. Only data that was discarded or rolled back long ago is uncertain: if the log has lost
that entry, but not the data, the data reappears; uncertain_bytes is the upper bound.

JSON fields: into, extents, batches, has_catalogue (names, sizes and properties are those of the last moment),
log_damaged_bytes, unreadable_bytes, uncertain_bytes, lossy, completeness (complete, up-to-batch, in-doubt,
incomplete, damaged or unknown), complete_up_to (the last batch up to which all is there, or null), missing_bytes (of the log),
by_map (the map identified the missing blocks), other_pool (the map is another pool's than the data), seconds, notes (texts), volumes: list of {name, size_bytes, copied_bytes, damaged_bytes,
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
