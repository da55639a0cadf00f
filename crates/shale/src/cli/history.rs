//! Commands on snapshots and clones.

use std::path::PathBuf;

use ::blob::Location;
use clap::Args;

use super::Access;
use operations::names;

/// See [`super::Command::Snapshot`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale snapshot /srv/pool vm@before-upgrade
  shale snapshot /srv/pool vm@friday golden@friday     of several, at one moment
  shale snapshot /srv/pool -r projects@monday     of everything in a folder, at one moment
  shale snapshot /srv/pool -r '*@noon'       of everything in the pool, at one moment

A snapshot holds all data written before the command, and takes no space until data is overwritten. It can be taken while the
volume is in use; a file system in it is as after a power failure, unless it was unmounted or frozen (fsfreeze). It is read over
NBD as the read-only export VOLUME@SNAPSHOT, as the file VOLUME@SNAPSHOT in the mount, and with export. The snapshots of a share
are in its mount, below .shale/snapshots.

With -r a snapshot is taken of each volume and share in the folder, and in its subfolders. All hold the same moment: if one has
a write, the others have every write that was acknowledged before it began. They are ordinary snapshots: each is destroyed,
cloned and sent separately.

Snapshots of several volumes or shares are taken at one moment in the same way: all or none.

JSON fields: snapshot; with -r or of several snapshots, a list of names.")]
pub struct SnapshotArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// The volume, or with -r a folder, an @, and the snapshot's name
    #[arg(required = true, value_name = "VOLUME@SNAPSHOT", value_parser = names::snapshot_pattern)]
    pub snapshots: Vec<String>,
    /// Everything in a folder, at one moment
    #[arg(long, short)]
    pub recursive: bool,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}

/// See [`super::Command::Clone`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale clone /srv/pool golden@v1 vm7
  shale clone /srv/pool golden@v1 vm8 -o compression=lz4
  shale clone file:///srv/blobs/disk@1 /srv/pool vm9   a version of a blob, fetched as it is read
  shale clone file:///srv/blobs/disk /srv/pool vm10 --size 20G -o hydrate=on

The clone is an independent volume that shares the data it does not overwrite. The snapshot and its volume may be destroyed: the
clone keeps its data. A file system in it has the UUID of the original: mount XFS with nouuid. The clone gets the properties
that are set on that volume, but not its reservation, nor the doors nfs, smb, http and ftp of a share: it has those of its
folder, or none, until -o or `shale set` opens them.

With a URL in front of the pool, the volume begins as a version of a blob (see 'shale blob --help'), the newest one without @.
It is available at once: data is fetched when it is first read, in its stored form, once for all clones of the version in the
pool, and kept within remote-cache; with hydrate=on the rest is fetched in the background. While the store is unreachable, a
read waits up to remote-timeout for the data, then fails, and so does a write to a part of a block that was not fetched;
unfetched data is never read as zeroes. A stopping server waits five seconds for the store. The pool pins the version in the
blob's log (see `shale blob stat`) until no volume needs it. The server needs the same variables and credentials for the store
as this command. The volume's unit is 128K, as in blobs, so that overwritten data is pushed in its stored form; -o unit=32K is
faster for small reads. `shale push` writes snapshots to the store.

JSON fields: volume, origin (the snapshot); of a blob volume, image, version, size_bytes.")]
pub struct CloneArgs {
    /// Directory of the pool, or the URL of a blob, and @VERSION or @TAG
    #[arg(value_name = "POOL|URL")]
    pub pool: PathBuf,
    /// The snapshot to clone; after a URL, the directory of the pool
    #[arg(value_name = "VOLUME@SNAPSHOT|POOL")]
    pub snapshot: String,
    /// Name of the new volume
    #[arg(value_parser = names::volume_name)]
    pub volume: String,
    /// Size, if larger than the version of the blob
    #[arg(long, value_name = "SIZE", value_parser = names::size)]
    pub size: Option<u64>,
    /// Property in addition to those of the snapshot's volume; may be repeated
    #[arg(short = 'o', value_name = "KEY=VALUE", value_parser = names::key_value)]
    pub properties: Vec<(String, String)>,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}

/// See [`super::Command::Push`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale push /srv/pool vm@monday file:///srv/blobs/vm -m 'as of monday'
  shale push /srv/pool vm9@patched file:///srv/blobs/disk --to file:///srv/blobs/patched

The snapshot becomes the next version of the blob, in one commit. The changes since the last push of the volume, or since the
version that it was cloned from, are uploaded; groups of 128 KiB that are one unit in the pool are uploaded as they are stored.
A missing blob is created, with the whole volume.

