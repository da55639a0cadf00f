//! Connects the engine to images in object stores. Owns the connections, one for each image in use,
//! and the meaning of a store's errors for a volume.
//!
//! The engine calls from threads of its own, and decides about retries: here each call is one
//! attempt, with the few repetitions of the blob library itself, and with a deadline.

mod ahead;
mod pins;
mod place;
pub mod push;

pub use pins::{holder, is_of_another_copy, pool_holder};
pub use place::place_of;

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use self::ahead::Ahead;
use ::blob::{Cause, Connection, Error as BlobError, Group, Image, Inc, Location, Requests};
use env::{OriginError, Origins, RemoteGroup, RemoteImage, Wait};
use format::crc32c;
use parking_lot::Mutex;
use surface::{Error, ErrorKind};
use tokio::runtime::Runtime;

/// Deadline of one attempt: longer than the library's repetitions, so that its error is reported,
/// and a bound for a store that is only slow.
const ATTEMPT: Duration = Duration::from_secs(60);
/// Interval at which running work checks whether it should be abandoned.
const LOOK: Duration = Duration::from_millis(100);
/// Time left for work when the process is about to end.
const ENDING: Duration = Duration::from_secs(5);
/// Threads that transfer bytes; decoding has threads of its own.
const THREADS: usize = 2;

/// An image that is open, or being opened.
#[derive(Debug, Default)]
struct Slot {
    open: tokio::sync::Mutex<Option<Arc<Open>>>,
    /// Requests of the last connection, which record errors while a request is repeated.
    requests: Mutex<Option<Arc<Requests>>>,
}

/// An image that is open.
#[derive(Debug)]
struct Open {
    image: Image,
    ahead: Mutex<Ahead>,
}

/// The images that a pool needs.
#[derive(Debug, Default)]
pub struct Images {
    /// Started for the first image: most pools have none.
    runtime: OnceLock<Option<Runtime>>,
    open: Mutex<HashMap<RemoteImage, Arc<Slot>>>,
    /// A store has reported a missing image since the last call of `take_gone`.
    has_gone: AtomicBool,
    /// When the process began to end.
    ending: OnceLock<Instant>,
}

impl Images {
    fn runtime(&self) -> Option<&Runtime> {
        let make = || {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(THREADS).thread_name("images").enable_all().build().ok()
        };
        self.runtime.get_or_init(make).as_ref()
    }

    /// Stops waiting for stores, because the process is about to end.
    pub(crate) fn end(&self) {
        let _ = self.ending.set(Instant::now());
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.ending.get().is_some()
    }

    fn has_ended(&self) -> bool {
        self.ending.get().is_some_and(|since| since.elapsed() >= ENDING)
    }

    /// Runs a request with a deadline, on the threads that transfer bytes.
    fn attempt<T>(
        &self,
        image: &RemoteImage,
        what: impl Future<Output = Result<T, BlobError>>,
    ) -> Result<T, OriginError> {
        self.attempt_within(image, &Wait { within: ATTEMPT, is_over: &|| self.has_ended() }, what)
    }

    fn attempt_within<T>(
        &self,
        image: &RemoteImage,
        wait: &Wait<'_>,
        what: impl Future<Output = Result<T, BlobError>>,
    ) -> Result<T, OriginError> {
        let Some(runtime) = self.runtime() else {
            return Err(OriginError::Unreachable("no threads can be started for it".to_owned()));
        };
        let within = wait.within.min(ATTEMPT);
        let why = match runtime.block_on(given_up(what, within, wait.is_over)) {
            Ok(done) => return done.map_err(|error| origin_error(&error)),
            Err(GivenUp::Late) => format!("no answer within {:.0} s", within.as_secs_f64().max(1.0)),
            Err(GivenUp::Over) => "the request was abandoned".to_owned(),
        };
        let slot = self.open.lock().get(image).cloned();
        let fault = slot.and_then(|slot| slot.requests.lock().as_ref().and_then(|requests| requests.fault()));
        Err(OriginError::Unreachable(fault.map_or_else(|| why.clone(), |fault| format!("{why}: {fault}"))))
    }

