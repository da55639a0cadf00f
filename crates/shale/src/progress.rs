//! The progress bar: bytes, rate, time left, and a word from the command. Visible only on a
//! terminal.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{BinaryBytes, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use crate::heartbeat;
use crate::output::Output;

/// Maximum frequency of redraws: more cannot be read, and each one is a write to the terminal.
const DRAWS_PER_SECOND: u8 = 8;

/// Everything fits into 80 columns and leaves ten for the bar, with words of up to ten letters from
/// the command.
const MEASURED: &str =
    "{prefix} {wide_bar} {percent:>3}%  {binary_bytes} of {binary_total_bytes}  {rate}  {msg}  {left}";
const OPEN_ENDED: &str = "{prefix} {spinner}  {binary_bytes}  {rate}  {msg}  {elapsed}";

/// Progress of this process's work, with or without a bar: bytes done and in total, or [`UNKNOWN`].
/// A process runs one command.
static DONE: AtomicU64 = AtomicU64::new(0);
static TOTAL: AtomicU64 = AtomicU64::new(UNKNOWN);
const UNKNOWN: u64 = u64::MAX;

/// Returns the progress of this process's work: bytes done, and the total if known.
pub fn standing() -> (u64, Option<u64>) {
    let total = TOTAL.load(Ordering::Relaxed);
    (DONE.load(Ordering::Relaxed), (total != UNKNOWN).then_some(total))
}

/// Rates and times left are hidden before: the first figures are of buffers that fill up.
const FIGURES_AFTER: Duration = Duration::from_secs(1);

/// Returns the style of a bar, with `{rate}` and `{left}`.
fn style(template: &str) -> Option<ProgressStyle> {
    let rate = |state: &ProgressState, text: &mut dyn Write| {
        let _ = text.write_str(&rate_shown(state.elapsed(), state.per_sec()));
    };
    let left = |state: &ProgressState, text: &mut dyn Write| {
        if state.elapsed() >= FIGURES_AFTER {
            let _ = write!(text, "{:#} left", HumanDuration(state.eta()));
        }
    };
    let style = ProgressStyle::with_template(template).ok()?;
    Some(style.with_key("rate", rate).with_key("left", left).progress_chars("=> "))
}

fn rate_shown(elapsed: Duration, per_second: f64) -> String {
    if elapsed < FIGURES_AFTER { String::new() } else { format!("{}/s", BinaryBytes(per_second as u64)) }
}

/// A bar that may be hidden.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Starts a bar for work of `total` bytes, if that is known.
    pub fn new(output: &Output, what: &str, total: Option<u64>) -> Self {
        DONE.store(0, Ordering::Relaxed);
        TOTAL.store(total.unwrap_or(UNKNOWN), Ordering::Relaxed);
        heartbeat::bar_begins();
        if !output.shows_progress() {
            return Self { bar: ProgressBar::hidden() };
        }
        let target = ProgressDrawTarget::stderr_with_hz(DRAWS_PER_SECOND);
        let bar = ProgressBar::with_draw_target(total, target);
        let template = if total.is_some() { MEASURED } else { OPEN_ENDED };
        // The templates are constant and tested; with an invalid one the default bar would still
        // show the progress.
        if let Some(style) = style(template) {
            bar.set_style(style);
        }
        bar.set_prefix(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(250));
        Self { bar }
    }

    /// Sets the progress.
    pub fn set(&self, done: u64) {
        DONE.store(done, Ordering::Relaxed);
        self.bar.set_position(done);
    }

    /// Shows the progress towards `total` bytes, which was unknown before.
    pub fn measure(&self, total: u64) {
        TOTAL.store(total, Ordering::Relaxed);
        self.bar.set_length(total);
        if let Some(style) = style(MEASURED) {
            self.bar.set_style(style);
        }
    }

    /// Sets the total.
    pub fn set_total(&self, total: u64) {
        TOTAL.store(total, Ordering::Relaxed);
        self.bar.set_length(total);
    }

    /// Sets the word from the command.
    pub fn say(&self, text: String) {
        self.bar.set_message(text);
    }

    /// Removes the bar.
    pub fn finish(&self) {
        if !self.bar.is_finished() {
            heartbeat::bar_ends();
        }
        self.bar.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_figures_of_a_rate_are_held_back() {
        assert_eq!(rate_shown(Duration::from_millis(999), 89e9), "");
        assert_eq!(rate_shown(Duration::from_secs(1), 2048.0), "2.00 KiB/s");
        assert!(style(MEASURED).is_some() && style(OPEN_ENDED).is_some());
    }
}
