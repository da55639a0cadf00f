//! `shale completions` and `shale man`: both from the one definition of the flags.

use std::path::Path;

use clap::{Command, CommandFactory};

use crate::cli::Cli;
use crate::exit::{Outcome, path_error};
use crate::output::Output;

/// Prints a completion script.
pub fn completions(shell: clap_complete::Shell, output: &Output) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "shale", &mut script);
    output.text(&String::from_utf8_lossy(&script));
    Ok(())
}

/// Writes `shale.1` and one page for each command.
pub fn man(dir: &Path) -> Outcome {
    std::fs::create_dir_all(dir).map_err(|error| path_error("cannot make", dir, error))?;
    // The generated `help` command would get a page for each command once more.
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    let commands = root.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    for command in std::iter::once(root.clone()).chain(commands) {
        let man = clap_mangen::Man::new(command.clone());
        let place = dir.join(man.get_filename());
        let mut page = Vec::new();
        man.render(&mut page)
            .and_then(|()| std::fs::write(&place, with_values(&command, &keep_lines(&String::from_utf8_lossy(&page)))))
            .map_err(|error| path_error("cannot write", &place, error))?;
    }
    Ok(())
}

/// What follows the options in the help are examples and tables: their lines stay as they are, under a heading that
/// says so.
fn keep_lines(page: &str) -> String {
    let (before, after) = match page.split_once(".SH EXTRA\n") {
        Some(parts) => parts,
        None => return page.to_owned(),
    };
    let (extra, rest) = match after.find("\n.SH ") {
        Some(end) => after.split_at(end + 1),
        None => (after, ""),
    };
    let extra = extra.trim_end();
    format!("{before}.SH NOTES\n.nf\n{extra}\n.fi\n{rest}")
}

/// The page with what options take in its synopsis, where the generator leaves it out.
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
            // Without brackets: it must be given.
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
                assert!(synopsis.contains(" \\fB\\-\\-size\\fR \\fISIZE\\fR <"), "{synopsis}");
            }
        }
    }

    #[test]
    fn lines_of_the_notes_are_kept_and_nothing_else_is() {
        let page = ".SH NAME\nx\n.SH EXTRA\nExamples:\n  y\n.SH VERSION\nv1\n";
        assert_eq!(keep_lines(page), ".SH NAME\nx\n.SH NOTES\n.nf\nExamples:\n  y\n.fi\n.SH VERSION\nv1\n");
        assert_eq!(keep_lines(".SH NAME\n"), ".SH NAME\n");
    }
}
