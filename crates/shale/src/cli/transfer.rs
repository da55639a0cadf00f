//! Commands that copy data in and out.

use std::path::{Path, PathBuf};

use clap::Args;

use super::Access;
use operations::names;

/// See [`super::Command::Import`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale import /srv/pool vm disk.img
  shale import /srv/pool vm disk.img --overwrite -o compression=zstd-9
  zcat disk.img.gz | shale import /srv/pool vm -
  shale import /srv/pool usb /dev/sdb
  shale import /srv/pool home /home/meier
  shale import /srv/pool home old.tar --share
  zcat home.tar.gz | shale import /srv/pool home - --overwrite

The volume is created with the exact size of the file (--size is rounded up to 4 KiB). A file or a stream without a byte is
refused, with --overwrite as well. Holes of the file and blocks of zeroes take no space. An image in another format (qcow2, VMDK, VHDX, VDI) is refused, because a volume holds
the disk itself: convert it first,
  qemu-img convert -O raw disk.qcow2 disk.img
or import it unconverted with --as-is. If the pool's compression is auto and a file-type rule names a codec for the file
(rule.TYPE, see `shale set --help`), the volume is created with that codec, if units from all over the file agree. Everything is
durable when the command returns. If it fails, the volume that it created is removed.

From before the first byte until everything is durable the volume is marked by its property incomplete=yes. So the remains of a
kill -9, a power failure, or a failure during --overwrite do not look complete: list and status show the mark, serve, snapshot,
send and export warn of it. Import again with --overwrite, or destroy the volume; or remove the mark, to keep it unchanged:
  shale set /srv/pool vm incomplete=no

Trees: a directory is imported into a share, which is created if it does not exist, and so is a tar archive into an existing
share, or with --share. Owners are copied by number, with modes, times to the nanosecond, extended attributes, ACLs, hard links,
links, devices, fifos, sockets and holes. Archives may be made by GNU tar, bsdtar or any program that writes POSIX format; unpack a
compressed one: zcat FILE | shale import POOL SHARE - Existing names are kept and reported, with exit code 8; --overwrite
replaces them, file by file. Unreadable items are reported and skipped, or zeroes in the copy of a file, with exit code 7. The
name .shale in the root is skipped in the same way: a share has its snapshots there. If the pool is served, its server creates
the new share and mounts it when the import has ended; a share that exists must be mounted. A share takes one import at a time
(exit code 4). One that is marked as incomplete stays so without --overwrite.

JSON of a tree: {share, source, files, directories, symlinks, links, others, copied_bytes, hole_bytes, kept, kept_first,
  problems, problem_lines, zeroed_bytes, zeroed (as of an export), stored_bytes (of the share, with its names),
  data_bytes (of the share: files in whole blocks of 4 KiB, and its names), ratio (of data_bytes to stored_bytes, as in list),
  added_bytes (of a share that was there: so much more is stored), added_ratio (of the data that it has more to added_bytes;
  left out with --overwrite), seconds, bytes_per_second}.
JSON: {volume, source, size_bytes, copied_bytes, hole_bytes, allocated_bytes (the volume's own), with_snapshots (whether
  the next two include data that only its snapshots hold), stored_bytes, ratio, seconds,
  bytes_per_second}; those four may be missing, if they are unknown.")]
pub struct ImportArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Name of the volume or share
    #[arg(value_parser = names::volume_name)]
    pub volume: String,
    /// File or block device to read, or - for stdin; for a share, a directory or a tar archive
    pub file: PathBuf,
    /// Import a tar archive into a share, which is created if it does not exist
    #[arg(long)]
    pub share: bool,
    /// Size of the new volume, at least that of the data [default: the size of the data]
    #[arg(long, value_name = "SIZE", value_parser = names::size, conflicts_with = "overwrite")]
    pub size: Option<u64>,
    /// Property of the new volume, instead of the pool's; may be repeated
    #[arg(short = 'o', value_name = "KEY=VALUE", value_parser = names::key_value)]
    pub properties: Vec<(String, String)>,
    /// Overwrite the existing volume; its content after the end of the data becomes zeroes. In a
    /// share: replace files of the same names
    #[arg(long)]
    pub overwrite: bool,
    /// Import a disk image in another format (qcow2, VMDK, VHDX, VDI) unconverted
    #[arg(long)]
    pub as_is: bool,
    /// Refused, with the reason: the bytes go through this command
    #[arg(long, hide = true)]
    pub background: bool,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}

/// See [`super::Command::Export`].
#[derive(Debug, Args)]
#[command(
    override_usage = "shale export [OPTIONS] <POOL> <VOLUME> [PATH] <FILE>",
    after_long_help = "\
Examples:
  shale export /srv/pool vm disk.img
  shale export /srv/pool home /srv/copy-of-home
  shale export /srv/pool home@monday thesis thesis.tar
  shale export /srv/pool home - | zstd > home.tar.zst
  shale export /srv/pool vm - | gzip > disk.img.gz
  shale export /srv/pool vm /dev/sdb --force

A file is written sparse: holes of the volume are holes of the file. To stdout they are written as zeroes. Until the export is
complete the file is shorter than the volume; if it fails, a new file is removed, and an existing one stays incomplete. The file
of another volume, in a mount of shale serve, is overwritten and keeps its size, like a block device. A volume that is written
during the export is copied while it changes.

