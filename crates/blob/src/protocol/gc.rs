//! Garbage collection: deletes packs that no live version names. It takes no lock, trusts no clock,
//! and runs concurrently with any number of writers and other collectors. The steps:
//!
//! 1. *Mark*: with record `h` known, list the pins, then the packs that may be dead (`gc_progress`
//!    limits the sessions). Remove from the list those that a live or pinned version names, and
//!    those whose session was born at or after a record `b`, chosen so that honest uploads have the
//!    time they need.
//! 2. *Fence*: commit a record `f` after which sessions born before `b` may not commit.
//! 3. *Check again*: remove from the list the packs that records `h + 1` to `f` name.
//! 4. *Sweep*: delete the remaining packs; then bury the expired records, which leaves their
//!    operations and their keys.
//!
//! A commit after `f` was made by a writer that has read the fence, so it does not name a pack of
//! an older session for the first time; a commit before `f` was read in step 3. A version that is
//! dead at `h` stays dead: every record carries the set of expired versions, and a tag or a restore
//! is refused by the record on which it is built. A pin that step 1 does not list is refused by
//! record `h` (`pins`). So a pack that step 4 deletes can never be named again. The clock only
//! decides how long an upload may take before it must start over.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use codec::Workspace;
use futures_util::TryStreamExt;
use object_store::path::Path;

use crate::data::extent::{PackRef, Session};
use crate::error::Error;
use crate::protocol::commit::Committer;
use crate::protocol::delete::{PER_SECOND, delete, sweep};
use crate::protocol::gc_progress::GcProgress;
use crate::protocol::log::Log;
use crate::protocol::offer;
use crate::protocol::ops::Action;
use crate::protocol::record::Record;
use crate::protocol::walk::Named;
use crate::store::backend::{READ_TRIES, is_permanent};

/// Records buried by one run: each costs a read and a write, and the next run continues.
const BURIALS_MAX: usize = 1000;

/// Options of a collection.
#[derive(Debug, Clone)]
pub struct GcOptions {
    /// Uploads that began longer ago, by the clocks of the writers, are fenced and must start over.
    pub upload_max: Duration,
    /// Versions that expired more recently than this, by the same clocks, can still be read to the
    /// end.
    pub grace: Duration,
    /// Examine every pack and every version, not only the changes since the last run.
    pub full: bool,
    /// Only report; delete nothing.
    pub dry_run: bool,
    /// Rate limit of deletions and burials in requests per second, so that they do not delay users'
    /// requests.
    pub requests_per_s: u32,
}

impl Default for GcOptions {
    /// Uploads and grace of a day, 100 requests per second.
    fn default() -> Self {
        let day = Duration::from_secs(24 * 3600);
        Self { upload_max: day, grace: day, full: false, dry_run: false, requests_per_s: PER_SECOND }
    }
}

/// The result of a run, or of a dry run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GcReport {
    /// Whether every pack was examined, not only those that are new or lost a version since the
    /// last run.
    pub full: bool,
    /// Packs examined.
    pub packs: u64,
    /// Packs deleted, or to be deleted in a dry run.
    pub deleted: u64,
    /// Bytes of the deleted packs.
    pub bytes: u64,
    /// Packs that no version needs but that may belong to an upload in progress.
    pub young: u64,
    /// Expired versions that may still have readers.
    pub in_grace: u64,
    /// Packs that the store refused to delete because of an object lock or a policy. The next run
    /// tries again.
    pub refused: u64,
    /// The first refusal, in the store's words.
    pub refusal: Option<String>,
    /// Records buried.
    pub buried: u64,
    /// Number of the record with the fence; none in a dry run, or when there is nothing to delete.
    pub fence: Option<u64>,
}

