//! Volumes that begin as images in an object store: created, kept alive by pins, and pushed back.
//! Owns the order: an image is pinned before its volume is created, and unpinned after it is
//! destroyed.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ::blob::Holders;
use engine::{Pool, Unwritten};
use env::{Clock, OriginError, RemoteImage};
use parking_lot::Mutex;
use surface::{Error, ErrorKind, Result};

use super::Service;
use crate::first_reads::GROUP_BYTES;
use crate::images::push::Push;
use crate::images::{Images, holder, is_of_another_copy, store_error};
use operations::names;
use operations::{ImageAddress, PushWish, Reply};
use report::PushedLine;

/// Seconds between checks of a server that the images are still pinned: a user may have removed a
/// pin, or renamed a volume.
const TEND_EVERY_S: u64 = 24 * 3600;
/// Seconds until the next check when the last one failed.
const TEND_AGAIN_S: u64 = 600;
/// Time that the end of a process waits for a store.
const END_PATIENCE_MS: u64 = 10_000;

/// An image that must be unpinned, and its holders: volumes that are gone.
struct Owed {
    image: RemoteImage,
    gone: BTreeSet<String>,
}

impl Owed {
    fn words(&self, why: &str) -> String {
        let RemoteImage { location, version, .. } = &self.image;
        let commands: Vec<_> = self.gone.iter().map(|gone| format!("`shale blob unpin {location} {gone}`")).collect();
        format!(
            "{location} version {version} is still pinned for volumes that are gone: {why}; a running server \
             retries, or run {}",
            commands.join(", ")
        )
    }
}

/// Work on images in the background.
#[derive(Default)]
pub(super) struct Tending {
    /// Held while pins are selected for removal, and while a volume is created with its pin.
    turn: Mutex<()>,
    owed: Mutex<Vec<Owed>>,
    is_busy: AtomicBool,
    next_unix_s: AtomicU64,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Pins of other copies of the pool that were logged.
    told: Mutex<BTreeSet<(String, String)>>,
}

/// Images and the volumes that need them.
type Needed = Vec<(RemoteImage, BTreeSet<String>)>;

impl Service {
    /// Creates a volume that begins as an image.
    pub(super) fn clone_image(
        &self,
        image: &ImageAddress,
        volume: &str,
        size_bytes: Option<u64>,
        properties: &BTreeMap<String, String>,
    ) -> Result<Reply> {
        let image = parse_image(image)?;
        let holder = holder(&self.facts.holder, volume);
        let make = || self.pool.clone_image(&image, volume, size_bytes, properties);
        let _turn = self.tending.turn.lock();
        let id = self.noted(&image, &holder, make)?;
        // A pin that another process removed meanwhile is recreated, or the volume is destroyed.
        if let Err(error) = self.images.hold(&image, &holder) {
            self.pool.destroy(id, false)?;
            return Err(store_error(error));
        }
        Ok(Reply::created(id.0))
    }

    /// Pins an image, then runs `work`. If the pool has volumes of the image, the status reports a
    /// failure to pin it.
    fn noted<T>(&self, image: &RemoteImage, holder: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut is_held = false;
        let done = self.images.pinned(image, holder, || {
            is_held = true;
            work()
        });
        if let Err(error) = &done
            && !is_held
            && error.kind() == ErrorKind::NotFound
            && !self.images.has_pins(image)
        {
            self.pool.note_gone(image, error.to_string());
        } else if done.is_ok() {
            self.pool.note_held(image);
        }
        done
    }

    /// Pins an image for a volume, then runs `work`, which creates the volume.
    pub(crate) fn holding<T>(&self, image: &RemoteImage, volume: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let holder = holder(&self.facts.holder, volume);
        let _turn = self.tending.turn.lock();
        let mut is_held = false;
        let done = self.noted(image, &holder, || {
            is_held = true;
            work()
        });
        let RemoteImage { location, version, .. } = image;
        let unheld = |error: Error| {
            error.context(format_args!(
                "the stream contains only the differences from the image {location}@{version}, which cannot be \
                 pinned for '{volume}'"
            ))
        };
        let done = done.map_err(|error| if is_held { error } else { unheld(error) })?;
        // A pin that another process removed meanwhile is recreated.
        self.images.hold(image, &holder).map_err(store_error).map_err(unheld)?;
        Ok(done)
    }

    /// Pushes a snapshot as the next version of a blob.
    pub(crate) fn push(&self, wish: &PushWish, progress: &(dyn Fn(u64) -> bool + Sync)) -> Result<PushedLine> {
        let image = self.pool.image_of(&wish.snapshot)?.map(|status| status.image);
        let push = Push { pool: &self.pool, wish, image, progress };
        let done = push.run(&self.images)?;
        let pushed = done.pushed;
        Ok(PushedLine {
            blob: done.blob,
            version: done.version,
            base_version: done.base,
            earlier: pushed.is_earlier,
            groups: pushed.groups,
            as_stored: pushed.as_stored,
            holes: pushed.zeroes,
            bytes: pushed.groups * GROUP_BYTES,
            stored_bytes: pushed.stored,
        })
    }

