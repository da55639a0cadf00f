//! The commands on a server's settings file.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// See [`super::Command::Config`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale config check /etc/shale/tank.toml
  shale config example >/etc/shale/tank.toml

The file is TOML. Its keys are the options of `shale serve` without their dashes, and 'pool'; a missing key has the default of
the option.")]
pub struct ConfigArgs {
    /// The action
    #[command(subcommand)]
    pub command: ConfigCommand,
}

/// The commands on a settings file.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check a file without serving anything
    #[command(after_long_help = "\
Examples:
  shale config check /etc/shale/tank.toml
  shale config check /etc/shale/tank.toml --json | jq -r '.faults[].message'

Each fault has its line and its key. Exit code 2 if there is one, 3 if there is no such file. The pool is not opened, and no address
is tried: a volume that does not exist, or an address that is taken, is reported when the file is served or reloaded. A private
key that other users can read is a warning.

JSON fields: file, valid, pool (null if invalid), faults: list of {line, key, message}; line and key may be null; warnings: list
  of texts.")]
    Check {
        /// The file
        file: PathBuf,
    },
    /// Print a file with every key, its meaning and its default
    #[command(after_long_help = "\
Examples:
  shale config example >/etc/shale/tank.toml")]
    Example,
}

/// See [`super::Command::Reload`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale reload /srv/pool
  shale reload --config /etc/shale/tank.toml      the server of the pool that this file names
  shale reload /srv/pool --json | jq -r '.needs_restart[]'

The server of the pool reloads the file with which it was started (serve --config). Doors, addresses, shares, exports and limits
are added and removed while clients of the others stay. If the file is invalid, or one of its doors cannot be served, nothing is
changed, and the message is in the log of the server as well.

The keys memory, standby, keep-mounts and wait take effect at the next start: if one of them has changed, the others are
applied, and it is reported. A file that names another pool is refused. A mount that is removed or moved must not be in use.
Clients keep volumes and shares open that are no longer served.

JSON fields: file, changed (keys that are in force now), needs_restart (keys that are in force after the next start), serving (lines
  as `shale serve` prints them).")]
pub struct ReloadArgs {
    /// Directory of the pool
    #[arg(required_unless_present = "config")]
    pub pool: Option<PathBuf>,
    /// The settings file, which names the pool
    #[arg(long, value_name = "FILE", conflicts_with = "pool")]
    pub config: Option<PathBuf>,
}
