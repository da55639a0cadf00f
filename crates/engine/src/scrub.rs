//! Scrubbing: reads everything that lives, while the pool is in use, and verifies it; a slice at a time, so that whoever asks for it
//! decides on the pace and can stop at any time. How far it came is kept in the map store: it goes on from there, in the next
//! slice or after a restart.
//!
//! For each extent that has live bytes:
//! 1. It is read whole, a few extents ahead (more while nothing else goes on), without a lock. What lives there is verified
//!    ([`residents`](crate::residents)).
//! 2. What does not match may have been freed and written again since it was read. So it is looked up once more, and read
//!    exactly, as a reader would, with readers' protection against reuse. Only what fails then is damage.
//!
//! Costs: one read an extent, one map lookup a group of fragments in it.

use env::{AlignedBuf, MapBatch};
use format::{KEY_SCRUB, ScrubDamage, ScrubState};
use surface::{ErrorKind, Result};
use units::{BLOCK_BYTES, BlockIndex, ExtentIndex};

use crate::concerned::Place;
use crate::core::Core;
use crate::extent_scan::Stored;
use crate::extents::Victim;
use crate::map::store_error;
use crate::pool::Pool;
use crate::residents::{Lookup, Resident, is_same};
use crate::scratch;
use crate::status::Problem;
use crate::victim_reads::VictimReads;

/// Damages that are kept one by one; beyond them only the count matters.
const DAMAGES_MAX: usize = 1000;
/// Bytes of a description that are kept.
const DETAIL_BYTES_MAX: usize = 500;

/// What an open pool knows of its scrubbing.
#[derive(Default)]
pub(crate) struct Scrubbing {
    /// How far it has come, once that has been loaded.
    state: Option<ScrubState>,
    /// [`Core::traffic_bytes`] when the last slice ended.
    traffic_bytes: u64,
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
    /// Fragments verified, and their bytes.
    pub fragments: u64,
    /// See `fragments`.
    pub bytes: u64,
    /// Bytes read and written, sent and received for users of the pool since it was opened: tells whether somebody is at work.
    pub foreground_bytes: u64,
    /// Damages found.
    pub found: u64,
    /// The first thousand of them; kind is `fragment`, or `header` for what concerns no volume.
    pub damages: Vec<Problem>,
}

impl Pool {
    /// Verifies on from where it stopped last, at least `bytes` of extents. With `restart` it begins anew; when it is
    /// finished, nothing happens without that. With 0 bytes it only reports.
    ///
    /// # Errors
    /// When the map cannot be read or written. Damage is reported, not returned.
    pub fn scrub(&self, bytes: u64, restart: bool) -> Result<ScrubReport> {
        self.core.scrub(bytes, restart)
    }
}

impl Core {
    fn scrub(&self, bytes: u64, restart: bool) -> Result<ScrubReport> {
        self.check_failed()?;
        let mut known = self.scrub.lock();
        let mut state = match known.state.take() {
            Some(state) => state,
            None => self.load_scrub()?,
        };
        if restart || (bytes > 0 && state.started_unix_s == 0) {
            let started_unix_s = self.env.clock.unix_s().max(1);
            state = ScrubState { started_unix_s, next: ExtentIndex(1), ..ScrubState::default() };
        }
        let result = self.scrub_slice(&mut state, bytes, known.traffic_bytes);
        let report = self.scrub_report(&state);
        known.state = Some(state);
        if bytes > 0 {
            known.traffic_bytes = self.traffic_bytes();
        }
        result.map(|()| report)
    }

    fn load_scrub(&self) -> Result<ScrubState> {
        let Some(value) = self.env.store.get(KEY_SCRUB).map_err(store_error)? else { return Ok(ScrubState::default()) };
        // A state that is damaged only costs a new beginning.
        Ok(ScrubState::decode(&value).unwrap_or_default())
    }

    fn scrub_slice(&self, state: &mut ScrubState, bytes: u64, traffic_bytes: u64) -> Result<()> {
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
        let mut reads = VictimReads::while_alone(self, victims, Some(traffic_bytes));
        while let Some((victim, read)) = reads.next() {
            state.next = victim.extent;
            match self.scrub_extent(victim, number, read.ok(), state) {
                Err(error) if error.kind() == ErrorKind::Corrupt => note(state, String::new(), 0, error.to_string()),
                other => other?,
            }
        }
        state.next = end;
        if state.next != first {
            let mut batch = MapBatch::default();
            batch.put(KEY_SCRUB, state.encode());
            self.env.store.commit(batch).map_err(store_error)?;
        }
        Ok(())
    }

    fn scrub_extent(
        &self,
        victim: Victim,
        number: u64,
        read: Option<AlignedBuf>,
        state: &mut ScrubState,
    ) -> Result<()> {
        let (start, extent_bytes) = (self.geometry.start(victim.extent), self.geometry.extent_bytes as usize);
        // What cannot be read as a whole is read fragment by fragment, as the map names them.
        let bytes = read.as_ref().map_or(&[][..], |buf| &buf[..extent_bytes]);
        let is_current = || self.checkpoint.try_lock().is_some_and(|checkpoint| checkpoint.number == number);
        let (residents, are_headers_whole) = self.residents(victim, bytes, is_current)?;
        if !are_headers_whole && read.is_some() {
            let detail = format!(
                "headers in the extent at byte {start} of the data file are damaged; its data can still be read, but \
                 not be found without the map"
            );
            note(state, String::new(), 0, detail);
        }
        for resident in &residents {
            state.fragments += 1;
            state.bytes += u64::from(resident.stored.fragment.stored);
            let intact = resident.stored.payload(bytes).is_some_and(|payload| resident.stored.is_intact(payload));
            if intact {
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
                note(state, seen.name, first.0 * BLOCK_BYTES as u64, detail);
            }
        }
        if let Some(buf) = read {
            self.buffers.put(buf);
        }
        Ok(())
    }

    /// Step 2. `None`: it is fine, or nobody reads it any more.
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

    fn scrub_report(&self, state: &ScrubState) -> ScrubReport {
        let total = u64::from(self.geometry.extents()) - 1;
        let damage = |damage: &ScrubDamage| {
            let concerned = !damage.volume.is_empty();
            Problem {
                kind: if concerned { "fragment" } else { "header" },
                volume: concerned.then(|| damage.volume.clone()),
                offset: concerned.then_some(damage.offset),
                detail: damage.detail.clone(),
                repaired: false,
            }
        };
        ScrubReport {
            started_unix_s: state.started_unix_s,
            is_finished: state.started_unix_s > 0 && state.next.0 >= self.geometry.extents(),
            extents_done: u64::from(state.next.0.max(1) - 1).min(total),
            extents_total: total,
            extent_bytes: self.geometry.extent_bytes.into(),
            fragments: state.fragments,
            bytes: state.bytes,
            foreground_bytes: self.counters.foreground_bytes(),
            found: state.found,
            damages: state.damages.iter().map(damage).collect(),
        }
    }
}

fn blocks(count: u32) -> String {
    if count == 1 { "a block".to_owned() } else { format!("{count} blocks") }
}

fn note(state: &mut ScrubState, volume: String, offset: u64, mut detail: String) {
    state.found += 1;
    if state.damages.len() < DAMAGES_MAX {
        detail.truncate(detail.floor_char_boundary(DETAIL_BYTES_MAX));
        state.damages.push(ScrubDamage { volume, offset, detail });
    }
}