    /// Runs a request without a deadline, on the threads that transfer bytes, until the process is
    /// about to end.
    pub(crate) fn work<T>(&self, what: impl Future<Output = surface::Result<T>>) -> surface::Result<T> {
        let runtime =
            self.runtime().ok_or_else(|| Error::new(ErrorKind::Io, "no threads can be started for images"))?;
        let is_over = || self.has_ended();
        runtime.block_on(given_up(what, Duration::MAX, &is_over)).unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Io, "the process is stopping, and does not wait for the store"))
        })
    }

    /// Pins an image for a volume, then makes the volume.
    ///
    /// # Errors
    /// When it cannot be pinned, and those of making it.
    pub fn pinned<T>(
        &self,
        image: &RemoteImage,
        holder: &str,
        make: impl FnOnce() -> surface::Result<T>,
    ) -> surface::Result<T> {
        let open = self.attempt(image, self.opened(image)).map_err(|error| {
            self.forget(image);
            store_error(error)
        })?;
        let unpinned = |error: BlobError| {
            // Opened again, it is looked up at its location, and may be another one.
            self.forget(image);
            store_error(origin_error(&named(error, image)))
        };
        // The pool may request groups of an image meanwhile, on this thread as well.
        let made = open.image.pinned(holder, async { tokio::task::block_in_place(make).map_err(NotMade::Pool) });
        self.work(async {
            made.await.map_err(|error| match error {
                NotMade::Pool(error) => error,
                NotMade::Store(error) => unpinned(error),
            })
        })
    }

    /// Returns an image, opening it if necessary; concurrent callers wait for that.
    async fn opened(&self, image: &RemoteImage) -> Result<Arc<Open>, BlobError> {
        let slot = self.open.lock().entry(image.clone()).or_default().clone();
        let mut is_open = slot.open.lock().await;
        if let Some(open) = &*is_open {
            return Ok(open.clone());
        }
        let opened = open(image, &slot.requests).await.map_err(|error| named(error, image))?;
        // The profile is advice: without it groups are fetched one by one.
        let profile = opened.blob().profile().await.unwrap_or_default();
        let ahead = Mutex::new(Ahead::of(profile, image.version));
        let opened = Arc::new(Open { image: opened, ahead });
        *is_open = Some(opened.clone());
        Ok(opened)
    }

    /// Returns whether a store has reported a missing image since the last call.
    pub(crate) fn take_gone(&self) -> bool {
        self.has_gone.swap(false, Ordering::AcqRel)
    }

    /// Drops a failed connection: the next attempt opens a new one, with credentials that may have
    /// been renewed.
    fn forget(&self, image: &RemoteImage) {
        self.open.lock().remove(image);
    }

    async fn groups(&self, image: &RemoteImage, groups: &[u64]) -> Result<Vec<Answer>, BlobError> {
        let open = self.opened(image).await?;
        let mut answers: Vec<Option<Answer>> = {
            let mut ahead = open.ahead.lock();
            groups.iter().map(|group| ahead.take(*group).map(Ok)).collect()
        };
        let missing = groups.iter().zip(&answers).filter(|(_, answer)| answer.is_none()).map(|(group, _)| *group);
        let mut wanted: Vec<u64> = missing.collect();
        let asked = wanted.len();
        wanted.extend(open.ahead.lock().next_to(&wanted));
        let got = open.image.blob().groups(open.image.version(), &wanted).await;
        let mut got = got.into_iter().map(|group| group.map(remote_group).map_err(|error| origin_error(&error)));
        for (answer, got) in answers.iter_mut().filter(|answer| answer.is_none()).zip(got.by_ref().take(asked)) {
            *answer = Some(got);
        }
        let mut ahead = open.ahead.lock();
        for (group, content) in wanted[asked..].iter().zip(got) {
            // A group that failed is requested by itself when it is needed.
            if let Ok(content) = content {
                ahead.keep(*group, content);
            }
        }
        drop(ahead);
        let lost = || Err(OriginError::Unreachable("the answer was lost".to_owned()));
        Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(lost)).collect())
    }
}

/// Reason why work was abandoned.
enum GivenUp {
    Late,
    Over,
}

/// Waits for a request until the deadline, or until it is not needed any more.
async fn given_up<T>(
    what: impl Future<Output = T>,
    within: Duration,
    is_over: &dyn Fn() -> bool,
) -> Result<T, GivenUp> {
    let mut what = pin!(what);
    let began = Instant::now();
    loop {
        let left = within.saturating_sub(began.elapsed());
        match tokio::time::timeout(left.min(LOOK), what.as_mut()).await {
            Ok(done) => return Ok(done),
            Err(_) if is_over() => return Err(GivenUp::Over),
            Err(_) if began.elapsed() >= within => return Err(GivenUp::Late),
            Err(_) => {}
        }
    }
}

/// Reason why a volume was not made.
enum NotMade {
    Pool(Error),
    Store(BlobError),
}

impl From<BlobError> for NotMade {
    fn from(error: BlobError) -> Self {
        Self::Store(error)
    }
}

