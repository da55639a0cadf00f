//! Claims on the trees of shares: one exclusive user that may change a tree, or any number of
//! readers. Owns the claims, one for each share by its number.
//!
//! A tree is a database in the share. Opened twice, with a writer among them, it is destroyed; and
//! even closing one writes something last. So a tree is claimed before it is opened, and the claim
//! lasts until nothing of the tree is left in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use store::base::ranked::{Condvar, Mutex};
use store::base::ranks;
use surface::{DeviceId, Error, ErrorKind, Result};

/// The purpose of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TreeUse {
    /// For reading: shared with other readers.
    Look,
    /// For changing: exclusive.
    Change,
}

/// All claims of a pool, by the numbers of shares: the number of readers; 0 for a writer.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    held: Mutex<BTreeMap<u64, u64>, ranks::TreeClaims>,
    changed: Condvar,
}

/// The claim of one tree. It ends when this is dropped.
#[derive(Debug)]
pub struct TreeClaim {
    claims: Arc<Claims>,
    share: u64,
}

/// Returns whether a tree that is held like that can be claimed.
fn is_free(held: Option<&u64>, wanted: TreeUse) -> bool {
    match held {
        None => true,
        Some(lookers) => *lookers > 0 && wanted == TreeUse::Look,
    }
}

impl Claims {
    /// Claims a tree; waits for at most `patience` until it can.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`].
    pub(crate) fn claim(self: &Arc<Self>, share: DeviceId, wanted: TreeUse, patience: Duration) -> Result<TreeClaim> {
        let mut held = self.held.lock();
        let is_held = |held: &mut BTreeMap<u64, u64>| !is_free(held.get(&share.0), wanted);
        self.changed.wait_while_for(&mut held, is_held, patience);
        if is_held(&mut held) {
            let by = if held.get(&share.0) == Some(&0) { "is in use" } else { "is being read" };
            let text = format!("the tree of the share {by} by its mount or another command: try again when that ends");
            return Err(Error::new(ErrorKind::InUse, text));
        }
        let lookers = held.entry(share.0).or_insert(0);
        if wanted == TreeUse::Look {
            *lookers += 1;
        }
        Ok(TreeClaim { claims: self.clone(), share: share.0 })
    }
}

impl Drop for TreeClaim {
    fn drop(&mut self) {
        let mut held = self.claims.held.lock();
        match held.get_mut(&self.share) {
            Some(lookers) if *lookers > 1 => *lookers -= 1,
            _ => drop(held.remove(&self.share)),
        }
        self.claims.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARE: DeviceId = DeviceId(7);

    #[test]
    fn one_changes_a_tree_or_many_look_at_it() {
        let claims = Arc::new(Claims::default());
        let claim = |share, wanted| claims.claim(share, wanted, Duration::ZERO);
        let alone = claim(SHARE, TreeUse::Change).unwrap();
        assert_eq!(claim(SHARE, TreeUse::Change).unwrap_err().kind(), ErrorKind::InUse);
        assert_eq!(claim(SHARE, TreeUse::Look).unwrap_err().kind(), ErrorKind::InUse);
        let other = claim(DeviceId(8), TreeUse::Change).unwrap();
        drop(alone);
        let looks = [claim(SHARE, TreeUse::Look).unwrap(), claim(SHARE, TreeUse::Look).unwrap()];
        let [first, second] = looks;
        drop(first);
        assert_eq!(claim(SHARE, TreeUse::Change).unwrap_err().kind(), ErrorKind::InUse);
        drop(second);
        let _alone = claim(SHARE, TreeUse::Change).unwrap();
        drop(other);
    }

    #[test]
    fn who_claims_waits_for_the_one_before() {
        let claims = Arc::new(Claims::default());
        let first = claims.claim(SHARE, TreeUse::Change, Duration::ZERO).unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| claims.claim(SHARE, TreeUse::Change, Duration::from_secs(600)).map(drop));
            drop(first);
            second.join().unwrap().unwrap();
        });
    }
}
