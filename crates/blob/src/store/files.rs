//! This machine's file system as a store. It creates directories on demand, as its client does,
//! except for a record that has a predecessor: that is written into the log's existing directory,
//! which is held open during the write, or not at all. So a client with an open blob whose
//! directory was deleted creates nothing in its place. Any number of tasks and processes may use
//! it.
//!
//! Objects that must not be overwritten are created here, not by the client. A file is written
//! under a temporary name that no other process ever uses, and is then renamed. The client reuses
//! its temporary names after a collector has removed the file of a killed process, so a process
//! that was merely slow would publish a half-written file of another one.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::{Path as FilePath, PathBuf};

use async_trait::async_trait;
use bytes::Bytes;
use env::{Entropy, SystemEntropy};
use futures_util::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use crate::names::has_predecessor;

/// Name of the file client in its errors.
const STORE: &str = "LocalFileSystem";

/// The reason why a record was not written: its log is missing.
#[derive(Debug, thiserror::Error)]
#[error("the directory of the blob's log is gone")]
pub(crate) struct NoLog;

/// Attempts to create a file when it, or its directory, is removed at the same time.
const CREATE_TRIES: u32 = 3;

/// The file system as a store.
#[derive(Debug)]
pub(crate) struct Files(LocalFileSystem);

impl Files {
    /// Opens the whole file system. An acknowledged object is on disk; a directory is removed with
    /// its last object.
    pub(crate) fn new() -> Self {
        Self(LocalFileSystem::new().with_fsync(true).with_automatic_cleanup(true))
    }
}

impl std::fmt::Display for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Returns whether an error means that a log is missing.
pub(crate) fn lacks_log(error: &Error) -> bool {
    matches!(error, Error::NotFound { source, .. } if source.is::<NoLog>())
}

/// Creates a file durably. Creates its directory as well, unless that must exist.
fn create(path: &FilePath, payload: &PutPayload, must_be_there: bool) -> Result<PutResult> {
    let other = |source: std::io::Error| Error::Generic { store: STORE, source: Box::new(source) };
    let no_log = || Error::NotFound { path: path.display().to_string(), source: Box::new(NoLog) };
    let (Some(directory), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Err(no_log());
    };
    let mut tries = 0;
    loop {
        tries += 1;
        match create_within(directory, name, payload, must_be_there) {
            Ok(()) => return Ok(PutResult { e_tag: None, version: None, extensions: Default::default() }),
            Err(source) if source.kind() == ErrorKind::AlreadyExists && path.exists() => {
                return Err(Error::AlreadyExists { path: path.display().to_string(), source: Box::new(source) });
            }
            // Another process removed the empty directory, or a collector removed the file.
            Err(source) if source.kind() == ErrorKind::NotFound && tries < CREATE_TRIES => {}
            Err(source) if source.kind() == ErrorKind::NotFound && must_be_there => return Err(no_log()),
            Err(source) => return Err(other(source)),
        }
    }
}

/// Creates a file in a directory, which is held open during the write, and makes both durable.
#[allow(clippy::disallowed_methods, reason = "it is the store, in whose place tests have others")]
fn create_within(directory: &FilePath, name: &str, payload: &PutPayload, must_be_there: bool) -> std::io::Result<()> {
    if !must_be_there {
        make_directory(directory)?;
    }
    let held = File::open(directory)?;
    // Through the handle: a new directory at this path would not be the blob's.
    let handle = PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()));
    let place = if FilePath::new("/proc/self/fd").is_dir() { handle } else { directory.to_owned() };
    let mut number = [0; 8];
    SystemEntropy.fill(&mut number)?;
    // Named like the client's own half-written files, which it does not list.
    let staged = place.join(format!("{name}#{}", u64::from_le_bytes(number)));
    let mut file = OpenOptions::new().write(true).create_new(true).open(&staged)?;
    let written = payload.iter().try_for_each(|part| file.write_all(part)).and_then(|()| file.sync_all());
    let linked = written.and_then(|()| std::fs::hard_link(&staged, place.join(name)));
    let _ = std::fs::remove_file(&staged);
    linked.and_then(|()| held.sync_all())
}