/// Collects garbage of a blob.
///
/// When the store fails. A run may be interrupted at any point without a live version losing data.
pub async fn gc(committer: &Committer, options: &GcOptions) -> Result<GcReport, Error> {
    let log = committer.log();
    let head = committer.refresh().await?;
    let progress = if options.full { None } else { GcProgress::read(log).await? };
    let full = progress.as_ref().is_none_or(GcProgress::is_full_due);
    let progress = progress.unwrap_or_default();
    // Only now that record `h` is known: a pin missing from this list is refused by that record.
    let pinned = log.pinned().await?;
    let retained = Retained::of(log, &head, pinned, options.grace).await?;
    let mut named = Named::by(log, retained.versions(&head)).await?;
    let born = log.older_than(&head, head.fence, options.upload_max).await?;
    let dead: Vec<u64> = retained.dead(&head, &progress).take(BURIALS_MAX).collect();
    let from = if full { 0 } else { progress.from };
    let listed = candidates(log, from, &dead, &named).await?;
    let mut report = GcReport { full, packs: listed.len() as u64, ..GcReport::default() };
    let mut garbage = listed;
    garbage.retain(|pack, _| !named.packs.contains(pack));
    let unneeded = garbage.len();
    garbage.retain(|pack, _| pack.born < born);
    report.young = (unneeded - garbage.len()) as u64;
    report.in_grace = retained.in_grace(&head).count() as u64;
    if report.full && !options.dry_run {
        offer::sweep(log, born, options.requests_per_s).await?;
    }
    if options.dry_run {
        (report.deleted, report.bytes) = (garbage.len() as u64, garbage.values().map(|(_, bytes)| bytes).sum());
        return Ok(report);
    }
    if garbage.is_empty() && dead.is_empty() {
        progress.next(born, &[]).write(log).await;
        return Ok(report);
    }
    if !crate::canary!("gc-without-fence") {
        let fence = committer.change(Action::Fence(born)).await?.1.seq;
        report.fence = Some(fence);
        for seq in head.seq + 1..=fence {
            let record = log.read_existing(seq).await?;
            if record.tombstone {
                // Another collector is ahead of this one; the next run finds the rest.
                return Ok(report);
            }
            if !crate::canary!("gc-without-second-look") {
                named.add(log, &record).await?;
            }
        }
        garbage.retain(|pack, _| !named.packs.contains(pack));
    }
    let deleted = sweep(log, garbage.into_values().collect(), options.requests_per_s).await;
    (report.deleted, report.bytes) = (deleted.deleted, deleted.bytes);
    report.refused = deleted.refused;
    report.refusal = deleted.refusal.map(|(path, error)| Error::store(format!("deleting {path}"), error).to_string());
    if report.refused > 0 {
        return Ok(report);
    }
    let pace = Duration::from_secs(1) / options.requests_per_s.max(1);
    for seq in &dead {
        report.buried += u64::from(bury(log, *seq).await?);
        tokio::time::sleep(pace).await;
    }
    progress.next(born, &dead).write(log).await;
    Ok(report)
}

/// The versions to retain: those that are live or pinned, and those that were live until recently.
struct Retained {
    /// The newest record that is older than the grace period.
    then: std::sync::Arc<Record>,
    /// Pinned versions.
    pinned: BTreeSet<u64>,
}

impl Retained {
    async fn of(
        log: &Log,
        head: &std::sync::Arc<Record>,
        pinned: BTreeSet<u64>,
        grace: Duration,
    ) -> Result<Self, Error> {
        if grace.is_zero() {
            return Ok(Self { then: head.clone(), pinned });
        }
        let mut seq = log.older_than(head, 0, grace).await?;
        loop {
            let then = log.read_existing(seq).await?;
            // A tombstone does not list the versions that were live then. An older record retains
            // more.
            if !then.tombstone {
                return Ok(Self { then, pinned });
            }
            seq -= 1;
        }
    }

    fn has(&self, head: &Record, seq: u64) -> bool {
        head.is_live(seq) || self.pinned.contains(&seq) || seq > self.then.seq || self.then.is_live(seq)
    }

    fn versions(&self, head: &Record) -> Vec<u64> {
        self.given_up(head).chain(head.live()).collect::<BTreeSet<u64>>().into_iter().collect()
    }

    /// Returns the versions that have expired but are retained.
    fn given_up(&self, head: &Record) -> impl Iterator<Item = u64> {
        let expired = head.expired.iter().flat_map(|(first, last)| *first..=*last);
        expired.filter(|seq| !head.is_live(*seq) && self.has(head, *seq))
    }

    /// Returns those that are retained only until they can no longer have readers.
    fn in_grace(&self, head: &Record) -> impl Iterator<Item = u64> {
        self.given_up(head).filter(|seq| !self.pinned.contains(seq))
    }

