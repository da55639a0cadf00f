//! Commands on the choice of codecs.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{Access, Pacing};
use operations::names;

/// See [`super::Command::Explain`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale explain /srv/pool vm                   each region of 4 MiB: stored how, at what saving
  shale explain /srv/pool vm --region 1G       why that region has its codec
  shale explain /srv/pool home meier/notes.txt  how that file of a share is stored, and why
  shale explain /srv/pool vm --json | jq '.[] | select(.stored_bytes > .raw_bytes * 0.9) | .offset'

With --region, the unit at that offset (or the next one in the region) is compressed with every candidate, so the times are
those of this machine now.

With a path in a share (or in a snapshot of one, home@monday), the output has the file's setting (a rule by name or by its first
bytes, a value that was set for it, the properties), the result of the rules in force if that differs (because the file was made
before they were set), the amount of data that was stored under other settings, each part with its codec and the reason, and the
sizes of its first unit with other codecs, tried now. The path is relative to the share's root.
JSON: a list of {offset, raw_bytes, stored_bytes, codecs, remembered}; codecs is a list of {codec, units, raw_bytes,
  stored_bytes}, remembered {winner, class, saving_percent, units_since_test} or null. With --region one such object, and in it
  unit_offset, unit_bytes, bits_per_byte, class, compression, mode, chosen, why, cpus, device_bytes_per_s, cpu_watts, energy_source (rapl: counted
  by the processor at the last calibration; cpu-time: CPU time at a nominal power), dictionary (number, or null), dictionaries (to choose from), and
  trials, a list of {codec, stored_bytes, cpu_us, expected_saving_percent, expected_cpu_us, cost, energy_uj, verdict}. With a path {path,
  directory, size_bytes, raw_bytes, stored_bytes, compression (the file's setting, and its source), in_force (the result of the rules in force, or null if
  it is the same), file_type, remembered (of files of its type), absent_xattrs (which extended attributes files of its share do not
  have, and what that costs, or null),
  parts, a list of {offset, units, raw_bytes, stored_bytes, codec, why, earlier (stored under
  other settings than those in force)}, parts_left_out (after the first 256), trials (the first unit by other
  codecs, tried now; or null), {offset, raw_bytes, stored_bytes, others, a list of {codec, stored_bytes}}}.")]
pub struct ExplainArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Name of the volume or the share
    pub volume: String,
    /// Only this file of a share
    #[arg(conflicts_with = "region")]
    pub path: Option<String>,
    /// Only the region that contains this offset, in detail
    #[arg(long, value_name = "OFFSET", value_parser = names::size)]
    pub region: Option<u64>,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}

/// See [`super::Command::Usage`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale usage /srv/pool home                   what directories and types of file take
  shale usage /srv/pool home meier/mail        the same of one directory
  shale usage /srv/pool home --json | jq -r '.types[] | [.name, .ratio] | @tsv'

SIZE is the size that programs see, DATA the blocks (of 4 KiB) that hold data, STORED their space in the pool. Data shared with
snapshots, or with other files of the same content, counts in full. All files below the directory are read: a million files take
about a minute.
JSON: {total, entries, types}: total is {name, files, size_bytes, raw_bytes, stored_bytes, ratio}, and so is each item of the lists; entries are the
  directory's own entries, names of directories end with /; types are file types by extension or first bytes, '-' if unknown. The most
  stored bytes come first; after the first 1000 all others are one line.")]
pub struct UsageArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Name of the share, or of a snapshot of one
    pub share: String,
    /// Only this directory or file
    pub path: Option<String>,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}

/// Format of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TraceFormat {
    /// Comma-separated values, with a line of names
    Csv,
    /// A JSON document on each line
    Jsonl,
}

/// See [`super::Command::Trace`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale trace /srv/pool --limit 100000 > units.csv
  shale trace /srv/pool --format jsonl | jq -r 'select(.why == \"test-drift\") | .offset'
  shale trace /srv/pool vm --reads boot.json             until it is interrupted

Shows the units for which compression=auto chooses, from now on, until --limit or an interruption (Ctrl-C), which is no error.
The pool must be served: otherwise no client writes to it. At most 65536 records wait to be read; a gap in the numbers means
that some were lost. Each record is for one trace: while one runs, another one is refused (exit code 4).
Fields: number, unix_s, object, offset, raw_bytes, stored_bytes, codec, class (0 nearly constant to 7 looks random), why, cpu_ns (all
  attempts), test_ns (the part that tests cost), cpus (that compression can get), device_ns_per_kib (0: not known), pressed (writers wait), energy_uj (for
  cpu_ns), power (watts of a busy CPU), energy_source (rapl: counted by the processor at the last 'shale calibrate'; cpu-time: nominal).
