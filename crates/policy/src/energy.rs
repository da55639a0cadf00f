//! Energy: the price of CPU time in joules, and where that figure comes from. Where the processor
//! counts its energy (RAPL), a calibration divides the counted energy by the CPU time used;
//! elsewhere a nominal power per busy CPU is assumed, so that joules are CPU time in another unit.
//! Either way the cost function of the mode `energy` compares CPU times: a constant factor changes
//! no choice.

use std::fmt;

/// Where a power comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnergySource {
    /// Counted by the processor while it was calibrated.
    Rapl,
    /// Nominal: CPU time was measured, energy was not.
    CpuTime,
}

impl EnergySource {
    /// A short name, for machines.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rapl => "rapl",
            Self::CpuTime => "cpu-time",
        }
    }
}

/// Power of a busy CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Power {
    milliwatts: u32,
    source: EnergySource,
}

/// Bit of [`Power::bits`] that marks RAPL.
const RAPL_BIT: u64 = 1 << 32;
/// Most milliwatts of a CPU that are plausible: a larger figure means a misread counter.
const MILLIWATTS_MAX: u32 = 1_000_000;

impl Power {
    /// Default for an unknown machine: ten watts, about a core of a server's processor at work.
    pub const NOMINAL: Self = Self { milliwatts: 10_000, source: EnergySource::CpuTime };

    /// Computes the power from the processor's counter over some CPU time. `None` if the result is
    /// implausible: zero, or far too large.
    pub fn measured(microjoules: u64, cpu_ns: u64) -> Option<Self> {
        let milliwatts = u128::from(microjoules) * 1_000_000 / u128::from(cpu_ns.max(1));
        let milliwatts = u32::try_from(milliwatts).ok().filter(|mw| (1..=MILLIWATTS_MAX).contains(mw))?;
        Some(Self { milliwatts, source: EnergySource::Rapl })
    }

    /// Watts of one busy CPU.
    pub fn watts(self) -> f64 {
        f64::from(self.milliwatts) / 1000.0
    }

    /// Joules for so much CPU time.
    pub fn joules(self, cpu_ns: u64) -> f64 {
        self.watts() * cpu_ns as f64 / 1e9
    }

    /// Source of the figure.
    pub const fn source(self) -> EnergySource {
        self.source
    }

    /// Packs it for storage; never 0.
    pub const fn bits(self) -> u64 {
        match self.source {
            EnergySource::Rapl => self.milliwatts as u64 | RAPL_BIT,
            EnergySource::CpuTime => self.milliwatts as u64,
        }
    }

    /// Inverse of [`bits`](Self::bits); nominal if the bits are not valid.
    pub fn from_bits(bits: u64) -> Self {
        let source = if bits & RAPL_BIT == 0 { EnergySource::CpuTime } else { EnergySource::Rapl };
        match u32::try_from(bits & !RAPL_BIT) {
            Ok(milliwatts @ 1..=MILLIWATTS_MAX) => Self { milliwatts, source },
            _ => Self::NOMINAL,
        }
    }
}

impl fmt::Display for Power {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let watts = self.watts();
        match self.source {
            EnergySource::Rapl => write!(f, "{watts:.1} W for a busy CPU, counted by the processor (RAPL)"),
            EnergySource::CpuTime => write!(f, "CPU time at a nominal {watts:.1} W for a busy CPU (no RAPL)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_by_table() {
        // 30 J in 2 s of CPU time.
        let power = Power::measured(30_000_000, 2_000_000_000).unwrap();
        assert_eq!((power.watts(), power.source()), (15.0, EnergySource::Rapl));
        assert!((power.joules(500_000_000) - 7.5).abs() < 1e-9);
        assert!((Power::NOMINAL.joules(1_000_000_000) - 10.0).abs() < 1e-9);
        for (microjoules, cpu_ns) in [(0, 1_000_000_000), (u64::MAX, 1), (u64::MAX, 1_000_000_000), (1, u64::MAX)] {
            assert_eq!(Power::measured(microjoules, cpu_ns), None, "{microjoules} {cpu_ns}");
        }
    }

    #[test]
    fn each_says_whose_it_is() {
        assert!(Power::NOMINAL.to_string().contains("nominal"));
        assert!(Power::measured(9_000_000, 1_000_000_000).unwrap().to_string().contains("RAPL)"));
        assert_ne!(EnergySource::Rapl.name(), EnergySource::CpuTime.name());
    }

    proptest::proptest! {
        #[test]
        fn what_is_kept_comes_back_and_anything_is_a_power(bits: u64, microjoules in 1u64..1 << 40, cpu_ns in 1u64..1 << 40) {
            let any = Power::from_bits(bits);
            assert!(any.watts() > 0.0 && any.bits() != 0);
            assert_eq!(Power::from_bits(any.bits()), any);
            if let Some(power) = Power::measured(microjoules, cpu_ns) {
                assert_eq!(Power::from_bits(power.bits()), power);
            }
        }
    }
}
