//! The certificate of the HTTP front end: files of the user, which are reloaded when they change,
//! or one made by the server in the pool's directory, which is renewed before it expires.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use fe_http::wire::Pem;
use fe_nbd::Listen;
use parking_lot::Mutex;
use rcgen::{CertificateParams, DnType, KeyPair};
use surface::{Error, ErrorKind, Result};

use super::WantedHttp;

const DAY: u64 = 24 * 3600;
/// Lifetime of a certificate made by the server: browsers refuse longer ones.
const LIFE_DAYS: u64 = 397;
/// Age at which it is renewed.
const RENEWED_DAYS: u64 = 330;

/// Source of the certificate.
enum Source {
    /// Files of the user: the certificate, its key.
    Files(PathBuf, PathBuf),
    /// A file made by the server, and the names and addresses that the certificate must have.
    Own(PathBuf, Vec<String>),
}

/// See the module's text.
pub(super) struct Certificates {
    source: Source,
    /// Modification times of the files at the last read.
    read: Mutex<Option<Vec<SystemTime>>>,
}

/// Returns the fingerprint of a certificate, as browsers show it.
pub(super) fn fingerprint(pem: &Pem) -> Result<String> {
    fe_http::fingerprint(pem).map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))
}

impl Certificates {
    pub(super) fn new(http: &WantedHttp, pool: &Path, names: &[String]) -> Self {
        let source = match &http.certificate {
            Some((certificate, key)) => Source::Files(certificate.clone(), key.clone()),
            None => {
                let addresses = http.listen.iter().filter_map(|one| match one {
                    Listen::Tcp(address) if !address.ip().is_unspecified() => Some(address.ip().to_string()),
                    _ => None,
                });
                let usual = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
                let mut all: Vec<_> = names.iter().cloned().chain(usual).chain(addresses).collect();
                all.sort();
                all.dedup();
                Source::Own(pool.join("http.pem"), all)
            }
        };
        Self { source, read: Mutex::default() }
    }

    fn stamps(&self) -> Option<Vec<SystemTime>> {
        let changed = |path: &PathBuf| path.metadata().and_then(|meta| meta.modified()).ok();
        match &self.source {
            Source::Files(certificate, key) => [certificate, key].into_iter().map(changed).collect(),
            Source::Own(path, _) => {
                let at = changed(path)?;
                let age = SystemTime::now().duration_since(at).unwrap_or_default();
                (age < Duration::from_secs(RENEWED_DAYS * DAY)).then(|| vec![at])
            }
        }
    }

    /// Returns the certificate if its files have changed since the last read, or it must be
    /// renewed.
    pub(super) fn changed(&self) -> Option<Result<Pem>> {
        let stamps = self.stamps();
        let is_same = *self.read.lock() == stamps;
        // A missing file is being replaced.
        let is_own = matches!(self.source, Source::Own(..));
        (!is_same && (stamps.is_some() || is_own)).then(|| self.load())
    }

    /// Reads the certificate; makes one if its own file is missing or unsuitable.
    pub(super) fn load(&self) -> Result<Pem> {
        let pem = match &self.source {
            Source::Files(certificate, key) => Pem { certificates: read(certificate)?, key: read(key)? },
            Source::Own(path, names) => {
                let is_young = self.stamps().is_some();
                let known =
                    std::fs::read_to_string(path).ok().filter(|text| is_young && text.starts_with(&head(names)));
                let text = known.map_or_else(|| make(path, names), Ok)?;
                Pem { certificates: text.clone(), key: text }
            }
        };
        *self.read.lock() = self.stamps();
        fingerprint(&pem)?;
        Ok(pem)
    }
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| operations::path_error("cannot read", path, error))
}

/// Returns the first line of the file of a certificate made by the server. Readers of PEM skip it.
fn head(names: &[String]) -> String {
    format!("For {}\n", names.join(", "))
}

