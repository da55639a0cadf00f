//! Networks of clients.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// An address, or all addresses with the same prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    base: IpAddr,
    prefix: u8,
}

/// Bits of an address, from the left.
fn bits(address: IpAddr) -> (u128, u8) {
    match address {
        IpAddr::V4(address) => (u128::from(u32::from(address)) << 96, 32),
        IpAddr::V6(address) => (u128::from(address), 128),
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (base, prefix) = text.split_once('/').map_or((text, None), |(base, prefix)| (base, Some(prefix)));
        let base: IpAddr = base
            .parse()
            .map_err(|_| format!("'{text}' is not an address such as 10.0.0.7, or a network such as 10.0.0.0/8"))?;
        let (value, most) = bits(base);
        let prefix = match prefix {
            None => most,
            Some(text) => match text.parse() {
                Ok(prefix) if prefix <= most => prefix,
                _ => return Err(format!("'/{text}' is not a length of 0 to {most} bits")),
            },
        };
        let behind = value.checked_shl(prefix.into()).unwrap_or(0);
        if behind != 0 {
            return Err(format!("'{text}' is not the first address of its network: use that address"));
        }
        Ok(Self { base, prefix })
    }
}

impl Network {
    /// Whether all of its addresses are loopback.
    pub const fn is_loopback(self) -> bool {
        // A network wider than 127.0.0.0/8 starts at another address.
        self.base.is_loopback()
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.prefix == bits(self.base).1 { self.base.fmt(f) } else { write!(f, "{}/{}", self.base, self.prefix) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_shown_as_they_are_written() {
        for text in ["127.0.0.0/8", "10.1.2.3", "0.0.0.0/0", "fd00::/8", "::1", "::/0"] {
            assert_eq!(text.parse::<Network>().map(|network| network.to_string()), Ok(text.to_owned()));
        }
        assert_eq!("10.1.2.3/32".parse::<Network>().map(|network| network.to_string()), Ok("10.1.2.3".to_owned()));
    }

    #[test]
    fn networks_of_this_machine_alone() {
        for (text, is) in [
            ("127.0.0.0/8", true),
            ("127.0.0.1", true),
            ("::1", true),
            ("0.0.0.0/0", false),
            ("::/0", false),
            ("10.0.0.0/8", false),
        ] {
            assert_eq!(text.parse::<Network>().map(Network::is_loopback), Ok(is), "{text}");
        }
    }

    #[test]
    fn wrong_networks_are_refused() {
        for (text, part) in [
            ("10.0.0.1/8", "first address"),
            ("10.0.0.0/33", "0 to 32"),
            ("fd00::/129", "0 to 128"),
            ("10.0.0.0/", "bits"),
            ("localhost", "not an address"),
            ("", "not an address"),
        ] {
            let error = text.parse::<Network>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
