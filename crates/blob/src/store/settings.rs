//! Settings of a store's client, from the program and from the environment. Owns the precedence of
//! the two, the timeouts of requests, the trusted certificates, and the address of a bucket. Read
//! when a store is opened.

use std::str::FromStr;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::{Certificate, ClientOptions, RetryConfig};

use crate::error::Error;
use crate::store::connect::Location;
use units::shown;

/// Limit for establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Silence after which a transfer is aborted and repeated.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(20);
/// Timeout of a commit's request: it is a few KiB, and trying again is cheap.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(20);
/// Retries of the data client for one request.
const DATA_RETRIES: usize = 4;
/// Variable that names the certificates of a private authority for S3 stores, as in the AWS tools.
const CA_BUNDLE_VARIABLE: &str = "AWS_CA_BUNDLE";
/// Option for such a file, set by Python's `verify`.
const CA_BUNDLE_OPTION: &str = "ca_bundle";

/// Settings given by the program; they take precedence over the environment.
#[derive(Clone, Default)]
pub struct StoreSettings {
    /// Names as in the store's client (`aws_access_key_id`, `google_service_account`,
    /// `azure_storage_account_name`, `allow_http`) with their values; in addition `ca_bundle`, a
    /// file with the certificates of a private authority.
    pub options: Vec<(String, String)>,
    /// The profile with the keys for an S3 store.
    pub profile: Option<String>,
}

impl std::fmt::Debug for StoreSettings {
    /// Shows names only: values may be secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.options.iter().map(|(name, _)| name)).finish()
    }
}

