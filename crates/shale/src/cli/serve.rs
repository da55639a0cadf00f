//! The command that serves a pool.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::MEMORY_DEFAULT;
use operations::names;
use server::pool_dir::{ServeStandby, parse_standby};

/// A thing that is done or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Switch {
    /// It is done.
    On,
    /// It is not.
    Off,
}

/// Who may read the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Metrics {
    /// Every client on this machine.
    Open,
    /// Clients with a token, or a session.
    Token,
}

/// See [`super::Command::Serve`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale serve /srv/pool                                        NBD on unix:/srv/pool/nbd.sock
  shale serve /srv/pool --nbd unix:/run/shale.sock --nbd 127.0.0.1:10809
  shale serve /srv/pool --mount /mnt/shale                     a file for each volume
  shale serve /srv/pool --vhost-user /run/shale      a disk of a virtual machine for each volume
  shale serve /srv/pool --shares /srv/shares                   a directory for each share
  shale serve /srv/pool --shares /srv/shares --detach          in the background; prints the PID
  shale serve /srv/pool --shares /srv/shares --exports /etc/shale      by NFS, SMB, HTTP, FTP too
  shale serve /srv/pool --http 127.0.0.1:8080                  the page and the API in a browser
  shale serve --config /etc/shale/tank.toml                    all of it from a file
  losetup -f --show --direct-io=on /mnt/shale/vm               a file as a block device
  qemu-img convert disk.qcow2 nbd+unix:///vm?socket=/srv/pool/nbd.sock

Once everything answers, the addresses are printed on stdout, the last line being 'ready'. SIGTERM, SIGINT or
SIGHUP stops the server in order, and everything is durable then. It does not wait for those who have files of the mount
open; file systems on loop devices on these are synced, and lose their device. A second SIGINT or SIGTERM, at least a
second after the first, stops it at once: nothing that was acknowledged is lost, as long as the machine lives. The store of an
image that does not answer has five seconds; the last lines then say what could not be written for want of it.

SIGUSR2 stops it for another server that follows at once, of a new version for instance: everything is made durable, and the
mounts wait for that server as after its death (below). Connections by NBD end.

Each NBD connection takes two threads, a file descriptor, and memory: 1 MiB of its own, half a MiB of buffers, up to 4 MiB in the
kernel, and its part of a quarter of --memory. Half of the file descriptors that the process may have are kept from NBD
connections, whatever --connections says; a unit raises their number with LimitNOFILE=. Commands have 64 connections of their own.

The death of the server, kill -9 included, loses no acknowledged write: each is also kept in a file in --standby, which
takes about a quarter of --memory there, until the log has it; whatever opens the pool next brings it to the log. With
'off' only flushed writes survive, as with a loss of power.

Mounts outlive such a death (Linux 6.9 and later): users of its files, loop devices and the file systems on them
among them, wait until the pool is served again at the same directory, and then go on. They wait for --wait-for-server at most,
and then get errors: until then df, lsof and all programs that look at every mount of the machine may wait with them. A start
that fails leaves the mounts to the next one. Without --standby, with FUSE over io_uring (the server says so), or with
--keep-mounts off, the mount ends with the server.

A directory that is not empty, or that is a mount point, is refused as a mount point: a mount would hide it. --overlay mounts
nevertheless. The last directory of --shares is made if it is missing.

With --vhost-user each volume has a socket DIR/VOLUME.sock for QEMU, cloud-hypervisor and other machines with memory that they
share; a snapshot has VOLUME@SNAPSHOT.sock, which is read-only. Sockets come and go with the volumes. They have mode 0660 and
the group of DIR, which is made if it is missing. A monitor that reconnects goes on after the death of the server, or after
SIGUSR2, as if the disk had been slow: its guest waits, and no request is lost.

With --detach the server goes to the background, and the command returns when everything answers. It prints the process number,
and the addresses on stderr; messages go to --log, with times. If the start fails, its messages and its exit code are the command's.

With --config the options are the keys of a TOML file, under the same names, and POOL is the key 'pool'; `shale config example`
prints them all. SIGHUP, or `shale reload POOL`, then reads the file again instead of stopping the server.

With --exports shares are given out by the network protocols that their properties nfs, smb, http and ftp name, through
servers of their own kind over the mounts; `shale exports` shows them. The directory has what these servers need; the file
'settings' in it is yours, with addresses and ports (on 127.0.0.1 until you change it). The servers outlive a death of this one.

With --http a process without rights serves the page, the REST API (/api/v1) and /metrics. A link to log in is printed, which is
good once, for 15 minutes; 'shale passwd' sets passwords, 'shale token' makes tokens for programs. On addresses that other machines
reach it speaks TLS, with a certificate of its own whose fingerprint is printed, or with --http-cert and --http-key, which are read
again when they change; somebody must be able to log in then. On a unix socket root and the pool's owner need no password.

JSON, one document once everything answers: {ready, pid, pool, nbd, uris, vhost_user, mount, mount_over_io_uring,
  shares, exports, http (addresses), http_certificate_sha256, log_in (the link)}.")]
pub struct ServeArgs {
    /// Read the options from this file, and read it again on SIGHUP and 'shale reload'
    #[arg(long, value_name = "FILE", conflicts_with = "ServeSettings")]
    pub config: Option<PathBuf>,
    /// All that a file of settings can say
    #[command(flatten)]
    pub settings: Option<ServeSettings>,
    /// Write a line 'ready' to this file descriptor, and close it, once everything answers
    #[arg(long, value_name = "N")]
    pub ready_fd: Option<i32>,
    /// Serve in the background, and return when everything answers
    #[arg(long, conflicts_with = "ready_fd")]
    pub detach: bool,
    /// Where a server in the background writes its messages [default: POOL/serve.log]
    #[arg(long, value_name = "FILE", requires = "detach")]
    pub log: Option<PathBuf>,
}

