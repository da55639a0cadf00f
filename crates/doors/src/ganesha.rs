//! NFS-Ganesha 4.3: one file for the server, and one for each export, so that one can be changed
//! while the others are in use.
//!
//! Reasons for the settings:
//! - Minor version 2 of NFSv4 is off: READ_PLUS of 4.3 returns zeroes for data that a client has
//!   not cached.
//! - Attributes expire immediately: a file that grows through another door would be cut at its old
//!   size.
//! - Handles contain the mount's device number and `Export_Id`. When the former changes, the latter
//!   must change, too: Ganesha finds the share by the device number alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::access::Squash;
use crate::export::{Export, Places};
use crate::settings::Settings;

/// User and group for squashed requests: the anonymous ones.
const NOBODY: u32 = 65534;

/// The configuration file of one export.
pub fn export(export: &Export, settings: &Settings) -> String {
    let access = &export.nfs;
    let kind = |writes: bool| if writes { "RW" } else { "RO" };
    let of_all = access.grants.iter().find(|grant| grant.clients.is_none());
    let squash = match access.squash {
        Squash::Root => "Root_Squash",
        Squash::Never => "No_Root_Squash",
        Squash::All => "All_Squash",
    };
    let mut text = format!(
        "EXPORT {{\n    Export_Id = {};\n    Path = \"{}\";\n    Pseudo = \"/{}\";\n    Protocols = {};\n    Transports = TCP;\n    \
         SecType = sys;\n    PrivilegedPort = false;\n    Attr_Expiration_Time = 0;\n    Access_Type = {};\n    Squash = {squash};\n    \
         Anonymous_Uid = {NOBODY};\n    Anonymous_Gid = {NOBODY};\n    FSAL {{ Name = VFS; }}\n",
        export.id,
        export.path,
        export.name,
        versions(settings),
        of_all.map_or("NONE", |grant| kind(grant.writes)),
    );
    for grant in &access.grants {
        if let Some(clients) = grant.clients {
            _ = writeln!(text, "    CLIENT {{ Clients = {clients}; Access_Type = {}; }}", kind(grant.writes));
        }
    }
    text + "}\n"
}

fn versions(settings: &Settings) -> &'static str {
    match (settings.has_nfs3, settings.has_nfs4) {
        (true, true) => "3, 4",
        (true, false) => "3",
        _ => "4",
    }
}

/// The server's configuration file. `exports`: paths of the exports' files; `plugins`: its module
/// directory; `own`: the administrator's additions.
pub fn server(settings: &Settings, places: &Places, plugins: &str, exports: &[String], own: &str) -> String {
    let mut text = format!(
        "# Written by shale serve; what you add belongs to ganesha.local.conf.\n\
         NFS_CORE_PARAM {{\n    Bind_addr = {};\n    NFS_Port = {};\n    MNT_Port = {};\n    Enable_NLM = false;\n    \
         Enable_RQUOTA = false;\n    Enable_UDP = false;\n    Mount_Path_Pseudo = true;\n    Protocols = {};\n    Plugins_Dir = \"{plugins}\";\n}}\n\
         NFSv4 {{\n    Minor_Versions = 0, 1;\n    Graceless = false;\n    Lease_Lifetime = 30;\n    Grace_Period = 30;\n    \
         RecoveryBackend = fs;\n    RecoveryRoot = \"{}\";\n    Allow_Numeric_Owners = true;\n    Only_Numeric_Owners = true;\n}}\n\
         NFS_KRB5 {{ Active_krb5 = false; }}\n",
        settings.address,
        settings.nfs_port,
        settings.mount_port,
        versions(settings),
        places.state,
    );
    for path in exports {
        _ = writeln!(text, "%include \"{path}\"");
    }
    text + own
}

/// The steps from the exports of a running server to the wanted ones.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Steps {
    /// Exports to remove, in this order.
    pub remove: Vec<u16>,
    /// Exports to add or update afterwards, in this order.
    pub put: Vec<u16>,
}

/// Returns the steps from the current configuration texts, by number, to the wanted ones.
///
/// The server attaches an export whose name lies below another's to that one. It refuses to remove
/// one with others attached, and does not attach existing exports to a new one above them. So
/// exports are removed from the innermost to the outermost, and added in reverse order; and where
/// one is added or removed, those below it are removed and added again.
pub fn steps(in_force: &BTreeMap<u16, String>, wanted: &BTreeMap<u16, String>) -> Steps {
    let place = |text: &str| text.lines().filter(|line| is_place(line)).map(str::to_owned).collect::<Vec<_>>();
    let stays = |id: &u16, text: &str| in_force.get(id).is_some_and(|old| place(old) == place(text));
    let goes = |id: &u16, old: &str| wanted.get(id).is_none_or(|text| place(old) != place(text));
    let comes = wanted.iter().filter(|(id, text)| !stays(id, text)).map(|(_, text)| name_of(text));
    let gone = in_force.iter().filter(|(id, text)| goes(id, text)).map(|(_, text)| name_of(text));
    let changed: BTreeSet<&str> = comes.chain(gone).collect();
    let is_below = |text: &str| {
        let name = name_of(text);
        name.match_indices('/').any(|(end, _)| changed.contains(&name[..end]))
    };
    let is_removed = |(id, text): &(&u16, &String)| goes(id, text) || is_below(text);
    // By name: the outer ones come first.
    let mut remove: Vec<_> = in_force.iter().filter(is_removed).map(|(id, text)| (name_of(text), *id)).collect();
    remove.sort_unstable_by(|a, b| b.cmp(a));
    let remove: Vec<u16> = remove.into_iter().map(|(_, id)| id).collect();
    let is_put = |(id, text): &(&u16, &String)| in_force.get(id) != Some(*text) || remove.contains(id);
    let mut put: Vec<_> = wanted.iter().filter(is_put).map(|(id, text)| (name_of(text), *id)).collect();
    put.sort_unstable();
    Steps { put: put.into_iter().map(|(_, id)| id).collect(), remove }
}