impl StoreSettings {
    /// Returns each option with the key that the store's client uses for it.
    pub(crate) fn keys<K: FromStr>(&self, location: &Location) -> Result<Vec<(K, &str)>, Error> {
        let unknown =
            |name: &str| Error::Refused(format!("`{name}` is not a setting of `{}` stores", location.scheme()));
        let known = |(name, value): &'_ (String, String)| -> Result<K, Error> {
            let _ = value;
            name.to_ascii_lowercase().parse().map_err(|_| unknown(name))
        };
        let own = |(name, _): &&(String, String)| name != CA_BUNDLE_OPTION;
        self.options.iter().filter(own).map(|option| Ok((known(option)?, option.1.as_str()))).collect()
    }

    /// Returns the address of the S3 server: from the options, else from the environment.
    pub(crate) fn s3_endpoint(&self) -> Option<String> {
        let is_endpoint =
            |name: &str| matches!(name.parse(), Ok(AmazonS3ConfigKey::Endpoint | AmazonS3ConfigKey::S3Endpoint));
        let given = self.options.iter().rev().find(|(name, _)| is_endpoint(&name.to_ascii_lowercase()));
        given.map(|(_, value)| value.clone()).or_else(endpoint)
    }

    pub(crate) fn has_s3_keys(&self) -> bool {
        let is_key =
            |name: &str| matches!(name.parse(), Ok(AmazonS3ConfigKey::AccessKeyId | AmazonS3ConfigKey::SkipSignature));
        self.options.iter().any(|(name, _)| is_key(name))
    }

    /// Returns the certificates of a private authority, which are trusted in addition to the
    /// system's.
    fn certificates(&self, location: &Location) -> Result<Vec<Certificate>, Error> {
        let given = self.options.iter().rev().find(|(name, _)| name == CA_BUNDLE_OPTION).map(|(_, file)| file.clone());
        let variable = match location.scheme() {
            "s3" => std::env::var(CA_BUNDLE_VARIABLE).ok().filter(|file| !file.is_empty()),
            _ => None,
        };
        let (name, file) = match (given, variable) {
            (Some(file), _) => (CA_BUNDLE_OPTION, file),
            (None, Some(file)) => (CA_BUNDLE_VARIABLE, file),
            (None, None) => return Ok(Vec::new()),
        };
        let refused = |why: &str| Error::Refused(format!("{name} names {}: {why}", shown(&file)));
        let bytes = std::fs::read(&file).map_err(|error| refused(&error.to_string()))?;
        let found = Certificate::from_pem_bundle(&bytes).map_err(|error| refused(&error.to_string()))?;
        if found.is_empty() { Err(refused("the file has no certificate in PEM format")) } else { Ok(found) }
    }

    /// Returns whether a server without TLS may be used: one whose address says so.
    pub(crate) fn allows_http(&self) -> bool {
        let names = [
            "AWS_ENDPOINT_URL_S3",
            "AWS_ENDPOINT_URL",
            "AWS_ENDPOINT",
            "AZURE_STORAGE_ENDPOINT",
            "AZURE_ENDPOINT",
            "GOOGLE_BASE_URL",
        ];
        let is_given = |(name, value): &(String, String)| {
            let name = name.to_ascii_lowercase();
            (name.ends_with("endpoint") || name.ends_with("_url")) && value.starts_with("http://")
        };
        names.iter().any(|name| std::env::var(name).is_ok_and(|value| value.starts_with("http://")))
            || self.options.iter().any(is_given)
    }

    fn trusting(&self, location: &Location, options: ClientOptions) -> Result<ClientOptions, Error> {
        let options = options.with_connect_timeout(CONNECT_TIMEOUT).with_allow_http(self.allows_http());
        Ok(self.certificates(location)?.into_iter().fold(options, ClientOptions::with_root_certificate))
    }

    /// Returns the options of the client for data.
    pub(crate) fn data_options(&self, location: &Location) -> Result<ClientOptions, Error> {
        self.trusting(location, ClientOptions::new().with_timeout_disabled().with_read_timeout(SILENCE_TIMEOUT))
    }

    /// Returns the options of the client for commits.
    pub(crate) fn commit_options(&self, location: &Location) -> Result<ClientOptions, Error> {
        self.trusting(location, ClientOptions::new().with_timeout(COMMIT_TIMEOUT))
    }

    /// Returns a builder of a client for a bucket.
    pub(crate) fn s3(&self, location: &Location, options: ClientOptions) -> Result<AmazonS3Builder, Error> {
        let bucket = location.bucket();
        // Explicit settings win over `options`.
        let builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_client_options(options);
        let set = self.keys(location)?.into_iter();
        let builder = set.fold(builder, |builder, (key, value)| builder.with_config(key, value));
        let endpoint = self.s3_endpoint().filter(|endpoint| !endpoint.is_empty());
        let plain = endpoint.as_deref().and_then(|endpoint| endpoint.strip_prefix("http://"));
        let host = plain.map(|rest| rest.split(['/', ':']).next().unwrap_or(rest));
        let is_local = host.is_some_and(|host| host == "localhost" || host.starts_with("127."));
        // Hashing each payload for the signature costs up to 60 % of a transfer. TLS protects the
        // bytes, and a loopback connection needs no protection.
        let builder = if plain.is_none() || is_local { builder.with_unsigned_payload(true) } else { builder };
        let style = builder.get_config_value(&AmazonS3ConfigKey::VirtualHostedStyleRequest);
        let is_hosted = style.is_some_and(|value| is_true(&value));
        let Some(endpoint) = endpoint else {
            return if is_hosted { hosted("https://amazonaws.com", bucket).map(|_| builder) } else { Ok(builder) };
        };
        // The client has two settings for the address; this one wins over the other.
        let endpoint = if is_hosted { hosted(&endpoint, bucket)? } else { endpoint };
        Ok(builder.with_config(AmazonS3ConfigKey::S3Endpoint, endpoint))
    }
}

/// Reads a switch as the store's client does.
fn is_true(value: &str) -> bool {
    ["1", "true", "on", "yes", "y"].contains(&value.to_ascii_lowercase().as_str())
}

