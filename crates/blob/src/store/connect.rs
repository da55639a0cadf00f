//! From a URL to a store: `s3://bucket/key`, `gs://`, `az://`, `file://`, `memory://`. Owns the two
//! clients of each store. The client for *commits* never repeats a request by itself, because a
//! conditional request that took effect and is repeated gets the answer that the object exists. The
//! client for *data* does, and has a limit on silence instead of one on the total time, because a
//! healthy transfer may be slow. A `Connection` may be shared by any number of tasks.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use env::{SystemClock, SystemEntropy};
use object_store::ObjectStore;
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::memory::InMemory;
use object_store::path::Path;

use crate::error::Error;
use crate::names::BlobKey;
use crate::store::backend::Backend;
use crate::store::cache::StoredCache;
use crate::store::counting::{CountingStore, Requests};
use crate::store::credentials::{self, ProfileProvider};
use crate::store::files::Files;
use crate::store::settings::{StoreSettings, no_retry, retry};
use units::{is_hidden, shown};

/// Longest file name in a file system.
const NAME_BYTES_MAX: usize = 255;
/// A version, by number or tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum At {
    /// The newest version.
    Newest,
    /// The version of this number.
    Number(u64),
    /// The version with this tag.
    Tag(String),
}

/// A blob's URL, with the version after the `@`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// `s3`, `gs`, `az`, `file` or `memory`.
    scheme: String,
    /// Bucket or container; empty for `file` and `memory`.
    bucket: String,
    key: Path,
    at: At,
}

/// Text that is not a blob's URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseLocationError(String);

impl std::fmt::Display for ParseLocationError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}; the URL of a blob is s3://BUCKET/KEY, gs://BUCKET/KEY, az://CONTAINER/KEY, file:///DIRECTORY (or a relative \
             file://DIRECTORY) or memory://KEY, and may end with @VERSION or @TAG",
            shown(&self.0)
        )
    }
}

impl std::error::Error for ParseLocationError {}

impl FromStr for Location {
    type Err = ParseLocationError;

    fn from_str(text: &str) -> Result<Self, ParseLocationError> {
        let location = Self::parse(text)?;
        if location.key.parts().next().is_none() {
            return Err(ParseLocationError(format!("'{text}' has no key")));
        }
        Ok(location)
    }
}

/// A prefix of a store that contains blobs: a bucket, or a directory in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefix(Location);

impl FromStr for Prefix {
    type Err = ParseLocationError;

    fn from_str(text: &str) -> Result<Self, ParseLocationError> {
        let is_bucket = |(scheme, rest): (&str, &str)| matches!(scheme, "s3" | "gs" | "az") && !rest.contains('/');
        let whole = text.split_once("://").is_some_and(is_bucket).then(|| format!("{text}/"));
        let location = Location::parse(whole.as_deref().unwrap_or(text))?;
        if location.at != At::Newest {
            return Err(ParseLocationError(format!("'{text}' has an @, but a list shows the newest versions only")));
        }
        Ok(Self(location))
    }
}

impl std::fmt::Display for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl Prefix {
    /// Returns its location, as if a blob were there.
    pub const fn location(&self) -> &Location {
        &self.0
    }

    /// Returns its key in the store, which is empty for a whole bucket.
    pub const fn path(&self) -> &Path {
        &self.0.key
    }

    /// Returns the location of another key of the same store.
    #[must_use]
    pub fn with_key(&self, key: Path) -> Location {
        Location { key, ..self.0.clone() }
    }
}

