//! Jobs: long work on an open pool, which has a number, can be watched, paused and cancelled, and
//! outlives the command that started it with `--background`.
//!
//! The service owns the table of jobs. Commands, and the clients of a server, reach it through
//! operations on jobs; the table knows nothing of sockets.
//!
//! 1. A new job is checked against the exclusion rules (`rule`), and gets the next number
//!    (`numbers`).
//! 2. A thread of the job does the work slice by slice (`work`, `pace`), and reports its progress
//!    to the table after each slice.
//! 3. Between two slices the thread rests, and follows requests about the job: it pauses, or ends.
//!    Cancelling is a request: the job may complete before, and the table has the true outcome.
//! 4. The outcome stays in the table, for the last [`ENDED_MAX`] jobs. A panic of the work is one,
//!    too: the job has failed.
//!
//! A job on a volume follows the volume through renames, and fails when the volume is destroyed.
//!
//! A command that was started without `--background` owns its job: when its connection ends, the
//! job is cancelled (`attached`). Work whose bytes pass through a command is registered in the
//! table, too, and the command reports its progress.

mod attached;
mod numbers;
mod pace;
mod panics;
mod restore;
mod rule;
mod table;
mod work;

pub use attached::Attached;
pub(crate) use restore::is_broken;
pub use restore::{RESTORE_COMMAND, restore_from_stdin};
pub use table::{ENDED_MAX, Jobs};

pub(crate) use pace::rest_after;
pub(crate) use panics::or_panicked;
pub(crate) use restore::RestoreWish;
pub(crate) use table::{Begin, Doing, Stop, Work, Worker};
pub(crate) use work::{Planned, Task};
