//! vsftpd 3: one process for each share, because a process has one tree and one set of rules.
//!
//! The greeting contains the mark of the configuration in force.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::export::{Export, Places};
use crate::mark_of;
use crate::settings::Settings;

/// The port of a share.
pub fn port(export: &Export, settings: &Settings) -> u16 {
    export.ftp.port.unwrap_or(settings.ftp_port)
}

/// The configuration file for one share, and its mark; `own`: the administrator's additions.
pub fn server(settings: &Settings, places: &Places, export: &Export, own: &str) -> (String, u64) {
    let yes = |is: bool| if is { "YES" } else { "NO" };
    let access = &export.ftp;
    let is_ipv6 = settings.address.is_ipv6();
    let address = match settings.address {
        address if address.is_unspecified() => String::new(),
        address if is_ipv6 => format!("listen_address6={address}\n"),
        address => format!("listen_address={address}\npasv_address={address}\n"),
    };
    let mut text = format!(
        "# Written by shale serve; what you add belongs to vsftpd.local.conf.\n\
         background=NO\nlisten={}\nlisten_ipv6={}\n{address}listen_port={}\nconnect_from_port_20=NO\nport_enable=NO\npasv_enable=YES\n\
         pasv_min_port={}\npasv_max_port={}\nsecure_chroot_dir={state}/empty\nxferlog_enable=YES\n\
         vsftpd_log_file={logs}/ftp-{word}.log\npam_service_name=vsftpd\nanonymous_enable={anonymous}\nno_anon_password=YES\n\
         anon_root={path}\nanon_upload_enable=NO\nlocal_enable={login}\nlocal_root={path}\nchroot_local_user=YES\n\
         allow_writeable_chroot=YES\nwrite_enable={writes}\nlocal_umask=022\nfile_open_mode=0666\nmdtm_write=YES\n\
         hide_file={{.shale}}\ndeny_file=.shale\nuse_localtime=NO\nseccomp_sandbox=NO\n",
        yes(!is_ipv6),
        yes(is_ipv6),
        port(export, settings),
        settings.ftp_passive.0,
        settings.ftp_passive.1,
        state = places.state,
        logs = places.logs,
        word = export.word(),
        path = export.path,
        anonymous = yes(!access.needs_login),
        login = yes(access.needs_login),
        writes = yes(access.writes()),
    );
    text.push_str(own);
    let mark = mark_of(&text);
    text.push_str(&format!("ftpd_banner={}\n", greeting(export, mark)));
    (text, mark)
}

/// The address at which a server with this text listens.
pub fn listens(text: &str) -> Option<SocketAddr> {
    let value = |key: &str| text.lines().rev().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    let all: IpAddr =
        if value("listen_ipv6") == Some("YES") { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let address = value("listen_address6").or_else(|| value("listen_address"));
    Some(SocketAddr::new(address.map_or(Some(all), |text| text.parse().ok())?, value("listen_port")?.parse().ok()?))
}

/// The server's greeting.
pub fn greeting(export: &Export, mark: u64) -> String {
    format!("share {} ({mark:016x})", export.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{Access, Door};

    #[test]
    fn rights_by_table() {
        let places = Places { state: "/s".to_owned(), logs: "/l".to_owned(), own: "/o".to_owned() };
        for (value, has) in [
            ("on", "anonymous_enable=YES\n"),
            ("ro", "write_enable=NO\n"),
            ("ro,login", "anonymous_enable=NO\n"),
            ("rw", "local_enable=YES\n"),
            ("rw", "anonymous_enable=NO\n"),
            ("rw", "write_enable=YES\n"),
            ("ro,port=2121", "listen_port=2121\n"),
            ("ro", "listen_address=127.0.0.1\n"),
            ("ro", "seccomp_sandbox=NO\n"),
            // Every name that contains it: patterns only apply to the last part of a name, and
            // would not deny `.shale/snapshots`.
            ("rw", "deny_file=.shale\n"),
        ] {
            let export = Export {
                id: 1,
                name: "pub".to_owned(),
                path: "/srv/shares/pub".to_owned(),
                nfs: Access::default(),
                smb: Access::default(),
                http: Access::default(),
                ftp: Access::parse(Door::Ftp, value).unwrap(),
            };
            let (text, mark) = server(&Settings::default(), &places, &export, "max_clients=3\n");
            assert!(text.contains(has), "{value}: {text}");
            let port = if value.contains("port=") { 2121 } else { 21 };
            assert_eq!(listens(&text), Some(([127, 0, 0, 1], port).into()));
            for address in ["0.0.0.0", "::", "::1", "10.0.0.7"] {
                let address = address.parse().unwrap();
                let (text, _) = server(&Settings { address, ..Settings::default() }, &places, &export, "");
                assert_eq!(listens(&text), Some(SocketAddr::new(address, port)));
            }
            assert!(text.ends_with(&format!("max_clients=3\nftpd_banner=share pub ({mark:016x})\n")), "{text}");
        }
    }
}