impl Location {
    fn parse(text: &str) -> Result<Self, ParseLocationError> {
        let wrong = |what: &str| ParseLocationError(format!("'{text}' {what}"));
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("has no scheme"))?;
        // Keys may contain an @: only one in the last part of the key introduces a version.
        let (rest, at) = match rest.rsplit_once('@') {
            Some((rest, at)) if !at.contains('/') => (rest, Some(at)),
            _ => (rest, None),
        };
        if let Some(c) = rest.chars().find(|c| is_hidden(*c)) {
            return Err(wrong(&format!("has the control character '{}'", c.escape_default())));
        }
        let at = match at {
            None => At::Newest,
            Some("") => return Err(wrong("has no version after the @")),
            Some(number) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
                At::Number(number.parse().map_err(|_| wrong("has a version number that is too large"))?)
            }
            Some(tag) => At::Tag(tag.to_owned()),
        };
        let (bucket, key) = match scheme {
            "s3" | "gs" | "az" => rest.split_once('/').ok_or_else(|| wrong("has no key after the bucket"))?,
            "file" | "memory" => ("", rest),
            _ => return Err(wrong("has an unknown scheme")),
        };
        // The bucket's name is used unescaped in the address of a request.
        if let Some(c) = bucket.chars().find(|c| !c.is_ascii_graphic() || "?#%\\".contains(*c)) {
            return Err(wrong(&format!("has '{c}' in the name of the bucket")));
        }
        let absolute;
        let key = if scheme == "file" && !key.starts_with('/') {
            let here = std::env::current_dir().map_err(|_| wrong("is relative, and there is no current directory"))?;
            absolute = format!("{}/{key}", here.display());
            &absolute
        } else {
            key
        };
        let key = Path::parse(key).map_err(|error| wrong(&format!("has a bad key: {error}")))?;
        // Each part of the key is the name of a directory there.
        if let Some(part) = key.parts().find(|part| scheme == "file" && part.as_ref().len() > NAME_BYTES_MAX) {
            let bytes = part.as_ref().len();
            return Err(ParseLocationError(format!(
                "a part of the key has {bytes} bytes ('{}...'); directory names may have at most {NAME_BYTES_MAX}",
                part.as_ref().chars().take(20).collect::<String>()
            )));
        }
        if bucket.is_empty() && !matches!(scheme, "file" | "memory") {
            return Err(wrong("has no key"));
        }
        Ok(Self { scheme: scheme.to_owned(), bucket: bucket.to_owned(), key, at })
    }
}

impl std::fmt::Display for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.scheme.as_str() {
            "file" => write!(f, "file:///{}", self.key),
            "memory" => write!(f, "memory://{}", self.key),
            scheme => write!(f, "{scheme}://{}/{}", self.bucket, self.key),
        }
    }
}

impl Location {
    /// Returns the blob's key in its store.
    pub fn key(&self) -> BlobKey {
        BlobKey::new(self.key.clone())
    }

    /// Returns the version in the URL.
    pub const fn at(&self) -> &At {
        &self.at
    }

    /// Returns the scheme.
    pub(crate) fn scheme(&self) -> &str {
        &self.scheme
    }

    /// Returns the bucket or container.
    pub(crate) fn bucket(&self) -> &str {
        &self.bucket
    }

    /// Returns the directory that holds the blob, if its store is this machine's file system.
    pub fn directory(&self) -> Option<PathBuf> {
        (self.scheme == "file").then(|| PathBuf::from(format!("/{}", self.key)))
    }

    /// Returns the last part of the key, to which rules for file types apply.
    pub fn name(&self) -> &str {
        self.key.filename().unwrap_or("")
    }

    /// Returns a name for the store: its scheme, server and bucket.
    pub fn store_name(&self) -> String {
        self.store_name_with(&StoreSettings::default())
    }

    /// Refuses a server address without a scheme: the store's client would end the process.
    fn check_server(&self, settings: &StoreSettings) -> Result<(), Error> {
        let address = match self.scheme.as_str() {
            "s3" => settings.s3_endpoint(),
            "az" => self.server(settings).and_then(|server| server.split(' ').nth(1).map(str::to_owned)),
            _ => self.server(settings),
        };
        let address = address.filter(|address| !address.is_empty());
        match address {
            Some(address) if !address.starts_with("http://") && !address.starts_with("https://") => {
                let address = shown(&address).into_owned();
                let why = format!(
                    "the server's address '{address}' has no scheme: write http://{address} or https://{address}"
                );
                Err(Error::Refused(why))
            }
            _ => Ok(()),
        }
    }

    /// Returns a name for the store as reached with these settings.
    pub fn store_name_with(&self, settings: &StoreSettings) -> String {
        format!("{}|{}|{}", self.scheme, self.server(settings).unwrap_or_default(), self.bucket)
    }

    /// Returns the server's address, preceded by the account for Azure.
    fn server(&self, settings: &StoreSettings) -> Option<String> {
        match self.scheme.as_str() {
            "s3" => settings.s3_endpoint(),
            "az" => {
                let set = settings.keys(self).unwrap_or_default().into_iter();
                let builder =
                    set.fold(MicrosoftAzureBuilder::from_env(), |all, (key, value)| all.with_config(key, value));
                // Containers of two accounts may have the same name.
                let known =
                    [AzureConfigKey::AccountName, AzureConfigKey::Endpoint].map(|key| builder.get_config_value(&key));
                Some(known.map(Option::unwrap_or_default).join(" "))
            }
            "gs" => {
                let set = settings.keys(self).unwrap_or_default().into_iter();
                let all = GoogleCloudStorageBuilder::from_env();
                let builder = set.fold(all, |all, (key, value)| all.with_config(key, value));
                builder.get_config_value(&GoogleConfigKey::BaseUrl)
            }
            _ => None,
        }
    }

