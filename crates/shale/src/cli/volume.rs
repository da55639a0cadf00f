//! Commands on volumes and properties.

use std::path::PathBuf;

use clap::Args;

use super::Access;
use operations::names;

/// See [`super::Command::Create`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale create /srv/pool vm --size 20G
  shale create /srv/pool archive --size 1.5TiB -o compression=zstd-9 -o unit=128K
  shale create /srv/pool home --share
  shale create /srv/pool mail --share -o compression=zstd-3 --quota 50G
  shale create /srv/pool home/meier --share --quota 50G
  shale create /srv/pool projects --folder -o compression=zstd-3 --quota 200G
  shale create /srv/pool projects/web/db1 --size 10G -p

A volume is thin: its size costs nothing until data is written. The size is rounded up to 4 KiB, which file systems need;
`import` and `resize` keep sizes exact. A share is a directory tree: shale serve --shares mounts it. It has no size, but may
have a quota.

A folder contains volumes, shares and other folders. Everything in it inherits its properties unless it sets its own; its quota
applies to everything in it together. Its name precedes theirs: projects/web/db1 lies in projects/web, which must exist, or is
created with -p. Such names are used everywhere: as NBD exports, below --mount and --shares, with @SNAPSHOT. A share contains
other shares in the same way: home/meier lies in home, and is mounted on the directory meier in it, which must be empty.

JSON fields: volume, size_bytes; of a share: share; of a folder: folder.")]
pub struct CreateArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Name of the new volume, share or folder
    #[arg(value_parser = names::volume_name)]
    pub volume: String,
    /// Size that its users see; required, except with --share or --folder
    #[arg(long, value_name = "SIZE", value_parser = names::size)]
    pub size: Option<u64>,
    /// Create a share: a directory tree, without a size of its own
    #[arg(long, conflicts_with = "size")]
    pub share: bool,
    /// Create a folder for volumes and shares
    #[arg(long, conflicts_with_all = ["size", "share"])]
    pub folder: bool,
    /// Create missing folders; with --folder, an existing folder is not an error
    #[arg(long, short)]
    pub parents: bool,
    /// Maximum space that it may use, as -o quota=SIZE
    #[arg(long, value_name = "SIZE")]
    pub quota: Option<String>,
    /// Property of its own, instead of an inherited one; may be repeated
    #[arg(short = 'o', value_name = "KEY=VALUE", value_parser = names::key_value)]
    pub properties: Vec<(String, String)>,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}

/// Builds examples and the list of properties, from the one table that also checks them.
fn set_help() -> String {
    let mut help = "\
Examples:
  shale set /srv/pool compression=zstd-1              for all volumes that do not say otherwise
  shale set /srv/pool vm compression=zstd-9 unit=64K  for one volume
  shale set /srv/pool projects/web compression=lz4    for everything in a folder
  shale set /srv/pool vm compression=                 inherit again
  shale set /srv/pool home nfs=rw@10.0.0.0/8 http=ro  exports a share (serve --exports)
  shale set /srv/pool rule.nc=archive:gzip-1,performance:lz4    for files of one type

JSON: the properties that were set, a list of {key, value, source, folder, values, allowed, description, rules}, as of get.

Properties take effect at once, for data written from now on:
"
    .to_owned();
    // One line each, which the layout of the help wraps.
    let mut property = |name: &str, description: &str, allowed: &str| {
        help.push_str(&format!("  {name:<12}  {description}. Values: {allowed}.\n"));
    };
    for key in policy::KEYS {
        property(key.name, key.description, &format!("{}; default {}", key.allowed, key.default));
    }
    let of_rules = "codec for files of a type, by extension or first bytes: rule.nc, rule.jpg, rule.sql";
    property("rule.TYPE", of_rules, policy::Rule::ALLOWED);
    help.truncate(help.trim_end().len());
    help
}

/// See [`super::Command::Set`].
#[derive(Debug, Args)]
#[command(after_long_help = set_help(), override_usage = "shale set [OPTIONS] <POOL> [VOLUME|FOLDER] <KEY=VALUE>...")]
pub struct SetArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Volume or folder (omitted: the pool), and the settings; an empty value inherits again
    #[arg(required = true, value_name = "VOLUME|KEY=VALUE")]
    pub words: Vec<String>,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}

/// Columns of `get`.
const PROPERTY_COLUMNS: [&str; 4] = ["name", "property", "value", "source"];

/// See [`super::Command::Get`].
#[derive(Debug, Args)]
#[command(
    override_usage = "shale get [OPTIONS] <POOL> [VOLUME|FOLDER] [KEY]...",
    after_long_help = "\
Examples:
  shale get /srv/pool
  shale get /srv/pool vm
  shale get /srv/pool vm compression --json
  shale get /srv/pool vm compression -H -o value      for scripts: the value alone

