//! The report of `shale exports`: the exports, their addresses, and with --check the obstacles.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};

use doors::{Access, Door};
use engine::Pool;
use report::{CheckLine, ExportLine, ExportsReport};

use super::open::doors_of;
use super::world::World;
use super::{CHANGE_PATIENCE, Exports, LOOK_PATIENCE, ftp, nfs, ports, rpc, smb, tools, users, web};

/// Returns the open doors of a pool's shares, with their access.
fn open_doors(pool: &Pool) -> Vec<(String, Door, String, Access)> {
    let shares = pool.volumes().into_iter().filter(|volume| volume.is_share());
    let of_share = |share: String| {
        let open = doors_of(pool, &share).into_iter();
        open.map(move |of| (share.clone(), of.door, of.value, of.access.unwrap_or_default()))
    };
    shares.flat_map(|share| of_share(share.name)).collect()
}

/// Returns the report of a pool without servers for its shares.
pub fn unserved(pool: &Pool, check: bool) -> ExportsReport {
    let open = open_doors(pool);
    let why = "not served: start shale serve POOL --shares DIR --exports DIR";
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

/// Checks that the packages of the servers are installed.
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
    let line = |(door, package, good): (Door, &str, bool)| {
        let missing = || format!("missing, {} needs it: apt install {package}", door.name());
        CheckLine::new(format!("package {package}"), good, if good { "installed".to_owned() } else { missing() })
    };
    needed.into_iter().filter(|(door, ..)| doors.contains(door)).map(line).collect()
}

fn has_samba_modules() -> bool {
    let arches = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    arches.map(|entry| entry.path().join("samba/vfs/acl_xattr.so")).any(|file| file.exists())
}

impl Exports {
    /// Reports the exports; with `check`, also the obstacles, and the answers to a client.
    pub fn report(&self, check: bool) -> ExportsReport {
        let faults = self.look(&Door::ALL, check, if check { CHANGE_PATIENCE } else { LOOK_PATIENCE });
        let open = open_doors(&self.shown.pool);
        let mounted: Vec<_> = self.shown.shares.mounted().into_iter().map(|(_, name, _)| name).collect();
        let crowded = self.crowded(&open);
        let line = |(share, door, value, access): &(String, Door, String, Access)| {
            let of_door = faults.iter().filter(|fault| fault.door == *door);
            // Its own fault first: that of the server applies to all.
            let mut of_share: Vec<_> =
                of_door.filter(|fault| fault.share.as_ref().is_none_or(|own| own == share)).collect();
            of_share.sort_by_key(|fault| fault.share.is_none());
            let unmounted = (!mounted.contains(share)).then(|| "the share is not mounted".to_owned());
            let is_reached = unmounted.is_none() && !(*door == Door::Ftp && crowded.contains_key(share));
            let address = is_reached.then(|| self.address(share, *door, access));
            ExportLine {
                share: share.clone(),
                door: door.name().to_owned(),
                access: value.clone(),
                address,
                fault: unmounted.or(of_share.first().map(|fault| fault.text.clone())),
            }
        };
        let exports: Vec<_> = open.iter().map(line).collect();
        let checks = if check { self.checks(&open, &crowded) } else { Vec::new() };
        ExportsReport { dir: Some(self.dir().display().to_string()), exports, checks }
    }

