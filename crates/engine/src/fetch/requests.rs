//! Fetching: gets the groups of an image that a request needs from the store, verified.
//!
//! 1. Groups that no thread is fetching are claimed; the others are waited for. A claimed group may
//!    have arrived for another request since this one looked: then it is not requested.
//! 2. The store is asked, with no lock held.
//! 3. Arriving data is verified and decoded. If it does not match, it is requested once more.
//! 4. The waiting requests get it; then it is kept (`keep`).
//!
//! A store that does not answer is retried, with longer and longer pauses, within the time of the
//! property `remote-timeout`. Then the request fails, with the reason: it never gets zeroes. That
//! time applies to the whole request: an attempt in progress at its end is aborted. It ends early
//! when the request is cancelled. A process that is about to end retries once, for a few seconds: a
//! store that is only slow still serves writeback from caches above volumes.

use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use codec::CodecId;
use env::{OriginError, RemoteGroup, Wait};
use format::{ImagePart, ObjectState, crc32c};
use store::base::canary::Canary;
use store::base::group::GroupKey;
use store::base::scratch;
use store::objects::Object;
use store::objects::images::remote_of;
use surface::{Error, ErrorKind, Result};
use units::{BLOCK_BYTES, BlockMask, GROUP_BYTES, GroupIndex, ObjectId};

use crate::fetch::Fetches;
use crate::fetch::ahead;
use crate::fetch::keep::Kept;
use crate::read::images::Arrived;
use crate::read::lacking::MissingGroups;
use crate::read::lacking::Patience;

/// First and longest pause before a store is retried.
const PAUSE_MIN_NS: u64 = 100_000_000;
const PAUSE_MAX_NS: u64 = 10_000_000_000;
/// How long an attempt may take in a process that is about to end.
const ENDING_NS: u64 = 5_000_000_000;
/// Longest wait before a thread checks its conditions again.
const LOOK_NS: u64 = 500_000_000;
/// Number of answers "damaged", or "gone", after which they are believed.
const DAMAGED_MAX: u32 = 2;
const GONE_MAX: u32 = 3;
/// Time limit for fetching ahead of a stream, in seconds: requests that need the data wait longer,
/// and report its errors.
const AHEAD_SECONDS: u32 = 5;
/// Upper bound of groups in one request to a store.
const ASKED_MAX: usize = 64;

/// A waiting request, and the failures so far.
struct Waiting<'a> {
    patience: &'a Patience<'a>,
    damaged: u32,
    gone: u32,
    /// Whether a claimed group is looked up again: not if the group was lost although it is
    /// present.
    looks: bool,
}

