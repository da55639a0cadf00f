//! Errors of a store: their kind, and a description in one line with the HTTP status, the code, the
//! message and the remedy. The stores answer in XML or JSON, and without credentials the store's
//! client names an address that means nothing to its user. Plain functions.

use object_store::Error;

/// Characters shown of an answer that is neither XML nor JSON.
const PLAIN_MAX: usize = 300;
/// Codes for "an object is in the place of a directory", or the other way round.
const PATH_CONFLICTS: [&str; 4] =
    ["ObjectParentIsFile", "ExistingObjectIsDirectory", "XMinioParentIsObject", "XMinioObjectExistsAsDirectory"];
/// Codes for unknown or expired keys. One of them comes with the HTTP status of a missing object.
const UNKNOWN_KEYS: [&str; 6] = [
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "InvalidToken",
    "AuthenticationFailed",
    "XAdminUserNotFound",
];
/// Addresses of the metadata service, which the store's client asks for keys last.
const METADATA: [&str; 4] =
    ["169.254.169.254", "/latest/api/token", "/latest/meta-data/iam", "metadata.google.internal"];

const ADVICE_FILES: &str = "check the directory, its owner and its disk, then try again";
const ADVICE_TRY: &str = "try again, or check the state of the store";
const ADVICE_KEYS: &str = "check the credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; \
                           docs/BLOB-GUIDE.md has those of other stores)";
const ADVICE_RIGHTS: &str = "these credentials lack permissions: allow reading, writing, listing and deleting objects, or use other credentials";
const ADVICE_BUCKET: &str = "create the bucket, or check its name, the endpoint and the region";
const ADVICE_CONFLICT: &str = "another object is in the way of this key: choose another key, or delete that object";
const ADVICE_REGION: &str = "set AWS_REGION to the region of the bucket";
const ADVICE_CLOCK: &str = "set this machine's clock";
const ADVICE_SLOW: &str = "the store is overloaded: try again later";
const ADVICE_CERTIFICATE: &str = "if the store has a certificate of a private authority, set AWS_CA_BUNDLE (S3) or \
                                  SSL_CERT_FILE to the file with that authority's certificate";
const ADVICE_NETWORK: &str = "check the endpoint (AWS_ENDPOINT_URL) and the network";

/// Start of the error for a store that needs credentials when there are none.
pub const NO_CREDENTIALS: &str = "no credentials were found";

/// Describes missing credentials: the places that were searched, and the settings to use.
fn no_credentials(text: &str) -> String {
    let (looked, set) = if text.contains("MicrosoftAzure") || text.contains("/metadata/identity") {
        (
            "AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, AZURE_CLIENT_ID and related variables, the identity of this machine",
            "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
        )
    } else if text.contains("GCS") || text.contains("google") {
        (
            "GOOGLE_APPLICATION_CREDENTIALS, GOOGLE_SERVICE_ACCOUNT, gcloud's own file, the account of this machine",
            "GOOGLE_APPLICATION_CREDENTIALS to the file of a service account",
        )
    } else {
        (
            "AWS_ACCESS_KEY_ID, the profile of AWS_PROFILE or `default` in ~/.aws/credentials and ~/.aws/config, \
             AWS_WEB_IDENTITY_TOKEN_FILE, AWS_CONTAINER_CREDENTIALS_RELATIVE_URI, the role of this machine",
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or AWS_SKIP_SIGNATURE=true for a public bucket",
        )
    };
    format!("{NO_CREDENTIALS}; searched: {looked}; set {set}")
}

/// Returns whether the store's client found no credentials, after asking the metadata service.
pub(crate) fn lacks_credentials(error: &Error) -> bool {
    let text = error.to_string();
    METADATA.iter().any(|place| text.contains(place))
}

/// Returns whether the store reports a missing bucket.
pub(crate) fn lacks_bucket(error: &Error) -> bool {
    let text = error.to_string();
    ["NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist"].iter().any(|code| text.contains(code))
}

