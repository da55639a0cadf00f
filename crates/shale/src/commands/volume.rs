//! `shale create`, `resize` and `destroy`.

use serde_json::json;
use units::format_size;

use super::forced::{self, Change, Forced};
use crate::cli::{CreateArgs, DestroyArgs, ResizeArgs};
use crate::control::Request;
use crate::exit::Outcome;
use crate::names::{round_up_to_block, tell_rounding};
use crate::output::Output;
use crate::session::Session;

/// Creates a volume or a share.
pub fn create(args: CreateArgs, output: &Output) -> Outcome {
    let properties = args.properties.into_iter().collect();
    let Some(size) = args.size else {
        let request = Request::CreateShare { share: args.volume.clone(), properties };
        Session::with(&args.pool, &args.access, output, |session| Ok(session.created(request).map(drop)?))?;
        output.done(&json!({ "share": args.volume }), || format!("share {} created\n", args.volume));
        return Ok(());
    };
    let size_bytes = round_up_to_block(size)?;
    tell_rounding(output, size, size_bytes);
    Session::with(&args.pool, &args.access, output, |session| {
        Ok(session.create(&args.volume, size_bytes, properties).map(drop)?)
    })?;
    say_size(output, "created", &args.volume, size_bytes);
    Ok(())
}

/// Changes the size of a volume.
pub fn resize(args: ResizeArgs, output: &Output) -> Outcome {
    let size_bytes = args.size;
    let request =
        Request::Resize { volume: args.volume.clone(), id: None, size_bytes, shrink: args.shrink, force: args.force };
    Session::with(&args.pool, &args.access, output, |session| {
        if args.force {
            let forced = Forced { title: &args.volume, change: Change::Shrunk, recursive: false };
            forced::tell(session, &forced, output)?;
        }
        Ok(session.done(request)?)
    })?;
    say_size(output, "resized", &args.volume, size_bytes);
    Ok(())
}

fn say_size(output: &Output, what: &str, volume: &str, size_bytes: u64) {
    let document = json!({ "volume": volume, "size_bytes": size_bytes });
    output.done(&document, || format!("volume {volume} {what}: {}\n", exact_size(size_bytes)));
}

/// A size as people read it, with the bytes where that is rounded.
fn exact_size(size_bytes: u64) -> String {
    match format_size(size_bytes) {
        text if text.contains('.') => format!("{text} ({size_bytes} bytes)"),
        text => text,
    }
}

/// Deletes a volume or a snapshot.
pub fn destroy(args: DestroyArgs, output: &Output) -> Outcome {
    let request =
        Request::Destroy { volume: args.volume.clone(), id: None, recursive: args.recursive, force: args.force };
    Session::with(&args.pool, &args.access, output, |session| {
        if args.force {
            let forced = Forced { title: &args.volume, change: Change::Destroyed, recursive: args.recursive };
            forced::tell(session, &forced, output)?;
        }
        Ok(session.done(request)?)
    })?;
    let what = match &args.volume {
        name if name.contains('@') => "snapshot",
        name if name.contains('#') => "bookmark",
        _ => "volume",
    };
    output.done(&json!({ "volume": args.volume }), || format!("{what} {} destroyed\n", args.volume));
    Ok(())
}
