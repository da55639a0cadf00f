//! Clones: a blob whose first version is a version of another blob, and which shares its packs.
//! Owns the order that keeps these packs from being deleted. The version is *pinned* in every blob
//! whose packs it names, under the number in the life log that the clone will have; the clone is
//! *born* under that number and no other; then it gets its first record. A clone that loses the
//! number to a rival pins again.

use futures_util::{StreamExt, TryStreamExt};

use crate::data::layout::Layout;
use crate::error::Error;
use crate::names::BlobKey;
use crate::protocol::commit::{CommitOptions, Committer};
use crate::protocol::life::{self, Life};
use crate::protocol::log::Log;
use crate::protocol::ops::Action;
use crate::protocol::pins::{self, Pin};
use crate::protocol::record::{ORIGINS_MAX, Origin, Record};
use crate::store::backend::Backend;

/// Attempts of a clone that loses the race for a number. More rivals for one key than this are no
/// accident.
const TRIES_MAX: usize = 16;

/// A blob, and its name in the pins and origins of other blobs.
#[derive(Debug, Clone, Copy)]
pub struct BlobRef<'a> {
    /// Its committer.
    pub committer: &'a Committer,
    /// Its URL or key, as pins and origins name it.
    pub location: &'a str,
}

/// Finds the life log of a pin's holder; `None` for an unknown holder.
pub type FindHolder<'a> = dyn Fn(&str) -> Option<(Backend, BlobKey)> + Sync + 'a;

/// Creates a blob from version `version` of another one. `origins` are the blobs whose packs the
/// source names, in the order of its record.
///
/// # Errors
/// [`Error::Exists`] when there is a blob at the key; [`Error::Expired`] when the version is not
/// live.
pub async fn clone_blob(
    source: BlobRef<'_>,
    version: u64,
    origins: &[BlobRef<'_>],
    backend: Backend,
    key: BlobKey,
    location: &str,
    options: CommitOptions,
) -> Result<Committer, Error> {
    let head = source.committer.refresh().await?;
    let record = source.committer.log().version(&head, version).await?;
    if origins.len() != record.origins.len() || origins.len() >= ORIGINS_MAX {
        let why = format!("the version has packs of {} other blobs, at most {}", record.origins.len(), ORIGINS_MAX - 1);
        return Err(Error::Refused(why));
    }
    for _ in 0..TRIES_MAX {
        let (life, entry) = life::newest(&backend, &key, None).await?;
        if let Some(Life::Born(_)) = entry {
            return Err(Error::Exists(key.path().to_string()));
        }
        let pins = if crate::canary!("pin-after-birth") {
            Vec::new()
        } else {
            pin_everywhere(source, &record, origins, location, life + 1).await?
        };
        match Log::create_at(backend.clone(), key.clone(), life + 1).await {
            Ok(log) => {
                let committer = Committer::new(log.clone(), Record::genesis(log.inc).into(), options);
                adopt(&committer, source, &record).await?;
                return Ok(committer);
            }
            Err(Error::Exists(_)) => {
                for (place, pin) in pins {
                    place.committer.log().remove_pin(&pin).await?;
                }
            }
            Err(error) => return Err(error),
        }
    }
    Err(Error::Exists(key.path().to_string()))
}

/// Pins a version for a holder, both in its own blob and in each blob whose packs it names, where
/// the version that is pinned for the source is pinned again. Either all of these pins hold or none
/// is left.
///
/// # Errors
/// As [`pin_version`].
pub(crate) async fn pin_everywhere<'a>(
    source: BlobRef<'a>,
    version: &Record,
    origins: &[BlobRef<'a>],
    holder: &str,
    life: u64,
) -> Result<Vec<(BlobRef<'a>, Pin)>, Error> {
    let mut made: Vec<(BlobRef<'a>, Pin)> = Vec::new();
    for (place, version) in places(source, version, origins) {
        let only_the_nearest = !made.is_empty() && crate::canary!("only-the-nearest-is-pinned");
        if only_the_nearest {
            break;
        }
        // A pool pins for a volume, and may have had the blob open for a long time.
        let checked = match life {
            0 => place.committer.log().check_version_there(version).await,
            _ => Ok(()),
        };
        let pinned = match checked {
            Ok(()) => pins::pin_version(place.committer, version, holder, life).await,
            Err(error) => Err(error),
        };
        match pinned {
            Ok(pin) => made.push((place, pin)),
            Err(error) => {
                for (place, pin) in made {
                    // A pin that a failure leaves in place retains too much, never too little.
                    let _ = place.committer.log().remove_pin(&pin).await;
                }
                return Err(error);
            }
        }
    }
    Ok(made)
}

/// Returns the blobs in which a version must be pinned, each with its version number there.
pub(crate) fn places<'a>(
    source: BlobRef<'a>,
    version: &Record,
    origins: &[BlobRef<'a>],
) -> impl Iterator<Item = (BlobRef<'a>, u64)> {
    let further = origins.iter().copied().zip(version.origins.iter().map(|origin| origin.version));
    std::iter::once((source, version.seq)).chain(further.collect::<Vec<_>>())
}

async fn adopt(clone: &Committer, source: BlobRef<'_>, record: &Record) -> Result<(), Error> {
    let count = record.origins.len() as u16;
    let mut origins = vec![Origin {
        location: source.location.to_string(),
        inc: source.committer.log().inc(),
        version: record.seq,
        numbers: (2..count + 2).collect(),
    }];
    origins.extend(
        record.origins.iter().map(|origin| Origin {
            numbers: origin.numbers.iter().map(|number| number + 1).collect(),
            ..origin.clone()
        }),
    );
    let layout = adopted(record);
    clone.change(Action::Adopt { origins, size: record.size, layout }).await.map(|_| ())
}

/// Returns the layout with which a clone of a version begins.
pub(crate) fn adopted(record: &Record) -> Layout {
    let pieces = record.layout.pieces().iter().cloned().map(|mut piece| {
        if let Some(pack) = piece.pack_mut() {
            pack.origin += 1;
        }
        piece
    });
    Layout::of(pieces.collect())
}

/// Removes pins whose holders are gone, and returns their number. `find` locates the life log of a
/// holder; pins of holders that it does not know are kept, as are pins that cannot be read. A
/// holder that is not born yet is prevented from being born: its number is claimed, and it must pin
/// again under another one.
///
/// # Errors
/// When the store fails.
pub async fn drop_dead_pins(committer: &Committer, find: &FindHolder<'_>) -> Result<u64, Error> {
    let log = committer.log();
    let pins = log.pins().await?.valid;
    let judged = pins.into_iter().filter(|pin| pin.life > 0).map(|pin| async move {
        let Some((backend, key)) = find(&pin.holder) else { return Ok(0) };
        let gone = match life::claim(&backend, &key, pin.life, Life::Gone).await? {
            Life::Gone => true,
            Life::Born(_) => life::read(&backend, &key, pin.life + 1).await?.is_some(),
        };
        if gone {
            log.remove_pin(&pin).await?;
        }
        Ok(u64::from(gone))
    });
    futures_util::stream::iter(judged).buffer_unordered(pins::AT_ONCE).try_fold(0, async |all, one| Ok(all + one)).await
}
