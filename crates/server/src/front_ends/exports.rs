//! The servers of network protocols over the mounted shares.

use std::sync::Arc;

use serde_json::json;

use super::{Asked, FrontEnd, Kind, Started, Told};
use crate::exports::Exports;
use crate::service::Service;

pub(super) const KIND: Kind = Kind {
    name: "exports",
    is_same: |a, b| (&a.exports, &a.shares, a.overlay) == (&b.exports, &b.shares, b.overlay),
    check: |_| Ok(()),
    start,
};

struct Protocols {
    exports: Arc<Exports>,
    service: Arc<Service>,
}

fn start(asked: &Asked<'_>) -> Started {
    let service = asked.service;
    let Some((dir, shares)) = asked.args.exports.as_deref().zip(service.mounted_shares()) else { return Ok(None) };
    let exports = Exports::start(service.pool(), &shares, dir, &service.facts().pool)?;
    service.set_exports(exports.clone());
    Ok(Some(Box::new(Protocols { exports, service: Arc::clone(service) })))
}

impl FrontEnd for Protocols {
    fn describe(&self, told: &mut Told) {
        let dir = self.exports.dir().display().to_string();
        told.lines.push(format!("exports {dir}"));
        told.document.insert("exports".to_owned(), json!(dir));
    }

    /// The shares do, whose mounts it exports.
    fn holds_the_server(&self) -> bool {
        false
    }

    /// Its servers keep running over mounts that wait for the next server, as after a crash of this
    /// one.
    fn has_resumed(&self) -> bool {
        self.service.mounted_shares().is_some_and(|shares| shares.have_resumed())
    }

    fn stop(self: Box<Self>) {
        self.service.forget_exports();
        self.exports.stop();
    }
}
