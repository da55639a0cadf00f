//! Fits tables to a narrow terminal. Lines for a file or another command are not limited.
//!
//! 1. Words in the last column are wrapped, if the other columns leave enough space.
//! 2. Otherwise the columns are divided among several tables, each of which begins with the names.

use crate::output::table;

/// Minimum width for wrapping words.
const WORDS_ROOM: usize = 14;
/// Minimum width for columns next to names of any length.
const COLUMNS_ROOM: usize = 40;

/// Returns the width of the terminal, if stdout is one.
pub fn columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Formats a table whose first `kept` columns are the names of a row, and whose last one is words
/// if `has_words` is set.
pub fn table_within(rows: &[Vec<String>], kept: usize, has_words: bool, columns: Option<usize>) -> String {
    let text = table(rows);
    let Some(columns) = columns.filter(|columns| width_of(&text) > *columns) else { return text };
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let last = count.saturating_sub(1);
    let picked = |picked: &[usize]| -> Vec<Vec<String>> {
        let row = |row: &Vec<String>| picked.iter().map(|at| row.get(*at).cloned().unwrap_or_default()).collect();
        rows.iter().map(row).collect()
    };
    let numbers: Vec<usize> = (0..if has_words { last } else { count }).collect();
    if has_words && width_of(&table(&picked(&numbers))) + 2 + WORDS_ROOM <= columns {
        return with_words(&picked(&numbers), rows, columns);
    }
    let names: Vec<usize> = (0..kept).collect();
    let columns = columns.max(width_of(&table(&picked(&names))) + COLUMNS_ROOM);
    let (mut tables, mut group) = (Vec::new(), names.clone());
    for column in numbers.into_iter().skip(kept) {
        group.push(column);
        if width_of(&table(&picked(&group))) > columns && group.len() > kept + 1 {
            group.pop();
            tables.push(table(&picked(&group)));
            group = [&names[..], &[column]].concat();
        }
    }
    tables.push(table(&picked(&group)));
    if has_words {
        tables.push(with_words(&picked(&names), rows, columns));
    }
    tables.join("\n")
}

fn width_of(text: &str) -> usize {
    text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
}

/// Formats a table, with the words of the row of `all` below each row.
fn with_words(rows: &[Vec<String>], all: &[Vec<String>], columns: usize) -> String {
    let head = table(rows);
    let width = width_of(&head);
    let room = columns.saturating_sub(width + 2).max(WORDS_ROOM);
    let mut text = String::new();
    for (line, row) in head.lines().zip(all) {
        let words = row.last().map(|words| broken(words, room)).unwrap_or_default();
        for (index, part) in words.iter().enumerate() {
            let line = if index == 0 { line } else { "" };
            text.push_str(format!("{line:width$}  {part}").trim_end());
            text.push('\n');
        }
    }
    text
}

/// Wraps words to so many columns; a number stays with its sign.
fn broken(words: &str, room: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in words.replace(" %", "\u{a0}%").split(' ') {
        if let Some(line) = lines.last_mut().filter(|line| !line.is_empty()) {
            if line.chars().count() + 1 + word.chars().count() > room {
                lines.push(word.to_owned());
            } else {
                line.push(' ');
                line.push_str(word);
            }
        } else {
            lines = vec![word.to_owned()];
        }
    }
    lines.into_iter().map(|line| line.replace('\u{a0}', " ")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(lines: &[&[&str]]) -> Vec<Vec<String>> {
        lines.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect()).collect()
    }

    #[test]
    fn a_table_that_fits_stays_as_it_is() {
        let rows = rows(&[&["A", "WHY"], &["a", "it was the best of all"]]);
        for columns in [None, Some(25)] {
            assert_eq!(table_within(&rows, 1, true, columns), table(&rows));
        }
        assert!(width_of(&table_within(&rows, 1, true, Some(24))) <= 24);
    }

    #[test]
    fn words_go_on_below_and_a_number_keeps_its_sign() {
        let rows = rows(&[&["AT", "N", "AS"], &["0 B", "1", "zstd-1 90 %, zstd-3 10 %"], &["1 B", "20", "raw 100 %"]]);
        let text = table_within(&rows, 1, true, Some(23));
        assert_eq!(text, "AT    N  AS\n0 B   1  zstd-1 90 %,\n         zstd-3 10 %\n1 B  20  raw 100 %\n");
    }

    #[test]
    fn columns_without_room_go_into_a_table_of_their_own() {
        let header = ["VOLUME", "DOOR", "READ/s", "WRITE/s", "READ mean/99%", "WRITE mean/99%", "FLUSH mean/99%"];
        let row = ["vm", "nbd", "0.0", "10.0", "15.2 ms/536.9 ms", "15.2 ms/536.9 ms", "15.2 ms/536.9 ms"];
        let text = table_within(&rows(&[&header, &row]), 2, false, Some(60));
        let tables: Vec<_> = text.split("\n\n").collect();
        assert!(width_of(&text) <= 60 && tables.len() == 2, "{text}");
        assert!(tables.iter().all(|table| table.starts_with("VOLUME  DOOR")), "{text}");
        for name in header {
            assert!(text.contains(name), "{name} is not in\n{text}");
        }
        // Names that are wider than the terminal do not cause a table per column.
        let name = "x".repeat(70);
        let long = rows(&[&header, &[name.as_str(), "nbd", "0.0", "1.0", "-", "-", "-"]]);
        assert_eq!(table_within(&long, 2, false, Some(60)).split("\n\n").count(), 2);
    }
}
