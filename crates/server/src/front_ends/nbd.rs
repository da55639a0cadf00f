//! Volumes over NBD.

use std::path::PathBuf;
use std::sync::Arc;

use fe_nbd::{Certificates, Listen, Permit, Server, ServerOptions, Tls};
use operations::names;
use serde_json::json;
use surface::{Error, ErrorKind, Result};

use super::{Asked, FrontEnd, Kind, Started, Told, Wanted, warn_log, with_holder};
use crate::devices::is_in;

/// File descriptors per NBD connection: the map, commands and the mount need some as well.
const NBD_SHARE: u64 = 2;
/// The same without --connections: leaves enough for commands that stop or inspect the server.
const NBD_SHARE_USUAL: u64 = 8;

pub(super) const KIND: Kind =
    Kind { name: "NBD", is_same: |a, b| of_nbd(a) == of_nbd(b), check: |asked| load_tls(asked, &[]).map(drop), start };

/// Volumes for a client that may open all of them.
const ALL_VOLUMES: &str = "*";

/// TLS over NBD, as the command line asks for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedNbdTls {
    /// Directory of the certificates.
    pub certificates: PathBuf,
    /// Whether clients over TCP must speak it.
    pub required: bool,
    /// Names in clients' certificates, each with a volume or a folder that it may open, or with
    /// `*`; empty: everyone may open all.
    pub clients: Vec<(String, String)>,
}

impl WantedNbdTls {
    /// Loads the certificates, or keeps those among `known` that are of the same directory.
    fn load(&self, known: &[Arc<Certificates>]) -> Result<Arc<Tls>> {
        let certificates = Certificates::keep_or_load(known, &self.certificates, Some(warn_log()))?;
        let knows_clients = self.required && certificates.names_clients();
        if !(self.clients.is_empty() || knows_clients) {
            let text = format!(
                "--nbd-client needs --nbd-tls required, and {}/ca-cert.pem: clients are known by their certificates",
                self.certificates.display()
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let permit = (!self.clients.is_empty()).then(|| permit(self.clients.clone()));
        Ok(Arc::new(Tls { certificates, required: self.required, permit }))
    }
}

/// The rule that lets each client open its volumes with their snapshots, and all in its folders.
fn permit(clients: Vec<(String, String)>) -> Permit {
    Arc::new(move |client, export| {
        let volume = names::volume_of(export);
        let opens = |allowed: &str| allowed == ALL_VOLUMES || allowed == volume || is_in(volume, allowed);
        clients.iter().any(|(name, allowed)| name == client && opens(allowed))
    })
}

/// What is asked of this front end.
fn of_nbd(wanted: &Wanted) -> (&[Listen], u16, Option<&WantedNbdTls>) {
    (&wanted.nbd, wanted.connections, wanted.nbd_tls.as_ref())
}

struct Nbd {
    /// `None` once closed.
    server: Option<Server>,
    /// Maximum number of connections.
    connections_max: usize,
    /// As it was set last.
    tls: Option<Arc<Tls>>,
    /// All certificates that it has had: a reload that is undone, or that returns to a directory,
    /// must not admit clients without a certificate.
    known: Vec<Arc<Certificates>>,
}

fn start(asked: &Asked<'_>) -> Started {
    if asked.args.nbd.is_empty() {
        return Ok(None);
    }
    let tls = load_tls(asked, &[])?;
    let usual = ServerOptions::default();
    let options = ServerOptions {
        connections_max: connections_max(asked.args.connections.into()),
        bytes_in_flight_total: nbd_bytes(asked.args.memory),
        tls: tls.clone(),
        log: Some(Arc::new(move |line: &str| log::info!("{line}"))),
        ..usual
    };
    let connections_max = options.connections_max;
    let listen = &asked.args.nbd;
    let server = Server::start(asked.devices.clone(), listen, options);
    let server = server.map_err(|error| with_holder(error, listen))?;
    warn_of_strangers(asked, tls.as_ref());
    let known = tls.iter().map(|tls| Arc::clone(&tls.certificates)).collect();
    Ok(Some(Box::new(Nbd { server: Some(server), connections_max, tls, known })))
}

fn load_tls(asked: &Asked<'_>, known: &[Arc<Certificates>]) -> Result<Option<Arc<Tls>>> {
    asked.args.nbd_tls.as_ref().map(|wanted| wanted.load(known)).transpose()
}

/// Warns of addresses where encryption is all that there is. Those without it have their warning.
fn warn_of_strangers(asked: &Asked<'_>, tls: Option<&Arc<Tls>>) {
    if tls.is_none_or(|tls| !tls.required || tls.certificates.names_clients()) {
        return;
    }
    for address in asked.args.nbd.iter().filter(|address| !address.is_loopback()) {
        log::warn!(
            "{address} can be reached from other machines, encrypted, but without a password: every program that reaches it can \
             read and write the volumes; with a ca-cert.pem next to its certificate, clients must have one too"
        );
    }
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
        let uri = |address: &Listen| match &self.tls {
            Some(tls) if tls.required && matches!(address, Listen::Tcp(_)) => address.tls_uri(""),
            _ => address.uri(""),
        };
        let uris: Vec<String> = listen.iter().map(uri).collect();
        told.lines.extend(nbd.iter().zip(&uris).map(|(address, uri)| format!("nbd {address}  {uri}")));
        told.document.insert("nbd".to_owned(), json!(nbd));
        told.document.insert("uris".to_owned(), json!(uris));
        told.served.nbd = nbd;
        told.served.connections = self.server.as_ref().map(Server::counter);
        told.served.connections_max = self.connections_max;
    }

    /// Clients stay, except those of removed addresses; TLS changes for new ones.
    fn follow(&mut self, asked: &Asked<'_>) -> Result<bool> {
        let Some(server) = self.server.as_mut().filter(|_| !asked.args.nbd.is_empty()) else { return Ok(false) };
        let tls = load_tls(asked, &self.known)?;
        server.listen(&asked.args.nbd, tls.clone())?;
        warn_of_strangers(asked, tls.as_ref());
        let certificates = tls.iter().map(|tls| &tls.certificates);
        let new = certificates.filter(|new| !self.known.iter().any(|known| Arc::ptr_eq(known, new)));
        self.known.extend(new.cloned().collect::<Vec<_>>());
        self.tls = tls;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_opens_its_volumes_and_what_is_in_its_folders() {
        let rule = |client: &str, volume: &str| (client.to_owned(), volume.to_owned());
        let may = permit(vec![rule("hv1", "vm"), rule("hv1", "web"), rule("admin", ALL_VOLUMES)]);
        for export in ["vm", "vm@daily", "web/db", "web/a/b@s"] {
            assert!(may("hv1", export) && may("admin", export), "{export}");
            assert!(!may("hv2", export) && !may("", export), "{export}");
        }
        for export in ["vm2", "web2/db", "other", "other@vm", "*"] {
            assert!(!may("hv1", export) && may("admin", export), "{export}");
        }
    }
}
