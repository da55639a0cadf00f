//! Samples of volumes' writes, from which dictionaries are trained. Owns which units are sampled,
//! and bounds the memory for them.
//!
//! 1. Small units that do not look random are offered as they are compressed. Of a volume that
//!    collects, every *n*-th is copied.
//! 2. When the budget is full, every second sample is dropped, and *n* doubles: so they are always
//!    spread over all writes.
//! 3. When four times the budget has been written, or when the volume has been quiet for some
//!    seconds, the samples are complete.
//! 4. After the training the volume pauses: a quarter as long after the first one, because it has
//!    seen little; longer each time that training had no success.
//!
//! At most four volumes collect at the same time; one that has been quiet for long gives way.

use std::collections::BTreeMap;

use policy::{SamplePart, divide_samples};
use store::base::options::Training;
use store::base::ranked::Mutex;
use store::base::ranks;
use units::ObjectId;

use crate::codecs::regions::Place;

/// Volumes that collect at the same time.
const COLLECTING_MAX: usize = 4;
/// Upper bound of volumes with state: others are forgotten, and start over.
const KNOWN_MAX: usize = 4096;
/// Part of the memory budget for one volume's samples, and a lower bound.
const MEMORY_DIVISOR: u64 = 128;
const SAMPLE_BYTES_MIN: usize = 64 << 10;
/// Written bytes from which samples are taken, as a multiple of the samples' bytes.
const SPAN: u64 = 4;
/// Units are cut into pieces so that a budget holds at least this many samples: training needs 32,
/// judging some more.
const SAMPLES_WANTED: usize = 64;
/// Shortest useful piece for training.
const PIECE_BYTES_MIN: usize = 256;
/// Minimum part of the budget that quiet samples must fill to be complete.
const QUIET_PART: usize = 8;
/// How long a volume has been quiet then.
const QUIET_NS: u64 = 5_000_000_000;
/// The first pause of a volume, as a part of the usual one.
const FIRST_PAUSE_DIVISOR: u64 = 4;
/// Doublings of the pause after trainings without success.
const PAUSE_DOUBLINGS_MAX: u32 = 6;

/// Samples of one volume.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    bytes: Vec<u8>,
    /// End of each sample, and its region of the volume.
    ends: Vec<(usize, Place)>,
    stride: u64,
    units: u64,
    /// Bytes of all units that were offered.
    pub written_bytes: u64,
}

impl Samples {
    fn offer(&mut self, place: Place, raw: &[u8], budget: usize) {
        let wanted = self.units.is_multiple_of(self.stride.max(1));
        self.units += 1;
        self.written_bytes += raw.len() as u64;
        if !wanted {
            return;
        }
        let piece = (budget / SAMPLES_WANTED).max(PIECE_BYTES_MIN);
        for piece in raw.chunks(piece) {
            if self.bytes.len() + piece.len() > budget {
                self.halve();
            }
            self.bytes.extend_from_slice(piece);
            self.ends.push((self.bytes.len(), place));
        }
    }

    /// Step 2.
    fn halve(&mut self) {
        let (mut begin, mut kept, mut ends) = (0, 0, Vec::with_capacity(self.ends.len() / 2 + 1));
        for (index, (end, place)) in std::mem::take(&mut self.ends).into_iter().enumerate() {
            if index.is_multiple_of(2) {
                self.bytes.copy_within(begin..end, kept);
                kept += end - begin;
                ends.push((kept, place));
            }
            begin = end;
        }
        self.bytes.truncate(kept);
        self.ends = ends;
        self.stride = self.stride.max(1) * 2;
    }

    /// Returns the samples in parts of the volume, each of whole regions: adjacent data is usually
    /// of one kind, and small files of one type are one region.
    pub(crate) fn parts(&self) -> Vec<SamplePart<'_>> {
        let mut begin = 0;
        let pieces = self.ends.iter().map(|(end, place)| {
            let piece = &self.bytes[begin..*end];
            begin = *end;
            (place.number(), piece)
        });
        divide_samples(pieces.collect())
    }
}

/// State of one volume.
#[derive(Debug)]
struct Volume {
    /// Bytes that it still writes before it collects.
    pause_bytes: u64,
    /// Number of trainings, and of the latest ones in a row without success.
    trainings: u32,
    failures: u32,
    samples: Option<Samples>,
    /// `Samples::written_bytes` at its last observed change, and the time of that.
    seen: (u64, u64),
}

/// The samples of a pool.
pub(crate) struct Sampling {
    budget: usize,
    training: Training,
    volumes: Mutex<BTreeMap<ObjectId, Volume>, ranks::Samples>,
}

