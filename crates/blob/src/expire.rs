//! Giving up old versions. Owns which ranges a rule means; the record that says so is made by
//! `ops`, and what only these versions named is deleted by GC.

use std::time::Duration;

use crate::commit::{Committed, Committer};
use crate::error::Error;
use crate::ops::What;
use crate::record::Record;

/// Which versions to give up. A version must be meant by every rule that is set. The newest
/// version, and those that a tag or a pin names, are always kept.
#[derive(Debug, Clone, Default)]
pub struct ExpireRule {
    /// Keep so many of the newest versions.
    pub keep_last: Option<u64>,
    /// Give up only what is older, by the clocks of the writers.
    pub older_than: Option<Duration>,
    /// Give up only this version.
    pub version: Option<u64>,
}

/// Gives up versions; `None` if no version is meant that was not given up already.
///
/// # Errors
/// When the store fails; [`Error::Refused`] when the rule is empty.
pub async fn expire(committer: &Committer, rule: &ExpireRule) -> Result<Option<Committed>, Error> {
    let head = committer.refresh().await?;
    if rule.keep_last.is_none() && rule.older_than.is_none() && rule.version.is_none() {
        return Err(Error::Refused("say which versions to give up: a number to keep, an age, or a version".into()));
    }
    let mut last = behind_newest(committer, &head, rule.keep_last.unwrap_or(1).max(1)).await?;
    if let Some(age) = rule.older_than {
        last = last.min(committer.log().older_than(&head, 0, age).await?);
    }
    let (first, last) = match rule.version {
        Some(version) if version == 0 || version > head.seq => return Err(Error::NoVersion(version)),
        Some(version) if version > last => return Ok(None),
        Some(version) => (version, same_content(committer, version, last).await?),
        None => (1, last),
    };
    let mut after = head.as_ref().clone();
    if last >= first {
        after.expire(first, last);
    }
    if after.expired == head.expired {
        return Ok(None);
    }
    committer.change(What::Expire(vec![(first, last)])).await.map(|(_, committed)| Some(committed))
}

/// Returns the last number up to `last` whose content is that of a version: tags and the like leave
/// it as it was, and would keep its bytes.
async fn same_content(committer: &Committer, version: u64, last: u64) -> Result<u64, Error> {
    let mut seq = version;
    while seq < last && !committer.log().known(seq + 1).await?.is_version() {
        seq += 1;
    }
    Ok(seq)
}

/// Returns the number in front of the oldest of the `keep` newest versions.
async fn behind_newest(committer: &Committer, head: &Record, keep: u64) -> Result<u64, Error> {
    let (mut seq, mut kept) = (head.seq, 0);
    while seq > 0 {
        if head.is_live(seq) {
            kept += u64::from(committer.log().known(seq).await?.is_version());
            if kept == keep {
                return Ok(seq - 1);
            }
        }
        seq -= 1;
    }
    Ok(0)
}