    /// Returns the versions that need not be retained and are not buried yet, oldest first.
    fn dead(&self, head: &Record, progress: &GcProgress) -> impl Iterator<Item = u64> {
        progress.unburied(&head.expired).filter(|seq| !self.has(head, *seq))
    }
}

/// Lists the packs that may be dead: those of sessions born at record `from` or later, and those of
/// sessions with a pack that is named only by versions that died since the last sweep. A dead
/// version names everything that it shares with its neighbours: packs of live versions are not
/// candidates for that reason.
async fn candidates(log: &Log, from: u64, dead: &[u64], live: &Named) -> Result<Packs, Error> {
    let mut packs = list_packs(log, from).await?;
    if from == 0 {
        return Ok(packs);
    }
    let named = Named::by(log, dead.to_vec()).await?;
    let died = named.packs.difference(&live.packs);
    let sessions: BTreeSet<_> = died.map(|pack| (pack.born, pack.session)).collect();
    for (born, session) in sessions.into_iter().filter(|(born, _)| *born < from) {
        let pack = PackRef { origin: 0, born, session, number: 0 };
        let mut prefix: Vec<_> = log.key.pack(log.inc, &pack).parts().map(|part| part.as_ref().to_owned()).collect();
        prefix.pop();
        packs.extend(list(log, &Path::from_iter(prefix), 0).await?);
    }
    Ok(packs)
}

/// Packs, each with its key and its size in bytes.
type Packs = BTreeMap<PackRef, (Path, u64)>;

/// Lists the packs of a blob whose sessions were born at record `from` or later.
pub(crate) async fn list_packs(log: &Log, from: u64) -> Result<Packs, Error> {
    list(log, &log.key.packs(log.inc), from).await
}

/// Lists the packs below a prefix, ignoring objects that are not named like packs.
async fn list(log: &Log, prefix: &Path, from: u64) -> Result<Packs, Error> {
    let offset = prefix.clone().join(format!("{from:020}"));
    let mut tries = 0;
    loop {
        let objects = if from == 0 {
            log.backend.store.list(Some(prefix))
        } else {
            log.backend.store.list_with_offset(Some(prefix), &offset)
        };
        let listed = objects.try_fold(BTreeMap::new(), |mut packs, meta| async move {
            if let Some(pack) = parse_pack(&meta.location).filter(|pack| pack.born >= from) {
                packs.insert(pack, (meta.location, meta.size));
            }
            Ok(packs)
        });
        match listed.await {
            Ok(packs) => return Ok(packs),
            Err(error) if tries + 1 == READ_TRIES || is_permanent(&error, tries + 1) => {
                return Err(Error::store(format!("listing {prefix}"), error));
            }
            Err(_) => tries += 1,
        }
        log.backend.pause(tries).await;
    }
}

fn parse_pack(path: &Path) -> Option<PackRef> {
    let mut parts = path.as_ref().rsplit('/');
    let number = parts.next()?.parse().ok()?;
    let (born, session) = parts.next()?.split_once('-')?;
    let session = Session(u128::from_str_radix(session, 16).ok()?);
    Some(PackRef { origin: 0, born: born.parse().ok()?, session, number })
}

/// Replaces the record of a dead version with a tombstone, which keeps its key and its operations.
/// Returns whether that had not been done already.
async fn bury(log: &Log, seq: u64) -> Result<bool, Error> {
    let record = log.read_existing(seq).await?;
    if record.tombstone {
        return Ok(false);
    }
    let path = log.key.record(log.inc, seq);
    if crate::canary!("record-deleted") {
        delete(log, &path).await.map_err(|error| Error::store(format!("deleting {path}"), error))?;
        return Ok(true);
    }
    let mut tombstone = (*record).clone().into_tombstone();
    if crate::canary!("tombstone-without-ops") {
        for done in &mut tombstone.ops {
            done.op = crate::names::OpId(1);
        }
    }
    let damaged = |source| Error::Damaged { what: format!("tombstone of {path}"), source };
    let bytes = tombstone.encode(&mut Workspace::new()).map_err(damaged)?;
    log.backend.put(&path, Bytes::from(bytes)).await?;
    Ok(true)
}