The source is default, pool, volume, or folder: its own value, or inherited from the named one, which may be a share.
JSON: a list of {key, value, source, folder, values, allowed, description, rules}: source is default, pool, volume, folder or share,
folder the name of the object that the value is inherited from, or null, values the choices, allowed a description of them, and
rules those of the rule set, by type of file."
)]
pub struct GetArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Volume or folder (omitted: the pool), and the properties to show (omitted, or `all`: all)
    #[arg(value_name = "VOLUME|KEY")]
    pub words: Vec<String>,
    /// Show these columns, separated by commas: name, property, value, source
    #[arg(short = 'o', long, value_name = "COLUMNS", value_delimiter = ',', value_parser = PROPERTY_COLUMNS)]
    pub columns: Option<Vec<String>>,
    /// Without headers, tabs between columns
    #[arg(short = 'H', long)]
    pub bare: bool,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}

/// See [`super::Command::Inherit`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale inherit /srv/pool compression vm     the value of its folder or of the pool again
  shale inherit /srv/pool compression        the default again, for the pool

The same as `shale set` with an empty value. JSON: the value in force now, as of get.")]
pub struct InheritArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// The property
    #[arg(value_parser = names::property_key)]
    pub key: String,
    /// Volume, share or folder (omitted: the pool)
    #[arg(value_parser = names::volume_name)]
    pub name: Option<String>,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}

/// Every type.
const ALL: &str = "all";
/// Types of lines in the list.
const TYPES: [&str; 6] = ["volume", "share", "folder", "snapshot", "bookmark", ALL];

/// See [`super::Command::List`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale list /srv/pool
  shale list /srv/pool -r                              snapshots too: times, what each keeps
  shale list /srv/pool vm -r                           one volume
  shale list /srv/pool projects                        a folder, and everything in it
  shale list /srv/pool -t snapshot                     only snapshots
  shale list /srv/pool -t all                          everything: as -r
  shale list /srv/pool -o name,stored,compression      these columns
  shale list /srv/pool -H -o name,stored               for scripts: exact bytes, tabs, no headers
  shale list /srv/pool --json | jq -r '.[].name'

Columns of -o: name, type, id, size, data, stored, ratio, saved, unique, shared, clients, created, origin, local
(cached part of an image), incomplete, scheduled, holds, bookmarks, and every property (see shale get). With -r bookmarks have lines of their own. Times are in UTC; with -H in seconds since 1970.

A ~ marks estimated figures: they are exact after a checkpoint, some ten seconds after the pool became idle, or with --sync,
which takes one first. DATA and STORED include a volume's snapshots: data overwritten since a snapshot counts twice. Data that a
clone shares counts where it was written: the clone's figures include only data written to it. The same holds for a volume that
began as an image, while a snapshot's line includes all data that is read through it, from an origin or an image too, and may be
larger. Right after a receive the figures of the new snapshot are those of the last checkpoint, which did not know it: use
--sync. The figures of a folder are the sums of its content. Those of a share include its names and inodes: an empty one has
some 130 KiB of DATA, which take 4 KiB, so the RATIO of a small one is high. 'shale usage' shows the ratio of its files.

JSON: a list of {id, kind (volume, share, folder), name, share (whether it is one), folder (whether it is one), size_bytes, allocated_bytes, stored_bytes, ratio, created_unix_s, clients, client_names, properties,
  origin, incomplete, exact, bookmarks: list of {bookmark, created_unix_s, identity}, unserved (why a share is not mounted, or null)};
  id is a number that the volume keeps under any name, allocated are logical bytes that hold data (its snapshots' too), stored their space in the pool, ratio = allocated/stored (null
  when empty), clients the number of clients that have the volume open, client_names the first 16 of them, properties those set on the volume itself, origin the snapshot of
  another volume that it was cloned from, incomplete whether its import did not complete, exact whether allocated and stored are exact, or estimated.
  With -t a volume is listed if a line of it is: itself, a snapshot or a bookmark. With -r, or -t snapshot, each has
  snapshots, a list of {id, kind, volume, name, size_bytes, created_unix_s, scheduled, unique_bytes, shared_bytes, data_bytes, clients,
  client_names, incomplete, holds}: holds are the tags that keep it, data_bytes are logical bytes that hold data, unique is freed if only the snapshot is destroyed, shared is seen by others too.")]