A share, or PATH in it, is exported to a directory, which is created if it does not exist, or as a tar archive (POSIX format, as
GNU tar and bsdtar read it): to stdout, to a FILE that ends in .tar, or with --tar. Existing names in the directory are kept and
reported, with exit code 8; --force replaces them, file by file. Items that are unreadable, or impossible in an archive
(sockets), are reported and skipped, with exit code 7, also on stdout; the export continues after them. Unreadable blocks of a
file are zeroes in the copy, and reported by offset and length. If the pool is served, its server must mount the share.

JSON of a share: {share, target, files, directories, symlinks, links, others, copied_bytes, hole_bytes, kept, kept_first,
  problems, problem_lines, zeroed_bytes (which could not be read, and are zeroes in the copy), zeroed (where, a list of
  {path, offset, length}; the first hundred thousand), seconds, bytes_per_second}.
JSON (not when writing to stdout): {volume, target, size_bytes, copied_bytes, hole_bytes, seconds,
  bytes_per_second}."
)]
pub struct ExportArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Name of the volume or share, or VOLUME@SNAPSHOT
    #[arg(value_parser = names::any_name)]
    pub volume: String,
    /// File or block device to write, or - for stdout; of a share, a directory or a tar archive,
    /// and before it the path to export
    #[arg(required = true, num_args = 1..=2, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Write a tar archive, regardless of the name of FILE
    #[arg(long)]
    pub tar: bool,
    /// Overwrite an existing file or block device
    #[arg(long)]
    pub force: bool,
    /// Refused, with the reason: the bytes go through this command
    #[arg(long, hide = true)]
    pub background: bool,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}

impl ExportArgs {
    /// Returns the target of the export.
    pub fn target(&self) -> &Path {
        self.files.last().map_or(Path::new("-"), PathBuf::as_path)
    }

    /// Returns the selected part of a share, unless it is the whole.
    pub fn path(&self) -> Option<&Path> {
        self.files.first().filter(|_| self.files.len() > 1).map(PathBuf::as_path)
    }
}

/// See [`super::Command::Estimate`].
#[derive(Debug, Args)]
#[command(
    override_usage = "shale estimate [OPTIONS] <PATH>...\n       shale estimate [OPTIONS] <POOL> <VOLUME>\n       shale estimate [OPTIONS] <POOL> <SHARE> [PATH]",
    after_long_help = "\
Examples:
  shale estimate /home
  shale estimate disk.img -o mode=archive -o unit=128K
  shale estimate /dev/sdb --codecs lz4,gzip-6,zstd-3
  shale estimate /srv/pool vm --json
  shale estimate /srv/pool vm@monday
  shale estimate /srv/pool home meier -o mode=archive

Nothing is changed. Files, directories, disk images and block devices are read in place. For a volume, a share or a snapshot,
the pool reads samples itself, as a job: in the server if there is one, which gives way to its clients. A few windows of one
unit each are drawn at random, in proportion to the amounts of data, and compressed as a pool would compress them, with the
given settings (-o, and those of the pool and the volume), in each mode of auto, and with some codecs. Without --sample, data in
a pool is read in rounds of 4, 32 and 128 MiB, until each margin from sampling is below a point. Slow codecs are tried on every
eighth sample and compared with zstd-1 there. The margin is a confidence interval of 95 %: combined ratio estimate of stratified
sampling, variance from successive differences, double sampling for slow settings. Blocks of zeroes are holes and not counted;
nor are files in directories that a share would keep in the records of their inodes, without a block, which are reported in a
separate line. Types of files are those that 'shale usage' would show for a share with these properties ('other' stands for its
'-', and for the rarest). Units of up to 16K are estimated with the dictionaries that a volume would train for them. More
samples make the margin smaller: four times as many halve it.

JSON: {object, path, assumed, job (null outside of a pool), state, error, at_unix_s, files, size_bytes, data_bytes, hole_bytes, small_files, small_bytes (those in records of inodes), unit_bytes, sampled_bytes, unreadable_samples, confidence,
  cpu_watts, energy_source (rapl: counted by the processor; cpu-time: CPU time at a nominal power), cpus and device_bytes_per_s
  (what the pool knows of its machine; else null), settings,
  types: [{type, files, size_bytes, data_bytes, samples, settings}]}, settings being a list of {setting, configured,
  saving_percent, margin_percent, ratio, stored_bytes, cpu_seconds, mb_per_second, joules (speed and time of one core), write_mb_per_second,
  write_bound (disk or cpu: which of them is slower), read_factor (speed of reads over that with the configured setting),
  rewrite_seconds (of all data, without other load)}; the last four are a model of processors and device, or null."
)]
pub struct EstimateArgs {
    /// Files, directories, images or block devices; or a pool and one of its volumes or snapshots
    #[arg(required = true, value_name = "PATH")]
    pub targets: Vec<PathBuf>,
    /// Property to assume; may be repeated
    #[arg(short = 'o', value_name = "KEY=VALUE", value_parser = names::key_value)]
    pub properties: Vec<(String, String)>,
    /// Codecs to compare: a list, all or none
    #[arg(long, value_name = "LIST", default_value = estimate::CODECS_DEFAULT)]
    pub codecs: String,
    /// Amount of data to read and try [default: 128M, but at most 8192 units]
    #[arg(long, value_name = "SIZE", value_parser = names::size)]
    pub sample: Option<u64>,
    /// Draw other samples
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub seed: u64,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}
