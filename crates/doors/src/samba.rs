//! Samba 4.17.
//!
//! Oplocks and leases are off: a client would keep data that has since changed through another
//! door. Previous versions are the snapshots of the share, in a directory of their recorded times.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::export::{Export, Places};
use crate::settings::Settings;

/// Section names with a special meaning.
const RESERVED: [&str; 4] = ["global", "homes", "printers", "print$"];

/// Checks that a share can have this name.
///
/// # Errors
/// With the reason.
pub fn check_name(word: &str) -> Result<(), String> {
    if RESERVED.contains(&word.to_ascii_lowercase().as_str()) {
        return Err(format!("'{word}' is a reserved name in SMB: rename the share"));
    }
    Ok(())
}

/// The server's configuration file; `own`: the administrator's additions to its global section.
pub fn server(settings: &Settings, places: &Places, exports: &[&Export], own: &str) -> String {
    let Places { state, logs, .. } = places;
    let bind = if settings.address.is_unspecified() {
        String::new()
    } else {
        format!("    interfaces = {}\n    bind interfaces only = yes\n", settings.address)
    };
    let mut text = format!(
        "# Written by shale serve; what you add belongs to smb.local.conf.\n\
         [global]\n    server role = standalone server\n    netbios name = {}\n    workgroup = {}\n    disable netbios = yes\n    \
         smb ports = {}\n{bind}    server min protocol = SMB2_10\n    map to guest = Bad User\n    load printers = no\n    \
         printcap name = /dev/null\n    disable spoolss = yes\n    passdb backend = tdbsam:{state}/passdb.tdb\n    \
         lock directory = {state}\n    state directory = {state}\n    cache directory = {state}\n    private dir = {state}\n    \
         pid directory = {state}\n    ncalrpc dir = {state}/ncalrpc\n    log file = {logs}/smb.log\n    log level = 1\n    \
         posix locking = yes\n    kernel oplocks = no\n    kernel share modes = no\n    oplocks = no\n    level2 oplocks = no\n    \
         smb2 leases = no\n    strict sync = yes\n    unix extensions = no\n    \
         vfs objects = catia fruit streams_xattr shadow_copy2 acl_xattr\n    fruit:metadata = stream\n    fruit:resource = stream\n    \
         ea support = yes\n    store dos attributes = yes\n    map archive = no\n    map hidden = no\n    map system = no\n    \
         map readonly = no\n    acl_xattr:ignore system acls = no\n    inherit acls = yes\n    shadow:sort = desc\n    \
         shadow:format = @GMT-%Y.%m.%d-%H.%M.%S\n    shadow:localtime = no\n",
        settings.smb_name, settings.smb_workgroup, settings.smb_port,
    );
    text.push_str(own);
    for export in exports {
        text.push_str(&section(export, places));
    }
    text
}

/// The address at which a server with this text listens.
pub fn listens(text: &str) -> Option<SocketAddr> {
    let value = |key: &str| {
        text.lines().find_map(|line| line.trim().strip_prefix(key)?.trim_start().strip_prefix('=')).map(str::trim)
    };
    let all = IpAddr::from(Ipv4Addr::UNSPECIFIED);
    let address = value("interfaces").map_or(Some(all), |text| text.parse().ok())?;
    Some(SocketAddr::new(address, value("smb ports")?.parse().ok()?))
}

/// The directory with links to the snapshots of the share with the number `id`, by their times.
pub fn snapshots_dir(places: &Places, id: u16) -> String {
    format!("{}/snapshots/{id}", places.own)
}

/// The section of one share.
pub fn section(export: &Export, places: &Places) -> String {
    let access = &export.smb;
    let yes = |is: bool| if is { "yes" } else { "no" };
    let mut text = format!(
        "\n[{}]\n    path = {path}\n    shadow:basedir = {path}\n    shadow:snapdir = {snapshots}\n    read only = {}\n    guest ok = {}\n",
        export.word(),
        yes(!access.writes()),
        yes(access.has_guests),
        path = export.path,
        snapshots = snapshots_dir(places, export.id),
    );
    if access.has_guests || access.hides_snapshots {
        // Clients without a password only see the current files.
        text.push_str("    veto files = /.shale/\n    vfs objects = catia fruit streams_xattr acl_xattr\n");
    }
    if !access.users.is_empty() {
        _ = writeln!(text, "    valid users = {}", access.users.join(" "));
    }
    let clients: Vec<_> = access.grants.iter().filter_map(|grant| grant.clients).map(|net| net.to_string()).collect();
    if !access.is_for_all() {
        _ = writeln!(text, "    hosts allow = {}\n    hosts deny = ALL", clients.join(" "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{Access, Door};

    fn home(value: &str) -> Export {
        let smb = Access::parse(Door::Smb, value).unwrap();
        Export {
            id: 1,
            name: "homes/meier".to_owned(),
            path: "/srv/shares/homes/meier".to_owned(),
            nfs: Access::default(),
            smb,
            http: Access::default(),
            ftp: Access::default(),
        }
    }

    #[test]
    fn sections_by_table() {
        let places = Places { state: "/s".to_owned(), logs: "/l".to_owned(), own: "/o".to_owned() };
        for (value, has, has_not) in [
            ("on", "read only = no\n    guest ok = no", "valid users"),
            ("ro,guest", "read only = yes\n    guest ok = yes", "hosts"),
            (
                "ro,guest",
                "veto files = /.shale/\n    vfs objects = catia fruit streams_xattr acl_xattr\n",
                "shadow_copy2",
            ),
            ("rw", "guest ok = no", "veto"),
            ("rw,snapdir=off", "veto files = /.shale/\n", "shadow_copy2"),
            ("rw", "shadow:snapdir = /o/snapshots/1\n", ".shale"),
            ("rw,user=ada,user=meier", "valid users = ada meier\n", "hosts"),
            ("rw@10.0.0.0/8", "hosts allow = 10.0.0.0/8\n    hosts deny = ALL\n", "valid"),
        ] {
            let text = section(&home(value), &places);
            assert!(text.contains(has) && !text.contains(has_not), "{value}: {text}");
            assert!(text.starts_with("\n[homes-meier]\n    path = /srv/shares/homes/meier\n"), "{text}");
        }
    }

    #[test]
    fn names_with_another_meaning_are_refused() {
        assert!(check_name("Homes").is_err() && check_name("global").is_err() && check_name("home").is_ok());
    }

    #[test]
    fn nothing_is_cached_while_other_doors_write() {
        let places = Places { state: "/s".to_owned(), logs: "/l".to_owned(), own: "/o".to_owned() };
        let text = server(&Settings::default(), &places, &[&home("on")], "    log level = 3\n");
        for part in
            ["    oplocks = no\n", "smb2 leases = no", "strict sync = yes", "    log level = 3\n\n[homes-meier]"]
        {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert_eq!(listens(&text), Some(([127, 0, 0, 1], 445).into()));
        let all = Settings { address: [0, 0, 0, 0].into(), ..Settings::default() };
        let text = server(&all, &places, &[], "");
        assert!(!text.contains("interfaces"));
        assert_eq!(listens(&text), Some(([0, 0, 0, 0], 445).into()));
    }
}
