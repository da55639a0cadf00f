//! Requests to read the configuration of the server again.

use std::sync::Arc;

use report::ReloadReport;
use surface::{Error, ErrorKind, Result};

use super::Service;

/// Reads the configuration again, and returns when the server serves as it says.
pub type Reloader = Arc<dyn Fn() -> Result<ReloadReport> + Send + Sync>;

impl Service {
    /// From now on the configuration can be read again; `None`: no longer.
    pub fn set_reloader(&self, reloader: Option<Reloader>) {
        *self.reloader.lock() = reloader;
    }

    pub(super) fn reload(&self) -> Result<ReloadReport> {
        let reloader = self.reloader.lock().clone();
        reloader.map_or_else(|| Err(self.has_no_configuration()), |reload| reload())
    }

    fn has_no_configuration(&self) -> Error {
        let pool = self.facts.pool.display();
        let text = format!("the server of {pool} has no file of settings: start it with `shale serve --config FILE`");
        Error::new(ErrorKind::Unsupported, text)
    }
}
