//! Target of an export: a file, written sparse and in any order; a block device; or a stream,
//! written in order.

use std::fs::{File, Metadata};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use surface::{Error, ErrorKind, Result};

use super::PIECE_BYTES;
use operations::path_error;

/// Something to write.
pub enum Sink {
    /// A regular file created by us: holes need not be written. It grows with the data written, so
    /// that a partial copy is not mistaken for a complete one.
    File(Target),
    /// A block device, or anything else with a fixed size and old content: holes are written as
    /// zeroes.
    Device(Target),
    /// Written in order.
    Stream(File),
}

/// Refuses a path that belongs to a pool.
pub type Guard = fn(&Path) -> Result<()>;

/// Opens for writing the file that was found at a path, with more `flags` of open(2). Another user
/// may have replaced it since: by a fifo, at which an open waits for a reader without limit, or by
/// a file that must not be overwritten. So the open does not wait, unless it is a fifo that was
/// found, and any other file is refused before anything is changed.
///
/// # Errors
/// `InUse` for another file, and I/O errors.
pub fn open_found(path: &Path, found: &Metadata, flags: i32) -> Result<File> {
    let failed = |error| path_error("cannot open", path, error);
    let waits = found.file_type().is_fifo();
    let flags = flags | libc::O_NOCTTY | if waits { 0 } else { libc::O_NONBLOCK };
    let file = File::options().write(true).custom_flags(flags).open(path).map_err(failed)?;
    let identity = |file: &Metadata| (file.dev(), file.ino(), file.file_type());
    if identity(&file.metadata().map_err(failed)?) != identity(found) {
        let text = format!(
            "{} was replaced by another file while it was opened: try again, in a directory in which no other user \
             writes",
            path.display()
        );
        return Err(Error::new(ErrorKind::InUse, text));
    }
    if !waits {
        let waiting = rustix::fs::fcntl_getfl(&file).map(|flags| flags - OFlags::NONBLOCK);
        let set = waiting.and_then(|flags| rustix::fs::fcntl_setfl(&file, flags));
        set.map_err(|error| failed(error.into()))?;
    }
    Ok(file)
}

/// Empties a file that will be overwritten, unless it is in use, or belongs to a pool.
///
/// `guard` refuses a path that must not be overwritten.
///
/// # Errors
/// `InUse`, and I/O errors.
pub fn empty(file: &File, path: &Path, guard: Guard) -> Result<()> {
    guard(path)?;
    // The data file of an open pool is locked. (On file systems without locks, this check has no
    // effect.)
    if env::try_hold(file) == Ok(false) {
        let message = format!("{} is locked by another process; choose another file", path.display());
        return Err(Error::new(ErrorKind::InUse, message));
    }
    file.set_len(0).map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM) => {
            let message = format!("cannot empty {}: its size is fixed; choose another file", path.display());
            Error::new(ErrorKind::Unsupported, message)
        }
        _ => path_error("cannot empty", path, error),
    })
}

/// A file that can be written anywhere.
pub struct Target {
    file: File,
    path: PathBuf,
    /// Whether it was created here: removed if the export fails.
    created: bool,
    /// How long it is in the end.
    size_bytes: u64,
}

impl Sink {
    /// Opens a file or block device for `size_bytes`, or stdout for `-`.
    ///
    /// # Errors
    /// `Exists` without `force` when the path exists, `InUse` when it is in use, `Full` when a
    /// device is too small.
    pub fn open(path: &Path, size_bytes: u64, force: bool, guard: Guard) -> Result<Self> {
        if path == Path::new("-") {
            let stdout = host::stdout().map_err(|error| Error::from_io("cannot use stdout", error))?;
            return Ok(Self::Stream(stdout));
        }
        let failed = |what| move |error| path_error(what, path, error);
        let metadata = match std::fs::metadata(path) {
            Ok(metadata) => Some(metadata),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed("cannot access")(error)),
        };
        let Some(metadata) = metadata else {
            let file = File::options().write(true).create_new(true).open(path).map_err(failed("cannot create"))?;
            let target = Target { file, path: path.to_owned(), created: true, size_bytes };
            return target.fitting().map(Self::File);
        };
        let kind = metadata.file_type();
        if kind.is_fifo() || kind.is_char_device() || kind.is_socket() {
            return open_found(path, &metadata, 0).map(Self::Stream);
        }
        if kind.is_dir() {
            return Err(Error::new(ErrorKind::Invalid, format!("{} is a directory; name a file", path.display())));
        }
        if !force {
            let message = format!("{} exists; overwrite it with --force", path.display());
            return Err(Error::new(ErrorKind::Exists, message));
        }
        if kind.is_block_device() {
            // Refuses a device that is mounted, or that holds a pool which is open.
            guard(path)?;
            let file = open_found(path, &metadata, libc::O_EXCL)?;
            let device_bytes = (&file).seek(SeekFrom::End(0)).map_err(failed("cannot find the size of"))?;
            let target = Target { file, path: path.to_owned(), created: false, size_bytes };
            return target.within(device_bytes).map(Self::Device);
        }
        let file = open_found(path, &metadata, 0)?;
        let emptied = empty(&file, path, guard);
        let target = Target { file, path: path.to_owned(), created: false, size_bytes };
        match emptied {
            Ok(()) => target.fitting().map(Self::File),
            // The file of a volume, of a mount of Shale's.
            Err(error) if error.kind() == ErrorKind::Unsupported => target.within(metadata.len()).map(Self::Device),
            Err(error) => Err(error),
        }
    }

    /// The file, if it can be written anywhere.
    pub fn target(&self) -> Option<&Target> {
        match self {
            Self::File(target) | Self::Device(target) => Some(target),
            Self::Stream(_) => None,
        }
    }

    /// Makes the written data complete and durable (a stream: passes it on).
    ///
    /// # Errors
    /// I/O errors.
    pub fn finish(&self) -> Result<()> {
        if let Self::File(target) = self {
            target.set_len(target.size_bytes)?;
        }
        match self {
            Self::File(target) | Self::Device(target) => {
                target.file.sync_all().map_err(|error| path_error("cannot sync", &target.path, error))
            }
            Self::Stream(_) => Ok(()),
        }
    }

    /// After a failure: removes the file if it was created here, and describes the remains.
    pub fn abandon(&self) -> &'static str {
        match self {
            Self::File(target) if target.created => {
                drop(std::fs::remove_file(&target.path));
                ""
            }
            Self::File(_) | Self::Device(_) => ", which is incomplete now",
            Self::Stream(_) => "",
        }
    }
}

