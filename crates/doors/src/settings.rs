//! Settings of a machine: addresses, ports and names, in a file that its administrator edits.

use std::fmt;
use std::net::IpAddr;

use units::did_you_mean;

/// Addresses, ports and names of the servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The address that the servers listen at.
    pub address: IpAddr,
    /// Port of NFS.
    pub nfs_port: u16,
    /// Port of the MOUNT protocol of NFS version 3.
    pub mount_port: u16,
    /// Whether NFS version 3 is served.
    pub has_nfs3: bool,
    /// Whether NFS versions 4.0 and 4.1 are.
    pub has_nfs4: bool,
    /// Port of SMB.
    pub smb_port: u16,
    /// Name of the SMB server.
    pub smb_name: String,
    /// Its workgroup.
    pub smb_workgroup: String,
    /// Port of HTTP.
    pub http_port: u16,
    /// The user that HTTP requests access files as.
    pub http_user: String,
    /// FTP port of a share that does not set one.
    pub ftp_port: u16,
    /// First and last port for data of FTP.
    pub ftp_passive: (u16, u16),
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            address: IpAddr::from([127, 0, 0, 1]),
            nfs_port: 2049,
            mount_port: 20048,
            has_nfs3: true,
            has_nfs4: true,
            smb_port: 445,
            smb_name: "SHALE".to_owned(),
            smb_workgroup: "WORKGROUP".to_owned(),
            http_port: 8081,
            http_user: "www-data".to_owned(),
            ftp_port: 21,
            ftp_passive: (50000, 50099),
        }
    }
}

/// The keys, in the order of the file.
const KEYS: [&str; 11] = [
    "address",
    "nfs-port",
    "mount-port",
    "nfs-versions",
    "smb-port",
    "smb-name",
    "smb-workgroup",
    "http-port",
    "http-user",
    "ftp-port",
    "ftp-passive",
];

/// An invalid line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingsError {
    /// The line, from 1; 0 if the fault is not in a single one.
    pub line: usize,
    /// The fault.
    pub text: String,
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.text),
            line => write!(f, "line {line}: {}", self.text),
        }
    }
}

impl std::error::Error for SettingsError {}

impl Settings {
    /// Initial settings file of a directory of exports: all values are the defaults.
    pub fn template() -> &'static str {
        "\
# Addresses and ports of the servers that give shares out. Yours to edit: shale serve reads it when it starts.

# Where they listen: an address of this machine, or 0.0.0.0 for all.
address = 127.0.0.1

# NFS. Version 3 needs rpcbind, which is started where none runs; 4 is 4.0 and 4.1.
nfs-port = 2049
mount-port = 20048
nfs-versions = 3,4

smb-port = 445
smb-name = SHALE
smb-workgroup = WORKGROUP

# HTTP and WebDAV read and write as this user.
http-port = 8081
http-user = www-data

ftp-port = 21
ftp-passive = 50000-50099
"
    }

    /// Parses the file.
    ///
    /// # Errors
    /// With the first invalid line.
    pub fn parse(text: &str) -> Result<Self, SettingsError> {
        let mut settings = Self::default();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let set = match line.split_once('=') {
                Some((key, value)) => settings.set(key.trim(), value.trim()),
                None => Err(format!("'{line}' is not KEY = VALUE")),
            };
            set.map_err(|text| SettingsError { line: index + 1, text })?;
        }
        settings.check().map_err(|text| SettingsError { line: text.0, text: text.1 })?;
        Ok(settings)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "address" => {
                self.address = value.parse().map_err(|_| format!("'{value}' is not an address such as 127.0.0.1"))?;
            }
            "nfs-port" => self.nfs_port = port(value)?,
            "mount-port" => self.mount_port = port(value)?,
            "nfs-versions" => {
                (self.has_nfs3, self.has_nfs4) = match value {
                    "3" => (true, false),
                    "4" => (false, true),
                    "3,4" => (true, true),
                    _ => return Err(format!("'{value}' is not 3, 4 or 3,4")),
                }
            }
            "smb-port" => self.smb_port = port(value)?,
            "smb-name" => self.smb_name = word(value, 15)?,
            "smb-workgroup" => self.smb_workgroup = word(value, 15)?,
            "http-port" => self.http_port = port(value)?,
            "http-user" => self.http_user = word(value, 32)?,
            "ftp-port" => self.ftp_port = port(value)?,
            "ftp-passive" => {
                let ends = value.split_once('-').map(|(low, high)| (port(low.trim()), port(high.trim())));
                self.ftp_passive = match ends {
                    Some((Ok(low), Ok(high))) if low <= high => (low, high),
                    _ => return Err(format!("'{value}' is not FIRST-LAST")),
                };
            }
            _ => return Err(format!("unknown setting '{key}'{}", did_you_mean(key, KEYS))),
        }
        Ok(())
    }

    /// Two servers cannot share a port.
    fn check(&self) -> Result<(), (usize, String)> {
        let ports = [
            ("nfs-port", self.nfs_port),
            ("mount-port", self.mount_port),
            ("smb-port", self.smb_port),
            ("http-port", self.http_port),
            ("ftp-port", self.ftp_port),
        ];
        for (index, (key, port)) in ports.iter().enumerate() {
            if let Some((other, _)) = ports[..index].iter().find(|(_, taken)| taken == port) {
                return Err((0, format!("{other} and {key} are both {port}")));
            }
        }
        Ok(())
    }
}

fn port(value: &str) -> Result<u16, String> {
    value.parse().ok().filter(|port| *port != 0).ok_or_else(|| format!("'{value}' is not a port from 1 to 65535"))
}

fn word(value: &str, most: usize) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if value.is_empty() || value.len() > most || !value.chars().all(allowed) {
        return Err(format!("'{value}' is not 1 to {most} letters, digits, '_' or '-'"));
    }
    Ok(value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_says_what_holds_anyway() {
        assert_eq!(Settings::parse(Settings::template()), Ok(Settings::default()));
        assert_eq!(Settings::parse(""), Ok(Settings::default()));
        for key in KEYS {
            assert!(Settings::template().contains(&format!("\n{key} = ")), "{key}");
        }
    }

    #[test]
    fn lines_by_table() {
        let settings =
            Settings::parse("http-port=81 # not 80\n nfs-versions = 4\naddress = ::1\nftp-passive=7-9").unwrap();
        assert_eq!((settings.http_port, settings.has_nfs3, settings.has_nfs4), (81, false, true));
        assert_eq!((settings.address.to_string().as_str(), settings.ftp_passive), ("::1", (7, 9)));
    }

    #[test]
    fn refusals_name_the_line() {
        for (text, line, part) in [
            ("\nhttp-prot = 80", 2, "did you mean 'http-port'"),
            ("http-port = 0", 1, "1 to 65535"),
            ("http-port 80", 1, "KEY = VALUE"),
            ("ftp-passive = 9-7", 1, "FIRST-LAST"),
            ("nfs-versions = 4.2", 1, "3, 4 or 3,4"),
            ("http-user = a b", 1, "letters"),
            ("smb-port = 2049", 0, "nfs-port and smb-port"),
        ] {
            let error = Settings::parse(text).unwrap_err();
            assert_eq!(error.line, line, "{text}");
            assert!(error.text.contains(part), "{text}: {error}");
        }
    }
}
