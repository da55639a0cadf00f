//! Scrubbing: reads and verifies all live data while the pool is in use; a slice at a time, so that
//! the caller decides on the pace and can stop at any time. The progress is kept in the map store:
//! scrubbing continues from there, in the next slice or after a restart.
//!
//! A scrub covers all data that was written before it began: it begins with a flush and a light
//! checkpoint, because live bytes are counted as of the last checkpoint, and an extent without any
//! is skipped. Data that the cleaner moves during a scrub is verified by the cleaner.
//!
//! For each extent that has live bytes:
//! 1. It is read whole, a few extents ahead (more on an idle pool), without a lock. Its live
//!    fragments are verified ([`clean::extent_liveness`](crate::clean::extent_liveness)).
//! 2. A fragment that does not match may have been freed and overwritten since it was read. So it
//!    is looked up once more, and read exactly, as a reader would, with readers' protection against
//!    reuse. Only a second failure is damage.
//!    It is repaired from another copy, if there is one (`clean::repair`), and counted.
//! 3. A damaged record of the map is damage as well. Its group is reported, because its fragments
//!    cannot be found. Everything else in the extent is still verified.
//!
//! Costs: one read an extent, one map lookup a group of fragments in it.

use std::collections::BTreeSet;

use codec::CodecId;
use env::AlignedBuf;
use format::{FragmentEntry, FragmentRef, ScrubDamage, ScrubState};
use store::base::canary::Canary;
use store::base::group::GroupKey;
use store::base::scratch;
use store::base::status::{DamageReport, Problem};
use store::log::extent_scan::Stored;
use store::space::extents::Victim;
use surface::{Error, ErrorKind, Result};
use units::{BLOCK_BYTES, BlockIndex, ExtentIndex, GROUP_BYTES, format_size};

use crate::clean::extent_liveness::{Lookup, Resident, Residents, is_same};
use crate::clean::victim_reads::VictimReads;
use crate::clean::walked::Walked;
use crate::pool::Pool;
use crate::read::damage_owners::{Concerned, Place};
use crate::read::dictionaries::Readers;
use crate::repair::{Repairs, Scrubbing, damages};

/// Upper bound of a stored description, in bytes.
const DETAIL_BYTES_MAX: usize = 500;

/// Result of verifying an extent.
#[derive(Debug, Default)]
pub(crate) struct Verified {
    /// Fragments verified, and their bytes.
    fragments: u64,
    bytes: u64,
    /// Damaged fragments that were replaced by another copy.
    pub repaired: u64,
    pub damages: Vec<ScrubDamage>,
}

/// The live fragments of an extent.
struct Found {
    /// The bytes of the extent, if it can be read whole.
    read: Option<AlignedBuf>,
    residents: Residents,
    are_headers_whole: bool,
}

/// Progress of scrubbing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// When it began, in seconds since 1970; 0 if it never did.
    pub started_unix_s: u64,
    /// Whether all data that was written before it began has been verified.
    pub is_finished: bool,
    /// Processed extents, with or without live bytes, and the total.
    pub extents_done: u64,
    /// See `extents_done`.
    pub extents_total: u64,
    /// Bytes of an extent.
    pub extent_bytes: u64,
    /// Live bytes of the processed extents, and of all.
    pub bytes_done: u64,
    /// See `bytes_done`.
    pub bytes_total: u64,
    /// Fragments verified, and their bytes.
    pub fragments: u64,
    /// See `fragments`.
    pub bytes: u64,
    /// Bytes read and written, sent and received for users of the pool since it was opened: shows
    /// whether clients are active.
    pub foreground_bytes: u64,
    /// Damages found.
    pub found: u64,
    /// Damaged fragments that were repaired from another copy; they are not among `found`.
    pub repaired: u64,
    /// Known damage, the first thousand, found now or before and not repaired since; kind is
    /// `fragment`, or `header` for damage that affects no volume.
    pub damages: Vec<Problem>,
    /// Number of known damages that were not acknowledged.
    pub unacknowledged: u64,
}

