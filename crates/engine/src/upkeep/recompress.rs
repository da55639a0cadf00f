//! Recompression: data that was written under other settings is rewritten with the current
//! properties of its volume, or in a given mode; a slice at a time, so that the caller decides on
//! the pace and can stop at any time. The progress is kept in the map store: recompression
//! continues from there, in the next slice or after a restart.
//!
//! For each extent that has live bytes:
//! 1. It is read whole, and the volume's live fragments in it are determined
//!    ([`clean::extent_liveness`](crate::clean::extent_liveness)), as for cleaning.
//! 2. Each fragment is verified and recompressed (`recode`). A damaged one stays in place.
//! 3. Clearly smaller results are appended as moves. So the rules of moves hold at every crash
//!    point: a move takes effect only for blocks whose record still points at its source, and
//!    everything that it depends on precedes it in the log.
//!
//! When all extents are done, unneeded dictionaries are dropped (`dictionary_review`).
//!
//! Fragments that do not become smaller are not moved. The old locations are dead, and left to the
//! cleaner. Space for the new ones comes from the extents that data may use, never from the
//! reserve.

use std::sync::atomic::Ordering;

use env::MapBatch;
use format::{KEY_RECOMPRESS, RecompressState};
use policy::{Compression, Mode, Settings};
use store::base::store_error::store_error;
use store::log::Purpose;
use store::objects::volume_ref::VolumeRef;
use store::space::extents::Victim;
use surface::{Error, ErrorKind, Hint, Result};
use units::{ExtentIndex, ObjectId};

use crate::clean::extent_liveness::Resident;
use crate::clean::recode::Recoder;
use crate::clean::survivors::Survivors;
use crate::clean::walked::Walked;
use crate::pool::Pool;
use crate::upkeep::Upkeep;

/// Checkpoints taken for one extent before the pool is reported as full.
const TRIES: usize = 4;
/// Separates the mode from the part of a share in the kept state; no mode contains it.
const PART: char = '\n';

/// Returns the hint for the data at an address; `None`: the data stays unchanged.
pub type Advise<'a> = dyn Fn(u64) -> Option<Hint> + 'a;

/// Settings, and the hints for single files.
type How<'a> = (&'a Settings, &'a Advise<'a>);

/// Progress of recompression.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecompressReport {
    /// When it began, in seconds since 1970; 0 if it never did.
    pub started_unix_s: u64,
    /// The requested mode, if any.
    pub mode: Option<String>,
    /// Whether all extents have been processed.
    pub is_finished: bool,
    /// Processed extents, and the total.
    pub extents_done: u64,
    /// See `extents_done`.
    pub extents_total: u64,
    /// Bytes of an extent.
    pub extent_bytes: u64,
    /// Live bytes of the processed extents, and of all.
    pub bytes_done: u64,
    /// See `bytes_done`.
    pub bytes_total: u64,
    /// Fragments of the volume that were examined.
    pub fragments: u64,
    /// Rewritten fragments, and their size before and now, in bytes.
    pub rewritten: u64,
    /// See `rewritten`.
    pub before_bytes: u64,
    /// See `rewritten`.
    pub after_bytes: u64,
    /// Fragments that cannot be read, and stay unchanged.
    pub damaged: u64,
    /// Bytes read and written, sent and received for users of the pool since it was opened: shows
    /// whether clients are active.
    pub foreground_bytes: u64,
}

/// Result for a fragment.
enum Rewrite {
    /// It is rewritten; with the former size of its live blocks.
    Done(usize),
    Stays,
    /// It stays as well, because it cannot be read.
    Damaged,
}

