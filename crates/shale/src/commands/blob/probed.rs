//! Whether a store creates objects atomically, on which every commit relies: probed before the
//! first write to a store from this machine, and remembered for a month.

use std::path::PathBuf;

use ::blob::{Connection, DataHash, Error as BlobError, Location, probe};
use serde::{Deserialize, Serialize};

use super::cache::directory;
use host::unix_s;

/// Validity of a result: a store may be upgraded.
const HOLDS_S: u64 = 30 * 86_400;

/// A store that passed.
#[derive(Debug, Serialize, Deserialize)]
struct Good {
    store: String,
    unix_s: u64,
}

fn path(location: &Location) -> Option<PathBuf> {
    let name = format!("{:032x}", DataHash::of_frame(location.store_name().as_bytes()));
    Some(directory()?.join("stores").join(name))
}

/// Returns when the store passed; `None` if that is too long ago or unknown.
pub fn probed_at(location: &Location) -> Option<u64> {
    let good: Good = serde_json::from_slice(&std::fs::read(path(location)?).ok()?).ok()?;
    let holds = good.store == location.store_name() && good.unix_s <= unix_s() && unix_s() - good.unix_s < HOLDS_S;
    holds.then_some(good.unix_s)
}

/// Probes the store, unless the result is known. Directories and memory always pass.
pub async fn ensure(connection: &Connection, location: &Location) -> Result<(), BlobError> {
    if !location.is_remote() || probed_at(location).is_some() {
        return Ok(());
    }
    probe(std::slice::from_ref(connection.backend()), location.key().path()).await?;
    let good = Good { store: location.store_name(), unix_s: unix_s() };
    if let (Some(path), Ok(text)) = (path(location), serde_json::to_string(&good))
        && let Some(directory) = path.parent()
        && std::fs::create_dir_all(directory).is_ok()
    {
        // A result that cannot be stored is probed again.
        let _ = std::fs::write(&path, text);
    }
    Ok(())
}
