//! The check that a store creates objects atomically, on which every commit depends: run before the
//! first write of a process, unless this machine has done it within the last month. The result is
//! stored where the `shale` program stores it, in the same format.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use blob::{Connection, DataHash, Error, Location, StoreSettings, probe};

/// How long a result is valid: a store may be updated.
const HOLDS_S: u64 = 30 * 86_400;

fn path(store: &str) -> Option<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let base = base.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
    Some(base.join("shale/stores").join(format!("{:032x}", DataHash::of_frame(store.as_bytes()))))
}

#[allow(clippy::disallowed_methods, reason = "the package has no simulated clock")]
fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn is_known(store: &str) -> bool {
    let read = || -> Option<u64> {
        let good: serde_json::Value = serde_json::from_slice(&std::fs::read(path(store)?).ok()?).ok()?;
        (good["store"] == store).then_some(good["unix_s"].as_u64()?)
    };
    read().is_some_and(|asked| asked <= unix_s() && unix_s() - asked < HOLDS_S)
}

/// Probes the store, unless the result is known. Directories and memory need no probe.
pub async fn ensure(connection: &Connection, location: &Location, settings: &StoreSettings) -> Result<(), Error> {
    let store = location.store_name_with(settings);
    if !location.is_remote() || is_known(&store) {
        return Ok(());
    }
    probe(std::slice::from_ref(connection.backend()), location.key().path()).await?;
    if let Some(path) = path(&store)
        && let Some(directory) = path.parent()
        && std::fs::create_dir_all(directory).is_ok()
    {
        // A result that cannot be stored only costs another probe.
        let _ = std::fs::write(&path, serde_json::json!({"store": store, "unix_s": unix_s()}).to_string());
    }
    Ok(())
}
