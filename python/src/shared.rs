//! A store's connection in each process, the few open blobs in it, and the check whether the store
//! may be written to. Shared by all handles of the store, on any thread.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use blob::{Blob, Connection, Location, Record, StoreSettings};
use object_store::memory::InMemory;
use tokio::sync::{Mutex, OnceCell};

use crate::errors::Failed;
use crate::process::PerProcess;
use crate::version::find;

/// Blobs that stay open: each may keep 32 MiB of decoded frames.
const OPEN_MAX: usize = 8;

/// The one store in memory of this process.
static MEMORY: OnceLock<Arc<InMemory>> = OnceLock::new();

/// An open blob.
pub struct Opened {
    pub blob: Blob,
}

struct State {
    connection: Connection,
    open: Mutex<VecDeque<(String, Arc<Opened>)>>,
    is_safe: OnceCell<()>,
}

/// State shared by the handles of a store.
pub struct Shared {
    scheme: String,
    bucket: String,
    settings: StoreSettings,
    state: PerProcess<Result<State, String>>,
}

impl Shared {
    /// Creates one that connects at its first use.
    pub const fn new(scheme: String, bucket: String, settings: StoreSettings) -> Self {
        Self { scheme, bucket, settings, state: PerProcess::new() }
    }

    /// Returns the URL of a key.
    pub fn place(&self, key: &str) -> String {
        match self.scheme.as_str() {
            "file" => format!("file:///{}", key.trim_start_matches('/')),
            "memory" => format!("memory://{key}"),
            scheme => format!("{scheme}://{}/{key}", self.bucket),
        }
    }

    fn location(&self, key: &str) -> Result<Location, Failed> {
        self.place(key).parse().map_err(|error: blob::ParseLocationError| Failed::Argument(error.to_string()))
    }

    fn connect(&self) -> Result<State, String> {
        let connection = if self.scheme == "memory" {
            let store = MEMORY.get_or_init(Arc::default).clone();
            Connection::new(store.clone(), store)
        } else {
            // The connection does not depend on the key.
            let location = self.location("-").map_err(|failed| format!("{failed:?}"))?;
            Connection::open_with(&location, &self.settings).map_err(|error| error.to_string())?
        };
        Ok(State { connection, open: Mutex::default(), is_safe: OnceCell::new() })
    }

    fn state(&self) -> Result<&State, Failed> {
        self.state.get(|| self.connect()).as_ref().map_err(|text| Failed::Argument(text.clone()))
    }

    pub fn connection(&self) -> Result<&Connection, Failed> {
        Ok(&self.state()?.connection)
    }

    /// Opens the blob at a key, or returns the one that is already open.
    pub async fn open(&self, key: &str) -> Result<Arc<Opened>, Failed> {
        let state = self.state()?;
        if let Some((_, opened)) = state.open.lock().await.iter().find(|(known, _)| known == key) {
            return Ok(opened.clone());
        }
        let blob = Blob::open(&state.connection, self.location(key)?.key()).await?;
        Ok(self.keep(state, key, blob).await)
    }

    async fn keep(&self, state: &State, key: &str, blob: Blob) -> Arc<Opened> {
        let opened = Arc::new(Opened { blob });
        let mut open = state.open.lock().await;
        open.retain(|(known, _)| known != key);
        open.push_back((key.to_owned(), opened.clone()));
        if open.len() > OPEN_MAX {
            open.pop_front();
        }
        opened
    }

    pub async fn forget(&self, key: &str) -> Result<(), Failed> {
        self.state()?.open.lock().await.retain(|(known, _)| known != key);
        Ok(())
    }

    /// Finds a version; a blob without versions counts as missing.
    pub async fn version(&self, key: &str, at: &str) -> Result<(Arc<Opened>, Arc<Record>), Failed> {
        let opened = self.open(key).await?;
        let found = match find(&opened, at).await {
            // It was removed after it was opened; the key may have been reused.
            Err(Failed::Blob(blob::Error::Removed | blob::Error::Missing(_))) => {
                self.forget(key).await?;
                let opened = self.open(key).await?;
                let record = find(&opened, at).await?;
                (opened, record)
            }
            found => (opened, found?),
        };
        if found.1.seq == 0 {
            return Err(Failed::Blob(blob::Error::Missing(self.place(key))));
        }
        Ok(found)
    }

    /// Opens a blob for a change, or creates it with `may_create`.
    pub async fn to_write(&self, key: &str, may_create: bool) -> Result<Arc<Opened>, Failed> {
        let state = self.state()?;
        let location = self.location(key)?;
        let ask = || async { crate::safe::ensure(&state.connection, &location, &self.settings).await };
        state.is_safe.get_or_try_init(ask).await?;
        if let Ok(opened) = self.open(key).await {
            match opened.blob.refresh().await {
                Ok(head) if !head.closed => return Ok(opened),
                _ => self.forget(key).await?,
            }
        }
        if !may_create {
            return self.open(key).await;
        }
        let blob = Blob::open_or_create(&state.connection, location.key()).await?;
        Ok(self.keep(state, key, blob).await)
    }
}