/// Returns whether the store reports that the bucket is in another region.
pub(crate) fn is_in_other_region(error: &Error) -> bool {
    let Error::Generic { store, .. } = error else { return false };
    if *store == "LocalFileSystem" {
        return false;
    }
    let text = error.to_string();
    ["PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "without LOCATION"]
        .iter()
        .any(|code| text.contains(code))
}

/// Returns whether the store reports an object in the place of a directory, or the other way round:
/// some stores keep objects as files.
pub(crate) fn is_path_conflict(error: &Error) -> bool {
    let is_of_files = matches!(error, Error::Generic { store: "LocalFileSystem", .. });
    let text = error.to_string();
    !is_of_files && PATH_CONFLICTS.iter().any(|code| text.contains(&format!("<Code>{code}</Code>")))
}

/// Returns whether the store refuses the keys. Its client has an error kind for that, but does not
/// use it for lists, nor when the store answers as if the object were missing.
pub(crate) fn is_refused(error: &Error) -> bool {
    match error {
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => true,
        Error::Generic { store, .. } if *store != "LocalFileSystem" => {
            let text = error.to_string();
            ["status code: 401", "status code: 403"].iter().any(|status| text.contains(status))
                || has_unknown_keys(&text)
        }
        Error::NotFound { .. } => has_unknown_keys(&error.to_string()),
        _ => false,
    }
}

fn has_unknown_keys(text: &str) -> bool {
    UNKNOWN_KEYS.iter().any(|code| text.contains(&format!("<Code>{code}</Code>")))
}

/// Returns whether the store reports a missing object, in a known bucket and with known keys.
pub(crate) fn is_absent(error: &Error) -> bool {
    matches!(error, Error::NotFound { .. }) && !lacks_bucket(error) && !is_refused(error)
}

/// Returns the text between two marks.
fn between<'a>(text: &'a str, from: &str, to: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(from)?;
    rest.split_once(to).map(|(found, _)| found.trim()).filter(|found| !found.is_empty())
}

fn advice(status: &str, code: &str, message: &str) -> &'static str {
    match code {
        "NoSuchBucket" | "ContainerNotFound" | "InvalidBucketName" => ADVICE_BUCKET,
        _ if UNKNOWN_KEYS.contains(&code) => ADVICE_KEYS,
        "PermanentRedirect" | "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException" => ADVICE_REGION,
        _ if PATH_CONFLICTS.contains(&code) => ADVICE_CONFLICT,
        "RequestTimeTooSkewed" => ADVICE_CLOCK,
        "SlowDown" | "ServerBusy" | "TooManyRequests" => ADVICE_SLOW,
        "AccessDenied" | "AllAccessDisabled" | "AuthorizationPermissionMismatch" => ADVICE_RIGHTS,
        _ if message.contains("bucket does not exist") => ADVICE_BUCKET,
        _ => match status.get(..3) {
            Some("401") => ADVICE_KEYS,
            Some("403") => ADVICE_RIGHTS,
            Some("429" | "503") => ADVICE_SLOW,
            Some("301" | "307") => ADVICE_REGION,
            _ => ADVICE_TRY,
        },
    }
}

/// Returns the error kind of the file system below the store, if that is why the store failed.
pub(crate) fn io_kind(error: &Error) -> Option<std::io::ErrorKind> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<std::io::Error>() {
            return Some(error.kind());
        }
        cause = error.source();
    }
    None
}

