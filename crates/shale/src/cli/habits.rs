//! Commands and flags of other programs (zfs, restic, docker, rclone), each with the equivalent
//! command. Suggestions by spelling are for typing errors only, and never name a command that
//! destroys or an internal one.

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

/// Commands with the same answer, and that.
const COMMANDS: &[(&[&str], &str)] = &[
    (&["add"], "`shale grow POOL SIZE` makes a pool larger"),
    (&["attach"], "`shale serve POOL --mount DIR` shows each volume as a file for losetup"),
    (&["backup"], "`shale snapshot POOL NAME@SNAPSHOT` keeps a state, `shale send` copies it elsewhere"),
    (
        &["allow"],
        "a server runs as root; `shale token create POOL --name NAME --role ROLE` gives others access over HTTP",
    ),
    (&["cat"], "`shale export POOL NAME -` writes a volume to stdout, `shale blob cat URL` a blob"),
    (
        &["commit"],
        "`shale snapshot POOL NAME@SNAPSHOT` keeps a state, `shale push POOL NAME URL` makes it a version of a blob",
    ),
    (
        &["convert"],
        "`shale import POOL NAME FILE` and `shale export POOL NAME FILE` read and write images, raw and others",
    ),
    (
        &["copy", "cp"],
        "`shale clone POOL NAME@SNAPSHOT NEW` copies within a pool, `shale export` and `shale send` out of it",
    ),
    (&["delete", "remove", "rm"], "`shale destroy POOL NAME` deletes; with -n it only lists what would be destroyed"),
    (&["du"], "`shale list POOL` shows sizes of volumes, `shale usage POOL SHARE` those of directories and file types"),
    (
        &["expire", "forget"],
        "`shale destroy POOL NAME@A,B` or NAME@A%B removes snapshots, a schedule (`shale set POOL NAME \
         snapshots=...`) its own; `shale blob expire URL` expires versions of a blob",
    ),
    (&["find"], "`shale list POOL -r` lists volumes and snapshots; files are found in the mount of a share"),
    (&["fsck"], "`shale check POOL` checks a pool that is not served, `shale scrub POOL` one in use"),
    (
        &["gc", "prune"],
        "space of destroyed data is freed in the background; `shale clean POOL` frees it now, `shale blob gc URL` \
         does so for a blob",
    ),
    (
        &["images", "ll", "ls"],
        "`shale list POOL` lists volumes, shares and folders, with -r snapshots too; `shale blob ls URL` lists blobs",
    ),
    (
        &["info", "inspect"],
        "`shale status POOL` describes a pool, `shale get POOL NAME` a volume, `shale explain POOL NAME` its data",
    ),
    (&["load"], "`shale import POOL NAME FILE` reads a volume from a file, `shale receive` a stream"),
    (
        &["log", "snapshots"],
        "`shale list POOL -t snapshot` lists snapshots with their times, `shale blob log URL` versions of a blob",
    ),
    (
        &["logs"],
        "a server started with --detach logs to POOL/serve.log, another to its stderr: journalctl -u UNIT under \
         systemd",
    ),
    (&["measure"], "`shale estimate FILE` estimates the space of data; `shale list POOL` shows the space in use"),
    (
        &["mount"],
        "`shale serve POOL --shares DIR` mounts every share, `shale serve POOL --mount DIR` shows each volume as a \
         file",
    ),
    (&["mv"], "`shale rename POOL OLD NEW` renames"),
    (&["ps"], "`shale jobs POOL` lists the long work of a server, `shale iostat POOL` its clients' activity"),
    (
        &["pull"],
        "`shale clone URL POOL NAME` creates a volume from a blob, `shale receive POOL NAME` one from a stream",
    ),
    (&["rebase"], "`shale promote POOL CLONE` makes a clone independent of its origin"),
    (&["repair"], "`shale check POOL --repair` repairs, `shale scrub POOL` verifies a pool in use"),
    (
        &["replicate"],
        "`shale send POOL NAME@SNAPSHOT | shale receive OTHER NAME` copies to another pool, -R with everything below",
    ),
    (
        &["restore"],
        "`shale rollback POOL NAME@SNAPSHOT` rolls back, `shale clone POOL NAME@SNAPSHOT NEW` makes a volume of it",
    ),
    (&["share"], "`shale set POOL SHARE nfs=... smb=... http=... ftp=...` exports a share"),
    (&["start"], "`shale serve POOL` starts a server"),
    (&["stop"], "`shale status POOL` names the server's process: kill -TERM PID stops it in order"),
    (
        &["tag"],
        "`shale hold POOL NAME@SNAPSHOT HOLD` protects a snapshot, `shale bookmark` remembers one, `shale blob tag \
         URL` names a version of a blob",
    ),
    (&["sync"], "`shale status POOL --sync` takes a checkpoint; `shale send -I` copies what changed to another pool"),
    (&["trim"], "discards of clients free space (fstrim on the file system); `shale clean POOL` frees it now"),
    (
        &["umount", "unmount"],
        "`umount DIR` unmounts one share until the next start; `shale status POOL` names the server's process: kill \
         -TERM PID stops it and unmounts everything",
    ),
    (&["unshare"], "`shale set POOL SHARE nfs=off smb=off http=off ftp=off` ends the exports of a share"),
    (
        &["upgrade"],
        "pools need no upgrade: a newer program opens them; `shale status POOL` names the server's process, kill \
         -USR2 PID stops it for the next version, and its mounts wait",
    ),
    (&["volume"], "`shale create POOL NAME --size SIZE` makes a volume, `shale list POOL` lists them"),
    (&["zfs"], "the command is the first word: `shale list POOL`, `shale snapshot POOL NAME@SNAPSHOT`"),
    (&["zpool"], "the command is the first word: `shale init POOL`, `shale status POOL`, `shale scrub POOL`"),
    (&["version"], "`shale --version` prints the version"),
];

