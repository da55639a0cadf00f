//! Jobs: long work on an open pool, which has a number, can be watched, paused and cancelled, and
//! outlives the command that started it if that says so.
//!
//! The service owns the table of jobs. Commands, and the clients of a server, reach it through
//! operations on jobs; the table knows nothing of sockets.
//!
//! 1. A start is checked against the rule of what excludes what (`rule`), and gets the next number.
//! 2. A thread of the job does the work slice by slice (`work`, `pace`), and tells the table after
//!    each slice how far it is.
//! 3. Between two slices the thread rests, and follows requests about the job: it waits, or ends.
//!    To cancel is a wish: the job may come to its end before, and the table has what really came
//!    of it.
//! 4. The outcome stays in the table, for as many jobs as [`ENDED_MAX`] says.
//!
//! A job that is about a volume follows that one, whatever it is called by now, and ends with an
//! error when the volume is destroyed.
//!
//! A command that was started without `--background` is the owner of its job: when its connection
//! ends, the job is cancelled (`attached`). Work whose bytes go through a command is registered in
//! the table, too, and told of by the command itself.

mod attached;
mod pace;
mod restore;
mod rule;
mod table;
mod work;

pub use attached::Attached;
pub use restore::{RESTORE_COMMAND, restore_from_stdin};
pub use table::{ENDED_MAX, Jobs};

pub(crate) use pace::rest_after;
pub(crate) use restore::RestoreWish;
pub(crate) use table::{Begin, Doing, Stop, Work, Worker};
pub(crate) use work::{Planned, Task};
