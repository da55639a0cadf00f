//! Layout of help: prose is wrapped to the terminal, examples and tables stay unchanged, and
//! commands are grouped.

use clap::Command;

/// Width when there is no terminal that reports it.
const COLUMNS_DEFAULT: usize = 100;
/// Maximum width: longer lines are hard to read. Minimum width: less leaves no space for text next
/// to the flags.
const COLUMNS_MAX: usize = 110;
const COLUMNS_MIN: usize = 50;
/// A space at which the parser's own wrapping does not break; [`plain`] replaces it.
const HARD_SPACE: char = '\u{a0}';

/// The commands by purpose; commands without a group come last.
const GROUPS: [(&str, &[&str]); 7] = [
    (
        "Pools",
        &["init", "status", "df", "iostat", "stats", "top", "serve", "config", "reload", "exports", "grow", "shrink"],
    ),
    ("Volumes", &["create", "list", "get", "set", "inherit", "resize", "destroy", "rename"]),
    (
        "Snapshots and clones",
        &["snapshot", "clone", "rollback", "promote", "diff", "bookmark", "bookmarks", "hold", "release", "holds"],
    ),
    ("Data in and out", &["import", "export", "send", "receive", "blob"]),
    ("Health and upkeep", &["check", "scrub", "salvage", "clean", "recompress", "jobs"]),
    ("Compression", &["estimate", "explain", "usage", "calibrate", "trace"]),
    ("Installation", &["completions", "man"]),
];

/// Returns the command with its help laid out for so many columns.
pub fn fitted(command: Command, columns: usize) -> Command {
    let columns = columns.clamp(COLUMNS_MIN, COLUMNS_MAX);
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}\nOptions:\n{{options}}{{after-help}}",
        hard(&reflow(&groups(&command), columns))
    );
    fit(command, columns).help_template(template)
}

/// Returns the command, and its subcommands, with prose wrapped.
fn fit(command: Command, columns: usize) -> Command {
    let text = command.get_after_long_help().map(ToString::to_string);
    let command = command.term_width(columns).mut_subcommands(|below| fit(below, columns));
    match text {
        Some(text) => command.after_long_help(hard(&reflow(&text, columns))),
        None => command,
    }
}

/// Returns the width for help, from the terminal if there is one.
pub fn columns() -> usize {
    let told = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let of_terminal = || rustix::termios::tcgetwinsize(std::io::stdout()).ok().map(|size| size.ws_col.into());
    told.or_else(of_terminal).filter(|columns| *columns > 0).unwrap_or(COLUMNS_DEFAULT)
}

/// Returns help for display.
pub fn plain(text: &str) -> String {
    text.replace(HARD_SPACE, " ")
}

fn hard(text: &str) -> String {
    text.replace(' ', &HARD_SPACE.to_string())
}

