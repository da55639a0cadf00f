//! The figures: a table on standard output and a JSON file.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{Context, Outcome};

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Figure {
    name: String,
    value: f64,
    unit: String,
    target: Option<String>,
    met: Option<bool>,
    how: String,
    /// The group that measured it: when that is measured again, figures that no longer occur are
    /// removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    /// The version measured, and the date.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    day: Option<String>,
}

/// Facts about every figure of a run.
#[derive(Debug, Clone, Default)]
pub struct Run {
    /// Arguments that change the measurement or its description: part of the command that repeats
    /// it.
    pub arguments: Vec<String>,
    /// Facts about the machine or the disk that a reader should know.
    pub note: Option<String>,
    /// Commit, with a mark if files differ from it.
    pub version: Option<String>,
    /// Year, month, day.
    pub day: Option<String>,
}

/// All figures of a run, and those of earlier runs that this one did not measure again.
#[derive(Debug)]
pub struct Report {
    path: PathBuf,
    run: Run,
    figures: Vec<Figure>,
    /// The current group, and the names of its figures so far.
    group: Option<String>,
    measured: Vec<String>,
}

impl Run {
    /// Of the tree in which it is started.
    pub fn of(arguments: Vec<String>, note: Option<String>) -> Self {
        let say = |program: &str, words: &[&str]| {
            let text = crate::command::run(program, words).ok()?;
            Some(text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        let version = say("git", &["describe", "--always", "--dirty", "--abbrev=8", "--exclude=*"]);
        Self { arguments, note, version, day: say("date", &["--utc", "+%F"]) }
    }

    /// The description of a figure, with the note, and with the arguments of this run in the
    /// command that repeats it.
    fn complete(&self, how: &str) -> String {
        let mut how = how.to_owned();
        // The command is the last pair of backquotes that begins with `bench`.
        let end = how.rfind("`bench ").and_then(|begin| Some(begin + 1 + how[begin + 1..].find('`')?));
        if let Some(end) = end {
            let command = how[..end].to_owned();
            let missing = self.arguments.iter().filter(|argument| !command.contains(&format!(" {argument}")));
            let missing: String = missing.map(|argument| format!(" {argument}")).collect();
            how.insert_str(end, &missing);
        }
        if let Some(note) = &self.note {
            how = format!("{how}; {note}");
        }
        how
    }
}

impl Report {
    /// Continues the file at `path`, if there is one.
    pub fn open(path: &Path, run: Run) -> Self {
        let figures = std::fs::read(path).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        Self { path: path.to_owned(), run, figures, group: None, measured: Vec::new() }
    }

    /// Whether a group is wanted; then all figures belong to it until the next one begins.
    pub fn begin(&mut self, context: &Context, group: &str) -> bool {
        self.end_group();
        let wanted = context.wants(group);
        self.group = wanted.then(|| group.to_owned());
        wanted
    }

    /// Figures of the group that were not measured this time were renamed or removed. A group
    /// without any figures changes nothing.
    fn end_group(&mut self) {
        let measured = std::mem::take(&mut self.measured);
        if let Some(group) = self.group.take()
            && !measured.is_empty()
        {
            self.figures.retain(|figure| !figure.is_of(&group) || measured.contains(&figure.name));
        }
    }

    /// A figure that should not be below `bound`.
    pub fn at_least(&mut self, name: &str, value: f64, unit: &str, bound: f64, how: &str) -> Outcome<()> {
        let target = format!("at least {bound} {unit}").trim_end().to_owned();
        self.add(name, value, unit, how, Some((target, value >= bound)))
    }

    /// A figure that should not be above `bound`.
    pub fn at_most(&mut self, name: &str, value: f64, unit: &str, bound: f64, how: &str) -> Outcome<()> {
        let target = format!("at most {bound} {unit}").trim_end().to_owned();
        self.add(name, value, unit, how, Some((target, value <= bound)))
    }

    /// A figure that explains others.
    pub fn info(&mut self, name: &str, value: f64, unit: &str, how: &str) -> Outcome<()> {
        self.add(name, value, unit, how, None)
    }

    fn add(&mut self, name: &str, value: f64, unit: &str, how: &str, target: Option<(String, bool)>) -> Outcome<()> {
        let (target, met) = target.map_or((None, None), |(target, met)| (Some(target), Some(met)));
        let figure = Figure {
            name: name.to_owned(),
            // Four digits are more than any repetition shows.
            value: if value.abs() >= 1000.0 { value.round() } else { (value * 1000.0).round() / 1000.0 },
            unit: unit.to_owned(),
            target,
            met,
            how: self.run.complete(how),
            group: self.group.clone(),
            version: self.run.version.clone(),
            day: self.run.day.clone(),
        };
        let verdict = match figure.met {
            Some(true) => "ok",
            Some(false) => "MISSED",
            None => "",
        };
        let shown = format!("{:.2} {}", figure.value, figure.unit);
        println!("{:<78} {shown:>16}   {:<20} {verdict}", figure.name, figure.target.as_deref().unwrap_or(""));
        self.measured.push(figure.name.clone());
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
    pub fn finish(mut self) -> Outcome<()> {
        self.end_group();
        self.write()?;
        let missed = self.figures.iter().filter(|f| f.met == Some(false)).count();
        println!("\n{} figures in {}, {missed} below target", self.figures.len(), self.path.display());
        Ok(())
    }
}

impl Figure {
    /// Whether it was measured with a group. Figures of older files only record this in their
    /// commands.
    fn is_of(&self, group: &str) -> bool {
        match &self.group {
            Some(own) => own == group,
            None => self.how.contains(&format!("--only '{group}'")),
        }
    }
}

/// The median; 0 of an empty list.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// The median of the ratios of pairs measured in succession, in percent.
pub fn ratio_percent(ours: &[f64], base: &[f64]) -> f64 {
    let ratios: Vec<f64> = ours.iter().zip(base).map(|(a, b)| 100.0 * a / b).collect();
    median(&ratios)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_that_repeats_a_figure_is_whole() {
        let run = Run {
            arguments: vec!["--quick".into(), "--note 'in memory'".into()],
            note: Some("in memory".into()),
            ..Run::default()
        };
        let how = run.complete("`fio`, 3 rounds; `bench space --only 'space clones' --quick`, median");
        let command = "`bench space --only 'space clones' --quick --note 'in memory'`";
        assert_eq!(how, format!("`fio`, 3 rounds; {command}, median; in memory"));
        assert_eq!(run.complete("with `fio`"), "with `fio`; in memory");
    }

    /// The worst kind was part of a name: when it changed, the old row stayed next to the new one.
    #[test]
    fn a_group_that_is_measured_again_drops_what_it_had() {
        let mut report = Report::open(Path::new("/nonexistent"), Run::default());
        let figure = |name: &str, group: Option<&str>, how: &str| Figure {
            name: name.into(),
            value: 1.0,
            unit: String::new(),
            target: None,
            met: None,
            how: how.into(),
            group: group.map(str::to_owned),
            version: None,
            day: None,
        };
        report.figures = vec![
            figure("old", None, "`bench adaptive --only 'adaptive replay'`"),
            figure("older", Some("adaptive replay"), ""),
            figure("same", Some("adaptive replay"), ""),
            figure("other", Some("adaptive replay, more"), "`bench adaptive --only 'adaptive replay, more'`"),
        ];
        let names = |report: &Report| report.figures.iter().map(|figure| figure.name.clone()).collect::<Vec<_>>();
        report.group = Some("adaptive replay".into());
        report.end_group();
        assert_eq!(names(&report).len(), 4, "nothing was measured");
        report.group = Some("adaptive replay".into());
        report.measured = vec!["same".into()];
        report.end_group();
        assert_eq!(names(&report), ["same", "other"]);
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(ratio_percent(&[1.0, 9.0, 3.0], &[2.0, 10.0, 4.0]), 75.0);
    }
}
