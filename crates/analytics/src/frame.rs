//! A frame: the series of one tier over one span. Owns its values; no I/O.

use std::collections::{BTreeMap, BTreeSet};

use crate::dataset::{Dataset, Shape, Unit};
use crate::tier::Tier;

/// Stands for all objects without a series of their own in a frame.
pub const OTHER: u64 = u64::MAX;
/// Separates labels. No label has it: [`Key::new`] replaces it.
pub(crate) const SEPARATOR: char = '\u{1f}';
/// Bytes of a label and of an object's name; longer ones are cut.
pub(crate) const LABEL_BYTES_MAX: usize = 255;
/// Series that a frame under way may have, as a multiple of the series of a stored one: the busiest
/// objects are known at its end only. 16 MiB of points at most.
const UNDER_WAY_FACTOR: usize = 2;

/// Names a series: a dataset, a value for each of its breakdowns, and an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The dataset.
    pub dataset: Dataset,
    /// Values of the dataset's labels, in their order.
    pub(crate) labels: Box<str>,
    /// The object's number; 0: of none, [`OTHER`]: of all others.
    pub object: u64,
}

pub(crate) fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(LABEL_BYTES_MAX)]
}

impl Key {
    /// The series of these label values.
    pub fn new(dataset: Dataset, labels: &[&str], object: u64) -> Self {
        let clean = |label: &&str| cut(label).replace(SEPARATOR, " ");
        let labels: Vec<_> = labels.iter().map(clean).collect();
        Self { dataset, labels: labels.join("\u{1f}").into(), object }
    }

    /// The values of the dataset's labels.
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        self.labels.split(SEPARATOR)
    }

    /// The value of a breakdown other than `object`.
    pub fn label(&self, breakdown: &str) -> Option<&str> {
        let place = self.dataset.labels().iter().position(|label| *label == breakdown)?;
        self.labels().nth(place)
    }

    pub(crate) fn of_other(&self) -> Self {
        Self { object: OTHER, ..self.clone() }
    }
}

/// The value of a series in one step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Point {
    /// Sum of the seconds that were sampled.
    pub sum: u64,
    /// The largest second. Frames store it within 2.4 %.
    pub peak: u64,
    /// Of a gauge: the smallest second.
    pub least: u64,
}

impl Point {
    pub(crate) const fn of_second(value: u64) -> Self {
        Self { sum: value, peak: value, least: value }
    }

    /// Adds another series of the same step.
    pub(crate) fn join(&mut self, other: &Self, shape: Shape) {
        self.sum = self.sum.saturating_add(other.sum);
        self.least = self.least.saturating_add(other.least);
        // The largest seconds of two amounts need not coincide, levels mostly do.
        self.peak = match shape {
            Shape::Sum => self.peak.max(other.peak),
            Shape::Gauge => self.peak.saturating_add(other.peak),
        };
    }
}

/// See the module's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Its resolution.
    pub tier: Tier,
    /// Its first second, a multiple of the tier's span.
    pub start: u64,
    /// Seconds of each step that were sampled.
    pub(crate) covered: Vec<u32>,
    /// Names that objects had.
    pub(crate) names: BTreeMap<u64, Box<str>>,
    /// Points from the first step on; those at the end that are 0 may be absent.
    pub(crate) series: BTreeMap<Key, Vec<Point>>,
    /// Number of objects without a series of their own.
    pub(crate) folded: u64,
    /// Series without an object for which there was no place.
    pub(crate) left_out: u64,
}

impl Frame {
    /// An empty frame that begins at `start`.
    pub fn new(tier: Tier, start: u64) -> Self {
        let covered = vec![0; tier.points()];
        let (names, series) = (BTreeMap::new(), BTreeMap::new());
        Self { tier, start, covered, names, series, folded: 0, left_out: 0 }
    }

    /// The second after its last one.
    pub const fn end(&self) -> u64 {
        self.start.saturating_add(self.tier.frame_s())
    }

    /// Whether a second is in its span.
    pub const fn holds(&self, second: u64) -> bool {
        self.start <= second && second < self.end()
    }