/// Whether a line of an export defines its location, which cannot be changed.
fn is_place(line: &str) -> bool {
    let line = line.trim();
    line.starts_with("Path ") || line.starts_with("Pseudo ") || line.starts_with("Protocols ")
}

/// The export's name in NFS version 4.
fn name_of(text: &str) -> &str {
    let quoted = text.lines().find_map(|line| line.trim().strip_prefix("Pseudo = \""));
    quoted.and_then(|rest| rest.split('"').next()).unwrap_or_default()
}

/// The configuration of the message bus used to change exports: for root only.
pub fn bus(socket: &str) -> String {
    format!(
        "<!DOCTYPE busconfig PUBLIC \"-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN\" \
         \"http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd\">\n\
         <busconfig>\n  <type>system</type>\n  <listen>unix:path={socket}</listen>\n  <auth>EXTERNAL</auth>\n  \
         <policy context=\"default\">\n    <deny own=\"*\"/><deny send_type=\"method_call\"/>\n    \
         <allow send_type=\"signal\"/><allow receive_type=\"*\"/>\n    <allow send_destination=\"org.freedesktop.DBus\"/>\n  </policy>\n  \
         <policy user=\"root\"><allow own=\"*\"/><allow send_destination=\"*\"/><allow send_type=\"method_call\"/></policy>\n\
         </busconfig>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{Access, Door};

    fn home(value: &str) -> Export {
        let nfs = Access::parse(Door::Nfs, value).unwrap();
        Export {
            id: 101,
            name: "homes/meier".to_owned(),
            path: "/srv/shares/homes/meier".to_owned(),
            nfs,
            smb: Access::default(),
            http: Access::default(),
            ftp: Access::default(),
        }
    }

    #[test]
    fn networks_become_blocks_of_clients() {
        let text = export(&home("rw@127.0.0.0/8,ro@10.0.0.7,all_squash"), &Settings::default());
        for part in [
            "Export_Id = 101;",
            "Path = \"/srv/shares/homes/meier\";",
            "Pseudo = \"/homes/meier\";",
            "    Access_Type = NONE;",
            "CLIENT { Clients = 127.0.0.0/8; Access_Type = RW; }",
            "CLIENT { Clients = 10.0.0.7; Access_Type = RO; }",
            "Squash = All_Squash;",
            "Attr_Expiration_Time = 0;",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        let text = export(&home("ro"), &Settings::default());
        assert!(
            text.contains("Access_Type = RO;") && text.contains("Root_Squash") && !text.contains("CLIENT"),
            "{text}"
        );
    }

    #[test]
    fn nested_exports_go_from_the_innermost_and_come_from_the_outermost() {
        let texts = |shares: &[(u16, &str, &str)]| {
            let text = |(id, name, value): &(u16, &str, &str)| {
                let of = Export { id: *id, name: (*name).to_owned(), path: format!("/srv/{name}"), ..home(value) };
                (*id, export(&of, &Settings::default()))
            };
            shares.iter().map(text).collect::<BTreeMap<_, _>>()
        };
        let (p, q, r) = ((7, "p", "rw"), (3, "p/q", "rw"), (5, "p/q/r", "rw"));
        // Its name has `p` as a prefix, but it does not lie within it.
        let beside = (1, "pq", "rw");
        let all = [p, q, r, beside];
        for (from, to, remove, put) in [
            (&all[..], &[beside][..], &[5, 3, 7][..], &[][..]),
            (&[beside], &all, &[], &[7, 3, 5]),
            (&all, &[], &[1, 5, 3, 7], &[]),
            (&all, &all, &[], &[]),
            // The inner ones remain, and are attached again.
            (&all, &[q, r, beside], &[5, 3, 7], &[3, 5]),
            (&[q, r, beside], &all, &[5, 3], &[7, 3, 5]),
            (&all, &[p, r, beside], &[5, 3], &[5]),
            // Other permissions at the same location.
            (&all, &[(7, "p", "ro"), q, r, beside], &[], &[7]),
            // Renamed.
            (&all, &[(7, "o", "rw"), (3, "o/q", "rw"), r, beside], &[5, 3, 7], &[7, 3, 5]),
        ] {
            let steps = steps(&texts(from), &texts(to));
            assert_eq!((&*steps.remove, &*steps.put), (remove, put), "{from:?} -> {to:?}");
        }
    }

    #[test]
    fn version_4_2_is_off() {
        let places = Places { state: "/s".to_owned(), logs: "/l".to_owned(), own: "/o".to_owned() };
        let settings = Settings { has_nfs3: false, ..Settings::default() };
        let text = server(&settings, &places, "/usr/lib/ganesha", &["/s/1.conf".to_owned()], "LOG { }\n");
        assert!(text.contains("Minor_Versions = 0, 1;") && text.contains("Protocols = 4;"), "{text}");
        assert!(text.ends_with("%include \"/s/1.conf\"\nLOG { }\n"), "{text}");
    }
}
