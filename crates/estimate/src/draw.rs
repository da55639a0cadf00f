//! Draws the windows to sample.

use super::population::{Population, Stratum};

/// Returns the windows drawn from each stratum, in ascending order.
///
/// Samples are allotted in proportion to the strata's sizes, but each gets at least `least`, or all
/// its windows if it has fewer.
pub fn draw(population: &Population, sample_bytes: u64, least: u64, seed: u64) -> Vec<Vec<u64>> {
    let all: u64 = population.strata.iter().map(Stratum::windows).sum();
    let samples = (sample_bytes / population.unit_bytes as u64).max(1);
    let mut random = Random(seed);
    let share = |windows: u64| (u128::from(samples) * u128::from(windows) / u128::from(all.max(1))) as u64;
    population.strata.iter().map(|s| strips(s.windows(), share(s.windows()).max(least), &mut random)).collect()
}

/// One window from each of `count` strips of equal length. Every window is equally likely; one on a
/// border may be drawn for both strips. All windows, once each, if `count` is more than half of
/// them.
fn strips(windows: u64, count: u64, random: &mut Random) -> Vec<u64> {
    if count >= windows.div_ceil(2) {
        return (0..windows).collect();
    }
    let length = windows as f64 / count as f64;
    (0..count).map(|strip| (((strip as f64 + random.unit()) * length) as u64).min(windows - 1)).collect()
}

/// Splitmix64: the same seed draws the same sample.
struct Random(u64);

impl Random {
    /// From 0 to 1, without 1.
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_strip_gives_one_window_and_few_are_taken_whole() {
        let mut random = Random(1);
        let drawn = strips(1000, 100, &mut random);
        assert_eq!(drawn.len(), 100);
        assert!(drawn.iter().enumerate().all(|(i, w)| w / 10 == i as u64));
        assert_eq!(strips(7, 4, &mut random), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(strips(0, 4, &mut random), [0; 0]);
        assert_eq!(strips(1, 1, &mut random), [0]);
        let huge = strips(u64::from(u32::MAX) << 8, 3, &mut random);
        assert!(huge.len() == 3 && huge.is_sorted());
    }

    #[test]
    fn every_window_is_as_likely_as_every_other() {
        // Strips of 3.7 windows: the borders fall within windows.
        let mut random = Random(7);
        let mut counts = [0u32; 37];
        for _ in 0..20_000 {
            for window in strips(37, 10, &mut random) {
                counts[window as usize] += 1;
            }
        }
        let expected = 20_000.0 * 10.0 / 37.0;
        for (window, count) in counts.iter().enumerate() {
            assert!((f64::from(*count) / expected - 1.0).abs() < 0.06, "window {window}: {count} of {expected}");
        }
    }
}
