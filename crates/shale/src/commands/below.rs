//! Applies one change to everything in a folder's snapshot: destroys the snapshots of one name
//! below it, or rolls back to them.

use surface::{Error, ErrorKind};

use crate::output::Output;
use operations::Outcome;
use operations::{Reply, Request};
use server::session::Session;

/// Returns the full names of the snapshots called `name` of everything in `folder`, and of `folder`
/// itself if it is a share.
///
/// # Errors
/// `NotFound` if nothing there has such a snapshot, and those of the pool.
pub fn snapshots(session: &Session, folder: &str, name: &str) -> Outcome<Vec<String>> {
    let request = Request::Snapshots { object: Some(folder.into()), name: Some(name.to_owned()), below: true };
    let found = match session.call(request)? {
        Reply::Snapshots(found) => found,
        other => return Err(other.unexpected().into()),
    };
    let mut titles: Vec<_> = found.into_iter().map(|snapshot| format!("{}@{name}", snapshot.volume)).collect();
    if titles.is_empty() {
        let message = format!("nothing in '{folder}' has a snapshot '{name}': shale list -r shows them");
        return Err(Error::new(ErrorKind::NotFound, message).into());
    }
    titles.sort();
    Ok(titles)
}

/// Applies `change` to each of `titles`. If one is refused, those changed before are reported: they
/// stay changed.
///
/// # Errors
/// Those of `change`.
pub fn each(titles: &[String], changed: &str, output: &Output, change: impl Fn(&str) -> Outcome) -> Outcome {
    for (at, title) in titles.iter().enumerate() {
        if let Err(failure) = change(title) {
            if at > 0 {
                output.warn(&format!("{changed} before the command stopped: {}", titles[..at].join(", ")));
            }
            return Err(if titles.len() > 1 { failure.context(format!("'{title}'")) } else { failure });
        }
    }
    Ok(())
}
