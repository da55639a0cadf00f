//! The start-up probe of a store: whether it creates an object for only one of several rivals, and
//! then lists the object. A store that checks and then writes, in two steps, loses commits, and one
//! with stale lists loses objects that clones need: both are refused. A probe costs some dozens of
//! requests: run it once per bucket and set of endpoints, and keep the result. Holds no state.

use bytes::Bytes;
use futures_util::future::join_all;
use object_store::path::Path;

use crate::error::Error;
use crate::names;
use crate::store::backend::{Backend, Created, READ_TRIES, is_permanent};

/// Rivals for one key: with this many, a store that checks first failed in nearly every round.
const RIVALS: usize = 8;
/// Rounds, each with a key of its own.
const ROUNDS: usize = 6;

/// Probes a store through all given backends, one for each of its endpoints, below a prefix that no
/// one else uses. A round in which the store is too busy to create anything is repeated.
///
/// # Errors
/// [`Error::StoreInconsistent`] when the store acknowledged two rivals for the same object, or the
/// object is not the winner's, or a list does not show it. [`Error::Store`] when it stays busy, or
/// refuses.
pub async fn probe(backends: &[Backend], prefix: &Path) -> Result<(), Error> {
    let Some(first) = backends.first() else { return Ok(()) };
    let (mut good, mut tries) = (0, 0);
    while good < ROUNDS {
        let path = prefix.clone().join(format!("probe-{:032x}", names::random(&*first.entropy)?));
        let round = round(backends, first, prefix, &path).await?;
        for _ in 0..3 {
            if object_store::ObjectStoreExt::delete(&*first.store, &path).await.is_ok() {
                break;
            }
        }
        match round.verdict(&path)? {
            None => good += 1,
            Some(error) => {
                tries += 1;
                if tries == READ_TRIES || is_permanent(&error, tries) {
                    return Err(Error::store(format!("creating {path}"), error));
                }
                first.pause(tries).await;
            }
        }
    }
    Ok(())
}

/// The answers in one round.
#[derive(Debug, Default)]
struct Round {
    /// Rivals whose request the store acknowledged.
    winners: Vec<usize>,
    /// Reason of a rival's failure other than a conflict.
    failure: Option<object_store::Error>,
    /// The object's bytes afterwards.
    found: Option<Bytes>,
    /// Whether the object could be created again afterwards.
    is_created_again: bool,
    /// Whether a list did not show the object; a failed list does not count.
    is_unlisted: bool,
}

async fn round(backends: &[Backend], first: &Backend, prefix: &Path, path: &Path) -> Result<Round, Error> {
    let rivals = (0..RIVALS).map(|rival| {
        let backend = &backends[rival % backends.len()];
        async move { (rival, backend.create(path, Bytes::from(format!("{rival}"))).await) }
    });
    let mut round = Round::default();
    for (rival, answer) in join_all(rivals).await {
        match answer {
            Created::Yes => round.winners.push(rival),
            Created::Ask(error) if is_conflict(&error) => {}
            Created::Ask(error) => round.failure = Some(error),
        }
    }
    round.found = first.get(path).await?;
    round.is_created_again = matches!(first.create(path, Bytes::from_static(b"again")).await, Created::Yes);
    round.is_unlisted = first.list(prefix, None).await.is_ok_and(|listed| !listed.contains(path));
    Ok(round)
}

impl Round {
    /// Returns the error of an inconclusive round; `None` if the store passed.
    fn verdict(self, path: &Path) -> Result<Option<object_store::Error>, Error> {
        let refused = |what: String| {
            Err(Error::StoreInconsistent(format!(
                "{what}: the store does not create objects atomically (If-None-Match), and commits would be lost; use another store, or \
                 another release of it"
            )))
        };
        if self.winners.len() > 1 {
            return refused(format!(
                "{} of {RIVALS} rivals got the answer that they created {path}",
                self.winners.len()
            ));
        }
        // A rival without an answer may have created it as well, but nothing shows that any did.
        let was_created = !self.winners.is_empty() || self.found.is_some();
        if self.is_created_again && was_created {
            return refused(format!("{path} was created a second time"));
        }
        // A winner whose reply was lost is not a fault; a reply to one rival with the bytes of
        // another is.
        if let (Some(winner), Some(bytes)) = (self.winners.first(), &self.found)
            && bytes.as_ref() != format!("{winner}").as_bytes()
        {
            return refused(format!("{path} does not hold what its creator wrote"));
        }
        if was_created {
            // An object that has disappeared again need not be listed.
            return if self.is_unlisted && self.found.is_some() { unlisted(path) } else { Ok(None) };
        }
        // A missing bucket, missing permissions or overload say nothing about the store.
        match self.failure {
            Some(error) => Ok(Some(error)),
            None => refused(format!("{path} was not created for any of {RIVALS} rivals")),
        }
    }
}

fn unlisted<T>(path: &Path) -> Result<T, Error> {
    Err(Error::StoreInconsistent(format!(
        "{path} was created and read, but a list does not show it: `shale blob gc` would delete objects that clones need; use another \
         store, or make its lists current"
    )))
}

fn is_conflict(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy() -> object_store::Error {
        let answer = "Server returned non-2xx status code: 503 Service Unavailable: <Code>SlowDown</Code>";
        object_store::Error::Generic { store: "S3", source: answer.into() }
    }

    fn verdict_of(round: Round) -> Result<Option<object_store::Error>, String> {
        round.verdict(&Path::from("probe")).map_err(|error| error.to_string())
    }

    #[test]
    fn a_busy_store_is_asked_again_and_one_that_creates_twice_is_refused() {
        let round = |winners: &[usize], is_busy: bool, found: Option<&'static [u8]>, is_created_again: bool| Round {
            winners: winners.to_vec(),
            failure: is_busy.then(busy),
            found: found.map(Bytes::from_static),
            is_created_again,
            is_unlisted: false,
        };
        for good in [
            round(&[3], false, Some(b"3"), false),
            round(&[3], true, Some(b"3"), false),
            // The answer to the winner was lost.
            round(&[], true, Some(b"5"), false),
        ] {
            assert!(matches!(verdict_of(good), Ok(None)));
        }
        // A list that lacks an object is a fault if the object was read.
        let unlisted = |round| verdict_of(Round { is_unlisted: true, ..round });
        let lacking = unlisted(round(&[3], false, Some(b"3"), false));
        assert!(lacking.as_ref().is_err_and(|text| text.contains("a list does not show it")), "{lacking:?}");
        assert!(matches!(unlisted(round(&[3], false, None, false)), Ok(None)));
        assert!(matches!(unlisted(round(&[], true, None, false)), Ok(Some(_))));
        // All rivals were turned away, and a later request was not.
        for busy in [round(&[], true, None, true), round(&[], true, None, false)] {
            assert!(matches!(verdict_of(busy), Ok(Some(_))));
        }
        for (unsafe_store, why) in [
            (round(&[1, 2], true, Some(b"2"), false), "2 of 8 rivals"),
            (round(&[1], true, Some(b"1"), true), "a second time"),
            (round(&[1], true, None, true), "a second time"),
            (round(&[], true, Some(b"1"), true), "a second time"),
            (round(&[1], true, Some(b"2"), false), "does not hold what"),
            (round(&[], false, None, true), "was not created for any"),
        ] {
            let verdict = verdict_of(unsafe_store);
            assert!(verdict.as_ref().is_err_and(|text| text.contains(why)), "{why}: {verdict:?}");
        }
    }
}
