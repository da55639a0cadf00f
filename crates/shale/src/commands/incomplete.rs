//! Warnings about a volume or a snapshot whose import did not complete.

use super::status::status;
use crate::output::Output;
use server::session::Session;

/// Describes the fault and the remedy.
pub fn words(title: &str) -> String {
    if title.contains('@') {
        return format!(
            "snapshot '{title}' is incomplete: it was taken before an import into the volume had finished; destroy \
             it, or, to use it unchanged, clone it with -o incomplete=no"
        );
    }
    format!(
        "volume '{title}' is incomplete: an import was killed, failed, or has not finished yet; import again with \
         --overwrite, or destroy it, or, to keep it as it is, 'shale set POOL {title} incomplete=no'"
    )
}

/// Warns if the object is incomplete. A failure to find out fails no command.
pub fn warn_of(title: &str, session: &Session, output: &Output) {
    if status(session).is_ok_and(|pool| pool.incomplete.iter().any(|name| name == title)) {
        output.warn(&words(title));
    }
}
