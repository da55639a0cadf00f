//! `shale export`.

use std::path::Path;
use std::time::Instant;

use surface::{Error, ErrorKind};
use units::format_size;

use super::list::volumes;
use super::registered::{refuse_background, registered};
use super::{export_tree, incomplete};
use crate::cli::ExportArgs;
use crate::output::Output;
use crate::progress::Progress;
use copy::transfer::{self, Export, Moved, Sink, containers};
use host::Termination;
use operations::Outcome;
use operations::names;
use report::JobKind;
use report::{TransferSummary, VolumeReport};
use server::session::Session;

/// Copies a volume to a file.
pub fn run(args: ExportArgs, output: &Output) -> Outcome {
    refuse_background(args.background, JobKind::Export)?;
    let signals = Termination::block().map_err(|error| Error::from_io("cannot block signals", error))?;
    let interrupted = signals.flag().map_err(|error| Error::from_io("cannot watch for signals", error))?;
    let started = Instant::now();
    let mut tree = None;
    let mut work = |session: &Session| -> Outcome<Option<(u64, Moved)>> {
        let is_meant = |volume: &VolumeReport| volume.share && volume.name == names::volume_of(&args.volume);
        if volumes(session)?.iter().any(is_meant) {
            tree = Some(export_tree::export(session, &args, &interrupted, output)?);
            return Ok(None);
        }
        if args.path().is_some() || args.tar {
            let text = format!("'{}' is a volume, and has neither paths nor files", args.volume);
            return Err(Error::new(ErrorKind::Invalid, text).into());
        }
        let volume = session.volume(&args.volume, None)?;
        let size_bytes = volume.size_bytes()?;
        incomplete::warn_of(&args.volume, session, output);
        containers::warning_of(args.target()).iter().for_each(|line| output.warn(line));
        let sink = Sink::open(args.target(), size_bytes, args.force, server::pool_dir::refuse_part_of_pool)?;
        let progress = Progress::new(output, "export", Some(size_bytes));
        let plan = Export { volume: &*volume, size_bytes, interrupted: &interrupted };
        let copied = transfer::export(&plan, &sink, &mut |done| progress.set(done)).and_then(|moved| {
            progress.say("making it durable".to_owned());
            sink.finish()?;
            Ok(moved)
        });
        let moved = copied.map_err(|failure| {
            let left = sink.abandon();
            failure.context(format_args!("export of volume '{}' to {}{left}", args.volume, args.target().display()))
        })?;
        Ok(Some((size_bytes, moved)))
    };
    let done = Session::with(&args.pool, &args.access, |session| {
        registered(session, (JobKind::Export, Some(&args.volume)), &interrupted, output, || work(session))
    })?;
    if let Some(summary) = tree {
        return export_tree::tell(&summary, output);
    }
    let Some((size_bytes, moved)) = done else { return Ok(()) };
    let file = args.target();
    if file == Path::new("-") {
        // Stdout carries the data.
        return Ok(());
    }
    let seconds = started.elapsed().as_secs_f64();
    let summary = TransferSummary {
        volume: args.volume.clone(),
        source: None,
        target: Some(args.target().display().to_string()),
        size_bytes,
        copied_bytes: moved.copied_bytes,
        hole_bytes: moved.hole_bytes,
        allocated_bytes: None,
        with_snapshots: None,
        stored_bytes: None,
        ratio: None,
        seconds,
        bytes_per_second: (size_bytes as f64 / seconds.max(1e-9)) as u64,
    };
    output.done(&summary, || {
        format!(
            "exported volume {} to {}: {}, of which {} are holes, {seconds:.1} s, {}/s\n",
            summary.volume,
            args.target().display(),
            format_size(size_bytes),
            format_size(moved.hole_bytes),
            format_size(summary.bytes_per_second)
        )
    });
    Ok(())
}
