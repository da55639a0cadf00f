//! The command on jobs.

use std::path::PathBuf;

use clap::Args;

/// See [`super::Command::Jobs`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale jobs /srv/pool                      those under way, and the last 32 that ended
  shale jobs /srv/pool 1                    watches job 1 to its end, and ends as it does
  shale jobs /srv/pool 1 --pause            it stands still until it is resumed
  shale jobs /srv/pool 1 --resume
  shale jobs /srv/pool 1 --cancel
  shale jobs /srv/pool --json | jq '.[] | select(.state == \"failed\") | .error.message'

A job is long work in the server of a pool: 'recompress', 'clean', 'scrub' and 'calibrate'. The command that starts one watches it, and its end is the job's
end as well: Ctrl-C in it cancels the job, and so does whatever else ends it. With --background the job goes on without it.
Ctrl-C in this command ends watching, and no more.

'import', 'export', 'send' and 'receive' are listed while they run, and can be cancelled; their bytes go through the command, so that
they cannot be paused here, nor go on without it.

To cancel is a wish: until the job has ended its state is 'cancelling', and it may come to its end before. Then it is done, its
result is there, and --cancel says so: look at the state, not at the exit code, which is 0 as well. A command notices the wish
within some 200 ms, but not while it waits for its input or output, or was stopped (Ctrl-Z): --cancel waits 5 seconds for it, and says then
that it is cancelling.

A job is about the volume that had the name when it was started: it follows that one under a new name, which the list shows, and fails
(exit code 3) when the volume is destroyed.

A job that is paused or cancelled ends the slice that it works on first, which takes seconds at most. A calibration cannot be paused. Where it came to
is kept with the pool: the same command without --restart goes on from there. A job that is paused is under way, and
keeps out what it excludes. Jobs end with the server; their numbers begin at 1 with the next one.

Exit code of watching: that of the job, as if its command had been run here; 130 if it was cancelled.

JSON: a list of {id, kind (recompress, clean, sort, which is 'clean --sort', scrub, calibrate, import, export, send, receive), target (null: the pool), state (running, paused, cancelling, done, failed, cancelled), changes (of the state), phase
  (the part that is under way), bytes_done, bytes_total, bytes_per_second, seconds_left (null: not known), started_unix_s, ended_unix_s,
  seconds (of work), background, said, asked (pause or cancel, until it does so; or null), error ({kind, message}, or null)}; with a
  number one of them, and in it result: {recompressed}, {cleaned}, {scrubbed} or {calibrated}, with the fields of the command's own --json, or
  {moved: {bytes}}.")]
pub struct JobsArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Number of a job [default: list all]
    pub id: Option<u64>,
    /// Pause the job
    #[arg(long, requires = "id", conflicts_with_all = ["resume", "cancel"])]
    pub pause: bool,
    /// Resume a paused job
    #[arg(long, requires = "id", conflicts_with = "cancel")]
    pub resume: bool,
    /// Cancel the job
    #[arg(long, requires = "id")]
    pub cancel: bool,
}
