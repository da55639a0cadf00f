//! Directories and files of shares, as `/objects/{object}/files` lists them. Field names are a
//! promise to scripts, as the crate says.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Kind of a directory entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FileKind {
    /// A file with content.
    File,
    /// A directory.
    #[default]
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, a fifo or a socket.
    Other,
}

/// A file, a directory or another entry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileEntry {
    /// Name in its directory; bytes that are not UTF-8 are `\xNN`. Empty for the root of a share.
    pub name: String,
    /// Kind.
    pub kind: FileKind,
    /// Size of a file; 0 for other kinds.
    pub size_bytes: u64,
    /// Stored bytes of a file, without those still in the write buffer; null for other kinds, and
    /// where they are unknown.
    pub stored_bytes: Option<u64>,
    /// Last change of the content, in seconds since 1970.
    pub modified_unix_s: i64,
    /// Permissions, as `st_mode` has them without the type.
    pub mode: u32,
    /// Target of a symbolic link, which is not followed; null for other kinds.
    pub target: Option<String>,
}

/// A path in a share, and a page of the entries if it is a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FilesReport {
    /// The path, from the root of the share.
    pub path: String,
    /// The file or directory there.
    pub entry: FileEntry,
    /// Entries of the directory, in no particular order; empty for a file.
    pub entries: Vec<FileEntry>,
    /// `cursor` of the next page; null at the end.
    pub next: Option<String>,
}

/// One state of a file, whose bytes are read piece by piece.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileVersion {
    /// The file.
    pub entry: FileEntry,
    /// Text that changes with the content.
    pub version: String,
}

/// Outcome of a restore.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RestoreTotal {
    /// Entries restored, with everything below directories that did not exist.
    pub restored: u64,
    /// Entries kept because they exist.
    pub kept: u64,
    /// First of the entries that were kept; null if none was.
    pub kept_first: Option<String>,
    /// Bytes of content restored.
    pub bytes: u64,
}
