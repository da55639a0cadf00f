//! From samples to estimates with confidence intervals. Pure.
//!
//! Within a stratum *h* of N windows, n were drawn, one from each of n strips. For a window, z is
//! the number of its raw bytes (zero blocks are holes and are excluded) and y the number of its
//! stored bytes. The stored share is the **combined ratio estimate** of stratified sampling, R =
//! sum N y / sum N z over the strata (Cochran, *Sampling Techniques*, 3rd ed. 1977, chapter 6),
//! with the variance
//!
//! > V(R) = sum N^2 (1 - n/N) s^2 / n / Z^2, s^2 the variance of e = y - R z,
//!
//! where s^2 comes from **successive differences**, sum (e_i+1 - e_i)^2 / 2(n - 1), as suits one
//! draw from each strip (Wolter, *Introduction to Variance Estimation*, 2nd ed. 2007, chapter 8,
//! estimator v2).
//!
//! A slow setting is measured on only n' < n of the windows. Its y correlates with z and with x,
//! the stored bytes by zstd-1, which are known for all n. So the mean of y is estimated by
//! **regression in double sampling** (Särndal, Swensson, Wretman, *Model Assisted Survey Sampling*,
//! 1992, chapter 9): the mean of a z + b x over all n, plus the mean of d = y - a z - b x over the
//! n', where a and b minimise the squares of d. That adds s_d^2 (1/n' - 1/n) to s^2 / n, where
//! s_d^2 is the variance of d.
//! The interval is R +- t s(R), with Student's t for a confidence of 95 %.

/// The measurements of a window.
#[derive(Debug, Clone, PartialEq)]
pub struct Observation {
    /// Bytes that are not zero blocks.
    pub raw: f64,
    /// Bytes stored with each setting; none where it was not tried.
    pub stored: Vec<Option<f64>>,
    /// CPU nanoseconds of each.
    pub cpu_ns: Vec<Option<f64>>,
}

/// A stratum's sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Stratum {
    /// Windows that it has.
    pub windows: u64,
    /// Those that were drawn, in the order of their strips.
    pub observations: Vec<Observation>,
}

/// An estimate for one setting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// Raw bytes.
    pub raw_bytes: f64,
    /// Bytes stored.
    pub stored_bytes: f64,
    /// Half the width of the 95 % confidence interval of their quotient; infinite where it cannot
    /// be determined.
    pub margin: f64,
    /// CPU nanoseconds to compress it all.
    pub cpu_ns: f64,
}

impl Estimate {
    /// The share that is saved.
    pub fn saving(&self) -> f64 {
        if self.raw_bytes > 0.0 { 1.0 - self.stored_bytes / self.raw_bytes } else { 0.0 }
    }
}

/// A stratum's means.
struct Means {
    windows: f64,
    /// n, n'.
    drawn: f64,
    measured: f64,
    raw: f64,
    stored: f64,
    /// How y follows z and x.
    line: Line,
    cpu_ns: f64,
}

/// y = a z + b x.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Line {
    a: f64,
    b: f64,
}

impl Line {
    /// Through points (z, x, y), by least squares; by z alone where z and x are correlated, or
    /// there are few points.
    fn through(points: &[(f64, f64, f64)]) -> Self {
        let sum = |of: fn(&(f64, f64, f64)) -> f64| points.iter().map(of).sum::<f64>();
        let (zz, zx, xx) = (sum(|p| p.0 * p.0), sum(|p| p.0 * p.1), sum(|p| p.1 * p.1));
        let (zy, xy) = (sum(|p| p.0 * p.2), sum(|p| p.1 * p.2));
        let determinant = zz * xx - zx * zx;
        if points.len() >= REGRESSION_MIN && determinant > 1e-6 * zz * xx {
            return Self { a: (zy * xx - xy * zx) / determinant, b: (xy * zz - zy * zx) / determinant };
        }
        Self { a: if zz > 0.0 { zy / zz } else { 0.0 }, b: 0.0 }
    }

    fn at(self, z: f64, x: f64) -> f64 {
        self.a * z + self.b * x
    }
}

/// Points below which two coefficients would follow chance.
const REGRESSION_MIN: usize = 6;

/// Estimates one setting over strata; `helper` is the setting that all windows were measured with.
pub fn estimate(strata: &[Stratum], setting: usize, helper: usize) -> Estimate {
    let means: Vec<Means> = strata.iter().map(|stratum| Means::of(stratum, setting, helper)).collect();
    let raw_bytes: f64 = means.iter().map(|m| m.windows * m.raw).sum();
    let stored_bytes: f64 = means.iter().map(|m| m.windows * m.stored).sum();
    let cpu_ns = means.iter().map(|m| m.windows * m.cpu_ns).sum();
    let ratio = if raw_bytes > 0.0 { stored_bytes / raw_bytes } else { 0.0 };
    let (mut variance, mut freedom) = (0.0, 0.0);
    for (stratum, means) in strata.iter().zip(&means) {
        let of_windows = stratum.variance(setting, helper, ratio, means);
        variance += means.windows * means.windows * of_windows;
        if of_windows > 0.0 {
            freedom += (means.measured - 1.0).max(1.0);
        }
    }
    let deviation = if raw_bytes > 0.0 { variance.sqrt() / raw_bytes } else { 0.0 };
    let margin = if deviation > 0.0 { student_t95(freedom) * deviation } else { 0.0 };
    Estimate { raw_bytes, stored_bytes, margin, cpu_ns }
}