    /// Returns the address of a share for its clients.
    fn address(&self, share: &str, door: Door, access: &Access) -> String {
        let World { settings, .. } = &self.shown.world;
        let host = self.shown.world.host();
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

    /// Returns the shares that are not served by FTP because another one has their port: that port,
    /// and the other share.
    fn crowded(&self, open: &[(String, Door, String, Access)]) -> BTreeMap<String, (u16, String)> {
        let mut by_port = BTreeMap::new();
        let mut crowded = BTreeMap::new();
        // In the order in which they are served.
        for (_, name, _) in self.shown.shares.mounted() {
            let of_share = open.iter().find(|(share, door, ..)| *share == name && *door == Door::Ftp);
            let Some((.., access)) = of_share.filter(|(.., access)| access.is_open()) else { continue };
            let port = access.port.unwrap_or(self.shown.world.settings.ftp_port);
            match by_port.get(&port) {
                Some(first) => drop(crowded.insert(name, (port, String::clone(first)))),
                None => drop(by_port.insert(port, name)),
            }
        }
        crowded
    }

    fn checks(
        &self,
        open: &[(String, Door, String, Access)],
        crowded: &BTreeMap<String, (u16, String)>,
    ) -> Vec<CheckLine> {
        let settings = &self.shown.world.settings;
        let doors: Vec<_> = open.iter().map(|(_, door, ..)| *door).collect();
        let mut checks = packages(&doors, settings.has_nfs3);
        let pids: BTreeMap<Door, _> = Door::ALL.into_iter().zip(&self.keepers).map(|(d, of)| (d, of.pids())).collect();
        let pid = |door: Door, word: &str| pids.get(&door).and_then(|pids| pids.get(word)).copied();
        let mut ports = Vec::new();
        if doors.contains(&Door::Nfs) {
            ports.push((settings.nfs_port, pid(Door::Nfs, ""), Door::Nfs));
            if settings.has_nfs3 {
                ports.push((settings.mount_port, pid(Door::Nfs, ""), Door::Nfs));
            }
        }
        for (door, port) in [(Door::Smb, settings.smb_port), (Door::Http, settings.http_port)] {
            if doors.contains(&door) {
                ports.push((port, pid(door, ""), door));
            }
        }
        for export in self.shown.shares.mounted() {
            if let Some((share, _, _, access)) =
                open.iter().find(|(share, door, ..)| *share == export.1 && *door == Door::Ftp)
                && !crowded.contains_key(share)
            {
                let pid = pid(Door::Ftp, &share.replace('/', "-"));
                ports.push((access.port.unwrap_or(settings.ftp_port), pid, Door::Ftp));
            }
        }
        checks.extend(ports.into_iter().map(|(port, pid, door)| self.port(port, pid, door.name())));
        for (share, door, _, access) in open {
            let what = format!("networks ({} of share {share})", door.name());
            let found = self.shown.world.unreached(access);
            checks.extend(found.map(|found| CheckLine { warns: true, ..CheckLine::new(what, true, found) }));
        }
        let mounted = self.shown.shares.mounted();
        let dir = |share: &str| mounted.iter().find(|(_, name, _)| name == share).map(|(.., dir)| dir.as_path());
        let users = open
            .iter()
            .flat_map(|(share, door, _, access)| users::checks(&self.shown.world, share, *door, access, dir(share)));
        let mut users: Vec<_> = users.collect();
        users.dedup();
        checks.extend(users);
        checks.extend(open.iter().map(|(share, door, value, access)| match crowded.get(share) {
            Some((port, other)) if *door == Door::Ftp => {
                let found = format!("not served: port {port} belongs to share {other}; set ftp={value},port=N here");
                CheckLine::new(format!("ftp of share {share}"), false, found)
            }
            _ => {
                let word = if *door == Door::Ftp { share.replace('/', "-") } else { String::new() };
                let what = format!("{} of share {share}", door.name());
                let found = match pid(*door, &word) {
                    Some(_) => self.as_client(share, *door, access),
                    // Another server may answer at its port.
                    None => Err("not served: its server is not running".to_owned()),
                };
                CheckLine::new(what, found.is_ok(), found.unwrap_or_else(|error| error))
            }
        }));
        if doors.contains(&Door::Nfs) && settings.has_nfs3 {
            checks.push(self.version_3());
        }
        if doors.contains(&Door::Nfs) && settings.has_nfs4 {
            checks.push(self.minor_versions());
        }
        checks
    }

    /// Checks which process holds a port.
    fn port(&self, port: u16, pid: Option<i32>, door: &str) -> CheckLine {
        let settings = &self.shown.world.settings;
        let what = format!("port {port} ({door})");
        if let Some(pid) = pid {
            let found = rpc::connect((settings.address, port).into()).map(|()| format!("served by process {pid}"));
            return CheckLine::new(what, found.is_ok(), found.unwrap_or_else(|error| error));
        }
        let free = TcpListener::bind((settings.address, port));
        let found = match &free {
            Ok(_) => "free, and nothing is served there".to_owned(),
            Err(error) => {
                let by = ports::holder(port).map_or_else(|| error.to_string(), |holder| format!("by {holder}"));
                format!("taken {by}: end it, or choose another in {}", self.shown.world.file("settings").display())
            }
        };
        CheckLine::new(what, false, found)
    }

    /// Returns the answer to a client on this machine.
    fn as_client(&self, share: &str, door: Door, access: &Access) -> Result<String, String> {
        let settings = &self.shown.world.settings;
        let at = |port: u16| SocketAddr::new(settings.address, port);
        match door {
            Door::Nfs => {
                let version = if settings.has_nfs4 { 4 } else { 3 };
                rpc::null(at(settings.nfs_port), rpc::NFS, version).map(|()| format!("NFS version {version} answers"))
            }
            Door::Smb => rpc::connect(at(settings.smb_port)).map(|()| "the server answers".to_owned()),
            Door::Http => match rpc::http_status(at(settings.http_port), &format!("/{share}/")) {
                Ok(200) => Ok("listed".to_owned()),
                Ok(401) if access.needs_login => Ok("asks for a password".to_owned()),
                Ok(403) if !access.is_for_all() => Ok("refused to this machine, as the property says".to_owned()),
                Ok(403) => {
                    Err(format!("refused: may user {} read the directory? (chmod o+rx, or chown)", settings.http_user))
                }
                Ok(status) => Err(format!("answered with status {status}")),
                Err(error) => Err(error),
            },
            Door::Ftp => {
                let at = at(access.port.unwrap_or(settings.ftp_port));
                let (heard, answer) = match access.needs_login {
                    true => (rpc::greeting(at)?, None),
                    false => rpc::anonymous_log_in(at).map(|(heard, answer)| (heard, Some(answer)))?,
                };
                if !heard.contains(&format!("share {share} (")) {
                    return Err(format!("has another greeting: {heard}"));
                }
                match answer.filter(|answer| !answer.starts_with("230")) {
                    None => Ok(format!("greets: {heard}")),
                    Some(answer) => Err(format!(
                        "refuses clients without a password: {answer} (may user ftp write in the directory of the \
                         share? chmod 755)"
                    )),
                }
            }
        }
    }

    /// Checks that clients of NFS 3 find its ports, through rpcbind unless they name them.
    fn version_3(&self) -> CheckLine {
        let settings = &self.shown.world.settings;
        let wanted = [(rpc::NFS, settings.nfs_port), (rpc::MOUNT, settings.mount_port)];
        let told = wanted.map(|(program, _)| rpc::port_of(settings.address, program, 3));
        let why = match told {
            [Ok(nfs), Ok(mount)] if [nfs, mount] == [settings.nfs_port, settings.mount_port] => {
                return CheckLine::new("NFS 3".to_owned(), true, "rpcbind reports its ports to clients");
            }
            [Ok(0), _] | [_, Ok(0)] => "the clients' rpcbind does not know it".to_owned(),
            [Ok(nfs), Ok(mount)] => format!("rpcbind returns ports {nfs} and {mount}, which belong to another server"),
            [Err(_), _] | [_, Err(_)] => "no rpcbind answers clients (port 111)".to_owned(),
        };
        let (nfs, mount) = (settings.nfs_port, settings.mount_port);
        let found = format!(
            "{why}: showmount finds nothing, and clients name the ports: -o vers=3,nolock,port={nfs},mountport={mount}, \
             with libnfs nfsport={nfs}&mountport={mount}"
        );
        CheckLine { warns: true, ..CheckLine::new("NFS 3".to_owned(), true, found) }
    }

    /// Checks that NFS 4.2 is not served: Ganesha 4.3 answers its READ_PLUS with zeroes.
    fn minor_versions(&self) -> CheckLine {
        let settings = &self.shown.world.settings;
        let has = rpc::has_minor((settings.address, settings.nfs_port).into(), 2);
        let found = match &has {
            Ok(false) => "off, as it must be".to_owned(),
            Ok(true) => "on: clients may read zeroes; see ganesha.local.conf".to_owned(),
            Err(error) => error.clone(),
        };
        CheckLine::new("NFS 4.2".to_owned(), has == Ok(false), found)
    }
}
