//! TLS: who must speak it, who is let in, and which exports a certificate opens.

use std::path::Path;
use std::sync::Arc;

use fe_nbd::wire::{command, option, option_reply};
use fe_nbd::{Certificates, Listen, ServerOptions, Tls};
use rcgen::{BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose};
use rcgen::{IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use testkit::{Memory, TempDir, noise};

use crate::client::{Answer, Client, DONE, Lines, Setup, info, meta, string};

pub const SIZE: u64 = 64 << 20;

/// An authority that issues certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
}

/// A certificate with its key.
pub struct Issued {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = named(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    fn issue(&self, params: CertificateParams) -> Issued {
        let key = KeyPair::generate().unwrap();
        Issued { certificate: params.signed_by(&key, &self.issuer).unwrap(), key }
    }

    pub fn server(&self) -> Issued {
        self.issue(CertificateParams::new(["localhost", "127.0.0.1"].map(str::to_owned)).unwrap())
    }

    pub fn client(&self, name: &str) -> Issued {
        self.issue(client_params(name))
    }

    /// Writes a server's directory.
    pub fn write(&self, dir: &Path, verifies_clients: bool) {
        let server = self.server();
        std::fs::write(dir.join("server-cert.pem"), server.certificate.pem()).unwrap();
        std::fs::write(dir.join("server-key.pem"), server.key.serialize_pem()).unwrap();
        if verifies_clients {
            std::fs::write(dir.join("ca-cert.pem"), self.certificate.pem()).unwrap();
        }
    }

    /// Writes a client's directory.
    pub fn write_client(&self, dir: &Path, own: &Issued) {
        std::fs::write(dir.join("ca-cert.pem"), self.certificate.pem()).unwrap();
        std::fs::write(dir.join("client-cert.pem"), own.certificate.pem()).unwrap();
        std::fs::write(dir.join("client-key.pem"), own.key.serialize_pem()).unwrap();
    }

    /// The settings of a client that trusts this authority.
    pub fn config(&self, own: Option<&Issued>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.der().clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
        Arc::new(match own {
            None => builder.with_no_client_auth(),
            Some(own) => {
                let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(own.key.serialize_der()));
                let chain: Vec<CertificateDer<'static>> = vec![own.certificate.der().clone()];
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        })
    }
}

fn named(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn client_params(name: &str) -> CertificateParams {
    let mut params = named(name);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params
}

/// A server with TLS.
pub struct Secured {
    pub setup: Setup,
    pub authority: Authority,
    pub dir: TempDir,
}

pub struct Wanted {
    pub required: bool,
    pub verifies_clients: bool,
    pub permit: Option<fe_nbd::Permit>,
    pub options: ServerOptions,
}

impl Default for Wanted {
    fn default() -> Self {
        Self { required: true, verifies_clients: false, permit: None, options: ServerOptions::default() }
    }
}

impl Secured {
    pub fn new(wanted: Wanted) -> Self {
        let (dir, authority) = (TempDir::new("nbd-tls"), Authority::new("an authority"));
        authority.write(dir.path(), wanted.verifies_clients);
        let lines = Arc::new(Lines::default());
        let certificates = Arc::new(Certificates::load(dir.path(), Some(lines.log())).unwrap());
        let tls = Tls { certificates, required: wanted.required, permit: wanted.permit };
        let devices = [Memory::new(SIZE), Memory::new(SIZE)];
        let options = ServerOptions { tls: Some(Arc::new(tls)), ..wanted.options };
        let setup = Setup::logging(&[("disk", &devices[0]), ("other", &devices[1])], options, lines);
        Self { setup, authority, dir }
    }

    /// Listens on these addresses as well, with new settings.
    fn listen(&mut self, more: &[Listen], tls: Option<Arc<Tls>>) -> surface::Result<()> {
        let usual = [Listen::Unix(self.setup.socket.clone()), Listen::parse(":0").unwrap()];
        self.setup.server.as_mut().unwrap().listen(&[&usual, more].concat(), tls)
    }

    fn tls(&self, required: bool) -> Option<Arc<Tls>> {
        let certificates = Arc::new(Certificates::load(self.dir.path(), None).unwrap());
        Some(Arc::new(Tls { certificates, required, permit: None }))
    }

    /// A connection over TCP after the greeting.
    pub fn options(&self) -> Client {
        let mut client = self.setup.raw_tcp();
        client.greet(3);
        client
    }

    /// A connection that has started TLS with these settings.
    pub fn try_encrypted(&self, config: Arc<ClientConfig>) -> std::io::Result<Client> {
        let mut client = self.options();
        assert_eq!(client.option(option::STARTTLS, &[]), [(option_reply::ACK, vec![])]);
        client.encrypt(keys(config))
    }

    pub fn encrypted(&self, own: Option<&Issued>) -> Client {
        self.try_encrypted(self.authority.config(own)).unwrap()
    }

    /// Whether the server lets a client with these settings see its exports.
    pub fn lets_in(&self, config: Arc<ClientConfig>) -> bool {
        let Ok(mut client) = self.try_encrypted(config) else { return false };
        // With TLS 1.3 a client may still send when the server has refused its certificate.
        client.try_option(option::LIST).is_ok()
    }
}

pub fn keys(config: Arc<ClientConfig>) -> ClientConnection {
    ClientConnection::new(config, "localhost".try_into().unwrap()).unwrap()
}

#[test]
fn a_client_with_tls_reads_and_writes_what_it_likes() {
    let secured = Secured::new(Wanted::default());
    let mut client = secured.encrypted(None);
    client.negotiate_structured();
    client.option(option::SET_META_CONTEXT, &meta("disk", &["base:allocation"]));
    assert_eq!(client.go("disk").0, SIZE);
    // Small, of several records, received in place without TLS, and the largest there is.
    let mut at = 0;
    for length in [1, 4096, 16 << 10, 40_001, 1 << 20, (32 << 20) - 7] {
        let data = noise(length as u64, length);
        assert_eq!(client.write(at, &data), DONE);
        assert_eq!(client.read(at, length as u32), Answer::Ok(data));
        at += length as u64;
    }
    assert_eq!(client.flush(), DONE);
    // Many at once, in one record and over several.
    let data = noise(99, 100_000);
    assert_eq!(client.write(0, &data), DONE);
    let mut wire = Vec::new();
    let mut lengths = std::collections::HashMap::new();
    for index in 0..400u64 {
        let (offset, length) = (index * 200, 37 + 40 * index as u32 % 9000);
        let (bytes, cookie) = client.encode(command::READ, 0, offset, length, &[]);
        wire.extend(bytes);
        lengths.insert(cookie, (offset, length));
    }
    client.send(&wire);
    for _ in 0..400 {
        let (cookie, answer) = client.answer(&lengths);
        let (offset, length) = lengths[&cookie];
        assert_eq!(answer, Answer::Ok(data[offset as usize..][..length as usize].to_vec()));
    }
    client.request(command::DISC, 0, 0, 0, &[]);
    client.expect_goodbye();
}

/// Replies that the client does not take go through the writer thread, in pieces.
#[test]
fn replies_wait_for_a_client_with_tls_and_stay_in_order() {
    let secured = Secured::new(Wanted::default());
    let mut client = secured.encrypted(None);
    client.go("disk");
    let data = noise(3, 4 << 20);
    assert_eq!(client.write(0, &data), DONE);
    let mut lengths = std::collections::HashMap::new();
    for index in 0..24u64 {
        let (offset, length) = (index * 4096, 2 << 20);
        lengths.insert(client.request(command::READ, 0, offset, length, &[]), (offset, length));
    }
    // More than the sockets hold is on its way before the first reply is read.
    for _ in 0..24 {
        let (cookie, answer) = client.answer(&lengths);
        let (offset, length) = lengths[&cookie];
        assert!(answer == Answer::Ok(data[offset as usize..][..length as usize].to_vec()), "{offset}");
    }
}

#[test]
fn plain_clients_get_nothing_where_tls_is_required() {
    let secured = Secured::new(Wanted::default());
    let mut client = secured.options();
    let export = info(b"disk", &[]);
    for (option, data) in [
        (option::LIST, vec![]),
        (option::LIST, b"wrong".to_vec()),
        (option::INFO, export.clone()),
        (option::GO, export),
        (option::STRUCTURED_REPLY, vec![]),
        (option::LIST_META_CONTEXT, meta("disk", &[])),
        (option::SET_META_CONTEXT, meta("disk", &["base:allocation"])),
        (4711, vec![]),
        (option::INFO, vec![0; 40 << 10]),
    ] {
        client.refused(option, &data, option_reply::ERR_TLS_REQD);
    }
    // The connection is good for TLS after all of that.
    client.refused(option::STARTTLS, b"x", option_reply::ERR_INVALID);
    assert_eq!(client.option(option::STARTTLS, &[]), [(option_reply::ACK, vec![])]);
    let mut client = client.encrypt(keys(secured.authority.config(None))).unwrap();
    client.refused(option::STARTTLS, &[], option_reply::ERR_INVALID);
    assert_eq!(client.go("disk").0, SIZE);

    let mut client = secured.options();
    assert_eq!(client.option(option::ABORT, &[]), [(option_reply::ACK, vec![])]);
    client.expect_close();
    for flags in [3, 0] {
        let mut client = secured.setup.raw_tcp();
        client.greet(flags);
        client.send_option(option::EXPORT_NAME, b"disk");
        client.expect_close();
    }
    secured.setup.lines.wait_for_many("EXPORT_NAME without TLS", 2);
    // A Unix socket has modes.
    assert_eq!(secured.setup.simple("disk").read(0, 3), Answer::Ok(vec![0; 3]));
}

#[test]
fn clients_choose_where_tls_is_offered_and_get_none_where_it_is_not() {
    let mut secured = Secured::new(Wanted { required: false, ..Wanted::default() });
    let mut plain = secured.options();
    assert_eq!(plain.go("disk").0, SIZE);
    let mut client = secured.encrypted(None);
    assert_eq!(client.go("disk").0, SIZE);
    // New connections go by new settings, and others stay.
    secured.listen(&[], None).unwrap();
    let text = secured.options().refused(option::STARTTLS, &[], option_reply::ERR_POLICY);
    assert!(text.contains("TLS"), "{text}");
    assert_eq!(client.read(0, 3), Answer::Ok(vec![0; 3]));
    let setup = Setup::new(&[("disk", &Memory::new(SIZE))]);
    let mut client = setup.options();
    client.refused(option::STARTTLS, &[], option_reply::ERR_POLICY);
    assert_eq!(client.go("disk").0, SIZE);
}

/// Addresses and settings change together, or not at all.
#[test]
fn new_addresses_come_with_the_settings_that_they_were_added_with() {
    let mut secured = Secured::new(Wanted { required: false, ..Wanted::default() });
    assert_eq!(secured.options().go("disk").0, SIZE);
    let precious = secured.dir.join("server-key.pem");
    let tls = secured.tls(true);
    secured.listen(&[Listen::Unix(precious.clone())], tls.clone()).unwrap_err();
    assert_eq!(secured.options().go("disk").0, SIZE);
    secured.listen(&[], tls).unwrap();
    let export = info(b"disk", &[]);
    secured.options().refused(option::GO, &export, option_reply::ERR_TLS_REQD);
    secured.listen(&[Listen::Unix(precious)], None).unwrap_err();
    secured.options().refused(option::GO, &export, option_reply::ERR_TLS_REQD);
    assert_eq!(secured.encrypted(None).go("disk").0, SIZE);
}

#[test]
fn only_certificates_of_the_authority_that_are_in_force_let_a_client_in() {
    let secured = Secured::new(Wanted { verifies_clients: true, ..Wanted::default() });
    let (authority, stranger) = (&secured.authority, Authority::new("another authority"));
    let good = authority.client("hv1");
    assert!(secured.lets_in(authority.config(Some(&good))));
    assert!(!secured.lets_in(authority.config(None)), "without a certificate");
    assert!(!secured.lets_in(authority.config(Some(&stranger.client("hv1")))), "of another authority");
    let mut expired = client_params("hv1");
    (expired.not_before, expired.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
    assert!(!secured.lets_in(authority.config(Some(&authority.issue(expired)))), "one that has expired");
    let mut early = client_params("hv1");
    early.not_before = date_time_ymd(4000, 1, 1);
    assert!(!secured.lets_in(authority.config(Some(&authority.issue(early)))), "one that is not valid yet");
    let mut of_server = named("hv1");
    of_server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    assert!(!secured.lets_in(authority.config(Some(&authority.issue(of_server)))), "one for servers only");
    // And a client does not believe a server of another authority.
    assert!(secured.try_encrypted(stranger.config(Some(&good))).is_err());
    secured.setup.lines.wait_for_many("TLS failed: ", 6);
    assert!(secured.lets_in(authority.config(Some(&good))));
}

#[test]
fn a_revoked_certificate_lets_nobody_in() {
    let secured = Secured::new(Wanted { verifies_clients: true, ..Wanted::default() });
    let mut params = client_params("hv1");
    params.serial_number = Some(SerialNumber::from(4711));
    let (good, bad) = (secured.authority.client("hv2"), secured.authority.issue(params));
    let configs = [&good, &bad].map(|own| secured.authority.config(Some(own)));
    assert_eq!(configs.clone().map(|config| secured.lets_in(config)), [true, true]);
    let revoked = RevokedCertParams {
        serial_number: SerialNumber::from(4711),
        revocation_time: date_time_ymd(2024, 1, 1),
        reason_code: None,
        invalidity_date: None,
    };
    let list = CertificateRevocationListParams {
        this_update: date_time_ymd(2024, 1, 1),
        next_update: date_time_ymd(4000, 1, 1),
        crl_number: SerialNumber::from(1),
        issuing_distribution_point: None,
        revoked_certs: vec![revoked],
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let list = list.signed_by(&secured.authority.issuer).unwrap();
    std::fs::write(secured.dir.join("ca-crl.pem"), list.pem().unwrap()).unwrap();
    assert_eq!(configs.clone().map(|config| secured.lets_in(config)), [true, false]);
    // It is being replaced.
    std::fs::remove_file(secured.dir.join("ca-crl.pem")).unwrap();
    assert_eq!(configs.clone().map(|config| secured.lets_in(config)), [true, false]);
    secured.setup.lines.wait_for("ca-crl.pem is gone");
    std::fs::write(secured.dir.join("ca-crl.pem"), list.pem().unwrap()).unwrap();
    assert_eq!(configs.map(|config| secured.lets_in(config)), [true, false]);
    secured.setup.lines.wait_for_many("NBD uses new certificates", 2);
}

#[test]
fn a_certificate_opens_its_exports_and_knows_of_no_others() {
    let permit = Arc::new(|client: &str, export: &str| client == "admin" || client == "hv1" && export == "disk");
    let wanted = Wanted { verifies_clients: true, permit: Some(permit), ..Wanted::default() };
    let secured = Secured::new(wanted);
    let names = |client: &mut Client| {
        let replies = client.option(option::LIST, &[]);
        replies.into_iter().filter(|reply| reply.0 == option_reply::SERVER).map(|reply| reply.1).collect::<Vec<_>>()
    };
    let mut client = secured.encrypted(Some(&secured.authority.client("hv1")));
    assert_eq!(names(&mut client), [string(b"disk")]);
    client.negotiate_structured();
    let absent = client.refused(option::GO, &info(b"absent", &[]), option_reply::ERR_UNKNOWN);
    let hidden = client.refused(option::GO, &info(b"other", &[]), option_reply::ERR_UNKNOWN);
    assert_eq!(absent.replace("absent", "other"), hidden, "what a client may not open is not there");
    client.refused(option::INFO, &info(b"other", &[]), option_reply::ERR_UNKNOWN);
    client.refused(option::SET_META_CONTEXT, &meta("other", &["base:allocation"]), option_reply::ERR_UNKNOWN);
    // The only one for this client.
    assert_eq!(client.go("").0, SIZE);
    let open = secured.setup.clients.names();
    assert!(open.len() == 1 && open[0].ends_with("(hv1)"), "{open:?}");

    let mut client = secured.encrypted(Some(&secured.authority.client("admin")));
    assert_eq!(names(&mut client).len(), 2);
    client.go("other");
    let mut unnamed = client_params("admin");
    unnamed.distinguished_name = rcgen::DistinguishedName::new();
    unnamed.distinguished_name.push(DnType::OrganizationName, "admin");
    for params in [client_params("hv2"), client_params("admin "), unnamed] {
        let mut client = secured.encrypted(Some(&secured.authority.issue(params)));
        assert!(names(&mut client).is_empty());
        client.refused(option::GO, &info(b"disk", &[]), option_reply::ERR_UNKNOWN);
        client.send_option(option::EXPORT_NAME, b"disk");
        client.expect_goodbye();
    }
}

#[test]
fn certificates_are_read_again_when_they_change_and_those_that_cannot_be_used_change_nothing() {
    let secured = Secured::new(Wanted { verifies_clients: true, ..Wanted::default() });
    let own = secured.authority.client("hv1");
    let (old, next) = (secured.authority.config(Some(&own)), Authority::new("the next authority"));
    let new = next.config(Some(&next.client("hv1")));
    let is_old = |old: bool| {
        assert_eq!(secured.lets_in(secured.authority.config(Some(&own))), old);
        assert_eq!(secured.lets_in(Arc::clone(&new)), !old);
    };
    let mut open = secured.try_encrypted(old).unwrap();
    open.go("disk");
    is_old(true);
    // Its key is still to come.
    let server = next.server();
    std::fs::write(secured.dir.join("server-cert.pem"), server.certificate.pem()).unwrap();
    is_old(true);
    secured.setup.lines.wait_for("NBD keeps its current certificates");
    std::fs::write(secured.dir.join("server-key.pem"), server.key.serialize_pem()).unwrap();
    std::fs::remove_file(secured.dir.join("ca-cert.pem")).unwrap();
    is_old(true);
    secured.setup.lines.wait_for("ca-cert.pem is gone");
    std::fs::write(secured.dir.join("ca-cert.pem"), next.certificate.pem()).unwrap();
    is_old(false);
    secured.setup.lines.wait_for("NBD uses new certificates");
    assert_eq!(open.read(0, 3), Answer::Ok(vec![0; 3]), "a connection that was there");
}

/// A reload of options while `ca-cert.pem` is being replaced, and one that goes to other
/// certificates and back.
#[test]
fn settings_that_change_do_not_forget_that_clients_need_certificates() {
    let (dir, other) = (TempDir::new("nbd-tls-reload"), TempDir::new("nbd-tls-other"));
    let authority = Authority::new("an authority");
    authority.write(dir.path(), false);
    let load =
        |dir: &TempDir, known: &[Arc<Certificates>]| Certificates::keep_or_load(known, dir.path(), None).unwrap();
    let first = load(&dir, &[]);
    assert!(!first.names_clients());
    std::fs::write(dir.join("ca-cert.pem"), authority.certificate.pem()).unwrap();
    let known = [first];
    assert!(load(&dir, &known).names_clients(), "no client has started TLS since");
    std::fs::remove_file(dir.join("ca-cert.pem")).unwrap();
    assert!(load(&dir, &known).names_clients());
    // What is asked for explicitly.
    authority.write(other.path(), false);
    let open = load(&other, &known);
    assert!(!open.names_clients());
    let [first] = known;
    assert!(load(&dir, &[first, open]).names_clients(), "back at the first directory");
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let (dir, authority) = (TempDir::new("nbd-tls-files"), Authority::new("an authority"));
    let refused = |name: &str| {
        let error = Certificates::load(dir.path(), None).err().unwrap();
        assert!(error.to_string().contains(dir.join(name).to_str().unwrap()), "{error}");
    };
    refused("server-cert.pem");
    authority.write(dir.path(), true);
    assert!(Certificates::load(dir.path(), None).unwrap().names_clients());
    for name in ["server-cert.pem", "server-key.pem", "ca-cert.pem"] {
        let right = std::fs::read(dir.join(name)).unwrap();
        for wrong in [b"".as_slice(), b"no PEM", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            std::fs::write(dir.join(name), wrong).unwrap();
            refused(name);
        }
        std::fs::write(dir.join(name), right).unwrap();
    }
    std::fs::write(dir.join("ca-crl.pem"), "").unwrap();
    refused("ca-crl.pem");
    std::fs::remove_file(dir.join("ca-crl.pem")).unwrap();
    std::fs::write(dir.join("server-key.pem"), KeyPair::generate().unwrap().serialize_pem()).unwrap();
    refused("server-cert.pem");
}
