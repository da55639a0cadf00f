//! Garbage collection: deletes packs that no live version names. It takes no lock, trusts no clock, and runs beside any number of
//! writers and other collectors. The steps:
//!
//! 1. *Mark*: with record `h` in hand, list the packs, and strike off those that a live version names and those whose session was born at or
//!    after a record `b`, chosen so that honest uploads have the time they need.
//! 2. *Fence*: commit a record `f` that says that sessions born before `b` may commit no more.
//! 3. *Look again*: strike off what the records from `h + 1` to `f` name.
//! 4. *Sweep*: delete the rest; then bury the expired records, which leaves their operations and their keys.
//!
//! A commit behind `f` was made by a writer that has read the fence, so it names no pack of an older session for the first time; one in front of `f`
//! was read in step 3. A version that was dead at `h` stays dead, because every record carries which versions are expired, and a tag, a pin
//! or a restore is refused by the record that it is built on. So no record can ever name again what step 4 deletes. The clock only
//! decides how long an upload may take before it has to begin again.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use codec::Workspace;
use futures_util::TryStreamExt;
use object_store::ObjectStoreExt;
use object_store::path::Path;

use crate::commit::Committer;
use crate::error::Error;
use crate::extent::{PackRef, Session};
use crate::log::Log;
use crate::names::OpId;
use crate::ops::{Op, What};
use crate::record::Record;
use crate::walk::Named;
use crate::world::READ_TRIES;

/// Records that one run buries: each costs a read and a write, and the next run goes on.
const BURIALS_MAX: usize = 1000;

/// How to collect.
#[derive(Debug, Clone)]
pub struct GcOptions {
    /// Uploads that began longer ago, by the clocks of the writers, are fenced and have to begin again.
    pub upload_max: Duration,
    /// Only tell what would be deleted.
    pub dry_run: bool,
    /// Requests per second that deletions and burials may take: they must not starve what users wait for.
    pub requests_per_s: u32,
}

impl Default for GcOptions {
    /// Uploads of a day, 100 requests per second.
    fn default() -> Self {
        Self { upload_max: Duration::from_secs(24 * 3600), dry_run: false, requests_per_s: 100 }
    }
}

/// What a run did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GcReport {
    /// Packs that were listed.
    pub packs: u64,
    /// Packs deleted, or to be deleted in a dry run.
    pub deleted: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Packs that the store would not delete: an object lock, or a policy. The next run tries again.
    pub refused: u64,
    /// The first refusal, as the store words it.
    pub refusal: Option<String>,
    /// Records buried.
    pub buried: u64,
    /// The record with the fence; none in a dry run, and when nothing is to be deleted.
    pub fence: Option<u64>,
}

/// Collects garbage of a blob.
///
/// # Errors
/// When the store fails. Nothing is deleted that a live version names, however often and wherever a run is broken off.
pub async fn gc(committer: &Committer, options: &GcOptions) -> Result<GcReport, Error> {
    let log = committer.log();
    let head = committer.refresh().await?;
    let mut named = Named::default();
    for seq in head.live() {
        let record = log.known(seq).await?;
        if !record.tombstone {
            named.add(log, &record).await?;
        }
    }
    let born = fence_for(log, &head, options.upload_max).await?;
    let listed = list_packs(log).await?;
    let mut report = GcReport { packs: listed.len() as u64, ..GcReport::default() };
    let mut garbage = listed;
    garbage.retain(|pack, _| pack.born < born && !named.packs.contains(pack));
    let dead = dead_versions(&head);
    if options.dry_run || (garbage.is_empty() && dead.is_empty()) {
        (report.deleted, report.bytes) = (garbage.len() as u64, garbage.values().map(|(_, bytes)| bytes).sum());
        return Ok(report);
    }
    if !crate::canary!("gc-without-fence") {
        let op = Op {
            id: OpId::random(&*log.world.entropy)?,
            born: u64::MAX,
            raw: 0,
            stored: 0,
            message: String::new(),
            what: What::Fence(born),
        };
        let fence = committer.commit(op).await?.seq;
        report.fence = Some(fence);
        for seq in head.seq + 1..=fence {
            let record = log.known(seq).await?;
            if record.tombstone {
                // Another collector is ahead of this one; the next run finds what is left.
                return Ok(report);
            }
            if !crate::canary!("gc-without-second-look") {
                named.add(log, &record).await?;
            }
        }
        garbage.retain(|pack, _| !named.packs.contains(pack));
    }
    let pace = Duration::from_secs(1) / options.requests_per_s.max(1);
    for (path, bytes) in garbage.values() {
        match delete(log, path).await {
            Ok(()) => {
                report.deleted += 1;
                report.bytes += bytes;
            }
            Err(error) => {
                report.refused += 1;
                report.refusal.get_or_insert_with(|| error.to_string());
            }
        }
        tokio::time::sleep(pace).await;
    }
    if report.refused == 0 {
        for seq in dead.into_iter().rev().take(BURIALS_MAX) {
            report.buried += u64::from(bury(log, seq).await?);
            tokio::time::sleep(pace).await;
        }
    }
    Ok(report)
}

