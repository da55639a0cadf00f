//! NFS by Ganesha: the server, the message bus over which its exports are changed one by one, and
//! rpcbind where version 3 needs one.
//!
//! Steps of changing an export:
//!
//! 1. Its file is written next to the one in force.
//! 2. The server is asked over the bus to load it. A wrong one is refused without any change.
//! 3. It replaces the file in force, which the server reads when it starts.
//!
//! The server is never asked to reload everything: a fault would remove every export.
//!
//! A share that lies in another is exported below it, and depends on it: [`ganesha::steps`] has the
//! order in which such exports are added and removed.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use doors::{Door, Export, ganesha};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::keeper::Servers;
use super::process::Process;
use super::world::World;
use super::{Fault, ports, rpc, tools};

/// Packages of the server and of its support for mounted file systems.
pub const PACKAGES: [&str; 2] = ["nfs-ganesha", "nfs-ganesha-vfs"];
/// Program of the server.
pub const PROGRAM: &str = "ganesha.nfsd";
/// Package of the message bus.
pub const BUS_PACKAGE: &str = "dbus";
/// Socket of a running rpcbind.
const RPCBIND: &str = "/run/rpcbind.sock";
/// Maximum seconds until a server answers after its start.
const SECONDS: u32 = 30;

/// Returns the directory of the server's modules.
pub fn plugins() -> Option<PathBuf> {
    let arches = std::fs::read_dir("/usr/lib").ok()?.flatten().map(|entry| entry.path().join("ganesha"));
    arches.chain([PathBuf::from("/usr/lib/ganesha")]).find(|dir| dir.join("libfsalvfs.so").exists())
}

/// Returns whether an rpcbind answers.
pub fn has_rpcbind() -> bool {
    takes_connections(Path::new(RPCBIND))
}

/// Returns whether a server accepts connections at a socket file. One with a full queue does not: a
/// usual connection would wait for it without a deadline.
fn takes_connections(path: &Path) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let connected = SocketAddrUnix::new(path).and_then(|address| {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &address)
    });
    connected.is_ok()
}

/// The servers.
pub struct Nfs {
    ganesha: Process,
    bus: Process,
    rpcbind: Process,
    /// Texts of the served exports, by their numbers.
    in_force: BTreeMap<u16, String>,
    /// Texts that were refused, with the reasons.
    refused: BTreeMap<u16, (String, String)>,
    /// Reason why the server does not start.
    fault: Option<String>,
    /// Reason why it runs without the administrator's additions.
    own_fault: Option<String>,
    /// A server started by an earlier one of the pool was inspected.
    has_looked: bool,
}

impl Nfs {
    /// Finds servers that may be running already.
    pub fn find(dir: &Path) -> Self {
        Self {
            ganesha: Process::find(dir, "ganesha"),
            bus: Process::find(dir, "bus"),
            rpcbind: Process::find(dir, "rpcbind"),
            in_force: BTreeMap::new(),
            refused: BTreeMap::new(),
            fault: None,
            own_fault: None,
            has_looked: false,
        }
    }

    /// Brings the server in step with the shares that it exports.
    fn bring_all(&mut self, world: &World, exports: &[&Export]) -> Result<(), Vec<Fault>> {
        let of_server = |text: String| vec![Fault { door: Door::Nfs, share: None, text }];
        let wanted: BTreeMap<u16, String> =
            exports.iter().map(|export| (export.id, ganesha::export(export, &world.settings))).collect();
        let is_alive = self.ganesha.is_alive();
        if wanted.is_empty() {
            if is_alive {
                // An export is removed at once, but the server finishes later.
                let steps = ganesha::steps(&self.in_force, &wanted);
                steps.remove.into_iter().for_each(|id| drop(self.remove(world, id)));
            }
            self.stop();
            return Ok(());
        }
        if is_alive && !self.has_looked {
            self.look_at_what_runs(world, exports);
        }
        self.has_looked = true;
        if self.ganesha.is_alive() && self.bus.is_alive() {
            self.change(world, exports, &wanted)?;
            return self.own_fault.clone().map_or(Ok(()), |text| Err(of_server(text)));
        }
        if !self.ganesha.is_due() {
            let fault = self.fault.clone();
            return Err(of_server(fault.unwrap_or_else(|| "nfs: the server has ended, and is restarted".to_owned())));
        }
        let own = world.own("ganesha.local.conf");
        let mut started = self.start(world, exports, &wanted, &own);
        self.own_fault = None;
        if let Err(why) = &started
            && !own.is_empty()
            && !world.ends()
        {
            let why = format!("{why}; it is served without ganesha.local.conf");
            started = self.start(world, exports, &wanted, "");
            self.own_fault = started.is_ok().then_some(why);
        }
        self.ganesha.has_started(started.is_ok());
        self.fault = started.as_ref().err().cloned();
        started.map_err(of_server)
    }

