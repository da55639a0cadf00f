//! Completion of words in a shell: commands and flags come from their one definition
//! ([`crate::cli`]); volumes, snapshots, bookmarks, holds, properties and their values from here.
//!
//! The script that `shale completions` prints calls the binary for each completion. Names are
//! requested from the pool's server. A pool without a server is not opened for this, because that
//! would replay its log.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::builder::ValueParser;
use clap::{Arg, Command};
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::{EnvCompleter, Fish, Zsh};

use crate::cli;
use crate::commands::COLUMNS;
use operations::{Reply, Request};
use server::control::Client;
use server::pool_dir::PoolDir;

/// Variable with the name of the shell that calls the binary for a completion.
const VARIABLE: &str = "SHALE_COMPLETE";

/// Answers a shell's request for completions. `false`: there is none, this is a command to run.
pub fn answer() -> bool {
    let here = std::env::current_dir().ok();
    let asked = CompleteEnv::with_factory(|| equipped(cli::command()))
        .var(VARIABLE)
        .try_complete(std::env::args_os(), here.as_deref());
    asked.unwrap_or_else(|error| {
        drop(error.print());
        true
    })
}

/// Script for bash. It splits words itself: bash would split `KEY=VALUE` and `VOLUME@SNAPSHOT`, and
/// replace only the part after the last of these characters.
const BASH: &str = r#"# Completion of shale: source it, or put it where bash-completion looks.
_shale() {
    local line=${COMP_LINE:0:COMP_POINT} current behind i
    local -a words
    read -ra words <<<"$line"
    [[ -z $line || $line == *[[:space:]] ]] && words+=("")
    current=${words[${#words[@]} - 1]}
    local IFS=$'\n'
    COMPREPLY=($(_CLAP_IFS=$'\n' _CLAP_COMPLETE_INDEX=$((${#words[@]} - 1)) _CLAP_COMPLETE_COMP_TYPE=9 \
        _CLAP_COMPLETE_SPACE=false VARIABLE=bash shale -- "${words[@]}" 2>/dev/null))
    behind=${current##*[=@:]}
    for i in "${!COMPREPLY[@]}"; do
        COMPREPLY[i]=${COMPREPLY[i]#"${current%"$behind"}"}
    done
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=@/] ]] && compopt -o nospace
    return 0
}
complete -o bashdefault -F _shale shale
"#;

/// Returns the script for a shell.
///
/// # Errors
/// A message with the supported shells.
pub fn script(shell: clap_complete::Shell) -> Result<String, String> {
    let shell: &dyn EnvCompleter = match shell {
        clap_complete::Shell::Bash => return Ok(BASH.replace("VARIABLE", VARIABLE)),
        clap_complete::Shell::Zsh => &Zsh,
        clap_complete::Shell::Fish => &Fish,
        other => return Err(format!("there are completions for bash, zsh and fish, not for {other}")),
    };
    let mut script = Vec::new();
    shell.write_registration(VARIABLE, "shale", "shale", "shale", &mut script).map_err(|error| error.to_string())?;
    String::from_utf8(script).map_err(|error| error.to_string())
}

/// Kinds of words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Volume,
    Folder,
    Snapshot,
    VolumeOrSnapshot,
    /// An object to destroy: a volume, a folder, a snapshot, a bookmark.
    Destroyable,
    /// Base of a difference: a snapshot or a bookmark.
    Base,
    /// A tag that holds the preceding snapshot.
    Hold,
    /// A volume and an `@`, to be followed by a new name.
    NewSnapshot,
    KeyValue,
    VolumeOrKeyValue,
    VolumeOrKey,
    VolumeOrFolder,
    Key,
    Column,
    /// The number of a job.
    Job,
}

/// Returns the kind of a command's argument, by their names; `None`: the shell's own guess, mostly
/// files.
fn kind_of(command: &str, argument: &str) -> Option<Kind> {
    Some(match (command, argument) {
        ("create" | "import" | "receive" | "clone", "volume") | ("rename", "new") => Kind::Folder,
        ("snapshot", "snapshots") => Kind::NewSnapshot,
        ("destroy", "volumes") => Kind::Destroyable,
        ("list" | "export" | "explain", "volume") | ("rename", "old") | ("diff", "to") | ("holds", "of") => {
            Kind::VolumeOrSnapshot
        }
        ("usage", "share") | ("iostat", "volume") => Kind::VolumeOrSnapshot,
        ("send", "from" | "all_from") => Kind::Base,
        ("release", "tag") => Kind::Hold,
        (_, "volume") | ("send", "replicate") => Kind::Volume,
        (_, "snapshot") | ("diff", "from") => Kind::Snapshot,
        (_, "properties") => Kind::KeyValue,
        ("set", "words") => Kind::VolumeOrKeyValue,
        ("get", "words") => Kind::VolumeOrKey,
        ("inherit", "key") => Kind::Key,
        ("inherit", "name") => Kind::VolumeOrFolder,
        ("list", "columns") => Kind::Column,
        ("jobs", "id") => Kind::Job,
        _ => return None,
    })
}

/// Returns the definition of the commands, with the kinds of their arguments.
fn equipped(command: Command) -> Command {
    let has_pool = cli::named_pool::of_environment().is_some();
    command.mut_subcommands(|command| {
        let name = command.get_name().to_owned();
        // The word in the place of the pool, if SHALE_POOL names that.
        let second = command.get_positionals().nth(1).map(|argument| argument.get_id().to_string());
        let instead = second.filter(|_| has_pool && name != "init").and_then(|second| kind_of(&name, &second));
        command.mut_args(move |argument| match kind_of(&name, argument.get_id().as_str()) {
            None if argument.get_id() == "pool" => match instead {
                Some(kind) => equip(argument, kind),
                None => argument,
            },
            Some(kind) => equip(argument, kind),
            None => argument,
        })
    })
}

fn equip(argument: Arg, kind: Kind) -> Arg {
    let complete = move |current: &OsStr| {
        let Some(current) = current.to_str() else { return Vec::new() };
        let found = candidates(kind, current, &|| named_in(&words()));
        found.into_iter().map(CompletionCandidate::new).collect()
    };
    // Words that the parser refuses, such as half a name, would not be completed otherwise.
    argument.value_parser(ValueParser::string()).add(ArgValueCompleter::new(complete))
}

/// Returns the words that are on the command line already.
fn words() -> Vec<OsString> {
    std::env::args_os().skip_while(|word| word != "--").skip(1).collect()
}

/// Names of the objects in a pool.
#[derive(Debug, Default)]
struct Names {
    volumes: Vec<String>,
    folders: Vec<String>,
    snapshots: Vec<String>,
    /// `VOLUME#BOOKMARK`.
    bookmarks: Vec<String>,
    /// A snapshot and a tag that holds it.
    holds: Vec<(String, String)>,
    /// Numbers of jobs.
    jobs: Vec<String>,
    /// The snapshot that is on the command line already.
    named: Option<String>,
}

/// Returns the names in the pool of the command line, if it is served.
fn named_in(words: &[OsString]) -> Names {
    let named = words.iter().skip(1).cloned().chain(cli::named_pool::of_environment());
    let mut pools = named.map(|path| PoolDir::new(&PathBuf::from(path)).control_path());
    let Some(socket) = pools.find(|socket| socket.exists()) else { return Names::default() };
    let Ok(client) = Client::connect(&socket) else { return Names::default() };
    let volumes = match client.call(&Request::List) {
        Ok(Reply::Volumes(volumes)) => volumes.into_iter().map(|volume| volume.name).collect(),
        _ => Vec::new(),
    };
    let folders = match client.call(&Request::Folders) {
        Ok(Reply::Volumes(folders)) => folders.into_iter().map(|folder| folder.name).collect(),
        _ => Vec::new(),
    };
    let snapshots = match client.call(&Request::Snapshots { object: None, name: None, below: false }) {
        Ok(Reply::Snapshots(snapshots)) => {
            snapshots.into_iter().map(|snapshot| format!("{}@{}", snapshot.volume, snapshot.name)).collect()
        }
        _ => Vec::new(),
    };
    let bookmarks = match client.call(&Request::Bookmarks { object: None }) {
        Ok(Reply::Bookmarks(bookmarks)) => bookmarks.into_iter().map(|line| line.bookmark).collect(),
        _ => Vec::new(),
    };
    let holds = match client.call(&Request::Holds { object: None }) {
        Ok(Reply::Holds(holds)) => holds.into_iter().map(|hold| (hold.snapshot, hold.tag)).collect(),
        _ => Vec::new(),
    };
    let jobs = match client.call(&Request::Jobs) {
        Ok(Reply::Jobs(jobs)) => jobs.into_iter().map(|job| job.id.to_string()).collect(),
        _ => Vec::new(),
    };
    let named = words.iter().filter_map(|word| word.to_str()).find(|word| snapshots.iter().any(|name| name == word));
    let named = named.map(str::to_owned);
    Names { volumes, folders, snapshots, bookmarks, holds, jobs, named }
}

/// Returns the candidates that begin with `current`. Names are requested only if they are possible.
fn candidates(kind: Kind, current: &str, names: &dyn Fn() -> Names) -> Vec<String> {
    let all = match kind {
        Kind::Volume => names().volumes,
        Kind::Folder => names().folders.into_iter().map(|folder| folder + "/").collect(),
        Kind::Snapshot => names().snapshots,
        Kind::VolumeOrSnapshot => {
            let Names { mut volumes, folders, snapshots, .. } = names();
            volumes.extend(folders);
            volumes.extend(snapshots);
            volumes
        }
        Kind::Destroyable => {
            let Names { mut volumes, folders, snapshots, bookmarks, .. } = names();
            volumes.extend(folders);
            volumes.extend(snapshots);
            volumes.extend(bookmarks);
            volumes
        }
        Kind::Base => {
            let Names { mut snapshots, bookmarks, .. } = names();
            // Without its volume a bookmark begins with the comment sign of shells: they quote it.
            let own = bookmarks.iter().filter_map(|name| name.find('#').map(|at| name[at..].to_owned()));
            snapshots.extend(own);
            snapshots
        }
        Kind::Hold => {
            let Names { holds, named, .. } = names();
            let is_meant = |snapshot: &String| named.as_ref().is_none_or(|named| named == snapshot);
            let mut tags: Vec<_> = holds.into_iter().filter(|(s, _)| is_meant(s)).map(|(_, tag)| tag).collect();
            tags.sort_unstable();
            tags.dedup();
            tags
        }
        Kind::NewSnapshot => {
            let Names { volumes, folders, .. } = names();
            volumes.into_iter().chain(folders).map(|name| name + "@").collect()
        }
        Kind::KeyValue => pairs(current),
        Kind::VolumeOrKeyValue => {
            let mut all = pairs(current);
            if !current.contains('=') {
                let Names { volumes, folders, .. } = names();
                all.extend(volumes.into_iter().chain(folders));
            }
            all
        }
        Kind::VolumeOrFolder => {
            let Names { volumes, folders, .. } = names();
            volumes.into_iter().chain(folders).collect()
        }
        Kind::Key => policy::KEYS.iter().map(|key| key.name.to_owned()).collect(),
        Kind::VolumeOrKey => {
            let Names { volumes: mut all, folders, .. } = names();
            all.extend(folders);
            all.extend(policy::KEYS.iter().map(|key| key.name.to_owned()));
            all
        }
        Kind::Job => names().jobs,
        // The columns before the last comma are dropped from the display.
        Kind::Column => COLUMNS.into_iter().chain(policy::KEYS.iter().map(|key| key.name)).map(str::to_owned).collect(),
    };
    all.into_iter().filter(|candidate| candidate.starts_with(current)).collect()
}

/// Completes `key=`, or `key=value` once the key is there.
fn pairs(current: &str) -> Vec<String> {
    match current.split_once('=') {
        Some((key, _)) => policy::values(key).into_iter().map(|value| format!("{key}={value}")).collect(),
        None => policy::KEYS.iter().map(|key| format!("{}=", key.name)).collect(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn some() -> Names {
        let own = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect();
        Names {
            volumes: own(&["vm", "web"]),
            folders: own(&["projects"]),
            snapshots: own(&["vm@monday"]),
            bookmarks: own(&["vm#sunday"]),
            holds: vec![("vm@monday".to_owned(), "audit".to_owned()), ("web@x".to_owned(), "other".to_owned())],
            jobs: own(&["1", "12"]),
            named: Some("vm@monday".to_owned()),
        }
    }

    #[test]
    fn words_are_completed_by_what_they_can_be() {
        let found = |kind, current| candidates(kind, current, &some);
        assert_eq!(found(Kind::Volume, "v"), ["vm"]);
        assert_eq!(found(Kind::VolumeOrSnapshot, "vm"), ["vm", "vm@monday"]);
        assert_eq!(found(Kind::Destroyable, "vm"), ["vm", "vm@monday", "vm#sunday"]);
        assert_eq!(found(Kind::Base, ""), ["vm@monday", "#sunday"]);
        assert_eq!(found(Kind::Folder, "pro"), ["projects/"]);
        assert_eq!(found(Kind::Destroyable, "pro"), ["projects"]);
        assert_eq!(found(Kind::NewSnapshot, "pro"), ["projects@"]);
        assert_eq!(found(Kind::Hold, ""), ["audit"]);
        assert_eq!(candidates(Kind::Hold, "", &|| Names { named: None, ..some() }), ["audit", "other"]);
        assert_eq!(found(Kind::NewSnapshot, "w"), ["web@"]);
        assert_eq!(found(Kind::VolumeOrKeyValue, "mo"), ["mode="]);
        assert_eq!(found(Kind::VolumeOrKeyValue, "w"), ["when-full=", "web"]);
        assert_eq!(found(Kind::KeyValue, "mode=a"), ["mode=archive"]);
        assert_eq!(found(Kind::KeyValue, "compression=zstd-1").len(), 11);
        assert_eq!(found(Kind::VolumeOrKey, "quo"), ["quota"]);
        assert_eq!(found(Kind::Key, "quo"), ["quota"]);
        assert_eq!(found(Kind::VolumeOrFolder, "pro"), ["projects"]);
        assert_eq!(found(Kind::Column, "sto"), ["stored"]);
        assert_eq!(found(Kind::Job, "1"), ["1", "12"]);
    }

    #[test]
    fn the_arguments_that_are_completed_exist() {
        let root = equipped(cli::command());
        let equipped = |command: &Command| {
            let is_known = |arg: &&Arg| kind_of(command.get_name(), arg.get_id().as_str()).is_some();
            command.get_arguments().filter(is_known).count()
        };
        let total: usize = root.get_subcommands().map(equipped).sum();
        assert!(total >= 20, "{total}");
    }

    #[test]
    fn there_are_scripts_for_three_shells() {
        for shell in [clap_complete::Shell::Bash, clap_complete::Shell::Zsh, clap_complete::Shell::Fish] {
            let script = script(shell).unwrap();
            assert!(script.contains(VARIABLE) && script.contains("shale"), "{script}");
        }
        assert!(script(clap_complete::Shell::Elvish).unwrap_err().contains("bash, zsh and fish"));
    }
}