/// Describes a store's answer and the remedy in one line.
pub(crate) fn describe(error: &Error) -> String {
    let text = error.to_string();
    if METADATA.iter().any(|place| text.contains(place)) {
        return no_credentials(&text);
    }
    if text.contains("request without LOCATION") || text.contains("redirect without LOCATION") {
        return format!("the bucket is in another region: {ADVICE_REGION}");
    }
    let Some((_, answer)) = text.split_once("status code: ") else {
        let is_of_the_network = text.contains("error sending request") || text.contains("HTTP error");
        if !is_of_the_network {
            let is_of_files = matches!(error, Error::Generic { store: "LocalFileSystem", .. });
            let advice =
                if is_of_files { ADVICE_FILES.to_owned() } else { format!("{ADVICE_TRY} and the credentials") };
            return format!("{text}; {advice}");
        }
        // "Error performing GET http://host/bucket/key in 2ms, ..."
        let performed = between(&text, "Error performing ", " in ").and_then(|request| request.split_once(' '));
        let place = between(&text, "for url (", ")").or(performed.map(|(_, place)| place)).unwrap_or_default();
        let place = place.splitn(4, '/').take(3).collect::<Vec<_>>().join("/");
        let place = if place.is_empty() { String::new() } else { format!(" at {place}") };
        let cause = deepest(error);
        let advice = if cause.contains("certificate") { ADVICE_CERTIFICATE } else { ADVICE_NETWORK };
        return format!("the store{place} cannot be reached: {cause}; {advice}");
    };
    let (status, body) = answer.split_once(": ").unwrap_or((answer, ""));
    let code = between(body, "<Code>", "</Code>").or_else(|| between(body, "\"reason\": \"", "\"")).unwrap_or_default();
    let message = between(body, "<Message>", "</Message>").or_else(|| between(body, "\"message\": \"", "\""));
    let message = message.unwrap_or_else(|| if body.contains('<') { "" } else { body });
    let message = message.lines().next().unwrap_or_default();
    let message: String = message.chars().take(PLAIN_MAX).collect();
    let parts: Vec<&str> = [status.trim(), code, message.trim()].into_iter().filter(|part| !part.is_empty()).collect();
    format!("the store answered {}; {}", parts.join(": "), advice(status, code, &message))
}