type Answer = Result<RemoteGroup, OriginError>;

impl Origins for Images {
    fn fetch(&self, image: &RemoteImage, groups: &[u64], wait: &Wait<'_>) -> Vec<Answer> {
        let answers = match self.attempt_within(image, wait, self.groups(image, groups)) {
            Ok(answers) => answers,
            Err(error) => groups.iter().map(|_| Err(error.clone())).collect(),
        };
        if answers.iter().any(|answer| matches!(answer, Err(OriginError::Denied(_) | OriginError::Gone(_)))) {
            self.forget(image);
        }
        if answers.iter().any(|answer| matches!(answer, Err(OriginError::Gone(_)))) {
            self.has_gone.store(true, Ordering::Release);
        }
        answers
    }
}

/// Names a missing blob as its volumes do. A new blob at its key would be a different one, so the
/// general advice for a missing blob does not apply.
fn named(error: BlobError, image: &RemoteImage) -> BlobError {
    match error {
        BlobError::Missing(_) | BlobError::Vanished(_) => BlobError::Vanished(image.location.clone()),
        error => error,
    }
}

/// Opens an image, and verifies its identity.
async fn open(image: &RemoteImage, requests: &Mutex<Option<Arc<Requests>>>) -> Result<Image, BlobError> {
    let location: Location =
        image.location.parse().map_err(|error: ::blob::ParseLocationError| BlobError::Refused(error.to_string()))?;
    let connection = Connection::open(&location)?;
    *requests.lock() = Some(connection.requests().clone());
    let opened = Image::open_incarnation(&connection, location.key(), Inc(image.incarnation), image.version).await?;
    if opened.version().size != image.len {
        let size = opened.version().size;
        let why = format!("{location} version {} has {size} bytes, not {}", image.version, image.len);
        return Err(BlobError::StoreInconsistent(why));
    }
    Ok(opened)
}

fn remote_group(group: Group) -> RemoteGroup {
    match group {
        Group::Zero => RemoteGroup::Zero,
        Group::Stored(stored) => RemoteGroup::Stored {
            codec: stored.codec.0,
            data_len: stored.data_len,
            // The frame's own checksum was verified; the engine's covers the bytes alone.
            checksum: crc32c(&stored.bytes),
            bytes: stored.bytes.into(),
        },
        Group::Plain(data) => RemoteGroup::Plain(data.into()),
    }
}

/// Converts the failure of a request to a store for the user.
pub fn store_error(error: OriginError) -> Error {
    let kind = match &error {
        OriginError::Unreachable(_) | OriginError::Denied(_) => ErrorKind::Io,
        OriginError::Gone(_) => ErrorKind::NotFound,
        OriginError::Refused(_) => ErrorKind::Invalid,
        OriginError::Damaged(_) => ErrorKind::Corrupt,
    };
    Error::new(kind, error.to_string())
}

