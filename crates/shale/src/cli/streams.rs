//! Commands that transfer snapshots from one pool to another.

use std::path::PathBuf;

use clap::Args;

use super::Access;
use operations::names;

/// See [`super::Command::Send`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale send /srv/pool vm@monday -o /backup/vm-monday.shale
  shale send /srv/pool vm@monday | ssh backup shale receive /srv/pool vm
  shale send /srv/pool vm@tuesday --from monday | ssh backup shale receive /srv/pool vm
  shale send /srv/pool vm@tuesday --from '#monday' | ssh backup shale receive /srv/pool vm
  shale send /srv/pool vm@tuesday --all-from good | ssh backup shale receive /srv/pool vm
  shale send /srv/pool vm1@monday --thin | ssh backup shale receive /srv/pool vm1
  shale send /srv/pool -R '*' | ssh backup shale receive /srv/pool -R
  shale send /srv/pool -R 'vm*@tuesday' --all-from monday -o /backup/week.shale
  shale send /srv/pool -R projects@monday | ssh backup shale receive /srv/pool copies/projects
  shale send /srv/pool --resume shale1-4f... | ssh backup shale receive /srv/pool vm

Without --from (-i) the stream contains the whole snapshot, and receiving it creates a volume; with --from it contains only the
changes since another snapshot, or since that of a bookmark, which must be the receiver's newest. Data is sent compressed, as it
is stored; every piece is verified before it is sent. The stream has checksums of its own. Sending changes nothing in the pool,
and holds nothing: the volume stays in use, and snapshots can be destroyed (destroying the sent one ends the stream).

With --thin the stream of a volume that begins as an image (shale clone URL) contains only the differences from the image, and
no cached part of it. It contains the URL and version of the image, and no secrets. The receiver needs access to its store, pins
that version there before it creates the volume, and fetches data when it is read. Differences need no --thin: they never
contain the image data that both snapshots share. With -R it applies to volumes that are sent whole.

With --all-from (-I) or --replicate (-R) several snapshots are sent in order, each as the difference from its predecessor, so
that the receiver gets all of them. -R selects volumes by a pattern, or everything in a folder, and preserves clones; with
--from or --all-from, it sends only snapshots newer than the snapshot or bookmark of that name in each volume, and volumes
created since, whole. A base that no volume has is refused.

If a stream is interrupted, the receiver keeps the received part and shows a token, with which --resume sends the rest: for
several snapshots, repeat the same options and add --resume; complete snapshots are skipped.

JSON (not when writing to stdout): {volume, snapshot, from, image, target, stream_bytes, payload_bytes, seconds,
  bytes_per_second}; of several {snapshots, skipped, target, stream_bytes, payload_bytes, seconds, bytes_per_second}.")]
pub struct SendArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// The snapshot to send
    #[arg(value_name = "VOLUME@SNAPSHOT", value_parser = names::snapshot_name,
        required_unless_present_any = ["resume", "replicate"])]
    pub snapshot: Option<String>,
    /// The snapshot that the receiver has: its name, #BOOKMARK, or VOLUME@SNAPSHOT of another
    /// volume
    #[arg(long, short = 'i', value_name = "SNAPSHOT|#BOOKMARK")]
    pub from: Option<String>,
    /// Send every snapshot after this one, up to the named one, instead of only the difference
    #[arg(short = 'I', long, value_name = "SNAPSHOT|#BOOKMARK", conflicts_with = "from")]
    pub all_from: Option<String>,
    /// Send all volumes whose names match a pattern ('*', 'vm-*'), or that lie in a folder, with
    /// all their snapshots up to this one, or up to the newest
    #[arg(short = 'R', long, value_name = "PATTERN|FOLDER[@SNAPSHOT]", conflicts_with = "snapshot")]
    pub replicate: Option<String>,
    /// Send only the differences from the image that a volume began as (shale clone URL), and its
    /// URL: the receiver fetches the rest from there
    #[arg(long)]
    pub thin: bool,
    /// Send the rest of an interrupted stream: the token that the receiver showed
    #[arg(long, value_name = "TOKEN")]
    pub resume: Option<String>,
    /// File to write [default: stdout]
    #[arg(short = 'o', long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Overwrite an existing file, after checking what to send
    #[arg(long, requires = "output")]
    pub force: bool,
    /// Refused, with the reason: the bytes go through this command
    #[arg(long, hide = true)]
    pub background: bool,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}

/// See [`super::Command::Receive`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale receive /srv/pool vm < /backup/vm-monday.shale
  ssh prod shale send /srv/pool vm@tuesday --from monday | shale receive /srv/pool vm
  shale receive /srv/pool vm -i vm-monday.shale -o mode=archive
  shale receive /srv/pool -R --prefix prod- < /backup/week.shale

A stream of a whole snapshot creates the volume, with its properties (except its reservation and its snapshot schedule; -o sets
others). A stream of a difference needs the volume with the base as its newest snapshot, and without later changes: use shale
rollback. Or it needs a clone of the base, unchanged and without snapshots of its own: this keeps both sides of a diverged
history.

A stream of 'send --thin' depends on an image in an object store: that version is pinned there for the volume (see shale blob
stat) before anything is created here, with this machine's credentials, and data is read from there. If the store cannot be
reached, or the version is gone, nothing is received: send it again without --thin.

A stream takes effect only when all of it was received and verified; then the snapshot, and the volume in that state, appear
atomically and are durable. If the stream is interrupted, the received part is kept, even over restarts: the error and shale
status show a token for 'shale send --resume'. To delete it: shale destroy --partial POOL VOLUME for a new volume, shale destroy
--partial POOL VOLUME@SNAPSHOT for a difference; snapshots that another receive has completed stay.

A set of several snapshots (send -I, -R) takes effect snapshot by snapshot; existing ones are skipped, so the same set can be
sent again. A set of several volumes needs -R, which creates missing folders of their names. The set of a folder can also be
received into the folder VOLUME, under the names of its volumes in the sent folder. The properties of a folder are not sent. A
clone in it is created as a clone, if its origin exists here.

Exit code 3 if the image of a thin stream is gone, 6 if the stream is damaged, 7 if it ends too early, 11 if it does not fit the volume.

JSON: {volume, snapshot, is_new, image, size_bytes, stream_bytes, payload_bytes, fragments, hole_bytes, seconds,
  bytes_per_second}; of a set {received: [...], passed_over, stream_bytes, seconds, bytes_per_second}; an error has the token
  in its message.")]
pub struct ReceiveArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Name of the volume; for a set of a folder, the folder that receives it
    #[arg(value_parser = names::volume_name, required_unless_present = "replicate")]
    pub volume: Option<String>,
    /// Receive volumes under their names in the stream
    #[arg(short = 'R', long, conflicts_with = "volume")]
    pub replicate: bool,
    /// Prefix for these names
    #[arg(long, value_name = "TEXT", requires = "replicate")]
    pub prefix: Option<String>,
    /// File to read [default: stdin]
    #[arg(short = 'i', long, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// Property of a new volume, instead of the sent one; may be repeated
    #[arg(short = 'o', value_name = "KEY=VALUE", value_parser = names::key_value)]
    pub properties: Vec<(String, String)>,
    /// Even if a client has the volume open
    #[arg(long)]
    pub force: bool,
    /// Refused, with the reason: the bytes go through this command
    #[arg(long, hide = true)]
    pub background: bool,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}
