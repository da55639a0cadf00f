//! What a server says while it runs: messages of its own crates, on stderr.

use crate::output::{Output, line_shown};

/// Beginnings of the names of crates whose warnings are for the user.
const OURS: [&str; 3] = ["fe_", "shale", "share"];

/// Sends what the front ends and the shares log to stderr.
pub(super) fn install(output: Output) {
    if log::set_boxed_logger(Box::new(Logger(output))).is_ok() {
        log::set_max_level(log::LevelFilter::Info);
    }
}

/// The least that is told of a crate. Libraries tell much that means nothing to a user; what goes
/// wrong there comes back as an error.
fn level_of(target: &str) -> log::Level {
    let is_ours = OURS.iter().any(|beginning| target.starts_with(beginning));
    if is_ours { log::Level::Info } else { log::Level::Error }
}

struct Logger(Output);

impl log::Log for Logger {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= level_of(metadata.target())
    }

    fn log(&self, record: &log::Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        // One line each: a name in it does not look like another message.
        let text = record.args().to_string();
        match record.level() {
            log::Level::Error | log::Level::Warn => self.0.warn(&line_shown(&text)),
            _ => self.0.note(&format!("shale: {}", line_shown(&text))),
        }
    }

    fn flush(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_of_shares_are_told_and_those_of_libraries_are_not() {
        for ours in ["share::tree::xattr", "shale::shares", "fe_share::served"] {
            assert_eq!(level_of(ours), log::Level::Info, "{ours}");
        }
        assert_eq!(level_of("redb::db"), log::Level::Error);
    }
}
