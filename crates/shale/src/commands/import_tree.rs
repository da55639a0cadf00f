//! `shale import` of a directory or a tar archive into a share.
//!
//! The share is marked as incomplete from before the first name until all is durable, as a volume
//! is. The names and data of a failed import stay, unless there are none: the next one continues
//! with `--overwrite`, and has less to do.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use policy::{INCOMPLETE, READONLY};
use share::Tree;
use surface::{Error, ErrorKind};

use super::list::volumes;
use super::registered::registered;
use super::status;
use super::trees::{TreeSummary, copy_shown, find, mounted, tell_problems};
use super::volume::noted;
use crate::cli::ImportArgs;
use crate::output::Output;
use copy::trees::{PosixSink, PosixSource, Sink, Source, Tally, TarSource, identity};
use host::Termination;
use operations::names::Changes;
use operations::{Failure, Outcome, path_error};
use operations::{ImportWish, Reply, Request, Which};
use report::JobKind;
use report::{QuotaLine, ratio};
use server::control::RemoteTree;
use server::devices::is_in;
use server::service::Service;
use server::session::Session;
use server::share_trees;

/// Bytes of an archive per read.
const ARCHIVE_BUFFER_BYTES: usize = 1 << 20;
/// Bytes of the smallest item of a tar archive.
const TAR_BLOCK_BYTES: u64 = 512;

/// Returns whether the import is of a tree, if this is clear before the pool is opened.
pub fn is_meant(args: &ImportArgs) -> bool {
    args.share || args.file != Path::new("-") && args.file.is_dir()
}

/// Imports a tree.
///
/// # Errors
/// Those of the source and of the pool; a failure that was already reported, if not everything was
/// copied.
pub fn run(args: &ImportArgs, output: &Output) -> Outcome {
    let signals = Termination::block().map_err(|error| Error::from_io("cannot block signals", error))?;
    let interrupted = signals.flag().map_err(|error| Error::from_io("cannot watch for signals", error))?;
    let summary = Session::with(&args.pool, &args.access, |session| {
        let work = || import(session, args, &interrupted, output);
        registered(session, (JobKind::Import, Some(&args.volume)), &interrupted, output, work)
    })?;
    tell(&summary, output)
}

/// Reports the outcome.
///
/// # Errors
/// A failure that was already reported, if not everything was copied.
pub fn tell(summary: &TreeSummary, output: &Output) -> Outcome {
    summary.tell("--overwrite", output)
}

/// Imports a tree, through a session.
///
/// # Errors
/// Those of the source and of the pool.
pub fn import(session: &Session, args: &ImportArgs, interrupted: &AtomicBool, output: &Output) -> Outcome<TreeSummary> {
    if args.size.is_some() {
        return Err(Error::new(ErrorKind::Invalid, "a share has no size; limit it with -o quota=SIZE").into());
    }
    let started = Instant::now();
    let origin = Origin::open(&args.file)?;
    let name = &args.volume;
    let old = find(session, name)?;
    let (id, remote) = match &old {
        Some(old) => (old.id, None),
        None => {
            // With the mark from its first moment: a kill may come before the first name.
            let own = args.properties.iter().cloned().chain([(INCOMPLETE.to_owned(), "yes".to_owned())]);
            let properties = own.collect();
            let (created, remote) = match session {
                Session::Direct(_) => {
                    (session.created(Request::CreateShare { share: name.clone(), properties, parents: false })?, None)
                }
                Session::Served(client) => {
                    let (created, remote) = client.import_tree(ImportWish { share: name.clone(), properties })?;
                    (created, Some(remote))
                }
            };
            (noted(created, output), remote)
        }
    };
    let before = match &old {
        None => Before::New,
        Some(old) if old.incomplete => Before::Incomplete,
        Some(_) => Before::Whole,
    };
    let mut tally = Tally::default();
    let done = fill(session, args, (id, remote, before), origin, interrupted, &mut tally, output);
    match done {
        Ok(()) => {}
        Err(failure) => {
            tell_problems(&tally.lines, tally.problems, output);
            let failure = with_quota(session, name, failure);
            return Err(clean_up(session, args, (id, before), &tally, failure));
        }
    }
    let mut summary = TreeSummary::new(name, tally, started);
    summary.source = Some(shown(&args.file));
    // Figures are optional: without them the tree is imported nevertheless.
    if let Ok(Some(found)) = find(session, name) {
        summary.stored_bytes = Some(found.stored_bytes);
        // The same ratio as in `list`: whole blocks, names included, and the bytes stored.
        (summary.data_bytes, summary.ratio) = (Some(found.allocated_bytes), found.ratio);
        if let Some(old) = &old {
            let added = found.stored_bytes.saturating_sub(old.stored_bytes);
            summary.added_bytes = Some(added);
            // Data that replaces other data uses its space.
            let data = found.allocated_bytes.saturating_sub(old.allocated_bytes);
            summary.added_ratio = ratio(data, added).filter(|_| !args.overwrite);
        }
    }
    Ok(summary)
}