    /// Returns whether the store is a server. This machine's own memory and file system create
    /// objects atomically; a server may not.
    pub fn is_remote(&self) -> bool {
        !matches!(self.scheme.as_str(), "file" | "memory")
    }

    /// Returns whether another location is in the same store.
    pub fn shares_store(&self, other: &Self) -> bool {
        self.scheme == other.scheme && self.bucket == other.bucket
    }
}

/// An open store.
#[derive(Debug, Clone)]
pub struct Connection {
    pub(crate) backend: Backend,
    pub(crate) data: Arc<dyn ObjectStore>,
    pub(crate) cache: Option<Arc<dyn StoredCache>>,
    requests: Arc<Requests>,
    url_prefix: String,
}

impl Connection {
    /// Connects to the store of a location. Settings and credentials come from where the store's
    /// own tools look for them: for S3 the variables `AWS_*`, the profile that `AWS_PROFILE` names,
    /// a web identity, or the instance; see docs/BLOB-GUIDE.md.
    ///
    /// # Errors
    /// When settings are missing or contradict each other. Nothing is sent yet.
    pub fn open(location: &Location) -> Result<Self, Error> {
        Self::open_with(location, &StoreSettings::default())
    }

    /// Connects to the store of a location, with settings that take precedence over the
    /// environment.
    ///
    /// # Errors
    /// As [`open`](Self::open), and when the store does not have such a setting.
    pub fn open_with(location: &Location, settings: &StoreSettings) -> Result<Self, Error> {
        let failed = |error| Error::store(format!("connecting to {location}"), error);
        location.check_server(settings)?;
        let mut profile = None;
        let (commit, data): (Arc<dyn ObjectStore>, Arc<dyn ObjectStore>) = match location.scheme.as_str() {
            "file" => {
                let store: Arc<dyn ObjectStore> = Arc::new(Files::new());
                (store.clone(), store)
            }
            "memory" => {
                let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
                (store.clone(), store)
            }
            "gs" => {
                install_cryptography();
                let builder = |options, retry| {
                    let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(&location.bucket);
                    let builder = builder.with_client_options(options).with_retry(retry);
                    let set = settings.keys(location)?.into_iter();
                    set.fold(builder, |builder, (key, value)| builder.with_config(key, value)).build().map_err(failed)
                };
                (
                    Arc::new(builder(settings.commit_options(location)?, no_retry())?),
                    Arc::new(builder(settings.data_options(location)?, retry())?),
                )
            }
            "az" => {
                install_cryptography();
                let builder = |options, retry| {
                    let builder = MicrosoftAzureBuilder::from_env().with_container_name(&location.bucket);
                    let builder = builder.with_client_options(options).with_retry(retry);
                    let set = settings.keys(location)?.into_iter();
                    set.fold(builder, |builder, (key, value)| builder.with_config(key, value)).build().map_err(failed)
                };
                (
                    Arc::new(builder(settings.commit_options(location)?, no_retry())?),
                    Arc::new(builder(settings.data_options(location)?, retry())?),
                )
            }
            _ => {
                install_cryptography();
                if !settings.has_s3_keys() {
                    profile = credentials::from_profile(settings.profile.as_deref()).map_err(Error::Refused)?;
                }
                let builder = |options, retry| {
                    let mut builder = settings.s3(location, options)?.with_retry(retry);
                    if let Some(credentials) = &profile {
                        builder = builder.with_credentials(credentials.clone());
                    }
                    builder.build().map_err(failed)
                };
                (
                    Arc::new(builder(settings.commit_options(location)?, no_retry())?),
                    Arc::new(builder(settings.data_options(location)?, retry())?),
                )
            }
        };
        let url_prefix = match location.scheme.as_str() {
            "file" => "file:///".to_owned(),
            "memory" => "memory://".to_owned(),
            scheme => format!("{scheme}://{}/", location.bucket),
        };
        Ok(Self { url_prefix, ..Self::with_profile(commit, data, profile) })
    }

    /// Uses stores that are already open. The one for commits must not repeat conditional requests
    /// by itself.
    pub fn new(commit: Arc<dyn ObjectStore>, data: Arc<dyn ObjectStore>) -> Self {
        Self::with_profile(commit, data, None)
    }

