//! Volumes that begin as images in an object store: made, held there while they need it, and pushed
//! back. Owns the order: an image is held before the volume is made, and let go after it is gone.

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

/// How often a server looks whether the images are still held, in seconds: a user may have taken
/// the pin away, or a volume may have another name now.
const TEND_EVERY_S: u64 = 24 * 3600;
/// How often it looks when the last look failed.
const TEND_AGAIN_S: u64 = 600;
/// How long the end of a process waits for a store.
const END_PATIENCE_MS: u64 = 10_000;

/// An image that is to be let go, and what holds it: volumes that are gone.
struct Owed {
    image: RemoteImage,
    gone: BTreeSet<String>,
}

impl Owed {
    fn words(&self, why: &str) -> String {
        let RemoteImage { location, version, .. } = &self.image;
        let commands: Vec<_> = self.gone.iter().map(|gone| format!("`shale blob unpin {location} {gone}`")).collect();
        format!(
            "{location} version {version} is still held for what is gone: {why}; a server tries it again while it runs, and by hand it is \
             done with {}",
            commands.join(", ")
        )
    }
}

/// Work on images beside requests.
#[derive(Default)]
pub(super) struct Tending {
    /// Held while it is decided which pins go, and while a volume comes into being with its pin.
    turn: Mutex<()>,
    owed: Mutex<Vec<Owed>>,
    is_busy: AtomicBool,
    next_unix_s: AtomicU64,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Pins of other copies of the pool that the log has named.
    told: Mutex<BTreeSet<(String, String)>>,
}

/// Which volumes need an image.
type Needed = Vec<(RemoteImage, BTreeSet<String>)>;

impl Service {
    /// Makes a volume that begins as an image.
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
        // A pin that another process let go meanwhile is made again, or the volume goes.
        if let Err(error) = self.images.hold(&image, &holder) {
            self.pool.destroy(id, false)?;
            return Err(store_error(error));
        }
        Ok(Reply::created(id.0))
    }

    /// Holds an image, then does something. Where the pool has volumes of it, the status tells that
    /// it could not be held.
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

    /// Holds an image for a volume, then does what brings that.
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
                "the stream has only what differs from the image {location}@{version}, which cannot be held for '{volume}'"
            ))
        };
        let done = done.map_err(|error| if is_held { error } else { unheld(error) })?;
        // A pin that another process let go meanwhile is made again.
        self.images.hold(image, &holder).map_err(store_error).map_err(unheld)?;
        Ok(done)
    }

    /// Makes a snapshot the next version of a blob.
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

    /// Does something that may end the need for images, and lets these go.
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

    /// The images are looked at soon: a volume has another name.
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

    /// The process is about to end: from now on nothing waits for a store that does not answer.
    pub fn end_fetching(&self) {
        self.pool.end_fetching();
        self.images.end();
    }

    /// What could not be written since then, a line for each volume.
    pub fn unwritten(&self) -> Vec<String> {
        let words = |Unwritten { volume, changes, range, why }: Unwritten| {
            format!(
                "'{volume}': writes or discards that failed while the server stopped: {changes}, between byte {} and byte {}; \
                 they are not kept as a whole, and those who asked for them got an error; write again when the store \
                 answers: {why}",
                range.start, range.end
            )
        };
        self.pool.unwritten().into_iter().map(words).collect()
    }

    /// Whether it is.
    pub(crate) fn is_ending(&self) -> bool {
        self.images.is_ending()
    }

    /// Waits for the work beside requests, but not for a store that does not answer.
    pub(super) fn end_tending(&self) {
        let threads = std::mem::take(&mut *self.tending.threads.lock());
        for _ in 0..END_PATIENCE_MS / 10 {
            if threads.iter().all(JoinHandle::is_finished) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Looks now and then whether the images of the volumes are held, by these volumes and no
    /// others of the pool, and lets those go that could not be reached before.
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
    /// Returns whether a pin of another copy is met for the first time.
    fn is_first_report(&self, location: &str, holder: &str) -> bool {
        self.told.lock().insert((location.to_owned(), holder.to_owned()))
    }

    /// Lets an image go for volumes that are gone.
    fn pay(&self, images: &Images, pool: &Pool, id: &str, owed: &Owed) -> std::result::Result<(), OriginError> {
        let _turn = self.turn.lock();
        // A volume of that name may have been made meanwhile, or one of another version; and a
        // volume with a new name may be held under the old one still.
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
        // Where no volume needs anything, those are meant, too, that had other names.
        let prefix = holder(id, "");
        let is_meant = |known: &str| owed.gone.contains(known) || known.starts_with(&prefix);
        images.let_go(&owed.image, Holders::Accepted { is_meant: &is_meant, kept: &kept })
    }

    /// Holds each image for its volumes, then takes the pins of this pool away that are of no
    /// volume. Whether all of that could be done.
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
            // Another error does not say that it is gone.
            if matches!(error, OriginError::Gone(_)) {
                match images.has_pins(&image) {
                    true => why.push_str("; it stays as long as the pins that it has (`shale blob stat` lists them)"),
                    false => pool.note_gone(&image, why.clone()),
                }
            }
            warn(&format!("{} version {} cannot be held for its volumes: {why}", image.location, image.version));
        }
        let owed = std::mem::take(&mut *self.owed.lock());
        let left: Vec<Owed> = owed.into_iter().filter(|owed| self.pay(images, pool, id, owed).is_err()).collect();
        is_done &= left.is_empty();
        self.owed.lock().extend(left);
        if !is_done {
            return false;
        }
        // Every volume has its pin: what has another name of this pool is left over.
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
                    "{location} is held by {other}: another copy of this pool, or this pool before it was moved; if that one is \
                     gone for good, `shale blob unpin {location} {other}` removes the pin"
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

/// What holds images for these volumes.
fn holders(id: &str, needed: &Needed) -> BTreeSet<String> {
    needed.iter().flat_map(|(_, volumes)| volumes.iter().map(|volume| holder(id, volume))).collect()
}

/// Returns the image that a request names.
///
/// # Errors
/// `Invalid` if its incarnation is no number.
fn parse_image(address: &ImageAddress) -> Result<RemoteImage> {
    let ImageAddress { location, incarnation, version, size_bytes } = address;
    let wrong = |_| Error::new(ErrorKind::Invalid, format!("'{incarnation}' is no incarnation of a blob"));
    let incarnation = u128::from_str_radix(incarnation, 16).map_err(wrong)?;
    Ok(RemoteImage { location: location.clone(), incarnation, version: *version, len: *size_bytes })
}
