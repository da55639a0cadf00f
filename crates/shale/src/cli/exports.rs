//! The command on doors of shares.

use std::path::PathBuf;

use clap::Args;

use super::Access;

/// See [`super::Command::Exports`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale exports /srv/pool
  shale exports /srv/pool --check                   obstacles, and the answers to a client
  shale exports /srv/pool --json | jq -r '.exports[].address'

The properties nfs, smb, http and ftp of a share select the protocols that export it. They are off by default, and are inherited
from its folder and from the pool. `shale serve --shares DIR --exports DIR` starts the servers (nfs-ganesha, samba, apache2,
vsftpd), and keeps them in step with the properties.

With --check: missing packages, ports in use, users without a password, and the answer to a client on this machine. Exit code 9
if something is BAD. A note may be intended: that clients of NFS 3 must specify the ports because rpcbind does not know them, or
that users who may write through a door may not write in the share's own directory.

JSON fields: dir (of the servers' configurations, or null), exports: list of {share, door, access, address (how it is reached, or
  null), fault (why it is not served so, or null)}, checks: list of {what, good, warns (a note), found}.")]
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
