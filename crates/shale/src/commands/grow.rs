//! `shale grow`.

use serde_json::json;
use units::format_size;

use crate::cli::GrowArgs;
use crate::commands::status::status;
use crate::output::Output;
use operations::Outcome;
use operations::Request;
use server::session::Session;

/// Enlarges a pool.
pub fn run(args: GrowArgs, output: &Output) -> Outcome {
    let capacity_bytes = Session::with(&args.pool, &args.access, |session| {
        session.done(Request::Grow { capacity_bytes: args.size })?;
        Ok(status(session)?.capacity_bytes)
    })?;
    let document = json!({ "capacity_bytes": capacity_bytes });
    output.done(&document, || format!("the pool now has {}\n", format_size(capacity_bytes)));
    Ok(())
}
