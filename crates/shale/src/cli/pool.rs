//! Commands on a whole pool.

use std::path::PathBuf;

use clap::Args;

use super::{Access, Pacing};
use operations::names;

/// See [`super::Command::Init`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale init /srv/pool                              data in /srv/pool/data, 80 % of the free space
  shale init /srv/pool --capacity 20G
  shale init /srv/pool --data /dev/nvme0n1p4        a whole partition
  shale init /srv/pool --data /big/log --capacity 2T -o compression=zstd-3

The directory must be empty or missing. It holds the map of the pool (up to 2 % of the data), and may lie on a faster disk than
the data. The data file is sparse: it grows as data is written.

JSON fields: pool, data, capacity_bytes, extent_bytes.")]
pub struct InitArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// File or block device for the data [default: POOL/data]
    #[arg(long, value_name = "FILE_OR_BLOCK_DEVICE")]
    pub data: Option<PathBuf>,
    /// Maximum bytes of data [default: the block device's size, or 80 % of the free space]
    #[arg(long, value_name = "SIZE", value_parser = names::size)]
    pub capacity: Option<u64>,
    /// Size of an extent, the unit of space allocation: a power of two from 32K to 16M
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = names::small_size)]
    pub extent: u32,
    /// Property of the pool, inherited by its volumes; may be repeated
    #[arg(short = 'o', value_name = "KEY=VALUE", value_parser = names::key_value)]
    pub properties: Vec<(String, String)>,
    /// Overwrite an existing pool or existing data
    #[arg(long)]
    pub force: bool,
}

/// See [`super::Command::Status`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale status /srv/pool
  shale status /srv/pool --sync --json | jq .ratio
  shale status /srv/pool --acknowledge      known damage and losses of repairs are acknowledged

It begins with the health of the pool: ok, scrubbing, nearly full (80 % and more), incomplete, full, recovered with loss, an
image gone from its store (with its unfetched parts), a share that cannot be served, damaged, or failed; all conditions are
listed, the worst first. Damage is listed until it is repaired (overwritten, discarded, destroyed, restored), or acknowledged
with --acknowledge. A ~ marks estimated figures: they are exact again after the next checkpoint, or with --sync.

JSON fields (bytes, counts, or as named; counters begin when the pool is opened):
  health                                   ok, scrubbing, nearly-full, incomplete, full, recovered-with-loss, image-gone, image-damaged,
                                           share-unserved, damaged or failed: the worst
  used_percent, available_bytes            stored data in percent of the space; space for new data, as stored, if all dead data is cleaned
  returning_bytes                          discarded or destroyed since the last checkpoint: the next one makes it available, after 10 idle seconds
  reserved_bytes, kept_bytes               kept for volumes with a reservation, and not used yet; kept for cleaning
  reserved_for                             these volumes: list of {volume, bytes}
  full_level                               80, 90 or 95: the highest of these that used_percent has reached; else 0
  full                                     whether new data was refused last, or would be
  at_quota                                 objects that refused data because of their quota: list of {name, kind, stored_bytes, quota_bytes}
  short_below                              whether the file system below has less space than the pool's capacity: then grow does not help
  refused_writes                           writes that found no space, each attempt of waiting ones
  exact                                    whether allocated, stored and dead bytes are exact, or estimated
  scrub                                    the last one: {started_unix_s, finished_unix_s (0: not yet), running, bytes_done, bytes_total,
                                           found}
  damages_unlisted, damages_acknowledged   damages beyond the list in damages; those that were acknowledged
  pool, data, id                           directory, data file or device, identifier
  served, pid, nbd, mount, uptime_s        its server, and the server's addresses
  shares                                   the directory of its mounted shares, or null
  unserved_shares                          those that could not be mounted there: list of {share, why}
  nbd_connections, nbd_connections_max     NBD connections now; their maximum (serve --connections)
  capacity_bytes, extent_bytes, extents_free, extents_total
  volumes, logical_bytes                   number and summed sizes of the volumes
  bookmarks, holds, held_snapshots         number of bookmarks; of tags; of snapshots that these hold
  allocated_bytes, stored_bytes            logical bytes that hold data; their live bytes
  unlisted_allocated_bytes, unlisted_bytes  the part of these two in cached images, and in destroyed volumes, for clones or not yet reclaimed
  reaping                                  destroyed objects whose space is not yet reclaimed
  dictionaries, dictionary_bytes           trained dictionaries of volumes, and their part of stored_bytes
  dead_bytes, free_bytes, map_bytes        not yet reclaimed; free, in the pool and below it; used by the map
  jobs                                     jobs under way, as 'shale jobs --json' lists them
  cleaned_extents, moved_bytes             emptied by the cleaner; bytes moved for that and by clean --sort
  rewritten_bytes                          rewritten by recompress and clean --sort
  cleaning_ms, cleaning_bytes_per_s        duration of cleaning; extents' bytes emptied per second of it, or null
  cold_before_bytes, cold_after_bytes      data recompressed by the cleaner because of cold-mode: bytes before and after
  catalogue_bytes, catalogue_extents       size of the catalogue in the log, from which salvage takes names and sizes (0: no space
                                           for one); extents that are kept for it alone
  copies_read, repaired_fragments          fragments read from another copy (property copies) because they are damaged; those
                                           that were replaced by it
  damages                                  damage found by reads, scrub, check or the cleaner, and not repaired or acknowledged
                                           since: list of texts
  receives                                 snapshots that are being received, or whose streams were interrupted: list of
                                           {volume, snapshot, is_new, received_bytes, expected_bytes, token}
  images                                   blobs that volumes began as: list of {image, version, volumes, size_bytes, local_bytes, stored_bytes,
                                           fetched_groups, fetched_bytes, failures, last_error (null: the last attempt succeeded), waiting,
                                           gone, damaged (wholly or partly, in its store), lacks_room (the pool is too full for
                                           hydrate), complete (hydrate has fetched everything that the volumes need)}
  losses                                   unacknowledged losses of repairs: list of {unix_s, text}
  incomplete                               names of volumes and snapshots whose import did not complete
  ratio, saving_percent                    allocated/stored; 100*(1 - stored/allocated); null when empty
  written_bytes, fragment_bytes            written by clients; the same compressed
  log_bytes, disk_written_bytes            written to the data file; to the data file and the map
  write_amplification                      (disk_written_bytes - rewritten_bytes) / fragment_bytes; null: no
                                           data was written, or more was rewritten than written
  read_bytes, read_disk_bytes              read by clients; read from the data file
  read_ahead_bytes, read_ahead_used_bytes  read ahead, decoded; read by clients since
  checkpoints, light_checkpoints           checkpoints taken in full; those that only free space
  flushes, syncs
  recovered_batches, recovered_bytes       replayed by the last open
  recovery_ms                              duration of the replay
  standby, standby_bytes                   file in which acknowledged writes survive the server's death, or null; its size
  replayed_writes, replayed_bytes          replayed from there to the log by the last open
  standby_notes                            standby memory that was found and not used, why there is none: list of texts
  names_at_risk                            whether the server's death would lose names in shares that were not synced
  memory_budget_bytes, memory_resident_bytes
  failed                                   null, or why writes are refused")]
