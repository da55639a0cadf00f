//! The figures: a table on standard output and a file of JSON.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Outcome;

/// One figure.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Figure {
    name: String,
    value: f64,
    unit: String,
    target: Option<String>,
    met: Option<bool>,
    how: String,
}

/// All figures of a run, and those of earlier runs that this one did not measure again.
#[derive(Debug)]
pub struct Report {
    path: PathBuf,
    figures: Vec<Figure>,
}

impl Report {
    /// Continues the file at `path`, if there is one.
    pub fn open(path: &Path) -> Self {
        let figures = std::fs::read(path).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        Self { path: path.to_owned(), figures }
    }

    /// A figure that should not be below `bound`.
    pub fn at_least(&mut self, name: &str, value: f64, unit: &str, bound: f64, how: &str) -> Outcome<()> {
        let target = format!("at least {bound} {unit}").trim_end().to_owned();
        self.add(Figure::new(name, value, unit, how, Some((target, value >= bound))))
    }

    /// A figure that should not be above `bound`.
    pub fn at_most(&mut self, name: &str, value: f64, unit: &str, bound: f64, how: &str) -> Outcome<()> {
        let target = format!("at most {bound} {unit}").trim_end().to_owned();
        self.add(Figure::new(name, value, unit, how, Some((target, value <= bound))))
    }

    /// A figure that explains others.
    pub fn info(&mut self, name: &str, value: f64, unit: &str, how: &str) -> Outcome<()> {
        self.add(Figure::new(name, value, unit, how, None))
    }

    fn add(&mut self, figure: Figure) -> Outcome<()> {
        let verdict = match figure.met {
            Some(true) => "ok",
            Some(false) => "MISSED",
            None => "",
        };
        let shown = format!("{:.2} {}", figure.value, figure.unit);
        println!("{:<78} {shown:>16}   {:<20} {verdict}", figure.name, figure.target.as_deref().unwrap_or(""));
        match self.figures.iter_mut().find(|f| f.name == figure.name) {
            Some(old) => *old = figure,
            None => self.figures.push(figure),
        }
        // After each figure: a run of half an hour may be cut short.
        self.write()
    }

    fn write(&self) -> Outcome<()> {
        if let Some(parent) = self.path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        let mut text = serde_json::to_vec_pretty(&self.figures)?;
        text.push(b'\n');
        std::fs::write(&self.path, text)?;
        Ok(())
    }

    /// Says how it went.
    pub fn finish(self) -> Outcome<()> {
        let missed = self.figures.iter().filter(|f| f.met == Some(false)).count();
        println!("\n{} figures in {}, {missed} below target", self.figures.len(), self.path.display());
        Ok(())
    }
}

impl Figure {
    fn new(name: &str, value: f64, unit: &str, how: &str, target: Option<(String, bool)>) -> Self {
        let (target, met) = target.map_or((None, None), |(target, met)| (Some(target), Some(met)));
        // Four digits are more than any repetition shows.
        let value = if value.abs() >= 1000.0 { value.round() } else { (value * 1000.0).round() / 1000.0 };
        Self { name: name.into(), value, unit: unit.into(), target, met, how: how.into() }
    }
}

/// The median; 0 of nothing.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// The median of the ratios of pairs that were measured one after the other, in percent.
pub fn ratio_percent(ours: &[f64], base: &[f64]) -> f64 {
    let ratios: Vec<f64> = ours.iter().zip(base).map(|(a, b)| 100.0 * a / b).collect();
    median(&ratios)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(ratio_percent(&[1.0, 9.0, 3.0], &[2.0, 10.0, 4.0]), 75.0);
    }
}
