//! TLS: the certificate, which can be replaced while connections are open, and the acceptor.

use std::io;
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_rustls::TlsAcceptor;

use crate::wire::Pem;

/// The certificate for new connections.
#[derive(Debug)]
pub(crate) struct Certificate(RwLock<Arc<CertifiedKey>>);

fn failed(what: &str, error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{what}: {error}"))
}

fn parse(pem: &Pem) -> io::Result<Arc<CertifiedKey>> {
    let chain = CertificateDer::pem_slice_iter(pem.certificates.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| failed("the certificate cannot be read", error))?;
    if chain.is_empty() {
        return Err(failed("the certificate cannot be read", "the file has none"));
    }
    let key = PrivateKeyDer::from_pem_slice(pem.key.as_bytes())
        .map_err(|error| failed("the certificate's key cannot be read", error))?;
    let key =
        ring::sign::any_supported_type(&key).map_err(|error| failed("the certificate's key cannot be used", error))?;
    let certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => Ok(Arc::new(certified)),
        Err(error) => Err(failed("the key is not the certificate's", error)),
    }
}

/// The SHA-256 of the certificate, as browsers show it.
///
/// # Errors
/// When the certificate or its key cannot be used, or they do not belong together.
pub fn fingerprint(pem: &Pem) -> io::Result<String> {
    let certified = parse(pem)?;
    let first = certified.cert.first().map_or(&[][..], |first| first.as_ref());
    let digest = ::ring::digest::digest(&::ring::digest::SHA256, first);
    let pairs: Vec<_> = digest.as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
    Ok(pairs.join(":"))
}

impl Certificate {
    /// From PEM.
    pub(crate) fn new(pem: &Pem) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self(RwLock::new(parse(pem)?))))
    }

    /// Takes its place for new connections.
    pub(crate) fn replace(&self, pem: &Pem) -> io::Result<()> {
        *self.0.write() = parse(pem)?;
        Ok(())
    }

    /// Performs the TLS handshake of a connection.
    pub(crate) fn acceptor(self: Arc<Self>) -> io::Result<TlsAcceptor> {
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| failed("TLS", error))?
            .with_no_client_auth()
            .with_cert_resolver(self);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read()))
    }
}