pub struct StatusArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Take a checkpoint first, so that the figures include everything written
    #[arg(long)]
    pub sync: bool,
    /// Acknowledge known damage and the losses of repairs: they raise no alarm any more
    #[arg(long)]
    pub acknowledge: bool,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}

/// See [`super::Command::Df`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale df /srv/pool
  shale df /srv/pool --json | jq .available_bytes

SIZE is the pool's capacity, USED the stored data, AVAIL the space for new data as stored, DATA the size before compression.
`shale list` shows volumes, `shale status` everything.

JSON fields: pool, size_bytes, used_bytes, available_bytes, used_percent, data_bytes, ratio.")]
pub struct DfArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}

/// See [`super::Command::Grow`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale grow /srv/pool 200G

Works while the pool is served, and on a full pool: writers that wait for space continue. A data file is extended (it stays
sparse); a block device must have been enlarged before.

JSON fields: capacity_bytes.")]
pub struct GrowArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// New capacity
    #[arg(value_name = "SIZE", value_parser = names::size)]
    pub size: u64,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}

/// See [`super::Command::Shrink`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale shrink /srv/pool 100G

Works while the pool is served. Data beyond the new end is moved before it; then a data file is truncated, and the rest of a
block device is no longer used. It is refused unless the pool's data and reservations certainly fit. It can be interrupted at
any time, and repeated after that or after a crash: moved data stays in its new place.

JSON fields: capacity_bytes, bytes_moved, seconds.")]
pub struct ShrinkArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// New capacity
    #[arg(value_name = "SIZE", value_parser = names::size)]
    pub size: u64,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}

/// See [`super::Command::Check`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale check /srv/pool
  shale check /srv/pool --repair
  shale check /srv/pool --repair --accept-loss
  shale check /srv/pool --json | jq '.problems[].kind'

Reads every record of the map and every fragment of data, and verifies every checksum. The pool must not be
served. With --repair, usage is recounted, and damaged descriptors and map records are restored from the log, before the pool is
opened; where that is impossible, it advises `shale salvage`. Exit code 6 if any problem is left.

If the log is damaged where data was, or may have been, flushed, --repair lists the volumes and snapshots that would be
reverted, how far, and the data that `shale salvage` would keep instead. Nothing is dropped before you confirm it, on a terminal
or with --accept-loss. Then the exit code is 12, and `shale status` reports it until `shale status --acknowledge`. A batch with
damage only in payloads does not revert anything: it is applied, and reading the damaged data fails.

