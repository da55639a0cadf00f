//! The pool of a command line that names none: SHALE_POOL.
//!
//! The first word after the command names the pool if it is a directory with a pool in it, or a
//! path that begins with `/` or `.`. Otherwise the pool of SHALE_POOL is inserted before it, and
//! the rest of the program sees the same words as if it had been typed. `init` and `estimate`
//! ignore it.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::Command;
use server::pool_dir::PoolDir;

/// Environment variable with the directory of the pool.
pub const VARIABLE: &str = "SHALE_POOL";

/// Returns the pool of [`VARIABLE`], if it is set.
pub fn of_environment() -> Option<OsString> {
    std::env::var_os(VARIABLE).filter(|pool| !pool.is_empty())
}

/// Returns the words of a command line, with `pool` inserted if its command needs one and they name
/// none.
pub fn completed(mut words: Vec<OsString>, root: &Command, pool: Option<OsString>) -> Vec<OsString> {
    if let Some(pool) = pool
        && let Some(at) = place(&words, root)
    {
        words.insert(at, pool);
    }
    words
}

/// Returns the position of the missing pool; `None`: it is named, or the command needs none.
fn place(words: &[OsString], root: &Command) -> Option<usize> {
    let names_no_pool = |word: &OsString| {
        let word = word.to_string_lossy();
        word == "--help" || word == "-h" || word == "--config" || word.starts_with("--config=")
    };
    if words.iter().any(names_no_pool) {
        return None;
    }
    let mut at = 1 + words.iter().skip(1).position(|word| !is_flag(word))?;
    let mut command = root.find_subcommand(&words[at])?;
    // `token create`.
    while command.has_subcommands() {
        at = next_positional(words, at + 1, command);
        command = command.find_subcommand(words.get(at)?)?;
    }
    let takes_pool = command.get_positionals().next().is_some_and(|first| first.get_id() == "pool");
    if !takes_pool || command.get_name() == "init" {
        return None;
    }
    let mut at = next_positional(words, at + 1, command);
    // `clone URL POOL VOLUME`.
    if words.get(at).is_some_and(|word| word.to_string_lossy().contains("://")) {
        at = next_positional(words, at + 1, command);
    }
    (!words.get(at).is_some_and(|word| names_a_pool(word))).then_some(at)
}

/// Returns whether a word can only be the directory of a pool.
fn names_a_pool(word: &OsStr) -> bool {
    let is_path = word.as_encoded_bytes().first().is_some_and(|first| matches!(first, b'/' | b'.'));
    is_path || PoolDir::new(Path::new(word)).config_path().is_file()
}

/// Returns the position of the next word from `at` on that is neither a flag nor the value of one.
fn next_positional(words: &[OsString], mut at: usize, command: &Command) -> usize {
    while let Some(word) = words.get(at) {
        if word == "--" {
            return at + 1;
        }
        if !is_flag(word) {
            return at;
        }
        at += if takes_next_word(&word.to_string_lossy(), command) { 2 } else { 1 };
    }
    words.len()
}

/// Returns whether a word begins with a dash; a single one is stdin.
fn is_flag(word: &OsStr) -> bool {
    word.as_encoded_bytes().starts_with(b"-") && word != "-"
}

/// Returns whether the value of a flag is the next word.
fn takes_next_word(flag: &str, command: &Command) -> bool {
    let takes_value = |is_meant: &dyn Fn(&clap::Arg) -> bool| {
        command.get_opts().any(|option| is_meant(option) && option.get_action().takes_values())
    };
    if let Some(long) = flag.strip_prefix("--") {
        return !long.contains('=') && takes_value(&|option| option.get_long() == Some(long));
    }
    // Of `-rt TYPE` the last letter matters, of `-tTYPE` the first: the rest is its value.
    let letters: Vec<_> = flag.chars().skip(1).collect();
    let with_value = letters.iter().position(|letter| takes_value(&|option| option.get_short() == Some(*letter)));
    with_value.is_some_and(|at| at + 1 == letters.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_pool(line: &str) -> String {
        let words = line.split(' ').map(OsString::from).collect();
        let words = completed(words, &crate::cli::command(), Some("P".into()));
        words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_pool_stands_before_the_first_word_that_is_none() {
        for (line, expected) in [
            ("shale status", "shale status P"),
            ("shale --json list -r -t snapshot vm", "shale --json list -r -t snapshot P vm"),
            ("shale list -rt snapshot vm", "shale list -rt snapshot P vm"),
            ("shale list -tsnapshot vm", "shale list -tsnapshot P vm"),
            ("shale list --type=snapshot vm", "shale list --type=snapshot P vm"),
            ("shale set -q unit=8K", "shale set -q P unit=8K"),
            ("shale snapshot vm@monday", "shale snapshot P vm@monday"),
            ("shale import vm -", "shale import P vm -"),
            ("shale serve --nbd 127.0.0.1:0", "shale serve --nbd 127.0.0.1:0 P"),
            ("shale clone file:///b/k@1 vm9", "shale clone file:///b/k@1 P vm9"),
            ("shale destroy -- vm", "shale destroy -- P vm"),
        ] {
            assert_eq!(with_pool(line), expected);
        }
    }

    #[test]
    fn a_pool_that_is_named_stays() {
        let dir = testkit::TempDir::new("named-pool");
        std::fs::write(dir.path().join("pool.json"), b"{}").unwrap();
        let named = format!("shale list {}", dir.path().display());
        for line in [
            named.as_str(),
            "shale list /no/such/pool",
            "shale list ./p",
            "shale list ../p vm",
            "shale clone file:///b/k@1 /srv/pool vm9",
            "shale init",
            "shale estimate disk.img",
            "shale blob ls",
            "shale list --help",
            "shale serve --config f",
            "shale reload --config=f",
            "shale config check f",
            "shale frobnicate vm",
            "shale",
        ] {
            assert_eq!(with_pool(line), line);
        }
        let words = vec![OsString::from("shale"), OsString::from("list")];
        assert_eq!(completed(words.clone(), &crate::cli::command(), None), words);
    }
}