impl Pool {
    /// Continues verifying from where it stopped last, with at least `bytes` of extents. With
    /// `restart` it starts over; when it is finished, nothing happens without that. With 0 bytes it
    /// only reports.
    ///
    /// # Errors
    /// When the map cannot be read or written. Damage is reported, not returned.
    pub fn scrub(&self, bytes: u64, restart: bool) -> Result<ScrubReport> {
        self.core.repairs.scrub(bytes, restart)
    }
}

impl Scrubbing {
    /// Takes the state; return it with [`keep`](Self::keep).
    pub(crate) fn state(&mut self, repairs: &Repairs) -> Result<ScrubState> {
        let state = self.state.take().map_or_else(|| repairs.load_scrub(), Ok)?;
        self.walked.at(&repairs.space.extents.lock(), ExtentIndex(state.next.0.max(1)));
        Ok(state)
    }

    pub(crate) fn keep(&mut self, state: ScrubState) {
        self.state = Some(state);
    }

    /// The report for `status`, except whether a scrub is running.
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
            repaired: state.repaired,
            acknowledged: (state.damages.len() - damages.len()) as u64,
            damages,
            unlisted: state.unlisted,
        }
    }
}

impl Repairs {
    fn scrub(&self, bytes: u64, restart: bool) -> Result<ScrubReport> {
        self.vitals.check_failed()?;
        let mut known = self.scrub.lock();
        let mut state = known.state(self)?;
        if restart || (bytes > 0 && state.started_unix_s == 0) {
            if !Canary::ScrubSkipsRecent.is_planted() {
                self.bring_to_map()?;
            }
            let started_unix_s = self.vitals.env.clock.unix_s().max(1);
            // Known damage stays on the list until its extent has been verified again.
            let (damages, unlisted) = (state.damages, state.unlisted);
            state = ScrubState { started_unix_s, next: ExtentIndex(1), damages, unlisted, ..ScrubState::default() };
            known.walked.at(&self.space.extents.lock(), state.next);
        }
        self.publish_damage(known.report(&state), false);
        let result = self.scrub_slice(&mut known, &mut state, bytes);
        let report = self.scrub_report(&known.walked, &state);
        self.publish_damage(known.report(&state), bytes > 0);
        known.keep(state);
        if bytes > 0 {
            known.traffic_bytes = self.clean.traffic_bytes();
        }
        result.map(|()| report)
    }

    /// Brings all data that was written before the call into the base of the map. If a pool is too
    /// full to drain its buffer, the rest stays in memory, where there is nothing to verify.
    fn bring_to_map(&self) -> Result<()> {
        match self.writes.flush() {
            Err(error) if error.kind() == ErrorKind::Full => {}
            flushed => flushed?,
        }
        self.checkpoints.take_light()
    }

    fn scrub_slice(&self, known: &mut Scrubbing, state: &mut ScrubState, bytes: u64) -> Result<()> {
        let extent_bytes = u64::from(self.geometry.extent_bytes);
        let first = state.next;
        let (number, victims, end) = {
            let checkpoint = self.checkpoints.state.lock();
            let extents = self.space.extents.lock();
            let (mut victims, mut at) = (Vec::new(), state.next);
            while (victims.len() as u64) < bytes.div_ceil(extent_bytes) && at.0 < self.geometry.extents() {
                let live = extents.live_of(at);
                victims.extend((live > 0).then_some(Victim { extent: at, live }));
                at = ExtentIndex(at.0 + 1);
            }
            (checkpoint.number, victims, at)
        };
        // Without live data there is no damage any more.
        let lives: BTreeSet<_> = victims.iter().map(|victim| victim.extent).collect();
        state.damages.retain(|damage| !(first..end).contains(&damage.extent) || lives.contains(&damage.extent));
        let mut damages_found = 0;
        let mut reads = VictimReads::while_alone(&self.clean, victims, Some(known.traffic_bytes));
        while let Some((victim, read)) = reads.next() {
            state.next = victim.extent;
            let decodes = state.damages.iter().any(|damage| damage.extent == victim.extent);
            let mut verified = self.scrub_extent(victim, number, read.ok(), decodes)?;
            verified.damages.retain(|damage| !damages::is_listed_before(state, victim.extent, damage));
            damages_found += verified.damages.len();
            state.fragments += verified.fragments;
            state.bytes += verified.bytes;
            state.found += verified.damages.len() as u64;
            state.repaired += verified.repaired;
            state.unlisted_so_far += damages::enter(state, victim.extent, verified.damages);
            known.walked.pass(victim.live.into(), victim.extent);
        }
        state.next = end;
        known.walked.pass(0, end);
        if state.next != first {
            if state.next.0 >= self.geometry.extents() {
                state.finished_unix_s = self.vitals.env.clock.unix_s().max(1);
                state.unlisted = state.unlisted_so_far;
            }
            self.keep_scrub(state, damages_found > 0)?;
        }
        Ok(())
    }

