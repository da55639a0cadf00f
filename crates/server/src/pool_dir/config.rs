//! `pool.json`: its format, and its atomic replacement.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use surface::{Error, ErrorKind, Result};

/// Version of the directory's layout. Pools with another version are refused.
const FORMAT_VERSION: u32 = 1;

/// Progress of the pool's creation by `init`, or by a `salvage` into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Creation has begun, and may overwrite the named data.
    Initialising,
    /// Creation is complete.
    Ready,
}

/// Content of `pool.json`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Progress of the pool's creation.
    pub state: State,
    /// Data file or device; relative to the pool's directory if it lies there.
    pub data: PathBuf,
    /// Creation time, in seconds since 1970.
    pub created_unix_s: u64,
}

#[derive(Serialize, Deserialize)]
struct Document {
    format_version: u32,
    state: State,
    data: PathBuf,
    created_unix_s: u64,
}

impl Config {
    /// Decodes the content of the file.
    ///
    /// # Errors
    /// `Corrupt` for invalid content, `Unsupported` for another version.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct Version {
            format_version: u32,
        }
        let corrupt = |error| Error::with_source(ErrorKind::Corrupt, "the pool's description is invalid", error);
        let Version { format_version } = serde_json::from_slice(bytes).map_err(corrupt)?;
        if format_version != FORMAT_VERSION {
            let message = format!(
                "the pool has directory format {format_version}, this version of shale knows {FORMAT_VERSION}; use a newer one"
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let document: Document = serde_json::from_slice(bytes).map_err(corrupt)?;
        Ok(Self { state: document.state, data: document.data, created_unix_s: document.created_unix_s })
    }

    /// Replaces the file: after a crash it holds the old or the new content.
    ///
    /// # Errors
    /// I/O errors.
    pub fn write(&self, path: &Path) -> Result<()> {
        let document = Document {
            format_version: FORMAT_VERSION,
            state: self.state,
            data: self.data.clone(),
            created_unix_s: self.created_unix_s,
        };
        let mut bytes = serde_json::to_vec_pretty(&document)
            .map_err(|error| Error::with_source(ErrorKind::Invalid, "the data's path is not UTF-8", error))?;
        bytes.push(b'\n');
        host::replace_file(path, &bytes, 0o666)
            .map_err(|error| Error::from_io(format!("cannot write {}", path.display()), error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_is_unsupported_not_corrupt() {
        let later = br#"{"format_version":2,"shards":[]}"#;
        assert_eq!(Config::decode(later).unwrap_err().kind(), ErrorKind::Unsupported);
        for nonsense in [&b""[..], b"{}", br#"{"format_version":1}"#, b"\0\0\0\0"] {
            assert_eq!(Config::decode(nonsense).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }
}