impl Fetches {
    /// Returns how long requests for an object wait. A snapshot has its volume's limit.
    pub(crate) fn patience(&self, object: &Object) -> Patience<'static> {
        let of = {
            let descriptor = object.descriptor.read();
            descriptor.parent.filter(|_| descriptor.state == ObjectState::Snapshot)
        };
        let volume = of.and_then(|id| self.objects.get(id));
        let seconds = volume.as_deref().unwrap_or(object).settings.read().remote.timeout_seconds;
        Patience::seconds(self.vitals.env.clock.now_ns(), seconds)
    }

    /// Runs `attempt` until all groups of an image that it needs are fetched. The attempt must hold
    /// no lock when it returns, and may be run again from the beginning.
    ///
    /// # Errors
    /// Those of the attempt, and the reason why a group could not be fetched.
    pub(crate) fn fetching<T>(&self, object: &Object, attempt: &mut dyn FnMut() -> Result<T>) -> Result<T> {
        let first = attempt();
        if !first.as_ref().is_err_and(MissingGroups::in_chain) {
            return first;
        }
        let mut first = Some(first);
        self.fetching_for(object, &self.patience(object), &mut || first.take().unwrap_or_else(&mut *attempt))
    }

    /// The same, with a given patience instead of the volume's.
    ///
    /// # Errors
    /// As [`fetching`](Self::fetching).
    pub(crate) fn fetching_for<T>(
        &self,
        object: &Object,
        patience: &Patience<'_>,
        attempt: &mut dyn FnMut() -> Result<T>,
    ) -> Result<T> {
        let mut held: Vec<Arc<Arrived>> = Vec::new();
        let mut is_first = true;
        loop {
            let error = match attempt() {
                Err(error) if MissingGroups::in_chain(&error) => error,
                done => {
                    if !held.is_empty() {
                        drop(held);
                        self.reads.images.drop_unheld();
                    }
                    return done;
                }
            };
            let Some(MissingGroups(keys)) = MissingGroups::of(&error) else { return Err(error) };
            let arrived = self.fetch_lacking(keys, patience, is_first);
            is_first = false;
            held.extend(arrived.map_err(|error| error.context(format_args!("'{}'", object.title())))?);
        }
    }

    /// Fetches groups of images, and keeps them.
    ///
    /// # Errors
    /// [`ErrorKind::Io`], or [`ErrorKind::Corrupt`] if the image is damaged where it lies.
    pub(crate) fn fetch(&self, keys: &[GroupKey], patience: &Patience<'_>) -> Result<Vec<Arc<Arrived>>> {
        self.fetch_lacking(keys, patience, false)
    }

    /// Fetches the next range of a volume's image for a stream of reads, if there is room to keep
    /// it.
    pub(crate) fn fetch_ahead(&self, object: &Object, range: &Range<u64>) {
        let lacking = ahead::lacking(&self.map, object, range);
        let Some(image) = lacking.first().and_then(|first| self.objects.get(first.object)) else { return };
        // It would not be kept, and so be fetched again.
        let bytes = 2 * lacking.len() as u64 * GROUP_BYTES as u64;
        if self.space.try_admit_fetched(&image, bytes).is_none() {
            return;
        }
        let patience = Patience::seconds(self.vitals.env.clock.now_ns(), AHEAD_SECONDS).for_one_more();
        // A failure is in the image's status.
        let _ = self.fetch_lacking(&lacking, &patience, true);
        self.reads.images.drop_unheld();
    }

    /// Like `fetch`; with `looks`, groups that have arrived and been kept in the meantime are left
    /// out.
    fn fetch_lacking(&self, keys: &[GroupKey], patience: &Patience<'_>, looks: bool) -> Result<Vec<Arc<Arrived>>> {
        let mut arrived = Vec::new();
        for of_image in keys.chunk_by(|a, b| a.object == b.object) {
            for some in of_image.chunks(ASKED_MAX) {
                arrived.extend(self.fetch_some(some, patience, looks)?);
            }
        }
        Ok(arrived)
    }

    fn fetch_some(&self, keys: &[GroupKey], patience: &Patience<'_>, looks: bool) -> Result<Vec<Arc<Arrived>>> {
        let Some(first) = keys.first() else { return Ok(Vec::new()) };
        let object = self.objects.get(first.object);
        let image = object.as_ref().and_then(|object| object.descriptor.read().image.clone());
        let (Some(object), Some(image)) = (object, image) else {
            return Err(Error::new(
                ErrorKind::NotFound,
                "the image has been removed from the pool with its last \
                 clone",
            ));
        };
        let mut waiting = Waiting { patience, damaged: 0, gone: 0, looks };
        let mut open: Vec<GroupKey> = keys.to_vec();
        open.sort_unstable();
        open.dedup();
        self.reads.images.state.lock().contacts.entry(object.id).or_default().waiting += 1;
        let mut arrived = Vec::new();
        let done = loop {
            if let Err(error) = self.fetch_open(&object, &image, &mut open, &mut arrived, &mut waiting) {
                break Err(error);
            }
            if open.is_empty() {
                break Ok(arrived);
            }
        };
        if let Some(contact) = self.reads.images.state.lock().contacts.get_mut(&object.id) {
            contact.waiting -= 1;
        }
        done
    }

    /// One attempt for the groups that are `open` still.
    fn fetch_open(
        &self,
        object: &Object,
        image: &ImagePart,
        open: &mut Vec<GroupKey>,
        arrived: &mut Vec<Arc<Arrived>>,
        waiting: &mut Waiting<'_>,
    ) -> Result<()> {
        let patience = waiting.patience;
        let mine = {
            let mut state = self.reads.images.state.lock();
            open.retain(|key| match state.arrived.get(key).and_then(Weak::upgrade) {
                Some(there) => {
                    arrived.push(there);
                    false
                }
                None => true,
            });
            let now = self.vitals.env.clock.now_ns();
            let contact = state.contacts.entry(object.id).or_default();
            let (rests_until, error) = (contact.retry_at, contact.last_error.clone());
            let (moment, left) = (patience.moment(now), patience.left(now));
            let ending_since = self.reads.images.ending_since();
            let has_ended = ending_since.is_some_and(|since| contact.failed_at >= since);
            let is_vain = left == 0 || has_ended || self.is_given_up(patience);
            let is_resting = rests_until > moment && ending_since.is_none();
            let is_free = |key: &&GroupKey| !is_vain && !is_resting && !state.claims.contains(*key);
            let mine: Vec<_> = open.iter().filter(is_free).copied().collect();
            if mine.is_empty() && !open.is_empty() {
                // Another thread fetches it, or the store is in a pause.
                if is_vain || patience.is_once() {
                    return Err(unreachable(image, open[0], error));
                }
                let rest = if is_resting { rests_until - moment } else { LOOK_NS };
                let rest = rest.min(LOOK_NS).min(left).max(1);
                if self.vitals.is_inline() {
                    patience.pause(rest);
                } else {
                    self.reads.images.changed.wait_for(&mut state, Duration::from_nanos(rest));
                }
                return Ok(());
            }
            state.claims.extend(mine.iter().copied());
            mine
        };
        let mine = if waiting.looks { self.still_lacking(object, mine, open) } else { mine };
        if mine.is_empty() {
            return Ok(());
        }
        let asked_at = self.vitals.env.clock.now_ns();
        let is_over = || self.is_given_up(patience) || self.takes_too_long_for_an_end(asked_at);
        let wait = Wait { within: Duration::from_nanos(patience.left(asked_at)), is_over: &is_over };
        let (kept, failure) = self.ask(image, &mine, &wait, arrived, open);
        let is_given_up = self.is_given_up(patience);
        let fetched_bytes = kept.iter().map(|(_, kept)| kept.bytes() as u64).sum::<u64>();
        {
            let mut state = self.reads.images.state.lock();
            state.claims.retain(|key| !mine.contains(key));
            let now = patience.moment(self.vitals.env.clock.now_ns());
            let contact = state.contacts.entry(object.id).or_default();
            contact.fetched_groups += kept.len() as u64;
            contact.fetched_bytes += fetched_bytes;
            if contact.gone.is_some_and(|gone| kept.iter().any(|(key, _)| *key == gone)) {
                (contact.gone, contact.unheld) = (None, None);
            }
            if contact.damaged.is_some_and(|damaged| kept.iter().any(|(key, _)| *key == damaged)) {
                contact.damaged = None;
            }
            if is_given_up && matches!(failure, Some(OriginError::Unreachable(_))) {
                // The caller gave up; the store may be fine.
            } else if let Some(failure) = &failure {
                contact.failures += 1;
                contact.failed_at = self.vitals.env.clock.now_ns();
                contact.last_error = Some(failure.to_string());
                let first = || mine.iter().find(|key| open.contains(key)).copied();
                match failure {
                    OriginError::Gone(_) => contact.gone = contact.gone.or_else(first),
                    OriginError::Damaged(_) => contact.damaged = contact.damaged.or_else(first),
                    OriginError::Unreachable(_) | OriginError::Denied(_) | OriginError::Refused(_) => {}
                }
                contact.backoff = (2 * contact.backoff).clamp(PAUSE_MIN_NS, PAUSE_MAX_NS);
                contact.retry_at = now.saturating_add(contact.backoff);
            } else {
                (contact.backoff, contact.retry_at, contact.failed_at, contact.last_error) = (0, 0, 0, None);
            }
        }
        self.reads.images.changed.notify_all();
        // Only this thread waits for the log. Groups that the log does not take are fetched again.
        let _ = self.keep(object, kept);
        let Some(failure) = failure else { return Ok(()) };
        let give_up = match failure {
            OriginError::Damaged(_) => {
                waiting.damaged += 1;
                waiting.damaged >= DAMAGED_MAX
            }
            OriginError::Gone(_) | OriginError::Refused(_) => {
                waiting.gone += 1;
                waiting.gone >= GONE_MAX
            }
            OriginError::Unreachable(_) | OriginError::Denied(_) => false,
        };
        let is_last = patience.is_once() || patience.left(self.vitals.env.clock.now_ns()) == 0;
        if give_up || is_last || is_given_up || self.reads.images.ending_since().is_some() {
            let is_damaged = matches!(failure, OriginError::Damaged(_));
            let kind = if is_damaged { ErrorKind::Corrupt } else { ErrorKind::Io };
            let at = open.first().copied().unwrap_or(mine[0]);
            return Err(Error::new(kind, format!("{}: {failure}", place(image, at))));
        }
        Ok(())
    }

    fn is_given_up(&self, patience: &Patience<'_>) -> bool {
        self.reads.images.is_stopped() || patience.is_over()
    }

    /// Returns whether an attempt that began then has used up its time in a process that is ending.
    fn takes_too_long_for_an_end(&self, asked_at: u64) -> bool {
        let since = self.reads.images.ending_since();
        since.is_some_and(|since| self.vitals.env.clock.now_ns().saturating_sub(since.max(asked_at)) >= ENDING_NS)
    }

    /// Returns the claimed groups that the pool does not have; the others are removed from `open`.
    /// A thread keeps a group in the log before it drops the arrived copy, so a group that is
    /// neither claimed nor arrived is in the pool, if it was ever fetched.
    fn still_lacking(&self, object: &Object, claimed: Vec<GroupKey>, open: &mut Vec<GroupKey>) -> Vec<GroupKey> {
        let levels = object.levels();
        let is_lacking = |key: &GroupKey| {
            let found = self.map.lookup_partly(&levels, key.group, BlockMask::FULL);
            !found.is_ok_and(|(_, absent)| absent.is_empty())
        };
        let (lacking, here): (Vec<GroupKey>, Vec<GroupKey>) = claimed.into_iter().partition(is_lacking);
        if !here.is_empty() {
            open.retain(|key| !here.contains(key));
            self.reads.images.state.lock().claims.retain(|key| !here.contains(key));
            self.reads.images.changed.notify_all();
        }
        lacking
    }

    /// Steps 2 and 3. Removes arrived groups from `open`; returns how to keep each, and the first
    /// failure.
    fn ask(
        &self,
        image: &ImagePart,
        mine: &[GroupKey],
        wait: &Wait<'_>,
        arrived: &mut Vec<Arc<Arrived>>,
        open: &mut Vec<GroupKey>,
    ) -> (Vec<(GroupKey, Kept)>, Option<OriginError>) {
        let groups: Vec<u64> = mine.iter().map(|key| key.group.0).collect();
        let mut answers = match &self.vitals.env.origins {
            Some(origins) => origins.fetch(&remote_of(image), &groups, wait),
            None => Vec::new(),
        };
        let lacking = || Err(OriginError::Unreachable("this program cannot access images".to_owned()));
        answers.resize_with(mine.len(), lacking);
        let (mut kept, mut failure) = (Vec::new(), None);
        for (key, answer) in mine.iter().zip(answers) {
            let answer = match answer {
                Err(_) if Canary::FetchFailureIsZeroes.is_planted() => Ok(RemoteGroup::Zero),
                answer => answer,
            };
            match answer.and_then(|answer| unpack(image, key.group, answer)) {
                Ok((bytes, keeps)) => {
                    let there = Arc::new(Arrived(bytes));
                    self.reads.images.keep_arrived(&mut self.reads.images.state.lock(), *key, &there);
                    arrived.push(there.clone());
                    open.retain(|open| open != key);
                    kept.push((*key, keeps.into_kept(there)));
                }
                Err(error) => drop(failure.get_or_insert(error)),
            }
        }
        (kept, failure)
    }
}

