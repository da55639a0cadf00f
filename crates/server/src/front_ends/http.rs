//! REST, metrics and the page, over HTTP: the server's end of the HTTP process.
//!
//! Owns the listening sockets, which outlive that process: clients that connect while it restarts
//! wait in the kernel.

mod answers;
mod certificate;
mod figures;
mod process;
mod ticks;
mod totals;

use std::path::PathBuf;
use std::sync::Arc;

use fe_http::wire::{Listener as Kept, Setup};
use fe_nbd::{Listen, Listener};
use serde_json::json;
use surface::{Error, ErrorKind, Result};

use self::answers::Answering;
use self::certificate::Certificates;
use self::process::{Process, Startable};
use super::{Asked, FrontEnd, Kind, Started, Told, warn_log, with_holder};

pub(super) const KIND: Kind = Kind { name: "HTTP", is_same: |a, b| a.http == b.http, check, start };

/// The command of that process; servers start it, users never do.
pub const HTTP_COMMAND: &str = "serve-http";

/// HTTP settings of the command line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WantedHttp {
    /// Addresses; empty: no HTTP.
    pub listen: Vec<Listen>,
    /// Whether to use TLS; `None`: where other machines can connect.
    pub tls: Option<bool>,
    /// Files of a certificate and its key; `None`: one made by the server.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Names of this machine, in addition to the system's.
    pub names: Vec<String>,
    /// Whether clients of this machine read `/metrics` without a token.
    pub open_metrics: bool,
    /// Version of the program.
    pub version: String,
}

impl WantedHttp {
    fn is_tls(&self) -> bool {
        self.tls.unwrap_or_else(|| self.certificate.is_some() || self.listen.iter().any(|one| !one.is_loopback()))
    }
}

struct Http {
    process: Process,
    urls: Vec<String>,
    link: String,
    fingerprint: Option<String>,
}

fn check(asked: &Asked<'_>) -> Result<()> {
    let http = &asked.args.http;
    if http.listen.len() > fe_http::wire::LISTENERS_MAX {
        let text = format!("--http takes at most {} addresses", fe_http::wire::LISTENERS_MAX);
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    let Some(open) = http.listen.iter().find(|address| !address.is_loopback()) else { return Ok(()) };
    let pool = asked.service.facts().pool.display();
    if !http.is_tls() {
        let text = format!(
            "{open} can be reached from other machines, which would send passwords unencrypted: omit --http-tls \
             off, or use an address of this machine (127.0.0.1) behind a proxy"
        );
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    if !asked.service.access().has_anybody() {
        let text = format!(
            "{open} can be reached from other machines, and there is no user yet: set a password first, with: shale passwd \
             {pool} admin"
        );
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    Ok(())
}

fn start(asked: &Asked<'_>) -> Started {
    let http = &asked.args.http;
    if http.listen.is_empty() {
        return Ok(None);
    }
    let service = asked.service;
    if let Some(why) = service.access().unusable() {
        log::warn!("all log-ins over HTTP are refused: {why}");
    }
    let listeners = http.listen.iter().map(Listener::bind_private).collect::<Result<Vec<_>>>();
    let listeners = listeners.map_err(|error| with_holder(error, &http.listen))?;
    let names = names_of(http);
    let load = || Certificates::load(http, &service.facts().pool, &names, Some(warn_log()));
    let certificates = http.is_tls().then(load).transpose()?;
    let pem = certificates.as_ref().map(Certificates::current);
    let fingerprint = pem.as_ref().map(certificate::fingerprint).transpose()?;
    let kinds = http.listen.iter().map(|one| if matches!(one, Listen::Unix(_)) { Kept::Unix } else { Kept::Tcp });
    let kinds: Vec<_> = kinds.collect();
    let has_unix = kinds.contains(&Kept::Unix);
    let answering = Arc::new(Answering::new(Arc::clone(service), has_unix, http.open_metrics));
    let setup =
        Setup { listeners: kinds, tls: pem, names, version: http.version.clone(), boot: answering.boot().to_owned() };
    let scheme = if setup.tls.is_some() { "https" } else { "http" };
    let urls: Vec<_> = listeners.iter().map(|listener| url(&listener.address, scheme)).collect();
    let link = service.access().new_link(service.moment())?;
    let process = Process::start(Startable { listeners, setup, certificates, answering })?;
    Ok(Some(Box::new(Http { process, urls, link, fingerprint })))
}

fn url(address: &Listen, scheme: &str) -> String {
    match address {
        Listen::Unix(_) => address.to_string(),
        Listen::Tcp(address) => format!("{scheme}://{address}/"),
    }
}

/// Returns the names by which clients may address this machine.
fn names_of(http: &WantedHttp) -> Vec<String> {
    let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let short = own.split('.').next().unwrap_or_default().to_owned();
    let mut names: Vec<_> = http.names.iter().cloned().chain([own, short]).filter(|name| !name.is_empty()).collect();
    names.sort();
    names.dedup();
    names
}

impl FrontEnd for Http {
    fn describe(&self, told: &mut Told) {
        told.lines.extend(self.urls.iter().map(|url| format!("http {url}")));
        if let Some(fingerprint) = &self.fingerprint {
            told.lines.push(format!("certificate SHA-256 {fingerprint}"));
        }
        let first = self.urls.iter().find(|url| url.starts_with("http"));
        let link = first.map(|url| format!("{url}#key={}", self.link));
        if let Some(link) = &link {
            told.lines.push(format!("log in once, within 15 minutes: {link}"));
        }
        told.document.insert("http".to_owned(), json!(self.urls));
        told.document.insert("http_certificate_sha256".to_owned(), json!(self.fingerprint));
        told.document.insert("log_in".to_owned(), json!(link));
    }

    /// The front ends that it describes do.
    fn holds_the_server(&self) -> bool {
        true
    }

    fn stop(self: Box<Self>) {
        self.process.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(listen: &[&str], tls: Option<bool>) -> WantedHttp {
        let listen = listen.iter().map(|text| Listen::parse(text).unwrap()).collect();
        WantedHttp { listen, tls, ..WantedHttp::default() }
    }

    #[test]
    fn tls_is_spoken_where_other_machines_reach_it() {
        assert!(!wanted(&["127.0.0.1:0", "unix:/run/x"], None).is_tls());
        assert!(wanted(&["127.0.0.1:0", "0.0.0.0:0"], None).is_tls());
        assert!(wanted(&["127.0.0.1:0"], Some(true)).is_tls());
        assert!(!wanted(&["0.0.0.0:0"], Some(false)).is_tls());
    }
}
