//! What `shale exports` tells: the exports, how they are reached, and with --check what stands in
//! the way.

use std::net::TcpListener;

use doors::{Access, Door};
use engine::Pool;
use serde::{Deserialize, Serialize};

use super::open::doors_of;
use super::world::World;
use super::{Exports, ftp, nfs, ports, rpc, smb, tools, web};

/// A share and a door of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportLine {
    /// The share.
    pub share: String,
    /// The door.
    pub door: String,
    /// What the property says.
    pub access: String,
    /// How it is reached, while it is served.
    pub address: Option<String>,
    /// Why it is not served as the property says, if that is known.
    pub fault: Option<String>,
}

/// Something that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckLine {
    /// What.
    pub what: String,
    /// Whether it is as it must be.
    pub good: bool,
    /// The finding, and the remedy.
    pub found: String,
}

/// The doors of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ExportsReport {
    /// The directory of their configurations, while they are served.
    pub dir: Option<String>,
    /// Open doors, by share.
    pub exports: Vec<ExportLine>,
    /// The checks made.
    pub checks: Vec<CheckLine>,
}

/// Open doors of the shares of a pool, by share, with the share's access.
fn open_doors(pool: &Pool) -> Vec<(String, Door, String, Access)> {
    let shares = pool.volumes().into_iter().filter(|volume| volume.is_share());
    let of_share = |share: String| {
        let open = doors_of(pool, &share).into_iter();
        open.map(move |of| (share.clone(), of.door, of.value, of.access.unwrap_or_default()))
    };
    shares.flat_map(|share| of_share(share.name)).collect()
}

/// The report of a pool whose shares no server gives out.
pub fn unserved(pool: &Pool, check: bool) -> ExportsReport {
    let open = open_doors(pool);
    let why = "not served: shale serve POOL --shares DIR --exports DIR gives it out";
    let line = |(share, door, access, _): &(String, Door, String, Access)| ExportLine {
        share: share.clone(),
        door: door.name().to_owned(),
        access: access.clone(),
        address: None,
        fault: Some(why.to_owned()),
    };
    let exports = open.iter().map(line).collect();
    let checks =
        if check { packages(&open.iter().map(|(_, door, ..)| *door).collect::<Vec<_>>(), true) } else { vec![] };
    ExportsReport { dir: None, exports, checks }
}

/// Whether the packages of the servers are there.
fn packages(doors: &[Door], has_nfs3: bool) -> Vec<CheckLine> {
    let mut needed: Vec<(Door, &str, bool)> = vec![
        (Door::Nfs, nfs::PACKAGES[0], tools::find(nfs::PROGRAM).is_some()),
        (Door::Nfs, nfs::PACKAGES[1], nfs::plugins().is_some()),
        (Door::Nfs, nfs::BUS_PACKAGE, ["dbus-daemon", "dbus-send"].iter().all(|name| tools::find(name).is_some())),
        (Door::Smb, smb::PACKAGE, tools::find(smb::PROGRAM).is_some()),
        (Door::Smb, smb::MODULES_PACKAGE, has_samba_modules()),
        (Door::Http, web::PACKAGE, tools::find(web::PROGRAM).is_some()),
        (Door::Ftp, ftp::PACKAGE, tools::find(ftp::PROGRAM).is_some()),
    ];
    if has_nfs3 {
        needed.push((Door::Nfs, "rpcbind", nfs::has_rpcbind() || tools::find("rpcbind").is_some()));
    }
    let line = |(door, package, good): (Door, &str, bool)| CheckLine {
        what: format!("package {package}"),
        good,
        found: if good {
            "installed".to_owned()
        } else {
            format!("missing, {} needs it: apt install {package}", door.name())
        },
    };
    needed.into_iter().filter(|(door, ..)| doors.contains(door)).map(line).collect()
}

fn has_samba_modules() -> bool {
    let arches = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    arches.map(|entry| entry.path().join("samba/vfs/acl_xattr.so")).any(|file| file.exists())
}

