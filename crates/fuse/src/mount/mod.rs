//! Mounting and unmounting, for all file systems of this program.

mod dead;
mod kernel;
mod mountinfo;

pub use dead::take_away as take_away_dead;
pub use kernel::{
    Connection, How, MountId, Unmounted, abort, has_access_times, helper_source, is_ours, mount, mount_id, source_of,
    unmount,
};
pub use mountinfo::{mountinfo, unescaped};