/// Returns the address of a bucket whose name is part of the host name. The client uses the address
/// as given and would not put the bucket into any request, so all buckets of the server would be
/// one.
fn hosted(endpoint: &str, bucket: &str) -> Result<String, Error> {
    let refused = |why: &str| {
        Err(Error::Refused(format!(
            "the bucket '{bucket}' cannot be part of the host name in {}: {why}; remove AWS_VIRTUAL_HOSTED_STYLE_REQUEST \
             (in Python addressing_style=virtual), so that the bucket goes into the path",
            shown(endpoint)
        )))
    };
    let Some((scheme, rest)) = endpoint.split_once("://") else { return refused("the address has no scheme") };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    if authority.contains('@') {
        return refused("the address has a user name");
    }
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    if host.parse::<std::net::Ipv4Addr>().is_ok() || authority.starts_with('[') {
        return refused("the address is an IP address");
    }
    let is_label = |label: &str| {
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let ends = label.bytes().next().is_some_and(is_plain) && label.bytes().last().is_some_and(is_plain);
        ends && label.len() <= 63 && label.bytes().all(|byte| is_plain(byte) || byte == b'-')
    };
    if !bucket.split('.').all(is_label) {
        return refused("host names have lowercase letters, digits, hyphens and dots");
    }
    Ok(format!("{scheme}://{bucket}.{rest}"))
}

fn endpoint() -> Option<String> {
    ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"].iter().find_map(|name| std::env::var(name).ok())
}

/// Retry policy of the client for commits: none, see `connect`.
pub(crate) fn no_retry() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

/// Retry policy of the client for data.
pub(crate) fn retry() -> RetryConfig {
    RetryConfig { max_retries: DATA_RETRIES, ..RetryConfig::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(options: &[(&str, &str)]) -> StoreSettings {
        let options = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        StoreSettings { options, ..StoreSettings::default() }
    }

    #[test]
    fn each_bucket_has_an_address_of_its_own() {
        let address = |style: &str, bucket: &str, server: &str| {
            let location: Location = format!("s3://{bucket}/k").parse().unwrap();
            let settings = with(&[("aws_virtual_hosted_style_request", style), ("aws_endpoint", server)]);
            settings
                .s3(&location, ClientOptions::new())
                .map(|builder| builder.get_config_value(&AmazonS3ConfigKey::S3Endpoint).unwrap())
        };
        for (server, bucket, expected) in [
            ("http://localhost:9000", "one", "http://one.localhost:9000"),
            ("http://localhost:9000", "two", "http://two.localhost:9000"),
            ("https://s3.example.org/", "a.b-c", "https://a.b-c.s3.example.org/"),
            // A server's own name may begin with the bucket's name.
            ("https://one.example.org", "one", "https://one.one.example.org"),
        ] {
            assert_eq!(address("true", bucket, server).unwrap(), expected);
            assert_eq!(address("false", bucket, server).unwrap(), server);
        }
        for (server, bucket) in [
            ("http://127.0.0.1:9000", "one"),
            ("http://[::1]:9000", "one"),
            ("http://user@host", "one"),
            ("http://localhost", "One"),
            ("http://localhost", "one_two"),
            ("http://localhost", "-one"),
        ] {
            let refused = address("true", bucket, server).map_err(|error| error.to_string());
            assert!(refused.as_ref().is_err_and(|why| why.contains("remove AWS_VIRTUAL_HOSTED")), "{refused:?}");
            address("false", bucket, server).unwrap();
        }
        let location: Location = "s3://One/k".parse().unwrap();
        assert!(with(&[("virtual_hosted_style_request", "true")]).s3(&location, ClientOptions::new()).is_err());
    }

    #[test]
    fn a_file_of_certificates_is_read_or_named() {
        let dir = testkit::TempDir::new("ca-bundle");
        let file = dir.join("ca.pem");
        let location: Location = "s3://b/k".parse().unwrap();
        let named = |content: &str| {
            std::fs::write(&file, content).unwrap();
            let settings = with(&[("ca_bundle", file.to_str().unwrap())]);
            settings.data_options(&location).map(drop).map_err(|error| error.to_string())
        };
        for content in ["", "no certificate", "-----BEGIN CERTIFICATE-----\nAA\n"] {
            let refused = named(content);
            assert!(refused.as_ref().is_err_and(|why| why.contains("ca.pem")), "{content}: {refused:?}");
        }
        let missing = with(&[("ca_bundle", "/no/such/file")]).commit_options(&location).map(drop);
        assert!(missing.is_err_and(|error| error.to_string().contains("ca_bundle names /no/such/file")));
        with(&[("ca_bundle", "/no/such/file")]).s3(&location, ClientOptions::new()).unwrap();
    }
}
