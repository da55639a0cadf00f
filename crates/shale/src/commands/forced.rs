//! What `--force` does to the clients that have a volume or a snapshot open, said before it is
//! done.

use std::path::Path;

use fe_fuse::Stack;

use super::list::volumes;
use super::status::status;
use crate::output::Output;
use operations::Outcome;
use operations::names;
use operations::{Reply, Request};
use report::{SnapshotReport, VolumeReport};
use server::clients::words_of;
use server::devices::is_in;
use server::session::Session;

/// A change that clients do not survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It is destroyed.
    Destroyed,
    /// It becomes smaller.
    Shrunk,
    /// It becomes again what it was in a snapshot.
    TakenBack,
    /// A stream brings what it becomes.
    Received,
}

impl Change {
    fn words(self) -> &'static str {
        match self {
            Self::Destroyed => {
                "it is taken from them: every request of theirs fails from now on, and a file system on it fails with what it \
                 has not written yet"
            }
            Self::Shrunk => {
                "what lies behind its new end is taken from them: their requests there fail, and a file system that \
                 reaches there is damaged"
            }
            Self::TakenBack | Self::Received => {
                "its content changes under them: a file system on it would go on with what it has in its caches, and damage it; \
                 unmount it before it writes again"
            }
        }
    }
}

/// What `--force` is used on.
pub struct Forced<'a> {
    /// The volume or snapshot; to go back, the snapshot that it becomes.
    pub title: &'a str,
    /// The change.
    pub change: Change,
    /// Whether snapshots of it go, too: all, or those that are newer than the one to go back to.
    pub recursive: bool,
}

/// Names the clients of everything that a request takes away, and says what it means for them.
/// Says nothing if there are none, or if the request is going to be refused.
///
/// # Errors
/// Those that refuse the request, and what the pool says.
pub fn tell_before(request: &Request, session: &Session, forced: &Forced<'_>, output: &Output) -> Outcome {
    session.done(Request::Allowed { request: Box::new(request.clone()) })?;
    tell(session, forced, output)
}

/// The same, without a question before.
///
/// # Errors
/// What the pool says.
pub fn tell(session: &Session, forced: &Forced<'_>, output: &Output) -> Outcome {
    for (title, change, clients, names) in affected(session, forced)? {
        let others = others_of(names);
        let mounts = mounts_on(session, &title)?;
        output.warn(&format!("'{title}' is {}{mounts}; {}", words_of(clients, others.into_iter()), change.words()));
    }
    Ok(())
}

/// A volume or snapshot that a change concerns: its title, the change, how many clients have it
/// open, and their names.
type Affected = (String, Change, usize, Vec<String>);

/// Lists the concerned volumes and snapshots that clients have open.
fn affected(session: &Session, forced: &Forced<'_>) -> Outcome<Vec<Affected>> {
    let volume = names::volume_of(forced.title);
    let snapshot = forced.title.split_once('@').map(|(_, name)| name);
    let mut all = Vec::new();
    if forced.title.contains('#') {
        // No client ever has a bookmark open.
        return Ok(all);
    }
    if snapshot.is_none() || forced.change == Change::TakenBack {
        let is_meant = |found: &VolumeReport| found.name == volume || forced.recursive && is_in(&found.name, volume);
        let found = volumes(session)?.into_iter().filter(is_meant);
        all.extend(found.map(|v| (v.name, forced.change, v.clients, v.client_names)));
    }
    let named = snapshot.filter(|_| forced.change == Change::Destroyed);
    if forced.recursive || named.is_some() {
        let snapshots = match session.call(Request::Snapshots { object: Some(volume.into()), name: None, below: false })
        {
            Ok(Reply::Snapshots(snapshots)) => snapshots,
            // A missing volume is named by the request itself.
            Ok(_) | Err(_) => Vec::new(),
        };
        // Oldest first.
        let kept = snapshot.filter(|_| forced.change == Change::TakenBack);
        let newer = kept.map_or(0, |name| snapshots.iter().position(|s| s.name == name).map_or(0, |at| at + 1));
        let is_meant = |s: &SnapshotReport| named.is_none_or(|name| s.name == name);
        let going = snapshots.into_iter().skip(newer).filter(is_meant);
        all.extend(going.map(|s| (format!("{}@{}", s.volume, s.name), Change::Destroyed, s.clients, s.client_names)));
    }
    all.retain(|(_, _, clients, _)| *clients > 0);
    Ok(all)
}

/// The file systems of this machine that are mounted on a volume's or a snapshot's file of the
/// mount.
fn mounts_on(session: &Session, title: &str) -> Outcome<String> {
    let Some(mount) = status(session)?.mount else { return Ok(String::new()) };
    let stack = Stack::above(&Path::new(&mount).join(title));
    let shown: Vec<_> = stack.mounts.iter().map(|path| path.display().to_string()).collect();
    Ok(if shown.is_empty() { String::new() } else { format!(", with file systems mounted at {}", shown.join(", ")) })
}

/// Names of clients, without this command's own.
pub fn others_of(mut names: Vec<String>) -> Vec<String> {
    let own = format!("command, process {} ", std::process::id());
    names.retain(|name| name != server::session::THIS_COMMAND && !name.starts_with(&own));
    names
}
