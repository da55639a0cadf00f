//! Short values of properties that stand for others, such as `compression=zstd`: they are spelled
//! out before anything is done with them, and what they stand for is said.

use crate::cli::Command;
use crate::output::Output;

/// Replaces short values in what is to be set, or assumed.
pub fn spell_out(command: &mut Command, output: &Output) {
    for (key, value) in properties(command).into_iter().flatten() {
        if let Some(meant) = policy::spelled_out(key, value) {
            output.note(&format!("shale: {key}={value} means {key}={meant}"));
            *value = meant;
        }
    }
    let words = match command {
        Command::Set(args) => &mut args.words,
        _ => return,
    };
    for word in words {
        let Some((key, value)) = word.split_once('=') else { continue };
        if let Some(meant) = policy::spelled_out(key.trim(), value.trim()) {
            output.note(&format!("shale: {word} means {key}={meant}"));
            *word = format!("{key}={meant}");
        }
    }
}

fn properties(command: &mut Command) -> Option<&mut Vec<(String, String)>> {
    match command {
        Command::Init(args) => Some(&mut args.properties),
        Command::Create(args) => Some(&mut args.properties),
        Command::Clone(args) => Some(&mut args.properties),
        Command::Push(args) => Some(&mut args.properties),
        Command::Import(args) => Some(&mut args.properties),
        Command::Estimate(args) => Some(&mut args.properties),
        Command::Salvage(args) => Some(&mut args.properties),
        Command::Receive(args) => Some(&mut args.properties),
        _ => None,
    }
}
