//! Queries: which tier answers, and how series of frames become the series of an answer. Pure but
//! for the frames that the store hands over.

use std::collections::BTreeMap;
use std::fmt;

use report::{ANALYTICS_VERSION, SeriesLine, SeriesReport};

use crate::dataset::{Dataset, Shape};
use crate::frame::{Frame, Key, OTHER, Point};
use crate::tier::Tier;

/// Series of an answer; the rest is one more.
pub const SERIES_MAX: usize = 64;
/// Steps of an answer.
pub const POINTS_MAX: u64 = 2000;
/// Steps that an answer has if no step was asked for, at most.
const POINTS_USUAL: u64 = 600;
/// Frames of a tier that a query reads before it takes a coarser one: two hours of seconds, a day
/// of tens of seconds.
const FRAMES_MAX: u64 = 150;
/// Latest second of a question, far beyond any clock: sums of times stay within 64 bits.
pub(crate) const SECOND_MAX: u64 = 1 << 40;
/// Steps that people count in.
const STEPS_S: [u64; 15] = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 86_400];

/// A question.
#[derive(Debug, Clone)]
pub struct Query {
    /// The dataset.
    pub dataset: Dataset,
    /// The breakdown.
    pub by: Option<String>,
    /// Only series with these values of breakdowns. Several values of one breakdown: any of them.
    pub only: Vec<(String, String)>,
    /// First second.
    pub from: u64,
    /// The second after the last one.
    pub to: u64,
    /// Seconds of a step, if they matter.
    pub step_s: Option<u64>,
    /// Names that objects have now; others have the name of their frame.
    pub names: BTreeMap<u64, String>,
}

/// Reason why a query cannot be answered, and a query that could.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueryError(pub(crate) String);

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for QueryError {}

/// # Errors
/// For an empty span, and for one that no clock reaches.
pub(crate) fn check_span(from: u64, to: u64) -> Result<(), QueryError> {
    if to > SECOND_MAX {
        return Err(QueryError(format!("the span ends after second {SECOND_MAX}: times are seconds since 1970")));
    }
    if from >= to {
        return Err(QueryError("the span is empty: its start must be before its end".to_owned()));
    }
    Ok(())
}

impl Query {
    fn check_breakdown(&self, name: &str) -> Result<(), QueryError> {
        let known = self.dataset.breakdowns();
        if known.contains(&name) {
            return Ok(());
        }
        let text = format!("{} has no breakdown '{name}'; it has {}", self.dataset.name(), known.join(", "));
        Err(QueryError(text))
    }

    /// # Errors
    /// For a breakdown that the dataset does not have, and an empty or too long span.
    pub(crate) fn check(&self) -> Result<(), QueryError> {
        self.by.iter().try_for_each(|by| self.check_breakdown(by))?;
        self.only.iter().try_for_each(|(breakdown, _)| self.check_breakdown(breakdown))?;
        check_span(self.from, self.to)?;
        match self.step_s {
            Some(0) => Err(QueryError("a step has at least one second".to_owned())),
            Some(step) if step > SECOND_MAX => Err(QueryError(format!("a step has at most {SECOND_MAX} seconds"))),
            Some(step) if (self.to - self.from).div_ceil(step) > POINTS_MAX => {
                let text = format!("more than {POINTS_MAX} steps: use a longer step or a shorter span");
                Err(QueryError(text))
            }
            _ => Ok(()),
        }
    }

    /// The step, on which that of a tier has its say.
    pub(crate) fn step_for(&self, tier: Tier) -> u64 {
        let usual = || {
            let least = (self.to - self.from).div_ceil(POINTS_USUAL);
            STEPS_S.into_iter().find(|step| *step >= least).unwrap_or(least.next_multiple_of(86_400))
        };
        self.step_s.unwrap_or_else(usual).max(1).next_multiple_of(tier.step_s())
    }

    /// The finest tier that is not too fine for the span. `first`: the first second of each tier.
    pub(crate) fn tier(&self, first: [Option<u64>; 3]) -> Tier {
        let suits = |tier: Tier| {
            let few = (self.to - self.from) / tier.frame_s() <= FRAMES_MAX;
            let Some(own) = first[tier as usize] else { return few && first == [None; 3] };
            // Older data is in no coarser tier either.
            let coarser = Tier::ALL.into_iter().filter(|other| *other > tier);
            let reaches = |other: Tier| first[other as usize].is_none_or(|first| own <= first + other.step_s());
            few && (own <= self.from || coarser.into_iter().all(reaches))
        };
        Tier::ALL.into_iter().find(|tier| suits(*tier)).unwrap_or(Tier::Minutes)
    }

    fn name_of(&self, frame: &Frame, object: u64) -> String {
        match object {
            0 => String::new(),
            OTHER => "(other)".to_owned(),
            _ => {
                let known = self.names.get(&object).cloned();
                let known = known.or_else(|| frame.names.get(&object).map(|name| name.to_string()));
                known.unwrap_or_else(|| format!("#{object}"))
            }
        }
    }

    fn value_of(&self, frame: &Frame, key: &Key, breakdown: &str) -> String {
        match breakdown {
            "object" => self.name_of(frame, key.object),
            label => key.label(label).unwrap_or("").to_owned(),
        }
    }

    fn wants(&self, frame: &Frame, key: &Key) -> bool {
        let matches = |breakdown: &str| {
            let mut wanted = self.only.iter().filter(|(of, _)| of == breakdown).map(|(_, value)| value).peekable();
            wanted.peek().is_none() || {
                let (value, number) = (self.value_of(frame, key, breakdown), format!("#{}", key.object));
                wanted.any(|wanted| *wanted == value || (breakdown == "object" && *wanted == number))
            }
        };
        key.dataset == self.dataset && self.only.iter().all(|(breakdown, _)| matches(breakdown))
    }
}

