//! The job that restores files of a share from a snapshot. `copy::trees` puts them in place.
//!
//! A mounted share is changed through its mount, because the kernel caches its names without limit.
//! A thread of this process must not wait for that mount: a killed server could then not end before
//! the next one answers. So a separate process writes and renames there, and receives the files
//! from this one as a tar archive. If the server is killed, the archive is cut off, and that
//! process removes its staged files.

use std::ffi::OsStr;
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use copy::trees::{
    MountPlace, PosixSink, Restore, STAGE_PREFIX, ShareSink, ShareSource, Source, Staged, Tally, TarSink, TarSource,
    TreePlace, Whole, restore,
};
use operations::{Failure, Outcome, Which};
use report::{JobFault, JobResult, RestoreTotal};
use serde::{Deserialize, Serialize};
use share::Tree;
use surface::{DeviceId, Error, ErrorKind, NamedClient, Result};

use super::table::{Doing, Stop, Work};
use crate::service::Service;
use crate::share_browse::check_path;
use crate::share_files::{Opened, is_name};
use crate::share_trees::{check_writable, error_of, open_moment};

/// The command of that process; servers start it, users never do.
pub const RESTORE_COMMAND: &str = "restore-files";
/// Bytes of the archive per write.
const BUFFER_BYTES: usize = 256 << 10;

/// Files to be restored.
#[derive(Debug, Clone)]
pub(crate) struct RestoreWish {
    pub(crate) object: Which,
    pub(crate) path: String,
    pub(crate) at: String,
    pub(crate) to: Option<String>,
    pub(crate) replaces: bool,
}

/// A restore that was checked and can be done.
#[derive(Debug)]
pub(crate) struct RestorePlan {
    pub(super) share: DeviceId,
    pub(super) name: String,
    snapshot: DeviceId,
    /// Path from the root of the snapshot.
    from: Vec<Vec<u8>>,
    is_file: bool,
    /// Path from the root of the share.
    to: Vec<Vec<u8>>,
    /// Number of names of `to` that exist: all, or all but the last.
    present: usize,
    replaces: bool,
}

/// Report of the process, on one line.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Ended {
    Done(RestoreTotal),
    Failed(JobFault),
}

fn invalid(text: String) -> Error {
    Error::new(ErrorKind::Invalid, text)
}

impl RestorePlan {
    /// Checks whether the files can be restored.
    ///
    /// # Errors
    /// `Exists` for a target that must not be replaced; `NotFound`, `Invalid`, `ReadOnly`.
    pub(super) fn new(service: &Service, wish: &RestoreWish) -> Result<Self> {
        check_path(&wish.path)?;
        wish.to.as_deref().map_or(Ok(()), check_path)?;
        let volume = service.share_meant(&wish.object)?;
        let name = volume.name();
        if name.contains('@') {
            return Err(invalid(format!(
                "'{name}' is a snapshot, which cannot be changed: specify the share, and the snapshot as 'at'"
            )));
        }
        check_writable(&volume)?;
        let title = format!("{name}@{}", wish.at);
        let snapshot = service.pool().volume(&title)?.id();
        let opened = service.opened(&title)?;
        let (from, node) = opened.walk(&title, &wish.path)?;
        let inode = opened.tree.inode(node).map_err(|failure| error_of(&title, "it cannot be read", failure))?;
        let to = wish.to.as_deref().map_or_else(|| Ok(from.clone()), names_in)?;
        let shown = shown(&to);
        if to.first().is_some_and(|name| name.starts_with(STAGE_PREFIX)) {
            let text = format!("'{shown}': this name is reserved for restores under way: choose another place");
            return Err(invalid(text));
        }
        let (owner, _) = service.place_of(&name, &shown);
        if owner != name {
            return Err(invalid(format!("'{shown}' is in share '{owner}', not in '{name}': restore to another place")));
        }
        if to.is_empty() && !inode.is_directory() {
            return Err(invalid(format!("'{}' is not a directory: specify a directory to restore to", wish.path)));
        }
        let plan = Self {
            share: volume.id(),
            name,
            snapshot,
            from,
            is_file: !inode.is_directory(),
            to,
            present: 0,
            replaces: wish.replaces,
        };
        plan.looked_at(&service.opened(&volume.name())?, wish.to.is_some())
    }