    fn with_profile(
        commit: Arc<dyn ObjectStore>,
        data: Arc<dyn ObjectStore>,
        profile: Option<Arc<ProfileProvider>>,
    ) -> Self {
        let requests = Arc::<Requests>::default();
        let counted =
            |store| -> Arc<dyn ObjectStore> { Arc::new(CountingStore::new(store, requests.clone(), profile.clone())) };
        let backend = Backend {
            store: counted(commit),
            clock: Arc::new(SystemClock::default()),
            entropy: Arc::new(SystemEntropy),
        };
        Self { backend, data: counted(data), cache: None, requests, url_prefix: String::new() }
    }

    /// Caches small parts of packs outside of memory.
    #[must_use]
    pub fn with_cache(self, cache: Arc<dyn StoredCache>) -> Self {
        Self { cache: Some(cache), ..self }
    }

    /// Returns the store, the clock and the random numbers, for operations that `Blob` does not
    /// offer.
    pub const fn backend(&self) -> &Backend {
        &self.backend
    }

    /// Returns the part of a URL before the key; empty if the stores were given.
    pub(crate) fn url_prefix(&self) -> &str {
        &self.url_prefix
    }

    /// Returns the counts of requests so far.
    pub const fn requests(&self) -> &Arc<Requests> {
        &self.requests
    }
}

/// Chooses ring for TLS, unless the process has made another choice.
fn install_cryptography() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_store_a_key_and_a_version() {
        for (text, shown, at) in [
            ("s3://b/k", "s3://b/k", At::Newest),
            ("s3://b/a@b/k@7", "s3://b/a@b/k", At::Number(7)),
            ("gs://b/k/l@v1", "gs://b/k/l", At::Tag("v1".into())),
            ("file:///tmp/x", "file:///tmp/x", At::Newest),
            ("memory://k@3", "memory://k", At::Number(3)),
        ] {
            let location: Location = text.parse().unwrap();
            assert_eq!((location.to_string().as_str(), location.at()), (shown, &at), "{text}");
        }
        for text in [
            "b/k",
            "s3://b",
            "s3:///k",
            "ftp://b/k",
            "s3://b/k@",
            "s3://b/",
            "s3://b/k@99999999999999999999",
            "file:///",
            "s3://a b/k",
            "s3://b?x/k",
            "az://b\n/k",
            "file:///a\u{1b}b",
        ] {
            let error = text.parse::<Location>().map(|_| ()).map_err(|error| error.to_string());
            assert!(error.as_ref().is_err_and(|error| !error.contains(['\n', '\u{1b}'])), "{error:?}");
        }
        let long = "n".repeat(256);
        let told = format!("file:///dir/{long}/x").parse::<Location>().map_err(|error| error.to_string());
        let why = "has 256 bytes ('nnnnnnnnnnnnnnnnnnnn...'); directory names may have at most 255";
        assert!(told.as_ref().is_err_and(|error| error.contains(why)), "{told:?}");
        for url in [format!("file:///dir/{}", &long[..255]), format!("s3://b/{long}")] {
            url.parse::<Location>().unwrap();
        }
    }

    #[test]
    fn a_server_without_a_scheme_is_refused() {
        for (url, name) in
            [("s3://b/k", "aws_endpoint_url"), ("gs://b/k", "google_base_url"), ("az://b/k", "azure_storage_endpoint")]
        {
            let location: Location = url.parse().unwrap();
            for (address, is_good) in [("127.0.0.1:9000", false), ("localhost", false), ("https://localhost", true)] {
                let options = vec![(name.to_owned(), address.to_owned())];
                let checked = location.check_server(&StoreSettings { options, ..StoreSettings::default() });
                assert_eq!(checked.is_ok(), is_good, "{url} {address}: {checked:?}");
            }
        }
    }

    #[test]
    fn stores_of_the_same_name_on_two_servers_are_two() {
        let given = |name: &str, value: &str| StoreSettings {
            options: vec![(name.to_owned(), value.to_owned())],
            ..StoreSettings::default()
        };
        for (url, name) in [
            ("s3://b/k", "aws_endpoint_url"),
            ("gs://b/k", "google_base_url"),
            ("az://b/k", "azure_storage_endpoint"),
            ("az://b/k", "azure_storage_account_name"),
        ] {
            let location: Location = url.parse().unwrap();
            let (one, two) = (given(name, "http://one"), given(name, "http://two"));
            assert_ne!(location.store_name_with(&one), location.store_name_with(&two), "{url} {name}");
            assert_eq!(one.allows_http(), name != "azure_storage_account_name", "{name}");
        }
    }
}
