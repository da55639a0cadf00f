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

The directory must be empty or absent. It holds the map of the pool (up to 2 % of the data), so it may well
lie on a faster disk than the data. The data file is sparse: it grows as data is written.

JSON fields: pool, data, capacity_bytes, extent_bytes.")]
pub struct InitArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// File or block device for the data [default: POOL/data]
    #[arg(long, value_name = "FILE_OR_BLOCK_DEVICE")]
    pub data: Option<PathBuf>,
    /// Bytes of data that the pool may hold [default: the block device's size, or 80 % of the free
    /// space]
    #[arg(long, value_name = "SIZE", value_parser = names::size)]
    pub capacity: Option<u64>,
    /// Extent, the piece in which space is allocated: a power of two from 32K to 16M
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = names::small_size)]
    pub extent: u32,
    /// Property of the pool, inherited by its volumes; may be repeated
    #[arg(short = 'o', value_name = "KEY=VALUE", value_parser = names::key_value)]
    pub properties: Vec<(String, String)>,
    /// Overwrite the pool or the data that is there
    #[arg(long)]
    pub force: bool,
}

/// See [`super::Command::Status`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale status /srv/pool
  shale status /srv/pool --sync --json | jq .ratio
  shale status /srv/pool --acknowledge      what is damaged, or repairs have lost, is known now

It begins with how the pool fares: ok, scrubbing, nearly full (80 % and more), incomplete, full, recovered with
loss, an image gone from its store (with what is not here of it), a share that cannot be served, damaged, or failed; of several all, the worst first. What is damaged is named until it is mended (overwritten, discarded, destroyed, restored), or
acknowledged with --acknowledge. A ~ stands before what is estimated: exact again with the next checkpoint, or --sync.

JSON fields (bytes, counts, or as named; counters begin when the pool is opened):
  health                                   ok, scrubbing, nearly-full, incomplete, full, recovered-with-loss, image-gone, image-damaged,
                                           share-unserved, damaged or failed: the worst
  used_percent, available_bytes            what is stored, of what could be; what new data can take, as stored, if all that is dead is cleaned
  returning_bytes                          discarded or destroyed since the last checkpoint: the next one makes it available, after 10 s at rest
  reserved_bytes, kept_bytes               kept for volumes with a reservation, and not used yet; kept for cleaning
  reserved_for                             of which volumes that is: list of {volume, bytes}
  full_level                               80, 90 or 95: the highest of these that used_percent has come to; else 0
  full                                     whether new data was refused last, or would be
  at_quota                                 what has refused data because of its quota: list of {name, kind, stored_bytes, quota_bytes}
  short_below                              whether the file system below has less room than the pool's capacity: grow does not help then
  refused_writes                           writes that found no room, each try of those that were held
  exact                                    whether allocated, stored and dead bytes are exact, or estimated
  scrub                                    the last one: {started_unix_s, finished_unix_s (0: it has not), running, bytes_done, bytes_total,
                                           found}
  damages_unlisted, damages_acknowledged   damages beyond the list in damages; those that were acknowledged
  pool, data, id                           directory, data file or device, identifier
  served, pid, nbd, mount, uptime_s        by whom and where it is served
  shares                                   the directory of its mounted shares, or null
  unserved_shares                          those that could not be mounted there: list of {share, why}
  handover                                 replies of the mounts that were handed over on their callers' CPU (serve --handover): {handoffs,
                                           takeovers (another thread began to take requests, because some waited), given_up_queued,
                                           given_up_late, given_up_stuck, given_up_elsewhere}
  nbd_connections, nbd_connections_max     NBD connections now; most at once (serve --connections)
  capacity_bytes, extent_bytes, extents_free, extents_total
  volumes, logical_bytes                   number and summed sizes of the volumes
  bookmarks, holds, held_snapshots         how many bookmarks; how many tags hold how many snapshots
  allocated_bytes, stored_bytes            logical bytes that hold data; live bytes that they take
  unlisted_allocated_bytes, unlisted_bytes  of these two, what is here of images, and what destroyed volumes hold for clones, or until it has come back
  reaping                                  things destroyed whose space is still coming back
  dictionaries, dictionary_bytes           trained dictionaries of volumes, and what they take of stored_bytes
  dead_bytes, free_bytes, map_bytes        not yet reclaimed; free, in the pool and below it; taken by the map
  jobs                                     those under way, as 'shale jobs --json' lists them
  cleaned_extents, moved_bytes             emptied by the cleaner; bytes moved for that and by clean --sort
  rewritten_bytes                          written anew by recompress and clean --sort
  cleaning_ms, cleaning_bytes_per_s        time that took; extents' bytes emptied per second of it, or null
  cold_before_bytes, cold_after_bytes      what the cleaner compressed anew as cold-mode says: bytes before and after
  catalogue_bytes, catalogue_extents       size of the catalogue in the log, from which salvage would know names and sizes (0: no room
                                           for one); extents that are kept for it alone
  damages                                  what reads, scrub, check or the cleaner found damaged, and what has not been mended or
                                           acknowledged since: list of texts
  receives                                 snapshots that streams are bringing, or were until they broke off: list of
                                           {volume, snapshot, is_new, received_bytes, expected_bytes, token}
  images                                   blobs that volumes began as: list of {image, version, volumes, size_bytes, local_bytes, stored_bytes,
                                           fetched_groups, fetched_bytes, failures, last_error (null: the last try did not fail), waiting,
                                           gone, damaged (it, or a part of it, is so in its store), lacks_room (the pool is too full for
                                           hydrate), complete (hydrate found all here that the volumes need)}
  losses                                   what repairs have lost and nobody has acknowledged: list of {unix_s, text}
  incomplete                               volumes and snapshots that have not got all of the data that an import was to bring: names
  ratio, saving_percent                    allocated/stored; 100*(1 - stored/allocated); null when empty
  written_bytes, fragment_bytes            written by clients; what that was compressed to
  log_bytes, disk_written_bytes            written to the data file; to the data file and the map
  write_amplification                      (disk_written_bytes - rewritten_bytes) / fragment_bytes; null: no
                                           data was written, or more was rewritten than written
  read_bytes, read_disk_bytes              read by clients; read from the data file
  checkpoints, light_checkpoints           checkpoints taken in full; those that only free space
  flushes, syncs
  recovered_batches, recovered_bytes       what the last open had to replay
  recovery_ms                              how long that took
  standby, standby_bytes                   where acknowledged writes survive the server's death, or null; size of that file
  replayed_writes, replayed_bytes          what the last open brought from there to the log
  standby_notes                            what was found there and not used, why there is no such file: list of texts
  names_at_risk                            whether the server's death would lose names in shares that were not synced
  memory_budget_bytes, memory_resident_bytes
  failed                                   null, or why writes are refused")]
