//! Sums frames up to the next tier. Pure.
//!
//! To sum the same frame up again changes nothing: the steps that it covers are replaced. So a
//! frame that was under way at a crash is summed up whenever its end is known.
//!
//! When the clock is set back to a span of which only the sums are left, these are spread over the
//! seconds of a new frame, which then adds to them.

use crate::dataset::{Dataset, Shape};
use crate::frame::{Frame, Key, Point};
use crate::tier::Tier;

/// Histograms of the coarsest tier.
const LONG_HISTOGRAMS: [&str; 3] = ["read", "write", "flush"];

/// Whether a tier has a series.
fn has(tier: Tier, key: &Key) -> bool {
    let is_long = || key.label("operation").is_some_and(|operation| LONG_HISTOGRAMS.contains(&operation));
    tier != Tier::Minutes || key.dataset != Dataset::LATENCY || is_long()
}

impl Frame {
    /// Replaces the steps that `finer`, a frame of the tier below within this one's span, covers.
    pub(crate) fn replace_with(&mut self, finer: &Frame) {
        let (tier, step_s) = (self.tier, self.tier.step_s());
        let each = (step_s / finer.tier.step_s()) as usize;
        let steps: Vec<_> = (0..finer.covered.len() / each)
            .filter(|step| finer.covered[step * each..(step + 1) * each].iter().any(|covered| *covered > 0))
            .map(|step| (step, self.step_of(finer.start + step as u64 * step_s)))
            .filter(|(_, own)| *own < self.covered.len())
            .collect();
        for points in self.series.values_mut() {
            for (_, own) in &steps {
                if let Some(point) = points.get_mut(*own) {
                    *point = Point::default();
                }
            }
        }
        for (step, own) in &steps {
            self.covered[*own] = finer.covered[step * each..(step + 1) * each].iter().sum();
        }
        for (key, fine) in finer.series.iter().filter(|(key, _)| has(tier, key)) {
            let Some(points) = self.points_mut(key) else { continue };
            for (step, own) in &steps {
                let sum = summed(key.dataset.shape(), fine, &finer.covered, step * each, each);
                if sum == Point::default() {
                    continue;
                }
                if points.len() <= *own {
                    points.resize(own + 1, Point::default());
                }
                let point = &mut points[*own];
                // The place of several series that found none of their own adds them up.
                point.sum += sum.sum;
                point.peak = point.peak.max(sum.peak);
                point.least += sum.least;
            }
        }
        for (object, name) in &finer.names {
            self.names.insert(*object, name.clone());
        }
        self.folded = self.folded.max(finer.folded);
        self.left_out = self.left_out.max(finer.left_out);
    }

    /// Spreads the sums of `coarser`, a frame of the tier above whose span holds this one's, evenly
    /// over the steps of this empty frame: summed up again they are the same.
    pub(crate) fn spread_from(&mut self, coarser: &Frame) {
        let step_s = self.tier.step_s();
        let each = (coarser.tier.step_s() / step_s) as usize;
        let mut begun = Vec::new();
        for first in (0..self.covered.len()).step_by(each) {
            let theirs = coarser.step_of(self.start + first as u64 * step_s);
            let mut left = coarser.covered.get(theirs).copied().unwrap_or(0);
            if left > 0 {
                begun.push((first, theirs));
            }
            for covered in self.covered[first..].iter_mut().take(each) {
                *covered = left.min(step_s as u32);
                left -= *covered;
            }
        }
        for (key, points) in &coarser.series {
            let sums = begun.iter().filter_map(|(first, theirs)| Some((*first, *points.get(*theirs)?)));
            for (first, point) in sums.filter(|(_, point)| *point != Point::default()) {
                self.spread_point(key, first, each, point);
            }
        }
        if !begun.is_empty() {
            self.names.clone_from(&coarser.names);
            (self.folded, self.left_out) = (coarser.folded, coarser.left_out);
        }
    }

    /// Divides a point by the seconds that its steps cover.
    fn spread_point(&mut self, key: &Key, first: usize, each: usize, point: Point) {
        let covered = self.covered[first..first + each].to_vec();
        let seconds: u64 = covered.iter().copied().map(u64::from).sum();
        let is_fine = self.tier == Tier::Seconds;
        let Some(points) = self.points_mut(key) else { return };
        points.resize(points.len().max(first + each), Point::default());
        let (mut left, mut left_s) = (point.sum, seconds);
        for (own, covered) in points[first..].iter_mut().zip(covered) {
            let covered = u64::from(covered).min(left_s);
            let sum = if covered == left_s { left } else { left / left_s * covered };
            (left, left_s) = (left - sum, left_s - covered);
            let part = if is_fine { Point::of_second(sum) } else { Point { sum, ..point } };
            if covered > 0 && sum > 0 {
                *own = part;
            }
        }
    }
}

fn summed(shape: Shape, points: &[Point], covered: &[u32], from: usize, count: usize) -> Point {
    let mut total = Point::default();
    let mut least = None;
    for step in from..from + count {
        if covered.get(step).is_none_or(|covered| *covered == 0) {
            continue;
        }
        let point = points.get(step).copied().unwrap_or_default();
        total.sum = total.sum.saturating_add(point.sum);
        total.peak = total.peak.max(point.peak);
        least = Some(least.map_or(point.least, |least: u64| least.min(point.least)));
    }
    if shape == Shape::Gauge {
        total.least = least.unwrap_or(0);
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(door: &str) -> Key {
        Key::new(Dataset::OPS, &["read", door], 7)
    }

    #[test]
    fn sums_stay_and_a_frame_may_be_summed_up_twice() {
        let mut fine = Frame::new(Tier::Seconds, 660);
        for second in 660..720 {
            if second == 700 {
                continue;
            }
            fine.covered[(second - 660) as usize] = 1;
            fine.add(second, &key("nbd"), second % 7);
            fine.add(second, &Key::new(Dataset::JOBS, &["scrub"], 0), 3 + second % 2);
        }
        let mut coarse = Frame::new(Tier::Tens, 600);
        coarse.replace_with(&fine);
        let once = coarse.clone();
        coarse.replace_with(&fine);
        assert_eq!(coarse, once);
        let total: u64 = (660..720).filter(|second| *second != 700).map(|second| second % 7).sum();
        assert_eq!(coarse.series[&key("nbd")].iter().map(|point| point.sum).sum::<u64>(), total);
        assert_eq!((coarse.covered[5], coarse.covered[6], coarse.covered[10]), (0, 10, 9));
        let level = coarse.series[&Key::new(Dataset::JOBS, &["scrub"], 0)][6];
        assert_eq!((level.sum, level.peak, level.least), (35, 4, 3));
        let mut long = Frame::new(Tier::Minutes, 0);
        long.replace_with(&coarse);
        assert_eq!((long.covered[2], long.series[&key("nbd")][2].sum), (59, total));
        assert_eq!(long.series[&key("nbd")][2].peak, 6);
    }

    #[test]
    fn the_coarsest_tier_has_the_histograms_of_data_only() {
        let mut fine = Frame::new(Tier::Tens, 0);
        fine.covered[0] = 10;
        fine.add(0, &Key::new(Dataset::LATENCY, &["look", "share", "3"], 0), 5);
        fine.add(0, &Key::new(Dataset::LATENCY, &["read", "share", "3"], 0), 5);
        let mut coarse = Frame::new(Tier::Minutes, 0);
        coarse.replace_with(&fine);
        assert_eq!(coarse.series.len(), 1);
    }
}