    /// Verifies the live fragments of an extent, as of the checkpoint `number`, and decodes them
    /// with `decodes`. Data that does not decode is damage, too.
    pub(crate) fn scrub_extent(
        &self,
        victim: Victim,
        number: u64,
        read: Option<AlignedBuf>,
        decodes: bool,
    ) -> Result<Verified> {
        let mut verified = Verified::default();
        match self.verify_extent(victim, number, (read, decodes), &mut verified) {
            Err(error) if error.kind() == ErrorKind::Corrupt => verified.damages.push(damages::of_extent(&error)),
            other => other?,
        }
        Ok(verified)
    }

    fn verify_extent(
        &self,
        victim: Victim,
        number: u64,
        (read, decodes): (Option<AlignedBuf>, bool),
        verified: &mut Verified,
    ) -> Result<()> {
        let start = self.geometry.start(victim.extent);
        let is_current = || self.checkpoints.state.try_lock().is_some_and(|checkpoint| checkpoint.number == number);
        let Found { read, residents, are_headers_whole } = self.find_residents(victim, read, is_current)?;
        let bytes = self.bytes_of(&read);
        let mut can_be_read = false;
        let mut damaged_ones = Vec::new();
        for (key, error) in &residents.damaged {
            verified.damages.extend(self.damaged_group(*key, error));
        }
        for resident in &residents.found {
            verified.fragments += 1;
            verified.bytes += u64::from(resident.stored.fragment.stored);
            let payload = resident.stored.payload(bytes).filter(|payload| resident.stored.is_intact(payload));
            let damage = match payload {
                Some(payload) if decodes => self.confirm_decoding(resident, payload),
                Some(_) => Ok(None),
                None => self.confirm_damage(resident),
            };
            let damage = match damage {
                Err(error) if error.kind() == ErrorKind::Corrupt => Some(error.to_string()),
                damage => damage?,
            };
            can_be_read |= payload.is_some() && damage.is_none();
            damaged_ones.extend(damage.map(|detail| (resident, detail)));
        }
        let residents_damaged: Vec<_> = damaged_ones.iter().map(|(resident, _)| *resident).collect();
        let repaired = self.clean.repair(&residents_damaged)?;
        for ((resident, detail), is_repaired) in damaged_ones.into_iter().zip(repaired) {
            if is_repaired {
                verified.repaired += 1;
                continue;
            }
            let group = resident.key().group;
            let fragment = Some((resident.location, resident.reference.live));
            let place = Place { group, epoch: resident.stored.epoch, fragment };
            let seen = Concerned::of(&self.objects, &self.map, &resident.object, place);
            let first = BlockIndex(group.first_block().0 + u64::from(seen.blocks.0.trailing_zeros()));
            let (count, others) = (blocks(seen.blocks.count()), seen.others_suffix());
            let detail = match group.copy() {
                0 => format!("{count} from here cannot be read: {detail}{others}"),
                number => format!("copy {number} of {count} from here cannot be read: {detail}{others}"),
            };
            verified.damages.push(damaged(seen.name, first.offset_bytes(), detail));
        }
        // A repair cannot move anything out of an unreadable extent, so its headers are not
        // reported.
        if !are_headers_whole && can_be_read {
            let detail = format!(
                "headers in the extent at byte {start} of the data file are damaged; readable data there cannot \
                 be found without the map, and not by salvage: shale check --repair moves it"
            );
            verified.damages.insert(0, damaged(String::new(), 0, detail));
        }
        if let Some(buf) = read {
            self.buffers.put(buf);
        }
        Ok(())
    }

