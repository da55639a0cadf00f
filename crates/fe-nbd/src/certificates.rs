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
//! Files that cannot be used leave the previous ones in force. So does the removal of
//! `ca-cert.pem` or `ca-crl.pem`: while a file is being replaced, the server must not admit every
//! client, or those whose certificates were revoked.

use std::io::ErrorKind as Io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use surface::{Error, ErrorKind, Result};

use crate::server::Log;

const CERTIFICATE: &str = "server-cert.pem";
const KEY: &str = "server-key.pem";
const AUTHORITIES: &str = "ca-cert.pem";
const REVOKED: &str = "ca-crl.pem";

/// See the module's text.
pub struct Certificates {
    dir: PathBuf,
    log: Option<Log>,
    current: Mutex<Current>,
}

struct Current {
    /// The files as they were looked at last.
    stamps: Stamps,
    loaded: Loaded,
}

struct Loaded {
    config: Arc<ServerConfig>,
    /// Whether clients must have a certificate.
    names_clients: bool,
    /// Whether some of these may have been revoked.
    has_revoked: bool,
}

impl Loaded {
    /// The file that these certificates, which are to be replaced by `next`, have and `next` lacks.
    fn guard_missing_in(&self, next: &Self) -> Option<&'static str> {
        if self.names_clients && !next.names_clients {
            return Some(AUTHORITIES);
        }
        (self.has_revoked && !next.has_revoked).then_some(REVOKED)
    }
}

/// Identity, length and time of change of each file; none: it is not there.
type Stamps = [Option<(u64, u64, u64, i64, i64)>; 4];

impl Certificates {
    /// Loads the files in `dir`. `log` receives a line for each later change of them.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] and [`ErrorKind::Invalid`], which name the file.
    pub fn load(dir: &Path, log: Option<Log>) -> Result<Self> {
        let stamps = stamps(dir);
        let current = Mutex::new(Current { stamps, loaded: load(dir)? });
        Ok(Self { dir: dir.to_owned(), log, current })
    }

    /// Returns `before` if it is of the same directory: it remembers what it must not lose. Loads
    /// the files in `dir` otherwise.
    ///
    /// # Errors
    /// Those of [`load`](Self::load).
    pub fn keep_or_load(before: Option<&Arc<Self>>, dir: &Path, log: Option<Log>) -> Result<Arc<Self>> {
        match before {
            Some(before) if before.dir == dir => Ok(Arc::clone(before)),
            _ => Ok(Arc::new(Self::load(dir, log)?)),
        }
    }

    /// Whether a client without a certificate of the authorities is refused.
    pub fn names_clients(&self) -> bool {
        self.look().loaded.names_clients
    }

    /// The configuration for a new client.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.look().loaded.config)
    }

    /// Looks at the files as they are now.
    fn look(&self) -> MutexGuard<'_, Current> {
        let mut current = self.current.lock();
        // Before they are read: a change in between is seen by the next client.
        let stamps = stamps(&self.dir);
        if stamps != current.stamps {
            // A fault is reported once for each change of the files.
            current.stamps = stamps;
            let line = match load(&self.dir) {
                Ok(loaded) => match current.loaded.guard_missing_in(&loaded) {
                    Some(name) => format!("{name} is gone: NBD goes on with the certificates that it has"),
                    None => {
                        current.loaded = loaded;
                        "NBD has new certificates".to_owned()
                    }
                },
                Err(error) => format!("NBD goes on with the certificates that it has: {error}"),
            };
            if let Some(log) = &self.log {
                log(&format!("nbd: {}: {line}", self.dir.display()));
            }
        }
        current
    }
}

fn stamps(dir: &Path) -> Stamps {
    [CERTIFICATE, KEY, AUTHORITIES, REVOKED].map(|name| {
        let meta = dir.join(name).metadata().ok()?;
        Some((meta.dev(), meta.ino(), meta.len(), meta.ctime(), meta.ctime_nsec()))
    })
}

fn load(dir: &Path) -> Result<Loaded> {
    let invalid = |name: &str, why: &dyn std::fmt::Display| {
        Error::new(ErrorKind::Invalid, format!("{} cannot be used: {why}", dir.join(name).display()))
    };
    let certificates = required(dir, CERTIFICATE)?;
    let chain = all::<CertificateDer<'static>>(&certificates).map_err(|why| invalid(CERTIFICATE, &why))?;
    let key = PrivateKeyDer::from_pem_slice(&required(dir, KEY)?).map_err(|why| invalid(KEY, &why))?;
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|why| invalid(CERTIFICATE, &why))?;
    let authorities = read(dir, AUTHORITIES)?;
    let names_clients = authorities.is_some();
    let mut has_revoked = false;
    let builder = match authorities {
        None => builder.with_no_client_auth(),
        Some(authorities) => {
            let mut roots = RootCertStore::empty();
            for root in all(&authorities).map_err(|why| invalid(AUTHORITIES, &why))? {
                roots.add(root).map_err(|why| invalid(AUTHORITIES, &why))?;
            }
            let revoked = read(dir, REVOKED)?.map(|text| all::<CertificateRevocationListDer<'static>>(&text));
            let revoked = revoked.transpose().map_err(|why| invalid(REVOKED, &why))?;
            has_revoked = revoked.is_some();
            let mut verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .with_crls(revoked.unwrap_or_default());
            if has_revoked {
                // A list covers the certificates of its own authority only.
                verifier = verifier.allow_unknown_revocation_status();
            }
            let name = if has_revoked { REVOKED } else { AUTHORITIES };
            builder.with_client_cert_verifier(verifier.build().map_err(|why| invalid(name, &why))?)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|why| {
        let text = format!("{why} (is {KEY} its key?)");
        invalid(CERTIFICATE, &text)
    })?;
    // A resumed session would skip the verification of the client's certificate.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Loaded { config: Arc::new(config), names_clients, has_revoked })
}

/// All objects of a kind in a file, at least one.
fn all<T: PemObject>(text: &[u8]) -> std::result::Result<Vec<T>, String> {
    let found = T::pem_slice_iter(text).collect::<std::result::Result<Vec<_>, _>>().map_err(|why| why.to_string())?;
    if found.is_empty() { Err("it has none (PEM is expected)".to_owned()) } else { Ok(found) }
}

fn read(dir: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    let path = dir.join(name);
    match std::fs::read(&path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == Io::NotFound => Ok(None),
        Err(error) => Err(Error::from_io(format!("cannot read {}", path.display()), error)),
    }
}

fn required(dir: &Path, name: &str) -> Result<Vec<u8>> {
    read(dir, name)?.ok_or_else(|| {
        let text = format!(
            "{} is missing: NBD with TLS needs {CERTIFICATE} and {KEY} in that directory, and {AUTHORITIES} to demand \
             certificates of clients",
            dir.join(name).display()
        );
        Error::new(ErrorKind::NotFound, text)
    })
}
