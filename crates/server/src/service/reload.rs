//! Reloads the server's configuration on request.

use std::sync::Arc;

use report::ReloadReport;
use surface::{Error, ErrorKind, Result};

use super::Service;

/// Reloads the configuration, and returns when the server follows it.
pub type Reloader = Arc<dyn Fn() -> Result<ReloadReport> + Send + Sync>;

impl Service {
    /// Enables reloading of the configuration; `None` disables it.
    pub fn set_reloader(&self, reloader: Option<Reloader>) {
        *self.reloader.lock() = reloader;
    }

    pub(super) fn reload(&self) -> Result<ReloadReport> {
        let reloader = self.reloader.lock().clone();
        reloader.map_or_else(|| Err(self.has_no_configuration()), |reload| reload())
    }

    fn has_no_configuration(&self) -> Error {
        let pool = self.facts.pool.display();
        let text = format!("the server of {pool} has no settings file: start it with `shale serve --config FILE`");
        Error::new(ErrorKind::Unsupported, text)
    }
}