    /// Determines the exports of a server that was started by a process that is gone. A server with
    /// mounts that are gone as well is ended: it would only return errors.
    fn look_at_what_runs(&mut self, world: &World, exports: &[&Export]) {
        let noted = std::fs::read_to_string(world.file("nfs/devices")).unwrap_or_default();
        let is_as_before = |export: &&Export| {
            let line = device_line(export);
            line.is_none_or(|line| {
                noted.lines().any(|known| known == line) || !noted.contains(&format!("{} ", export.id))
            })
        };
        let shown = self.bus.is_alive().then(|| self.shown(world)).and_then(Result::ok);
        match shown {
            Some(shown) if exports.iter().all(is_as_before) => {
                for id in shown {
                    let text = std::fs::read_to_string(export_file(world, id)).unwrap_or_default();
                    self.in_force.insert(id, text);
                }
            }
            _ => self.ganesha.stop(),
        }
    }

    fn start(
        &mut self,
        world: &World,
        exports: &[&Export],
        wanted: &BTreeMap<u16, String>,
        own: &str,
    ) -> Result<(), String> {
        let failed = |what: &str, why: String| format!("nfs: {what}: {why}");
        self.ganesha.stop();
        self.in_force.clear();
        for at in answers_at(world) {
            if let Some(why) = ports::taken(at, &self.rpcbind.all()) {
                return Err(failed("nothing is served", why));
            }
        }
        let plugins = plugins().ok_or_else(|| format!("nfs: install the packages {}", PACKAGES.join(" and ")))?;
        let mut command = tools::command(PROGRAM, PACKAGES[0]).map_err(|why| failed("not served", why))?;
        self.start_bus(world).map_err(|why| failed("the message bus", why))?;
        if world.settings.has_nfs3 {
            self.start_rpcbind(world).map_err(|why| failed("version 3 needs rpcbind", why))?;
        }
        for entry in std::fs::read_dir(world.file("nfs")).into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|ext| ext == "conf") {
                drop(std::fs::remove_file(entry.path()));
            }
        }
        let mut files = Vec::new();
        for (id, text) in wanted {
            let file = export_file(world, *id);
            tools::write(&file, text)?;
            files.push(file.display().to_string());
        }
        let places = world.places("nfs");
        let text = ganesha::server(&world.settings, &places, &plugins.display().to_string(), &files, own);
        let file = world.file("ganesha.conf");
        tools::write(&file, &text)?;
        command.env("DBUS_SYSTEM_BUS_ADDRESS", bus_address(world));
        command.args(["-F", "-N", "NIV_EVENT", "-f"]).arg(&file);
        command.args(["-L", &format!("{}/ganesha.log", places.logs), "-p", &format!("{}/ganesha.pid", places.state)]);
        self.ganesha.start(&mut command)?;
        let ids: Vec<u16> = wanted.keys().copied().collect();
        let mut said = "the wait for it was abandoned".to_owned();
        world.wait(SECONDS, || {
            if !self.ganesha.is_alive() {
                said = "the server has ended".to_owned();
                return true;
            }
            said = match self.shown(world) {
                Ok(shown) if shown == ids => self.answers(world).err().unwrap_or_default(),
                Ok(shown) => format!("it serves exports {shown:?} instead of {ids:?}"),
                Err(why) => why,
            };
            said.is_empty()
        });
        if !said.is_empty() {
            let last = last_fault(&places.logs);
            self.ganesha.stop();
            let last = last.map_or_else(String::new, |last| format!("; last output: {last}"));
            return Err(failed("the server does not start", said + &last));
        }
        self.in_force.clone_from(wanted);
        note_devices(world, exports)
    }

    /// Checks that the versions of the protocol answer as to a client.
    fn answers(&self, world: &World) -> Result<(), String> {
        let settings = &world.settings;
        let at = |port: u16| (settings.address, port).into();
        if settings.has_nfs3 {
            rpc::null(at(settings.nfs_port), rpc::NFS, 3)?;
            rpc::null(at(settings.mount_port), rpc::MOUNT, 3)?;
        }
        if settings.has_nfs4 { rpc::null(at(settings.nfs_port), rpc::NFS, 4) } else { Ok(()) }
    }

    fn start_bus(&mut self, world: &World) -> Result<(), String> {
        if self.bus.is_alive() {
            return Ok(());
        }
        let (socket, file) = (bus_socket(world), world.file("bus.conf"));
        drop(std::fs::remove_file(&socket));
        tools::write(&file, &ganesha::bus(&socket.display().to_string()))?;
        let mut command = tools::command("dbus-daemon", BUS_PACKAGE)?;
        command.arg(format!("--config-file={}", file.display())).args(["--nofork", "--nopidfile"]);
        self.bus.start(&mut command)?;
        let answers = world.wait(SECONDS, || takes_connections(&socket) || !self.bus.is_alive());
        if answers && self.bus.is_alive() { Ok(()) } else { Err(said_last(&self.bus)) }
    }

    fn start_rpcbind(&mut self, world: &World) -> Result<(), String> {
        if self.rpcbind.is_alive() || has_rpcbind() {
            return Ok(());
        }
        // Reached only through its socket file, because it has a network of its own.
        let path = tools::find("rpcbind").ok_or("rpcbind is not installed: install the package rpcbind")?;
        let mut command = tools::command("unshare", "util-linux")?;
        command.arg("--net").arg(path).args(["-f", "-r"]);
        self.rpcbind.start(&mut command)?;
        let answers = world.wait(SECONDS, || has_rpcbind() || !self.rpcbind.is_alive());
        if answers && has_rpcbind() { Ok(()) } else { Err(said_last(&self.rpcbind)) }
    }

    /// Changes the exports of a running server.
    fn change(&mut self, world: &World, exports: &[&Export], wanted: &BTreeMap<u16, String>) -> Result<(), Vec<Fault>> {
        let share = |id: u16| exports.iter().find(|export| export.id == id).map(|export| export.name.clone());
        let fault = |share: Option<String>, text: String| Fault { door: Door::Nfs, share, text };
        let mut faults = Vec::new();
        let mut meant = wanted.clone();
        for (id, (text, why)) in &self.refused {
            if wanted.get(id) != Some(text) {
                continue;
            }
            faults.push(fault(share(*id), why.clone()));
            // Its text in force.
            match self.in_force.get(id) {
                Some(old) => drop(meant.insert(*id, old.clone())),
                None => drop(meant.remove(id)),
            }
        }
        let steps = ganesha::steps(&self.in_force, &meant);
        let has_changed = !steps.remove.is_empty() || !steps.put.is_empty();
        let mut stuck = Vec::new();
        for id in steps.remove {
            if let Err(why) = self.remove(world, id) {
                faults.push(fault(share(id), why));
                stuck.push(id);
            }
        }
        for id in steps.put {
            let Some(text) = meant.get(&id).filter(|_| !stuck.contains(&id)) else { continue };
            match self.put(world, id, text) {
                Ok(()) => drop(self.refused.remove(&id)),
                Err(why) => {
                    let name = share(id).unwrap_or_default();
                    let why = format!("nfs: share '{name}' is unchanged: {why}");
                    self.refused.insert(id, (text.clone(), why.clone()));
                    faults.push(fault(share(id), why));
                }
            }
        }
        if has_changed && faults.is_empty() {
            let ids: Vec<_> = self.in_force.keys().copied().collect();
            match self.shown(world) {
                Ok(shown) if shown == ids => {}
                Ok(shown) => {
                    faults.push(fault(None, format!("nfs: the server has exports {shown:?} instead of {ids:?}")));
                }
                Err(why) => faults.push(fault(None, why)),
            }
        }
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    /// Adds an export, or changes it in place.
    fn put(&mut self, world: &World, id: u16, text: &str) -> Result<(), String> {
        let file = export_file(world, id);
        let new = tools::prepare(&file, text)?;
        let method = if self.in_force.contains_key(&id) { "UpdateExport" } else { "AddExport" };
        let words = [format!("string:{}", new.path().display()), format!("string:EXPORT(Export_Id={id})")];
        self.ask(world, method, &[&words[0], &words[1]])?;
        new.publish().map_err(tools::unwritten(&file))?;
        self.in_force.insert(id, text.to_owned());
        self.list_files(world)
    }

    fn remove(&mut self, world: &World, id: u16) -> Result<(), String> {
        let removed = self.ask(world, "RemoveExport", &[&format!("uint16:{id}")]);
        // It may be gone for another reason.
        if removed.is_err() && self.shown(world)?.contains(&id) {
            return removed.map(drop);
        }
        drop(std::fs::remove_file(export_file(world, id)));
        self.in_force.remove(&id);
        self.list_files(world)
    }

    /// Makes the next start read the exports that are in force now.
    fn list_files(&self, world: &World) -> Result<(), String> {
        let file = world.file("ganesha.conf");
        let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let ids = self.in_force.keys();
        let list: String = ids.map(|id| format!("%include \"{}\"\n", export_file(world, *id).display())).collect();
        let is_listed = |line: &&str| line.starts_with("%include") && line.contains("/nfs/");
        let head: String = text.lines().take_while(|line| !is_listed(line)).map(|line| format!("{line}\n")).collect();
        let tail = text.lines().skip(head.lines().count()).filter(|line| !is_listed(line));
        let tail: String = tail.map(|line| format!("{line}\n")).collect();
        tools::write(&file, &(head + &list + &tail))
    }

    /// Returns the numbers of the server's exports.
    fn shown(&self, world: &World) -> Result<Vec<u16>, String> {
        let text = self.ask(world, "ShowExports", &[])?;
        let numbers = text.lines().filter_map(|line| line.trim().strip_prefix("uint16 ")?.trim().parse().ok());
        // The root of version 4's namespace has a number of its own.
        let mut numbers: Vec<u16> = numbers.filter(|id| *id != 0).collect();
        numbers.sort_unstable();
        numbers.dedup();
        Ok(numbers)
    }

    fn ask(&self, world: &World, method: &str, arguments: &[&str]) -> Result<String, String> {
        let bus = format!("--bus={}", bus_address(world));
        let call = format!("org.ganesha.nfsd.exportmgr.{method}");
        let mut words = vec![&*bus, "--print-reply", "--reply-timeout=8000", "--dest=org.ganesha.nfsd"];
        words.extend(["/org/ganesha/nfsd/ExportMgr", &call]);
        words.extend_from_slice(arguments);
        tools::run("dbus-send", BUS_PACKAGE, &words).map(|(out, _)| out)
    }
}