Of a share that is mounted also: path, and file_offset (where the unit begins in the file). Paths are:
  SHARE/PATH      the file's path, as a scan of the share found it; renamed files keep it until the trace ends
  SHARE/#NUMBER   of a file that no scan has found yet: scans take a tenth of the time at most. `find MOUNT -inum NUMBER` finds it later, unless it was emptied
                  since it was made
  SHARE (names)   a page of the share's names and attributes
  SHARE (tables)  a block that leads to the rest of a file beyond its first MiB
  SHARE (not known)  the rest of a large file that no scan has found yet

With --reads FILE, the trace records the order in which groups of 128 KiB of a volume are first read: start it, then boot a
machine from the volume. FILE is written at the end, also after an interruption; `shale blob optimize URL --profile FILE` uses
it. File: {volume, group_bytes, groups (numbers, in the order of their first reads)}.")]
pub struct TraceArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Volume whose reads are traced
    #[arg(requires = "reads")]
    pub volume: Option<String>,
    /// Trace the order of the volume's first reads by group, and write it to this file
    #[arg(long, value_name = "FILE", requires = "volume", conflicts_with = "format")]
    pub reads: Option<PathBuf>,
    /// End after this many records
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// End when nothing has been written for this many seconds
    #[arg(long, value_name = "SECONDS")]
    pub idle: Option<u64>,
    /// Format of the records
    #[arg(long, value_enum, default_value_t = TraceFormat::Csv)]
    pub format: TraceFormat,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}

/// See [`super::Command::Calibrate`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale calibrate /srv/pool
  shale calibrate /srv/pool --json | jq '.speeds[] | select(.unit_bytes == 32768)'

Compresses generated data with every candidate of the pool and of its volumes, for some seconds on one CPU, and stores the CPU
times in the pool's statistics. A pool also learns them while it is in use; after a move to another machine this is quicker.
Where the processor counts its energy (RAPL, /sys/class/powercap, readable for root only) the power of a busy CPU is measured
too, and joules in 'explain' and 'trace' are based on it; elsewhere they are CPU time at a nominal power, and marked as such.
One job at a time measures: another one is refused (exit code 4). Ctrl-C cancels the job; with --background it continues in the
server: see 'shale jobs'.

JSON fields: energy_source (rapl, cpu-time), cpu_watts, cpu_seconds, speeds, a list of {codec, unit_bytes, ns_per_kib, mb_per_second, joules_per_gb}")]
pub struct CalibrateArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Leave the job to the server, and end at once
    #[arg(long)]
    pub background: bool,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}

/// See [`super::Command::Recompress`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale recompress /srv/pool vm                     as the volume's properties have it now
  shale recompress /srv/pool vm --mode archive      as if compression=auto mode=archive were set
  shale recompress /srv/pool vm --mode archive --rate 20M
  shale recompress /srv/pool home meier             a directory of a share, by the rules of now
  shale recompress /srv/pool vm --mode archive --background      as a job of the server
  shale recompress /srv/pool vm --report --json

Goes through all extents of the pool, and rewrites each fragment of the volume, and of its snapshots, that becomes at least 3 %
smaller; nothing ever becomes larger. Units that are larger than the property 'unit' are divided if they still become smaller;
small ones are joined by 'shale clean --sort'. It leaves nine tenths of the time to others while they use the pool. It can be
interrupted at any time, and continues where it stopped when it is started again for the same volume and mode, even after a
restart; --restart starts over. The old fragments are then dead: the cleaner frees their space. A pool recompresses one volume
at a time: another job is refused (exit code 4). --report waits for no job: it reports the progress at the end of the last
slice, of a few extents.

Ctrl-C cancels the job, and so does any other end of this command. With --background the job continues in the server: see 'shale
jobs'.

Files of a share are looked up again in the rules, by their current names; settings of single files and directories stay. With a
path, only files at or below it are rewritten. Without --mode, later writes to these files follow the same rules.

JSON fields: finished, started_unix_s, mode, extents_done, extents_total, extent_bytes, bytes_done, bytes_total (of the pool's data, as
  stored), fragments (looked at), rewritten, before_bytes,
  after_bytes (of those rewritten), damaged_fragments (left as they are: see shale scrub), foreground_bytes (read and written by users of
  the pool since it was opened), seconds")]
pub struct RecompressArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Name of the volume or the share
    pub volume: String,
    /// Only this directory or file of a share
    pub path: Option<String>,
    /// Choose codecs in this mode, regardless of the properties: performance, balanced, energy,
    /// archive
    #[arg(long)]
    pub mode: Option<String>,
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