fn shown(file: &Path) -> String {
    if file == Path::new("-") { "stdin".to_owned() } else { file.display().to_string() }
}

fn set(name: &str, id: u64, changes: Changes) -> Request {
    Request::Set { object: Some(Which::known(name, Some(id))), changes, if_match: None }
}

/// The share before the import.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// It did not exist.
    New,
    /// An earlier import into it did not end.
    Incomplete,
    Whole,
}

/// Where the names of an import go.
enum Target<'a> {
    /// This process has the pool open.
    Tree(Arc<Tree>, &'a Service),
    /// The server fills the share, which it has just created, and mounts it afterwards.
    New(RemoteTree),
    /// The server has the share mounted there.
    Mount(PathBuf),
}

impl Target<'_> {
    /// Returns directories that the import must skip, because it would read its own output.
    fn left_out(&self, pool: &Path) -> Vec<(u64, u64)> {
        let mount = match self {
            Self::Mount(path) => Some(path.as_path()),
            Self::Tree(..) | Self::New(_) => None,
        };
        [Some(pool), mount].into_iter().flatten().filter_map(|path| identity(path).ok()).collect()
    }
}

fn fill(
    session: &Session,
    args: &ImportArgs,
    (id, remote, before): (u64, Option<RemoteTree>, Before),
    origin: Origin,
    interrupted: &AtomicBool,
    tally: &mut Tally,
    output: &Output,
) -> Outcome {
    let name = &args.volume;
    let target = match (remote, session) {
        (Some(remote), _) => Target::New(remote),
        (None, Session::Direct(pool)) => Target::Tree(share_trees::open_tree(&pool.service, name)?, &pool.service),
        (None, Session::Served(_)) => {
            refuse_readonly(session, name, id)?;
            Target::Mount(mounted(session, name)?)
        }
    };
    if before != Before::New {
        let own = args.properties.iter().map(|(key, value)| (key.clone(), Some(value.clone())));
        session.done(set(name, id, own.chain([(INCOMPLETE.to_owned(), Some("yes".to_owned()))]).collect()))?;
    }
    let (mut source, size): (Box<dyn Source>, _) = match origin {
        Origin::Directory => {
            let left_out = target.left_out(&args.pool);
            (Box::new(PosixSource::open(&args.file, left_out)?.for_share()), (None, Some(args.file.as_path())))
        }
        Origin::Archive(file, total) => {
            let input: Box<dyn Read> = Box::new(BufReader::with_capacity(ARCHIVE_BUFFER_BYTES, file));
            (Box::new(TarSource::new(input, &shown(&args.file)).for_share()), (total, None))
        }
    };
    let sets_root = before == Before::New || args.overwrite;
    let mut copied = |sink: &mut dyn Sink, tally: &mut Tally| {
        copy_shown("import", size, (&mut *source, sink), interrupted, tally, output)
    };
    match target {
        Target::Tree(tree, service) => {
            copied(&mut share_trees::sink(service, name, tree.clone(), args.overwrite, sets_root)?, tally)?;
            // A tree that failed is not closed in order: the next opening recovers it.
            let closed = tree.close();
            closed.map_err(|failure| share_trees::error_of(name, "its tree cannot be closed", failure))?;
        }
        Target::New(remote) => {
            let (done, counts) = remote.fill(copied);
            *tally = counts;
            done?;
        }
        Target::Mount(path) => copied(&mut PosixSink::open(&path, args.overwrite, sets_root)?, tally)?,
    }
    session.done(Request::Checkpoint)?;
    if before == Before::Incomplete && !args.overwrite {
        output.warn(&format!(
            "share '{name}' stays marked as incomplete, because an earlier import did not end: repeat that one with \
             --overwrite, or, to keep the share as it is, 'shale set POOL {name} incomplete=no'"
        ));
        return Ok(());
    }
    // Only now: a reader that does not see the mark finds all of the data.
    Ok(session.done(set(name, id, [(INCOMPLETE.to_owned(), None)].into()))?)
}

