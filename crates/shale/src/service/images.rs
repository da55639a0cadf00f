//! Volumes that begin as images in an object store: made, held there while they need it, and pushed
//! back. Owns the order: an image is held before the volume is made, and let go after it is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use env::{Clock, RemoteImage};
use parking_lot::Mutex;
use surface::{Error, ErrorKind, Result};

use super::Service;
use crate::control::{ImageAddress, PushWish, PushedLine, Reply};
use crate::first_reads::GROUP_BYTES;
use crate::images::push::Push;
use crate::images::{Images, holder, store_error};
use crate::names;

/// How often a server looks whether the images are still held, in seconds: a user may have taken
/// the pin away, or a volume may have another name now.
const TEND_EVERY_S: u64 = 24 * 3600;
/// How often it looks when the last look failed.
const TEND_AGAIN_S: u64 = 600;
/// How long the end of a process waits for a store.
const END_PATIENCE_MS: u64 = 10_000;

/// Work on images beside requests.
#[derive(Default)]
pub(super) struct Tending {
    is_busy: AtomicBool,
    next_unix_s: AtomicU64,
    threads: Mutex<Vec<JoinHandle<()>>>,
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
        let image = image.parse()?;
        let holder = holder(&self.pool.status().id, volume);
        let make = || self.pool.clone_image(&image, volume, size_bytes, properties);
        let id = self.images.pinned(&image, &holder, make)?;
        // A pin that was let go meanwhile for another volume is made again, or the volume goes.
        if let Err(error) = self.images.hold(&image, &holder) {
            self.pool.destroy(id, false)?;
            return Err(store_error(error));
        }
        Ok(Reply::Created { id: id.0 })
    }

    /// Makes a snapshot the next version of a blob.
    pub(super) fn push(&self, wish: &PushWish) -> Result<Reply> {
        let image = self.pool.image_of(&wish.snapshot)?.map(|status| status.image);
        let push = Push { pool: &self.pool, pool_id: &self.pool.status().id, wish, image };
        let done = push.run(&self.images)?;
        let pushed = done.pushed;
        Ok(Reply::Pushed(PushedLine {
            blob: done.blob,
            version: done.version,
            base_version: done.base,
            earlier: pushed.is_earlier,
            groups: pushed.groups,
            as_stored: pushed.as_stored,
            holes: pushed.zeroes,
            bytes: pushed.groups * GROUP_BYTES,
            stored_bytes: pushed.stored,
        }))
    }

    fn images_needed(&self) -> Needed {
        let volumes = |all: Vec<String>| all.iter().map(|name| names::volume_of(name).to_owned()).collect();
        self.pool.images().into_iter().map(|status| (status.image, volumes(status.volumes))).collect()
    }

    /// Does something that may end the need for images, and lets these go.
    pub(super) fn letting_go<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let before = self.images_needed();
        let done = work()?;
        if before.is_empty() {
            return Ok(done);
        }
        let after = self.images_needed();
        let id = self.pool.status().id;
        for (image, volumes) in before {
            let still = after.iter().find(|(known, _)| *known == image).map(|(_, volumes)| volumes);
            // A volume that was renamed may have its pin under the name that it had.
            let (all, prefix) = (still.is_none(), holder(&id, ""));
            let gone = volumes.into_iter().filter(|name| !still.is_some_and(|still| still.contains(name)));
            let gone: BTreeSet<String> = gone.map(|volume| holder(&id, &volume)).collect();
            if !gone.is_empty() {
                let (images, output) = (Arc::clone(&self.images), self.output);
                self.beside(move || {
                    if let Err(error) =
                        images.let_go(&image, |known| gone.contains(known) || all && known.starts_with(&prefix))
                    {
                        // The daily look tries again; `shale blob unpin` does it by hand.
                        output.warn(&format!("{} version {} is still held: {error}", image.location, image.version));
                    }
                });
            }
        }
        Ok(done)
    }

    fn beside(&self, work: impl FnOnce() + Send + 'static) {
        let mut threads = self.tending.threads.lock();
        threads.retain(|thread| !thread.is_finished());
        if let Ok(thread) = std::thread::Builder::new().name("images-pins".to_owned()).spawn(work) {
            threads.push(thread);
        }
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
    /// others of the pool.
    pub fn tend_images(self: &Arc<Self>) {
        let now = env::SystemClock::default().unix_s();
        if now < self.tending.next_unix_s.load(Ordering::Relaxed) || self.tending.is_busy.load(Ordering::Relaxed) {
            return;
        }
        let needed = self.images_needed();
        if needed.is_empty() {
            return;
        }
        self.tending.is_busy.store(true, Ordering::Relaxed);
        let (service, images, id) = (Arc::downgrade(self), Arc::clone(&self.images), self.pool.status().id);
        let output = self.output;
        self.beside(move || {
            let next = look(&images, &id, &needed, &|text| output.warn(text));
            if let Some(service) = service.upgrade() {
                service.tending.next_unix_s.store(now + next, Ordering::Relaxed);
                service.tending.is_busy.store(false, Ordering::Relaxed);
            }
        });
    }
}

/// Holds each image for its volumes; the seconds until the next look.
fn look(images: &Images, pool_id: &str, needed: &Needed, warn: &dyn Fn(&str)) -> u64 {
    let mut next = TEND_EVERY_S;
    for (image, volumes) in needed {
        let volumes: Vec<String> = volumes.iter().cloned().collect();
        if let Err(error) = images.hold_for(image, pool_id, &volumes) {
            warn(&format!("{} version {} cannot be held for its volumes: {error}", image.location, image.version));
            next = TEND_AGAIN_S;
        }
    }
    next
}

/// An image that a request names, or why it is none.
impl ImageAddress {
    fn parse(&self) -> Result<RemoteImage> {
        let wrong = |_| Error::new(ErrorKind::Invalid, format!("'{}' is no incarnation of a blob", self.incarnation));
        let incarnation = u128::from_str_radix(&self.incarnation, 16).map_err(wrong)?;
        Ok(RemoteImage { location: self.location.clone(), incarnation, version: self.version, len: self.size_bytes })
    }
}
