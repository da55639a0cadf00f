//! Volumes as block devices of this machine, by ublk.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use fe_ublk::{Owner, Server, ServerOptions};
use operations::path_error;
use serde_json::json;
use surface::{DeviceSet, Error, ErrorKind, Result};

use super::{Asked, FrontEnd, Kind, Started, Told};
use crate::service::Service;

/// Threads for requests that wait, shared by all devices: as many as virtual machines' disks have.
const THREADS: usize = 16;

pub(super) const KIND: Kind = Kind { name: "ublk", is_same: |a, b| a.ublk == b.ublk, check, start };

struct Ublk(Server);

fn check(asked: &Asked<'_>) -> Result<()> {
    let specs = &asked.args.ublk;
    if specs.is_empty() {
        return Ok(());
    }
    let mut names = BTreeSet::new();
    if let Some(twice) = specs.iter().find(|spec| !names.insert(&spec.name)) {
        let text = format!("--ublk {} is given twice: a volume has one block device", twice.name);
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    specs.iter().try_for_each(|spec| asked.devices.find(&spec.name).map(drop))?;
    fe_ublk::check()
}

fn start(asked: &Asked<'_>) -> Started {
    let (service, specs) = (asked.service, &asked.args.ublk);
    // A server that is asked for no device names those that wait.
    if specs.is_empty() && fe_ublk::check().is_err() {
        return Ok(None);
    }
    let options = ServerOptions {
        threads: if specs.is_empty() { 1 } else { THREADS },
        owner: owner(service)?,
        keeps_acknowledged: service.pool().status().standby.place.is_some(),
        log: Some(Arc::new(|line: &str| log::info!("{line}"))),
    };
    // Of all volumes: a device of one that is no longer served is not that of a destroyed one.
    let devices = service.devices().shown(&[]);
    let server = Server::start(devices, specs, options)?;
    Ok((!specs.is_empty()).then(|| Box::new(Ublk(server)) as Box<dyn FrontEnd>))
}

/// Returns the pool as marks of devices know it: its id, and its directory, which a copy of the
/// pool does not have.
fn owner(service: &Service) -> Result<Owner> {
    let root = &service.facts().pool;
    let found = std::fs::metadata(root).map_err(|error| path_error("cannot look at", root, error))?;
    let mut facts = service.pool().status().id.into_bytes();
    facts.extend(found.dev().to_le_bytes());
    facts.extend(found.ino().to_le_bytes());
    Ok(Owner::of(&facts))
}

impl FrontEnd for Ublk {
    fn describe(&self, told: &mut Told) {
        let served = self.0.served();
        told.lines.extend(served.iter().map(|(volume, path)| format!("ublk {path}  {volume}")));
        let documents: Vec<_> =
            served.iter().map(|(volume, path)| json!({ "volume": volume, "device": path })).collect();
        told.document.insert("ublk".to_owned(), json!(documents));
    }

    /// Devices that stay go on.
    fn follow(&mut self, asked: &Asked<'_>) -> Result<bool> {
        if asked.args.ublk.is_empty() {
            return Ok(false);
        }
        self.0.follow(&asked.args.ublk)?;
        Ok(true)
    }

    /// A file system on a device would lose it.
    fn release(&mut self) -> Result<()> {
        self.0.check_free()
    }

    fn has_resumed(&self) -> bool {
        self.0.has_taken_over()
    }

    fn end_new_mounts(&mut self) {
        self.0.give_back();
    }

    fn leave(&mut self) -> bool {
        self.0.leave()
    }

    fn stop(self: Box<Self>) {
        self.0.stop();
    }
}