fn mean(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    (if count > 0.0 { sum / count } else { 0.0 }, count)
}

impl Means {
    fn of(stratum: &Stratum, setting: usize, helper: usize) -> Self {
        let all = || stratum.observations.iter();
        let points: Vec<_> = all().filter_map(|o| Some((o.raw, o.stored[helper]?, o.stored[setting]?))).collect();
        let (raw, drawn) = mean(all().map(|o| o.raw));
        let (mut stored, measured) = mean(points.iter().map(|p| p.2));
        let line = Line::through(&points);
        if measured < drawn {
            let (helped, _) = mean(all().filter_map(|o| o.stored[helper]));
            let (left, _) = mean(points.iter().map(|p| p.2 - line.at(p.0, p.1)));
            // No unit is stored in more than its own length.
            stored = (line.at(raw, helped) + left).clamp(0.0, raw);
        }
        // Time goes with the raw bytes.
        let timed = || all().filter(|o| o.cpu_ns[setting].is_some());
        let (cpu_ns, _) = mean(timed().filter_map(|o| o.cpu_ns[setting]));
        let (raw_timed, _) = mean(timed().map(|o| o.raw));
        let cpu_ns = if raw_timed > 0.0 { cpu_ns * raw / raw_timed } else { 0.0 };
        Self { windows: stratum.windows as f64, drawn, measured, raw, stored, line, cpu_ns }
    }
}

impl Stratum {
    /// Variance of the mean of y - R z; infinite where one window stands for several.
    fn variance(&self, setting: usize, helper: usize, ratio: f64, means: &Means) -> f64 {
        let unseen = (1.0 - means.drawn / means.windows).max(0.0);
        let complete = unseen == 0.0 && means.measured >= means.drawn;
        if complete || self.windows == 0 {
            return 0.0;
        }
        if means.measured < 2.0 {
            return f64::INFINITY;
        }
        let measured = || self.observations.iter().filter_map(|o| Some((o, o.stored[setting]?)));
        let errors: Vec<f64> = measured().map(|(o, y)| y - ratio * o.raw).collect();
        let differences: f64 = errors.windows(2).map(|pair| (pair[1] - pair[0]).powi(2)).sum();
        let spread = differences / (2.0 * (means.measured - 1.0));
        let mut variance = spread / means.drawn * unseen;
        if means.measured < means.drawn {
            let left: Vec<f64> =
                measured().map(|(o, y)| y - means.line.at(o.raw, o.stored[helper].unwrap_or(0.0))).collect();
            let (middle, _) = mean(left.iter().copied());
            let squares: f64 = left.iter().map(|d| (d - middle).powi(2)).sum();
            // Two degrees of freedom went into the line.
            let freedom = (means.measured - 2.0).max(1.0);
            variance += squares / freedom * (1.0 / means.measured - 1.0 / means.drawn);
        }
        variance
    }
}

