//! Commands on HTTP access to a pool, and on the audit log.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::Access;

/// Role of a user or a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RoleWord {
    /// Figures, lists and properties.
    Read,
    /// The same, and snapshots, jobs and names of files.
    Operate,
    /// Everything.
    Admin,
}

impl From<RoleWord> for operations::Role {
    fn from(word: RoleWord) -> Self {
        match word {
            RoleWord::Read => Self::Read,
            RoleWord::Operate => Self::Operate,
            RoleWord::Admin => Self::Admin,
        }
    }
}

/// See [`super::Command::Passwd`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale passwd /srv/pool anna < password.txt              a new user is an admin
  shale passwd /srv/pool guest --role read < password.txt
  shale passwd /srv/pool guest --remove
  shale passwd /srv/pool --list

Users log in to the page of `shale serve --http`. A password has at least 8 bytes; when it is changed, the user's sessions end.
On a terminal it is read twice without echo; otherwise the first line of stdin is the password.

JSON fields: user; with --list: a list of {name, role (read, operate or admin), password_set_unix_s}.")]
pub struct PasswdArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Name of the user
    #[arg(required_unless_present = "list")]
    pub user: Option<String>,
    /// Role of the user [default: admin for a new user]; for an existing user, only the role is
    /// changed
    #[arg(long, value_name = "ROLE", conflicts_with_all = ["remove", "list"])]
    pub role: Option<RoleWord>,
    /// Remove the user
    #[arg(long, conflicts_with = "list")]
    pub remove: bool,
    /// List the users
    #[arg(long, conflicts_with = "user")]
    pub list: bool,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}

/// See [`super::Command::Token`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale token create /srv/pool --name prometheus --role read
  shale token create /srv/pool --name backup --role operate --expires 90d
  shale token list /srv/pool
  shale token revoke /srv/pool backup

A token lets a program use the API of `shale serve --http`, with the header 'Authorization: Bearer TOKEN'. It is shown once, when it is made: the pool keeps only its hash.")]
pub struct TokenArgs {
    /// Action
    #[command(subcommand)]
    pub command: TokenCommand,
}

/// The commands on tokens.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token, and print it
    Create(TokenCreateArgs),
    /// List the tokens, and when each was last used
    List(TokenListArgs),
    /// Revoke a token: the next request with it is refused
    Revoke(TokenRevokeArgs),
}

/// See [`TokenCommand::Create`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale token create /srv/pool --name prometheus --role read

JSON fields: name, role, created_unix_s, expires_unix_s (or null), last_used_unix_s (null), token.")]
pub struct TokenCreateArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Name of the token
    #[arg(long)]
    pub name: String,
    /// Role of the token
    #[arg(long, value_name = "ROLE", default_value = "read")]
    pub role: RoleWord,
    /// Lifetime of the token, such as 90d [default: unlimited]
    #[arg(long, value_name = "AGE", value_parser = super::blob::age)]
    pub expires: Option<Duration>,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}

/// See [`TokenCommand::List`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale token list /srv/pool

JSON: a list of {name, role, created_unix_s, expires_unix_s, last_used_unix_s}; the last two may be null.")]
pub struct TokenListArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}

/// See [`TokenCommand::Revoke`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale token revoke /srv/pool backup

JSON fields: token.")]
pub struct TokenRevokeArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Name of the token
    pub name: String,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}

/// See [`super::Command::History`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale history /srv/pool
  shale history /srv/pool --count 1000 --json | jq -r '.[] | select(.outcome == \"refused\") | .from'

Shows the changes of the pool by commands and by the API, with user, address and outcome, and refused attempts (at most one line
per second). The log is in POOL/audit: 8 files of 4 MiB, the oldest of which is replaced. It can be read whether the pool is
served or not.

JSON: a list, oldest first, of {unix_s, who, from, operation, about, outcome (done, failed or refused), error (if any),
  refused_before (refused calls before this one that have no line, if any)}.")]
pub struct HistoryArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Number of newest lines to show
    #[arg(long, short = 'n', value_name = "N", default_value_t = 50)]
    pub count: usize,
}
