//! Removing a blob, in steps of which any may be the last. *Close* the log, so that no writer
//! commits any more. Record in the life log that the blob is *gone*, so that the key can be reused.
//! *Expire* the versions that are not pinned, in a last record. List the pins once more, and
//! *delete* the packs that no remaining version names. A remover that is killed leaves garbage,
//! never a hole: the next client that meets a closed log does the second step, and
//! [`sweep_removed`] the others. Holds no state; any task may call it.

use crate::error::Error;
use crate::names::BlobKey;
use crate::protocol::clone::{FindHolder, drop_dead_pins};
use crate::protocol::commit::{CommitOptions, Committer};
use crate::protocol::delete;
use crate::protocol::expire::without;
use crate::protocol::gc;
use crate::protocol::life::{self, Life};
use crate::protocol::log::Log;
use crate::protocol::offer;
use crate::protocol::ops::Action;
use crate::protocol::walk::Named;
use crate::store::backend::Backend;

/// The result of a removal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Removed {
    /// Packs examined.
    pub packs: u64,
    /// Packs deleted.
    pub deleted: u64,
    /// Bytes of the deleted packs.
    pub bytes: u64,
    /// Packs retained because clones or volumes have pinned versions.
    pub pinned: u64,
}

/// Removes a blob.
///
/// # Errors
/// When the store fails: call it again, or leave the rest to [`sweep_removed`].
pub async fn remove(committer: &Committer) -> Result<Removed, Error> {
    let log = committer.log();
    match committer.change(Action::Close).await {
        Ok(_) | Err(Error::Removed) => {}
        Err(error) => return Err(error),
    }
    life::claim(&log.backend, &log.key, log.life + 1, Life::Gone).await?;
    delete_unpinned(committer).await
}

/// Deletes the remains of removed incarnations of a key: packs from late writers, and packs whose
/// last pin has been removed.
///
/// # Errors
/// When the store fails.
pub async fn sweep_removed(backend: &Backend, key: &BlobKey, find: &FindHolder<'_>) -> Result<Removed, Error> {
    let (newest, _) = life::newest(backend, key, None).await?;
    let mut all = Removed::default();
    // The life log is short: an entry for each use of the key.
    for number in 1..newest {
        let (Some(Life::Born(inc)), Some(Life::Gone)) =
            (life::read(backend, key, number).await?, life::read(backend, key, number + 1).await?)
        else {
            continue;
        };
        let log = Log { backend: backend.clone(), key: key.clone(), inc, life: number };
        let known = life::last_number(backend, &key.log(inc)).await?.unwrap_or(0);
        let head = log.newest(log.read_existing(known).await?).await?;
        if !head.closed {
            continue;
        }
        let committer = Committer::new(log, head, CommitOptions::default());
        drop_dead_pins(&committer, find).await?;
        let removed = delete_unpinned(&committer).await?;
        all.packs += removed.packs;
        all.deleted += removed.deleted;
        all.bytes += removed.bytes;
        all.pinned += removed.pinned;
    }
    Ok(all)
}

/// Checks that there is a blob at a key, or was one.
///
/// # Errors
/// [`Error::Missing`] when there never was one.
pub async fn check_known(backend: &Backend, key: &BlobKey) -> Result<(), Error> {
    match life::newest(backend, key, None).await? {
        (0, _) => Err(Error::Missing(key.path().to_string())),
        _ => Ok(()),
    }
}

async fn delete_unpinned(committer: &Committer) -> Result<Removed, Error> {
    let log = committer.log();
    offer::sweep(log, u64::MAX, delete::PER_SECOND).await?;
    give_up_unpinned(committer).await?;
    let head = committer.refresh().await?;
    // Only now that the record is known in which the other versions expire.
    let mut held = log.pinned().await?;
    held.extend(head.live());
    let pinned = Named::by(log, held.into_iter().collect()).await?;
    let mut removed = Removed { pinned: pinned.packs.len() as u64, ..Removed::default() };
    let mut garbage = gc::list_packs(log, 0).await?;
    removed.packs = garbage.len() as u64;
    garbage.retain(|pack, _| !pinned.packs.contains(pack) || crate::canary!("rm-ignores-pins"));
    let swept = delete::sweep(log, garbage.into_values().collect(), delete::PER_SECOND).await;
    if let Some((path, error)) = swept.refusal {
        let what = format!(
            "the blob is removed, but the store would not delete {} of its objects (`shale blob gc` tries again): deleting {path}",
            swept.refused
        );
        return Err(Error::store(what, error));
    }
    (removed.deleted, removed.bytes) = (swept.deleted, swept.bytes);
    Ok(removed)
}

/// Expires all versions of a closed blob that are not pinned, so that no client can pin them any
/// more.
async fn give_up_unpinned(committer: &Committer) -> Result<(), Error> {
    let pinned = committer.log().pinned().await?;
    let head = committer.refresh().await?;
    let mut after = head.as_ref().clone();
    // The newest record retains nothing, and becomes an ordinary version with the next one.
    let older = without(1, head.seq.saturating_sub(1), &pinned);
    older.into_iter().for_each(|(first, last)| after.expire(first, last));
    if after.expired != head.expired {
        match committer.change(Action::Expire(without(1, head.seq, &pinned))).await {
            // If more versions are pinned than a record has ranges, the others stay.
            Ok(_) | Err(Error::Refused(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