impl Exports {
    /// The exports; with `check`, what stands in the way, and what a client would see.
    pub fn report(&self, check: bool) -> ExportsReport {
        let faults = self.look(check);
        let open = open_doors(&self.pool);
        let mounted: Vec<_> = self.shares.mounted().into_iter().map(|(_, name, _)| name).collect();
        let line = |(share, door, value, access): &(String, Door, String, Access)| {
            let of_door = faults.iter().find(|fault| fault.door == *door).map(|fault| fault.text.clone());
            let unmounted = (!mounted.contains(share)).then(|| "the share is not mounted".to_owned());
            let address = unmounted.is_none().then(|| self.address(share, *door, access));
            ExportLine {
                share: share.clone(),
                door: door.name().to_owned(),
                access: value.clone(),
                address,
                fault: unmounted.or(of_door),
            }
        };
        let exports: Vec<_> = open.iter().map(line).collect();
        let checks = if check { self.checks(&open) } else { Vec::new() };
        ExportsReport { dir: Some(self.world.dir.display().to_string()), exports, checks }
    }

    /// How a client reaches a share.
    fn address(&self, share: &str, door: Door, access: &Access) -> String {
        let World { settings, .. } = &self.world;
        let host = self.world.host();
        match door {
            Door::Nfs if settings.has_nfs4 => {
                format!("mount -t nfs -o vers=4.1,port={} {host}:/{share} DIR", settings.nfs_port)
            }
            Door::Nfs => {
                let (port, mount) = (settings.nfs_port, settings.mount_port);
                format!("mount -t nfs -o vers=3,nolock,port={port},mountport={mount} {host}:/{share} DIR")
            }
            Door::Smb => format!("smb://{host}:{}/{}", settings.smb_port, share.replace('/', "-")),
            Door::Http => format!("http://{host}:{}/{share}/", settings.http_port),
            Door::Ftp => format!("ftp://{host}:{}/", access.port.unwrap_or(settings.ftp_port)),
        }
    }

    fn checks(&self, open: &[(String, Door, String, Access)]) -> Vec<CheckLine> {
        let settings = &self.world.settings;
        let doors: Vec<_> = open.iter().map(|(_, door, ..)| *door).collect();
        let mut checks = packages(&doors, settings.has_nfs3);
        let servers = self.servers.lock();
        let mut ports = Vec::new();
        if doors.contains(&Door::Nfs) {
            ports.push((settings.nfs_port, servers.nfs.pid(), "nfs"));
            if settings.has_nfs3 {
                ports.push((settings.mount_port, servers.nfs.pid(), "nfs"));
            }
        }
        if doors.contains(&Door::Smb) {
            ports.push((settings.smb_port, servers.smb.process.pid(), "smb"));
        }
        if doors.contains(&Door::Http) {
            ports.push((settings.http_port, servers.http.process.pid(), "http"));
        }
        for export in self.shares.mounted() {
            if let Some((share, _, _, access)) =
                open.iter().find(|(share, door, ..)| *share == export.1 && *door == Door::Ftp)
            {
                let pid = servers.ftp.get(&share.replace('/', "-")).and_then(|kept| kept.process.pid());
                ports.push((access.port.unwrap_or(settings.ftp_port), pid, "ftp"));
            }
        }
        drop(servers);
        checks.extend(ports.into_iter().map(|(port, pid, door)| self.port(port, pid, door)));
        let users = open.iter().flat_map(|(share, door, _, access)| self.users(share, *door, access));
        let mut users: Vec<_> = users.collect();
        users.dedup();
        checks.extend(users);
        checks.extend(open.iter().map(|(share, door, _, access)| self.as_client(share, *door, access)));
        if doors.contains(&Door::Nfs) && settings.has_nfs4 {
            checks.push(self.minor_versions());
        }
        checks
    }