/// The 97.5 % quantile of Student's t, by the first terms of its expansion around the normal one
/// (Abramowitz and Stegun 26.7.5); exact for 1 and 2 degrees of freedom.
pub fn student_t95(freedom: f64) -> f64 {
    const Z: f64 = 1.959_963_985;
    match freedom {
        f if f < 1.5 => 12.706,
        f if f < 2.5 => 4.303,
        f => {
            let (z3, z5, z7) = (Z.powi(3), Z.powi(5), Z.powi(7));
            Z + (z3 + Z) / (4.0 * f)
                + (5.0 * z5 + 16.0 * z3 + 3.0 * Z) / (96.0 * f * f)
                + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * Z) / (384.0 * f * f * f)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reproducible numbers from 0 to 1.
    struct Random(u64);
    impl Random {
        fn next(&mut self) -> f64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    /// A population: stretches of alike windows, as files are; the second setting follows the first
    /// (the helper) loosely.
    fn population(random: &mut Random, windows: usize, rough: f64) -> Vec<(f64, f64, f64)> {
        let mut level = 0.5;
        (0..windows)
            .map(|_| {
                if random.next() < 0.05 {
                    level = random.next();
                }
                let raw = if random.next() < 0.1 { 16384.0 } else { 32768.0 };
                let x = raw * (level + rough * (random.next() - 0.5)).clamp(0.01, 1.0);
                (raw, x, x * (0.7 + 0.2 * random.next()))
            })
            .collect()
    }

    fn sample(random: &mut Random, all: &[(f64, f64, f64)], count: usize, every: usize) -> Stratum {
        let length = all.len() as f64 / count as f64;
        let observe = |strip: usize, random: &mut Random| {
            let (raw, x, y) = all[((strip as f64 + random.next()) * length) as usize];
            let y = strip.is_multiple_of(every).then_some(y);
            Observation { raw, stored: vec![Some(x), y], cpu_ns: vec![Some(raw * 2.0), y.map(|_| raw * 50.0)] }
        };
        Stratum { windows: all.len() as u64, observations: (0..count).map(|strip| observe(strip, random)).collect() }
    }

    /// The intervals contain the true value as often as stated, for fast and for slow settings, and
    /// are not needlessly wide.
    #[test]
    fn intervals_hold_the_truth_as_often_as_they_say() {
        let mut random = Random(2026);
        for (setting, wide) in [(0, 0.022), (1, 0.03)] {
            let (mut inside, mut runs, mut widths) = (0, 0, 0.0);
            for _ in 0..15 {
                let parts = [population(&mut random, 6000, 0.4), population(&mut random, 1500, 0.1)];
                let of = |pick: fn(&(f64, f64, f64)) -> f64| parts.iter().flatten().map(pick).sum::<f64>();
                let stored = if setting == 0 { of(|w| w.1) } else { of(|w| w.2) };
                let truth = 1.0 - stored / of(|w| w.0);
                for _ in 0..40 {
                    let strata = [sample(&mut random, &parts[0], 400, 8), sample(&mut random, &parts[1], 100, 8)];
                    let estimate = estimate(&strata, setting, 0);
                    runs += 1;
                    widths += estimate.margin;
                    inside += i32::from((estimate.saving() - truth).abs() <= estimate.margin);
                }
            }
            let share = f64::from(inside) / f64::from(runs);
            assert!(share > 0.92, "setting {setting}: {share} of {runs} intervals hold the truth");
            assert!(widths / f64::from(runs) < wide, "setting {setting}: {} wide", widths / f64::from(runs));
        }
    }

    /// The helper is worth having: without it the interval of a slow setting would be about as wide
    /// as its few windows allow.
    #[test]
    fn double_sampling_narrows_the_interval() {
        let mut random = Random(3);
        let all = population(&mut random, 20_000, 0.4);
        let both = sample(&mut random, &all, 800, 8);
        let alone = Stratum {
            windows: both.windows,
            observations: both.observations.iter().filter(|o| o.stored[1].is_some()).cloned().collect(),
        };
        let (with, without) = (estimate(&[both], 1, 0), estimate(&[alone], 1, 0));
        assert!(with.margin < without.margin * 0.6, "{} {}", with.margin, without.margin);
    }

    /// A setting that does not follow the helper (a rule stores everything raw) is estimated no
    /// worse for it.
    #[test]
    fn what_does_not_follow_the_helper_is_not_bent_towards_it() {
        let mut random = Random(5);
        let all: Vec<_> = population(&mut random, 9000, 0.4).into_iter().map(|(z, x, _)| (z, x, z)).collect();
        for _ in 0..20 {
            let result = estimate(&[sample(&mut random, &all, 200, 8)], 1, 0);
            assert!(result.saving().abs() < 1e-9 && result.margin < 1e-6, "{result:?}");
        }
    }

    #[test]
    fn a_census_has_no_error_and_one_window_tells_little() {
        let window = |stored| Observation { raw: 100.0, stored: vec![Some(stored)], cpu_ns: vec![Some(7.0)] };
        let census = Stratum { windows: 3, observations: vec![window(10.0), window(50.0), window(90.0)] };
        let result = estimate(std::slice::from_ref(&census), 0, 0);
        assert_eq!((result.saving(), result.margin, result.cpu_ns), (0.5, 0.0, 21.0));
        let lone = Stratum { windows: 3, observations: vec![window(10.0)] };
        assert_eq!(estimate(&[lone], 0, 0).margin, f64::INFINITY);
        let empty = Stratum { windows: 0, observations: vec![] };
        assert_eq!(estimate(std::slice::from_ref(&empty), 0, 0).saving(), 0.0);
        assert_eq!(estimate(&[empty, census], 0, 0).saving(), 0.5);
        assert_eq!(estimate(&[], 0, 0).margin, 0.0);
    }

    #[test]
    fn holes_count_neither_way() {
        let hole = Observation { raw: 0.0, stored: vec![Some(0.0)], cpu_ns: vec![Some(0.0)] };
        let data = Observation { raw: 100.0, stored: vec![Some(40.0)], cpu_ns: vec![Some(9.0)] };
        let strata = [Stratum { windows: 4, observations: vec![hole.clone(), data.clone(), hole, data] }];
        let result = estimate(&strata, 0, 0);
        assert!((result.saving() - 0.6).abs() < 1e-12);
        assert!((result.raw_bytes - 200.0).abs() < 1e-9 && result.margin == 0.0);
    }

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (freedom, t) in
            [(1.0, 12.706), (2.0, 4.303), (3.0, 3.182), (5.0, 2.571), (10.0, 2.228), (30.0, 2.042), (1e6, 1.960)]
        {
            assert!((student_t95(freedom) - t).abs() < 0.02 * t, "{freedom}: {}", student_t95(freedom));
        }
    }
}
