//! Values of a door's property: `rw@10.0.0.0/8,ro,root_squash`.

use std::fmt;

use units::did_you_mean;

use crate::network::Network;

/// Most networks in one value: each becomes a block of a configuration.
const GRANTS_MAX: usize = 64;
/// Longest user name in bytes, as in useradd.
const USER_BYTES_MAX: usize = 32;

/// A protocol that exports a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Door {
    /// NFS, versions 3, 4.0 and 4.1.
    Nfs,
    /// SMB 2.1 and later.
    Smb,
    /// HTTP, and WebDAV where it may be written.
    Http,
    /// FTP.
    Ftp,
}

impl Door {
    /// All, in the order in which they are shown.
    pub const ALL: [Self; 4] = [Self::Nfs, Self::Smb, Self::Http, Self::Ftp];

    /// Its name, also the name of the property.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nfs => "nfs",
            Self::Smb => "smb",
            Self::Http => "http",
            Self::Ftp => "ftp",
        }
    }

    /// Returns the door whose property has this name.
    pub fn of_property(key: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|door| door.name() == key)
    }

    /// Allowed values, for help and messages.
    pub const fn allowed(self) -> &'static str {
        match self {
            Self::Nfs => {
                "off, or on (= rw), or ro and rw, each for all clients or as rw@NETWORK; optionally root_squash (the default), \
                 no_root_squash or all_squash, separated by commas"
            }
            Self::Smb => {
                "off, or on (= rw), ro or rw for every user with a password, or as rw@NETWORK; optionally user=NAME or guest, \
                 and snapdir=off (hides snapshots), separated by commas"
            }
            Self::Http => {
                "off, or on (= ro), ro or ro@NETWORK for reading, rw@NETWORK, or rw with login, for WebDAV; optionally login \
                 (users of the password file), separated by commas"
            }
            Self::Ftp => {
                "off, or on (= ro), ro for anonymous reading, rw for users of the system; optionally login or port=N, \
                 separated by commas"
            }
        }
    }
}

/// Permissions of the clients of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The clients; none: all others.
    pub clients: Option<Network>,
    /// Whether they may write.
    pub writes: bool,
}

/// The identity under which the requests of NFS clients are executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Squash {
    /// Requests of root as the anonymous user.
    #[default]
    Root,
    /// Unchanged.
    Never,
    /// All requests as the anonymous user.
    All,
}

/// Access rules of a door.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Access {
    /// Permissions; none: the door is closed.
    pub grants: Vec<Grant>,
    /// For NFS.
    pub squash: Squash,
    /// The only users admitted, where a door has users; none: all users.
    pub users: Vec<String>,
    /// Whether clients without a password are admitted (SMB).
    pub has_guests: bool,
    /// Whether this door hides the share's snapshots (SMB).
    pub hides_snapshots: bool,
    /// Whether only users with a password are admitted (HTTP, FTP).
    pub needs_login: bool,
    /// A separate port for the share (FTP).
    pub port: Option<u16>,
}

/// Why a value was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessError(String);

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for AccessError {}

impl Access {
    /// Whether any clients are admitted.
    pub fn is_open(&self) -> bool {
        !self.grants.is_empty()
    }

    /// Whether any client may write.
    pub fn writes(&self) -> bool {
        self.grants.iter().any(|grant| grant.writes)
    }

    /// Whether every client that reaches the server has the same rights.
    pub fn is_for_all(&self) -> bool {
        self.grants.iter().all(|grant| grant.clients.is_none())
    }

    /// Parses the value of a door's property.
    ///
    /// # Errors
    /// With the fault, and the allowed values.
    pub fn parse(door: Door, value: &str) -> Result<Self, AccessError> {
        let failed = |text: String| {
            AccessError(format!(
                "property '{0}' cannot be '{value}': {text}; allowed: {1}",
                door.name(),
                door.allowed()
            ))
        };
        let mut access = Self::default();
        if value == "off" {
            return Ok(access);
        }
        for item in value.split(',') {
            access.add(door, item).map_err(failed)?;
        }
        let times = |is_it: fn(&str) -> bool| value.split(',').filter(|item| is_it(item)).count();
        if times(|item| item.ends_with("_squash")) > 1 {
            return Err(failed("only one of root_squash, no_root_squash and all_squash is allowed".to_owned()));
        }
        if times(|item| item.starts_with("port=")) > 1 {
            return Err(failed("more than one port".to_owned()));
        }
        access.check(door).map_err(failed)?;
        Ok(access)
    }