pub struct StatusArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Take a checkpoint first, so that the figures include everything written
    #[arg(long)]
    pub sync: bool,
    /// Take note of what is damaged, and of what repairs have lost: it raises no alarm any more
    #[arg(long)]
    pub acknowledge: bool,
    /// How the pool is reached
    #[command(flatten)]
    pub access: Access,
}

/// See [`super::Command::Df`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale df /srv/pool
  shale df /srv/pool --json | jq .available_bytes

SIZE is the pool's capacity, USED what is stored, AVAIL what new data can take as stored, DATA what was stored before compression.
`shale list` shows volumes, `shale status` everything.

JSON fields: pool, size_bytes, used_bytes, available_bytes, used_percent, data_bytes, ratio.")]
pub struct DfArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// How the pool is reached
    #[command(flatten)]
    pub access: Access,
}

/// See [`super::Command::Grow`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale grow /srv/pool 200G

Works while the pool is served, and on a full one: writers that wait for space go on. A data file becomes longer (it stays
sparse); a block device must have been made larger before.

JSON fields: capacity_bytes.")]
pub struct GrowArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// New capacity
    #[arg(value_name = "SIZE", value_parser = names::size)]
    pub size: u64,
    /// How the pool is reached
    #[command(flatten)]
    pub access: Access,
}

/// See [`super::Command::Shrink`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale shrink /srv/pool 100G

Works while the pool is served. What lies beyond the new end is moved before it; then a data file becomes shorter, and of a block
device the rest is not used any more. It is refused if what the pool holds, and what is reserved, does not fit for certain. It
can be interrupted at any time, and after that, or a crash, done again: what has been moved stays where it is.

JSON fields: capacity_bytes, bytes_moved, seconds.")]
pub struct ShrinkArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// New capacity
    #[arg(value_name = "SIZE", value_parser = names::size)]
    pub size: u64,
    /// How the pool is reached
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
served. With --repair, usage is counted anew, and damaged descriptors and map records come back from the log, before
the pool is opened; where that is not possible, it points to `shale salvage`. Exit code 6 if anything wrong is left.

If the log is damaged where something was, or may have been, flushed, --repair says which volumes and snapshots would go back,
how far, and what `shale salvage` would keep instead. Nothing is dropped before you say so, on a terminal or with --accept-loss. Then the
exit code is 12, and `shale status` tells of it until `shale status --acknowledge`. A batch of which only payloads are damaged is no reason to go
back: it counts, and what is damaged gives errors.