impl Target {
    fn set_len(&self, bytes: u64) -> Result<()> {
        self.file.set_len(bytes).map_err(|error| path_error("cannot set the size of", &self.path, error))
    }

    /// An empty file, which the file system lets become as long as is needed.
    fn fitting(self) -> Result<Self> {
        let tried = self.set_len(self.size_bytes).and_then(|()| self.set_len(0));
        if tried.is_err() && self.created {
            drop(std::fs::remove_file(&self.path));
        }
        tried.map(|()| self)
    }

    /// Limits it to a target of fixed size.
    fn within(self, bytes: u64) -> Result<Self> {
        if bytes < self.size_bytes {
            let (has, wants) = (units::format_size(bytes), units::format_size(self.size_bytes));
            let message = format!("{} has {has}, less than the volume's {wants}", self.path.display());
            return Err(Error::new(ErrorKind::Full, message));
        }
        Ok(self)
    }

    /// The file itself.
    pub(super) const fn file(&self) -> &File {
        &self.file
    }

    /// Its name.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes at an offset.
    ///
    /// # Errors
    /// I/O errors.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let failed = |error| path_error(format_args!("cannot write at byte {offset} of"), &self.path, error);
        self.file.write_all_at(data, offset).map_err(failed)
    }

    /// Makes a range zero that may hold something.
    ///
    /// # Errors
    /// I/O errors.
    pub fn zero(&self, offset: u64, length: u64) -> Result<()> {
        let flags = rustix::fs::FallocateFlags::ZERO_RANGE | rustix::fs::FallocateFlags::KEEP_SIZE;
        if rustix::fs::fallocate(&self.file, flags, offset, length).is_ok() {
            return Ok(());
        }
        for (at, step) in steps(offset, length) {
            self.write(at, &ZEROES[..step])?;
        }
        Ok(())
    }
}

static ZEROES: [u8; PIECE_BYTES] = [0; PIECE_BYTES];

/// Cuts a range into pieces.
fn steps(offset: u64, length: u64) -> impl Iterator<Item = (u64, usize)> {
    let end = offset + length;
    (offset..end).step_by(PIECE_BYTES).map(move |at| {
        let left = usize::try_from(end - at).unwrap_or(PIECE_BYTES);
        (at, left.min(PIECE_BYTES))
    })
}

/// Writes zeroes to a stream.
///
/// # Errors
/// I/O errors.
pub fn stream_zeroes(mut stream: &File, length: u64) -> std::io::Result<()> {
    for (_, step) in steps(0, length) {
        stream.write_all(&ZEROES[..step])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::{CWD, FileType, Mode};
    use testkit::TempDir;

    use super::*;

    /// An export to a fifo without a reader never ended, and could not be interrupted.
    #[test]
    fn a_file_that_took_the_place_of_the_one_found_is_not_written() {
        let dir = TempDir::new("export-replaced");
        let path = dir.path().join("target");
        fs::write(&path, "old").unwrap();
        let found = fs::metadata(&path).unwrap();
        let refused = || open_found(&path, &found, 0).unwrap_err();
        fs::rename(&path, dir.path().join("moved")).unwrap();
        fs::write(&path, "another").unwrap();
        assert_eq!(refused().kind(), ErrorKind::InUse);
        assert_eq!(fs::read(&path).unwrap(), b"another");
        fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let reader = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
        assert_eq!(refused().kind(), ErrorKind::InUse, "a fifo with a reader");
        drop(reader);
        assert!(refused().to_string().contains("cannot open"), "a fifo without one");
        // It is opened as before if it is what was found.
        let reader = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
        let mut fifo = open_found(&path, &fs::metadata(&path).unwrap(), 0).unwrap();
        fifo.write_all(b"x").unwrap();
        drop((fifo, reader));
        fs::rename(dir.path().join("moved"), &path).unwrap();
        let file = open_found(&path, &found, 0).unwrap();
        assert!(!rustix::fs::fcntl_getfl(&file).unwrap().contains(OFlags::NONBLOCK));
    }
}
