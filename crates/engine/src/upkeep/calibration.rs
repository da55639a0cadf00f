//! Calibration: measures the time of each candidate on this machine, at once instead of unit by
//! unit, and the power of a busy CPU where the processor counts energy. The result is kept with the
//! learned costs.
//!
//! 1. Units of some kinds of synthetic data, in all sizes, are compressed with every candidate of
//!    the pool and of its volumes, on one thread.
//! 2. Their CPU times are learned like those of written units. Savings are not: synthetic data is
//!    not representative.
//! 3. The power is the energy counted in that time, over the CPU time: it includes the processor's
//!    idle power.
//! 4. A checkpoint keeps it.

use codec::{Codec, Workspace};
use env::Clock;
use policy::{Candidates, Key, Power, SizeClass, Table, probe};
use surface::Result;
use units::GROUP_BYTES;

use crate::codecs::costs::Costs;
use crate::pool::Pool;

/// Lengths of units: one of each size class, and how many of each kind: some hundred KiB of each.
const UNITS: [(usize, usize); 3] = [(4 << 10, 64), (32 << 10, 16), (GROUP_BYTES, 6)];
/// Words of the synthetic text.
const WORDS: &str = "the of and storage engine block writes compressed extent log map every checksum is verified before unit decoded to reader epoch \
     snapshot in volume request latency window sector thread queue device memory buffer cache page entry table index value";
/// Digits of dense data: six bits in each byte.
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Speed of one candidate.
#[derive(Debug, Clone, PartialEq)]
pub struct CodecSpeed {
    /// The codec.
    pub codec: String,
    /// Length of the units.
    pub unit_bytes: u64,
    /// CPU nanoseconds for a KiB, mean over the kinds of data.
    pub ns_per_kib: f64,
}

/// Amount of data that a calibration compresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CalibrationEffort {
    /// A quarter, and less with slow candidates: a fraction of a second of CPU time. For a new
    /// pool, which knows nothing about its machine.
    Short,
    /// Some seconds.
    Full,
}

impl CalibrationEffort {
    const fn divisor(self) -> usize {
        match self {
            Self::Short => 4,
            Self::Full => 1,
        }
    }

    /// CPU time after which a candidate compresses no more units of one length, once it has
    /// compressed as many of each kind.
    const fn enough_ns(self) -> u64 {
        match self {
            Self::Short => 5_000_000,
            Self::Full => u64::MAX,
        }
    }
}

/// Result of a calibration.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibration {
    /// By codec and length of units.
    pub speeds: Vec<CodecSpeed>,
    /// CPU time used.
    pub cpu_ns: u64,
    /// Power of a busy CPU, and the source of that figure.
    pub power: Power,
}

/// Called after each candidate with the bytes compressed so far, and the total. An error ends the
/// calibration.
pub type Progress<'a> = &'a dyn Fn(u64, u64) -> Result<()>;

/// A sequence of numbers that look random (xorshift).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 16
    }
}

/// Data of one kind: text, records of a table, or dense.
fn made(kind: usize, seed: u64, len: usize) -> Vec<u8> {
    let words: Vec<&str> = WORDS.split_whitespace().collect();
    let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut out = Vec::with_capacity(len + 64);
    while out.len() < len {
        let number = numbers.next();
        match kind {
            0 => {
                out.extend_from_slice(words[number as usize % words.len()].as_bytes());
                out.push(if number.is_multiple_of(11) { b'\n' } else { b' ' });
            }
            1 => {
                out.extend_from_slice(&(out.len() as u32).to_le_bytes());
                out.extend_from_slice(&(number as u16).to_le_bytes());
                out.extend_from_slice(words[number as usize % words.len()].as_bytes());
                out.extend_from_slice(&[0; 6]);
            }
            _ => out.push(DIGITS[number as usize % DIGITS.len()]),
        }
    }
    out.truncate(len);
    out
}

const KINDS: usize = 3;

/// Steps 1 and 2.
fn measure(
    effort: CalibrationEffort,
    clock: &dyn Clock,
    candidates: &[Codec],
    costs: &Costs,
    progress: Progress<'_>,
) -> Result<Vec<CodecSpeed>> {
    let mut codecs = Workspace::new();
    let mut dst = vec![0; GROUP_BYTES];
    let mut speeds = Vec::new();
    let units = UNITS.map(|(unit_bytes, count)| (unit_bytes, count.div_ceil(effort.divisor())));
    let bytes_of = |(unit_bytes, count): (usize, usize)| (unit_bytes * count * KINDS) as u64;
    let total = units.into_iter().map(bytes_of).sum::<u64>() * candidates.len() as u64;
    let mut done = 0;
    for (unit_bytes, count) in units {
        let bytes = bytes_of((unit_bytes, count));
        let units: Vec<Vec<u8>> =
            (0..KINDS * count).map(|index| made(index % KINDS, index as u64 + 1, unit_bytes)).collect();
        for codec in candidates {
            // Makes the context and warms it up.
            codecs.compress(*codec, &units[0], &mut dst);
            let (mut measured, mut total_ns) = (0_usize, 0);
            for unit in &units {
                let began = clock.thread_cpu_ns();
                codecs.compress(*codec, unit, &mut dst[..unit_bytes]);
                let cpu_ns = clock.thread_cpu_ns().saturating_sub(began);
                let key = Key { codec: codec.id(), class: probe(unit).class, size: SizeClass::of(unit_bytes) };
                costs.learn_time(key, unit_bytes, cpu_ns);
                measured += 1;
                total_ns += cpu_ns;
                // As many of each kind.
                if total_ns >= effort.enough_ns() && measured.is_multiple_of(KINDS) {
                    break;
                }
            }
            let kib = (measured * unit_bytes) as f64 / 1024.0;
            let (codec, unit_bytes) = (codec.to_string(), unit_bytes as u64);
            speeds.push(CodecSpeed { codec, unit_bytes, ns_per_kib: total_ns as f64 / kib });
            done += bytes;
            progress(done, total)?;
        }
    }
    Ok(speeds)
}