JSON fields: clean, records, fragments, fragment_bytes, seconds, problems_total, problems_left (not repaired),
  volumes (how many problems each volume and snapshot that is concerned has), kinds (how many problems of each kind there are), problems (the first 1000):
  list of {kind, volume, offset, length, detail, repaired}; kind is superblock, record, fragment, header, usage, overlap, object,
  history, catalogue, checkpoint, costs, map-store, log, data, lost or tree (of a share; what is damaged in one
  is named by its path); volume, offset and length (bytes) may be null. What has
  been mended before the pool was opened is said on stderr, too, as soon as it is done. log_end (text, or null after an orderly end: what can
  be said of the end of the log; of a torn batch it cannot be known whether it was flushed), notes (texts: what opening the pool has put
  right that is no problem, such as a damaged copy of the superblock near the end), loss (null, or what was dropped, or in an error
  what would be: {what, first_batch, flushed_before, batches, batches_whole, batches_unknown,
  volumes: list of {name, batches, written_bytes, discarded_bytes, cut_off_bytes, changes}})")]
pub struct CheckArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Mend what can be mended
    #[arg(long)]
    pub repair: bool,
    /// With --repair: drop what is damaged or cut off, although something that was flushed may go
    /// back with it
    #[arg(long, requires = "repair")]
    pub accept_loss: bool,
    /// How the pool is reached
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

The pool cleans itself, as late as it can, because that is cheapest. This does it now: it empties extents of which
more than a twentieth is dead, until as much of the pool is free as the property clean-high says, or with --all until none is left of what
was there when it began: under a load it ends as well, and leaves what was written meanwhile. It can be interrupted at any time.
The pool may be served.

With --sort, what random overwriting has scattered is first written anew, in order and in whole
units, compressed as its volume's properties have it now, or as it was if that takes less; what lies
in order already is left alone, and so is what snapshots and clones share. It leaves nine tenths of the time to others while they
are at work, unless --rate says otherwise, and goes on where it stopped when it is started again,
be it after a restart; --restart begins anew. A pool is sorted by one job at a time: another one is refused (exit code 4).

Ctrl-C cancels the job, and so does whatever else ends this command. With --background the server goes on with it: see 'shale jobs'.

JSON fields: extents_cleaned, bytes_moved, extents_free, extents_free_before, extents_todo (left with more than a
twentieth dead: what lives there would take as much space elsewhere), seconds, sort: null, or
  {finished, started_unix_s, bytes_done, bytes_total (of data gone through), rewritten_bytes,
  damaged_groups (of 128 KiB, left as they are: see shale scrub), foreground_bytes}")]
pub struct CleanArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Go on until there is nothing left to win
    #[arg(long)]
    pub all: bool,
    /// First write anew, in order, what overwriting has scattered
    #[arg(long)]
    pub sort: bool,
    /// Most bytes of volumes to go through in a second, or 'max' [default: a tenth of the time
    /// while others use the pool]
    #[arg(long, requires = "sort", value_name = "SIZE|max", value_parser = names::rate)]
    pub rate: Option<u64>,
    /// Begin sorting anew
    #[arg(long, requires = "sort")]
    pub restart: bool,
    /// Only tell how far the last sorting came
    #[arg(long, requires = "sort", conflicts_with_all = ["restart", "rate", "all"])]
    pub report: bool,
    /// Leave the job to the server, and end at once
    #[arg(long, conflicts_with = "report")]
    pub background: bool,
    /// How the pool is reached
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

Reads all data that lives in the pool and verifies every checksum, while the pool is used. It can be interrupted
at any time, and goes on where it stopped when it is started again, be it after a restart; --restart begins anew.
Exit code 6 if anything is damaged that was not acknowledged (shale status --acknowledge).

Ctrl-C cancels the job, and so does whatever else ends this command. With --background the server goes on with it: see 'shale jobs'.
A pool is scrubbed by one job at a time: another one is refused (exit code 4).

What is damaged is reported of the volume if it sees it as it is now, else of the newest of its snapshots or clones that does; others that do
are named behind it.

JSON fields: finished, started_unix_s, extents_done, extents_total, extent_bytes, bytes_done, bytes_total (of data, as stored), fragments, bytes,
  foreground_bytes (read and written by users of the pool since it was opened), found, unacknowledged (damages that shale status --acknowledge
  has not taken note of), seconds, damages (found now, or before and not mended since): list of {kind, volume, offset, length, detail, repaired}; kind is fragment, or header,
  which concerns no volume; volume may be VOLUME@SNAPSHOT")]
pub struct ScrubArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// How fast it goes, and from where
    #[command(flatten)]
    pub pacing: Pacing,
    /// Leave the job to the server, and end at once
    #[arg(long, conflicts_with = "report")]
    pub background: bool,
    /// How the pool is reached
    #[command(flatten)]
    pub access: Access,
}