    fn add(&mut self, door: Door, item: &str) -> Result<(), String> {
        let (word, clients) = item.split_once('@').map_or((item, None), |(word, clients)| (word, Some(clients)));
        match (word, door) {
            ("on", _) if clients.is_none() => {
                return self.add(door, if matches!(door, Door::Nfs | Door::Smb) { "rw" } else { "ro" });
            }
            ("off", _) => return Err("'off' cannot be combined".to_owned()),
            ("ro" | "rw", _) => {
                let clients = clients.map(str::parse).transpose()?;
                if self.grants.iter().any(|grant| grant.clients == clients) {
                    return Err("the same clients appear twice".to_owned());
                }
                if self.grants.len() == GRANTS_MAX {
                    return Err(format!("more than {GRANTS_MAX} networks"));
                }
                self.grants.push(Grant { clients, writes: word == "rw" });
                return Ok(());
            }
            _ if clients.is_some() && !(word.starts_with("user=")) => {
                return Err(format!("'{word}' does not take a network; only ro@NETWORK and rw@NETWORK do"));
            }
            ("root_squash", Door::Nfs) => self.squash = Squash::Root,
            ("no_root_squash", Door::Nfs) => self.squash = Squash::Never,
            ("all_squash", Door::Nfs) => self.squash = Squash::All,
            ("guest", Door::Smb) => self.has_guests = true,
            ("login", Door::Http | Door::Ftp) => self.needs_login = true,
            _ => return self.add_named(door, item),
        }
        Ok(())
    }

    fn add_named(&mut self, door: Door, item: &str) -> Result<(), String> {
        match (item.split_once('='), door) {
            (Some(("user", name)), Door::Smb) => {
                if !is_user(name) {
                    return Err(format!("'{name}' is not a valid user name"));
                }
                self.users.push(name.to_owned());
            }
            (Some(("snapdir", "off")), Door::Smb) => self.hides_snapshots = true,
            (Some(("snapdir", _)), Door::Smb) => {
                return Err(
                    "an export can only hide snapshots (snapdir=off); the property snapdir shows them".to_owned()
                );
            }
            (Some(("snapdir", _)), Door::Http | Door::Ftp) => {
                return Err("this protocol never shows snapshots".to_owned());
            }
            (Some(("snapdir", _)), Door::Nfs) => {
                return Err("NFS clients see what the mount shows: set the property snapdir".to_owned());
            }
            (Some(("port", port)), Door::Ftp) => {
                let port = port.parse().ok().filter(|port| *port != 0);
                self.port = Some(port.ok_or_else(|| "a port is a number from 1 to 65535".to_owned())?);
            }
            _ => {
                let known: &[&str] = match door {
                    Door::Nfs => &["on", "ro", "rw", "root_squash", "no_root_squash", "all_squash"],
                    Door::Smb => &["on", "ro", "rw", "guest", "snapdir=off"],
                    Door::Http | Door::Ftp => &["on", "ro", "rw", "login"],
                };
                return Err(format!("unknown value '{item}'{}", did_you_mean(item, known.iter().copied())));
            }
        }
        Ok(())
    }

