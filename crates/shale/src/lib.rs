//! The one binary: command line, server, control socket, import and export.
//!
//! Layers, from the top: [`cli`] is the one definition of commands and flags; [`commands`] does
//! what they say, through a [`session::Session`], which is either the pool itself, opened by this
//! process, or a connection to the server that holds it ([`control`]). Both answer the same
//! [`control::Request`]s through the same [`service::Service`], so that a command gives the same
//! result either way. [`transfer`] moves bulk data in and out, `trees` whole directory trees;
//! [`estimate`] tells what data would take; [`pool_dir`] owns the layout of a pool's directory.
//!
//! This crate owns no storage: it never interprets what the engine keeps in the data file or in the
//! map.
// The storage stack takes time and files through `env` so that it can be simulated; nothing
// simulates the command line.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod choices;
pub mod cli;
mod clients;
pub mod commands;
pub mod completion;
pub mod control;
pub mod devices;
pub mod estimate;
pub mod exit;
pub mod exports;
pub mod file_choices;
mod first_reads;
pub mod front_ends;
pub mod fullness;
pub mod health;
mod image_line;
pub mod images;
pub mod jobs;
pub mod losses;
pub mod model;
pub mod names;
mod narrow;
mod open_device;
pub mod output;
pub mod pool_dir;
pub mod progress;
pub mod schedules;
pub mod service;
pub mod session;
mod share_check;
mod share_files;
mod share_journals;
mod share_losses;
mod share_reasons;
mod share_recompress;
mod share_trees;
mod share_trials;
mod share_unserved;
pub mod shares;
pub mod slices;
pub mod stream_io;
pub mod stream_plan;
pub mod system;
pub mod times;
pub mod traffic;
pub mod transfer;
mod trees;
pub mod volume_io;

use std::process::ExitCode;

use clap::FromArgMatches;

/// Parses the command line, runs the command, reports its error, and gives the exit code.
pub fn run() -> ExitCode {
    env::tune_allocator();
    system::survive_file_size_limit();
    system::raise_descriptor_limit();
    if completion::answer() {
        return ExitCode::SUCCESS;
    }
    let parsed = cli::command().try_get_matches().and_then(|matches| cli::Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => return exit::report_usage(&error),
    };
    let output = output::Output::new(cli.json, cli.quiet);
    match commands::run(cli.command, &output).and_then(|()| output::all_was_written()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(&output),
    }
}