impl Servers for Nfs {
    fn bring(&mut self, world: &World, exports: &[&Export]) -> Vec<Fault> {
        self.bring_all(world, exports).err().unwrap_or_default()
    }

    fn hurry(&mut self) {
        self.refused.clear();
        self.ganesha.hurry();
    }

    fn stop(&mut self) {
        self.ganesha.stop();
        self.bus.stop();
        self.rpcbind.stop();
        self.in_force.clear();
        self.refused.clear();
    }

    fn pids(&self) -> BTreeMap<String, i32> {
        self.ganesha.pid().map(|pid| (String::new(), pid)).into_iter().collect()
    }
}

/// Returns the addresses at which the server listens.
fn answers_at(world: &World) -> Vec<std::net::SocketAddr> {
    let settings = &world.settings;
    let mount = settings.has_nfs3.then_some(settings.mount_port);
    [Some(settings.nfs_port), mount].into_iter().flatten().map(|port| (settings.address, port).into()).collect()
}

fn said_last(process: &Process) -> String {
    process.last_words().unwrap_or_else(|| "it does not answer".to_owned())
}

fn export_file(world: &World, id: u16) -> PathBuf {
    world.file(&format!("nfs/{id}.conf"))
}

fn bus_socket(world: &World) -> PathBuf {
    world.file("state/bus.sock")
}

