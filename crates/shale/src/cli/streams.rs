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

Without --from (-i) the stream holds the whole snapshot, and makes a volume where it is received; with --from only what has
changed since another snapshot, or since the one that a bookmark remembers, for a receiver that has that one as its newest. Data goes as it is stored, compressed;
every piece is verified before it is sent. The stream has checksums of its own. Nothing is changed in the pool, and nothing
is held: the volume goes on, snapshots can be destroyed (that of the stream ends it).

With --thin the stream of a volume that begins as an image (shale clone URL) has only what differs from that, and no part of the image that
is here as a cache. It names the image: URL and version, and no secrets. The receiver needs its store, holds that version there
before it makes the volume, and fetches from it what is read. Differences need no --thin: what both snapshots have of an image is not
in them. With -R it holds for the volumes that come whole.

With --all-from (-I) or --replicate (-R) several snapshots go one after the other, each as the difference from the one before it, so that the
receiver gets all of them. -R takes volumes by a pattern, or everything in a folder, and keeps clones what they are; with --from or --all-from, only what is
newer than the snapshot or bookmark of that name in each volume, and volumes that have come into being since, whole. A base that no volume has is refused.

If a stream breaks off, the receiver keeps what has come and shows a token, with which --resume sends the rest: beside
what was said before for several snapshots, of which it leaves out those that have come.

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

A stream of a whole snapshot makes the volume, with the properties that it had (but its reservation and its snapshot
schedule; -o sets others). A stream of a difference needs the volume with the snapshot from which it goes out as its newest,
and unchanged since: shale rollback brings it there. Or it needs a clone of that snapshot, unchanged and without snapshots of its
own: so both sides of a history that has divided can be kept.

A stream of 'send --thin' hangs on an image in an object store: that version is held there for the volume (shale blob stat shows it) before
anything is made here, with this machine's credentials, and read from there from then on. If the store cannot be reached, or the version
is gone, nothing is received: send it again without --thin.

Nothing of a stream is seen before all of it has come and has been verified; then the snapshot, and the volume as it was in it, are
there at once, and durable. If the stream breaks off, what has come is kept, over restarts too: the error shows a token for
'shale send --resume', and so does shale status. To give it up: shale destroy --partial POOL VOLUME for a new volume, shale destroy
--partial POOL VOLUME@SNAPSHOT for a difference; what another receive has completed meanwhile stays.

A set of several snapshots (send -I, -R) takes effect snapshot by snapshot; those that are here already are passed over, so that the
same set can be sent again. Of several volumes it needs -R, which makes the folders of their names where these are missing. The set
of a folder is received into the folder VOLUME as well, under the names that its volumes have in the one sent. The properties of a
folder are not sent. A clone in it is made as a clone, if what it came from is here.

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