/// Returns the versions behind which nothing is left to keep, oldest first.
fn dead_versions(head: &Record) -> Vec<u64> {
    let all = head.expired.iter().flat_map(|(first, last)| *first..=*last);
    all.filter(|seq| !head.is_live(*seq)).collect()
}

/// Returns the number of the newest record that is older than an upload may take, by the wall clocks of their writers, or the fence that
/// there is already. The times need not rise: any number is safe.
async fn fence_for(log: &Log, head: &Record, upload_max: Duration) -> Result<u64, Error> {
    let before = log.world.clock.unix_s().saturating_sub(upload_max.as_secs());
    if head.unix_s <= before {
        return Ok(head.seq);
    }
    let (mut old, mut young) = (head.fence, head.seq);
    while young - old > 1 {
        let middle = old + (young - old) / 2;
        if log.known(middle).await?.unix_s <= before { old = middle } else { young = middle }
    }
    Ok(old)
}

/// Lists the packs of a blob: each with its key and its bytes. Names that are no pack's are left alone.
pub(crate) async fn list_packs(log: &Log) -> Result<BTreeMap<PackRef, (Path, u64)>, Error> {
    let prefix = log.key.packs(log.inc);
    let mut tries = 0;
    loop {
        let listed = log.world.store.list(Some(&prefix)).try_fold(BTreeMap::new(), |mut packs, meta| async move {
            if let Some(pack) = parse_pack(&meta.location) {
                packs.insert(pack, (meta.location, meta.size));
            }
            Ok(packs)
        });
        match listed.await {
            Ok(packs) => return Ok(packs),
            Err(error) if tries + 1 == READ_TRIES => return Err(Error::store(format!("listing {prefix}"), error)),
            Err(_) => tries += 1,
        }
        log.world.pause(tries).await;
    }
}

fn parse_pack(path: &Path) -> Option<PackRef> {
    let mut parts = path.as_ref().rsplit('/');
    let number = parts.next()?.parse().ok()?;
    let (born, session) = parts.next()?.split_once('-')?;
    let session = Session(u128::from_str_radix(session, 16).ok()?);
    Some(PackRef { origin: 0, born: born.parse().ok()?, session, number })
}

/// Deletes an object. One that is gone already is deleted.
pub(crate) async fn delete(log: &Log, path: &Path) -> Result<(), Error> {
    let mut tries = 0;
    loop {
        let error = match log.world.store.delete(path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => return Ok(()),
            Err(error) => error,
        };
        tries += 1;
        if tries == READ_TRIES {
            return Err(Error::store(format!("deleting {path}"), error));
        }
        log.world.pause(tries).await;
    }
}

/// Puts a tombstone in the place of a dead version's record, which keeps its key and its operations; tells whether it had not been done.
async fn bury(log: &Log, seq: u64) -> Result<bool, Error> {
    let record = log.known(seq).await?;
    if record.tombstone {
        return Ok(false);
    }
    let path = log.key.record(log.inc, seq);
    if crate::canary!("record-deleted") {
        delete(log, &path).await?;
        return Ok(true);
    }
    let mut tombstone = (*record).clone().into_tombstone();
    if crate::canary!("tombstone-without-ops") {
        for done in &mut tombstone.ops {
            done.op = OpId(1);
        }
    }
    let damaged = |source| Error::Damaged { what: format!("tombstone of {path}"), source };
    let bytes = tombstone.encode(&mut Workspace::new()).map_err(damaged)?;
    log.world.put(&path, Bytes::from(bytes)).await?;
    Ok(true)
}
