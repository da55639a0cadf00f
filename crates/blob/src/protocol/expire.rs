//! Expiring old versions. Owns which versions a rule selects; `ops` writes the record that expires
//! them, and GC deletes the data that only they name. Pinned versions are left out. A version that
//! is pinned between the list of the pins and the record expires and is kept all the same, because
//! GC lists the pins again. Holds no state; any task may call it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::protocol::commit::{Committed, Committer};
use crate::protocol::ops::Action;
use crate::protocol::record::Record;

/// Selects versions to expire. A version must match every rule that is set. The newest version,
/// pinned versions and tagged versions are always kept.
#[derive(Debug, Clone, Default)]
pub struct ExpireRule {
    /// Keep this many of the newest versions.
    pub keep_last: Option<u64>,
    /// Expire only versions older than this, by the clocks of their writers.
    pub older_than: Option<Duration>,
    /// Expire only this version.
    pub version: Option<u64>,
}

/// The versions that a rule selects, as of the newest record.
#[derive(Debug)]
pub struct ExpirePlan {
    ranges: Vec<(u64, u64)>,
    head: Arc<Record>,
    /// Versions that match the rule but are pinned by a clone or a volume, oldest first.
    pub pinned: Vec<u64>,
}

impl ExpirePlan {
    /// Finds the versions that a rule selects, and leaves out the pinned ones.
    ///
    /// # Errors
    /// When the store fails; [`Error::Refused`] when the rule is empty.
    pub async fn of(committer: &Committer, rule: &ExpireRule) -> Result<Self, Error> {
        let head = committer.refresh().await?;
        if rule.keep_last.is_none() && rule.older_than.is_none() && rule.version.is_none() {
            return Err(Error::Refused(
                "specify which versions to expire: a number to keep, an age, or a version".into(),
            ));
        }
        let mut last = before_newest(committer, &head, rule.keep_last.unwrap_or(1).max(1)).await?;
        if let Some(age) = rule.older_than {
            last = last.min(committer.log().older_than(&head, 0, age).await?);
        }
        let (first, last) = match rule.version {
            Some(version) if version == 0 || version > head.seq => return Err(Error::NoVersion(version)),
            Some(version) if version > last => (1, 0),
            Some(version) => (version, same_content(committer, version, last).await?),
            None => (1, last),
        };
        let pinned = if first <= last { committer.log().pinned().await? } else { BTreeSet::new() };
        let ranges = without(first, last, &pinned);
        let is_meant = |version: &u64| (first..=last).contains(version) && head.is_live(*version);
        let pinned = pinned.into_iter().filter(is_meant).collect();
        Ok(Self { ranges, head, pinned })
    }

    /// Expires the versions; `None` if all of them had expired already.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn carry_out(self, committer: &Committer) -> Result<Option<Committed>, Error> {
        let mut after = self.head.as_ref().clone();
        self.ranges.iter().for_each(|(first, last)| after.expire(*first, *last));
        if after.expired == self.head.expired {
            return Ok(None);
        }
        committer.change(Action::Expire(self.ranges)).await.map(|(_, committed)| Some(committed))
    }
}

/// Expires versions; `None` if the rule selects none that had not expired already.
///
/// # Errors
/// As [`ExpirePlan::of`].
pub async fn expire(committer: &Committer, rule: &ExpireRule) -> Result<Option<Committed>, Error> {
    ExpirePlan::of(committer, rule).await?.carry_out(committer).await
}

/// Returns the parts of the range from `first` to `last` that contain none of the given versions.
pub(crate) fn without(first: u64, last: u64, versions: &BTreeSet<u64>) -> Vec<(u64, u64)> {
    let mut ranges = Vec::new();
    let mut next = first;
    for version in versions.range(first..).take_while(|version| **version <= last) {
        if next < *version {
            ranges.push((next, version - 1));
        }
        next = version + 1;
    }
    if next <= last {
        ranges.push((next, last));
    }
    ranges
}

/// Returns the last number up to `last` with the content of this version: tags and the like do not
/// change content, and each of them would keep it alive.
async fn same_content(committer: &Committer, version: u64, last: u64) -> Result<u64, Error> {
    let mut seq = version;
    while seq < last && !committer.log().read_existing(seq + 1).await?.is_version() {
        seq += 1;
    }
    Ok(seq)
}

/// Returns the number before the oldest of the `keep` newest versions.
async fn before_newest(committer: &Committer, head: &Record, keep: u64) -> Result<u64, Error> {
    let (mut seq, mut kept) = (head.seq, 0);
    while seq > 0 {
        if head.is_live(seq) {
            kept += u64::from(committer.log().read_existing(seq).await?.is_version());
            if kept == keep {
                return Ok(seq - 1);
            }
        }
        seq -= 1;
    }
    Ok(0)
}