    /// Runs `work`, which may end the need for images, and unpins these.
    pub(super) fn letting_go<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let before = needed(&self.pool);
        let done = work()?;
        if before.is_empty() {
            return Ok(done);
        }
        let (after, id) = (needed(&self.pool), self.facts.holder.clone());
        for (image, volumes) in before {
            let still = after.iter().find(|(known, _)| *known == image).map(|(_, volumes)| volumes);
            let gone = volumes.into_iter().filter(|name| !still.is_some_and(|still| still.contains(name)));
            let gone: BTreeSet<String> = gone.map(|volume| holder(&id, &volume)).collect();
            if !gone.is_empty() {
                let (images, tending) = (Arc::clone(&self.images), Arc::clone(&self.tending));
                let (pool, id) = (self.pool.clone(), id.clone());
                self.beside(move || {
                    let owed = Owed { image, gone };
                    if let Err(error) = tending.pay(&images, &pool, &id, &owed) {
                        log::warn!("{}", owed.words(&error.to_string()));
                        tending.owed.lock().push(owed);
                        let again = env::SystemClock::default().unix_s() + TEND_AGAIN_S;
                        tending.next_unix_s.fetch_min(again, Ordering::Relaxed);
                    }
                });
            }
        }
        Ok(done)
    }

    /// Makes the check of the images due now, because a volume was renamed.
    pub(super) fn tend_soon(&self) {
        self.tending.next_unix_s.store(0, Ordering::Relaxed);
    }

    fn beside(&self, work: impl FnOnce() + Send + 'static) {
        let mut threads = self.tending.threads.lock();
        threads.retain(|thread| !thread.is_finished());
        if let Ok(thread) = std::thread::Builder::new().name("images-pins".to_owned()).spawn(work) {
            threads.push(thread);
        }
    }

    /// Stops waiting for stores that do not answer, because the process is about to end.
    pub fn end_fetching(&self) {
        self.pool.end_fetching();
        self.images.end();
    }

    /// Returns the changes that could not be written since then, one line per volume.
    pub fn unwritten(&self) -> Vec<String> {
        let words = |Unwritten { volume, changes, range, why }: Unwritten| {
            format!(
                "'{volume}': {changes} writes or discards failed while the server stopped, between byte {} and byte \
                 {}; they are incomplete, and their clients got an error; repeat them when the store answers: {why}",
                range.start, range.end
            )
        };
        self.pool.unwritten().into_iter().map(words).collect()
    }

    /// Returns whether the process is about to end.
    pub(crate) fn is_ending(&self) -> bool {
        self.images.is_ending()
    }

    /// Waits for the background work, but not for a store that does not answer.
    pub(super) fn end_tending(&self) {
        let threads = std::mem::take(&mut *self.tending.threads.lock());
        for _ in 0..END_PATIENCE_MS / 10 {
            if threads.iter().all(JoinHandle::is_finished) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Checks from time to time that each image is pinned by its volumes and no others of the pool,
    /// and unpins those that could not be reached before.
    pub fn tend_images(self: &Arc<Self>) {
        let now = env::SystemClock::default().unix_s();
        if self.images.take_gone() {
            self.tending.next_unix_s.fetch_min(now + TEND_AGAIN_S, Ordering::Relaxed);
        }
        if now < self.tending.next_unix_s.load(Ordering::Relaxed) || self.tending.is_busy.load(Ordering::Relaxed) {
            return;
        }
        let has_work = !self.pool.images().is_empty() || !self.tending.owed.lock().is_empty();
        if !has_work {
            return;
        }
        self.tending.is_busy.store(true, Ordering::Relaxed);
        self.tending.next_unix_s.store(now + TEND_EVERY_S, Ordering::Relaxed);
        let (images, tending, id) = (Arc::clone(&self.images), Arc::clone(&self.tending), self.facts.holder.clone());
        let pool = self.pool.clone();
        self.beside(move || {
            if !tending.look(&images, &pool, &id, &|text| log::warn!("{text}")) {
                tending.next_unix_s.fetch_min(now + TEND_AGAIN_S, Ordering::Relaxed);
            }
            tending.is_busy.store(false, Ordering::Relaxed);
        });
    }
}

impl Tending {
    /// Returns whether a pin of another copy is seen for the first time.
    fn is_first_report(&self, location: &str, holder: &str) -> bool {
        self.told.lock().insert((location.to_owned(), holder.to_owned()))
    }

    /// Unpins an image for volumes that are gone.
    fn pay(&self, images: &Images, pool: &Pool, id: &str, owed: &Owed) -> std::result::Result<(), OriginError> {
        let _turn = self.turn.lock();
        // A volume of that name may exist again, or one of another version; and a renamed volume
        // may still be pinned under its old name.
        let needed = needed(pool);
        for (image, volumes) in needed.iter().filter(|(image, _)| image.location == owed.image.location) {
            let holders: Vec<String> = volumes.iter().map(|volume| holder(id, volume)).collect();
            images.hold_all(image, &holders)?;
        }
        let kept = holders(id, &needed);
        if !kept.is_empty() {
            let gone: BTreeSet<String> = owed.gone.difference(&kept).cloned().collect();
            return images.let_go(&owed.image, Holders::Named(&gone));
        }
        // If no volume needs an image, pins under earlier names go as well.
        let prefix = holder(id, "");
        let is_meant = |known: &str| owed.gone.contains(known) || known.starts_with(&prefix);
        images.let_go(&owed.image, Holders::Accepted { is_meant: &is_meant, kept: &kept })
    }

    /// Pins each image for its volumes, then removes the pins of this pool that belong to no
    /// volume. Returns whether all of that succeeded.
    fn look(&self, images: &Images, pool: &Pool, id: &str, warn: &dyn Fn(&str)) -> bool {
        let mut is_done = true;
        let now = needed(pool);
        let named = holders(id, &now);
        for (image, volumes) in now {
            let holders: Vec<String> = volumes.iter().map(|volume| holder(id, volume)).collect();
            let held = images.hold_all(&image, &holders);
            let Err(error) = held else {
                pool.note_held(&image);
                continue;
            };
            is_done = false;
            let mut why = error.to_string();
            // Other errors do not mean that it is gone.
            if matches!(error, OriginError::Gone(_)) {
                match images.has_pins(&image) {
                    true => why.push_str("; it stays as long as it has pins (`shale blob stat` lists them)"),
                    false => pool.note_gone(&image, why.clone()),
                }
            }
            warn(&format!("cannot pin {} version {} for its volumes: {why}", image.location, image.version));
        }
        let owed = std::mem::take(&mut *self.owed.lock());
        let left: Vec<Owed> = owed.into_iter().filter(|owed| self.pay(images, pool, id, owed).is_err()).collect();
        is_done &= left.is_empty();
        self.owed.lock().extend(left);
        if !is_done {
            return false;
        }
        // Every volume has its pin: pins under other names of this pool are left over.
        for (image, _) in needed(pool) {
            let _turn = self.turn.lock();
            let kept = holders(id, &needed(pool));
            if !kept.is_subset(&named) {
                return false;
            }
            let (prefix, others) = (holder(id, ""), RefCell::new(BTreeSet::new()));
            let is_left_over = |known: &str| {
                if is_of_another_copy(id, known) {
                    others.borrow_mut().insert(known.to_owned());
                }
                known.starts_with(&prefix)
            };
            let left_over = Holders::Accepted { is_meant: &is_left_over, kept: &kept };
            is_done &= images.let_go(&image, left_over).is_ok();
            let location = &image.location;
            for other in others.into_inner().into_iter().filter(|other| self.is_first_report(location, other)) {
                warn(&format!(
                    "{location} is pinned by {other}: another copy of this pool, or this pool before it was moved; \
                     if that copy is gone for good, remove the pin with `shale blob unpin {location} {other}`"
                ));
            }
        }
        is_done
    }
}

fn needed(pool: &Pool) -> Needed {
    let volumes = |all: &[String], incoming: &[String]| {
        all.iter().chain(incoming).map(|name| names::volume_of(name).to_owned()).collect()
    };
    pool.images().into_iter().map(|status| (status.image, volumes(&status.volumes, &status.incoming))).collect()
}

/// Returns the holders of images for these volumes.
fn holders(id: &str, needed: &Needed) -> BTreeSet<String> {
    needed.iter().flat_map(|(_, volumes)| volumes.iter().map(|volume| holder(id, volume))).collect()
}

/// Parses the image of a request.
///
/// # Errors
/// `Invalid` if its incarnation is not a number.
fn parse_image(address: &ImageAddress) -> Result<RemoteImage> {
    let ImageAddress { location, incarnation, version, size_bytes } = address;
    let wrong = |_| Error::new(ErrorKind::Invalid, format!("'{incarnation}' is not an incarnation of a blob"));
    let incarnation = u128::from_str_radix(incarnation, 16).map_err(wrong)?;
    Ok(RemoteImage { location: location.clone(), incarnation, version: *version, len: *size_bytes })
}
