//! This machine's file system as a store. It makes directories as it needs them, as its client
//! does, but for a record that has one before it: that is written into the directory of the log,
//! which is held open meanwhile, or not at all. So a client that has a blob open whose directory
//! was taken away leaves nothing in its place.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::{Path as FilePath, PathBuf};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use crate::names::number_behind_first;

/// What the client of files calls itself in errors.
const STORE: &str = "LocalFileSystem";

/// Why a record was not written: its log is not there.
#[derive(Debug, thiserror::Error)]
#[error("the directory of the blob's log is gone")]
pub(crate) struct NoLog;

/// Files.
#[derive(Debug)]
pub(crate) struct Files(LocalFileSystem);

impl Files {
    /// Takes all of the file system. An acknowledged object is on the disk; a directory goes with
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

/// Tells whether an error says that a log is not there any more.
pub(crate) fn is_without_log(error: &Error) -> bool {
    matches!(error, Error::NotFound { source, .. } if source.is::<NoLog>())
}

/// Creates a file in a directory that must be there, and makes both durable.
#[allow(clippy::disallowed_methods, reason = "it is the store, in whose place tests have others")]
fn create_within(path: &FilePath, payload: &PutPayload) -> Result<PutResult> {
    let other = |source: std::io::Error| Error::Generic { store: STORE, source: Box::new(source) };
    let no_log = || Error::NotFound { path: path.display().to_string(), source: Box::new(NoLog) };
    let gone_or_other = |source: std::io::Error| match source.kind() {
        ErrorKind::NotFound => no_log(),
        _ => other(source),
    };
    let (Some(directory), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Err(no_log());
    };
    let held = File::open(directory).map_err(gone_or_other)?;
    // Through the handle: another directory that comes to this place is not the blob's.
    let handle = PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()));
    let place = if FilePath::new("/proc/self/fd").is_dir() { handle } else { directory.to_owned() };
    let mut number = 1u64;
    let (mut file, staged) = loop {
        // Named as the client of files names half-written ones: it lists none of these.
        let staged = place.join(format!("{name}#{number}"));
        match OpenOptions::new().write(true).create_new(true).open(&staged) {
            Ok(file) => break (file, staged),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(gone_or_other(error)),
        }
    };
    let written = payload.iter().try_for_each(|part| file.write_all(part)).and_then(|()| file.sync_all());
    let linked = written.and_then(|()| std::fs::hard_link(&staged, place.join(name)));
    let _ = std::fs::remove_file(&staged);
    match linked {
        Ok(()) => held.sync_all().map_err(other)?,
        Err(source) if source.kind() == ErrorKind::AlreadyExists => {
            return Err(Error::AlreadyExists { path: path.display().to_string(), source: Box::new(source) });
        }
        Err(source) => return Err(gone_or_other(source)),
    }
    Ok(PutResult { e_tag: None, version: None, extensions: Default::default() })
}

#[async_trait]
impl ObjectStore for Files {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        if !matches!(opts.mode, PutMode::Create) || !number_behind_first(location) {
            return self.0.put_opts(location, payload, opts).await;
        }
        let path = self.0.path_to_filesystem(location)?;
        let written = tokio::task::spawn_blocking(move || create_within(&path, &payload)).await;
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
            assert!(put.as_ref().is_err_and(|error| crate::world::is_in_vain(error, 1)), "{path}: {put:?}");
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
        // The first one brings its directory along.
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
        assert!(gone.as_ref().is_err_and(is_without_log), "{gone:?}");
        assert!(!dir.join("b").exists(), "and nothing is made there");
    }
}
