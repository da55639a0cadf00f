//! Messages of our own crates, on stderr: those of the pool, and with a server those of its front
//! ends.

use crate::output::{Output, line_shown};

/// Beginnings of the names of crates whose messages are for the user: of any command, and of a
/// server.
const OF_COMMANDS: [&str; 1] = ["server"];
/// See [`OF_COMMANDS`].
const OF_SERVERS: [&str; 4] = ["server", "fe_", "shale", "share"];

/// Sends the messages of our crates to stderr, for a server those of front ends and shares too.
pub(super) fn install(output: Output, is_server: bool) {
    let ours: &[&str] = if is_server { &OF_SERVERS } else { &OF_COMMANDS };
    if log::set_boxed_logger(Box::new(Logger { output, ours })).is_ok() {
        log::set_max_level(log::LevelFilter::Info);
    }
}

/// The least important level that is shown of a crate. Libraries log much that means nothing to a
/// user; a failure there comes back as an error.
fn level_of(ours: &[&str], target: &str) -> log::Level {
    let is_ours = ours.iter().any(|beginning| target.starts_with(beginning));
    if is_ours { log::Level::Info } else { log::Level::Error }
}

struct Logger {
    output: Output,
    ours: &'static [&'static str],
}

impl log::Log for Logger {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= level_of(self.ours, metadata.target())
    }

    fn log(&self, record: &log::Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        // One line each: a name in it does not look like another message.
        let text = record.args().to_string();
        match record.level() {
            log::Level::Error | log::Level::Warn => self.output.warn(&line_shown(&text)),
            _ => self.output.note(&format!("shale: {}", line_shown(&text))),
        }
    }

    fn flush(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_of_shares_are_told_and_those_of_libraries_are_not() {
        for ours in ["share::tree::xattr", "server::shares", "fe_share::served"] {
            assert_eq!(level_of(&OF_SERVERS, ours), log::Level::Info, "{ours}");
        }
        assert_eq!(level_of(&OF_SERVERS, "redb::db"), log::Level::Error);
    }
}