fn place(image: &ImagePart, key: GroupKey) -> String {
    let ImagePart { location, version, .. } = image;
    let ObjectId(number) = key.object;
    let at = key.group.first_block().offset_bytes();
    format!("128 KiB from byte {at} of the image {location}@{version} (object {number}) could not be fetched")
}

fn unreachable(image: &ImagePart, key: GroupKey, error: Option<String>) -> Error {
    let why = error.unwrap_or_else(|| "the store has not answered in time".to_owned());
    Error::new(ErrorKind::Io, format!("{}: {why}", place(image, key)))
}

/// The form in which a group can be kept.
enum Keeps {
    Hole,
    AsStored { codec: u8, bytes: Vec<u8> },
    Anew,
}

impl Keeps {
    fn into_kept(self, arrived: Arc<Arrived>) -> Kept {
        match self {
            Self::Hole => Kept::Hole { blocks: (arrived.0.len() / BLOCK_BYTES) as u32 },
            Self::AsStored { codec, bytes } => Kept::AsStored { codec, bytes, arrived },
            Self::Anew => Kept::Anew(arrived),
        }
    }
}

/// Step 3: a group's bytes, in whole blocks.
fn unpack(
    image: &ImagePart,
    group: GroupIndex,
    answer: RemoteGroup,
) -> std::result::Result<(Vec<u8>, Keeps), OriginError> {
    let start = group.first_block().offset_bytes();
    let len = image.len.saturating_sub(start).min(GROUP_BYTES as u64) as usize;
    let whole = len.next_multiple_of(BLOCK_BYTES);
    let damaged = |text: String| OriginError::Damaged(format!("group {}: {text}", group.0));
    match answer {
        RemoteGroup::Zero => Ok((vec![0; whole], Keeps::Hole)),
        RemoteGroup::Plain(mut bytes) => {
            if bytes.len() != len {
                return Err(damaged(format!("{} bytes arrived, expected {len}", bytes.len())));
            }
            bytes.resize(whole, 0);
            Ok((bytes, Keeps::Anew))
        }
        RemoteGroup::Stored { codec, data_len, bytes, checksum } => {
            let found = crc32c(&bytes);
            if found != checksum {
                return Err(damaged(format!("it has checksum {found:#010x}, expected {checksum:#010x}")));
            }
            let id = CodecId(codec);
            if !id.is_known() || id == CodecId::ZSTD_DICTIONARY {
                return Err(damaged(format!("codec {codec} is not known to this version")));
            }
            if data_len as usize != len {
                return Err(damaged(format!("it decodes to {data_len} bytes, expected {len}")));
            }
            let mut raw = vec![0; whole];
            scratch::with(|scratch| scratch.codecs.decompress(id, &bytes, &mut raw[..len]))
                .map_err(|error| damaged(error.to_string()))?;
            let as_stored = len == whole && bytes.len() <= len;
            Ok((raw, if as_stored { Keeps::AsStored { codec, bytes } } else { Keeps::Anew }))
        }
    }
}