fn bus_address(world: &World) -> String {
    format!("unix:path={}", bus_socket(world).display())
}

/// Returns the number of an export and of the device of its mount; its clients keep both.
fn device_line(export: &Export) -> Option<String> {
    let device = std::fs::metadata(&export.path).ok()?.dev();
    Some(format!("{} {device}", export.id))
}

fn note_devices(world: &World, exports: &[&Export]) -> Result<(), String> {
    let lines: Vec<_> = exports.iter().filter_map(|export| device_line(export)).collect();
    tools::write(&world.file("nfs/devices"), &(lines.join("\n") + "\n"))
}

/// Returns the last line of the server's log that reports a fault.
fn last_fault(logs: &str) -> Option<String> {
    let text = std::fs::read(format!("{logs}/ganesha.log")).unwrap_or_default();
    let text = String::from_utf8_lossy(&text[text.len().saturating_sub(64 << 10)..]).into_owned();
    let is_fault = |line: &&str| [":CRIT :", ":FATAL :", ":MAJ :"].iter().any(|mark| line.contains(mark));
    // Logged at every start without Kerberos.
    let mut faults =
        text.lines().rev().filter(is_fault).filter(|line| !line.contains("GSS") && !line.contains("keytab"));
    faults.next().map(str::to_owned)
}
