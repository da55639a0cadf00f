//! Volumes over NBD.

use std::sync::Arc;

use fe_nbd::{Server, ServerOptions};
use serde_json::json;
use surface::Result;

use super::{Asked, FrontEnd, Kind, Started, Told, with_holder};

/// File descriptors per NBD connection: the map, commands and the mount need some as well.
const NBD_SHARE: u64 = 2;
/// The same without --connections: leaves enough for commands that stop or inspect the server.
const NBD_SHARE_USUAL: u64 = 8;

pub(super) const KIND: Kind =
    Kind { name: "NBD", is_same: |a, b| (&a.nbd, a.connections) == (&b.nbd, b.connections), check: |_| Ok(()), start };

struct Nbd {
    /// `None` once closed.
    server: Option<Server>,
    /// Maximum number of connections.
    connections_max: usize,
}

fn start(asked: &Asked<'_>) -> Started {
    if asked.args.nbd.is_empty() {
        return Ok(None);
    }
    let usual = ServerOptions::default();
    let options = ServerOptions {
        connections_max: connections_max(asked.args.connections.into()),
        bytes_in_flight_total: nbd_bytes(asked.args.memory),
        log: Some(Arc::new(move |line: &str| log::info!("{line}"))),
        ..usual
    };
    let connections_max = options.connections_max;
    let listen = &asked.args.nbd;
    let server = Server::start(asked.devices.clone(), listen, options);
    let server = server.map_err(|error| with_holder(error, listen))?;
    Ok(Some(Box::new(Nbd { server: Some(server), connections_max })))
}

/// Returns the memory for requests of NBD clients in flight: a quarter of the budget, but enough
/// for the largest request, and at most for a few deep queues.
fn nbd_bytes(memory_bytes: u64) -> usize {
    (memory_bytes / 4).clamp(64 << 20, 256 << 20) as usize
}

/// Returns the maximum number of NBD connections: the requested number, as far as there are
/// descriptors.
fn connections_max(wanted: usize) -> usize {
    let usual = ServerOptions::default().connections_max;
    if wanted == usual {
        return env::descriptors_share(NBD_SHARE_USUAL, 1, usual);
    }
    let possible = env::descriptors_share(NBD_SHARE, 1, wanted);
    if possible < wanted {
        log::warn!(
            "--connections {wanted} requires {} file descriptors: there are enough for {possible} connections; \
             raise the limit (ulimit -n, LimitNOFILE=)",
            wanted * NBD_SHARE as usize
        );
    }
    possible
}

impl FrontEnd for Nbd {
    fn describe(&self, told: &mut Told) {
        let listen = self.server.as_ref().map_or(&[][..], Server::local_addresses);
        let nbd: Vec<String> = listen.iter().map(ToString::to_string).collect();
        let uris: Vec<String> = listen.iter().map(|address| address.uri("")).collect();
        told.lines.extend(nbd.iter().zip(&uris).map(|(address, uri)| format!("nbd {address}  {uri}")));
        told.document.insert("nbd".to_owned(), json!(nbd));
        told.document.insert("uris".to_owned(), json!(uris));
        told.served.nbd = nbd;
        told.served.connections = self.server.as_ref().map(Server::counter);
        told.served.connections_max = self.connections_max;
    }

    /// Clients stay, except those of removed addresses.
    fn follow(&mut self, asked: &Asked<'_>) -> Result<bool> {
        let Some(server) = self.server.as_mut().filter(|_| !asked.args.nbd.is_empty()) else { return Ok(false) };
        server.listen(&asked.args.nbd)?;
        self.connections_max = connections_max(asked.args.connections.into());
        server.set_connections_max(self.connections_max);
        Ok(true)
    }

    /// Answers running requests, and closes connections.
    fn close(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }

    fn stop(mut self: Box<Self>) {
        self.close();
    }
}
