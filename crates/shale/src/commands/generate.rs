//! `shale completions` and `shale man`: both from the one definition of the flags.

use std::path::Path;

use clap::CommandFactory;

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
        let man = clap_mangen::Man::new(command);
        let place = dir.join(man.get_filename());
        let mut page = Vec::new();
        man.render(&mut page)
            .and_then(|()| std::fs::write(&place, keep_lines(&String::from_utf8_lossy(&page))))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_notes_are_kept_and_nothing_else_is() {
        let page = ".SH NAME\nx\n.SH EXTRA\nExamples:\n  y\n.SH VERSION\nv1\n";
        assert_eq!(keep_lines(page), ".SH NAME\nx\n.SH NOTES\n.nf\nExamples:\n  y\n.fi\n.SH VERSION\nv1\n");
        assert_eq!(keep_lines(".SH NAME\n"), ".SH NAME\n");
    }
}
