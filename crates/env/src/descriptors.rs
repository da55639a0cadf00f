//! The limit of file descriptors of this process, and how it is divided.

use rustix::process::{Resource, getrlimit};

/// One part in `share` of the descriptors that this process may have, within bounds: the limit for
/// one kind of user, which leaves enough for all others.
pub fn descriptors_share(share: u64, least: usize, most: usize) -> usize {
    let all = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(all / share).unwrap_or(usize::MAX).clamp(least, most)
}