/// Collects the frames of one tier into an answer.
pub(crate) struct Answer<'a> {
    query: &'a Query,
    tier: Tier,
    from: u64,
    step_s: u64,
    covered: Vec<u64>,
    series: BTreeMap<String, Vec<(Point, bool)>>,
    folded: u64,
    left_out: u64,
}

impl<'a> Answer<'a> {
    pub(crate) fn new(query: &'a Query, tier: Tier) -> Self {
        let step_s = query.step_for(tier);
        let from = query.from - query.from % step_s;
        let count = (query.to - from).div_ceil(step_s) as usize;
        let (series, folded, left_out) = (BTreeMap::new(), 0, 0);
        Self { query, tier, from, step_s, covered: vec![0; count], series, folded, left_out }
    }

    /// The span that frames are wanted of.
    pub(crate) fn span(&self) -> (u64, u64) {
        (self.from, self.from + self.covered.len() as u64 * self.step_s)
    }

    /// The step of the answer that holds a step of a frame.
    fn place(&self, frame: &Frame, step: usize) -> Option<usize> {
        let second = frame.start + step as u64 * self.tier.step_s();
        let place = second.checked_sub(self.from)? / self.step_s;
        usize::try_from(place).ok().filter(|place| *place < self.covered.len())
    }

    pub(crate) fn add(&mut self, frame: &Frame) {
        let places: Vec<_> = (0..frame.covered.len()).map(|step| self.place(frame, step)).collect();
        for (place, covered) in places.iter().zip(&frame.covered) {
            if let Some(place) = place {
                self.covered[*place] += u64::from(*covered);
            }
        }
        self.folded = self.folded.max(frame.folded);
        self.left_out = self.left_out.max(frame.left_out);
        let shape = self.query.dataset.shape();
        let mut groups: BTreeMap<String, Vec<Point>> = BTreeMap::new();
        for (key, points) in frame.series.iter().filter(|(key, _)| self.query.wants(frame, key)) {
            let name = match &self.query.by {
                Some(by) => self.query.value_of(frame, key, by),
                None => "total".to_owned(),
            };
            let sums = groups.entry(name).or_default();
            if sums.len() < points.len() {
                sums.resize(points.len(), Point::default());
            }
            sums.iter_mut().zip(points).for_each(|(sum, point)| sum.join(point, shape));
        }
        for (name, points) in groups {
            let count = self.covered.len();
            let values = self.series.entry(name).or_insert_with(|| vec![(Point::default(), false); count]);
            for (step, place) in places.iter().enumerate().filter(|(step, _)| frame.covered[*step] > 0) {
                let Some(place) = place else { continue };
                let point = points.get(step).copied().unwrap_or_default();
                let (sum, is_begun) = &mut values[*place];
                sum.sum = sum.sum.saturating_add(point.sum);
                sum.peak = sum.peak.max(point.peak);
                sum.least = if *is_begun { sum.least.min(point.least) } else { point.least };
                *is_begun = true;
            }
        }
    }

    fn line(&self, name: String, points: &[Point]) -> SeriesLine {
        let is_gauge = self.query.dataset.shape() == Shape::Gauge;
        let mean = |sum: u64, seconds: u64| if is_gauge { sum / seconds.max(1) } else { sum };
        let total = points.iter().fold(0u64, |total, point| total.saturating_add(point.sum));
        SeriesLine {
            name,
            total: mean(total, self.covered.iter().sum()),
            values: points.iter().zip(&self.covered).map(|(point, covered)| mean(point.sum, *covered)).collect(),
            peaks: points.iter().map(|point| point.peak).collect(),
            least: if is_gauge { points.iter().map(|point| point.least).collect() } else { Vec::new() },
        }
    }

    pub(crate) fn finish(mut self, damaged_frames: u64) -> SeriesReport {
        let shape = self.query.dataset.shape();
        let series = std::mem::take(&mut self.series);
        let mut series: Vec<(String, Vec<Point>)> = series
            .into_iter()
            .map(|(name, points)| (name, points.into_iter().map(|(point, _)| point).collect()))
            .collect();
        let total = |points: &[Point]| points.iter().map(|point| u128::from(point.sum)).sum::<u128>();
        series.retain(|(_, points)| total(points) > 0);
        series.sort_by_cached_key(|(name, points)| (std::cmp::Reverse(total(points)), name.clone()));
        // Buckets are wanted whole.
        if series.len() > SERIES_MAX && self.query.by.as_deref() != Some("bucket") {
            let mut rest = vec![Point::default(); self.covered.len()];
            for (_, points) in series.drain(SERIES_MAX..) {
                rest.iter_mut().zip(&points).for_each(|(rest, point)| rest.join(point, shape));
            }
            series.push(("(rest)".to_owned(), rest));
        }
        let lines = series.iter().map(|(name, points)| self.line(name.clone(), points)).collect();
        SeriesReport {
            version: ANALYTICS_VERSION,
            dataset: self.query.dataset.name().to_owned(),
            unit: self.query.dataset.unit().name().to_owned(),
            shape: if shape == Shape::Gauge { "gauge" } else { "sum" }.to_owned(),
            by: self.query.by.clone(),
            from_unix_s: self.from,
            step_s: self.step_s,
            resolution_s: self.tier.step_s(),
            covered_s: self.covered,
            series: lines,
            damaged_frames,
            folded_objects: self.folded,
            left_out_series: self.left_out,
        }
    }
}
