//! The front ends of a server and their settings, which can be reloaded from a file.
//!
//! A reload applies the whole file, or nothing: a fault in the file, a door that cannot be served
//! or a mount in use leave the server unchanged. The keys of [`OFFLINE`] are the exception: they
//! take effect at the next start, and are reported.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use fe_nbd::Certificates;
use report::ReloadReport;
use server::devices::Shown;
use server::front_ends::{self, Asked, FrontEnds, Told, Wanted, WantedHttp, WantedNbdTls};
use server::pool_dir::{OpenPool, PoolDir};
use server::service::Service;
use surface::{Error, ErrorKind, Result};

use super::keeping::Keeping;
use crate::cli::{Metrics, NbdClient, NbdTls, ServeArgs, ServeSettings, Switch, VERSION};
use crate::output::Output;
use crate::settings::Settings;

/// Keys that a running server cannot apply.
const OFFLINE: [&str; 4] = ["memory", "standby", "keep-mounts", "wait"];

/// Source of a server's settings.
pub enum Source {
    /// A command line.
    Words(ServeSettings),
    /// A file.
    File {
        /// Absolute path of the file.
        path: PathBuf,
        /// Its settings when the server started.
        started: Settings,
    },
}

impl Source {
    /// Reads the settings of a command line, or of the file that it names.
    ///
    /// # Errors
    /// When the file cannot be read, or is invalid.
    pub fn of(args: &ServeArgs) -> Result<Self> {
        match (&args.config, &args.settings) {
            (Some(file), _) => {
                let path = std::path::absolute(file).unwrap_or_else(|_| file.clone());
                Settings::load(file).map(|started| Self::File { path, started })
            }
            (None, Some(settings)) => Ok(Self::Words(settings.clone())),
            (None, None) => Err(Error::new(ErrorKind::Invalid, "specify a pool, or --config FILE")),
        }
    }

    /// Returns the settings at the start.
    pub const fn settings(&self) -> &ServeSettings {
        match self {
            Self::Words(settings) => settings,
            Self::File { started, .. } => &started.serve,
        }
    }

    /// Returns whether they can be reloaded.
    pub const fn has_file(&self) -> bool {
        matches!(self, Self::File { .. })
    }
}

/// Called with the name of a front end that has ended by itself.
type Over = Arc<dyn Fn(&'static str) + Send + Sync>;

/// The front ends of a server, with their settings.
pub struct Serving<'a> {
    source: Source,
    /// The file's settings when last read.
    read: Option<Settings>,
    dir: &'a PoolDir,
    service: &'a Arc<Service>,
    keeping: Keeping,
    front_ends: FrontEnds,
    devices: Arc<Shown>,
    wanted: Wanted,
    over: Over,
    output: Output,
}

impl<'a> Serving<'a> {
    /// Front ends of a starting server, none of which serves yet.
    ///
    /// # Errors
    /// `NotFound` for a volume to serve.
    pub fn new(
        source: Source,
        dir: &'a PoolDir,
        pool: &'a OpenPool,
        keeping: Keeping,
        over: Over,
        output: Output,
    ) -> Result<Self> {
        let service = &pool.service;
        let wanted = wanted(source.settings(), dir, &output);
        check_volumes(&wanted, service)?;
        let read = match &source {
            Source::Words(_) => None,
            Source::File { started, .. } => Some(started.clone()),
        };
        let devices = service.devices().shown(&wanted.volume);
        let front_ends = FrontEnds::of(&front_ends::ALL);
        Ok(Self { source, read, dir, service, keeping, front_ends, devices, wanted, over, output })
    }

    /// Starts all requested front ends.
    ///
    /// # Errors
    /// Those of the front ends.
    pub fn start(&mut self) -> Result<()> {
        let has_mounts = self.wanted.mount.is_some() || self.wanted.shares.is_some();
        let wanted = self.wanted.clone();
        let mut front_ends = std::mem::replace(&mut self.front_ends, FrontEnds::of(&[]));
        let begin = || self.keeping.clear_the_way(has_mounts, &self.output);
        let started = front_ends.start(&self.asked(&wanted), begin);
        self.front_ends = front_ends;
        started
    }

