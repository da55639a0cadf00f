//! Output on stdout and stderr: results on stdout (text, or one JSON document), notes and errors on
//! stderr.

use std::borrow::Cow;
use std::io::{ErrorKind, IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;
use surface::Error;

use crate::heartbeat;
use crate::times::show_second;
use operations::Outcome;

/// Escapes control characters, including newlines, in a line, a name or a path for display, so that
/// a user's name affects neither the terminal nor the rest of the message. JSON has names
/// unchanged.
pub fn line_shown(text: &str) -> Cow<'_, str> {
    units::shown(text)
}

/// The same for text of several lines, and columns separated by tabs.
fn text_shown(text: &str) -> Cow<'_, str> {
    if let Cow::Borrowed(text) = line_shown(text) {
        return Cow::Borrowed(text);
    }
    let cells = |line: &str| line.split('\t').map(line_shown).collect::<Vec<_>>().join("\t");
    Cow::Owned(text.split('\n').map(cells).collect::<Vec<_>>().join("\n"))
}

/// Destination of a command's messages.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    json: bool,
    quiet: bool,
    times: bool,
}

impl Output {
    /// With `json` results are JSON documents; `quiet` omits notes, progress and messages about
    /// completed actions.
    pub const fn new(json: bool, quiet: bool) -> Self {
        Self { json, quiet, times: false }
    }

    /// The same for a server: each message on stderr begins with its time in UTC, unless the
    /// journal reads stderr, which adds its own times.
    #[must_use]
    pub fn with_times(self) -> Self {
        Self { times: !host::stderr_is_journal(), ..self }
    }

    /// Returns whether results are JSON.
    pub const fn is_json(&self) -> bool {
        self.json
    }

    /// Returns whether notes and progress are omitted.
    pub const fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Returns whether a progress bar would be visible.
    pub fn shows_progress(&self) -> bool {
        !self.quiet && std::io::stderr().is_terminal()
    }

    /// Prints a result as text.
    pub fn text(&self, text: &str) {
        write_stdout(text_shown(text).as_bytes());
    }

    /// Prints a result for programs, byte for byte.
    pub fn exact(&self, text: &str) {
        write_stdout(text.as_bytes());
    }

    /// Prints a result as one line of JSON.
    pub fn json(&self, document: &impl Serialize) {
        match serde_json::to_string(document) {
            Ok(line) => write_stdout(format!("{line}\n").as_bytes()),
            Err(error) => self.warn(&format!("cannot format a result as JSON: {error}")),
        }
    }

    /// Prints the result as JSON or as text, according to the flags.
    pub fn result(&self, document: &impl Serialize, text: impl FnOnce() -> String) {
        if self.json {
            self.json(document);
        } else {
            self.text(&text());
        }
    }

    /// Prints a completed action, for a command without another result: as JSON or as text, and
    /// when quiet only as JSON. The exit code has the same meaning.
    pub fn done(&self, document: &impl Serialize, text: impl FnOnce() -> String) {
        if self.json || !self.quiet {
            self.result(document, text);
        }
    }

    /// Prints a note on stderr.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            self.message("", text);
        }
    }

    fn message(&self, before: &str, text: &str) {
        let time = if self.times { show_second(host::unix_s()) + " " } else { String::new() };
        write_stderr(&format!("{time}{before}{}\n", text_shown(text)));
    }

    /// Prints a question on stderr, with its explanation, unchanged.
    pub fn prompt(&self, text: &str) {
        heartbeat::replace();
        write_stderr(&text_shown(text));
    }

    /// Prints a warning on stderr, even when quiet.
    pub fn warn(&self, text: &str) {
        self.message("shale: warning: ", text);
    }

    /// Prints an error: on stderr, and with `--json` as a document on stdout instead.
    pub fn error(&self, kind: &str, message: &str) {
        if self.json && UNWRITTEN.get().is_none() {
            self.json(&serde_json::json!({ "error": { "kind": kind, "message": message } }));
        } else {
            self.message("shale: ", message);
        }
    }
}

/// The first failed write of a result to stdout: a script must not take a partial result for the
/// whole.
static UNWRITTEN: OnceLock<std::io::Error> = OnceLock::new();
/// The reader of stdout closed it.
static IS_UNREAD: AtomicBool = AtomicBool::new(false);

/// Returns whether stdout is unusable, so that an endless command must stop.
pub fn is_in_vain() -> bool {
    UNWRITTEN.get().is_some() || IS_UNREAD.load(Ordering::Relaxed) || host::has_lost_reader(std::io::stdout())
}

/// Checks that all results reached stdout. A reader that closed it (`shale list | head -1`) is not
/// an error.
///
/// # Errors
/// That of writing to stdout.
pub fn all_was_written() -> Outcome {
    let Some(error) = UNWRITTEN.get() else { return Ok(()) };
    let kind = operations::kind_of(error);
    Err(Error::new(kind, format!("the command is done, but its result could not be written to stdout: {error}")).into())
}