impl Pool {
    /// Continues recompressing from where it stopped last, with at least `bytes` of extents. Starts
    /// over with `restart`, and for another volume or mode than last time; when it is finished,
    /// nothing happens without that. With 0 bytes it only reports, without a mode on the last one
    /// in any mode, and waits for no slice: a slice's work is included when it has ended.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] and [`ErrorKind::Invalid`] for the volume and the mode,
    /// [`ErrorKind::Full`] when there is no room to rewrite anything, and those of the storage.
    pub fn recompress<'a>(
        &self,
        volume: impl Into<VolumeRef<'a>>,
        mode: Option<&str>,
        bytes: u64,
        restart: bool,
    ) -> Result<RecompressReport> {
        self.recompress_files(volume, "", mode, bytes, restart, &|_| Some(Hint::default()))
    }

    /// Like `recompress`, for a share, or for a part of one with the name `part`: the data at
    /// addresses for which `advise` returns a hint. Another name starts over.
    ///
    /// # Errors
    /// As [`recompress`](Self::recompress).
    pub fn recompress_files<'a>(
        &self,
        volume: impl Into<VolumeRef<'a>>,
        part: &str,
        mode: Option<&str>,
        bytes: u64,
        restart: bool,
        advise: &Advise<'_>,
    ) -> Result<RecompressReport> {
        let object = self.core.objects.resolve_volume(volume.into())?;
        let mut settings = *object.settings.read();
        if let Some(mode) = mode {
            settings.mode = mode.parse::<Mode>().map_err(|e| Error::new(ErrorKind::Invalid, e.to_string()))?;
            settings.compression = Compression::Auto;
        }
        let mode = mode.unwrap_or_default();
        let called = if part.is_empty() { mode.to_owned() } else { format!("{mode}{PART}{part}") };
        self.core.upkeep.recompress(object.id, &called, (&settings, advise), bytes, restart)
    }
}

impl Upkeep {
    fn recompress(
        &self,
        object: ObjectId,
        mode: &str,
        how: How<'_>,
        bytes: u64,
        restart: bool,
    ) -> Result<RecompressReport> {
        self.vitals.check_failed()?;
        // One at a time: two would read the same extents.
        let _turn = (bytes > 0).then(|| self.recompressing.lock());
        let mut walked = self.recompressed.lock().clone();
        let kept = self.vitals.env.store.get(KEY_RECOMPRESS).map_err(store_error)?;
        // A damaged state only means starting over.
        let kept = kept.and_then(|value| RecompressState::decode(&value).ok()).unwrap_or_default();
        let is_same = kept.started_unix_s > 0 && kept.object == object && kept.mode == mode;
        // A request for a report without a mode means the last one.
        let is_told = is_same || bytes == 0 && mode.is_empty() && kept.object == object;
        let mut state = if is_told { kept } else { RecompressState::default() };
        if bytes > 0 {
            if restart || !is_same {
                let started_unix_s = self.vitals.env.clock.unix_s().max(1);
                let next = ExtentIndex(1);
                state = RecompressState { object, mode: mode.to_owned(), started_unix_s, next, ..state };
                (state.fragments, state.rewritten, state.damaged) = (0, 0, 0);
                (state.before_bytes, state.after_bytes) = (0, 0);
            }
            let was_finished = state.next.0 >= self.geometry.extents();
            let result = self.recompress_slice(&mut walked, &mut state, how, bytes);
            let mut batch = MapBatch::default();
            batch.put(KEY_RECOMPRESS, state.encode());
            self.vitals.env.store.commit(batch).map_err(store_error)?;
            *self.recompressed.lock() = walked.clone();
            result?;
            if !was_finished
                && state.next.0 >= self.geometry.extents()
                && let Some(volume) = self.objects.get(object)
            {
                self.review_dictionaries(&volume)?;
                // Figures count moves at a checkpoint: they show the gain then.
                self.checkpoints.take()?;
            }
        }
        walked.at(&self.space.extents.lock(), ExtentIndex(state.next.0.max(1)));
        Ok(self.recompress_report(&walked, &state))
    }

    fn recompress_slice(
        &self,
        walked: &mut Walked,
        state: &mut RecompressState,
        how: How<'_>,
        bytes: u64,
    ) -> Result<()> {
        let extent_bytes = self.geometry.extent_bytes;
        walked.at(&self.space.extents.lock(), state.next);
        let mut left = bytes;
        while left > 0 && state.next.0 < self.geometry.extents() {
            // Empty extents are not read, and do not count against the rate: a large pool may hold
            // little.
            let live = self.space.extents.lock().live_of(state.next);
            if live == 0 {
                state.next = ExtentIndex(state.next.0 + 1);
                walked.pass(0, state.next);
                continue;
            }
            let mut tries = 0;
            while !self.recompress_extent(state, how)? {
                tries += 1;
                if tries > TRIES {
                    return Err(Error::new(
                        ErrorKind::Full,
                        "the pool has no room to rewrite data before the old data is freed",
                    ));
                }
                self.checkpoints.heal()?;
                self.checkpoints.take_light()?;
                if tries > 1 {
                    drop(self.make_room.clean_for_room(0, &|| 0)?);
                }
            }
            left = left.saturating_sub(extent_bytes.into());
            state.next = ExtentIndex(state.next.0 + 1);
            walked.pass(live.into(), state.next);
        }
        Ok(())
    }

