//! Apache httpd 2.4, with its own WebDAV.
//!
//! Files are never mapped or sent by the kernel alone: truncating one at that moment would kill the
//! server. A path unique to each configuration shows which one is in force.

use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr};

use crate::access::Access;
use crate::export::{Export, Places};
use crate::mark_of;
use crate::settings::Settings;

/// Read-only methods.
const READING: &str = "GET HEAD OPTIONS PROPFIND";

/// The path that the server answers with 410 (gone) under the configuration with this mark, and
/// with 404 under any other.
pub fn path_of(mark: u64) -> String {
    format!("/.shale-{mark:016x}")
}

/// The server's configuration file, and its mark; `modules`: its module directory; `types`: the
/// file of media types; `group`: number of the user's group; `own`: the administrator's additions.
pub fn server(
    settings: &Settings,
    places: &Places,
    (modules, types, group): (&str, &str, u32),
    exports: &[&Export],
    own: &str,
) -> (String, u64) {
    let Places { state, logs, own: passwords } = places;
    let port = settings.http_port;
    let listen = match settings.address {
        address if address.is_unspecified() => port.to_string(),
        address if address.is_ipv6() => format!("[{address}]:{port}"),
        address => format!("{address}:{port}"),
    };
    let mut text = format!(
        "# Written by shale serve; put additions into httpd.local.conf.\n\
         ServerRoot \"{state}\"\nServerName shale\nListen {listen}\nPidFile \"{state}/httpd.pid\"\nUser {user}\nGroup \"#{group}\"\n\
         Mutex file:{state} default\nErrorLog \"{logs}/http.log\"\nLogLevel warn\n",
        user = settings.http_user,
    );
    for module in [
        "mpm_event",
        "authn_core",
        "authn_file",
        "authz_core",
        "authz_host",
        "authz_user",
        "auth_basic",
        "alias",
        "mime",
        "autoindex",
        "dir",
        "dav",
        "dav_fs",
    ] {
        _ = writeln!(text, "LoadModule {module}_module \"{modules}/mod_{module}.so\"");
    }
    text.push_str(&format!(
        "TypesConfig \"{types}\"\nDefaultRuntimeDir \"{state}\"\nDavLockDB \"{state}/locks/dav\"\nTraceEnable off\nServerTokens Prod\nEnableSendfile off\n\
         EnableMMAP off\nFileETag INode MTime Size\nIndexOptions FancyIndexing NameWidth=* Charset=UTF-8\n\
         <Directory />\n    AllowOverride None\n    Require all denied\n    Options None\n</Directory>\n",
    ));
    for export in exports {
        text.push_str(&section(export, passwords));
    }
    // After the shares, so that it takes precedence.
    text.push_str("<DirectoryMatch \"/\\.(shale|DAV)(/|$)\">\n    Require all denied\n</DirectoryMatch>\n");
    text.push_str(own);
    let mark = mark_of(&text);
    _ = writeln!(text, "RedirectMatch 410 \"^{}$\"", path_of(mark).replace('.', "\\."));
    (text, mark)
}

/// The address at which a server with this text listens.
pub fn listens(text: &str) -> Option<SocketAddr> {
    let value = text.lines().find_map(|line| line.strip_prefix("Listen "))?.trim();
    match value.parse() {
        Ok(port) => Some(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)),
        Err(_) => value.parse().ok(),
    }
}