fn write_stdout(bytes: &[u8]) {
    heartbeat::said();
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Ok(()) => {}
        Err(error) => unwritten(error),
    }
}

/// Records a failed write to stdout.
pub fn unwritten(error: std::io::Error) {
    match error.kind() {
        ErrorKind::BrokenPipe => IS_UNREAD.store(true, Ordering::Relaxed),
        _ => drop(UNWRITTEN.set(error)),
    }
}

fn write_stderr(text: &str) {
    heartbeat::said();
    if std::io::stderr().lock().write_all(text.as_bytes()).is_err() {
        // As above.
    }
}

/// Formats a table: left-aligned first column, right-aligned others, two spaces between them. A
/// last column of words is left-aligned as well, so that long ones do not push the short ones off a
/// narrow terminal.
pub fn table(rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<Cow<'_, str>>> =
        rows.iter().map(|row| row.iter().map(|cell| line_shown(cell)).collect()).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let last = columns.saturating_sub(1);
    let is_words =
        rows.iter().skip(1).filter_map(|row| row.get(last)).all(|cell| cell.starts_with(char::is_alphabetic));
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let pad = " ".repeat(widths[column].saturating_sub(cell.chars().count()));
            if column == 0 {
                line.push_str(cell);
                line.push_str(&pad);
            } else if column == last && is_words {
                line.push_str("  ");
                line.push_str(cell);
            } else {
                line.push_str("  ");
                line.push_str(&pad);
                line.push_str(cell);
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Formats cells with tabs between them, for scripts.
pub fn tabbed(rows: &[Vec<String>]) -> String {
    rows.iter().map(|row| row.iter().map(|cell| line_shown(cell)).collect::<Vec<_>>().join("\t") + "\n").collect()
}

/// Width of a terminal that does not report it.
const COLUMNS: usize = 80;

/// Formats lines of `name  value`, with names padded to the longest. A value that exceeds the width
/// continues in the next line, indented past the names; only a single longer word, such as a path,
/// is not broken.
pub fn facts(lines: &[(&str, String)]) -> String {
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, value) in lines {
        let value = line_shown(value);
        let mut line = format!("{name:width$} ");
        let mut has_words = false;
        for word in value.split(' ') {
            if has_words && line.chars().count() + 1 + word.chars().count() > COLUMNS {
                text += line.trim_end();
                text.push('\n');
                line = format!("{:width$} ", "");
            }
            line.push(' ');
            line += word;
            has_words = true;
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_aligns_names_left_and_numbers_right() {
        let row = |cells: &[&str]| cells.iter().map(|c| (*c).to_owned()).collect::<Vec<_>>();
        let text = table(&[row(&["NAME", "SIZE"]), row(&["a", "10 GiB"]), row(&["longer", "1 B"])]);
        assert_eq!(text, "NAME      SIZE\na       10 GiB\nlonger     1 B\n");
    }

    #[test]
    fn names_change_no_terminal_and_no_line() {
        let odd = "a\n\u{1b}]0;title\u{7}\tb\u{202e}";
        assert_eq!(line_shown(odd), "a\\n\\u{1b}]0;title\\u{7}\\tb\\u{202e}");
        assert_eq!(text_shown("NAME\tSIZE\n\u{1b}[2Jx\t1\n"), "NAME\tSIZE\n\\u{1b}[2Jx\t1\n");
        assert!(matches!(text_shown("plain ü"), Cow::Borrowed(_)));
        let row = |cells: &[&str]| cells.iter().map(|c| (*c).to_owned()).collect::<Vec<_>>();
        assert_eq!(table(&[row(&["NAME", "SIZE"]), row(&["a\nb", "1 B"])]), "NAME  SIZE\na\\nb   1 B\n");
        assert_eq!(tabbed(&[row(&["a\tb", "1"])]), "a\\tb\t1\n");
    }

    #[test]
    fn table_aligns_last_words_left() {
        let row = |cells: &[&str]| cells.iter().map(|c| (*c).to_owned()).collect::<Vec<_>>();
        let text = table(&[row(&["A", "B", "WHY"]), row(&["a", "1", "wins"]), row(&["b", "20", "takes too long"])]);
        assert_eq!(text, "A   B  WHY\na   1  wins\nb  20  takes too long\n");
    }

    #[test]
    fn facts_pad_names() {
        assert_eq!(facts(&[("a", "1".into()), ("long", "2".into())]), "a     1\nlong  2\n");
    }

    #[test]
    fn facts_that_are_long_go_on_below() {
        let text = facts(&[("name", "word ".repeat(40)), ("", String::new()), ("path", "x".repeat(100))]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert!(lines[..3].iter().all(|line| line.chars().count() <= COLUMNS), "{text}");
        assert!(lines[1].starts_with("      word") && lines[4] == format!("path  {}", "x".repeat(100)), "{text}");
    }
}