    /// Compares the files with the entries at the target.
    fn looked_at(mut self, live: &Opened, is_elsewhere: bool) -> Result<Self> {
        let mut node = Tree::ROOT;
        let (name, shown) = (&self.name, shown(&self.to));
        for (depth, part) in self.to.iter().enumerate() {
            let is_last = depth + 1 == self.to.len();
            self.present = depth;
            match live.tree.lookup(node, part) {
                Ok((_, inode)) if is_last && inode.is_directory() == self.is_file => {
                    let text = format!(
                        "'{shown}' in share '{name}' is a file now and a directory in the snapshot, or vice versa: restore to another place"
                    );
                    return Err(Error::new(ErrorKind::Exists, text));
                }
                Ok(_) if is_last && self.is_file && !self.replaces => {
                    let text = format!(
                        "'{shown}' exists in share '{name}', and may be newer than the snapshot's: restore to \
                         another place, or set replace=true"
                    );
                    return Err(Error::new(ErrorKind::Exists, text));
                }
                Ok((next, inode)) if is_last || inode.is_directory() => node = next,
                Ok(_) => {
                    return Err(invalid(format!(
                        "'{}' in share '{name}' is not a directory now: restore to another place",
                        self::shown(&self.to[..=depth])
                    )));
                }
                Err(failure) if failure.errno() == libc::ENOENT && (is_last || !is_elsewhere) => break,
                Err(failure) if failure.errno() == libc::ENOENT => {
                    let text = format!(
                        "share '{name}' has no directory '{}': create it first",
                        self::shown(&self.to[..=depth])
                    );
                    return Err(Error::new(ErrorKind::NotFound, text));
                }
                Err(failure) => return Err(error_of(name, &format!("'{shown}' cannot be looked up"), failure)),
            }
        }
        Ok(self)
    }

    /// Returns the job's target for its list.
    pub(super) fn path(&self) -> String {
        shown(&self.to)
    }

    /// Opens the snapshot as a client, so that neither a command nor a schedule destroys it while
    /// its files are read.
    fn moment(&self, service: &Service) -> Result<Arc<Tree>> {
        let volume = service.pool().volume_of(self.snapshot)?;
        let client = NamedClient::shared(format!("a restore to share '{}'", self.name));
        let device = service.devices().open_volume(volume.clone(), &client)?;
        open_moment(volume, device).map(|moment| Arc::new(moment.tree))
    }

    /// Returns the items under their staged name.
    fn source(&self, service: &Service, stage: &[u8]) -> Result<Staged<ShareSource>> {
        let tree = self.moment(service)?;
        let mut above = Vec::new();
        for depth in self.present..self.to.len().saturating_sub(1) {
            let directory = ShareSource::open(tree.clone(), &self.from[..=depth].join(&b'/'))?;
            let item = match Whole(directory).next() {
                Ok(Some(item)) => item,
                Ok(None) => Default::default(),
                Err(copy::trees::Stop::Skip(line)) => return Err(Error::new(ErrorKind::Corrupt, line)),
                Err(copy::trees::Stop::Fatal(failure)) => return Err(error_from(failure)),
            };
            above.push((self.to[depth].clone(), item));
        }
        let source = ShareSource::open(tree, &self.from.join(&b'/'))?;
        Ok(Staged::new(source, stage, above, self.to.last().map_or(&b""[..], |name| name), self.is_file))
    }

    /// Performs the restore.
    pub(super) fn run(&self, service: &Service, doing: &Doing) -> Work<JobResult> {
        doing.begin_phase("restoring", 0, None);
        let mut random = [0; 8];
        env::Entropy::fill(&env::SystemEntropy, &mut random)
            .map_err(|error| Error::from_io("reading random bytes for a restore", error))?;
        let stage = [STAGE_PREFIX, format!("{:016x}", u64::from_le_bytes(random)).as_bytes()].concat();
        let target = self.to[..self.to.len().min(self.present + 1)].join(&b'/');
        let wanted = Restore { stage: &stage, target: &target, replaces: self.replaces };
        let interrupted = AtomicBool::new(false);
        let mut progress = |bytes| {
            doing.tell(bytes, None, String::new());
            interrupted.store(doing.go_on().is_err(), Ordering::SeqCst);
        };
        let source = self.source(service, &stage)?;
        let mounted = service.mounted_shares().and_then(|shares| {
            shares.mounted().into_iter().find_map(|(id, _, dir)| (id == self.share.0).then_some(dir))
        });
        let done = match mounted {
            Some(dir) => through_mount(&dir, source, wanted, &interrupted, &mut progress),
            None => {
                let volume = service.pool().volume_of(self.share)?;
                service.with_writable(&volume, |opened| {
                    let (share, place) = (volume.clone(), TreePlace(opened.tree.clone()));
                    let sink = ShareSink::new(opened.tree.clone(), false, false);
                    let sink = sink.while_writable(move || check_writable(&share));
                    Ok(restore(source, sink, &place, wanted, &interrupted, &mut progress))
                })?
            }
        };
        match (done, doing.is_cancelled()) {
            (Ok(total), _) => Ok(JobResult::Restored(total)),
            (Err(Failure::Interrupted(_)), Some(why)) => Err(Stop::Cancelled(format!("{why}: nothing is restored"))),
            // Also if it was cancelled since: some files may be in place.
            (Err(failure), _) => Err(error_from(failure).into()),
        }
    }
}