/// Creates a directory and its missing parents, each durably.
#[allow(clippy::disallowed_methods, reason = "it is the store, in whose place tests have others")]
fn make_directory(directory: &FilePath) -> std::io::Result<()> {
    let made = match std::fs::create_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => match directory.parent() {
            Some(above) => make_directory(above).and_then(|()| std::fs::create_dir(directory)),
            None => Err(error),
        },
        made => made,
    };
    match made {
        Ok(()) => File::open(directory.parent().unwrap_or(directory))?.sync_all(),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

#[async_trait]
impl ObjectStore for Files {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        if !matches!(opts.mode, PutMode::Create) {
            return self.0.put_opts(location, payload, opts).await;
        }
        let path = self.0.path_to_filesystem(location)?;
        let must_be_there = has_predecessor(location);
        let written = tokio::task::spawn_blocking(move || create(&path, &payload, must_be_there)).await;
        written.map_err(|source| Error::JoinError { source })?
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.0.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.0.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.0.get_ranges(location, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.0.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list(prefix)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.0.copy_opts(from, to, options).await
    }
}

#[cfg(test)]
mod tests {
    use testkit::TempDir;

    use super::*;

    #[tokio::test]
    async fn what_cannot_be_made_is_told_at_once() {
        let dir = TempDir::new("in-vain");
        std::fs::write(dir.join("file"), b"in the way").unwrap();
        let (files, base) = (Files::new(), Path::from_absolute_path(dir.path()).unwrap());
        let long = base.clone().join("n".repeat(256));
        for path in [base.clone().join("file").join("x"), base.clone().join("file").join("x").join("y"), long] {
            let put = files.put_opts(&path, Bytes::from_static(b"x").into(), PutOptions::default()).await;
            assert!(put.as_ref().is_err_and(|error| crate::store::backend::is_permanent(error, 1)), "{path}: {put:?}");
        }
    }

    #[tokio::test]
    async fn a_record_is_written_where_its_log_is_and_nowhere_else() {
        let dir = TempDir::new("files");
        let key = crate::BlobKey::new(Path::from_absolute_path(dir.path()).unwrap().join("b"));
        let record = |seq| key.record(crate::Inc(7), seq);
        let files = Files::new();
        let create = |seq, bytes: &'static [u8]| {
            let options = PutOptions::from(PutMode::Create);
            let (files, path) = (&files, record(seq));
            async move { files.put_opts(&path, Bytes::from_static(bytes).into(), options).await }
        };
        // The first record creates its directory.
        create(1, b"one").await.unwrap();
        create(2, b"two").await.unwrap();
        assert!(matches!(create(2, b"other").await, Err(Error::AlreadyExists { .. })));
        let read = async |seq| {
            let got = files.get_opts(&record(seq), GetOptions::default()).await.unwrap();
            got.bytes().await.unwrap()
        };
        assert_eq!((read(1).await, read(2).await), (Bytes::from_static(b"one"), Bytes::from_static(b"two")));
        let log = dir.join(format!("b/{}/log", crate::Inc(7)));
        assert_eq!(std::fs::read_dir(&log).unwrap().count(), 2, "nothing half written is left");
        std::fs::rename(dir.join("b"), dir.join("hidden")).unwrap();
        let gone = create(3, b"three").await;
        assert!(gone.as_ref().is_err_and(lacks_log), "{gone:?}");
        assert!(!dir.join("b").exists(), "and nothing is made there");
    }

    /// A collector removes files that look abandoned, a rival begins, and the slow process
    /// continues.
    #[test]
    fn names_of_half_written_files_are_never_used_again() {
        let dir = TempDir::new("staged");
        let (path, part) = (dir.join("a/b/00000000000000000001"), PutPayload::from_static(b"whole"));
        let rivals: Vec<_> = (0..8)
            .map(|_| {
                let (path, part) = (path.clone(), part.clone());
                std::thread::spawn(move || create(&path, &part, false).is_ok())
            })
            .collect();
        let collector = {
            let directory = dir.join("a/b");
            std::thread::spawn(move || {
                for _ in 0..200 {
                    for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
                        if entry.file_name().to_string_lossy().contains('#') {
                            let _ = std::fs::remove_file(entry.path());
                        }
                    }
                }
            })
        };
        let won = rivals.into_iter().map(|rival| rival.join().unwrap()).filter(|won| *won).count();
        collector.join().unwrap();
        assert!(won <= 1, "{won} of 8 rivals created the same file");
        // A single caller always succeeds.
        let again = create(&path, &part, false);
        assert!(if won == 1 { again.is_err() } else { again.is_ok() }, "{won}: {again:?}");
        assert_eq!(std::fs::read(&path).unwrap(), b"whole");
        assert!(create(&dir.join("missing/x"), &part, true).is_err_and(|error| lacks_log(&error)));
    }
}
