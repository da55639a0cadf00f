//! The policy of TLS: who must speak it, and which exports a client's certificate opens.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

use crate::certificates::Certificates;
use crate::listen::Listen;

/// Whether the client with a certificate of the first name may open the export of the second name.
pub type Permit = Arc<dyn Fn(&str, &str) -> bool + Send + Sync>;

/// How a server speaks TLS.
pub struct Tls {
    /// The server's certificates.
    pub certificates: Arc<Certificates>,
    /// Required of clients over TCP. Unix sockets are protected by the modes of their files, and only
    /// offer it.
    pub required: bool,
    /// The exports of each client; none: all exports for everyone.
    pub permit: Option<Permit>,
}

impl Tls {
    /// Whether clients of that address must speak it.
    pub(crate) fn is_required(&self, address: &Listen) -> bool {
        self.required && matches!(address, Listen::Tcp(_))
    }
}

/// Returns the name of a client: the common name in the subject of its certificate, if there is
/// exactly one.
pub(crate) fn name_of(certificate: &CertificateDer<'_>) -> Option<String> {
    common_name(EndEntityCert::try_from(certificate).ok()?.subject())
}

/// Tags of DER, as far as subjects have them.
mod tag {
    pub const OID: u8 = 0x06;
    pub const UTF8_STRING: u8 = 0x0c;
    pub const PRINTABLE_STRING: u8 = 0x13;
    pub const IA5_STRING: u8 = 0x16;
    pub const SEQUENCE: u8 = 0x30;
    pub const SET: u8 = 0x31;
}

/// The attribute type `id-at-commonName`, 2.5.4.3.
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];

/// Returns the only common name of a subject: sets of pairs of a type and a value.
fn common_name(mut subject: &[u8]) -> Option<String> {
    let mut found = None;
    while !subject.is_empty() {
        let mut set = content(&mut subject, &[tag::SET])?;
        while !set.is_empty() {
            let mut pair = content(&mut set, &[tag::SEQUENCE])?;
            if content(&mut pair, &[tag::OID])? != COMMON_NAME {
                continue;
            }
            let text = content(&mut pair, &[tag::UTF8_STRING, tag::PRINTABLE_STRING, tag::IA5_STRING])?;
            let name = std::str::from_utf8(text).ok()?;
            if found.replace(name).is_some() {
                return None;
            }
        }
    }
    found.map(str::to_owned)
}

/// Takes an element with one of these tags off the start; returns its content.
fn content<'a>(rest: &mut &'a [u8], tags: &[u8]) -> Option<&'a [u8]> {
    let (&[tag, short], mut tail) = rest.split_first_chunk()?;
    let length = match short {
        0..=0x7f => usize::from(short),
        0x81 | 0x82 => {
            let (long, after) = tail.split_at_checked(usize::from(short & 3))?;
            tail = after;
            long.iter().fold(0, |length, byte| length << 8 | usize::from(*byte))
        }
        // More than a certificate has.
        _ => return None,
    };
    let (content, after) = tail.split_at_checked(length)?;
    *rest = after;
    tags.contains(&tag).then_some(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(tag: u8, content: &[u8]) -> Vec<u8> {
        let length = match content.len() {
            short @ 0..=0x7f => vec![short as u8],
            long @ 0x80..=0xff => vec![0x81, long as u8],
            long => vec![0x82, (long >> 8) as u8, long as u8],
        };
        [vec![tag], length, content.to_vec()].concat()
    }

    fn attribute(oid: &[u8], kind: u8, value: &[u8]) -> Vec<u8> {
        element(tag::SET, &element(tag::SEQUENCE, &[element(tag::OID, oid), element(kind, value)].concat()))
    }

    #[test]
    fn a_client_has_the_only_common_name_of_its_subject() {
        let other = attribute(&[0x55, 0x04, 0x0a], tag::UTF8_STRING, b"admin");
        for length in [1, 127, 128, 255, 256, 1000] {
            let name = "x".repeat(length);
            let subject = [other.clone(), attribute(&COMMON_NAME, tag::PRINTABLE_STRING, name.as_bytes())].concat();
            assert_eq!(common_name(&subject).unwrap(), name);
            // Cut anywhere, it is no name at all, or lacks the second attribute.
            assert!((0..subject.len()).all(|end| common_name(&subject[..end]).is_none()));
        }
        let named = attribute(&COMMON_NAME, tag::UTF8_STRING, b"hv1");
        assert_eq!(common_name(&other), None);
        assert_eq!(common_name(&[named.clone(), named].concat()), None, "two of them");
        assert_eq!(common_name(&attribute(&COMMON_NAME, tag::UTF8_STRING, b"\xff")), None);
        // Of two bytes a character.
        assert_eq!(common_name(&attribute(&COMMON_NAME, 0x1e, b"\0h\0v")), None);
    }
}
