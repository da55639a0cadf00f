//! An image of volumes, as commands report it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use units::format_size;

/// An image that volumes of the pool depend on, and the state of its store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageLine {
    /// URL of the blob.
    pub image: String,
    /// Version of the blob.
    pub version: u64,
    /// Volumes cloned from it.
    pub volumes: Vec<String>,
    /// Size of the image.
    pub size_bytes: u64,
    /// Bytes of it that are in the pool.
    pub local_bytes: u64,
    /// Stored bytes of these.
    pub stored_bytes: u64,
    /// Groups fetched since the pool was opened.
    pub fetched_groups: u64,
    /// Bytes of these groups as transferred.
    pub fetched_bytes: u64,
    /// Failed requests to the store since the pool was opened.
    pub failures: u64,
    /// Error of the last request; null if it succeeded.
    pub last_error: Option<String>,
    /// Whether the image, or a part of it, is missing from the store.
    pub gone: bool,
    /// Whether a part of it is damaged in the store.
    pub damaged: bool,
    /// Requests of clients that wait for the store.
    pub waiting: u64,
    /// Whether the pool is too full to fetch the rest in the background.
    pub lacks_room: bool,
    /// Whether fetching in the background found all data present that the volumes need.
    pub complete: bool,
}

impl ImageLine {
    /// Its URL with the version.
    pub fn address(&self) -> String {
        format!("{}@{}", self.image, self.version)
    }

    /// Its state in words.
    pub fn words(&self) -> String {
        let volumes = self.volumes.join(", ");
        let (local, all) = (format_size(self.local_bytes), format_size(self.size_bytes));
        let mut text = format!("{} version {}, for {volumes}: {local} of {all} here", self.image, self.version);
        if self.complete {
            text.push_str(", which is all that is needed: the rest is zeroes or overwritten");
        }
        let plural = |count: u64, one: &str, many: &str| format!("{count} {}", if count == 1 { one } else { many });
        if self.lacks_room {
            text.push_str("; the pool is too full to fetch the rest");
        }
        if self.waiting > 0 {
            let requests = plural(self.waiting, "request waits", "requests wait");
            text.push_str(&format!("; {requests} for the store"));
        }
        if let Some(error) = self.last_error.as_ref().filter(|_| self.failures == 0) {
            text.push_str(&format!("; it cannot be held: {error}"));
        } else if let Some(error) = &self.last_error {
            let attempts = plural(self.failures, "attempt", "attempts");
            text.push_str(&format!("; {attempts} failed, the last one: {error}"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_here_and_how_the_store_answers_is_told() {
        let mut line = ImageLine {
            image: "s3://b/disk".to_owned(),
            version: 3,
            volumes: vec!["a".to_owned(), "b".to_owned()],
            size_bytes: 2 << 20,
            local_bytes: 1 << 20,
            stored_bytes: 1 << 10,
            fetched_groups: 8,
            fetched_bytes: 1 << 10,
            failures: 0,
            last_error: None,
            gone: false,
            damaged: false,
            waiting: 0,
            lacks_room: false,
            complete: false,
        };
        assert_eq!(
            (line.address(), line.words()),
            ("s3://b/disk@3".to_owned(), "s3://b/disk version 3, for a, b: 1 MiB of 2 MiB here".to_owned())
        );
        line.complete = true;
        assert!(
            line.words()
                .ends_with("1 MiB of 2 MiB here, which is all that is needed: the rest is zeroes or overwritten")
        );
        (line.complete, line.waiting, line.failures) = (false, 1, 1);
        line.last_error = Some("it is away".to_owned());
        assert!(
            line.words().ends_with("here; 1 request waits for the store; 1 attempt failed, the last one: it is away")
        );
        line.failures = 0;
        assert!(line.words().ends_with("here; 1 request waits for the store; it cannot be held: it is away"));
        (line.waiting, line.failures, line.lacks_room) = (2, 2, true);
        assert!(line.words().contains(
            "here; the pool is too full to fetch the rest; 2 requests wait for the store; 2 attempts failed, "
        ));
    }
}

/// Result of a push.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PushedLine {
    /// URL of the blob.
    pub blob: String,
    /// The new version; equal to `base_version` if nothing was changed.
    pub version: u64,
    /// The version that it is based on; 0: none.
    pub base_version: u64,
    /// Whether an earlier push had made this version.
    pub earlier: bool,
    /// Groups that changed.
    pub groups: u64,
    /// Changed groups that were copied as they are stored.
    pub as_stored: u64,
    /// Changed groups that became holes.
    pub holes: u64,
    /// Bytes of the changed groups, 128 KiB each.
    pub bytes: u64,
    /// Their bytes in the store.
    pub stored_bytes: u64,
}
