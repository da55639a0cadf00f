//! `shale completions` and `shale man`: both from the one definition of the flags.

use std::path::Path;

use clap::{Command, CommandFactory};
use surface::{Error, ErrorKind};

use crate::cli::{Cli, help};
use crate::completion;
use crate::output::Output;
use operations::{EXIT_CODES_HELP, Outcome, path_error};

/// Width of the text of a manual page: that of a terminal, without its margin.
const MAN_COLUMNS: usize = 72;

/// Prints a completion script.
pub fn completions(shell: clap_complete::Shell, output: &Output) -> Outcome {
    let script = completion::script(shell).map_err(|why| Error::new(ErrorKind::Unsupported, why))?;
    output.exact(&script);
    Ok(())
}

/// Returns a command, and its subcommands, with text that fits a manual page.
fn for_pages(command: Command) -> Command {
    let text = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    // The generated `help` command would get another page for each command.
    let command = command.disable_help_subcommand(true).mut_subcommands(for_pages);
    command.after_long_help(help::reflow(&text, MAN_COLUMNS))
}

/// Writes `shale.1` and one page for each command, those on blobs included.
pub fn man(dir: &Path) -> Outcome {
    std::fs::create_dir_all(dir).map_err(|error| path_error("cannot make", dir, error))?;
    let mut root = Cli::command().disable_help_subcommand(true).mut_subcommands(for_pages);
    root.build();
    let commands = root.get_subcommands().filter(|command| !command.is_hide_set());
    let commands = commands.flat_map(|command| std::iter::once(command).chain(command.get_subcommands())).cloned();
    for command in std::iter::once(root.clone()).chain(commands) {
        let man = clap_mangen::Man::new(command.clone());
        let place = dir.join(man.get_filename());
        let mut page = Vec::new();
        man.render(&mut page)
            .and_then(|()| {
                std::fs::write(&place, with_values(&command, &with_sections(&String::from_utf8_lossy(&page))))
            })
            .map_err(|error| path_error("cannot write", &place, error))?;
    }
    Ok(())
}

/// Formats the text after the options in the help under headings of manual pages: examples, exit
/// status, and notes. Lines stay unchanged.
fn with_sections(page: &str) -> String {
    let (before, after) = page.split_once(".SH EXTRA\n").unwrap_or((page, ""));
    let (extra, rest) = match after.find("\n.SH ") {
        Some(end) => after.split_at(end + 1),
        None => (after, ""),
    };
    let (mut examples, mut notes) = (Vec::new(), Vec::new());
    // A part begins with its heading, and ends at the next one.
    let mut is_of = &mut notes;
    for line in extra.trim_end().lines() {
        match line.trim_start_matches("\\&") {
            "Examples:" => {
                is_of = &mut examples;
                continue;
            }
            // These are the same for all pages.
            "Exit codes:" => break,
            "" => is_of = &mut notes,
            _ => {}
        }
        is_of.push(line);
    }
    let section = |title: &str, lines: &[&str]| {
        let text = lines.join("\n");
        let text = text.trim_matches('\n');
        if text.is_empty() { String::new() } else { format!(".SH {title}\n.nf\n{text}\n.fi\n") }
    };
    let (_, codes) = EXIT_CODES_HELP.split_once('\n').unwrap_or_default();
    let codes = help::reflow(codes, MAN_COLUMNS);
    let codes: Vec<_> = codes.lines().map(|line| line.replace('-', "\\-")).collect();
    let codes: Vec<_> = codes.iter().map(String::as_str).collect();
    let sections = [("EXAMPLES", &examples[..]), ("NOTES", &notes), ("EXIT STATUS", &codes)];
    let sections: String = sections.iter().map(|(title, lines)| section(title, lines)).collect();
    format!("{before}{sections}{rest}")
}

/// Adds the values of options to the synopsis of a page, where the generator omits them.
fn with_values(command: &Command, page: &str) -> String {
    let Some((before, after)) = page.split_once(".SH SYNOPSIS\n") else { return page.to_owned() };
    let (synopsis, rest) = after.split_once('\n').unwrap_or((after, ""));
    let mut synopsis = synopsis.to_owned();
    let escaped = |text: &str| text.replace('-', "\\-");
    for option in command.get_arguments().filter(|arg| arg.get_action().takes_values() && !arg.is_positional()) {
        let names = option.get_value_names().unwrap_or_default();
        let names: Vec<_> = names.iter().map(|name| format!(" \\fI{}\\fR", escaped(name))).collect();
        let names = names.concat();
        if let Some(long) = option.get_long() {
            let word = format!("\\fB\\-\\-{}\\fR", escaped(long));
            let taking = format!("{word}{names}");
            // Without brackets: it is required.
            synopsis =
                synopsis.replace(&format!("<{word}>"), &taking).replace(&format!("{word}]"), &format!("{taking}]"));
        } else if let Some(short) = option.get_short() {
            synopsis = synopsis.replace(&format!("\\fB\\-{short} \\fR"), &format!("\\fB\\-{short}\\fR{names}"));
        }
    }
    format!("{before}.SH SYNOPSIS\n{synopsis}\n{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_synopsis_says_what_options_take() {
        let mut root = Cli::command();
        root.build();
        for command in root.get_subcommands() {
            let mut page = Vec::new();
            clap_mangen::Man::new(command.clone()).render(&mut page).unwrap();
            let page = with_values(command, &String::from_utf8(page).unwrap());
            let synopsis = page.split_once(".SH SYNOPSIS\n").unwrap().1.split_once('\n').unwrap().0;
            assert!(!synopsis.contains(" \\fR") && !synopsis.contains("memory\\fR]"), "{synopsis}");
            if command.get_name() == "create" {
                assert!(synopsis.contains("[\\fB\\-o\\fR \\fIKEY=VALUE\\fR]"), "{synopsis}");
                assert!(synopsis.contains(" [\\fB\\-\\-size\\fR \\fISIZE\\fR] "), "{synopsis}");
            }
        }
    }

    #[test]
    fn a_page_has_examples_notes_and_exit_status() {
        let page = ".SH NAME\nx\n.SH EXTRA\nExamples:\n  y\n  z\n\nWords.\n\nMore.\n.SH VERSION\nv1\n";
        let text = with_sections(page);
        assert!(
            text.starts_with(".SH NAME\nx\n.SH EXAMPLES\n.nf\n  y\n  z\n.fi\n.SH NOTES\n.nf\nWords.\n\nMore.\n.fi\n"),
            "{text}"
        );
        assert!(
            text.contains(".SH EXIT STATUS\n.nf\n    0  done\n") && text.ends_with(".fi\n.SH VERSION\nv1\n"),
            "{text}"
        );
        let bare = with_sections(".SH NAME\n");
        assert!(!bare.contains("EXAMPLES") && !bare.contains("NOTES") && bare.contains("EXIT STATUS"), "{bare}");
    }
}
