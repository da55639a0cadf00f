//! `shale blob`: blobs in an object store. Owns the runtime of their library, the cleanup after an
//! interruption, and the conversion of its errors to exit codes. The engine takes no part.

mod cache;
mod choices;
mod get;
mod half_written;
mod images;
mod journal;
mod keep;
mod look;
mod ls;
mod probed;
mod put;
mod source;
mod target;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::blob::{Blob, Connection, ENCODING_KEYS, Encoding, Error as BlobError, Location, NO_CREDENTIALS};
use surface::{Error, ErrorKind};

use self::put::How;
use crate::cli::{BlobArgs, BlobCommand};
use crate::output::Output;
use host::Termination;
use operations::{Failure, Outcome};

/// Interval at which a wait checks for a signal.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Threads of the runtime: they only transfer bytes, compression has threads of its own.
const RUNTIME_THREADS: usize = 2;

/// Context of every command on a blob.
pub(super) struct Context<'a> {
    output: &'a Output,
    interrupted: Arc<AtomicBool>,
}

/// Runs a command.
pub fn run(args: BlobArgs, output: &Output) -> Outcome {
    with_context(output, async |context| command(args, context).await)
}

/// Runs work on blobs that a signal may end.
pub(super) fn with_context<T>(output: &Output, work: impl AsyncFnOnce(&Context<'_>) -> Outcome<T>) -> Outcome<T> {
    let signals = Termination::block().map_err(|error| Error::from_io("cannot block signals", error))?;
    let interrupted = signals.flag().map_err(|error| Error::from_io("cannot watch for signals", error))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(RUNTIME_THREADS).enable_all().build();
    let runtime = runtime.map_err(|error| Error::from_io("cannot start threads", error))?;
    let context = Context { output, interrupted };
    let done = runtime.block_on(work(&context));
    // A thread that waits for stdin would keep the process alive.
    runtime.shutdown_background();
    done
}

async fn command(args: BlobArgs, context: &Context<'_>) -> Outcome {
    match args.command {
        BlobCommand::Put(args) => put::run(&args.blob, &args.file, args.upload, How::Put, context).await,
        BlobCommand::Append(args) => put::run(&args.blob, &args.file, args.upload, How::Append, context).await,
        BlobCommand::Write(args) => put::run(&args.blob, &args.file, args.upload, How::Write(args.at), context).await,
        BlobCommand::Get(args) => get::run(args, context).await,
        BlobCommand::Cat(args) => get::run(args.into(), context).await,
        BlobCommand::Ls(args) => ls::run(args, context).await,
        BlobCommand::Log(args) => look::log(args, context).await,
        BlobCommand::Stat(args) => look::stat(args, context).await,
        BlobCommand::Tag(args) => look::tag(args, context).await,
        BlobCommand::Diff(args) => look::diff(args, context).await,
        BlobCommand::Verify(args) => look::verify(args, context).await,
        BlobCommand::Explain(args) => choices::explain(args, context).await,
        BlobCommand::Estimate(args) => choices::estimate(args, context).await,
        BlobCommand::Clone(args) => keep::clone(args, context).await,
        BlobCommand::Cp(args) => keep::copy(args, context).await,
        BlobCommand::Expire(args) => keep::expire(args, context).await,
        BlobCommand::Gc(args) => keep::gc(args, context).await,
        BlobCommand::Optimize(args) => keep::optimize(args, context).await,
        BlobCommand::Unpin(args) => images::unpin(args, context).await,
        BlobCommand::Rm(args) => keep::rm(args, context).await,
    }
}

impl Context<'_> {
    /// Returns a flag that is set by a signal.
    pub(super) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.interrupted)
    }

    /// Waits for a signal.
    pub(super) async fn interruption(&self) {
        while !self.interrupted.load(Ordering::SeqCst) {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Runs work that leaves no remains when a signal ends it.
    pub(super) async fn until_interrupted<T>(&self, what: impl Future<Output = Result<T, BlobError>>) -> Outcome<T> {
        tokio::select! {
            done = what => done.map_err(failure),
            () = self.interruption() => Err(Failure::Interrupted("interrupted; nothing was changed".to_owned())),
        }
    }

    /// Runs work that commits, which a signal may end before or after its effect.
    async fn until_interrupted_changing<T>(&self, what: impl Future<Output = Result<T, BlobError>>) -> Outcome<T> {
        tokio::select! {
            done = what => done.map_err(failure),
            () = self.interruption() => Err(Failure::Interrupted(
                "interrupted; the change, or a part of it, may have been made, or may be made a moment later: \
                 `shale blob log --all` shows it; no data that a version needs is affected, and the same command \
                 continues"
                    .to_owned(),
            )),
        }
    }

    /// Opens a blob; errors name it as its user did.
    async fn open_at(&self, connection: &Connection, location: &Location) -> Outcome<Blob> {
        let opened = async { Blob::open(connection, location.key()).await.map_err(|error| named(error, location)) };
        self.until_interrupted(opened).await
    }

    fn connect(&self, location: &Location) -> Outcome<Connection> {
        Ok(cache::with_cache(Connection::open(location).map_err(failure)?, location))
    }

    /// Connects to a store that supports commits.
    pub(super) async fn connect_to_write(&self, location: &Location) -> Outcome<Connection> {
        let connection = self.connect(location)?;
        self.until_interrupted(probed::ensure(&connection, location)).await?;
        Ok(connection)
    }

    async fn open_to_write(&self, location: &Location) -> Outcome<(Connection, Blob)> {
        let connection = self.connect_to_write(location).await?;
        let blob = self.open_at(&connection, location).await?;
        Ok((connection, blob))
    }

    async fn open(&self, location: &Location) -> Outcome<(Connection, Blob)> {
        let connection = self.connect(location)?;
        let blob = self.open_at(&connection, location).await?;
        Ok((connection, blob))
    }
}

/// Parses properties of written data.
fn encoding(properties: &BTreeMap<String, String>) -> Outcome<Encoding> {
    let is_known = |key: &str| ENCODING_KEYS.contains(&key) || key.starts_with("rule.");
    if let Some(key) = properties.keys().find(|key| !is_known(key)) {
        let known = ENCODING_KEYS.join(", ");
        let why = format!("a blob has no property '{key}'; there are {known}, and rule.TYPE for a type of file");
        return Err(Error::new(ErrorKind::Invalid, why).into());
    }
    Ok(Encoding::parse(properties).map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))?)
}

/// Names a missing blob as its user did.
fn named(error: BlobError, location: &Location) -> BlobError {
    match error {
        BlobError::Missing(_) => BlobError::Missing(location.to_string()),
        error => error,
    }
}

/// Converts an error of the library to an exit code.
fn failure(error: BlobError) -> Failure {
    match error {
        BlobError::Unknown { .. } => Failure::Unknown(error.to_string()),
        error => {
            let error = server::blob_error(&error);
            let text = error.to_string();
            // The server of a pool has credentials of its own.
            if text.contains(NO_CREDENTIALS) { error.context("this command").into() } else { error.into() }
        }
    }
}