If the blob has a newer version than that base, nothing is changed: push to another key with --to, which makes a clone of the
base there and commits the changes on it, or use --replace. Repeating a push changes nothing, so it can be repeated after an
interruption. A snapshot without changes makes no version; the answer contains its base (base_version).

JSON: {blob, version, base_version (0: none), earlier (it was there already), groups (that changed), as_stored, holes, bytes,
  stored_bytes}.")]
pub struct PushArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// The snapshot to push
    #[arg(value_name = "VOLUME@SNAPSHOT", value_parser = names::snapshot_name)]
    pub snapshot: String,
    /// URL of the blob that the volume was cloned from or pushed to, or of a new one
    #[arg(value_name = "URL")]
    pub url: Location,
    /// URL of another blob in the same store that gets the version
    #[arg(long, value_name = "URL")]
    pub to: Option<Location>,
    /// Push even if there is a newer version
    #[arg(long)]
    pub replace: bool,
    /// Message for the log of the blob: at most 1024 bytes
    #[arg(long, short, value_name = "TEXT", default_value = "")]
    pub message: String,
    /// Property of recompressed data, as for `shale blob put`; may be repeated
    #[arg(short = 'o', value_name = "KEY=VALUE", value_parser = names::key_value)]
    pub properties: Vec<(String, String)>,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}

/// See [`super::Command::Rollback`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale rollback /srv/pool vm@before-upgrade
  shale rollback /srv/pool vm@monday -r       and destroy the snapshots taken since
  shale rollback /srv/pool projects@monday    everything in a folder that has it

All later writes are lost. To keep both states, clone the snapshot instead.

In a folder, each volume and share is rolled back separately; if one is refused, those already rolled back are listed.

JSON fields: volume, snapshot; snapshots (of a folder).")]
pub struct RollbackArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// The snapshot to roll back to
    #[arg(value_name = "VOLUME@SNAPSHOT", value_parser = names::any_name)]
    pub snapshot: String,
    /// Destroy the snapshots taken since
    #[arg(long, short)]
    pub recursive: bool,
    /// Even if a client has the volume open
    #[arg(long)]
    pub force: bool,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}

/// See [`super::Command::Rename`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale rename /srv/pool vm web
  shale rename /srv/pool web@s1 web@before-upgrade
  shale rename /srv/pool vm projects/web/vm        into a folder, which must be there
  shale rename /srv/pool projects old/projects     a folder, with everything in it

Clients that have it open continue. A mounted share is remounted under its new name: it must not be in use. In another folder
other properties may be inherited.

JSON fields: old, new.")]
pub struct RenameArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Volume, share, folder, or VOLUME@SNAPSHOT
    #[arg(value_parser = names::any_name)]
    pub old: String,
    /// The same with another name
    #[arg(value_parser = names::any_name)]
    pub new: String,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}

/// See [`super::Command::Promote`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale clone /srv/pool vm@good vm-new
  shale promote /srv/pool vm-new
  shale destroy -r /srv/pool vm
  shale rename /srv/pool vm-new vm

The snapshots of the other volume, up to the clone's origin, become the clone's. No data moves. Space that only the other volume
uses is freed when it is destroyed; space shared with the clone is freed when it is overwritten and no snapshot holds it any
more. Data counts for the volume that wrote it: STORED and the quota of the clone do not grow, and once the other one is
destroyed, `shale list` shows its share of the data below the table.

JSON fields: volume.")]
pub struct PromoteArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Name of the clone
    #[arg(value_parser = names::volume_name)]
    pub volume: String,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}

/// See [`super::Command::Diff`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale diff /srv/pool vm@monday vm@tuesday
  shale diff /srv/pool vm@monday vm
  shale diff /srv/pool vm@monday --json | jq -r 'select(.now == \"data\") | .offset'

Each line is a range: offset, length in bytes, and its current content: data, or a hole, which reads as zeroes. No data is read
for this: a range that was overwritten with the same bytes counts as changed.
JSON: a line {from, to, from_bytes, to_bytes} with the sizes, then a line {offset, length, now} for each change.")]
pub struct DiffArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// The older state
    #[arg(value_name = "VOLUME@SNAPSHOT", value_parser = names::snapshot_name)]
    pub from: String,
    /// The newer state, a snapshot or a volume [default: the current volume]
    #[arg(value_parser = names::any_name)]
    pub to: Option<String>,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}
