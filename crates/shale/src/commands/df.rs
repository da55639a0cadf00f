//! `shale df`: size, use and free space of a pool.

use serde_json::json;
use units::format_size;

use super::status::status;
use crate::cli::DfArgs;
use crate::output::{Output, table};
use operations::Outcome;
use report::show_ratio;
use server::session::Session;

/// Shows the pool in one line.
pub fn run(args: &DfArgs, output: &Output) -> Outcome {
    let s = Session::with(&args.pool, &args.access, status)?;
    let document = json!({
        "pool": s.pool,
        "size_bytes": s.capacity_bytes,
        "used_bytes": s.stored_bytes,
        "available_bytes": s.available_bytes,
        "used_percent": s.used_percent,
        "data_bytes": s.allocated_bytes,
        "ratio": s.ratio,
    });
    output.result(&document, || {
        let header = ["POOL", "SIZE", "USED", "AVAIL", "USED%", "DATA", "RATIO"].map(str::to_owned).to_vec();
        let row = vec![
            s.pool.clone(),
            format_size(s.capacity_bytes),
            format_size(s.stored_bytes),
            format_size(s.available_bytes),
            format!("{:.1}", s.used_percent),
            format_size(s.allocated_bytes),
            show_ratio(s.ratio),
        ];
        table(&[header, row])
    });
    Ok(())
}
