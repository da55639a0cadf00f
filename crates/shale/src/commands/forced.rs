//! The effect of `--force` on clients that have a volume or a snapshot open, reported before it
//! happens.

use crate::output::Output;
use operations::Outcome;
use operations::{Reply, Request};
use report::{AffectedLine, ObjectChange};
use server::clients::words_of;
use server::session::Session;

const fn words(change: ObjectChange) -> &'static str {
    match change {
        ObjectChange::Destroyed => {
            "its clients lose it: each of their requests fails from now on, and a file system on it loses its \
             unwritten data"
        }
        ObjectChange::Shrunk => {
            "its clients lose the part after its new end: requests there fail, and a file system that extends into \
             it is damaged"
        }
        ObjectChange::RolledBack | ObjectChange::Received => {
            "its content changes under them: a file system on it would continue with its caches, and damage it; \
             unmount it before it writes again"
        }
    }
}

/// Returns the open objects that a request would take from their clients.
///
/// # Errors
/// Those that would refuse the request, and those of the pool.
pub fn preview(session: &Session, request: &Request) -> Outcome<Vec<AffectedLine>> {
    match session.call(Request::Preview { request: Box::new(request.clone()) })? {
        Reply::Affected(affected) => Ok(affected),
        other => Err(other.unexpected().into()),
    }
}

/// Warns of the effect on the clients of all objects that a request takes away. Prints nothing if
/// there are none, or if the request is going to be refused.
///
/// # Errors
/// Those of [`preview`].
pub fn tell(session: &Session, request: &Request, output: &Output) -> Outcome {
    for AffectedLine { name, change, clients, client_names, mounts, .. } in preview(session, request)? {
        let others = others_of(client_names);
        let on_it = if mounts.is_empty() {
            String::new()
        } else {
            format!(", with file systems mounted at {}", mounts.join(", "))
        };
        output.warn(&format!("'{name}' is {}{on_it}; {}", words_of(clients, others.into_iter()), words(change)));
    }
    Ok(())
}

/// Returns names of clients, without this command's own.
pub fn others_of(mut names: Vec<String>) -> Vec<String> {
    let own = format!("command, process {} ", std::process::id());
    names.retain(|name| name != server::session::THIS_COMMAND && !name.starts_with(&own));
    names
}
