//! Warnings about a volume or a snapshot whose import did not complete.

use super::status::status;
use crate::output::Output;
use report::JobReport;
use server::session::Session;

/// Describes the fault and the remedy; `import` is the job that is filling the object, if any.
pub fn words(title: &str, import: Option<&JobReport>) -> String {
    if let Some(JobReport { id, .. }) = import {
        return format!("'{title}' is being imported by job {id}, and is incomplete until that has ended");
    }
    if title.contains('@') {
        return format!(
            "snapshot '{title}' is incomplete: it was taken before an import into the volume had finished; destroy \
             it, or, to use it unchanged, clone it with -o incomplete=no"
        );
    }
    format!(
        "volume '{title}' is incomplete: an import was killed or failed; import again with --overwrite, or destroy \
         it, or, to keep it as it is, 'shale set POOL {title} incomplete=no'"
    )
}

/// Warns if the object is incomplete. A failure to find out fails no command.
pub fn warn_of(title: &str, session: &Session, output: &Output) {
    let Ok(pool) = status(session) else { return };
    if pool.incomplete.iter().any(|name| name == title) {
        output.warn(&words(title, pool.import_into(title)));
    }
}
