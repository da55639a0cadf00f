//! The command on operations of clients.

use std::path::PathBuf;

use clap::Args;

/// See [`super::Command::Iostat`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale iostat /srv/pool                             since the server began
  shale iostat /srv/pool vm --every 5                the last 5 seconds, again and again
  shale iostat /srv/pool --every 1 --count 3
  shale iostat /srv/pool vm --histogram              how many operations took how long
  shale iostat /srv/pool --json | jq '.volumes[].doors[].door'

Shows each volume, share and snapshot that a client has opened since the server began, with a line for each door: nbd, mount
(files below --mount), share (below --shares), tree (what a share's tree reads and writes for its files and names) and command.
The first report counts from the beginning of the server; with --every each further one counts from the one before. It runs
until --count reports, or an interruption (Ctrl-C), which is not an error. The pool must be served. With --every a given volume
is followed through renames; the command ends with exit code 3 when the volume is destroyed.

Columns: operations per second, bytes per second, and the duration of operations: the mean, and the time that 99 of 100 stay
below, from the buckets of the histogram, each twice as long as the one before. The time covers the work on the volume, or the
whole request of a mounted share; not the wait for a turn in the NBD door. A sync of a file is a flush, too. A request that a
door divides counts once for each part, and a write that waits for space in a full pool (when-full) once for each attempt. On a
narrow terminal, the times are in a separate table. A histogram has a column for each kind of operation that occurred: READ,
WRITE, FLUSH, DISCARD, and of a mounted share LOOK (at names and attributes, and where holes are) and CHANGE (of names and
attributes). Another table has the data written, by codec: its bytes, its stored bytes, and the approximate CPU time. Repairs,
sorting and cleaning are not in the operations; 'clean --sort' is in the second table.

JSON: {version (1: fields may come, and none goes or changes), pool, only (the number of the volume that was named, or null), seconds (that the counts are of), bucket_ends_ns (of the histograms, in
  nanoseconds; the last bucket has no end), volumes: list of {volume, id, kind (volume, share or snapshot), doors: list of {door, operations: list of
  {operation (read, write, flush, discard; look and change: of names and attributes, and where holes are), count (failed ones too), bytes (of
  those that did not fail), ns (that they took, together), histogram (how many in each bucket; their sum is count)}}, codecs: list of {codec, units,
  raw_bytes, stored_bytes, cpu_ns (estimated from one unit in eight; null: none of them yet)}, cache_hits, cache_misses (units that reads found
  decoded in memory, or had to decode)}}; one document for each report.")]
pub struct IostatArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Only this volume, share or snapshot
    pub volume: Option<String>,
    /// Report again every this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub every: Option<u32>,
    /// End after this many reports
    #[arg(long, value_name = "N", requires = "every", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Show a histogram of durations
    #[arg(long)]
    pub histogram: bool,
}
