//! `shale init`.

use std::path::Path;
use std::sync::Arc;

use engine::CalibrationEffort;
use policy::Owner;
use serde_json::json;
use surface::{Error, ErrorKind, Result};
use units::{EXTENT_BYTES_MAX, EXTENT_BYTES_MIN, format_size};

use crate::cli::InitArgs;
use crate::output::Output;
use operations::Outcome;
use server::pool_dir::{self, InitOptions, MEMORY_BYTES_MIN, Opening, Overwrite, PoolDir};

/// Calibrates a new pool briefly, so that `auto` need not learn the speeds while it writes. Failure
/// does no harm.
fn calibrate(dir: &PoolDir) -> Result<()> {
    let lock = dir.lock()?.map_err(|holder| Error::new(ErrorKind::InUse, holder))?;
    let how = Opening::usual(MEMORY_BYTES_MIN);
    let pool = pool_dir::open_locked(dir, Arc::new(lock), how)?;
    let done = pool.service.calibrate(CalibrationEffort::Short, &|_, _| Ok(()));
    pool.close()?;
    done.map(drop)
}

/// Returns the free space of the file system below, if a data file of that capacity does not fit
/// there now.
fn short_below(data: &Path, capacity_bytes: u64) -> Option<u64> {
    let is_file = std::fs::metadata(data).ok()?.is_file();
    let below = rustix::fs::statvfs(data).ok()?;
    let free = below.f_bavail.saturating_mul(below.f_frsize);
    (is_file && free < capacity_bytes).then_some(free)
}

/// Creates a pool.
pub fn run(args: InitArgs, output: &Output) -> Outcome {
    // Before anything is touched: with --force an old pool would be gone by the time the engine
    // reports the same.
    if !args.extent.is_power_of_two() || !(EXTENT_BYTES_MIN..=EXTENT_BYTES_MAX).contains(&args.extent) {
        let message = format!(
            "--extent {}: must be a power of two from {} to {}",
            format_size(u64::from(args.extent)),
            format_size(u64::from(EXTENT_BYTES_MIN)),
            format_size(u64::from(EXTENT_BYTES_MAX))
        );
        return Err(Error::new(ErrorKind::Invalid, message).into());
    }
    for (key, value) in &args.properties {
        policy::check_property_of(Owner::Pool, key, value)
            .map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))?;
    }
    let options = InitOptions {
        data: args.data,
        capacity_bytes: args.capacity,
        extent_bytes: args.extent,
        properties: args.properties.into_iter().collect(),
        overwrite: if args.force { Overwrite::Forced } else { Overwrite::Refused },
    };
    let dir = PoolDir::new(&args.pool);
    let made = pool_dir::init(&dir, &options)?;
    if let Err(error) = calibrate(&dir) {
        output.note(&format!("the speed of this machine is unknown ({error}): run `shale calibrate`"));
    }
    if made.redone {
        output.note("repeated an interrupted init");
    }
    if let Some(free) = short_below(&made.data, made.capacity_bytes) {
        output.note(&format!(
            "note: the file system below has {} free, less than the capacity of {}: writes fail when it is full",
            format_size(free),
            format_size(made.capacity_bytes)
        ));
    }
    let document = json!({
        "pool": dir.root().display().to_string(),
        "data": made.data.display().to_string(),
        "capacity_bytes": made.capacity_bytes,
        "extent_bytes": options.extent_bytes,
    });
    output.done(&document, || {
        let because = made.capacity_from.as_ref().map_or_else(String::new, |from| format!(" ({from})"));
        format!(
            "created pool {}, with space for {}{because} in {}\n",
            dir.root().display(),
            format_size(made.capacity_bytes),
            made.data.display()
        )
    });
    Ok(())
}
