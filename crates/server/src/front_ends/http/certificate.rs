//! The certificate of the HTTP front end: files of the user, which are reloaded when they change,
//! or one made by the server in the pool's directory, which is renewed before it expires.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use fe_http::wire::Pem;
use fe_nbd::{CertificateFiles, FileContent, Listen, Log};
use rcgen::{CertificateParams, DnType, KeyPair};
use surface::{Error, ErrorKind, Result};

use super::WantedHttp;

const DAY: u64 = 24 * 3600;
/// Lifetime of a certificate made by the server: browsers refuse longer ones.
const LIFE_DAYS: u64 = 397;
/// Age at which it is renewed.
const RENEWED_DAYS: u64 = 330;

/// Returns the fingerprint of a certificate, as browsers show it.
pub(super) fn fingerprint(pem: &Pem) -> Result<String> {
    fe_http::fingerprint(pem).map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))
}

/// See the module's text.
pub(super) struct Certificates {
    own: Option<OwnCertificate>,
    /// The certificate, its key; an own certificate has both in one file.
    files: CertificateFiles<Pem, 2>,
}

impl Certificates {
    /// Loads the certificate. `log` receives a line for each later change of its files.
    ///
    /// # Errors
    /// When it cannot be used, or not be made.
    pub(super) fn load(http: &WantedHttp, pool: &Path, names: &[String], log: Option<Log>) -> Result<Self> {
        let (own, paths) = match &http.certificate {
            Some((certificate, key)) => (None, [certificate.clone(), key.clone()]),
            None => {
                let own = OwnCertificate::new(http, pool, names);
                own.renew()?;
                let path = own.path.clone();
                (Some(own), [path.clone(), path])
            }
        };
        Ok(Self { own, files: CertificateFiles::load("HTTP", paths, pem, log)? })
    }

    /// Returns the certificate.
    pub(super) fn current(&self) -> Pem {
        self.files.current()
    }

    /// Renews a certificate made by the server, if necessary. Returns the certificate if it has
    /// changed since the last call.
    pub(super) fn changed(&self) -> Option<Pem> {
        self.files.changed(self.own.as_ref().map_or(Ok(()), OwnCertificate::renew))
    }
}

fn pem(files: &[FileContent; 2]) -> Result<Pem> {
    let text = |file: &FileContent| {
        let bytes = file.required("")?.to_vec();
        String::from_utf8(bytes).map_err(|_| file.invalid("it is not text (PEM is expected)"))
    };
    let pem = Pem { certificates: text(&files[0])?, key: text(&files[1])? };
    fe_http::fingerprint(&pem).map_err(|error| files[0].invalid(error))?;
    Ok(pem)
}

/// A certificate made by the server.
struct OwnCertificate {
    path: PathBuf,
    /// Names and addresses that it must have.
    names: Vec<String>,
}

impl OwnCertificate {
    fn new(http: &WantedHttp, pool: &Path, names: &[String]) -> Self {
        let addresses = http.listen.iter().filter_map(|one| match one {
            Listen::Tcp(address) if !address.ip().is_unspecified() => Some(address.ip().to_string()),
            _ => None,
        });
        let usual = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
        let mut names: Vec<_> = names.iter().cloned().chain(usual).chain(addresses).collect();
        names.sort();
        names.dedup();
        Self { path: pool.join("http.pem"), names }
    }

    /// Makes the file if it is missing, old, or for other names.
    fn renew(&self) -> Result<()> {
        let age = |at: SystemTime| SystemTime::now().duration_since(at).unwrap_or_default();
        let made = self.path.metadata().and_then(|meta| meta.modified());
        let is_young = made.is_ok_and(|at| age(at) < Duration::from_secs(RENEWED_DAYS * DAY));
        let is_good =
            is_young && std::fs::read_to_string(&self.path).is_ok_and(|text| text.starts_with(&head(&self.names)));
        if is_good { Ok(()) } else { make(&self.path, &self.names) }
    }
}

