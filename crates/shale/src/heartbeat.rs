//! A sign of life from every long command, including one that only waits: on a terminal a spinner
//! with the time, after two seconds without output; elsewhere a line on stderr, after thirty.
//!
//! Bars ([`crate::progress`]) and the lines of jobs have more detail, and replace it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::{Condvar, Mutex};
use units::format_size;

use crate::output::Output;
use crate::progress;
use crate::times::show_seconds;

/// Silence on a terminal before the spinner is shown.
const SPINNER_AFTER: Duration = Duration::from_secs(2);
/// Silence elsewhere before each line: a log must not fill up.
pub const LINES_EVERY: Duration = Duration::from_secs(30);
/// Interval of the spinner's frames.
const TURN: Duration = Duration::from_millis(250);

/// Commands that run until they are stopped, or end at once.
const WITHOUT: &[&str] = &[
    "serve",
    "keep-mounts",
    "serve-http",
    "read-names",
    "restore-files",
    "iostat",
    "top",
    "trace",
    "completions",
    "man",
];

/// When the command last wrote something.
static SAID: Mutex<Option<Instant>> = Mutex::new(None);
/// The spinner, while it is visible.
static SPINNER: Mutex<Option<ProgressBar>> = Mutex::new(None);
/// Number of visible progress bars.
static BARS: AtomicUsize = AtomicUsize::new(0);
/// The command waits for its user, or reports its progress itself.
static IS_REPLACED: AtomicBool = AtomicBool::new(false);

/// Hides the spinner, because the command is about to write.
pub fn said() {
    *SAID.lock() = Some(Instant::now());
    hide();
}

/// Shows nothing from now on.
pub fn replace() {
    IS_REPLACED.store(true, Ordering::SeqCst);
    hide();
}

/// Counts a progress bar that appears.
pub fn bar_begins() {
    BARS.fetch_add(1, Ordering::SeqCst);
    hide();
}

/// Uncounts a progress bar that disappears.
pub fn bar_ends() {
    *SAID.lock() = Some(Instant::now());
    BARS.fetch_sub(1, Ordering::SeqCst);
}

fn hide() {
    if let Some(spinner) = SPINNER.lock().take() {
        spinner.finish_and_clear();
    }
}

/// The sign of life that is due.
#[derive(Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    Spinner,
    Line,
}

/// Returns the sign that is due after a silence.
fn due(silent: Duration, is_terminal: bool, bars: usize) -> Due {
    match is_terminal {
        true if bars == 0 && silent >= SPINNER_AFTER => Due::Spinner,
        false if silent >= LINES_EVERY => Due::Line,
        _ => Due::Nothing,
    }
}

/// The thread of the sign, until this is dropped.
pub struct Heartbeat {
    over: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    /// Starts it for a command of that name. Without a thread there is no sign of life, and the
    /// command works.
    pub fn start(name: &str, output: Output) -> Self {
        let over = Arc::new((Mutex::new(false), Condvar::new()));
        if output.is_quiet() || WITHOUT.contains(&name) {
            return Self { over, thread: None };
        }
        let (name, ends) = (name.to_owned(), Arc::clone(&over));
        let thread = host::spawn_without_signals("heartbeat", move || beat(&name, output, &ends)).ok();
        Self { over, thread }
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        *self.over.0.lock() = true;
        self.over.1.notify_all();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
        hide();
    }
}

fn beat(name: &str, output: Output, (is_over, changed): &(Mutex<bool>, Condvar)) {
    let (began, is_terminal) = (Instant::now(), output.shows_progress());
    let mut is_over = is_over.lock();
    while !*is_over {
        changed.wait_for(&mut is_over, TURN);
        if *is_over || IS_REPLACED.load(Ordering::SeqCst) {
            continue;
        }
        let silent = SAID.lock().map_or_else(|| began.elapsed(), |said| said.elapsed());
        match due(silent, is_terminal, BARS.load(Ordering::SeqCst)) {
            Due::Nothing => {}
            Due::Spinner => turn(name, began),
            Due::Line => output.note(&line(name, began.elapsed(), progress::standing())),
        }
    }
}

/// Shows the spinner, or advances it.
fn turn(name: &str, began: Instant) {
    let mut spinner = SPINNER.lock();
    let bar = spinner.get_or_insert_with(|| {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{prefix} {spinner}  {msg}") {
            bar.set_style(style);
        }
        bar.set_prefix(name.to_owned());
        bar
    });
    bar.set_message(show_seconds(began.elapsed().as_secs()));
    bar.tick();
}

/// Returns the line for output other than a terminal.
fn line(name: &str, time: Duration, (done, total): (u64, Option<u64>)) -> String {
    let time = show_seconds(time.as_secs());
    match total.filter(|total| *total > 0) {
        Some(total) => format!("{name}: {} of {} after {time}", format_size(done), format_size(total)),
        None if done > 0 => format!("{name}: {} after {time}", format_size(done)),
        None => format!("{name}: under way for {time}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_broken_by_a_spinner_or_a_line() {
        let seconds = Duration::from_secs;
        assert_eq!(due(seconds(1), true, 0), Due::Nothing);
        assert_eq!(due(seconds(2), true, 0), Due::Spinner);
        assert_eq!(due(seconds(60), true, 1), Due::Nothing, "a bar says more");
        assert_eq!(due(seconds(29), false, 0), Due::Nothing);
        assert_eq!(due(seconds(30), false, 1), Due::Line, "the bar is not visible");
    }

    #[test]
    fn a_line_has_the_time_and_as_much_as_is_known() {
        let time = Duration::from_secs(30);
        assert_eq!(line("set", time, (0, None)), "set: under way for 30 s");
        assert_eq!(line("check", time, (1 << 20, None)), "check: 1 MiB after 30 s");
        assert_eq!(line("export", time, (1 << 20, Some(4 << 20))), "export: 1 MiB of 4 MiB after 30 s");
    }
}
