//! `shale blob get`: downloads a version, or a range of it.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ::blob::{At, Chunk, Error as BlobError, Tally};
use bytes::Bytes;
use futures_util::StreamExt;
use serde::Serialize;
use surface::{Error, ErrorKind};
use units::format_size;

use super::put::show;
use super::target::Target;
use super::{Context, failure};
use crate::cli::BlobGetArgs;
use crate::progress::Progress;
use operations::{Failure, Outcome, path_error};

/// Bytes of zeroes per write to a target that cannot have holes.
const ZEROES_BYTES: usize = 1 << 20;
/// Bytes written before the disk is asked to store them: it works while more are fetched, and the
/// sync at the end finds little to do.
const WRITEBACK_BYTES: u64 = 16 << 20;

/// The outcome, for scripts.
#[derive(Debug, Serialize)]
struct Summary {
    blob: String,
    version: u64,
    offset: u64,
    bytes: u64,
    requests: u64,
    fetched_bytes: u64,
    seconds: f64,
    bytes_per_second: u64,
}

/// Copies a version to a file.
pub async fn run(args: BlobGetArgs, context: &Context<'_>) -> Outcome {
    let started = Instant::now();
    let (connection, blob) = context.open(&args.blob).await?;
    let version = context.until_interrupted(blob.version(args.blob.at())).await?;
    let head = context.until_interrupted(blob.version(&At::Newest)).await?;
    let (from, to) = args.range.unwrap_or((0, None));
    let to = to.unwrap_or(version.size).min(version.size);
    if from > to {
        let why = format!("version {} has {} bytes: there is no byte {from}", version.seq, version.size);
        return Err(Error::new(ErrorKind::Invalid, why).into());
    }
    let mut target = Target::create(&args.file, args.force)?;
    let (progress, tally) = (Progress::new(context.output, "get", Some(to - from)), Tally::default());
    let work = async {
        if target.is_sparse() {
            scatter(&blob, &version, (from, to), &target.file, &tally).await
        } else {
            copy(&blob, &version, (from, to), &mut target.file, &tally, context).await
        }
    };
    let copied = tokio::select! {
        done = work => done,
        () = context.interruption() => Err(Failure::Interrupted("interrupted".to_owned())),
        () = show(&progress, &tally, &connection) => Err(Failure::Internal("the progress bar ended".to_owned())),
    };
    let finished = copied
        .and_then(|()| target.finish(to - from).map_err(|error| path_error("cannot write", &args.file, error).into()));
    progress.finish();
    if let Err(failure) = finished {
        // An incomplete file looks whole.
        let left = target.abandon();
        return Err(failure.context(format_args!("get {} to {}{left}", args.blob, args.file.display())));
    }
    if target.is_stdout() {
        return Ok(());
    }
    let seconds = started.elapsed().as_secs_f64();
    let requests = connection.requests();
    let summary = Summary {
        blob: args.blob.to_string(),
        version: version.number(&head),
        offset: from,
        bytes: to - from,
        requests: requests.all(),
        fetched_bytes: requests.bytes_down.load(Ordering::Relaxed),
        seconds,
        bytes_per_second: ((to - from) as f64 / seconds.max(1e-9)) as u64,
    };
    context.output.done(&summary, || {
        format!(
            "{} version {} to {}: {} ({} fetched), {} requests, {seconds:.1} s, {}/s\n",
            summary.blob,
            summary.version,
            args.file.display(),
            format_size(summary.bytes),
            format_size(summary.fetched_bytes),
            summary.requests,
            format_size(summary.bytes_per_second),
        )
    });
    Ok(())
}

/// Writes a file that reads as zeroes where nothing is written.
async fn scatter(
    blob: &::blob::Blob,
    version: &::blob::Record,
    (from, to): (u64, u64),
    file: &File,
    tally: &Tally,
) -> Outcome {
    let file = file.try_clone().map_err(|error| Error::from_io("cannot write", error))?;
    let written = AtomicU64::new(0);
    let sink = move |at: u64, part: &[u8]| -> std::io::Result<()> {
        file.write_all_at(part, at - from)?;
        let len = part.len() as u64;
        let before = written.fetch_add(len, Ordering::Relaxed);
        if before / WRITEBACK_BYTES < (before + len) / WRITEBACK_BYTES {
            host::start_writeback(&file);
        }
        Ok(())
    };
    blob.scatter(version, from, to, Arc::new(sink), tally).await.map_err(|error| match error {
        BlobError::Sink(error) => Error::from_io("cannot write", error).into(),
        error => failure(error),
    })
}

/// Writes to a pipe or a device, in order.
async fn copy(
    blob: &::blob::Blob,
    version: &::blob::Record,
    (from, to): (u64, u64),
    file: &mut File,
    tally: &Tally,
    context: &Context<'_>,
) -> Outcome {
    let mut stream = std::pin::pin!(blob.chunks(version, from, to));
    let zeroes = Bytes::from(vec![0; ZEROES_BYTES]);
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(failure)?;
        let mut left = chunk.len();
        let bytes = match chunk {
            Chunk::Data(bytes) => bytes,
            Chunk::Zeroes(_) => zeroes.clone(),
        };
        while left > 0 {
            if context.interrupted.load(Ordering::SeqCst) {
                return Err(Failure::Interrupted("interrupted".to_owned()));
            }
            let part = &bytes[..left.min(bytes.len() as u64) as usize];
            file.write_all(part).map_err(|error| Error::from_io("cannot write", error))?;
            left -= part.len() as u64;
            tally.raw.fetch_add(part.len() as u64, Ordering::Relaxed);
        }
    }
    Ok(())
}