/// Returns the first line of the file of a certificate made by the server. Readers of PEM skip it.
fn head(names: &[String]) -> String {
    format!("For {}\n", names.join(", "))
}

fn make(path: &Path, names: &[String]) -> Result<()> {
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
    host::replace_file(path, text.as_bytes(), 0o600)
        .map_err(|error| Error::from_io(format!("cannot write {}", path.display()), error))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;

    use parking_lot::Mutex;
    use testkit::TempDir;

    use super::*;

    fn own(dir: &TempDir, names: &[&str]) -> Certificates {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let listen = vec![Listen::parse("127.0.0.9:0").unwrap()];
        Certificates::load(&WantedHttp { listen, ..WantedHttp::default() }, dir.path(), &names, None).unwrap()
    }

    fn of(pem: &Pem) -> String {
        fingerprint(pem).unwrap()
    }

    #[test]
    fn an_own_certificate_stays_and_is_made_again_for_other_names() {
        let dir = TempDir::new("http-own-certificate");
        let first = of(&own(&dir, &["nas"]).current());
        let path = dir.path().join("http.pem");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let certificates = own(&dir, &["nas"]);
        assert_eq!(of(&certificates.current()), first);
        assert!(certificates.changed().is_none());
        let certificates = own(&dir, &["nas", "nas.example"]);
        let other = of(&certificates.current());
        assert_ne!(other, first);
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(RENEWED_DAYS * DAY)).unwrap();
        let renewed = of(&certificates.changed().unwrap());
        assert_ne!(renewed, other);
        std::fs::remove_file(&path).unwrap();
        assert_ne!(of(&certificates.changed().unwrap()), renewed);
    }

    #[test]
    fn files_are_read_again_when_they_change_and_must_fit_each_other() {
        let dir = TempDir::new("http-certificate-files");
        let (first, second) = (TempDir::new("http-first"), TempDir::new("http-second"));
        let pem = |place: &TempDir| own(place, &["nas"]).current().key;
        let (first, second) = (pem(&first), pem(&second));
        let [certificate, key] = ["cert.pem", "key.pem"].map(|name| dir.path().join(name));
        std::fs::write(&certificate, &first).unwrap();
        std::fs::write(&key, &first).unwrap();
        let http = WantedHttp { certificate: Some((certificate.clone(), key.clone())), ..WantedHttp::default() };
        let lines = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&lines);
        let log = Arc::new(move |line: &str| log.lock().push(line.to_owned())) as Log;
        let certificates = Certificates::load(&http, dir.path(), &[], Some(log)).unwrap();
        let before = of(&certificates.current());
        assert!(certificates.changed().is_none());
        // Another file with the time of the old one, as `cp -p` leaves it.
        let replace = |path: &Path, text: &str| {
            let (new, then) = (path.with_extension("new"), path.metadata().unwrap().modified().unwrap());
            std::fs::write(&new, text).unwrap();
            std::fs::File::options().write(true).open(&new).unwrap().set_modified(then).unwrap();
            std::fs::rename(&new, path).unwrap();
        };
        replace(&key, &second);
        assert!((0..2).all(|_| certificates.changed().is_none()));
        replace(&certificate, &second);
        assert_ne!(of(&certificates.changed().unwrap()), before);
        std::fs::remove_file(&key).unwrap();
        assert!((0..2).all(|_| certificates.changed().is_none()), "it is being replaced");
        let lines = lines.lock();
        let expected = ["HTTP keeps its current certificates: ", "HTTP uses new certificates", "key.pem is gone"];
        assert_eq!(lines.len(), expected.len(), "each is reported once: {lines:?}");
        assert!(lines.iter().zip(expected).all(|(line, text)| line.contains(text)), "{lines:?}");
        assert!(lines[0].contains("the key is not the certificate's"), "{lines:?}");
    }
}