    /// The step of a second of its span.
    pub(crate) const fn step_of(&self, second: u64) -> usize {
        ((second - self.start) / self.tier.step_s()) as usize
    }

    /// The points of a series, which is created if the frame has room; otherwise those of the series
    /// that all further objects share.
    pub(crate) fn points_mut(&mut self, key: &Key) -> Option<&mut Vec<Point>> {
        if !self.series.contains_key(key) && self.series.len() >= UNDER_WAY_FACTOR * self.tier.series_max() {
            if key.object == 0 {
                self.left_out += 1;
                return None;
            }
            return Some(self.series.entry(key.of_other()).or_default());
        }
        Some(self.series.entry(key.clone()).or_default())
    }

    /// Adds the value of a second to one series.
    pub(crate) fn add(&mut self, second: u64, key: &Key, value: u64) {
        let step = self.step_of(second);
        if let Some(points) = self.points_mut(key) {
            if points.len() <= step {
                points.resize(step + 1, Point::default());
            }
            points[step].join(&Point::of_second(value), key.dataset.shape());
            points[step].peak = points[step].sum;
        }
    }

    /// Clears the levels of a step that is sampled again. Amounts stay: a sample has the increment
    /// since the sample before, which no other sample has.
    pub(crate) fn clear_levels(&mut self, step: usize) {
        let levels = self.series.iter_mut().filter(|(key, _)| key.dataset.shape() == Shape::Gauge);
        levels.filter_map(|(_, points)| points.get_mut(step)).for_each(|point| *point = Point::default());
    }

    /// Bytes of clients and of data by object, by which objects are ranked.
    fn weights(&self) -> BTreeMap<u64, (u128, usize)> {
        let mut weights: BTreeMap<u64, (u128, usize)> = BTreeMap::new();
        for (key, points) in self.series.iter().filter(|(key, _)| key.object != 0 && key.object != OTHER) {
            let (weight, series) = weights.entry(key.object).or_default();
            *series += 1;
            if key.dataset.shape() == Shape::Sum {
                // An operation without bytes counts as one.
                let sum = points.iter().map(|point| u128::from(point.sum)).sum::<u128>();
                *weight += if key.dataset.unit() == Unit::Ns { 0 } else { sum };
            }
        }
        weights
    }

    /// Joins the objects with the fewest bytes until the frame keeps the bounds of its tier.
    pub(crate) fn keep_bounds(&mut self) {
        let weights = self.weights();
        let of_none = self.series.keys().filter(|key| key.object == 0).count();
        // Upper bound on the series of the other objects.
        let kinds: BTreeSet<_> = self.series.keys().filter(|key| key.object != 0).map(|key| key.of_other()).collect();
        let mut left = self.tier.series_max().saturating_sub(of_none + kinds.len());
        let mut ranked: Vec<_> = weights.into_iter().collect();
        let fits = ranked.len() <= self.tier.objects_max() && self.series.len() <= self.tier.series_max();
        ranked.sort_by(|(a, (first, _)), (b, (second, _))| second.cmp(first).then(a.cmp(b)));
        let mut kept = BTreeSet::new();
        for (object, (_, series)) in &ranked {
            if fits || (kept.len() < self.tier.objects_max() && *series <= left) {
                kept.insert(*object);
                left = left.saturating_sub(*series);
            }
        }
        self.folded = self.folded.max((ranked.len() - kept.len()) as u64);
        let moved =
            |key: &Key, _: &mut Vec<Point>| key.object != 0 && key.object != OTHER && !kept.contains(&key.object);
        let folded: Vec<_> = self.series.extract_if(.., moved).collect();
        for (key, points) in folded {
            let shape = key.dataset.shape();
            let sums = self.series.entry(key.of_other()).or_default();
            if sums.len() < points.len() {
                sums.resize(points.len(), Point::default());
            }
            sums.iter_mut().zip(&points).for_each(|(sum, point)| sum.join(point, shape));
        }
        while self.series.len() > self.tier.series_max() {
            self.series.pop_last();
            self.left_out += 1;
        }
        let named: BTreeSet<_> = self.series.keys().map(|key| key.object).collect();
        self.names.retain(|object, _| named.contains(object));
    }
}
