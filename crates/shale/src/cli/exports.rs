//! The command on doors of shares.

use std::path::PathBuf;

use clap::Args;

use super::Access;

/// See [`super::Command::Exports`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale exports /srv/pool
  shale exports /srv/pool --check                   what is missing, and what a client is answered
  shale exports /srv/pool --json | jq -r '.exports[].address'

Which protocols give a share out says its properties nfs, smb, http and ftp, which are off unless they are set; they are inherited
from its folder and from the pool. `shale serve --shares DIR --exports DIR` starts the servers (nfs-ganesha, samba, apache2,
vsftpd), and keeps them in step with the properties.

With --check: which package is missing, which port is taken, which user has no password, and what a client on this machine is
answered. Exit code 9 if something is BAD. What is noted may be meant so: that clients of NFS 3 have to name the ports since rpcbind
does not tell them, or that those who may write by a door may not do so in the share's own directory.

JSON fields: dir (of the servers' configurations, or null), exports: list of {share, door, access, address (how it is reached, or
  null), fault (why it is not served so, or null)}, checks: list of {what, good, warns (noted), found}.")]
pub struct ExportsArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Check packages, ports and the answers to clients
    #[arg(long)]
    pub check: bool,
    /// Access to the pool
    #[command(flatten)]
    pub access: Access,
}
