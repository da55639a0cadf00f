//! Commands that copy data in and out.

use std::path::PathBuf;

use clap::Args;

use super::Access;
use crate::names;

/// See [`super::Command::Import`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale import /srv/pool vm disk.img
  shale import /srv/pool vm disk.img --overwrite -o compression=zstd-9
  zcat disk.img.gz | shale import /srv/pool vm -
  shale import /srv/pool usb /dev/sdb

The volume is created with the size of the file, rounded up to 4 KiB. Holes of the file and blocks of zeroes
take no space. Everything is durable when the command returns. If it fails, the volume that it created is
removed again.

JSON: {volume, source, size_bytes, copied_bytes, hole_bytes, allocated_bytes, stored_bytes, ratio, seconds,
  bytes_per_second}.")]
pub struct ImportArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Name of the volume
    #[arg(value_parser = names::volume_name)]
    pub volume: String,
    /// File or block device to read, or - for stdin
    pub file: PathBuf,
    /// Size of the new volume, at least that of the data [default: the size of the data]
    #[arg(long, value_name = "SIZE", value_parser = names::size, conflicts_with = "overwrite")]
    pub size: Option<u64>,
    /// Property of the new volume, instead of the pool's; may be repeated
    #[arg(short = 'o', value_name = "KEY=VALUE", value_parser = names::key_value)]
    pub properties: Vec<(String, String)>,
    /// Overwrite the volume that is there; what it held behind the end of the data becomes zeroes
    #[arg(long)]
    pub overwrite: bool,
    /// How the pool is reached
    #[command(flatten)]
    pub access: Access,
}

/// See [`super::Command::Export`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale export /srv/pool vm disk.img
  shale export /srv/pool vm - | gzip > disk.img.gz
  shale export /srv/pool vm /dev/sdb --force

A file is written sparse: holes of the volume are holes of the file. To stdout they are written as zeroes.
A volume that is being written meanwhile is copied as it changes.

JSON (not when writing to stdout): {volume, target, size_bytes, copied_bytes, hole_bytes, seconds,
  bytes_per_second}.")]
pub struct ExportArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Name of the volume
    #[arg(value_parser = names::volume_name)]
    pub volume: String,
    /// File or block device to write, or - for stdout
    pub file: PathBuf,
    /// Overwrite the file or block device that is there
    #[arg(long)]
    pub force: bool,
    /// How the pool is reached
    #[command(flatten)]
    pub access: Access,
}