    /// Runs all steps for one extent. Returns `false` if a checkpoint, or cleaning, is needed
    /// first.
    fn recompress_extent(&self, state: &mut RecompressState, how: How<'_>) -> Result<bool> {
        let seen = self.checkpoints.map_version.load(Ordering::Acquire);
        let (number, live) = {
            let checkpoint = self.checkpoints.state.lock();
            if checkpoint.is_unfinished() {
                return Ok(false);
            }
            (checkpoint.number, self.space.extents.lock().live_of(state.next))
        };
        if live == 0 {
            return Ok(true);
        }
        // If the extent cannot be read as a whole, the map names its fragments.
        let buf = self.clean.read_extent(state.next).ok();
        let extent = buf.as_ref().map_or(&[][..], |buf| &buf[..self.geometry.extent_bytes as usize]);
        let is_current = || self.checkpoints.state.try_lock().is_some_and(|checkpoint| checkpoint.number == number);
        let mut residents = self.clean.residents(Victim { extent: state.next, live }, extent, is_current)?;
        residents.retain(|resident| resident.stored.object == state.object);
        let mut survivors = Survivors::default();
        let (mut before, mut rewritten, mut damaged) = (0, 0, 0);
        let mut fragments = 0;
        let mut recoder = Recoder::new(&self.clean);
        for resident in &residents {
            let Some(hint) = (how.1)(resident.stored.fragment.first.offset_bytes()) else { continue };
            fragments += 1;
            match self.rewrite(resident, (how.0, hint), extent, &mut survivors, &mut recoder) {
                Rewrite::Done(old) => {
                    before += old as u64;
                    rewritten += 1;
                }
                Rewrite::Damaged => damaged += 1,
                Rewrite::Stays => {}
            }
        }
        recoder.finish();
        if let Some(buf) = buf {
            self.buffers.put(buf);
        }
        let after = survivors.payload_bytes() as u64;
        if rewritten > 0 {
            let packed = survivors.measure(self.geometry.extent_bytes).bytes;
            // Like admitted data, so that neither the cleaner nor writers rely on the same room.
            let _aside = self.space.reserve(packed + u64::from(self.geometry.extent_bytes));
            if !self.space.has_room_before(self.space.soft_wall())
                || self.clean.move_survivors(&mut survivors, seen, None, Purpose::Data)?.is_none()
            {
                return Ok(false);
            }
            self.vitals.counters.rewritten_bytes.add(packed);
        }
        state.fragments += fragments;
        state.rewritten += rewritten;
        state.damaged += damaged;
        state.before_bytes += before;
        state.after_bytes += after;
        Ok(true)
    }

    /// Step 2 for one fragment.
    fn rewrite(
        &self,
        resident: &Resident,
        (settings, hint): (&Settings, Hint),
        extent: &[u8],
        survivors: &mut Survivors,
        recoder: &mut Recoder<'_>,
    ) -> Rewrite {
        let Resident { stored, location, reference, .. } = resident;
        let live = self.map.unmoved(resident.key(), stored.epoch, *location, reference.live);
        if live.is_empty() {
            return Rewrite::Stays;
        }
        let Some(payload) = stored.payload(extent).filter(|payload| stored.is_intact(payload)) else {
            self.reads.suspects.note(*location);
            return Rewrite::Damaged;
        };
        let done = recoder.recode(resident, live, payload, settings, hint, survivors);
        done.map_or(Rewrite::Stays, |(before, _)| Rewrite::Done(before))
    }

    fn recompress_report(&self, walked: &Walked, state: &RecompressState) -> RecompressReport {
        let (bytes_done, bytes_total) = walked.bytes();
        let total = u64::from(self.geometry.extents()) - 1;
        RecompressReport {
            started_unix_s: state.started_unix_s,
            mode: state.mode.split(PART).next().filter(|mode| !mode.is_empty()).map(str::to_owned),
            is_finished: state.started_unix_s > 0 && state.next.0 >= self.geometry.extents(),
            extents_done: u64::from(state.next.0.max(1) - 1).min(total),
            extents_total: total,
            extent_bytes: self.geometry.extent_bytes.into(),
            bytes_done,
            bytes_total,
            fragments: state.fragments,
            rewritten: state.rewritten,
            before_bytes: state.before_bytes,
            after_bytes: state.after_bytes,
            damaged: state.damaged,
            foreground_bytes: self.vitals.counters.foreground_bytes(),
        }
    }
}
