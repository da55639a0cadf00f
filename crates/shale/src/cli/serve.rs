//! The command that serves a pool.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::MEMORY_DEFAULT;
use operations::names;
use server::pool_dir::{ServeStandby, parse_standby};

/// A setting that is on or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Switch {
    /// Enabled.
    On,
    /// Disabled.
    Off,
}

/// Whether NBD clients speak TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum NbdTls {
    /// It is refused.
    Off,
    /// Those that ask for it.
    On,
    /// All clients over TCP.
    Required,
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
  shale serve /srv/pool --nbd 0.0.0.0:10809 --nbd-certificates /etc/shale/tls    NBD with TLS
  shale serve /srv/pool --mount /mnt/shale                     a file for each volume
  shale serve /srv/pool --vhost-user /run/shale      a disk of a virtual machine for each volume
  shale serve /srv/pool --shares /srv/shares                   a directory for each share
  shale serve /srv/pool --shares /srv/shares --detach          in the background; prints the PID
  shale serve /srv/pool --shares /srv/shares --exports /etc/shale      by NFS, SMB, HTTP, FTP too
  shale serve /srv/pool --http 127.0.0.1:8080                  the page and the API in a browser
  shale serve --config /etc/shale/tank.toml                    all of it from a file
  losetup -f --show --direct-io=on /mnt/shale/vm               a file as a block device
  qemu-img convert disk.qcow2 nbd+unix:///vm?socket=/srv/pool/nbd.sock

Once all front ends answer, the addresses are printed on stdout, followed by a last line 'ready'. SIGTERM, SIGINT or SIGHUP
stops the server in order, and everything is then durable. It does not wait for programs with open files in the mount; file
systems on loop devices on these files are synced, and lose their device. A second SIGINT or SIGTERM, at least a second after
the first, stops it at once: no acknowledged write is lost, as long as the machine keeps running. The server waits five seconds
for the store of an image; its last lines then list the changes that could not be written without it.

SIGUSR2 stops it for another server that follows at once, for instance of a new version: everything is made durable, and the
mounts wait for that server as after a crash (below). NBD connections end.

Each NBD connection uses two threads, a file descriptor, and memory: 1 MiB of its own, half a MiB of buffers, up to 4 MiB in the
kernel, and its share of a quarter of --memory. NBD connections use at most half of the process's file descriptors, regardless
of --connections; a unit raises the limit with LimitNOFILE=. Commands have 64 connections of their own.

With --nbd-certificates NBD speaks TLS 1.2 and 1.3, with the files that QEMU and nbdkit use too: server-cert.pem, server-key.pem,
and ca-cert.pem (with ca-crl.pem, if any), against which clients' certificates are then verified. The files are reloaded when they
change. Clients over TCP must start TLS unless --nbd-tls is 'on'; Unix sockets, which are protected by their file modes, only offer
it. --nbd-client lists the volumes that a client may open, by the common name (CN) in its certificate; snapshots go with their
volume, and existing connections stay. There are no pre-shared keys: clients that support nothing else need stunnel or nbdkit.

The death of the server, kill -9 included, loses no acknowledged write: each is also kept in a file in --standby, which takes
about a quarter of --memory there, until the log has it; the next process that opens the pool replays it to the log. With 'off'
only flushed writes survive, as after a power failure.

Mounts outlive such a death (Linux 6.9 and later): users of their files, including loop devices and the file systems on them,
wait until the pool is served again at the same directory, and then continue. They wait for --wait-for-server at most, and then
get errors: until then df, lsof and other programs that visit every mount of the machine may wait as well. A failed start leaves
the mounts to the next one. Without --standby, with FUSE over io_uring (which the server reports), or with --keep-mounts off,
the mount ends with the server.

A directory that is not empty, or that is a mount point, is refused as a mount point: a mount would hide it. --overlay mounts
nevertheless. The last directory of --shares is created if it is missing.

With --vhost-user each volume has a socket DIR/VOLUME.sock for QEMU, cloud-hypervisor and other monitors with shared memory; a
snapshot has VOLUME@SNAPSHOT.sock, which is read-only. Sockets are created and removed with the volumes. They have mode 0660 and
the group of DIR, which is created if it is missing. A monitor that reconnects after the death of the server, or after SIGUSR2,
continues as if the disk had been slow: its guest waits, and no request is lost.

