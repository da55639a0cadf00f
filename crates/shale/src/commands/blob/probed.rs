//! Whether a store creates objects atomically, which every commit rests on: asked before the first
//! write to a store from this machine, and kept for a month.

use std::path::PathBuf;

use ::blob::{Connection, DataHash, Error as BlobError, Location, probe};
use serde::{Deserialize, Serialize};

use super::cache::directory;
use host::unix_s;

/// How long an answer holds: a store may get another release.
const HOLDS_S: u64 = 30 * 86_400;

/// A store that was found good.
#[derive(Debug, Serialize, Deserialize)]
struct Good {
    store: String,
    unix_s: u64,
}

fn path(location: &Location) -> Option<PathBuf> {
    let name = format!("{:032x}", DataHash::of_frame(location.store_name().as_bytes()));
    Some(directory()?.join("stores").join(name))
}

/// Returns when the store was found good; `None` if that is not known any more, or never was.
pub fn probed_at(location: &Location) -> Option<u64> {
    let good: Good = serde_json::from_slice(&std::fs::read(path(location)?).ok()?).ok()?;
    let holds = good.store == location.store_name() && good.unix_s <= unix_s() && unix_s() - good.unix_s < HOLDS_S;
    holds.then_some(good.unix_s)
}

/// Asks the store, unless the answer is known. Directories and memory need no question.
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
        // An answer that cannot be kept is asked for again.
        let _ = std::fs::write(&path, text);
    }
    Ok(())
}
