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

A job is long work in the server of a pool: 'recompress', 'clean', 'scrub' and 'calibrate'. The command that starts a job
watches it, and the job ends with it: Ctrl-C cancels the job, and so does any other end of the command. With --background the
job continues without it. Ctrl-C in this command only ends watching.

'import', 'export', 'send' and 'receive' are listed while they run, and can be cancelled; their bytes pass through the command,
so they cannot be paused here, nor continue without it.

Cancelling is a request: until the job has ended its state is 'cancelling', and it may complete before. Then its state is done,
it has a result, and --cancel reports this: check the state, not the exit code, which is 0 as well. A command notices the
request within some 200 ms, but not while it waits for its input or output, or is stopped (Ctrl-Z): --cancel waits 5 seconds for
it, and then reports that it is cancelling.

A job follows its volume through renames; the list shows the current name. The job fails (exit code 3) when the volume is
destroyed.

A job that is paused or cancelled first completes its current slice, which takes seconds at most. A calibration cannot be
paused. The progress is stored in the pool: the same command without --restart continues from there. A paused job is still under
way, and excludes the same jobs. Jobs end with the server; their numbers restart at 1 with the next one.

Exit code of watching: that of the job, as if its command had run here; 130 if it was cancelled.

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
