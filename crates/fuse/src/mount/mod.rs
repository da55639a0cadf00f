//! Mounting and unmounting, for all file systems of this program. Holds no state except the mount
//! point of each connection.

mod dead;
mod kernel;
mod mount_point;
mod mountinfo;
mod vacant;

pub use dead::detach_dead;
pub use kernel::{Connection, MountParams, Unmounted, helper_source, is_ours, mount, source_of, unmount};
pub use mount_point::MountPoint;
pub use mountinfo::{Listed, listed, mounted_at, mountinfo, unescaped};
pub use vacant::check_vacant;