    /// Returns the bytes of an extent. One that cannot be read whole is read fragment by fragment,
    /// as the map names them.
    fn bytes_of<'b>(&self, read: &'b Option<AlignedBuf>) -> &'b [u8] {
        read.as_ref().map_or(&[], |buf| &buf[..self.geometry.extent_bytes as usize])
    }

    /// Finds all live fragments of an extent. If its headers do not name as many live bytes as the
    /// checkpoint counted, and another checkpoint may be why, the extent is read again while none
    /// is published: so concurrent writes cannot hide a fragment.
    fn find_residents(&self, victim: Victim, read: Option<AlignedBuf>, is_current: impl Fn() -> bool) -> Result<Found> {
        let mut named = self.clean.named_residents(victim.extent, self.bytes_of(&read))?;
        if named.live() == victim.live {
            return Ok(Found { read, residents: named, are_headers_whole: true });
        }
        if !is_current() {
            let _held = self.checkpoints.state.lock();
            let counted = self.space.extents.lock().live_of(victim.extent);
            let again = self.clean.read_extent(victim.extent).ok();
            named = self.clean.named_residents(victim.extent, self.bytes_of(&again))?;
            if named.live() == counted {
                return Ok(Found { read: again, residents: named, are_headers_whole: true });
            }
        }
        let all = self.clean.residents_by_map(victim.extent)?;
        // Damaged records explain the difference if the headers name all fragments of the other
        // records.
        let places: BTreeSet<u64> = named.found.iter().map(|resident| resident.location).collect();
        if !named.damaged.is_empty() && all.found.iter().all(|resident| places.contains(&resident.location)) {
            return Ok(Found { read, residents: named, are_headers_whole: true });
        }
        Ok(Found { read, residents: all, are_headers_whole: false })
    }

    /// Returns the damage of a group whose records cannot be read. `None` if its object is gone.
    fn damaged_group(&self, key: GroupKey, error: &Error) -> Option<ScrubDamage> {
        let object = self.objects.get(key.object)?;
        let offset = key.group.first_block().offset_bytes();
        let group = format_size(GROUP_BYTES as u64);
        Some(damaged(object.title(), offset, format!("up to {group} from here cannot be read: {error}")))
    }

    /// Returns why a fragment that matches its checksum cannot be decoded, if it is live.
    fn confirm_decoding(&self, resident: &Resident, payload: &[u8]) -> Result<Option<String>> {
        let FragmentEntry { count, codec, .. } = resident.stored.fragment;
        let decoded = scratch::with(|scratch| {
            let raw = &mut scratch.unit[..usize::from(count) * BLOCK_BYTES];
            let (codec, raw_len) = (CodecId(codec), raw.len());
            self.reads.decode(Readers::Free, &resident.object, &mut scratch.codecs, (codec, payload), raw, raw_len)
        });
        let Err(error) = decoded else { return Ok(None) };
        let _in_extents = self.reads.readers.read();
        let lives = self.lives(resident)?.is_some();
        let place = format!("{} bytes at byte {} of the data file", payload.len(), resident.location);
        Ok(lives.then(|| format!("{place} match their checksum but cannot be decoded: {error}")))
    }

    /// Returns the fragment in the map, if it is still there and some of its blocks were not
    /// written again. The caller holds `Reads::readers`.
    fn lives(&self, resident: &Resident) -> Result<Option<FragmentRef>> {
        let Resident { object, stored, location, .. } = resident;
        let (key, epoch) = (resident.key(), stored.epoch);
        let found = Lookup::default().at(&self.map, object, key, epoch, *location)?;
        let found = found.filter(|found| is_same(&stored.fragment, found));
        Ok(found.filter(|found| !self.map.unmoved(key, epoch, *location, found.live).is_empty()))
    }

    /// Step 2. `None`: it is intact, or no point sees it any more.
    fn confirm_damage(&self, resident: &Resident) -> Result<Option<String>> {
        let Resident { stored, location, .. } = resident;
        let _in_extents = self.reads.readers.read();
        if self.lives(resident)?.is_none() {
            return Ok(None);
        }
        if !self.geometry.holds(*location, stored.fragment.stored) {
            return Ok(Some(format!("its record points at byte {location} of the data file, where no data can be")));
        }
        let align = self.vitals.env.disk.read_alignment() as u64;
        let start = location / align * align;
        let len = ((location + u64::from(stored.fragment.stored)).next_multiple_of(align) - start) as usize;
        scratch::with(|scratch| {
            scratch.grow_io(len);
            let place = format!("{} bytes at byte {location} of the data file", stored.fragment.stored);
            if let Err(error) = self.vitals.env.disk.read_at(start, &mut scratch.io, len) {
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
            foreground_bytes: self.vitals.counters.foreground_bytes(),
            found: state.found,
            repaired: state.repaired,
            damages: state.damages.iter().map(damages::problem).collect(),
            unacknowledged: open + state.unlisted.max(state.unlisted_so_far),
        }
    }
}

fn blocks(count: u32) -> String {
    if count == 1 { "a block".to_owned() } else { format!("{count} blocks") }
}

fn damaged(volume: String, offset: u64, mut detail: String) -> ScrubDamage {
    detail.truncate(detail.floor_char_boundary(DETAIL_BYTES_MAX));
    ScrubDamage { volume, offset, detail, ..ScrubDamage::default() }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use sim::{ContentKind, Machine, Rng, fill_content};
    use surface::{BlockDevice, WriteOptions};

    use super::*;
    use crate::Properties;
    use crate::pool::testing::pool_on;

    /// A checkpoint between two slices, or during one, is no reason to skip fragments that the
    /// extent's own batches do not name any more.
    #[test]
    fn damaged_headers_are_noticed_whatever_checkpoint_has_come_since() {
        let machine = Machine::new(16 << 20, 1);
        let pool = pool_on(&machine, machine.disk.handle(), 16 << 20, 0);
        let off = Properties::from([("compression".to_owned(), "off".to_owned())]);
        pool.create_volume("v", 1 << 20, &off).unwrap();
        let volume = pool.volume("v").unwrap();
        let mut data = vec![0; 8 * BLOCK_BYTES];
        fill_content(&mut Rng::new(1), ContentKind::Random, &mut data);
        volume.write(0, Bytes::from(data), WriteOptions::default()).unwrap();
        pool.checkpoint().unwrap();
        let mask = units::BlockMask::run(0, 8);
        let pieces = pool.core.map.lookup_stored(&volume.object.levels(), units::GroupIndex(0), mask).unwrap();
        let location = pieces[0].fragment.location;
        let extent = pool.core.geometry.extent_at(location);
        // The batch of the fragment begins in the sectors before its payload.
        let header = location / 512 * 512;
        (1..=8).for_each(|sector| machine.disk.flip_bit(header - sector * 512 + 9, 1));
        machine.disk.flip_bit(location + 100, 1);
        let number = pool.core.checkpoints.state.lock().number;
        for stale in [0, 1] {
            let live = pool.core.space.extents.lock().live_of(extent) - 4096 * stale;
            let read = pool.core.clean.read_extent(extent).ok();
            let victim = Victim { extent, live };
            let verified = pool.core.repairs.scrub_extent(victim, number - u64::from(stale), read, false).unwrap();
            assert_eq!(verified.damages.len(), 1, "{:?}", verified.damages);
            assert_eq!(verified.damages[0].volume, "v");
        }
    }
}
