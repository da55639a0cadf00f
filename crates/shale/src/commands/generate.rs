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
    clap_mangen::generate_to(Cli::command(), dir).map_err(|error| path_error("cannot write to", dir, error))?;
    Ok(())
}