With --ublk a volume is a block device of this machine, whose path is printed; a snapshot's is read-only. It needs root, Linux
6.5 or later, and its ublk driver (modprobe ublk_drv). The size follows the volume's (Linux 6.16). Programs that use the device
wait while the server is restarted by SIGUSR2, or dead, until it is served again by the same pool: no request is lost. SIGTERM
removes the device; a file system on it is synced first, and loses it. Each request of a queue has a buffer of 256 KiB. Without
--standby the device ends when the server dies.

With --detach the server runs in the background, and the command returns when all front ends answer. It prints the process id,
and the addresses on stderr; messages go to --log, with times. If the start fails, the command prints its messages and returns
its exit code.

With --config the options are the keys of a TOML file, under the same names, and POOL is the key 'pool'; `shale config example`
prints them all. SIGHUP, or `shale reload POOL`, then reloads the file instead of stopping the server.

With --exports shares are exported over the network protocols that their properties nfs, smb, http and ftp enable, through
separate servers over the mounts; `shale exports` shows them. The directory contains the files of these servers; edit the file
'settings' in it to set addresses and ports (on 127.0.0.1 until you change it). The servers survive a crash of this one.

With --http a process without rights serves the page, the REST API (/api/v1) and /metrics. It prints a log-in link, which is
valid once, for 15 minutes; 'shale passwd' sets passwords, 'shale token' makes tokens for programs. On addresses that other
machines can reach it uses TLS, with its own certificate whose fingerprint is printed, or with --http-cert and --http-key, which
are reloaded when they change; this requires a user or a token. On a unix socket root and the pool's owner need no password.

JSON, one document once all front ends answer: {ready, pid, pool, nbd, uris, vhost_user, ublk, mount, mount_over_io_uring,
  shares, exports, http (addresses), http_certificate_sha256, log_in (the link)}.")]
