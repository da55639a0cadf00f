//! Clones: a blob that begins with another blob's version and shares its packs. Owns the order that keeps the packs from being deleted
//! under it: the version is *pinned* in every blob whose packs it names, under the number in the life log that the clone will have; then
//! the clone is *born* under that number, and only under that; then it gets its first record. A clone that loses its number pins anew.

use crate::commit::{CommitOptions, Committer};
use crate::error::Error;
use crate::layout::Layout;
use crate::life::{self, Life};
use crate::log::Log;
use crate::names::{BlobKey, OpId};
use crate::ops::What;
use crate::record::{ORIGINS_MAX, Origin, Pin, Record};
use crate::world::World;

/// Clones that lose the race for a number try again: more rivals than this for one key are no accident.
const TRIES_MAX: usize = 16;

/// A blob, and what others call it.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// Its committer.
    pub committer: &'a Committer,
    /// Its URL or key, as pins and origins are to name it.
    pub location: &'a str,
}

/// Tells where the life log of a pin's holder is; `None` for one that it does not know.
pub type FindHolder<'a> = dyn Fn(&str) -> Option<(World, BlobKey)> + Sync + 'a;

/// Makes a blob of version `version` of another. `origins` are the blobs that this one has packs of, in the order of its record.
///
/// # Errors
/// [`Error::Exists`] when there is a blob at the key; [`Error::Expired`] when the version is not live.
pub async fn clone_blob(
    source: Place<'_>,
    version: u64,
    origins: &[Place<'_>],
    world: World,
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
        let (life, entry) = life::newest(&world, &key, None).await?;
        if let Some(Life::Born(_)) = entry {
            return Err(Error::Exists(key.path().to_string()));
        }
        let pins = if crate::canary!("pin-after-birth") {
            Vec::new()
        } else {
            pin_everywhere(source, version, origins, location, life + 1).await?
        };
        match Log::create_at(world.clone(), key.clone(), life + 1).await {
            Ok(log) => {
                let committer = Committer::new(log.clone(), Record::genesis(log.inc).into(), options);
                adopt(&committer, source, &record).await?;
                return Ok(committer);
            }
            Err(Error::Exists(_)) => {
                for (place, pin) in pins {
                    place.committer.change(What::Unpin(pin)).await?;
                }
            }
            Err(error) => return Err(error),
        }
    }
    Err(Error::Exists(key.path().to_string()))
}

/// Pins the version, and in each blob that it has packs of the version that holds them there: the one that is pinned for the source.
pub(crate) async fn pin_everywhere<'a>(
    source: Place<'a>,
    version: u64,
    origins: &[Place<'a>],
    location: &str,
    life: u64,
) -> Result<Vec<(Place<'a>, OpId)>, Error> {
    let mut pins = Vec::new();
    let mut holder = source;
    let mut versions = vec![version];
    for place in std::iter::once(&source).chain(origins) {
        let is_source = std::ptr::eq(place.committer, source.committer);
        // A volume is pinned by its pool, which may have had the blob open for long.
        if life == 0 {
            place.committer.log().check_version_there(version).await?;
        }
        // A volume, which has no life log, is pinned once.
        let known = if is_source && life > 0 { Vec::new() } else { place.committer.refresh().await?.pins.clone() };
        if !is_source {
            // What the nearer blob has of this one is pinned here in its name. A rival for its
            // number in the life log may have pinned another version in the same name, and may not
            // have taken that pin away yet: which of them is the blob's own cannot be told.
            let is_held = |pin: &&Pin| pin.holder == holder.location && pin.life == holder.committer.log().life;
            versions = known.iter().filter(is_held).map(|pin| pin.version).collect();
            versions.sort_unstable();
            versions.dedup();
            if versions.is_empty() {
                let why = format!("{} has no pin for {}: its packs may be gone", place.location, holder.location);
                return Err(Error::Refused(why));
            }
        }
        for &version in &versions {
            let is_known = |pin: &Pin| pin.holder == location && pin.version == version && pin.life == 0;
            if life == 0 && known.iter().any(is_known) {
                continue;
            }
            let what = What::Pin { version, holder: location.to_string(), life };
            pins.push((*place, place.committer.change(what).await?.0));
            // A blob that was deleted between the look and the pin is not held by that.
            if life == 0 {
                place.committer.log().check_there().await?;
            }
        }
        holder = *place;
    }
    Ok(pins)
}

async fn adopt(clone: &Committer, source: Place<'_>, record: &Record) -> Result<(), Error> {
    let count = record.origins.len() as u16;
    let mut origins = vec![Origin {
        location: source.location.to_string(),
        inc: source.committer.log().inc(),
        numbers: (2..count + 2).collect(),
    }];
    origins.extend(
        record.origins.iter().map(|origin| Origin {
            numbers: origin.numbers.iter().map(|number| number + 1).collect(),
            ..origin.clone()
        }),
    );
    let layout = adopted(record);
    clone.change(What::Adopt { origins, size: record.size, layout }).await.map(|_| ())
}

/// Returns the layout that a clone of a version begins with.
pub(crate) fn adopted(record: &Record) -> Layout {
    let pieces = record.layout.pieces().iter().cloned().map(|mut piece| {
        if let Some(pack) = piece.pack_mut() {
            pack.origin += 1;
        }
        piece
    });
    Layout::of(pieces.collect())
}

/// Takes away pins whose holders are gone, and returns how many. `find` tells where a holder's life log is; holders that it does not know
/// keep their pins. A holder that has not been born is kept from it: its number is taken, and it must pin anew.
///
/// # Errors
/// When the store fails.
pub async fn drop_dead_pins(committer: &Committer, find: &FindHolder<'_>) -> Result<u64, Error> {
    let head = committer.refresh().await?;
    let mut dropped = 0;
    for pin in head.pins.iter().filter(|pin| pin.life > 0) {
        let Some((world, key)) = find(&pin.holder) else { continue };
        let gone = match life::claim(&world, &key, pin.life, Life::Gone).await? {
            Life::Gone => true,
            Life::Born(_) => life::read(&world, &key, pin.life + 1).await?.is_some(),
        };
        if gone {
            match committer.change(What::Unpin(pin.op)).await {
                Ok(_) => dropped += 1,
                // Another collector was first.
                Err(Error::Refused(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(dropped)
}
