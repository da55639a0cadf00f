//! `shale export` of a share, or of a part of one, to a directory or a tar archive.

use std::fs::File;
use std::io::BufWriter;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use surface::{Error, ErrorKind};

use super::incomplete;
use super::trees::{TreeSummary, copy_shown, find, mounted, tell_problems};
use crate::cli::ExportArgs;
use crate::output::Output;
use copy::transfer::open_found;
use copy::trees::{PosixSink, PosixSource, ShareSource, Sink, Source, Tally, TarSink};
use operations::{Failure, Outcome, path_error};
use server::pool_dir::refuse_part_of_pool;
use server::session::Session;
use server::share_trees;

/// Bytes of an archive per write.
const ARCHIVE_BUFFER_BYTES: usize = 1 << 20;

/// Exports an existing share, through a session.
///
/// # Errors
/// Those of the pool and of the target.
pub fn export(session: &Session, args: &ExportArgs, interrupted: &AtomicBool, output: &Output) -> Outcome<TreeSummary> {
    let started = Instant::now();
    let name = &args.volume;
    incomplete::warn_of(name, session, output);
    let path = args.path().map_or(&b""[..], |path| path.as_os_str().as_bytes());
    let (mut source, total): (Box<dyn Source>, _) = match session {
        Session::Direct(pool) => {
            let volume = pool.service.pool().volume(name)?;
            let moment = share_trees::open_moment(volume.clone(), volume)?;
            (Box::new(ShareSource::open(std::sync::Arc::new(moment.tree), path)?), None)
        }
        Session::Served(_) => {
            let place = mounted(session, name)?;
            let place = inside(&place, path)?;
            (Box::new(PosixSource::open(&place, Vec::new())?), Some(place))
        }
    };
    let bytes = (!name.contains('@') && path.is_empty())
        .then(|| find(session, name).ok().flatten().map(|share| share.allocated_bytes))
        .flatten();
    let target = Target::open(args.target(), args.force, args.tar)?;
    let mut tally = Tally::default();
    let done = target.fill(|sink| {
        let size = (bytes, total.as_deref().filter(|_| bytes.is_none()));
        copy_shown("export", size, (&mut *source, sink), interrupted, &mut tally, output)
    });
    done.map_err(|failure| {
        tell_problems(&tally.lines, tally.problems, output);
        let left = target.abandon();
        failure.context(format_args!("export of share '{name}' to {}", args.target().display())).with(left)
    })?;
    let mut summary = TreeSummary::new(name, tally, started);
    summary.target = Some(args.target().display().to_string());
    Ok(summary)
}

/// Returns a path within a mounted share, which must not lead out of it.
fn inside(mount: &Path, path: &[u8]) -> Outcome<PathBuf> {
    let mut place = mount.to_owned();
    for name in path.split(|&byte| byte == b'/').filter(|name| !matches!(*name, b"" | b".")) {
        if name == b".." {
            return Err(Error::new(ErrorKind::Invalid, "a path within a share cannot contain '..'").into());
        }
        place.push(std::ffi::OsStr::from_bytes(name));
        let found = std::fs::symlink_metadata(&place).map_err(|error| path_error("cannot find", &place, error))?;
        if found.is_symlink() && !path.ends_with(name) {
            let text = format!("{} is a symbolic link: specify the directory that it leads to", place.display());
            return Err(Error::new(ErrorKind::Invalid, text).into());
        }
    }
    Ok(place)
}

/// Target of an export.
enum Target {
    Directory { path: PathBuf, is_new: bool, overwrite: bool },
    Archive { file: File, path: PathBuf, is_new: bool },
}

impl Target {
    fn open(path: &Path, overwrite: bool, is_archive: bool) -> Outcome<Self> {
        if path == Path::new("-") {
            let file = host::stdout().map_err(|error| Error::from_io("cannot use stdout", error))?;
            return Ok(Self::Archive { file, path: path.to_owned(), is_new: false });
        }
        let found = match std::fs::metadata(path) {
            Ok(found) => Some(found),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(path_error("cannot look at", path, error).into()),
        };
        let is_archive = is_archive || path.extension().is_some_and(|extension| extension == "tar");
        match found {
            Some(found) if found.is_dir() && is_archive => {
                Err(Error::new(ErrorKind::Invalid, format!("{} is a directory, not an archive", path.display())).into())
            }
            Some(found) if found.is_dir() => Ok(Self::Directory { path: path.to_owned(), is_new: false, overwrite }),
            Some(found) => {
                let kind = found.file_type();
                if !overwrite && !kind.is_fifo() && !kind.is_char_device() {
                    let text = format!("{} exists; overwrite it with --force", path.display());
                    return Err(Error::new(ErrorKind::Exists, text).into());
                }
                refuse_part_of_pool(path)?;
                let file = open_found(path, &found, 0)?;
                if kind.is_file() {
                    file.set_len(0).map_err(|error| path_error("cannot empty", path, error))?;
                }
                Ok(Self::Archive { file, path: path.to_owned(), is_new: false })
            }
            None if is_archive => {
                let file = File::create_new(path).map_err(|error| path_error("cannot create", path, error))?;
                Ok(Self::Archive { file, path: path.to_owned(), is_new: true })
            }
            None => {
                std::fs::create_dir(path).map_err(|error| path_error("cannot make", path, error))?;
                Ok(Self::Directory { path: path.to_owned(), is_new: true, overwrite })
            }
        }
    }

    fn fill(&self, work: impl FnOnce(&mut dyn Sink) -> Outcome) -> Outcome {
        match self {
            Self::Directory { path, is_new, overwrite } => {
                let mut sink = PosixSink::open(path, *overwrite, *is_new || *overwrite)?;
                work(&mut sink)?;
                Ok(())
            }
            Self::Archive { file, path, is_new } => {
                work(&mut TarSink::new(BufWriter::with_capacity(ARCHIVE_BUFFER_BYTES, file)))?;
                if *is_new || path != Path::new("-") {
                    let synced = file.sync_all().or_else(|error| match error.raw_os_error() {
                        // For a pipe.
                        Some(libc::EINVAL | libc::EROFS) => Ok(()),
                        _ => Err(error),
                    });
                    synced.map_err(|error| path_error("cannot sync", path, error))?;
                }
                Ok(())
            }
        }
    }

    /// After a failure, removes an archive that this export created, and describes the remains.
    fn abandon(&self) -> &'static str {
        match self {
            Self::Archive { path, is_new: true, .. } => {
                drop(std::fs::remove_file(path));
                "; the archive was removed"
            }
            Self::Archive { .. } => "; the archive is incomplete",
            Self::Directory { .. } => "; the files copied so far are there",
        }
    }
}

/// Reports the outcome; the failure it returns was already reported.
pub fn tell(summary: &TreeSummary, output: &Output) -> Result<(), Failure> {
    summary.tell("--force", output)
}
