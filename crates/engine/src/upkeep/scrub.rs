//! Scrubbing: reads all live data, while the pool is in use, and verifies it; a slice at a time, so
//! that the caller decides on the pace and can stop at any time. How far it came is kept in the map
//! store: it goes on from there, in the next slice or after a restart.
//!
//! For each extent that has live bytes:
//! 1. It is read whole, a few extents ahead (more while nothing else goes on), without a lock. What
//!    lives there is verified ([`clean::extent_liveness`](crate::clean::extent_liveness)).
//! 2. What does not match may have been freed and written again since it was read. So it is looked
//!    up once more, and read exactly, as a reader would, with readers' protection against reuse.
//!    Only what fails then is damage.
//!
//! Costs: one read an extent, one map lookup a group of fragments in it.

use env::AlignedBuf;
use format::{ScrubDamage, ScrubState};
use surface::{ErrorKind, Result};
use units::{BLOCK_BYTES, BlockIndex, ExtentIndex};

use crate::base::scratch;
use crate::base::status::Problem;
use crate::clean::extent_liveness::{Lookup, Resident, is_same};
use crate::clean::victim_reads::VictimReads;
use crate::clean::walked::Walked;
use crate::log::extent_scan::Stored;
use crate::pool::Pool;
use crate::pool::core::Core;
use crate::read::damage_owners::Place;
use crate::repair::damages::{self, DamageReport};
use crate::space::extents::Victim;

/// Bytes of a description that are kept.
const DETAIL_BYTES_MAX: usize = 500;

/// What an open pool knows of its scrubbing.
#[derive(Default)]
pub(crate) struct Scrubbing {
    /// How far it has come, once that has been loaded.
    state: Option<ScrubState>,
    /// [`Core::traffic_bytes`] when the last slice ended.
    traffic_bytes: u64,
    walked: Walked,
}

/// What verifying an extent came to.
#[derive(Debug, Default)]
pub(crate) struct Verified {
    /// Fragments verified, and their bytes.
    fragments: u64,
    bytes: u64,
    pub damages: Vec<ScrubDamage>,
}

/// How far scrubbing has come.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// When it began, in seconds since 1970; 0 if it never did.
    pub started_unix_s: u64,
    /// Whether everything has been verified.
    pub is_finished: bool,
    /// Extents that are done, with or without live bytes, and all there are.
    pub extents_done: u64,
    /// See `extents_done`.
    pub extents_total: u64,
    /// Bytes of an extent.
    pub extent_bytes: u64,
    /// Live bytes of the extents that are done, and of all.
    pub bytes_done: u64,
    /// See `bytes_done`.
    pub bytes_total: u64,
    /// Fragments verified, and their bytes.
    pub fragments: u64,
    /// See `fragments`.
    pub bytes: u64,
    /// Bytes read and written, sent and received for users of the pool since it was opened: tells
    /// whether clients are at work.
    pub foreground_bytes: u64,
    /// Damages found.
    pub found: u64,
    /// What is known to be damaged, the first thousand, found now or before and not mended since;
    /// kind is `fragment`, or `header` for what concerns no volume.
    pub damages: Vec<Problem>,
    /// How much is known to be damaged, and was not acknowledged.
    pub unacknowledged: u64,
}

impl Pool {
    /// Verifies on from where it stopped last, at least `bytes` of extents. With `restart` it
    /// begins anew; when it is finished, nothing happens without that. With 0 bytes it only
    /// reports.
    ///
    /// # Errors
    /// When the map cannot be read or written. Damage is reported, not returned.
    pub fn scrub(&self, bytes: u64, restart: bool) -> Result<ScrubReport> {
        self.core.scrub(bytes, restart)
    }
}

impl Scrubbing {
    /// How far it has come. To be given back with [`keep`](Self::keep).
    pub(crate) fn state(&mut self, core: &Core) -> Result<ScrubState> {
        let state = self.state.take().map_or_else(|| core.load_scrub(), Ok)?;
        self.walked.at(&core.extents.lock(), ExtentIndex(state.next.0.max(1)));
        Ok(state)
    }

    pub(crate) fn keep(&mut self, state: ScrubState) {
        self.state = Some(state);
    }

