//! Volumes as disks of virtual machines, by vhost-user-blk.

use std::path::Path;
use std::sync::Arc;

use fe_vhost::{Server, ServerOptions};
use serde_json::json;
use surface::{Error, ErrorKind, Result};

use super::{Asked, FrontEnd, Kind, Started, Told};

/// File descriptors per socket: sessions, the map and commands need some as well.
const SOCKETS_SHARE: u64 = 4;
/// Maximum number of sockets, even with more descriptors: each is polled for clients.
const SOCKETS_MAX: usize = 4096;
/// File descriptors per session: those of its memory and its queues are among them.
const SESSION_SHARE: u64 = 200;
/// Maximum number of sessions.
const SESSIONS_MAX: usize = 256;
/// Digits of the pool's id in a serial number, which has 20 bytes in all.
const PREFIX_DIGITS: usize = 8;

pub(super) const KIND: Kind = Kind { name: "vhost-user", is_same: |a, b| a.vhost_user == b.vhost_user, check, start };

struct Vhost {
    /// `None` once closed.
    server: Option<Server>,
    /// Directory of its sockets.
    directory: String,
}

fn check(asked: &Asked<'_>) -> Result<()> {
    let Some(dir) = &asked.args.vhost_user else { return Ok(()) };
    let args = asked.args;
    let hiding = [&args.mount, &args.shares].into_iter().flatten().find(|mount| lies_in(dir, mount));
    hiding.map_or(Ok(()), |mount| {
        let (dir, mount) = (dir.display(), mount.display());
        let text = format!(
            "vhost-user sockets in {dir}: the mount at {mount} would hide them; choose a directory outside of it"
        );
        Err(Error::new(ErrorKind::Invalid, text))
    })
}

/// Returns whether a directory, which may not exist yet, lies in another one.
fn lies_in(dir: &Path, outer: &Path) -> bool {
    let Ok(outer) = outer.canonicalize() else { return false };
    let Ok(dir) = std::path::absolute(dir) else { return false };
    dir.ancestors().find_map(|there| there.canonicalize().ok()).is_some_and(|there| there.starts_with(&outer))
}

fn start(asked: &Asked<'_>) -> Started {
    let Some(dir) = &asked.args.vhost_user else { return Ok(None) };
    let id = asked.service.pool().status().id;
    let options = ServerOptions {
        sockets_max: env::descriptors_share(SOCKETS_SHARE, 16, SOCKETS_MAX),
        sessions_max: env::descriptors_share(SESSION_SHARE, 4, SESSIONS_MAX),
        serial_prefix: format!("{}-", id.chars().take(PREFIX_DIGITS).collect::<String>()),
        log: Some(Arc::new(|line: &str| log::info!("{line}"))),
        ..ServerOptions::default()
    };
    let directory = std::path::absolute(dir).unwrap_or_else(|_| dir.clone()).display().to_string();
    let server = Server::start(asked.devices.clone(), dir, options)?;
    Ok(Some(Box::new(Vhost { server: Some(server), directory })))
}

impl FrontEnd for Vhost {
    fn describe(&self, told: &mut Told) {
        told.lines.push(format!("vhost-user {}/VOLUME.sock", self.directory));
        told.document.insert("vhost_user".to_owned(), json!(self.directory));
    }

    /// Running requests are answered, or left to the next server.
    fn close(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }

    fn stop(mut self: Box<Self>) {
        self.close();
    }
}
