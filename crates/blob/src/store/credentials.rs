//! Credentials for S3 from profiles: the files and programs that the vendor's own tools use. The
//! store's client itself supports variables, web identities, containers and instances, but not
//! profiles. A `ProfileProvider` is shared by the clients of one store.
//!
//! A profile is used when the environment has no key and either `AWS_PROFILE` is set or the files
//! have a `default` profile. It contains either keys or `credential_process`, a command that prints
//! keys and their expiry.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use env::{Clock, SystemClock};
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;

/// Settings of one profile, by name.
type Profile = BTreeMap<String, String>;

/// Keys count as expired this long before their end: a request that begins with them must still
/// reach the store.
const EXPIRES_EARLY_S: u64 = 60;

/// Keys, and the second at which they expire.
type Keys = (Arc<AwsCredential>, u64);

/// Provides the keys of a profile. They are cached until they expire or the store refuses them;
/// then the file is read, or the process run, again.
pub(crate) struct ProfileProvider {
    name: String,
    clock: SystemClock,
    kept: tokio::sync::Mutex<Option<Keys>>,
    is_refused: AtomicBool,
}

impl std::fmt::Debug for ProfileProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProfileProvider").field("name", &self.name).finish_non_exhaustive()
    }
}

impl ProfileProvider {
    fn new(name: String) -> Self {
        Self {
            name,
            clock: SystemClock::default(),
            kept: tokio::sync::Mutex::default(),
            is_refused: AtomicBool::new(false),
        }
    }

    /// Makes the next request read the keys again.
    pub(crate) fn refuse(&self) {
        self.is_refused.store(true, Ordering::Relaxed);
    }

    async fn read(&self) -> Result<Keys, String> {
        let profile = read_profile(&self.name).ok_or_else(|| format!("profile {} is gone", self.name))?;
        if let Some(keys) = keys_of(&profile) {
            return Ok((Arc::new(keys), u64::MAX));
        }
        let command = profile.get("credential_process").cloned();
        let command = command.ok_or_else(|| format!("profile {} no longer has keys", self.name))?;
        let ran = tokio::task::spawn_blocking(move || run_process(&command)).await;
        let (keys, ends) = ran.map_err(|_| "reading the profile was cancelled".to_owned())??;
        Ok((Arc::new(keys), ends))
    }
}

/// Returns a provider for the given profile, or for the one that the environment names; `None` when
/// credentials come from elsewhere.
///
/// # Errors
/// When `AWS_PROFILE` names a profile that is in no file, or that has neither keys nor a process.
pub(crate) fn from_profile(given: Option<&str>) -> Result<Option<Arc<ProfileProvider>>, String> {
    let has = |name: &str| std::env::var_os(name).is_some();
    let by_variable = || std::env::var("AWS_PROFILE").or_else(|_| std::env::var("AWS_DEFAULT_PROFILE")).ok();
    let named = given.map(str::to_owned).or_else(by_variable);
    if given.is_none() && (has("AWS_ACCESS_KEY_ID") || has("AWS_SKIP_SIGNATURE")) {
        return Ok(None);
    }
    let other =
        ["AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"];
    if named.is_none() && other.into_iter().any(has) {
        return Ok(None);
    }
    let name = named.clone().unwrap_or_else(|| "default".to_owned());
    match (read_profile(&name), named) {
        (Some(profile), _) if keys_of(&profile).is_some() || profile.contains_key("credential_process") => {
            Ok(Some(Arc::new(ProfileProvider::new(name))))
        }
        (Some(_), Some(name)) => Err(format!(
            "profile {name} has neither aws_access_key_id with aws_secret_access_key nor credential_process; sso and roles are not supported"
        )),
        (None, Some(name)) => {
            Err(format!("profile {name} is in neither {}", files().map(|f| f.display().to_string()).join(" nor ")))
        }
        _ => Ok(None),
    }
}

fn files() -> [PathBuf; 2] {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let file = |variable: &str, usual: &str| {
        std::env::var_os(variable).map_or_else(|| home.join(".aws").join(usual), PathBuf::from)
    };
    [file("AWS_SHARED_CREDENTIALS_FILE", "credentials"), file("AWS_CONFIG_FILE", "config")]
}

/// Reads a profile from both files; the credentials file takes precedence.
fn read_profile(name: &str) -> Option<Profile> {
    let mut found: Option<Profile> = None;
    for file in files() {
        let Ok(text) = std::fs::read_to_string(file) else { continue };
        if let Some(profile) = parse_profile(&text, name) {
            let known = found.get_or_insert_with(Profile::new);
            for (key, value) in profile {
                known.entry(key).or_insert(value);
            }
        }
    }
    found
}

/// Finds the section `[name]`, or `[profile name]`.
fn parse_profile(text: &str, name: &str) -> Option<Profile> {
    let mut inside = false;
    let mut found = None;
    for line in text.lines() {
        let line = line.trim();
        if let Some(section) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let section = section.trim();
            let section = section.strip_prefix("profile ").map_or(section, str::trim);
            inside = section == name;
            if inside {
                found.get_or_insert_with(Profile::new);
            }
        } else if inside
            && !line.starts_with(['#', ';'])
            && let Some((key, value)) = line.split_once('=')
            && let Some(profile) = &mut found
        {
            profile.insert(key.trim().to_owned(), value.trim().to_owned());
        }
    }
    found
}

