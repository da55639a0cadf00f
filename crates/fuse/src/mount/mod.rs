//! Mounting and unmounting, for all file systems of this program. Holds no state except the mount
//! point of each connection.

mod dead;
mod kernel;
mod mountinfo;
mod place;
mod vacant;

pub use dead::take_away as take_away_dead;
pub use kernel::{Connection, How, Unmounted, helper_source, is_ours, mount, source_of, unmount};
pub use mountinfo::{Listed, listed, mounted_at, mountinfo, unescaped};
pub use place::Place;
pub use vacant::check_vacant;
