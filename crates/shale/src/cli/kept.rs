//! Commands on holds, which keep a snapshot, and bookmarks, which outlive it.

use std::path::PathBuf;

use clap::Args;

use super::Access;
use operations::names;

/// See [`super::Command::Bookmark`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale bookmark /srv/pool vm@monday monday
  shale destroy /srv/pool vm@monday
  shale send /srv/pool vm@tuesday --from '#monday' | ssh backup shale receive /srv/pool vm

A bookmark remembers the identity and time of a snapshot, not its data: it takes no space, and stays when the snapshot is
destroyed. Use it as --from of 'shale send', for a receiver that still has the snapshot. Such a difference may be slightly
larger than one from the snapshot itself. After a rollback to an earlier state a bookmark is useless; shale destroy POOL
'VOLUME#BOOKMARK' removes it. It is destroyed with its volume.

JSON fields: bookmark, snapshot.")]
pub struct BookmarkArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// The snapshot to remember
    #[arg(value_name = "VOLUME@SNAPSHOT", value_parser = names::snapshot_name)]
    pub snapshot: String,
    /// Name of the bookmark: NAME, #NAME or VOLUME#NAME
    #[arg(value_name = "BOOKMARK", value_parser = names::bookmark_word)]
    pub name: String,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}

/// See [`super::Command::Bookmarks`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale bookmarks /srv/pool
  shale bookmarks /srv/pool vm --json

JSON: a list of {bookmark, created_unix_s, identity}: when its snapshot was taken, and what that is called in all pools.")]
pub struct BookmarksArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Only those of one volume, or in a folder [default: all]
    #[arg(value_parser = names::volume_name)]
    pub volume: Option<String>,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}

/// See [`super::Command::Hold`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale hold /srv/pool vm@monday offsite
  shale hold /srv/pool vm@monday audit-2026

While a snapshot has a tag, neither destroy (with its volume or alone), nor rollback -r, nor keep= removes it; the message lists
the tags. A snapshot may have up to 32 of them. A copy that is sent to another pool has none.

JSON fields: snapshot, tag.")]
pub struct HoldArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// The snapshot to keep
    #[arg(value_name = "VOLUME@SNAPSHOT", value_parser = names::snapshot_name)]
    pub snapshot: String,
    /// Name of the hold, of letters, digits, '.', '_' or '-': the purpose of keeping it
    #[arg(value_parser = names::short_name)]
    pub tag: String,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}

/// See [`super::Command::Release`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale release /srv/pool vm@monday offsite

Without its last tag, the snapshot can be destroyed again.

JSON fields: snapshot, tag.")]
pub struct ReleaseArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// The snapshot
    #[arg(value_name = "VOLUME@SNAPSHOT", value_parser = names::snapshot_name)]
    pub snapshot: String,
    /// Name of the hold
    #[arg(value_parser = names::short_name)]
    pub tag: String,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}

/// See [`super::Command::Holds`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale holds /srv/pool
  shale holds /srv/pool vm@monday --json

JSON: a list of {snapshot, tag, created_unix_s}.")]
pub struct HoldsArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Only those of one snapshot, of a volume's snapshots, or in a folder [default: all]
    #[arg(value_name = "VOLUME[@SNAPSHOT]", value_parser = names::any_name)]
    pub of: Option<String>,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}