    /// Checks the parts against each other.
    fn check(&mut self, door: Door) -> Result<(), String> {
        if self.grants.is_empty() {
            return Err("specify ro or rw".to_owned());
        }
        let mixes = self.grants.iter().any(|grant| grant.writes) && self.grants.iter().any(|grant| !grant.writes);
        match door {
            Door::Smb if mixes => Err("SMB has either ro or rw for all clients that it admits".to_owned()),
            Door::Smb if self.has_guests && !self.users.is_empty() => {
                Err("guest admits everyone, user=NAME only the users named: choose one".to_owned())
            }
            Door::Http if !self.needs_login && self.grants.iter().any(|g| g.writes && g.clients.is_none()) => {
                Err("every client could write: use rw@NETWORK, or rw,login".to_owned())
            }
            Door::Ftp if !self.is_for_all() => {
                Err("FTP does not distinguish clients by network: restrict its listening address instead".to_owned())
            }
            Door::Ftp if mixes => Err("specify ro or rw".to_owned()),
            Door::Ftp => {
                // Without a password, access is read-only.
                self.needs_login |= self.writes();
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Whether a configuration can contain such a user name.
fn is_user(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    !name.is_empty() && name.len() <= USER_BYTES_MAX && !name.starts_with(['-', '.']) && name.chars().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants(door: Door, value: &str) -> Vec<(Option<String>, bool)> {
        let access = Access::parse(door, value).unwrap();
        access.grants.iter().map(|g| (g.clients.map(|clients| clients.to_string()), g.writes)).collect()
    }

    #[test]
    fn values_by_table() {
        let all = |writes| vec![(None, writes)];
        for door in Door::ALL {
            assert_eq!(Access::parse(door, "off"), Ok(Access::default()));
            assert_eq!(grants(door, "ro"), all(false));
            assert_eq!(grants(door, "on"), all(matches!(door, Door::Nfs | Door::Smb)));
            assert_eq!(Door::of_property(door.name()), Some(door));
        }
        let mixed = vec![(Some("10.0.0.0/8".to_owned()), true), (None, false)];
        assert_eq!(grants(Door::Nfs, "rw@10.0.0.0/8,ro,all_squash"), mixed);
        assert_eq!(Access::parse(Door::Nfs, "rw").unwrap().squash, Squash::Root);
        assert_eq!(Access::parse(Door::Nfs, "rw,no_root_squash").unwrap().squash, Squash::Never);
        assert_eq!(grants(Door::Http, "rw@127.0.0.0/8,ro"), [(Some("127.0.0.0/8".to_owned()), true), (None, false)]);
        assert!(Access::parse(Door::Http, "rw,login").unwrap().needs_login);
        assert!(Access::parse(Door::Ftp, "rw").unwrap().needs_login);
        assert_eq!(Access::parse(Door::Ftp, "ro,port=2121").unwrap().port, Some(2121));
        assert_eq!(Access::parse(Door::Smb, "rw,user=ada,user=meier").unwrap().users, ["ada", "meier"]);
        assert!(Access::parse(Door::Smb, "ro,guest").unwrap().has_guests);
        let hides = |value| Access::parse(Door::Smb, value).unwrap().hides_snapshots;
        assert!(hides("rw,snapdir=off") && !hides("rw"));
        // `on` means the same alone and in combination.
        for (door, with_on, spelled) in [
            (Door::Nfs, "on,all_squash", "rw,all_squash"),
            (Door::Smb, "on,guest", "rw,guest"),
            (Door::Smb, "user=ada,on", "user=ada,rw"),
            (Door::Http, "on,login", "ro,login"),
            (Door::Http, "on,rw@10.0.0.0/8", "ro,rw@10.0.0.0/8"),
            (Door::Ftp, "on,port=2121", "ro,port=2121"),
        ] {
            assert_eq!(Access::parse(door, with_on).unwrap(), Access::parse(door, spelled).unwrap(), "{with_on}");
        }
    }

    #[test]
    fn refusals_say_what_is_wrong_and_what_is_allowed() {
        for (door, value, part) in [
            (Door::Nfs, "", "unknown value"),
            (Door::Nfs, "rw,", "unknown value"),
            (Door::Nfs, "root_squash", "specify ro or rw"),
            (Door::Nfs, "rw@10.0.0.1/8", "first address"),
            (Door::Nfs, "rw,ro", "appear twice"),
            (Door::Nfs, "root_squash@10.0.0.0/8", "does not take a network"),
            (Door::Nfs, "rw,root_sqash", "did you mean 'root_squash'"),
            (Door::Nfs, "rw,guest", "unknown value"),
            (Door::Nfs, "rw,off", "'off' cannot be combined"),
            (Door::Nfs, "on,rw", "appear twice"),
            (Door::Nfs, "on@10.0.0.0/8", "does not take a network"),
            (Door::Smb, "on,gest", "did you mean 'guest'"),
            (Door::Smb, "rw@10.0.0.0/8,ro", "for all clients"),
            (Door::Smb, "rw,guest,user=ada", "only the users"),
            (Door::Smb, "rw,snapdir=visible", "can only hide"),
            (Door::Nfs, "rw,snapdir=off", "what the mount shows"),
            (Door::Http, "ro,snapdir=off", "never shows"),
            (Door::Smb, "rw,user=a b", "not a valid user name"),
            (Door::Smb, "rw,user=a\"", "not a valid user name"),
            (Door::Http, "rw", "every client could write"),
            (Door::Http, "rw,ro@10.0.0.0/8", "every client could write"),
            (Door::Ftp, "ro@10.0.0.0/8", "does not distinguish clients"),
            (Door::Ftp, "ro,port=0", "1 to 65535"),
            (Door::Ftp, "ro,port=70000", "1 to 65535"),
            (Door::Ftp, "port=21,port=22,ro", "one port"),
            (Door::Nfs, "rw,root_squash,no_root_squash", "only one of root_squash"),
        ] {
            let error = Access::parse(door, value).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains(door.allowed()), "{}={value}: {error}", door.name());
        }
    }

    #[test]
    fn the_number_of_networks_is_bounded() {
        let value: Vec<_> = (0..=GRANTS_MAX).map(|n| format!("ro@10.0.0.{n}")).collect();
        assert!(Access::parse(Door::Nfs, &value.join(",")).is_err());
        assert!(Access::parse(Door::Nfs, &value[1..].join(",")).is_ok());
    }
}