pub struct ServeArgs {
    /// Read the options from this file, and reload it on SIGHUP and 'shale reload'
    #[arg(long, value_name = "FILE", conflicts_with = "ServeSettings")]
    pub config: Option<PathBuf>,
    /// All options that a settings file can have
    #[command(flatten)]
    pub settings: Option<ServeSettings>,
    /// Write a line 'ready' to this file descriptor, and close it, once all front ends answer
    #[arg(long, value_name = "N")]
    pub ready_fd: Option<i32>,
    /// Serve in the background, and return when all front ends answer
    #[arg(long, conflicts_with = "ready_fd")]
    pub detach: bool,
    /// Log file of a server in the background [default: POOL/serve.log]
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
    /// Whether NBD clients speak TLS: none, those that ask for it, or all that come over TCP [default:
    /// required with --nbd-certificates, otherwise off]
    #[arg(long, value_name = "off|on|required", hide_possible_values = true)]
    #[arg(requires_ifs = [("on", "nbd_certificates"), ("required", "nbd_certificates")])]
    pub nbd_tls: Option<NbdTls>,
    /// Certificates for NBD: a directory with server-cert.pem and server-key.pem; with ca-cert.pem
    /// in it, clients need a certificate of that authority
    #[arg(long, value_name = "DIR", requires = "nbd")]
    pub nbd_certificates: Option<PathBuf>,
    /// Let the client with this name (CN) in its certificate open this volume, or everything in this
    /// folder, or '*', all; others open nothing then; may be repeated
    #[arg(long, value_name = "CLIENT=VOLUME", requires = "nbd_certificates", value_parser = nbd_client)]
    pub nbd_client: Vec<NbdClient>,
    /// Let virtual machines attach volumes by vhost-user-blk, at DIR/VOLUME.sock
    #[arg(long, value_name = "DIR")]
    pub vhost_user: Option<PathBuf>,
    /// Make a block device of this machine, /dev/ublkbN, for a volume or a snapshot; may be repeated;
    /// requires root and the kernel's ublk driver
    #[arg(long, value_name = "NAME[,queues=N][,depth=N]", value_parser = ublk)]
    pub ublk: Vec<fe_ublk::Spec>,
    /// Show each volume as a file below this directory (FUSE)
    #[arg(long, value_name = "DIR")]
    pub mount: Option<PathBuf>,
    /// Mount each share in a directory of its name below this one (FUSE); requires root
    #[arg(long, value_name = "DIR")]
    pub shares: Option<PathBuf>,
    /// Export shares over NFS, SMB, HTTP and FTP according to their properties, with configurations
    /// in this directory
    #[arg(long, value_name = "DIR", requires = "shares")]
    pub exports: Option<PathBuf>,
    /// Serve REST, metrics and the page over HTTP; may be repeated. Other machines need TLS
    #[arg(long, value_name = "HOST:PORT|unix:PATH", value_parser = fe_nbd::Listen::parse)]
    pub http: Vec<fe_nbd::Listen>,
    /// Whether HTTP uses TLS [default: on where other machines can connect]
    #[arg(long, value_name = "on|off", requires = "http", hide_possible_values = true)]
    pub http_tls: Option<Switch>,
    /// The certificate (PEM, with its chain) [default: made by the server, in POOL/http.pem]
    #[arg(long, value_name = "FILE", requires = "http_key")]
    pub http_cert: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(long, value_name = "FILE", requires = "http_cert")]
    pub http_key: Option<PathBuf>,
    /// Another name by which browsers address this machine; may be repeated
    #[arg(long, value_name = "NAME", requires = "http")]
    pub http_name: Vec<String>,
    /// Who may read /metrics: every client on this machine, or only those with a token
    #[arg(long, value_name = "open|token", default_value = "open", hide_possible_values = true)]
    pub metrics: Metrics,
    /// Mount over directories that are not empty, and over other mounts, which are then hidden
    #[arg(long)]
    pub overlay: bool,
    /// Maximum number of NBD connections; further clients are refused
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub connections: u16,
    /// Let users other than the server's access the mounted files
    #[arg(long, requires = "mount")]
    pub allow_other: bool,
    /// Serve only this volume or share, or everything in this folder; may be repeated
    #[arg(long, value_name = "NAME", value_parser = names::volume_name)]
    pub volume: Vec<String>,
    /// Memory for buffers and caches
    #[arg(long, value_name = "SIZE", default_value = MEMORY_DEFAULT, value_parser = names::size)]
    pub memory: u64,
    /// Directory for acknowledged writes until the log has them, on a file system in memory, or
    /// 'off'
    #[arg(long, value_name = "DIR|off", default_value = env::STANDBY_DIR, value_parser = parse_standby)]
    pub standby: ServeStandby,
    /// Maximum size of the history of the pool's figures, at most the larger of 16M and 1 % of the
    /// pool; 'off' deletes it
    #[arg(long, value_name = "SIZE|off", default_value = "128M", value_parser = history)]
    pub analytics: History,
    /// Keep the mounts when the server dies: a small process holds them for the next server
    #[arg(long, value_name = "on|off", default_value = "on", hide_possible_values = true)]
    pub keep_mounts: Switch,
    /// Maximum time that mounts wait for the next server after this one dies: a number with s, m, h
    /// or d, or 'forever'
    #[arg(long, value_name = "TIME|forever", default_value = "10m", value_parser = wait_for_server)]
    pub wait_for_server: WaitForServer,
    /// Seconds to wait for another command that has the pool open
    #[arg(long, value_name = "SECONDS", default_value_t = 1)]
    pub wait: u32,
}

/// A client of NBD and a volume or a folder that it may open, or `*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NbdClient(pub String, pub String);

fn nbd_client(text: &str) -> Result<NbdClient, String> {
    match text.rsplit_once('=') {
        Some((client, volume)) if !client.is_empty() => {
            let volume = if volume == "*" { volume.to_owned() } else { names::volume_name(volume)? };
            Ok(NbdClient(client.to_owned(), volume))
        }
        _ => Err("write CLIENT=VOLUME, CLIENT=FOLDER or CLIENT='*'".to_owned()),
    }
}

fn ublk(text: &str) -> Result<fe_ublk::Spec, String> {
    let mut words = text.split(',');
    let mut spec = fe_ublk::Spec::of(names::any_name(words.next().unwrap_or_default())?);
    for word in words {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        let (place, most) = match key {
            "queues" => (&mut spec.queues, fe_ublk::Spec::QUEUES_MAX),
            "depth" => (&mut spec.depth, fe_ublk::Spec::DEPTH_MAX),
            _ => return Err(format!("unknown option '{key}': write NAME, NAME,queues=N or NAME,depth=N")),
        };
        let number = value.parse::<u16>().ok().filter(|number| (1..=most).contains(number));
        *place = number.ok_or_else(|| format!("{key}: use a number from 1 to {most}"))?;
    }
    Ok(spec)
}

/// Bytes of the history; `None`: it is off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct History(pub Option<u64>);

fn history(text: &str) -> Result<History, String> {
    server::samples::parse_budget(text).map(History).map_err(|error| error.to_string())
}

/// Maximum time that mounts wait for a server; `None`: no limit.
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