/// The sections of one share; `passwords`: the directory with the file of users.
fn section(export: &Export, passwords: &str) -> String {
    let access = &export.http;
    let mut text = format!(
        "Alias \"/{}\" \"{path}\"\n<Directory \"{path}\">\n    AllowOverride None\n    Options Indexes\n    DirectoryIndex disabled\n",
        export.name,
        path = export.path,
    );
    if access.writes() {
        text.push_str("    Dav On\n");
    }
    if access.needs_login {
        _ = writeln!(
            text,
            "    AuthType Basic\n    AuthName \"{}\"\n    AuthBasicProvider file\n    AuthUserFile \"{passwords}/http.users\"",
            export.name
        );
    }
    let every_client_alike = access.grants.iter().all(|grant| grant.writes == access.writes());
    if every_client_alike {
        text.push_str(&required(access, false));
    } else {
        // Sections next to each other, not nested: of two that apply to a method, one is enough to
        // grant access.
        _ = write!(text, "    <Limit {READING}>\n{}    </Limit>\n", required(access, false));
        _ = write!(text, "    <LimitExcept {READING}>\n{}    </LimitExcept>\n", required(access, true));
    }
    text + "</Directory>\n"
}

/// Requirements for clients that read, or for those that write.
fn required(access: &Access, to_write: bool) -> String {
    let mut text = "    <RequireAll>\n".to_owned();
    if access.needs_login {
        text.push_str("        Require valid-user\n");
    }
    text.push_str("        <RequireAny>\n");
    for grant in access.grants.iter().filter(|grant| grant.writes || !to_write) {
        match grant.clients {
            Some(clients) => _ = writeln!(text, "            Require ip {clients}"),
            None => text.push_str("            Require all granted\n"),
        }
    }
    text + "        </RequireAny>\n    </RequireAll>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Door;

    fn web(value: &str) -> String {
        let http = Access::parse(Door::Http, value).unwrap();
        let export = Export {
            id: 1,
            name: "web".to_owned(),
            path: "/srv/shares/web".to_owned(),
            nfs: Access::default(),
            smb: Access::default(),
            http,
            ftp: Access::default(),
        };
        section(&export, "/etc/shale")
    }

    #[test]
    fn what_is_read_only_has_no_webdav() {
        let text = web("ro");
        assert!(!text.contains("Dav On") && !text.contains("Limit") && text.contains("Require all granted"), "{text}");
        assert!(text.starts_with("Alias \"/web\" \"/srv/shares/web\"\n<Directory \"/srv/shares/web\">\n"), "{text}");
    }

    #[test]
    fn writers_and_readers_are_told_apart() {
        let text = web("rw@127.0.0.0/8,ro");
        let (reading, writing) = text.split_once("<LimitExcept").unwrap();
        assert!(reading.contains("Require ip 127.0.0.0/8") && reading.contains("Require all granted"), "{text}");
        assert!(writing.contains("Require ip 127.0.0.0/8") && !writing.contains("granted"), "{text}");
        let text = web("rw,login");
        assert!(
            text.contains("Dav On") && text.contains("Require valid-user") && text.contains("/etc/shale/http.users")
        );
    }

    #[test]
    fn the_mark_is_another_for_another_text() {
        let places = Places { state: "/s".to_owned(), logs: "/l".to_owned(), own: "/o".to_owned() };
        let (text, mark) = server(&Settings::default(), &places, ("/m", "/t", 33), &[], "");
        let (_, other) = server(&Settings::default(), &places, ("/m", "/t", 33), &[], "LogLevel debug\n");
        assert_ne!(mark, other);
        assert!(text.contains("EnableSendfile off\nEnableMMAP off\n") && text.contains("Listen 127.0.0.1:8081\n"));
        assert_eq!(listens(&text), Some(([127, 0, 0, 1], 8081).into()));
        for (address, listened) in [("::1", "[::1]:8081"), ("0.0.0.0", "0.0.0.0:8081"), ("10.0.0.7", "10.0.0.7:8081")] {
            let settings = Settings { address: address.parse().unwrap(), ..Settings::default() };
            let (text, _) = server(&settings, &places, ("/m", "/t", 33), &[], "");
            assert_eq!(listens(&text), listened.parse().ok());
        }
        assert!(text.ends_with(&format!("RedirectMatch 410 \"^/\\.shale-{mark:016x}$\"\n")), "{text}");
    }
}