    /// Whose a port is.
    fn port(&self, port: u16, pid: Option<i32>, door: &str) -> CheckLine {
        let settings = &self.world.settings;
        let what = format!("port {port} ({door})");
        if let Some(pid) = pid {
            let found = rpc::connect(settings.address, port);
            let good = found.is_ok();
            return CheckLine {
                what,
                good,
                found: found.map_or_else(|error| error, |_| format!("served by process {pid}")),
            };
        }
        let free = TcpListener::bind((settings.address, port));
        let found = match &free {
            Ok(_) => "free, and nothing is served there".to_owned(),
            Err(error) => {
                let by = ports::holder(port).map_or_else(|| error.to_string(), |holder| format!("by {holder}"));
                format!("taken {by}: end that, or choose another in {}", self.world.file("settings").display())
            }
        };
        CheckLine { what, good: false, found }
    }

    /// Whether the users are there that a door of a share names or needs.
    fn users(&self, share: &str, door: Door, access: &Access) -> Vec<CheckLine> {
        let mut named: Vec<_> =
            access.users.iter().map(|user| (user.clone(), format!("smb of share {share}"))).collect();
        match door {
            Door::Http => named.push((self.world.settings.http_user.clone(), "http-user of settings".to_owned())),
            Door::Ftp if !access.needs_login => named.push(("ftp".to_owned(), "ftp without a password".to_owned())),
            Door::Nfs | Door::Smb | Door::Ftp => {}
        }
        let line = |(user, by): (String, String)| {
            let good = tools::has_user(&user);
            let found = if good { "there" } else { "this machine has no such user: useradd, or name another" };
            CheckLine { what: format!("user {user} ({by})"), good, found: found.to_owned() }
        };
        let mut lines: Vec<_> = named.into_iter().map(line).collect();
        let passwords = self.world.file("http.users");
        if door == Door::Http && access.needs_login && !passwords.is_file() {
            let found = format!("missing, so that none comes in: htpasswd -B -c {} USER", passwords.display());
            lines.push(CheckLine { what: format!("passwords (http of share {share})"), good: false, found });
        }
        lines
    }

    /// What a client on this machine is answered.
    fn as_client(&self, share: &str, door: Door, access: &Access) -> CheckLine {
        let settings = &self.world.settings;
        let address = settings.address;
        let found = match door {
            Door::Nfs => {
                let version = if settings.has_nfs4 { 4 } else { 3 };
                rpc::null(address, settings.nfs_port, rpc::NFS, version)
                    .map(|()| format!("NFS version {version} answers"))
            }
            Door::Smb => rpc::connect(address, settings.smb_port).map(|_| "the server answers".to_owned()),
            Door::Http => match rpc::http_status(address, settings.http_port, &format!("/{share}/")) {
                Ok(200) => Ok("listed".to_owned()),
                Ok(401) if access.needs_login => Ok("asks for a password".to_owned()),
                Ok(403) if !access.is_for_all() => Ok("refused to this machine, as the property says".to_owned()),
                Ok(403) => {
                    Err(format!("refused: may user {} read the directory? (chmod o+rx, or chown)", settings.http_user))
                }
                Ok(status) => Err(format!("answered with status {status}")),
                Err(error) => Err(error),
            },
            Door::Ftp => rpc::greeting(address, access.port.unwrap_or(settings.ftp_port)).and_then(|heard| {
                let is_of_share = heard.contains(&format!("share {share} ("));
                if is_of_share { Ok(format!("greets: {heard}")) } else { Err(format!("greets as another: {heard}")) }
            }),
        };
        let what = format!("{} of share {share}", door.name());
        CheckLine { what, good: found.is_ok(), found: found.unwrap_or_else(|error| error) }
    }

    /// NFS 4.2 must not be served: Ganesha 4.3 answers its READ_PLUS with zeroes.
    fn minor_versions(&self) -> CheckLine {
        let settings = &self.world.settings;
        let has = rpc::has_minor(settings.address, settings.nfs_port, 2);
        let found = match &has {
            Ok(false) => "off, as it must be".to_owned(),
            Ok(true) => "on: clients may read zeroes; see ganesha.local.conf".to_owned(),
            Err(error) => error.clone(),
        };
        CheckLine { what: "NFS 4.2".to_owned(), good: has == Ok(false), found }
    }
}
