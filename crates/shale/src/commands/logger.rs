//! Messages of this program's own crates, on stderr: those of the pool, and with a server those of
//! its front ends.

use crate::output::{Output, line_shown};

/// Prefixes of the names of crates whose messages are for the user: of any command, and of a
/// server.
const OF_COMMANDS: [&str; 1] = ["server"];
/// See [`OF_COMMANDS`].
const OF_SERVERS: [&str; 5] = ["server", "fe_", "fuse", "shale", "share"];

/// Sends the messages of these crates to stderr.
pub(super) fn install(output: Output, is_server: bool) {
    let (ours, others): (&[&str], _) = match is_server {
        true => (&OF_SERVERS, log::LevelFilter::Error),
        false => (&OF_COMMANDS, log::LevelFilter::Off),
    };
    if log::set_boxed_logger(Box::new(Logger { output, ours, others })).is_ok() {
        log::set_max_level(log::LevelFilter::Info);
    }
}

struct Logger {
    output: Output,
    ours: &'static [&'static str],
    /// The level of all other crates. Libraries log much that has no meaning for a user, and return
    /// failures as errors.
    others: log::LevelFilter,
}

impl Logger {
    /// Returns the least important level that is shown for a crate.
    fn level_of(&self, target: &str) -> log::LevelFilter {
        let is_ours = self.ours.iter().any(|beginning| target.starts_with(beginning));
        if is_ours { log::LevelFilter::Info } else { self.others }
    }
}

impl log::Log for Logger {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= self.level_of(metadata.target())
    }

    fn log(&self, record: &log::Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        // One line each: a name in it must not look like another message.
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
    fn commands_report_the_pool_and_servers_their_front_ends_too() {
        let output = Output::new(false, true);
        let server = Logger { output, ours: &OF_SERVERS, others: log::LevelFilter::Error };
        let command = Logger { output, ours: &OF_COMMANDS, others: log::LevelFilter::Off };
        for ours in ["share::tree::xattr", "server::shares", "fe_share::served", "fuse::mount::dead"] {
            assert_eq!(server.level_of(ours), log::LevelFilter::Info, "{ours}");
        }
        assert_eq!(server.level_of("redb::db"), log::LevelFilter::Error);
        assert_eq!(command.level_of("server::pool_dir::open"), log::LevelFilter::Info);
        assert_eq!(command.level_of("share::failure"), log::LevelFilter::Off);
    }
}