/// Returns the message of the innermost cause.
fn deepest(error: &Error) -> String {
    let mut cause: &(dyn std::error::Error + 'static) = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(source: &str) -> Error {
        Error::Generic { store: "S3", source: source.to_owned().into() }
    }

    #[test]
    fn answers_are_told_by_code_and_message_with_what_to_do() {
        let xml = |status: &str, code: &str, message: &str| {
            generic(&format!(
                "Error performing GET http://127.0.0.1:1/b/k in 2ms - Server returned non-2xx status code: {status}: \
                 <?xml version=\"1.0\"?>\n<Error><Code>{code}</Code><Message>{message}</Message><Resource>/b</Resource></Error>"
            ))
        };
        for (status, code, message, advice) in [
            ("403 Forbidden", "SignatureDoesNotMatch", "The signature is another.", "AWS_SECRET_ACCESS_KEY"),
            ("403 Forbidden", "AccessDenied", "Access Denied", "lack permissions"),
            ("404 Not Found", "NoSuchBucket", "There is none.", "create the bucket"),
            ("404 Not Found", "XAdminUserNotFound", "No such user.", "check the credentials"),
            ("301 Moved Permanently", "PermanentRedirect", "Elsewhere.", "AWS_REGION"),
            ("503 Service Unavailable", "SlowDown", "Please reduce your request rate.", "try again later"),
            ("403 Forbidden", "RequestTimeTooSkewed", "Too large.", "clock"),
            ("500 Internal Server Error", "InternalError", "We are sorry.", "try again"),
        ] {
            let told = describe(&xml(status, code, message));
            let expected = format!("the store answered {status}: {code}: {message}; ");
            assert!(told.starts_with(&expected) && told.contains(advice) && !told.contains('<'), "{told}");
        }
        let json = "Error performing GET http://g/ - Server returned non-2xx status code: 401 Unauthorized: \
                    {\n \"error\": {\n \"code\": 401,\n \"message\": \"Invalid Credentials\"\n}}";
        let json = describe(&generic(json));
        assert!(json.starts_with("the store answered 401 Unauthorized: Invalid Credentials; check"), "{json}");
    }

    #[test]
    fn what_the_network_and_files_say_is_told() {
        let refused = "Error performing GET http://127.0.0.1:1/b/k in 2ms, after 6 retries - HTTP error: error sending request for url (http://127.0.0.1:1/b/k?x=y)";
        let refused = describe(&generic(refused));
        assert!(refused.starts_with("the store at http://127.0.0.1:1 cannot be reached: "), "{refused}");
        let without = "Generic S3 error: Error performing GET http://127.0.0.1:1/b?list-type=2 in 2ms, after 0 retries, max_retries: 0 - HTTP error: error sending request";
        let without = describe(&generic(without));
        assert!(without.starts_with("the store at http://127.0.0.1:1 cannot be reached: "), "{without}");
        let file = describe(&Error::Generic { store: "LocalFileSystem", source: "no space".into() });
        assert!(file.contains("no space") && file.contains("try again"), "{file}");
    }

    #[test]
    fn another_region_is_no_reason_to_ask_again() {
        let answer =
            |code| generic(&format!("Server returned non-2xx status code: 400 Bad Request: <Code>{code}</Code>"));
        for code in ["AuthorizationHeaderMalformed", "PermanentRedirect"] {
            assert!(
                is_in_other_region(&answer(code)) && crate::store::backend::is_permanent(&answer(code), 1),
                "{code}"
            );
        }
        assert!(
            !is_in_other_region(&answer("SlowDown")) && !crate::store::backend::is_permanent(&answer("SlowDown"), 1)
        );
        let file = Error::Generic { store: "LocalFileSystem", source: "a file named 'PermanentRedirect'".into() };
        assert!(!is_in_other_region(&file));
    }

    #[test]
    fn an_object_in_the_way_is_told_and_no_reason_to_ask_again() {
        for code in PATH_CONFLICTS {
            let answer = generic(&format!(
                "Server returned non-2xx status code: 409 Conflict: <Error><Code>{code}</Code><Message>No.</Message></Error>"
            ));
            let exists = Error::AlreadyExists { path: "k".into(), source: answer.to_string().into() };
            for error in [answer, exists] {
                assert!(is_path_conflict(&error) && crate::store::backend::is_permanent(&error, 1), "{error}");
                assert!(describe(&error).contains("choose another key"), "{}", describe(&error));
            }
        }
        let exists = Error::AlreadyExists { path: "k".into(), source: "<Code>PreconditionFailed</Code>".into() };
        assert!(!is_path_conflict(&exists) && !crate::store::backend::is_permanent(&exists, 1));
    }

    #[test]
    fn keys_that_are_refused_in_a_listing_are_refused() {
        let answer = |status| {
            generic(&format!(
                "Error performing GET http://s/b?list-type=2 in 2ms - Server returned non-2xx status code: {status}: <Error/>"
            ))
        };
        assert!(is_refused(&answer("403 Forbidden")) && is_refused(&answer("401 Unauthorized")));
        assert!(!is_refused(&answer("404 Not Found")) && !is_refused(&answer("500 Internal Server Error")));
        let file = Error::Generic { store: "LocalFileSystem", source: "a file named 'status code: 403'".into() };
        assert!(!is_refused(&file));
    }

    #[test]
    fn an_unknown_user_is_no_missing_object() {
        let answer = |code: &str| Error::NotFound {
            path: "b/k".into(),
            source: format!("status code: 404 Not Found: <Error><Code>{code}</Code></Error>").into(),
        };
        let user = answer("XAdminUserNotFound");
        assert!(is_refused(&user) && !is_absent(&user) && crate::store::backend::is_permanent(&user, 5));
        assert!(!is_absent(&answer("NoSuchBucket")));
        assert!(is_absent(&answer("NoSuchKey")) && !is_refused(&answer("NoSuchKey")));
    }

    #[test]
    fn an_authority_that_is_not_known_is_named() {
        let refused = "error sending request for url (https://s/b): invalid peer certificate: UnknownIssuer";
        let refused = describe(&generic(refused));
        assert!(refused.contains("at https://s cannot be reached") && refused.contains("AWS_CA_BUNDLE"), "{refused}");
    }

    #[test]
    fn missing_credentials_are_named_as_that() {
        let asked =
            "Error performing PUT http://169.254.169.254/latest/api/token in 1s - HTTP error: error sending request";
        let told = describe(&generic(asked));
        assert!(told.starts_with(NO_CREDENTIALS) && !told.contains("169.254"), "{told}");
        assert!(told.contains("~/.aws/credentials") && told.contains("set AWS_ACCESS_KEY_ID"), "{told}");
        let azure = Error::Generic {
            store: "MicrosoftAzure",
            source: "Error performing GET http://169.254.169.254/metadata/identity/oauth2/token".into(),
        };
        assert!(super::describe(&azure).contains("AZURE_STORAGE_ACCOUNT_KEY"));
    }
}
