//! Expands short values of properties, such as `compression=zstd`, for commands that use them
//! without an operation of the pool, or whose operation cannot return a note.

use crate::cli::Command;
use crate::output::Output;

/// Replaces short values in properties to set or assume.
pub fn spell_out(command: &mut Command, output: &Output) {
    for (key, value) in properties(command).into_iter().flatten() {
        if let Some(meant) = policy::spelled_out(key, value) {
            output.note(&format!("shale: {key}={value} means {key}={meant}"));
            *value = meant;
        }
    }
}

fn properties(command: &mut Command) -> Option<&mut Vec<(String, String)>> {
    match command {
        Command::Init(args) => Some(&mut args.properties),
        Command::Push(args) => Some(&mut args.properties),
        Command::Estimate(args) => Some(&mut args.properties),
        Command::Salvage(args) => Some(&mut args.properties),
        Command::Receive(args) => Some(&mut args.properties),
        _ => None,
    }
}