fn keys_of(profile: &Profile) -> Option<AwsCredential> {
    Some(AwsCredential {
        key_id: profile.get("aws_access_key_id")?.clone(),
        secret_key: profile.get("aws_secret_access_key")?.clone(),
        token: profile.get("aws_session_token").cloned(),
    })
}

#[async_trait]
impl CredentialProvider for ProfileProvider {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let mut kept = self.kept.lock().await;
        let is_refused = self.is_refused.swap(false, Ordering::Relaxed);
        if let Some((keys, ends)) = &*kept
            && !is_refused
            && self.clock.unix_s() + EXPIRES_EARLY_S < *ends
        {
            return Ok(keys.clone());
        }
        let failed = |what: String| object_store::Error::Generic { store: "S3 credentials", source: what.into() };
        let read = self.read().await.map_err(failed)?;
        let keys = read.0.clone();
        *kept = Some(read);
        Ok(keys)
    }
}

/// Runs a `credential_process` through the shell and parses its JSON: the keys, and the second at
/// which they expire.
fn run_process(command: &str) -> Result<(AwsCredential, u64), String> {
    let output = std::process::Command::new("sh").args(["-c", command]).stdin(std::process::Stdio::null()).output();
    let output = output.map_err(|error| format!("credential_process cannot be run: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("credential_process ended with {}: {}", output.status, said.trim()));
    }
    let document: serde_json::Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("credential_process printed no JSON: {error}"))?;
    let field = |name: &str| document.get(name).and_then(serde_json::Value::as_str).map(str::to_owned);
    match (field("AccessKeyId"), field("SecretAccessKey")) {
        (Some(key_id), Some(secret_key)) => {
            let ends = match field("Expiration") {
                None => u64::MAX,
                Some(text) => {
                    unix_seconds(&text).ok_or_else(|| format!("credential_process printed Expiration {text}"))?
                }
            };
            Ok((AwsCredential { key_id, secret_key, token: field("SessionToken") }, ends))
        }
        _ => Err("credential_process printed no AccessKeyId and SecretAccessKey".into()),
    }
}

/// Parses `2026-11-25T23:59:59Z`, or the same with `+00:00` at its end.
fn unix_seconds(text: &str) -> Option<u64> {
    let text = text.strip_suffix('Z').or_else(|| text.strip_suffix("+00:00"))?;
    let (date, time) = text.split_once('T')?;
    let numbers = |text: &str, by: char| -> Option<[u64; 3]> {
        let all: Vec<u64> = text.split(by).map(|part| part.parse().ok()).collect::<Option<_>>()?;
        all.try_into().ok()
    };
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, second] = numbers(time.split('.').next()?, ':')?;
    if !(1970..10_000).contains(&year)
        || !(1..=12).contains(&month)
        || !(1..=31).contains(&day)
        || hour > 23
        || minute > 59
    {
        return None;
    }
    // Years begin in March here, so the leap day is the last day of a year.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    Some((days - 719_468) * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_sections_of_either_file() {
        let text = "[default]\naws_access_key_id=A\n# no\n[profile other ]\n aws_access_key_id = B\naws_secret_access_key = x=y\n[third]\n";
        assert_eq!(parse_profile(text, "default").unwrap()["aws_access_key_id"], "A");
        let other = parse_profile(text, "other").unwrap();
        assert_eq!((other["aws_access_key_id"].as_str(), other["aws_secret_access_key"].as_str()), ("B", "x=y"));
        assert!(parse_profile(text, "third").unwrap().is_empty() && parse_profile(text, "fourth").is_none());
        assert!(keys_of(&other).is_some_and(|keys| keys.token.is_none()));
    }

    #[test]
    fn times_are_seconds_since_1970() {
        for (text, expected) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2000-02-29T12:00:00+00:00", Some(951_825_600)),
            ("2026-03-01T00:00:00.5Z", Some(1_772_323_200)),
            ("2026-13-01T00:00:00Z", None),
            ("2026-01-01T00:00:00+01:00", None),
            ("soon", None),
        ] {
            assert_eq!(unix_seconds(text), expected, "{text}");
        }
    }

    #[test]
    fn a_process_prints_keys_or_fails_with_what_it_said() {
        let (keys, ends) = run_process(r#"echo '{"Version":1,"AccessKeyId":"A","SecretAccessKey":"S","SessionToken":"T","Expiration":"2026-11-25T23:59:59Z"}'"#).unwrap();
        assert_eq!((keys.key_id.as_str(), keys.secret_key.as_str(), keys.token.as_deref()), ("A", "S", Some("T")));
        assert_eq!(ends, 1_795_651_199);
        assert!(run_process("echo locked >&2; exit 3").unwrap_err().contains("locked"));
        assert!(run_process("echo '{}'").unwrap_err().contains("AccessKeyId"));
    }
}
