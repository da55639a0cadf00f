//! The command line.
//!
//! [`cli`] is the one definition of commands and flags; [`commands`] runs them: each sends its
//! requests through a [`server::session::Session`], which is either the pool itself, opened by this
//! process, or a connection to the server that holds it, so that a command gives the same result
//! either way.
//!
//! This crate owns no storage: it never interprets the engine's data file or map.
// The storage stack takes time and files through `env` so that it can be simulated; nothing
// simulates the command line.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod cli;
pub mod commands;
pub mod completion;
pub mod exit;
mod heartbeat;
mod narrow;
pub mod output;
pub mod progress;
pub mod settings;
pub mod times;

use std::process::ExitCode;

use clap::FromArgMatches;

/// Parses the command line, runs the command, reports its error, and returns the exit code.
pub fn run() -> ExitCode {
    env::tune_allocator();
    host::survive_file_size_limit();
    host::raise_descriptor_limit();
    server::names_reader::provide();
    if completion::answer() {
        return ExitCode::SUCCESS;
    }
    let command = cli::command();
    let words = cli::named_pool::completed(std::env::args_os().collect(), &command, cli::named_pool::of_environment());
    let parsed = command.try_get_matches_from(words).and_then(|matches| {
        let name = matches.subcommand_name().unwrap_or_default().to_owned();
        Ok((name, cli::Cli::from_arg_matches(&matches)?))
    });
    let (name, cli) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return exit::report_usage(error),
    };
    let output = output::Output::new(cli.json, cli.quiet);
    let _heartbeat = heartbeat::Heartbeat::start(&name, output);
    match commands::run(cli.command, &output).and_then(|()| output::all_was_written()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => exit::report(&failure, &output),
    }
}