    /// What `status` tells of it, but for whether it is under way.
    pub(crate) fn report(&self, state: &ScrubState) -> DamageReport {
        let (bytes_done, bytes_total) = self.walked.bytes();
        let open = state.damages.iter().filter(|damage| !damage.is_acknowledged);
        let damages: Vec<_> = open.map(damages::problem).collect();
        DamageReport {
            started_unix_s: state.started_unix_s,
            finished_unix_s: state.finished_unix_s,
            is_scrubbing: false,
            bytes_done,
            bytes_total,
            found: state.found,
            acknowledged: (state.damages.len() - damages.len()) as u64,
            damages,
            unlisted: state.unlisted,
        }
    }
}

impl Core {
    fn scrub(&self, bytes: u64, restart: bool) -> Result<ScrubReport> {
        self.check_failed()?;
        let mut known = self.scrub.lock();
        let mut state = known.state(self)?;
        if restart || (bytes > 0 && state.started_unix_s == 0) {
            let started_unix_s = self.env.clock.unix_s().max(1);
            // What is known to be damaged is so until its extent has been looked at anew.
            let (damages, unlisted) = (state.damages, state.unlisted);
            state = ScrubState { started_unix_s, next: ExtentIndex(1), damages, unlisted, ..ScrubState::default() };
            known.walked.at(&self.extents.lock(), state.next);
        }
        self.tell_damage(known.report(&state), false);
        let result = self.scrub_slice(&mut known, &mut state, bytes);
        let report = self.scrub_report(&known.walked, &state);
        self.tell_damage(known.report(&state), bytes > 0);
        known.keep(state);
        if bytes > 0 {
            known.traffic_bytes = self.traffic_bytes();
        }
        result.map(|()| report)
    }

    fn scrub_slice(&self, known: &mut Scrubbing, state: &mut ScrubState, bytes: u64) -> Result<()> {
        let extent_bytes = u64::from(self.geometry.extent_bytes);
        let first = state.next;
        let (number, victims, end) = {
            let checkpoint = self.checkpoint.lock();
            let extents = self.extents.lock();
            let (mut victims, mut at) = (Vec::new(), state.next);
            while (victims.len() as u64) < bytes.div_ceil(extent_bytes) && at.0 < self.geometry.extents() {
                let live = extents.live_of(at);
                victims.extend((live > 0).then_some(Victim { extent: at, live }));
                at = ExtentIndex(at.0 + 1);
            }
            (checkpoint.number, victims, at)
        };
        // Where nothing lives, nothing is damaged any more.
        let lives: std::collections::BTreeSet<_> = victims.iter().map(|victim| victim.extent).collect();
        state.damages.retain(|damage| !(first..end).contains(&damage.extent) || lives.contains(&damage.extent));
        let mut reads = VictimReads::while_alone(self, victims, Some(known.traffic_bytes));
        while let Some((victim, read)) = reads.next() {
            state.next = victim.extent;
            let verified = self.scrub_extent(victim, number, read.ok())?;
            state.fragments += verified.fragments;
            state.bytes += verified.bytes;
            state.found += verified.damages.len() as u64;
            state.unlisted_so_far += damages::enter(state, victim.extent, verified.damages);
            known.walked.pass(victim.live.into(), victim.extent);
        }
        state.next = end;
        known.walked.pass(0, end);
        if state.next != first {
            if state.next.0 >= self.geometry.extents() {
                state.finished_unix_s = self.env.clock.unix_s().max(1);
                state.unlisted = state.unlisted_so_far;
                // An older version did not say where these are: they would have been found again.
                state.damages.retain(|damage| damage.extent.0 > 0);
            }
            self.keep_scrub(state)?;
        }
        Ok(())
    }

    /// Verifies what lives in an extent, as of the checkpoint `number`. What cannot be understood
    /// is damage, too.
    pub(crate) fn scrub_extent(&self, victim: Victim, number: u64, read: Option<AlignedBuf>) -> Result<Verified> {
        let mut verified = Verified::default();
        match self.verify_extent(victim, number, read, &mut verified) {
            Err(error) if error.kind() == ErrorKind::Corrupt => verified.damages.push(damages::of_extent(&error)),
            other => other?,
        }
        Ok(verified)
    }

