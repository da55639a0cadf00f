//! `shale blob get`: downloads a version, or a range of it.

use std::fs::File;
use std::io::{Seek, Write};
use std::sync::atomic::Ordering;
use std::time::Instant;

use ::blob::{At, Chunk};
use futures_util::StreamExt;
use serde::Serialize;
use surface::{Error, ErrorKind};
use units::format_size;

use super::target::Target;
use super::{Context, LOOK_EVERY, failure};
use crate::cli::BlobGetArgs;
use crate::progress::Progress;
use operations::{Failure, Outcome, path_error};

/// Bytes of zeroes per write to a target that cannot have holes.
const ZEROES_BYTES: usize = 1 << 20;

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
    let may_skip = target.is_sparse();
    let progress = Progress::new(context.output, "get", Some(to - from));
    let say = async {
        loop {
            progress.say(format!("{} req", connection.requests().all()));
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    let work = copy(&blob, &version, (from, to), &mut target.file, may_skip, &progress, context);
    let copied = tokio::select! { done = work => done, () = say => Ok(()) };
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

async fn copy(
    blob: &::blob::Blob,
    version: &::blob::Record,
    (from, to): (u64, u64),
    file: &mut File,
    may_skip: bool,
    progress: &Progress,
    context: &Context<'_>,
) -> Outcome {
    let mut stream = std::pin::pin!(blob.chunks(version, from, to));
    let zeroes = vec![0; ZEROES_BYTES];
    let mut done = 0;
    loop {
        let next = tokio::select! {
            next = stream.next() => next,
            () = context.interruption() => return Err(Failure::Interrupted("interrupted".to_owned())),
        };
        let Some(chunk) = next else { return Ok(()) };
        let chunk = chunk.map_err(failure)?;
        // A file gets holes for zeroes; a pipe cannot have any.
        let skips = may_skip && matches!(&chunk, Chunk::Data(bytes) if policy::is_zero(bytes));
        let mut left = match chunk {
            Chunk::Data(bytes) if !skips => {
                write(file.write_all(&bytes))?;
                done += bytes.len() as u64;
                0
            }
            chunk => chunk.len(),
        };
        if may_skip {
            write(file.seek_relative(left as i64))?;
            done += std::mem::take(&mut left);
        }
        while left > 0 {
            if context.interrupted.load(Ordering::SeqCst) {
                return Err(Failure::Interrupted("interrupted".to_owned()));
            }
            let part = &zeroes[..left.min(ZEROES_BYTES as u64) as usize];
            write(file.write_all(part))?;
            left -= part.len() as u64;
            done += part.len() as u64;
            progress.set(done);
        }
        progress.set(done);
    }
}

fn write(done: std::io::Result<()>) -> Outcome {
    done.map_err(|error| Error::from_io("cannot write", error).into())
}