/// The settings of a server: options of a command line, or the keys of a file.
#[derive(Debug, Clone, Args)]
pub struct ServeSettings {
    /// Directory of the pool
    #[arg(required = false, required_unless_present = "config")]
    pub pool: PathBuf,
    /// Listen for NBD clients; may be repeated [default without other doors:
    /// unix:POOL/nbd.sock]
    #[arg(long, value_name = "unix:PATH|HOST:PORT", value_parser = fe_nbd::Listen::parse)]
    pub nbd: Vec<fe_nbd::Listen>,
    /// Let virtual machines attach volumes by vhost-user-blk, at DIR/VOLUME.sock
    #[arg(long, value_name = "DIR")]
    pub vhost_user: Option<PathBuf>,
    /// Show each volume as a file below this directory (FUSE)
    #[arg(long, value_name = "DIR")]
    pub mount: Option<PathBuf>,
    /// Mount each share at a directory of its name below this one (FUSE); needs root
    #[arg(long, value_name = "DIR")]
    pub shares: Option<PathBuf>,
    /// Give shares out by NFS, SMB, HTTP and FTP as their properties say, with configurations in
    /// this directory
    #[arg(long, value_name = "DIR", requires = "shares")]
    pub exports: Option<PathBuf>,
    /// REST, metrics and the page over HTTP; may be repeated. Other machines reach it by TLS only
    #[arg(long, value_name = "HOST:PORT|unix:PATH", value_parser = fe_nbd::Listen::parse)]
    pub http: Vec<fe_nbd::Listen>,
    /// Whether HTTP speaks TLS [default: on where other machines reach it]
    #[arg(long, value_name = "on|off", requires = "http", hide_possible_values = true)]
    pub http_tls: Option<Switch>,
    /// The certificate (PEM, with its chain) [default: an own one, in POOL/http.pem]
    #[arg(long, value_name = "FILE", requires = "http_key")]
    pub http_cert: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(long, value_name = "FILE", requires = "http_cert")]
    pub http_key: Option<PathBuf>,
    /// A further name by which browsers call this machine; may be repeated
    #[arg(long, value_name = "NAME", requires = "http")]
    pub http_name: Vec<String>,
    /// Who reads /metrics: every client on this machine, or only those with a token
    #[arg(long, value_name = "open|token", default_value = "open", hide_possible_values = true)]
    pub metrics: Metrics,
    /// Mount over directories that are not empty, and over other mounts, which are hidden then
    #[arg(long)]
    pub overlay: bool,
    /// Most NBD connections at once; further clients are refused
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub connections: u16,
    /// Let other users than the server's reach the mounted files
    #[arg(long, requires = "mount")]
    pub allow_other: bool,
    /// Serve only this volume or share, or everything in this folder; may be repeated
    #[arg(long, value_name = "NAME", value_parser = names::volume_name)]
    pub volume: Vec<String>,
    /// Memory for buffers and caches
    #[arg(long, value_name = "SIZE", default_value = MEMORY_DEFAULT, value_parser = names::size)]
    pub memory: u64,
    /// Where acknowledged writes are kept until the log has them: a directory on a file system in
    /// memory, or 'off'
    #[arg(long, value_name = "DIR|off", default_value = env::STANDBY_DIR, value_parser = parse_standby)]
    pub standby: ServeStandby,
    /// Space for the history of the pool's figures, at most the larger of 16M and 1 % of the pool;
    /// 'off' deletes it
    #[arg(long, value_name = "SIZE|off", default_value = "128M", value_parser = history)]
    pub analytics: History,
    /// Keep the mount when the server dies: a small process holds it for the next server
    #[arg(long, value_name = "on|off", default_value = "on", hide_possible_values = true)]
    pub keep_mounts: Switch,
    /// Longest time that mounts wait for the next server after this one's death: a number with s,
    /// m, h or d, or 'forever'
    #[arg(long, value_name = "TIME|forever", default_value = "10m", value_parser = wait_for_server)]
    pub wait_for_server: WaitForServer,
    /// Wake a lone program that uses a mount on its own CPU, and serve it with one thread: for small
    /// requests. Works as root only, and without FUSE over io_uring
    #[arg(long, value_name = "on|off", default_value = "off", hide_possible_values = true)]
    pub handover: Switch,
    /// Seconds to wait for another command that has the pool open
    #[arg(long, value_name = "SECONDS", default_value_t = 1)]
    pub wait: u32,
}

/// Bytes of the history; none: it is off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct History(pub Option<u64>);

fn history(text: &str) -> Result<History, String> {
    server::samples::parse_budget(text).map(History).map_err(|error| error.to_string())
}

/// The longest time that mounts wait for a server; `None`: without limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitForServer(pub Option<Duration>);

/// Parses [`WaitForServer`].
fn wait_for_server(text: &str) -> Result<WaitForServer, String> {
    if text == "forever" {
        return Ok(WaitForServer(None));
    }
    match super::blob::age(text) {
        Ok(Duration::ZERO) => Err("for mounts that do not wait use --keep-mounts off".to_owned()),
        Ok(wait) => Ok(WaitForServer(Some(wait))),
        Err(error) => Err(format!("{error}, or 'forever'")),
    }
}
