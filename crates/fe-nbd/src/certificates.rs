//! The certificates of a server: a directory with files of the names that GnuTLS, QEMU and nbdkit
//! use, looked at again for each client that starts TLS.
//!
//! | file | |
//! | --- | --- |
//! | `server-cert.pem` | the server's certificate, followed by those between it and its authority |
//! | `server-key.pem` | its key |
//! | `ca-cert.pem` | authorities of clients; with it, a client without a valid certificate is refused |
//! | `ca-crl.pem` | certificates that these have revoked |
//!
//! [`CertificateFiles`] has the rules by which they are reloaded.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use surface::Result;

use crate::certificate_files::{CertificateFiles, FileContent};
use crate::server::Log;

const CERTIFICATE: &str = "server-cert.pem";
const KEY: &str = "server-key.pem";
const AUTHORITIES: &str = "ca-cert.pem";
const REVOKED: &str = "ca-crl.pem";

/// See the module's text.
pub struct Certificates {
    dir: PathBuf,
    files: CertificateFiles<Loaded, 4>,
}

#[derive(Clone)]
struct Loaded {
    config: Arc<ServerConfig>,
    /// Whether clients must have a certificate.
    names_clients: bool,
}

impl Certificates {
    /// Loads the files in `dir`. `log` receives a line for each later change of them.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](surface::ErrorKind::NotFound) and
    /// [`ErrorKind::Invalid`](surface::ErrorKind::Invalid), which name the file.
    pub fn load(dir: &Path, log: Option<Log>) -> Result<Self> {
        let paths = [CERTIFICATE, KEY, AUTHORITIES, REVOKED].map(|name| dir.join(name));
        Ok(Self { dir: dir.to_owned(), files: CertificateFiles::load("NBD", paths, parse, log)? })
    }

    /// Returns the path of the key in a directory of certificates.
    pub fn key_in(dir: &Path) -> PathBuf {
        dir.join(KEY)
    }

    /// Returns those of `known` that are of the same directory: they remember what they must not
    /// lose. Loads the files in `dir` otherwise.
    ///
    /// # Errors
    /// Those of [`load`](Self::load).
    pub fn keep_or_load(known: &[Arc<Self>], dir: &Path, log: Option<Log>) -> Result<Arc<Self>> {
        match known.iter().find(|known| known.dir == dir) {
            Some(known) => Ok(Arc::clone(known)),
            None => Ok(Arc::new(Self::load(dir, log)?)),
        }
    }

    /// Whether a client without a certificate of the authorities is refused.
    pub fn names_clients(&self) -> bool {
        self.files.current().names_clients
    }

    /// The configuration for a new client.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.files.current().config
    }
}

fn parse(files: &[FileContent; 4]) -> Result<Loaded> {
    const NEEDED: &str = ": NBD with TLS needs server-cert.pem and server-key.pem in that directory, and ca-cert.pem to demand \
                          certificates of clients";
    let [certificate, key, authorities, revoked] = files;
    let chain = all::<CertificateDer<'static>>(certificate, certificate.required(NEEDED)?)?;
    let own_key = PrivateKeyDer::from_pem_slice(key.required(NEEDED)?).map_err(|why| key.invalid(why))?;
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|why| certificate.invalid(why))?;
    let builder = match &authorities.bytes {
        None => builder.with_no_client_auth(),
        Some(text) => {
            let mut roots = RootCertStore::empty();
            for root in all(authorities, text)? {
                roots.add(root).map_err(|why| authorities.invalid(why))?;
            }
            let list = revoked.bytes.as_ref().map(|text| all::<CertificateRevocationListDer<'static>>(revoked, text));
            let list = list.transpose()?;
            let of = if list.is_some() { revoked } else { authorities };
            let mut verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            if let Some(list) = list {
                // A list covers the certificates of its own authority only.
                verifier = verifier.with_crls(list).allow_unknown_revocation_status();
            }
            builder.with_client_cert_verifier(verifier.build().map_err(|why| of.invalid(why))?)
        }
    };
    let mut config = builder
        .with_single_cert(chain, own_key)
        .map_err(|why| certificate.invalid(format_args!("{why} (is {KEY} its key?)")))?;
    // A resumed session would skip the verification of the client's certificate.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Loaded { config: Arc::new(config), names_clients: authorities.bytes.is_some() })
}

/// Returns all objects of a kind in a file, at least one.
fn all<T: PemObject>(file: &FileContent, text: &[u8]) -> Result<Vec<T>> {
    let found = T::pem_slice_iter(text).collect::<std::result::Result<Vec<_>, _>>();
    let found = found.map_err(|why| file.invalid(why))?;
    if found.is_empty() { Err(file.invalid("it has none (PEM is expected)")) } else { Ok(found) }
}
