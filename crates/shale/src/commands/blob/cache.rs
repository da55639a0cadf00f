//! The cache of reads of blobs, in the user's cache directory: small parts of packs, which never
//! change. Owns its files and its bound. The reader verifies cached data, so a damaged file costs
//! only a request.
//!
//! Files are spread over 256 directories by the hash of their names. Each has a share of the bound,
//! and evicts the files used longest ago: so no process ever scans more than one of them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use ::blob::{Connection, DataHash, Location, StoredCache};
use bytes::Bytes;

/// Default size of the cache, unless `SHALE_BLOB_CACHE` sets it: the random reads of one program at
/// a time.
const BYTES_MAX: u64 = 1 << 30;
const DIRECTORIES: u64 = 256;

/// The cache of one store.
#[derive(Debug)]
pub struct DiskCache {
    directory: PathBuf,
    store: String,
    bytes_max: u64,
}

/// Returns the directory of caches on desktops: `$XDG_CACHE_HOME`, else `~/.cache`.
pub fn directory() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("shale"))
}

/// Adds the cache to a connection, if its store is a server.
pub fn with_cache(connection: Connection, location: &Location) -> Connection {
    let wanted = std::env::var("SHALE_BLOB_CACHE").ok().map(|text| units::parse_size(&text));
    let bytes_max = match wanted {
        Some(Ok(bytes)) => bytes,
        _ => BYTES_MAX,
    };
    let directory = directory().filter(|_| location.is_remote() && bytes_max > 0);
    match directory {
        Some(directory) => {
            let (directory, store) = (directory.join("blobs"), location.store_name());
            connection.with_cache(Arc::new(DiskCache { directory, store, bytes_max }))
        }
        None => connection,
    }
}

impl DiskCache {
    fn path(&self, name: &str) -> PathBuf {
        let hash = format!("{:032x}", DataHash::of_frame(format!("{}|{name}", self.store).as_bytes()));
        self.directory.join(&hash[..2]).join(&hash[2..])
    }

    /// Evicts the files used longest ago, until the directory is within its share of the bound.
    fn shrink(&self, directory: &std::path::Path) {
        let Ok(entries) = std::fs::read_dir(directory) else { return };
        let mut files: Vec<(SystemTime, u64, PathBuf)> = entries
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let about = entry.metadata().ok()?;
                Some((about.modified().ok()?, about.len(), entry.path()))
            })
            .collect();
        let mut bytes: u64 = files.iter().map(|(_, len, _)| len).sum();
        files.sort();
        for (_, len, path) in files {
            if bytes <= self.bytes_max / DIRECTORIES {
                return;
            }
            let _ = std::fs::remove_file(path);
            bytes -= len;
        }
    }
}

impl StoredCache for DiskCache {
    fn get(&self, name: &str) -> Option<Bytes> {
        let path = self.path(name);
        let bytes = std::fs::read(&path).ok()?;
        if let Ok(file) = std::fs::OpenOptions::new().append(true).open(&path) {
            let _ = file.set_modified(SystemTime::now());
        }
        Some(bytes.into())
    }

    fn put(&self, name: &str, bytes: &Bytes) {
        let path = self.path(name);
        let Some(directory) = path.parent() else { return };
        if bytes.len() as u64 > self.bytes_max / DIRECTORIES || std::fs::create_dir_all(directory).is_err() {
            return;
        }
        // Under a temporary name first: another process must not find a partial file.
        let half = path.with_extension(std::process::id().to_string());
        if std::fs::write(&half, bytes).and_then(|()| std::fs::rename(&half, &path)).is_err() {
            let _ = std::fs::remove_file(&half);
        }
        self.shrink(directory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_what_fits_and_what_was_used_last() {
        let directory = testkit::TempDir::new("blob-cache");
        let cache =
            DiskCache { directory: directory.path().to_owned(), store: "s".to_owned(), bytes_max: DIRECTORIES * 1000 };
        let names: Vec<String> = (0..2000).map(|n| format!("pack-{n}")).collect();
        for name in &names {
            cache.put(name, &Bytes::from(vec![7; 300]));
        }
        let found = names.iter().filter(|name| cache.get(name).is_some()).count();
        assert!(found > 500 && found <= 768, "{found}");
        assert_eq!(cache.get(&names[1999]).unwrap(), vec![7; 300]);
        cache.put("large", &Bytes::from(vec![0; 1001]));
        assert!(cache.get("large").is_none() && cache.get("never").is_none());
    }
}
