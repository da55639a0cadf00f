//! How many descriptors this process may have, and how they are shared.

use rustix::process::{Resource, getrlimit};

/// One part of `share` of the descriptors that this process may have, within bounds: what one kind
/// of user may take, so that something is left for all others.
pub fn descriptors_share(share: u64, least: usize, most: usize) -> usize {
    let all = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(all / share).unwrap_or(usize::MAX).clamp(least, most)
}
