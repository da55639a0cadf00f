//! The commands: each sends requests through a [`Session`], and reports the outcome.

mod access;
mod below;
mod blob;
mod calibrate;
mod check;
mod clean;
mod config;
mod destroy;
mod detached;
mod df;
mod estimate;
mod estimate_tables;
mod explain;
mod explain_file;
mod export;
mod export_tree;
mod exports;
mod forced;
mod generate;
mod grow;
mod handing_over;
mod history;
mod image;
mod import;
mod import_tree;
mod incomplete;
mod init;
mod interruption;
mod iostat;
mod jobs;
mod keeping;
mod kept;
mod list;
mod logger;
mod problems;
mod properties;
mod recompress;
mod registered;
mod rounding;
mod salvage;
mod scrub;
mod serve;
mod serving;
mod shrink;
mod spelled_out;
mod stats;
mod status;
mod stream_sets;
mod streams;
mod top;
mod top_report;
mod top_screen;
mod trace;
mod trees;
mod usage;
mod volume;
mod watch;
mod watchdog;

pub use list::COLUMNS;

use crate::cli::Command;
use crate::output::Output;
use operations::Outcome;

/// Runs a command.
///
/// # Errors
/// Its failure.
pub fn run(mut command: Command, output: &Output) -> Outcome {
    let is_server = matches!(&command, Command::Serve(args) if !args.detach);
    let output = &if is_server { output.with_times() } else { *output };
    logger::install(*output, is_server);
    spelled_out::spell_out(&mut command, output);
    match command {
        Command::Blob(args) => blob::run(args, output),
        Command::Init(args) => init::run(args, output),
        Command::Create(args) => volume::create(args, output),
        Command::Set(args) => properties::set(args, output),
        Command::Get(args) => properties::get(args, output),
        Command::Inherit(args) => properties::inherit(args, output),
        Command::List(args) => list::run(args, output),
        Command::Status(args) => status::run(args, output),
        Command::Df(args) => df::run(&args, output),
        Command::Iostat(args) => iostat::run(&args, output),
        Command::Stats(args) => stats::run(&args, output),
        Command::Top(args) => top::run(&args, output),
        Command::Serve(args) => serve::run(args, output),
        Command::Config(args) => config::run(args, output),
        Command::Reload(args) => config::reload(args, output),
        Command::Import(args) => import::run(args, output),
        Command::Export(args) => export::run(args, output),
        Command::Exports(args) => exports::run(&args, output),
        Command::Estimate(args) => estimate::run(args, output),
        Command::Resize(args) => volume::resize(args, output),
        Command::Destroy(args) => destroy::run(&args, output),
        Command::Snapshot(args) => history::snapshot(args, output),
        Command::Clone(args) => history::clone(args, output),
        Command::Push(args) => image::push(args, output),
        Command::Rollback(args) => history::rollback(args, output),
        Command::Rename(args) => history::rename(args, output),
        Command::Bookmark(args) => kept::bookmark(args, output),
        Command::Bookmarks(args) => kept::bookmarks(&args, output),
        Command::Hold(args) => kept::hold(args, output),
        Command::Release(args) => kept::release(args, output),
        Command::Holds(args) => kept::holds(&args, output),
        Command::Promote(args) => history::promote(args, output),
        Command::Diff(args) => history::diff(args, output),
        Command::Check(args) => check::run(args, output),
        Command::Clean(args) => clean::run(args, output),
        Command::Grow(args) => grow::run(args, output),
        Command::Shrink(args) => shrink::run(args, output),
        Command::Salvage(args) => salvage::run(args, output),
        Command::Scrub(args) => scrub::run(args, output),
        Command::Recompress(args) => recompress::run(args, output),
        Command::Jobs(args) => jobs::run(&args, output),
        Command::Explain(args) => explain::run(args, output),
        Command::Usage(args) => usage::run(args, output),
        Command::Calibrate(args) => calibrate::run(args, output),
        Command::Trace(args) => trace::run(args, output),
        Command::Send(args) => streams::send(args, output),
        Command::Receive(args) => streams::receive(args, output),
        Command::Passwd(args) => access::passwd(args, output),
        Command::Token(args) => access::token(args, output),
        Command::History(args) => access::history(&args, output),
        Command::KeepMounts => keeping::run(),
        Command::ServeHttp => serve::run_http(),
        Command::ReadNames => Ok(server::names_reader::read_names()?),
        Command::RestoreFiles { dir, stage, target, replace } => {
            Ok(server::jobs::restore_from_stdin(&dir, &stage, &target, replace)?)
        }
        Command::Completions { shell } => generate::completions(shell, output),
        Command::Man { dir } => generate::man(&dir),
    }
}
