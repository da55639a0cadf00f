//! What goes to stdout and stderr: results on stdout (text, or one JSON document), notes and errors
//! on stderr.

use std::borrow::Cow;
use std::io::{ErrorKind, IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;
use surface::Error;

use crate::heartbeat;
use crate::times::show_second;
use operations::Outcome;

/// A line, a name or a path as people are shown it: control characters, ends of lines among them,
/// are written as escapes, so that a name of a user changes neither a terminal nor what else is
/// said. JSON has names as they are.
pub fn line_shown(text: &str) -> Cow<'_, str> {
    units::shown(text)
}

/// The same for text of several lines, and columns with tabs between them.
fn text_shown(text: &str) -> Cow<'_, str> {
    if let Cow::Borrowed(text) = line_shown(text) {
        return Cow::Borrowed(text);
    }
    let cells = |line: &str| line.split('\t').map(line_shown).collect::<Vec<_>>().join("\t");
    Cow::Owned(text.split('\n').map(cells).collect::<Vec<_>>().join("\n"))
}

/// Where a command's words go.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    json: bool,
    quiet: bool,
    times: bool,
}

impl Output {
    /// With `json` results are JSON documents; with `quiet` notes, progress and words on what was
    /// done are left out.
    pub const fn new(json: bool, quiet: bool) -> Self {
        Self { json, quiet, times: false }
    }

    /// The same for a server: each message on stderr begins with its time in UTC, unless the
    /// journal reads stderr, which has times of its own.
    #[must_use]
    pub fn with_times(self) -> Self {
        Self { times: !host::stderr_is_journal(), ..self }
    }

    /// Whether results are JSON.
    pub const fn is_json(&self) -> bool {
        self.json
    }

    /// Whether notes and progress are left out.
    pub const fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Whether a progress bar has someone to look at it.
    pub fn shows_progress(&self) -> bool {
        !self.quiet && std::io::stderr().is_terminal()
    }

    /// A result as text.
    pub fn text(&self, text: &str) {
        write_stdout(text_shown(text).as_bytes());
    }

    /// A result for programs, byte for byte.
    pub fn exact(&self, text: &str) {
        write_stdout(text.as_bytes());
    }

    /// A result as one line of JSON.
    pub fn json(&self, document: &impl Serialize) {
        match serde_json::to_string(document) {
            Ok(line) => write_stdout(format!("{line}\n").as_bytes()),
            Err(error) => self.warn(&format!("a result cannot be shown as JSON: {error}")),
        }
    }

    /// The result as JSON or as text, whichever was asked for.
    pub fn result(&self, document: &impl Serialize, text: impl FnOnce() -> String) {
        if self.json {
            self.json(document);
        } else {
            self.text(&text());
        }
    }

    /// What was done, for a command of which nothing but that is to be told: as JSON or as text,
    /// and when quiet only as JSON. The exit code tells the same.
    pub fn done(&self, document: &impl Serialize, text: impl FnOnce() -> String) {
        if self.json || !self.quiet {
            self.result(document, text);
        }
    }

    /// Something worth knowing, on stderr.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            self.message("", text);
        }
    }

    fn message(&self, before: &str, text: &str) {
        let time = if self.times { show_second(host::unix_s()) + " " } else { String::new() };
        write_stderr(&format!("{time}{before}{}\n", text_shown(text)));
    }

    /// A question and what belongs to it, on stderr, as it stands.
    pub fn prompt(&self, text: &str) {
        heartbeat::replace();
        write_stderr(&text_shown(text));
    }

    /// Something to worry about, on stderr, even when quiet.
    pub fn warn(&self, text: &str) {
        self.message("shale: warning: ", text);
    }

    /// An error: on stderr, and with `--json` as a document on stdout instead.
    pub fn error(&self, kind: &str, message: &str) {
        if self.json && UNWRITTEN.get().is_none() {
            self.json(&serde_json::json!({ "error": { "kind": kind, "message": message } }));
        } else {
            self.message("shale: ", message);
        }
    }
}

/// The first result that could not be written to stdout: a script that keeps it must not take half
/// of it for all.
static UNWRITTEN: OnceLock<std::io::Error> = OnceLock::new();
/// Who was to read stdout went away.
static IS_UNREAD: AtomicBool = AtomicBool::new(false);

/// Whether nothing more that is written to stdout arrives anywhere: a command that goes on without
/// an end shall stop.
pub fn is_in_vain() -> bool {
    UNWRITTEN.get().is_some() || IS_UNREAD.load(Ordering::Relaxed) || host::has_lost_reader(std::io::stdout())
}

/// Whether all results reached stdout. A reader that went away (`shale list | head -1`) is no error
/// of ours.
///
/// # Errors
/// What writing to stdout failed with.
pub fn all_was_written() -> Outcome {
    let Some(error) = UNWRITTEN.get() else { return Ok(()) };
    let kind = operations::kind_of(error);
    Err(Error::new(kind, format!("the command is done, but its result cannot be written to stdout: {error}")).into())
}

fn write_stdout(bytes: &[u8]) {
    heartbeat::said();
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Ok(()) => {}
        Err(error) => unwritten(error),
    }
}

/// Notes that something could not be written to stdout.
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

/// Left-aligned first column, right-aligned others, two spaces between them. A last column of words
/// is left-aligned as well, so that long ones do not push the short ones off a narrow terminal.
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

/// Cells with tabs between them, for scripts.
pub fn tabbed(rows: &[Vec<String>]) -> String {
    rows.iter().map(|row| row.iter().map(|cell| line_shown(cell)).collect::<Vec<_>>().join("\t") + "\n").collect()
}

/// Columns of a terminal whose width is not set.
const COLUMNS: usize = 80;

/// Lines of `name  value`, names padded to the longest. A value that would go beyond the columns
/// goes on in the next line, behind the space of the name; only a word that is longer than that,
/// such as a path, is not broken.
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