/// Classifies an error for a volume: whether to retry, and the message.
fn origin_error(error: &BlobError) -> OriginError {
    let text = error.to_string();
    match error.cause() {
        Cause::Unreachable => OriginError::Unreachable(text),
        Cause::Denied => OriginError::Denied(text),
        Cause::Gone => OriginError::Gone(text),
        Cause::Refused => OriginError::Refused(text),
        Cause::Damaged => OriginError::Damaged(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::blob::{At, Blob, UploadOptions, bytes};
    use testkit::TempDir;

    fn long() -> Wait<'static> {
        Wait { within: ATTEMPT, is_over: &|| false }
    }

    /// An image of three groups, text, zeroes and a short end, in a directory of its own.
    fn image(name: &str) -> (RemoteImage, Vec<u8>, TempDir) {
        let dir = TempDir::new(name);
        let location: Location = format!("file://{}/image", dir.path().display()).parse().unwrap();
        let mut data = b"a line of text\n".repeat(9000);
        data.truncate(128 << 10);
        data.resize(256 << 10, 0);
        data.extend_from_slice(&[7; 5000]);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let put = data.clone();
        let opened = runtime.block_on(async move {
            let connection = Connection::open(&location).unwrap();
            let blob = Blob::open_or_create(&connection, location.key()).await.unwrap();
            blob.put(bytes(put), "", &UploadOptions::default()).await.unwrap();
            let image = Image::open(&connection, location.key(), &At::Newest).await.unwrap();
            RemoteImage {
                location: location.to_string(),
                incarnation: image.blob().log().inc().0,
                version: image.version().seq,
                len: image.version().size,
            }
        });
        (opened, data, dir)
    }

    #[test]
    fn groups_of_an_image_come_to_the_engine() {
        let (image, data, _dir) = image("image-come");
        let images = Images::default();
        let mut decoded = Vec::new();
        for group in images.fetch(&image, &[0, 1, 2], &long()) {
            match group.unwrap() {
                RemoteGroup::Zero => decoded.resize(decoded.len() + (128 << 10), 0),
                RemoteGroup::Plain(data) => decoded.extend(data),
                RemoteGroup::Stored { codec, data_len, bytes, checksum } => {
                    let codec = codec::CodecId(codec);
                    assert_eq!(crc32c(&bytes), checksum);
                    let mut data = vec![0; data_len as usize];
                    codec::Workspace::new().decompress(codec, &bytes, &mut data).unwrap();
                    decoded.extend(data);
                }
            }
        }
        assert!(decoded == data);
    }

    #[test]
    fn what_is_not_there_is_an_error_of_each_group_and_never_zeroes() {
        let (image, _, dir) = image("image-gone");
        let images = Images::default();
        let other = RemoteImage { incarnation: image.incarnation ^ 1, ..image.clone() };
        let later = RemoteImage { version: 9, ..image.clone() };
        let longer = RemoteImage { len: image.len + 1, ..image.clone() };
        for wrong in [other, later, longer] {
            let answers = images.fetch(&wrong, &[0, 1], &long());
            assert!(answers.len() == 2 && answers.iter().all(Result::is_err), "{answers:?}");
        }
        assert!(images.fetch(&image, &[1], &long()) == [Ok(RemoteGroup::Zero)]);
        drop(dir);
        let answers = images.fetch(&image, &[0], &long());
        assert!(matches!(answers[..], [Err(OriginError::Gone(_))]), "{answers:?}");
    }

    #[test]
    fn what_takes_too_long_or_is_not_wanted_any_more_is_given_up() {
        let (image, _, _dir) = image("image-hangs");
        let images = Images::default();
        let hangs = || std::future::pending::<Result<(), BlobError>>();
        let within = Duration::from_millis(1);
        let late = images.attempt_within(&image, &Wait { within, is_over: &|| false }, hangs());
        assert!(matches!(&late, Err(OriginError::Unreachable(text)) if text.contains("no answer")), "{late:?}");
        let over = images.attempt_within(&image, &Wait { within: ATTEMPT, is_over: &|| true }, hangs());
        assert!(matches!(&over, Err(OriginError::Unreachable(text)) if text.contains("abandoned")), "{over:?}");
        images.ending.set(Instant::now().checked_sub(ENDING).unwrap()).unwrap();
        let ended = images.attempt(&image, hangs());
        assert!(matches!(&ended, Err(OriginError::Unreachable(text)) if text.contains("abandoned")), "{ended:?}");
        let work = images.work(std::future::pending::<surface::Result<()>>());
        assert!(work.is_err_and(|error| error.to_string().contains("is stopping")));
        // A group that arrives at once is returned in any case.
        assert!(images.fetch(&image, &[1], &long()) == [Ok(RemoteGroup::Zero)]);
    }

    #[test]
    fn no_pin_is_made_where_the_image_was_and_is_not() {
        let (image, _, _dir) = image("image-moved");
        let images = Images::default();
        images.hold(&image, "pool/a").unwrap();
        let place = std::path::PathBuf::from(image.location.strip_prefix("file://").unwrap());
        let hidden = place.with_file_name("hidden");
        std::fs::rename(&place, &hidden).unwrap();
        for holder in ["pool/a", "pool/b"] {
            let held = images.hold(&image, holder);
            let is_told = matches!(&held, Err(OriginError::Gone(text)) if text.contains(&image.location));
            assert!(is_told, "{held:?}");
            let made = images.pinned(&image, holder, || -> surface::Result<()> { unreachable!() });
            let error = made.map_err(|error| (error.kind(), error.to_string()));
            assert!(matches!(&error, Err((ErrorKind::NotFound, text)) if text.contains(&image.location)), "{error:?}");
            assert!(!place.exists(), "something was made at {}", place.display());
        }
        std::fs::rename(&hidden, &place).unwrap();
        images.hold(&image, "pool/b").unwrap();
        images.pinned(&image, "pool/c", || Ok(())).unwrap();
    }

    #[test]
    fn an_image_that_cannot_be_pinned_is_there() {
        let error = origin_error(&BlobError::Refused("the holder's name has 2000 bytes".to_owned()));
        let told = store_error(error);
        assert_eq!(told.kind(), ErrorKind::Invalid);
        assert!(told.to_string().contains("2000 bytes") && !told.to_string().contains("not there"), "{told}");
    }
}