impl Sampling {
    pub(crate) fn new(training: Training, memory_bytes: u64) -> Self {
        let affordable = usize::try_from(memory_bytes / MEMORY_DIVISOR).unwrap_or(usize::MAX).max(SAMPLE_BYTES_MIN);
        Self { budget: training.sample_bytes.min(affordable), training, volumes: Mutex::default() }
    }

    /// Offers a compressed unit of a volume. Returns whether the volume's samples are complete now.
    /// Never blocks: if another thread is offering at this moment, the unit is left out.
    pub(crate) fn offer(&self, object: ObjectId, place: Place, raw: &[u8]) -> bool {
        let Some(mut volumes) = self.volumes.try_lock() else { return false };
        let collecting = volumes.values().filter(|volume| volume.samples.is_some()).count();
        if !volumes.contains_key(&object) && volumes.len() >= KNOWN_MAX {
            volumes.retain(|_, volume| volume.samples.is_some());
        }
        let volume = volumes.entry(object).or_insert(Volume {
            pause_bytes: 0,
            trainings: 0,
            failures: 0,
            samples: None,
            seen: (0, 0),
        });
        if volume.pause_bytes > 0 {
            volume.pause_bytes = volume.pause_bytes.saturating_sub(raw.len() as u64);
            return false;
        }
        if volume.samples.is_none() && collecting >= COLLECTING_MAX {
            return false;
        }
        let samples = volume.samples.get_or_insert_default();
        samples.offer(place, raw, self.budget);
        samples.written_bytes >= SPAN * self.budget as u64
    }

    /// Takes the samples of a volume that are complete, by step 3 or on request (`now`); returns
    /// them with the volume. Samples of volumes that are not `alive` any more are dropped.
    pub(crate) fn take(&self, now_ns: u64, now: bool, alive: impl Fn(ObjectId) -> bool) -> Option<(ObjectId, Samples)> {
        let mut volumes = self.volumes.lock();
        volumes.retain(|id, _| alive(*id));
        for (id, volume) in volumes.iter_mut() {
            let Some(samples) = &volume.samples else { continue };
            if volume.seen.0 != samples.written_bytes {
                volume.seen = (samples.written_bytes, now_ns);
            }
            let is_quiet = now_ns.saturating_sub(volume.seen.1) >= QUIET_NS;
            let has_some = samples.bytes.len() >= self.budget / QUIET_PART;
            if samples.written_bytes >= SPAN * self.budget as u64 || now || is_quiet && has_some {
                volume.pause_bytes = self.training.pause_bytes;
                return volume.samples.take().map(|samples| (*id, samples));
            }
            if is_quiet {
                // Too few: others may have its slot.
                volume.samples = None;
            }
        }
        None
    }

