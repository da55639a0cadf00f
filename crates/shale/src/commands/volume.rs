//! `shale create`, `list`, `resize` and `destroy`.

use serde_json::json;
use units::format_size;

use super::status::status;
use super::{history, incomplete, streams};
use crate::cli::{CreateArgs, DestroyArgs, ListArgs, ResizeArgs};
use crate::control::{Reply, Request};
use crate::exit::Outcome;
use crate::model::{VolumeReport, show_ratio};
use crate::names::round_up_to_block;
use crate::output::{Output, table};
use crate::session::Session;

/// Creates a volume.
pub fn create(args: CreateArgs, output: &Output) -> Outcome {
    let size_bytes = round_up_to_block(args.size)?;
    let properties = args.properties.into_iter().collect();
    Session::with(&args.pool, &args.access, output, |session| {
        Ok(session.create(&args.volume, size_bytes, properties).map(drop)?)
    })?;
    say_size(output, "created", &args.volume, size_bytes);
    Ok(())
}

/// Changes the size of a volume.
pub fn resize(args: ResizeArgs, output: &Output) -> Outcome {
    let size_bytes = round_up_to_block(args.size)?;
    let request =
        Request::Resize { volume: args.volume.clone(), id: None, size_bytes, shrink: args.shrink, force: args.force };
    Session::with(&args.pool, &args.access, output, |session| Ok(session.done(request)?))?;
    say_size(output, "resized", &args.volume, size_bytes);
    Ok(())
}

fn say_size(output: &Output, what: &str, volume: &str, size_bytes: u64) {
    let document = json!({ "volume": volume, "size_bytes": size_bytes });
    output.done(&document, || format!("volume {volume} {what}: {}\n", format_size(size_bytes)));
}

/// Deletes a volume or a snapshot.
pub fn destroy(args: DestroyArgs, output: &Output) -> Outcome {
    let request =
        Request::Destroy { volume: args.volume.clone(), id: None, recursive: args.recursive, force: args.force };
    Session::with(&args.pool, &args.access, output, |session| Ok(session.done(request)?))?;
    let what = match &args.volume {
        name if name.contains('@') => "snapshot",
        name if name.contains('#') => "bookmark",
        _ => "volume",
    };
    output.done(&json!({ "volume": args.volume }), || format!("{what} {} destroyed\n", args.volume));
    Ok(())
}

/// Lists the volumes.
pub fn list(args: ListArgs, output: &Output) -> Outcome {
    let (volumes, receives, pool) = Session::with(&args.pool, &args.access, output, |session| {
        if args.sync {
            session.done(Request::Checkpoint)?;
        }
        let mut volumes = volumes(session)?;
        if args.recursive {
            let snapshots = history::snapshots(session)?;
            for volume in &mut volumes {
                volume.snapshots = Some(snapshots.iter().filter(|s| s.volume == volume.name).cloned().collect());
            }
        }
        Ok((volumes, streams::receives(session)?, status(session)?))
    })?;
    output.result(&volumes, || {
        let mut text = if args.recursive { history::show(&volumes) } else { show(&volumes) };
        for r in receives {
            let (come, expected) = (format_size(r.received_bytes), format_size(r.expected_bytes));
            text += &format!("being received: {}@{}, {come} of {expected}\n", r.volume, r.snapshot);
        }
        for title in pool.incomplete.iter().filter(|title| args.recursive || !title.contains('@')) {
            text += &format!("{}\n", incomplete::words(title));
        }
        if pool.unlisted_allocated_bytes > 0 {
            // Else a clone whose origin was destroyed seems to have nothing.
            let (data, stored) = (format_size(pool.unlisted_allocated_bytes), format_size(pool.unlisted_bytes));
            text +=
                &format!("in destroyed volumes, for clones or until it has come back: {data}, stored in {stored}\n");
        }
        text
    });
    Ok(())
}

/// The volumes of a pool.
pub fn volumes(session: &Session) -> Outcome<Vec<VolumeReport>> {
    match session.call(Request::List)? {
        Reply::Volumes(volumes) => Ok(volumes),
        other => Err(other.unexpected().into()),
    }
}

fn show(volumes: &[VolumeReport]) -> String {
    let header = ["NAME", "SIZE", "DATA", "STORED", "RATIO", "CLIENTS"].map(str::to_owned).to_vec();
    let row = |volume: &VolumeReport| {
        vec![
            volume.name.clone(),
            format_size(volume.size_bytes),
            format_size(volume.allocated_bytes),
            format_size(volume.stored_bytes),
            show_ratio(volume.ratio),
            volume.clients.to_string(),
        ]
    };
    table(&std::iter::once(header).chain(volumes.iter().map(row)).collect::<Vec<_>>())
}