    fn verify_extent(
        &self,
        victim: Victim,
        number: u64,
        read: Option<AlignedBuf>,
        verified: &mut Verified,
    ) -> Result<()> {
        let (start, extent_bytes) = (self.geometry.start(victim.extent), self.geometry.extent_bytes as usize);
        // What cannot be read as a whole is read fragment by fragment, as the map names them.
        let bytes = read.as_ref().map_or(&[][..], |buf| &buf[..extent_bytes]);
        let is_current = || self.checkpoint.try_lock().is_some_and(|checkpoint| checkpoint.number == number);
        let (residents, are_headers_whole) = self.residents(victim, bytes, is_current)?;
        let mut can_be_read = false;
        for resident in &residents {
            verified.fragments += 1;
            verified.bytes += u64::from(resident.stored.fragment.stored);
            let intact = resident.stored.payload(bytes).is_some_and(|payload| resident.stored.is_intact(payload));
            if intact {
                can_be_read = true;
                continue;
            }
            if let Some(detail) = self.confirm_damage(resident)? {
                let group = resident.key().group;
                let fragment = Some((resident.location, resident.reference.live));
                let place = Place { group, epoch: resident.stored.epoch, fragment };
                let seen = self.concerned(&resident.object, place);
                let first = BlockIndex(group.first_block().0 + u64::from(seen.blocks.0.trailing_zeros()));
                let (count, others) = (blocks(seen.blocks.count()), seen.others_told());
                let detail = format!("{count} from here cannot be read: {detail}{others}");
                verified.damages.push(damage(seen.name, first.0 * BLOCK_BYTES as u64, detail));
            }
        }
        // Of what cannot be read a repair moves nothing: then there is nothing to say of headers.
        if !are_headers_whole && can_be_read {
            let detail = format!(
                "headers in the extent at byte {start} of the data file are damaged; what can be read there cannot \
                 be found without the map, so not by a salvage either: shale check --repair moves it"
            );
            verified.damages.insert(0, damage(String::new(), 0, detail));
        }
        if let Some(buf) = read {
            self.buffers.put(buf);
        }
        Ok(())
    }

    /// Step 2. `None`: it is fine, or no point sees it any more.
    fn confirm_damage(&self, resident: &Resident) -> Result<Option<String>> {
        let Resident { object, stored, location, .. } = resident;
        let _in_extents = self.readers.read();
        let (key, epoch) = (resident.key(), stored.epoch);
        let found = Lookup::default().at(self, object, key, epoch, *location)?;
        let Some(reference) = found.filter(|found| is_same(&stored.fragment, found)) else { return Ok(None) };
        if self.map.unmoved(key, epoch, *location, reference.live).is_empty() {
            return Ok(None);
        }
        if !self.geometry.holds(*location, stored.fragment.stored) {
            return Ok(Some(format!(
                "its record points at byte {location} of the data file, which is no place for data"
            )));
        }
        let align = self.env.disk.read_alignment() as u64;
        let start = location / align * align;
        let len = ((location + u64::from(stored.fragment.stored)).next_multiple_of(align) - start) as usize;
        scratch::with(|scratch| {
            scratch.grow_io(len);
            let place = format!("{} bytes at byte {location} of the data file", stored.fragment.stored);
            if let Err(error) = self.env.disk.read_at(start, &mut scratch.io, len) {
                return Ok(Some(format!("{place}: {error}")));
            }
            let placed = Stored { offset: (location - start) as usize, ..*stored };
            let intact = placed.payload(&scratch.io).is_some_and(|payload| placed.is_intact(payload));
            Ok((!intact).then(|| format!("{place} do not match their checksum")))
        })
    }

    fn scrub_report(&self, walked: &Walked, state: &ScrubState) -> ScrubReport {
        let total = u64::from(self.geometry.extents()) - 1;
        let (bytes_done, bytes_total) = walked.bytes();
        let open = state.damages.iter().filter(|damage| !damage.is_acknowledged).count() as u64;
        ScrubReport {
            started_unix_s: state.started_unix_s,
            is_finished: state.started_unix_s > 0 && state.next.0 >= self.geometry.extents(),
            extents_done: u64::from(state.next.0.max(1) - 1).min(total),
            extents_total: total,
            extent_bytes: self.geometry.extent_bytes.into(),
            bytes_done,
            bytes_total,
            fragments: state.fragments,
            bytes: state.bytes,
            foreground_bytes: self.counters.foreground_bytes(),
            found: state.found,
            damages: state.damages.iter().map(damages::problem).collect(),
            unacknowledged: open + state.unlisted.max(state.unlisted_so_far),
        }
    }
}

fn blocks(count: u32) -> String {
    if count == 1 { "a block".to_owned() } else { format!("{count} blocks") }
}

fn damage(volume: String, offset: u64, mut detail: String) -> ScrubDamage {
    detail.truncate(detail.floor_char_boundary(DETAIL_BYTES_MAX));
    ScrubDamage { volume, offset, detail, ..ScrubDamage::default() }
}