pub struct ListArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Only this volume, this folder with everything in it, or this VOLUME@SNAPSHOT
    #[arg(value_parser = names::any_name)]
    pub volume: Option<String>,
    /// Take a checkpoint first, so that the figures include everything written
    #[arg(long)]
    pub sync: bool,
    /// List the snapshots too, and their space
    #[arg(long, short)]
    pub recursive: bool,
    /// Only lines of these types, separated by commas; snapshots and bookmarks without -r, too
    #[arg(short = 't', long = "type", value_name = "TYPES", value_delimiter = ',', value_parser = TYPES)]
    pub types: Vec<String>,
    /// Show these columns, separated by commas
    #[arg(short = 'o', long, value_name = "COLUMNS", value_delimiter = ',')]
    pub columns: Option<Vec<String>>,
    /// Without headers, tabs between columns, sizes in bytes
    #[arg(short = 'H', long)]
    pub bare: bool,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}

impl ListArgs {
    /// Returns whether snapshots are requested: all, or the named one.
    pub fn wants_snapshots(&self) -> bool {
        let is_one_named = self.volume.as_ref().is_some_and(|name| name.contains('@'));
        self.recursive || is_one_named || self.names_type("snapshot")
    }

    /// Returns whether bookmarks have lines of their own.
    pub fn wants_bookmarks(&self) -> bool {
        self.recursive || self.names_type("bookmark")
    }

    /// Returns whether lines of a type are requested.
    pub fn shows(&self, kind: &str) -> bool {
        self.types.is_empty() || self.names_type(kind)
    }

    fn names_type(&self, kind: &str) -> bool {
        self.types.iter().any(|named| named == kind || named == ALL)
    }
}

/// See [`super::Command::Resize`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale resize /srv/pool vm 40G
  shale resize /srv/pool vm 10G --shrink     drops everything after the first 10 GiB

The size is exact, to the byte; file systems need a multiple of 4 KiB. NBD clients see it when they reconnect; a loop device
keeps the old size until `losetup -c DEVICE`, and the file system on it until `resize2fs DEVICE`: the command prints both.

JSON fields: size_bytes.")]
pub struct ResizeArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Name of the volume
    #[arg(value_parser = names::volume_name)]
    pub volume: String,
    /// New size
    #[arg(value_parser = names::size)]
    pub size: u64,
    /// Allow a smaller size than before: data after the new end is lost
    #[arg(long)]
    pub shrink: bool,
    /// Make it smaller even if a client has it open
    #[arg(long, requires = "shrink")]
    pub force: bool,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}

/// See [`super::Command::Destroy`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale destroy /srv/pool vm
  shale destroy /srv/pool vm@monday      a snapshot; what clones and other snapshots see stays
  shale destroy /srv/pool vm@s1,monday     two snapshots
  shale destroy /srv/pool vm@s1%monday     all snapshots from one to another
  shale destroy /srv/pool -n -r vm       only list them; nothing is destroyed
  shale destroy /srv/pool -r vm golden   two volumes, with their snapshots
  shale destroy /srv/pool 'vm#monday'    a bookmark
  shale destroy -r /srv/pool vm          with all its snapshots
  shale destroy -r /srv/pool projects    a folder, with everything in it
  shale destroy -r /srv/pool projects@monday      the snapshots that snapshot -r took
  shale destroy /srv/pool vm --force     even while a client has it open
  shale destroy --partial /srv/pool copy      only the received part of an interrupted stream

A % without a snapshot before it begins with the oldest one, without one after it ends with the newest. Several names are all
checked before the first is destroyed: if one does not exist or would be refused, none is destroyed.

This cannot be undone. The space is freed in the background. Without --force it waits up to 3 seconds for commands that are
using the volume, and is refused (exit code 4) if one continues, or a client has it open; with --force it lists these clients,
and the effect on them. A held snapshot (shale holds) is not destroyed.

JSON fields: volume (the first name, as it was given), destroyed (the destroyed objects, or with -n the selected ones: list of names), dry_run.")]
pub struct DestroyArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Names of volumes or folders, VOLUME@SNAPSHOT (also @A,B and @A%B), or VOLUME#BOOKMARK
    #[arg(required = true, value_name = "NAME", value_parser = names::destroyed_name)]
    pub volumes: Vec<String>,
    /// Only list what would be destroyed
    #[arg(long, short = 'n', conflicts_with = "partial")]
    pub dry_run: bool,
    /// Also destroy a volume's snapshots, and everything in a folder; for FOLDER@SNAPSHOT, the
    /// snapshots of that name of everything in it
    #[arg(long, short)]
    pub recursive: bool,
    /// Destroy it even if a client has it open
    #[arg(long)]
    pub force: bool,
    /// Only the received part of an interrupted stream: complete parts stay
    #[arg(long, conflicts_with_all = ["recursive", "force"])]
    pub partial: bool,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}