/// The same below `shale blob`.
const OF_BLOBS: &[(&[&str], &str)] = &[
    (&["copy"], "`shale blob cp URL URL` copies a version to another blob"),
    (&["delete"], "`shale blob rm URL` removes a blob with all its versions"),
    (&["download"], "`shale blob get URL FILE` writes a version to a file"),
    (&["forget"], "`shale blob expire URL` expires old versions, and `shale blob gc URL` frees their space"),
    (&["history", "snapshots", "versions"], "`shale blob log URL` lists the versions"),
    (&["info"], "`shale blob stat URL` describes a version"),
    (&["list"], "`shale blob ls URL` lists the blobs below a URL"),
    (&["prune"], "`shale blob gc URL` frees the space that no version needs"),
    (&["upload"], "`shale blob put URL FILE` makes a file the next version"),
];

/// Flags of other programs that only some commands have.
const FLAGS: &[(&[&str], &str)] = &[
    (
        &["-n", "--dry-run"],
        "`shale destroy -n` and `shale blob gc --dry-run` list what would be removed, `shale estimate` estimates space",
    ),
    (&["-p"], "every command has --json, with sizes in bytes"),
    (&["-V"], "`shale create POOL NAME --size SIZE` makes a volume; `shale --version` prints the version"),
    (&["-s"], "lists are not sorted by a column: `shale list -H` prints columns for sort(1)"),
    (&["-H"], "`shale list -H` and `shale get -H` print bare columns; every command has --json"),
];

/// Commands that remove data or protection: a typing error must not lead to one.
const DESTROYING: &[&str] = &["destroy", "expire", "gc", "release", "rm", "rollback", "shrink", "unpin"];
/// Commands that users do not run.
const INTERNAL: &[&str] = &["keep-mounts", server::front_ends::HTTP_COMMAND, server::names_reader::READ_NAMES_COMMAND];

/// Returns the answer to a command line with a word of another program.
pub fn answer(error: &Error) -> Option<String> {
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let word = text(error, ContextKind::InvalidSubcommand)?;
            let is_of_blob = text(error, ContextKind::Usage).is_some_and(|usage| usage.contains("shale blob"));
            let (table, title) = if is_of_blob { (OF_BLOBS, "shale blob") } else { (COMMANDS, "shale") };
            let (_, answer) = table.iter().find(|(words, _)| words.contains(&word.as_str()))?;
            Some(format!("there is no '{title} {word}': {answer}"))
        }
        // `receive POOL -R FILE`.
        ErrorKind::ArgumentConflict => {
            let named = text(error, ContextKind::InvalidArg)?;
            (named == "--replicate").then(|| {
                "with -R volumes keep their names in the stream, so specify none; a file is read with -i FILE, or from stdin"
                    .to_owned()
            })
        }
        ErrorKind::UnknownArgument => {
            let flag = text(error, ContextKind::InvalidArg)?;
            if flag.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())) {
                return Some(format!("'{flag}' is negative; sizes, numbers and times cannot be negative"));
            }
            let (_, answer) = FLAGS.iter().find(|(names, _)| names.contains(&flag.as_str()))?;
            Some(format!("this command has no {flag}: {answer}"))
        }
        ErrorKind::MissingRequiredArgument => {
            let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else { return None };
            let usage = text(error, ContextKind::Usage)?;
            let takes_variable = !["shale init", "shale estimate"].iter().any(|line| usage.contains(line));
            (missing.first().is_some_and(|first| first == "<POOL>") && takes_variable).then(|| {
                format!(
                    "missing: {}; POOL is the pool's directory, which may also be set as SHALE_POOL",
                    missing.join(" ")
                )
            })
        }
        _ => None,
    }
}