    fn asked<'b>(&'b self, wanted: &'b Wanted) -> Asked<'b> {
        Asked {
            args: wanted,
            service: self.service,
            keeper: self.keeping.keeper(),
            devices: Arc::clone(&self.devices),
            over: Arc::clone(&self.over),
        }
    }

    /// Returns the addresses of all front ends.
    pub fn describe(&self) -> Told {
        self.front_ends.describe()
    }

    /// Returns whether the server keeps running when a front end has ended by itself.
    pub fn hold_the_server(&self) -> bool {
        self.front_ends.hold_the_server()
    }

    /// Returns whether the settings can be reloaded.
    pub const fn has_file(&self) -> bool {
        self.source.has_file()
    }

    /// Returns the keeper of the mounts.
    pub const fn keeping(&self) -> &Keeping {
        &self.keeping
    }

    /// Returns the front ends, to clean up after a failed start.
    pub const fn front_ends(&mut self) -> &mut FrontEnds {
        &mut self.front_ends
    }

    /// Begins to record the history of the pool.
    pub fn begin_history(&self) {
        let settings = self.read.as_ref().map_or_else(|| self.source.settings(), |read| &read.serve);
        if let Err(error) = self.service.begin_history(settings.analytics.0) {
            self.output.warn(&format!("the history of the pool is not recorded: {error}"));
        }
    }

    /// Stops all of them.
    pub fn stop(self) {
        self.front_ends.stop();
    }

    /// Reloads the settings file and applies it. The outcome is also logged.
    ///
    /// # Errors
    /// When the file is invalid, or contains settings that cannot be served: nothing is changed.
    pub fn reload(&mut self) -> Result<ReloadReport> {
        let reloaded = self.try_reload();
        match &reloaded {
            Ok(report) => {
                let listed = |keys: &[String]| if keys.is_empty() { "nothing".to_owned() } else { keys.join(", ") };
                self.output.note(&format!("shale: reloaded {}; changed: {}", report.file, listed(&report.changed)));
                if !report.needs_restart.is_empty() {
                    let keys = listed(&report.needs_restart);
                    self.output.warn(&format!("{}: takes effect at the next start: {keys}", report.file));
                }
            }
            Err(error) => self.output.warn(&format!("the settings were not reloaded: {error}")),
        }
        reloaded
    }