/// Returns the names of a path, decoded.
///
/// # Errors
/// `Invalid` if one cannot be the name of a file.
fn names_in(path: &str) -> Result<Vec<Vec<u8>>> {
    let names = path.split('/').filter(|name| !name.is_empty() && *name != ".");
    let named = |name: &str| {
        let bytes = share::out_of_words(name);
        let text = || invalid(format!("'{name}' in '{path}' cannot be the name of a file: choose another name"));
        is_name(&bytes).then_some(bytes).ok_or_else(text)
    };
    names.map(named).collect()
}

fn shown(names: &[Vec<u8>]) -> String {
    share::in_words(&names.join(&b'/'))
}

fn error_from(failure: Failure) -> Error {
    match failure {
        Failure::Error(error) => error,
        other => Error::new(ErrorKind::Io, other.to_string()),
    }
}

/// Restores with a separate process.
fn through_mount(
    dir: &Path,
    source: impl Source,
    wanted: Restore<'_>,
    interrupted: &AtomicBool,
    progress: &mut dyn FnMut(u64),
) -> Outcome<RestoreTotal> {
    let failed = |error| Failure::from(Error::from_io("the process that restores files", error));
    let mut program = Command::new("/proc/self/exe");
    program.arg(RESTORE_COMMAND).args(wanted.replaces.then_some("--replace")).arg("--").arg(dir);
    program.arg(OsStr::from_bytes(wanted.stage)).arg(OsStr::from_bytes(wanted.target));
    program.current_dir("/").process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = host::with_usual_signals(&mut program).spawn().map_err(failed)?;
    let sent = send(&mut child, source, interrupted, progress);
    let output = child.wait_with_output().map_err(failed)?;
    match serde_json::from_slice(&output.stdout) {
        Ok(Ended::Done(total)) => Ok(total),
        // An unreadable source cuts the archive off.
        Ok(Ended::Failed(fault)) => {
            Err(sent.err().filter(|sent| !is_broken(sent)).unwrap_or_else(|| fault.error().into()))
        }
        Err(_) => {
            Err(Error::new(ErrorKind::Io, format!("the process that restores files ended: {}", output.status)).into())
        }
    }
}

/// Returns whether sending failed because the receiver has ended.
pub(crate) fn is_broken(failure: &Failure) -> bool {
    let Failure::Error(error) = failure else { return false };
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if cause.downcast_ref::<std::io::Error>().is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe) {
            return true;
        }
        source = cause.source();
    }
    false
}

/// Sends the archive. Without its end mark nothing is restored.
fn send(child: &mut Child, source: impl Source, interrupted: &AtomicBool, progress: &mut dyn FnMut(u64)) -> Outcome {
    let Some(stdin) = child.stdin.take() else { return Ok(()) };
    let (mut source, mut tally) = (Whole(source), Tally::default());
    let mut output = BufWriter::with_capacity(BUFFER_BYTES, stdin);
    let mut sink = Whole(TarSink::new(&mut output));
    copy::trees::copy(&mut source, &mut sink, interrupted, &mut tally, &mut |tally, _| progress(tally.bytes))?;
    output.flush().map_err(|error| Error::from_io("the process that restores files", error))?;
    Ok(())
}

/// Main function of the process: reads an archive from standard input, restores it below `dir`, and
/// reports on standard output.
///
/// # Errors
/// When the report cannot be written.
pub fn restore_from_stdin(dir: &Path, stage: &OsStr, target: &OsStr, replaces: bool) -> Result<()> {
    let work = || {
        let input = std::io::BufReader::with_capacity(BUFFER_BYTES, std::io::stdin().lock());
        let source = TarSource::new(input, "the archive");
        let wanted = Restore { stage: stage.as_bytes(), target: target.as_bytes(), replaces };
        let place = MountPlace::of_share(dir)?;
        let sink = PosixSink::open(&place.path(), false, false)?;
        restore(source, sink, &place, wanted, &AtomicBool::new(false), &mut |_| {})
    };
    let ended = match work() {
        Ok(total) => Ended::Done(total),
        Err(failure) => Ended::Failed(JobFault::from(&error_from(failure))),
    };
    let failed = |error| Error::from_io("the outcome of a restore cannot be reported", error);
    let line = serde_json::to_string(&ended).map_err(|error| failed(error.into()))?;
    writeln!(std::io::stdout(), "{line}").map_err(failed)
}