JSON fields: clean, records, fragments, fragment_bytes, seconds, problems_total, problems_left (not repaired),
  volumes (number of problems of each affected volume and snapshot), kinds (number of problems of each kind), problems (the first 1000):
  list of {kind, volume, offset, length, detail, repaired}; kind is superblock, record, fragment, header, usage, overlap, object,
  history, catalogue, checkpoint, costs, map-store, log, data, lost or tree (of a share; damaged files in one
  are given by path); volume, offset and length (bytes) may be null. Repairs
  made before the pool was opened are reported on stderr, too, as soon as they are done. log_end (text, or null after an orderly end: the
  state of the end of the log; whether a torn batch was flushed is unknown), notes (texts: corrections made by opening the pool
  that are not problems, such as of a damaged copy of the superblock near the end), loss (null, or the dropped data, or in an error
  the data that would be dropped: {what, first_batch, flushed_before, batches, batches_whole, batches_unknown,
  volumes: list of {name, batches, written_bytes, discarded_bytes, cut_off_bytes, changes}})")]
pub struct CheckArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Repair as far as possible
    #[arg(long)]
    pub repair: bool,
    /// With --repair: drop data that is damaged or cut off, even if this reverts flushed data
    #[arg(long, requires = "repair")]
    pub accept_loss: bool,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}

/// See [`super::Command::Clean`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale clean /srv/pool
  shale clean /srv/pool --all --json | jq .extents_free
  shale clean /srv/pool --sort              so that volumes read in order as when new
  shale clean /srv/pool --sort --rate 50M
  shale clean /srv/pool --sort --background      as a job of the server
  shale clean /srv/pool --sort --report     how far the last sorting came

The pool cleans itself, as late as possible, because that is cheapest. This command cleans now: it empties extents of which more
than a twentieth is dead, until the share of the pool in the property clean-high is free, or with --all until none of the
extents from its beginning is left: it also ends under load, and leaves data that was written meanwhile. It can be interrupted
at any time. The pool may be served.

With --sort, data scattered by random overwriting is first rewritten, in order and in whole units, compressed according to its
volume's current properties, or as before if that takes less space; data that is already in order, and data shared with
snapshots and clones, is not rewritten. It leaves nine tenths of the time to other users of the pool, unless --rate is given,
and continues where it stopped when it is started again, even after a restart; --restart starts over. A pool is sorted by one
job at a time: another one is refused (exit code 4).

Ctrl-C cancels the job, and so does any other end of this command. With --background the job continues in the server: see 'shale
jobs'.

JSON fields: extents_cleaned, bytes_moved, extents_free, extents_free_before, extents_todo (left with more than a
twentieth dead: what lives there would take as much space elsewhere), seconds, sort: null, or
  {finished, started_unix_s, bytes_done, bytes_total (of data gone through), rewritten_bytes,
  damaged_groups (of 128 KiB, left as they are: see shale scrub), foreground_bytes}")]
pub struct CleanArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Continue until no more space can be gained
    #[arg(long)]
    pub all: bool,
    /// First rewrite data that overwriting has scattered, in order
    #[arg(long)]
    pub sort: bool,
    /// Maximum bytes of volumes per second, or 'max' [default: a tenth of the time while others use
    /// the pool]
    #[arg(long, requires = "sort", value_name = "SIZE|max", value_parser = names::rate)]
    pub rate: Option<u64>,
    /// Restart sorting
    #[arg(long, requires = "sort")]
    pub restart: bool,
    /// Only report the progress of the last sorting
    #[arg(long, requires = "sort", conflicts_with_all = ["restart", "rate", "all"])]
    pub report: bool,
    /// Leave the job to the server, and end at once
    #[arg(long, conflicts_with = "report")]
    pub background: bool,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}

/// See [`super::Command::Scrub`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale scrub /srv/pool                     leaves most of the time to others at work
  shale scrub /srv/pool --rate 50M          at most 50 MiB a second
  shale scrub /srv/pool --rate max
  shale scrub /srv/pool --background        as a job of the server
  shale scrub /srv/pool --report            how far the last one came, and what it found
  shale scrub /srv/pool --json | jq '.damages[].volume'

Reads all data that lives in the pool and verifies every checksum, while the pool is in use. It can be interrupted at any time,
and continues where it stopped when it is started again, even after a restart; --restart starts over. Exit code 6 if anything is
damaged that was not acknowledged (shale status --acknowledge).

Ctrl-C cancels the job, and so does any other end of this command. With --background the job continues in the server: see 'shale
jobs'. A pool is scrubbed by one job at a time: another one is refused (exit code 4).

Damage is reported for the volume if its current state is affected, otherwise for the newest affected snapshot or clone; others
follow.

JSON fields: finished, started_unix_s, extents_done, extents_total, extent_bytes, bytes_done, bytes_total (of data, as stored), fragments, bytes,
  foreground_bytes (read and written by users of the pool since it was opened), found, repaired (from another copy), unacknowledged (damages that were not acknowledged with
  shale status --acknowledge), seconds, damages (found now, or before and not repaired since): list of {kind, volume, offset, length, detail, repaired}; kind is fragment, or header,
  which concerns no volume; volume may be VOLUME@SNAPSHOT")]
pub struct ScrubArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Pace and starting point
    #[command(flatten)]
    pub pacing: Pacing,
    /// Leave the job to the server, and end at once
    #[arg(long, conflicts_with = "report")]
    pub background: bool,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}