/// Adds the quota that was reached to a failure for lack of space.
fn with_quota(session: &Session, share: &str, failure: Failure) -> Failure {
    if !matches!(&failure, Failure::Error(error) if error.kind() == ErrorKind::Full) {
        return failure;
    }
    let Ok(status) = status::status(session) else { return failure };
    let is_over = |line: &&QuotaLine| line.name == share || is_in(share, &line.name);
    match status.at_quota.iter().find(is_over) {
        Some(line) => failure.with(&format!("; {}", line.words())),
        None => failure,
    }
}

/// Fails for a share with `readonly=on`: its mount refuses each name.
fn refuse_readonly(session: &Session, name: &str, id: u64) -> Outcome {
    let report = match session.call(Request::Get { object: Some(Which::known(name, Some(id))) })? {
        Reply::Properties(report) => report,
        other => return Err(other.unexpected().into()),
    };
    if report.properties.iter().any(|property| property.key == READONLY && property.value == "on") {
        let text = format!("share '{name}' has readonly=on: allow changes with 'shale set POOL {name} readonly=off'");
        return Err(Error::new(ErrorKind::ReadOnly, text).into());
    }
    Ok(())
}

/// Removes a new share if nothing was imported, and adds the progress to the failure.
fn clean_up(
    session: &Session,
    args: &ImportArgs,
    (id, before): (u64, Before),
    tally: &Tally,
    failure: Failure,
) -> Failure {
    let name = &args.volume;
    if volumes(session).is_ok_and(|volumes| volumes.iter().all(|volume| volume.id != id)) {
        return failure
            .with(&format!("; nothing of the import is left, because another command has destroyed share '{name}'"));
    }
    let is_empty = tally.names() <= 1;
    if before == Before::New && is_empty {
        let destroy = Request::Destroy {
            object: Which::known(name.clone(), Some(id)),
            recursive: true,
            force: false,
            if_match: None,
        };
        let left = match session.done(destroy) {
            Ok(()) => "; the new share was removed".to_owned(),
            Err(error) => format!("; the new share '{name}' could not be removed ({error})"),
        };
        return failure.with(&left);
    }
    if is_empty && before == Before::Incomplete {
        return failure.with(&format!("; share '{name}' is unchanged, and marked as incomplete by an earlier import"));
    }
    if is_empty {
        let unmark = session.done(set(name, id, [(INCOMPLETE.to_owned(), None)].into()));
        return if unmark.is_ok() { failure.with(&format!("; share '{name}' is unchanged")) } else { failure };
    }
    failure.with(&format!(
        "; share '{name}' has {} names of it and stays marked as incomplete: import again with --overwrite, or destroy it",
        tally.names()
    ))
}

/// The source of an import.
enum Origin {
    Directory,
    /// An archive, and its size in bytes, if known.
    Archive(File, Option<u64>),
}

impl Origin {
    fn open(path: &Path) -> Outcome<Self> {
        if path == Path::new("-") {
            let stdin = std::io::stdin().as_fd().try_clone_to_owned();
            let mut file = File::from(stdin.map_err(|error| Error::from_io("cannot use stdin", error))?);
            let total = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|found| found.len());
            let behind = file.stream_position().unwrap_or(0);
            return Ok(Self::Archive(file, total.map(|total| total.saturating_sub(behind))));
        }
        if path.is_dir() {
            return Ok(Self::Directory);
        }
        let failed = |error| path_error("cannot open", path, error);
        let mut file = File::open(path).map_err(failed)?;
        // Also for a block device, such as a tape's image.
        let total = file.seek(SeekFrom::End(0)).and_then(|end| file.rewind().map(|()| end)).ok();
        if total.is_some_and(|total| (1..TAR_BLOCK_BYTES).contains(&total)) {
            let text = format!(
                "a share is imported from a directory or a tar archive, and {} is neither: copy it into the mounted share",
                path.display()
            );
            return Err(Error::new(ErrorKind::Invalid, text).into());
        }
        Ok(Self::Archive(file, total))
    }
}