    /// Records the result of a training.
    pub(crate) fn trained(&self, object: ObjectId, adopted: bool) {
        let mut volumes = self.volumes.lock();
        let Some(volume) = volumes.get_mut(&object) else { return };
        volume.failures = if adopted { 0 } else { (volume.failures + 1).min(PAUSE_DOUBLINGS_MAX) };
        volume.pause_bytes = self.training.pause_bytes.saturating_mul(1 << volume.failures);
        if volume.trainings == 0 {
            volume.pause_bytes /= FIRST_PAUSE_DIVISOR;
        }
        volume.trainings = volume.trainings.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use units::BlockIndex;

    use super::*;
    use crate::codecs::regions::REGION_BLOCKS;

    const BUDGET: usize = 64 << 10;

    fn sampling() -> Sampling {
        Sampling::new(Training { sample_bytes: BUDGET, pause_bytes: 1 << 20, ..Training::default() }, 1 << 30)
    }

    /// A unit whose content includes its number.
    fn unit(number: usize) -> Vec<u8> {
        (number as u32).to_le_bytes().repeat(1024)
    }

    #[test]
    fn samples_are_spread_over_what_was_written_and_bounded() {
        let sampling = sampling();
        let mut complete = None;
        for number in 0..1000 {
            if sampling.offer(ObjectId(1), Place::of(BlockIndex(number as u64)), &unit(number)) {
                complete = Some(number);
                break;
            }
        }
        assert_eq!(complete, Some(SPAN as usize * BUDGET / 4096 - 1));
        let (id, samples) = sampling.take(0, false, |_| true).unwrap();
        assert_eq!(id, ObjectId(1));
        assert!(samples.bytes.len() <= BUDGET && samples.bytes.len() > BUDGET / 4, "{}", samples.bytes.len());
        let parts = samples.parts();
        assert_eq!(parts.len(), 1);
        let SamplePart { train, held_out } = &parts[0];
        assert!(train.len() >= 32 && held_out.len() * 4 >= train.len(), "{} and {}", train.len(), held_out.len());
        let number = |sample: &&[u8]| u32::from_le_bytes(sample[..4].try_into().unwrap());
        assert!(train.iter().map(number).max().unwrap() > 48, "the last of 64 units are among them");
        assert!(train.iter().map(number).min().unwrap() < 8, "and the first ones");
        assert!(train.iter().all(|sample| sample.chunks(4).all(|word| word == &sample[..4])), "each is of one unit");
    }

    #[test]
    fn parts_are_whole_regions_of_some_size() {
        let regions_of = |part: &SamplePart<'_>| {
            let all = part.train.iter().chain(&part.held_out);
            all.map(|s| u32::from_le_bytes(s[..4].try_into().unwrap())).collect::<std::collections::BTreeSet<_>>()
        };
        // Samples in each region, in any order of writing; parts by their regions.
        for (counts, expected) in [
            (&[100, 100, 100][..], &[&[0, 1, 2][..1], &[1], &[2]][..]),
            (&[100, 20, 20, 20, 20], &[&[0], &[1, 2, 3, 4]]),
            (&[10, 10], &[&[0, 1]]),
            (&[300, 10], &[&[0, 1]]),
            (&[], &[]),
        ] {
            let mut samples = Samples::default();
            for round in 0..300 {
                for (region, _) in counts.iter().enumerate().filter(|(_, count)| round < **count) {
                    samples.offer(Place::of(BlockIndex(region as u64 * REGION_BLOCKS + 5)), &unit(region), 64 << 20);
                }
            }
            let parts = samples.parts();
            let found: Vec<Vec<u32>> = parts.iter().map(|part| regions_of(part).into_iter().collect()).collect();
            assert_eq!(found, expected, "{counts:?}");
            assert!(parts.iter().all(|part| part.train.len() / 3 == part.held_out.len()), "{counts:?}");
        }
        let mut samples = Samples::default();
        (0..4000).for_each(|n| samples.offer(Place::of(BlockIndex(n * REGION_BLOCKS)), &unit(7), 64 << 20));
        assert_eq!(samples.parts().len(), 8);
        // Kinds of small files, at any address.
        let mut samples = Samples::default();
        (0..300).for_each(|n| samples.offer(Place::of_kind(1 + n % 3), &unit(usize::from(n % 3)), 64 << 20));
        let found: Vec<Vec<u32>> = samples.parts().iter().map(|part| regions_of(part).into_iter().collect()).collect();
        assert_eq!(found, [[0], [1], [2]]);
    }

    #[test]
    fn a_volume_pauses_after_a_training_and_longer_after_one_that_brought_nothing() {
        let sampling = sampling();
        let pass = |bytes: u64| {
            for n in 0..bytes / 4096 {
                sampling.offer(ObjectId(1), Place::of(BlockIndex(n)), &unit(n as usize));
            }
        };
        // The first one has seen little.
        pass(256 << 10);
        assert!(sampling.take(0, false, |_| true).is_some());
        sampling.trained(ObjectId(1), true);
        pass(256 << 10);
        for (adopted, pause) in [(true, 1), (false, 2), (false, 4), (true, 1)] {
            pass(256 << 10);
            assert!(sampling.take(0, false, |_| true).is_some());
            sampling.trained(ObjectId(1), adopted);
            pass((pause << 20) - 4096);
            assert!(sampling.take(0, true, |_| true).is_none(), "it pauses");
            pass(4096);
        }
    }

    #[test]
    fn quiet_volumes_are_trained_with_what_there_is_or_give_way() {
        let sampling = sampling();
        for volume in 1..=5 {
            let units = if volume == 1 { 1 } else { 4 };
            for n in 0..units {
                sampling.offer(ObjectId(volume), Place::of(BlockIndex(n as u64)), &unit(n));
            }
        }
        assert!(sampling.take(1, false, |_| true).is_none());
        let taken = std::iter::from_fn(|| sampling.take(QUIET_NS + 1, false, |id| id != ObjectId(3)));
        assert_eq!(taken.map(|(id, _)| id.0).collect::<Vec<_>>(), [2, 4], "1 has too few, 3 is gone, 5 came too late");
        sampling.offer(ObjectId(5), Place::default(), &unit(0));
        assert!(sampling.take(0, true, |_| true).is_some());
    }

    #[test]
    fn a_small_memory_budget_bounds_samples() {
        let sampling = Sampling::new(Training::default(), 64 << 20);
        assert_eq!(sampling.budget, 512 << 10);
    }
}