/// Returns the list of commands, group by group.
fn groups(root: &Command) -> String {
    let mut rest: Vec<_> = root.get_subcommands().filter(|command| !command.is_hide_set()).collect();
    let width = rest.iter().map(|command| command.get_name().len()).max().unwrap_or(0);
    let line = |command: &Command| {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        format!("  {:width$}  {about}\n", command.get_name())
    };
    let mut text = String::new();
    for (title, names) in GROUPS {
        let of_group = names.iter().filter_map(|name| {
            let at = rest.iter().position(|command| command.get_name() == *name)?;
            Some(line(rest.remove(at)))
        });
        text += &format!("{title}:\n{}\n", of_group.collect::<String>());
    }
    if !rest.is_empty() {
        text += &format!("More:\n{}\n", rest.into_iter().map(line).collect::<String>());
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

/// A piece of a help text.
enum Piece {
    /// An unchanged line.
    Line(String),
    /// Words to wrap, with the prefixes of the first line and of the others.
    Words { first: String, other: String, words: Vec<String> },
}

/// Wraps prose and tables to `columns`. Lines under `Examples:` stay unchanged at any length, so
/// that they can be copied; so do indented ones that are neither a row of a table nor continue the
/// line before.
pub fn reflow(text: &str, columns: usize) -> String {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut is_example = false;
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        let words = || line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        if line.trim().is_empty() {
            is_example = false;
        } else if !is_example && indent == 0 {
            is_example = line.starts_with("Examples:");
            match pieces.last_mut() {
                // Prose continues.
                Some(Piece::Words { first, words: before, .. }) if first.is_empty() && !before.is_empty() => {
                    before.extend(words());
                    continue;
                }
                _ if is_example => {}
                _ => {
                    let other = if line.starts_with("JSON") { "  " } else { "" }.to_owned();
                    pieces.push(Piece::Words { first: String::new(), other, words: words() });
                    continue;
                }
            }
        } else if !is_example {
            if let Some(column) = table_column(line) {
                let (first, rest) = line.split_at(column);
                let words = rest.split_whitespace().map(str::to_owned).collect();
                pieces.push(Piece::Words { first: first.to_owned(), other: " ".repeat(column), words });
                continue;
            }
            match pieces.last_mut() {
                // A row of a table, or a list of fields, continues.
                Some(Piece::Words { other, words: before, .. }) if indent == other.len() && indent > 0 => {
                    before.extend(words());
                    continue;
                }
                Some(Piece::Words { first, words: before, .. })
                    if first.is_empty() && before.last().is_some_and(|word| !word.ends_with(':')) =>
                {
                    before.extend(words());
                    continue;
                }
                _ => {}
            }
        }
        pieces.push(Piece::Line(line.to_owned()));
    }
    pieces.iter().map(|piece| laid_out(piece, columns)).collect::<Vec<_>>().join("\n")
}

/// Returns the column where the text of a row begins: `  name    text`, or exit codes,
/// right-aligned before two spaces.
fn table_column(line: &str) -> Option<usize> {
    let name = line.len() - line.trim_start().len();
    let gap = line[name..].find("  ").map(|at| name + at)?;
    let column = gap + (line[gap..].len() - line[gap..].trim_start().len());
    (name < 8 && column < 48).then_some(column)
}

fn laid_out(piece: &Piece, columns: usize) -> String {
    let (first, other, words) = match piece {
        Piece::Line(line) => return line.clone(),
        Piece::Words { first, other, words } => (first, other, words),
    };
    let (mut text, mut line, mut has_words) = (String::new(), first.clone(), false);
    for word in words {
        if has_words && line.chars().count() + 1 + word.chars().count() > columns {
            text += line.trim_end();
            text.push('\n');
            line = other.clone();
            has_words = false;
        }
        if has_words {
            line.push(' ');
        }
        line += word;
        has_words = true;
    }
    text + line.trim_end()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    fn help(columns: usize, name: Option<&str>) -> String {
        let mut root = fitted(Cli::command(), columns);
        root.build();
        let command = match name {
            Some(name) => root.find_subcommand_mut(name).unwrap_or_else(|| panic!("{name}")),
            None => &mut root,
        };
        plain(&command.render_long_help().to_string())
    }

    /// Returns the lines under `Examples:`.
    fn examples(text: &str) -> Vec<&str> {
        let behind = text.lines().skip_while(|line| *line != "Examples:").skip(1);
        behind.take_while(|line| line.starts_with("  ")).collect()
    }

    #[test]
    fn prose_is_wrapped_and_examples_are_not() {
        let names: Vec<_> = Cli::command().get_subcommands().map(|c| (c.get_name().to_owned(), c.clone())).collect();
        for (name, command) in names.iter().filter(|(_, command)| !command.is_hide_set()) {
            let (narrow, wide) = (help(72, Some(name)), help(110, Some(name)));
            let written = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
            assert_eq!(examples(&narrow), examples(&written), "{name}");
            assert_eq!(examples(&wide), examples(&written), "{name}");
            let shown = examples(&written);
            let too_long =
                |line: &&str| line.chars().count() > 72 && !shown.contains(line) && !line.contains("  shale ");
            // A longer word cannot be broken, nor a usage line.
            let broken =
                narrow.lines().find(|line| too_long(line) && line.trim().contains(' ') && !line.contains("Usage"));
            assert_eq!(broken, None, "{name}: {narrow}");
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(words(&narrow), words(&wide), "{name}: nothing is lost");
        }
    }

    #[test]
    fn commands_on_blobs_have_examples_and_are_wrapped() {
        let mut root = fitted(Cli::command(), 72);
        root.build();
        let blob = root.find_subcommand_mut("blob").unwrap();
        for command in blob.get_subcommands_mut().filter(|command| command.get_name() != "help") {
            let name = command.get_name().to_owned();
            let text = plain(&command.render_long_help().to_string());
            let shown = examples(&text);
            assert!(!shown.is_empty(), "{name}: {text}");
            let broken = text.lines().find(|line| line.chars().count() > 72 && !shown.contains(line));
            assert_eq!(broken, None, "{name}: {text}");
        }
    }

    #[test]
    fn every_command_stands_in_one_group() {
        let text = help(100, None);
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let line = format!("\n  {} ", command.get_name());
            assert_eq!(text.matches(&line).count(), 1, "{}: {text}", command.get_name());
        }
        assert!(text.find("Pools:") < text.find("Volumes:") && text.contains("Exit codes:"), "{text}");
        assert!(text.contains("--json") && text.contains("Usage: shale"), "{text}");
    }

    #[test]
    fn rows_go_on_under_their_text() {
        let text = "JSON fields: a, b,\n  c, d\n\n  name      one two three four\n            five\n    3  not found\nto be\ncontinued";
        let expected = "JSON fields: a, b, c,\n  d\n\n  name      one two\n            three four\n            five\n    3  not found\nto be continued";
        assert_eq!(reflow(text, 22), expected);
    }
}