fn make(path: &Path, names: &[String]) -> Result<String> {
    let failed = |error: rcgen::Error| {
        let text = format!("a certificate for {} cannot be made: {error}", names.join(", "));
        Error::new(ErrorKind::Invalid, text)
    };
    let key = KeyPair::generate().map_err(failed)?;
    let mut params = CertificateParams::new(names.to_vec()).map_err(failed)?;
    params.distinguished_name.push(DnType::CommonName, "Shale");
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    // Also accepted by a client with a slow clock.
    let begin = host::unix_s().saturating_sub(DAY);
    params.not_before = epoch + Duration::from_secs(begin);
    params.not_after = epoch + Duration::from_secs(begin + LIFE_DAYS * DAY);
    let certificate = params.self_signed(&key).map_err(failed)?;
    let text = head(names) + &certificate.pem() + &key.serialize_pem();
    let unwritten = |error| Error::from_io(format!("cannot write {}", path.display()), error);
    let new = path.with_extension("pem.new");
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(unwritten(error)),
        _ => {}
    }
    let mut file =
        std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new).map_err(unwritten)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(unwritten)?;
    std::fs::rename(&new, path).map_err(unwritten)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use testkit::TempDir;

    use super::*;

    fn own(dir: &TempDir, names: &[&str]) -> Certificates {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let listen = vec![Listen::parse("127.0.0.9:0").unwrap()];
        Certificates::new(&WantedHttp { listen, ..WantedHttp::default() }, dir.path(), &names)
    }

    #[test]
    fn an_own_certificate_stays_and_is_made_again_for_other_names() {
        let dir = TempDir::new("http-own-certificate");
        let first = fingerprint(&own(&dir, &["nas"]).load().unwrap()).unwrap();
        let path = dir.path().join("http.pem");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let certificates = own(&dir, &["nas"]);
        assert_eq!(fingerprint(&certificates.load().unwrap()).unwrap(), first);
        assert!(certificates.changed().is_none());
        let certificates = own(&dir, &["nas", "nas.example"]);
        let other = certificates.load().unwrap();
        assert_ne!(fingerprint(&other).unwrap(), first);
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(RENEWED_DAYS * DAY)).unwrap();
        let renewed = certificates.changed().unwrap().unwrap();
        assert_ne!(fingerprint(&renewed).unwrap(), fingerprint(&other).unwrap());
    }

    #[test]
    fn files_are_read_again_when_they_change_and_must_fit_each_other() {
        let dir = TempDir::new("http-certificate-files");
        let (first, second) = (TempDir::new("http-first"), TempDir::new("http-second"));
        for place in [&first, &second] {
            own(place, &["nas"]).load().unwrap();
        }
        let [certificate, key] = ["cert.pem", "key.pem"].map(|name| dir.path().join(name));
        let pem = |place: &TempDir| std::fs::read_to_string(place.path().join("http.pem")).unwrap();
        std::fs::write(&certificate, pem(&first)).unwrap();
        std::fs::write(&key, pem(&first)).unwrap();
        let http = WantedHttp { certificate: Some((certificate.clone(), key.clone())), ..WantedHttp::default() };
        let certificates = Certificates::new(&http, dir.path(), &[]);
        let before = fingerprint(&certificates.load().unwrap()).unwrap();
        assert!(certificates.changed().is_none());
        std::fs::write(&key, pem(&second)).unwrap();
        let later = SystemTime::now() + Duration::from_secs(5);
        std::fs::File::options().write(true).open(&key).unwrap().set_modified(later).unwrap();
        let error = certificates.changed().unwrap().err().unwrap();
        assert!(error.to_string().contains("the key is not the certificate's"), "{error}");
        std::fs::write(&certificate, pem(&second)).unwrap();
        std::fs::File::options().write(true).open(&certificate).unwrap().set_modified(later).unwrap();
        assert_ne!(fingerprint(&certificates.changed().unwrap().unwrap()).unwrap(), before);
        std::fs::remove_file(&key).unwrap();
        assert!(certificates.changed().is_none(), "it is being replaced");
    }
}