/// Removes dangerous and internal commands from the suggestions, and the advice to pass the word as
/// a value, which no command can follow.
pub fn without_dangerous_suggestions(mut error: Error) -> Error {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return error;
    }
    error.remove(ContextKind::Suggested);
    let suggested = match error.remove(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::Strings(names)) => names,
        Some(ContextValue::String(name)) => vec![name],
        _ => return error,
    };
    let is_safe = |name: &String| ![DESTROYING, INTERNAL].iter().any(|names| names.contains(&name.as_str()));
    let Some(typed) = text(&error, ContextKind::InvalidSubcommand) else { return error };
    let is_near = |name: &String| units::nearest(&typed, [name.as_str()]).is_some();
    let safe: Vec<_> = suggested.into_iter().filter(is_safe).filter(is_near).collect();
    if !safe.is_empty() {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(safe));
    }
    error
}

fn text(error: &Error, kind: ContextKind) -> Option<String> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text.clone()),
        ContextValue::StyledStr(text) => Some(text.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::command;

    fn refused(line: &str) -> Error {
        command().try_get_matches_from(line.split(' ')).unwrap_err()
    }

    #[test]
    fn each_word_is_answered_with_commands_that_exist() {
        let root = command();
        for (parent, table) in [("shale", COMMANDS), ("shale blob", OF_BLOBS)] {
            for (word, told) in table.iter().flat_map(|(words, told)| words.iter().map(move |word| (word, told))) {
                let said = answer(&refused(&format!("{parent} {word} p"))).unwrap_or_default();
                assert!(said.contains(told) && said.contains(word), "{parent} {word}: {said}");
            }
        }
        for (_, told) in [COMMANDS, OF_BLOBS, FLAGS].concat() {
            for named in told.split('`').skip(1).step_by(2).filter_map(|command| command.strip_prefix("shale ")) {
                let mut words = named.split(' ');
                let first = words.next().unwrap();
                let found = root.find_subcommand(first);
                assert!(found.is_some() || first == "--version", "'shale {named}' does not exist");
                if let Some(blob) = found.filter(|_| first == "blob") {
                    assert!(words.next().is_some_and(|word| blob.find_subcommand(word).is_some()), "'{named}'");
                }
            }
        }
    }

    #[test]
    fn answers_do_not_hide_a_command_that_exists() {
        let root = command();
        let blob = root.find_subcommand("blob").unwrap();
        let is_there = |parent: &clap::Command, word: &str| parent.find_subcommand(word).is_some();
        for (parent, table) in [(&root, COMMANDS), (blob, OF_BLOBS)] {
            assert_eq!(table.iter().flat_map(|(words, _)| *words).find(|word| is_there(parent, word)), None);
        }
        for name in DESTROYING {
            assert!(is_there(&root, name) || is_there(blob, name), "{name}");
        }
    }

    #[test]
    fn spelling_leads_to_nothing_that_destroys() {
        for line in
            ["shale destory", "shale rollbak", "shale shrnk", "shale releas", "shale keep-mount", "shale blob gcc"]
        {
            let said = without_dangerous_suggestions(refused(line)).to_string();
            let (_, tip) = said.split_once("unrecognized subcommand").unwrap();
            let names = [DESTROYING, INTERNAL].concat();
            assert!(!names.iter().any(|name| tip.contains(&format!("'{name}'"))), "{line}: {said}");
            assert!(!said.contains("as a value"), "{line}: {said}");
        }
        for line in ["shale replace", "shale pool", "shale destroyy"] {
            let said = without_dangerous_suggestions(refused(line)).to_string();
            assert!(!said.contains("similar"), "{line}: {said}");
        }
        let said = without_dangerous_suggestions(refused("shale statsu")).to_string();
        assert!(said.contains("'status'"), "{said}");
    }

    #[test]
    fn flags_of_other_programs_are_answered() {
        for line in ["shale send p v@s -n", "shale create p v --dry-run", "shale status p -H"] {
            let said = answer(&refused(line)).unwrap();
            assert!(said.contains("`shale ") && !said.contains("as a value"), "{line}: {said}");
        }
    }
}
