//! Shares as mounted directories.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use operations::path_error;
use serde_json::json;
use surface::{Error, ErrorKind, Result};

use super::{Asked, FrontEnd, Kind, Started, Told, check_hides_nothing};
use crate::service::Service;
use crate::shares::{Shares, SharesWish};

pub(super) const KIND: Kind = Kind {
    name: "shares",
    is_same: |a, b| (&a.shares, a.overlay, &a.volume) == (&b.shares, b.overlay, &b.volume),
    check,
    start,
};

struct MountedShares {
    shares: Arc<Shares>,
    service: Arc<Service>,
    /// Directory and overlay, as requested.
    wanted: (Option<PathBuf>, bool),
}

fn check(asked: &Asked<'_>) -> Result<()> {
    let Some(dir) = &asked.args.shares else { return Ok(()) };
    check_hides_nothing(dir, asked.service)?;
    check_hides_no_exports(dir, asked.args.exports.as_deref())
}

fn start(asked: &Asked<'_>) -> Started {
    let Some(dir) = &asked.args.shares else { return Ok(None) };
    let Asked { args, service, .. } = asked;
    make_missing(dir)?;
    let wish = SharesWish {
        dir,
        names: &args.volume,
        memory_bytes: args.memory,
        overlay: args.overlay,
        keeper: asked.keeper.clone(),
    };
    let shares = Shares::start(service, &wish)?;
    service.set_shares(shares.clone());
    let wanted = (args.shares.clone(), args.overlay);
    Ok(Some(Box::new(MountedShares { shares, service: Arc::clone(service), wanted })))
}

/// Makes the directory of the shares if only its last component is missing: an error further up in
/// a path is a mistake.
///
/// # Errors
/// `NotFound` for the directory above.
fn make_missing(dir: &Path) -> Result<()> {
    match std::fs::create_dir(dir) {
        Ok(()) => {
            log::info!("{}: directory created", dir.display());
            Ok(())
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(path_error("shares: cannot make the directory", dir, error)),
    }
}

/// Refuses a directory of exports below the shares: servers would read their configuration from the
/// files that they serve.
///
/// # Errors
/// `Invalid`.
fn check_hides_no_exports(dir: &Path, exports: Option<&Path>) -> Result<()> {
    let (Ok(dir), Some(exports)) = (dir.canonicalize(), exports) else { return Ok(()) };
    let exports = std::path::absolute(exports).unwrap_or_else(|_| exports.to_owned());
    let exports = exports.canonicalize().unwrap_or(exports);
    if exports.starts_with(&dir) {
        let text = format!(
            "exports at {}: the directory lies below the shares: choose one outside of {}",
            exports.display(),
            dir.display()
        );
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    Ok(())
}

impl FrontEnd for MountedShares {
    fn describe(&self, told: &mut Told) {
        let dir = self.shares.dir().display().to_string();
        told.lines.push(format!("shares {dir}"));
        told.document.insert("shares".to_owned(), json!(dir));
        told.served.shares = Some(dir);
    }

    /// Other shares are mounted at the same place.
    fn follow(&mut self, asked: &Asked<'_>) -> Result<bool> {
        if self.wanted != (asked.args.shares.clone(), asked.args.overlay) {
            return Ok(false);
        }
        self.shares.set_names(&asked.args.volume);
        self.service.look_at_shares();
        Ok(true)
    }

    fn release(&mut self) -> Result<()> {
        self.shares.release()
    }

    fn regain(&mut self) {
        self.service.look_at_shares();
    }

    fn has_resumed(&self) -> bool {
        self.shares.have_resumed()
    }

    fn end_new_mounts(&mut self) {
        self.shares.end_new();
    }

    fn stop(self: Box<Self>) {
        self.service.forget_shares();
        self.shares.stop();
    }
}