impl Pool {
    /// Measures and learns the time of each candidate of the pool and of its volumes on this
    /// machine; takes the CPU time that `effort` allows. `energy_uj` returns the energy used by the
    /// processors so far, in microjoules, if they count it.
    ///
    /// # Errors
    /// Those of `progress`, and when the storage fails.
    pub fn calibrate(
        &self,
        effort: CalibrationEffort,
        energy_uj: &dyn Fn() -> Option<u64>,
        progress: Progress<'_>,
    ) -> Result<Calibration> {
        let core = &self.core;
        core.vitals.check_failed()?;
        let mut candidates: Vec<Codec> = Candidates::default().as_slice().to_vec();
        for object in core.objects.volumes() {
            for codec in object.settings.read().candidates.as_slice() {
                if !candidates.contains(codec) {
                    candidates.push(*codec);
                }
            }
        }
        let clock = &*core.vitals.env.clock;
        let (before_uj, before_ns) = (energy_uj(), clock.thread_cpu_ns());
        let costs = &core.chooser.costs;
        let speeds = measure(effort, clock, &candidates, costs, progress)?;
        let cpu_ns = clock.thread_cpu_ns().saturating_sub(before_ns);
        // Step 3.
        let counted = before_uj.zip(energy_uj()).map(|(before, after)| after.saturating_sub(before));
        let power = counted.and_then(|used| Power::measured(used, cpu_ns)).unwrap_or(Power::NOMINAL);
        costs.set_power(power);
        self.core.history.flush_and_checkpoint()?;
        Ok(Calibration { speeds, cpu_ns, power })
    }

    /// Returns the power of a busy CPU, as the last calibration measured it.
    pub fn power(&self) -> Power {
        self.core.chooser.costs.power()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use env::SystemClock;
    use policy::Class;
    use surface::{Error, ErrorKind};

    #[test]
    fn a_short_calibration_learns_each_candidate_in_each_size() {
        let candidates: Vec<Codec> = Candidates::default().as_slice().to_vec();
        let (costs, nothing) = (Costs::new(None), Costs::new(None));
        let calls = RefCell::new(Vec::new());
        let tell = |done, total| {
            calls.borrow_mut().push((done, total));
            Ok(())
        };
        let speeds = measure(CalibrationEffort::Short, &SystemClock::default(), &candidates, &costs, &tell).unwrap();
        assert_eq!(speeds.len(), candidates.len() * UNITS.len());
        let calls = calls.into_inner();
        assert!(calls.is_sorted() && calls.len() == speeds.len(), "{calls:?}");
        assert!(calls.last().is_some_and(|(done, total)| done == total && *total > 0), "{calls:?}");
        for (unit_bytes, _) in UNITS {
            let class: Class = probe(&made(0, 1, unit_bytes)).class;
            for codec in &candidates {
                let key = Key { codec: codec.id(), class, size: SizeClass::of(unit_bytes) };
                assert_ne!(costs.cell(key), nothing.cell(key), "{codec}, {unit_bytes} bytes");
            }
        }
    }

    /// A machine on which each unit takes a millisecond.
    #[derive(Default)]
    struct Slow {
        asked: AtomicU64,
    }

    impl Clock for Slow {
        fn now_ns(&self) -> u64 {
            0
        }
        fn unix_s(&self) -> u64 {
            0
        }
        fn thread_cpu_ns(&self) -> u64 {
            self.asked.fetch_add(1, Ordering::SeqCst) * 1_000_000
        }
    }

    /// A figure is the mean over the kinds of data, and they differ.
    #[test]
    fn a_slow_candidate_compresses_as_many_units_of_each_kind() {
        let candidates: Vec<Codec> = Candidates::default().as_slice().to_vec();
        let clock = Slow::default();
        let speeds = measure(CalibrationEffort::Short, &clock, &candidates, &Costs::new(None), &|_, _| Ok(())).unwrap();
        let measured = clock.asked.into_inner() / 2;
        assert_eq!(measured, (speeds.len() * 2 * KINDS) as u64, "the next multiple after 5 ms");
        assert!(speeds.iter().all(|speed| speed.ns_per_kib == 1e6 * 1024.0 / speed.unit_bytes as f64), "{speeds:?}");
    }

    #[test]
    fn a_calibration_ends_behind_the_candidate_at_which_it_is_told_to() {
        let candidates: Vec<Codec> = Candidates::default().as_slice().to_vec();
        let calls = Cell::new(0);
        let end = |_, _| {
            calls.set(calls.get() + 1);
            if calls.get() == 2 { Err(Error::new(ErrorKind::InUse, "enough")) } else { Ok(()) }
        };
        let ended = measure(CalibrationEffort::Short, &SystemClock::default(), &candidates, &Costs::new(None), &end)
            .unwrap_err();
        assert_eq!((ended.kind(), calls.get()), (ErrorKind::InUse, 2));
    }
}
