//! The start-up probe: whether a store creates an object for one of several rivals only, and then
//! lists it. A store that checks and then writes, in two steps, loses commits, and one whose lists
//! are old loses objects that clones need: both are refused. It costs some dozens
//! of requests: ask once per bucket and set of endpoints, and keep the answer.

use bytes::Bytes;
use futures_util::future::join_all;
use object_store::path::Path;

use crate::error::Error;
use crate::names;
use crate::world::{Created, World};

/// Rivals for one key: what made a store that checks first fail in nearly each round.
const RIVALS: usize = 8;
/// Rounds, each with a key of its own.
const ROUNDS: usize = 6;

/// Probes a store through all given worlds, one for each of its endpoints, below a prefix that is
/// its own.
///
/// # Errors
/// [`Error::StoreLies`] when two rivals were told that they had created the same object, or the
/// object is not the winner's.
pub async fn probe(worlds: &[World], prefix: &Path) -> Result<(), Error> {
    let Some(first) = worlds.first() else { return Ok(()) };
    for _ in 0..ROUNDS {
        let path = prefix.clone().join(format!("probe-{:032x}", names::random(&*first.entropy)?));
        let rivals = (0..RIVALS).map(|rival| {
            let world = &worlds[rival % worlds.len()];
            let body = Bytes::from(format!("{rival}"));
            let path = &path;
            async move {
                match world.create(path, body).await {
                    Created::Yes => Ok(rival),
                    Created::Ask(error) => Err(error),
                }
            }
        });
        let (mut winners, mut refusal) = (Vec::new(), None);
        for answer in join_all(rivals).await {
            match answer {
                Ok(rival) => winners.push(rival),
                // Of two answers, the one that is no conflict tells more.
                Err(error) if is_conflict(&error) => {
                    refusal.get_or_insert(error);
                }
                Err(error) => refusal = Some(error),
            }
        }
        let found = first.get(&path).await?;
        let again = first.create(&path, Bytes::from_static(b"again")).await;
        // A list that fails says nothing.
        let is_listed = first.list(prefix, None).await.map_or(true, |listed| listed.contains(&path));
        for _ in 0..3 {
            if object_store::ObjectStoreExt::delete(&*first.store, &path).await.is_ok() {
                break;
            }
        }
        let refused = |what: String| {
            Err(Error::StoreLies(format!(
                "{what}: the store does not create objects atomically (If-None-Match), and commits would be lost; use another store, or \
                 another release of it"
            )))
        };
        if winners.len() > 1 {
            return refused(format!("{} of {RIVALS} rivals were told that they created {path}", winners.len()));
        }
        if matches!(again, Created::Yes) {
            return refused(format!("{path} was created a second time"));
        }
        // A winner whose reply was lost is no fault; another winner's bytes under a reply are.
        if let (Some(winner), Some(bytes)) = (winners.first(), &found)
            && bytes.as_ref() != format!("{winner}").as_bytes()
        {
            return refused(format!("{path} does not hold what its creator wrote"));
        }
        if let (None, Some(error)) = (&found, refusal.filter(|error| !is_conflict(error))) {
            // No bucket, or no permission: that says nothing about the store.
            return Err(Error::store(format!("creating {path}"), error));
        }
        if found.is_none() {
            return refused(format!("{path} was not created for any of {RIVALS} rivals"));
        }
        if !is_listed {
            return Err(Error::StoreLies(format!(
                "{path} was created and read, and a list does not show it: `shale blob gc` would delete objects that clones need; use \
                 another store, or make its lists current"
            )));
        }
    }
    Ok(())
}

fn is_conflict(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. })
}