    fn try_reload(&mut self) -> Result<ReloadReport> {
        let (Source::File { path, started }, Some(read)) = (&self.source, &self.read) else {
            return Err(Error::new(ErrorKind::Unsupported, "the server has no settings file"));
        };
        let new = Settings::load(path).map_err(|error| error.context("nothing was changed"))?;
        let needs_restart = new.differences(started);
        if needs_restart.iter().any(|key| key == "pool") {
            let (other, own) = (new.serve.pool.display(), started.serve.pool.display());
            let text = format!("nothing was changed: {} is for the pool {other}, and {own} is served", path.display());
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let is_offline = |key: &String| OFFLINE.contains(&key.as_str());
        let file = path.display().to_string();
        let changed: Vec<_> = new.differences(read).into_iter().filter(|key| !is_offline(key)).collect();
        let needs_restart = needs_restart.into_iter().filter(is_offline).collect();
        let mut serve = new.serve.clone();
        (serve.memory, serve.keep_mounts) = (started.serve.memory, started.serve.keep_mounts);
        let wanted = wanted(&serve, self.dir, &self.output);
        check_volumes(&wanted, self.service).map_err(|error| error.context("nothing was changed"))?;
        let has_standby = self.service.pool().status().standby.place.is_some();
        self.keeping.follow(self.dir, &serve, has_standby, &self.output);
        self.change(wanted)?;
        self.keeping.set_wait(&serve, &self.output);
        self.read = Some(new);
        if changed.iter().any(|key| key == "analytics") {
            self.service.end_history();
            self.begin_history();
        }
        let Told { served, lines, .. } = self.describe();
        self.service.set_served(served);
        Ok(ReloadReport { file, changed, needs_restart, serving: lines })
    }

    /// Applies `wanted`, or restores the previous state.
    fn change(&mut self, wanted: Wanted) -> Result<()> {
        self.devices.begin_change(&wanted.volume);
        let mut front_ends = std::mem::replace(&mut self.front_ends, FrontEnds::of(&[]));
        let changed = front_ends.change(&self.asked(&self.wanted), &self.asked(&wanted));
        self.front_ends = front_ends;
        self.devices.end_change(changed.is_ok());
        changed?;
        self.wanted = wanted;
        Ok(())
    }
}

/// Translates settings for the front ends.
fn wanted(settings: &ServeSettings, dir: &PoolDir, output: &Output) -> Wanted {
    let mut nbd = settings.nbd.clone();
    let has_mount = settings.mount.is_some() || settings.shares.is_some();
    let has_door = has_mount || settings.vhost_user.is_some() || !settings.ublk.is_empty();
    if nbd.is_empty() && !has_door {
        let listen = fe_nbd::Listen::Unix(std::path::absolute(dir.nbd_path()).unwrap_or_else(|_| dir.nbd_path()));
        output.note(&format!(
            "no front end for volumes was specified (--nbd, --mount, --vhost-user, --ublk): serving NBD on {listen}"
        ));
        nbd.push(listen);
    }
    let nbd_tls = nbd_tls(settings);
    exposed_keys(settings).iter().for_each(|warning| output.warn(warning));
    let is_open = nbd_tls.as_ref().is_none_or(|tls| !tls.required);
    for address in nbd.iter().filter(|address| is_open && !address.is_loopback()) {
        output.warn(&format!(
            "{address} can be reached from other machines, without encryption or password: every program that \
             connects can read and write the volumes; --nbd-certificates protects it"
        ));
    }
    Wanted {
        nbd,
        nbd_tls,
        vhost_user: settings.vhost_user.clone(),
        ublk: settings.ublk.clone(),
        mount: settings.mount.clone(),
        shares: settings.shares.clone(),
        exports: settings.exports.clone(),
        http: WantedHttp {
            listen: settings.http.clone(),
            tls: settings.http_tls.map(|tls| tls == Switch::On),
            certificate: settings.http_cert.clone().zip(settings.http_key.clone()),
            names: settings.http_name.clone(),
            open_metrics: settings.metrics == Metrics::Open,
            version: VERSION.to_owned(),
        },
        connections: settings.connections,
        allow_other: settings.allow_other,
        overlay: settings.overlay,
        volume: settings.volume.clone(),
        memory: settings.memory,
    }
}

fn nbd_tls(settings: &ServeSettings) -> Option<WantedNbdTls> {
    let certificates = settings.nbd_certificates.as_ref()?;
    if settings.nbd_tls == Some(NbdTls::Off) && settings.nbd_client.is_empty() {
        return None;
    }
    let client = |NbdClient(name, volume): &NbdClient| (name.clone(), volume.clone());
    Some(WantedNbdTls {
        // They are read again later.
        certificates: std::path::absolute(certificates).unwrap_or_else(|_| certificates.clone()),
        required: settings.nbd_tls.is_none_or(|tls| tls == NbdTls::Required),
        clients: settings.nbd_client.iter().map(client).collect(),
    })
}

/// Returns a warning for each private key of TLS that its group or others can read.
pub fn exposed_keys(settings: &ServeSettings) -> Vec<String> {
    let exposed = |key: PathBuf| {
        // A missing key is reported where it is loaded.
        let mode = key.metadata().ok()?.permissions().mode() & 0o7777;
        let key = key.display();
        (mode & 0o044 != 0)
            .then(|| format!("{key} is a private key that other users can read (mode {mode:04o}): chmod 600 {key}"))
    };
    let of_nbd = nbd_tls(settings).map(|tls| Certificates::key_in(&tls.certificates));
    of_nbd.into_iter().chain(settings.http_key.clone()).filter_map(exposed).collect()
}

fn check_volumes(wanted: &Wanted, service: &Service) -> Result<()> {
    let is_there = |name: &&String| !service.pool().is_folder(name);
    wanted.volume.iter().filter(is_there).try_for_each(|name| service.pool().volume(name).map(drop))
}
