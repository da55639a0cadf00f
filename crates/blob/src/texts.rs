//! Texts that users attach to a blob: tag names and messages. Owns which texts are refused, and how
//! texts from other clients are displayed: records of any writer are read, and their texts must not
//! reach a terminal unescaped. Plain functions.

use crate::error::Error;
use crate::protocol::record::TEXT_BYTES_MAX;
use units::{is_hidden, shown};

/// Bytes of a tag name.
const TAG_BYTES_MAX: usize = 255;

/// Checks the name of a tag. A name that looks like a version number or contains the separators of
/// a URL could not be written after an @.
///
/// # Errors
/// [`Error::Refused`] with the fault and the remedy.
pub fn check_tag(name: &str) -> Result<(), Error> {
    let wrong = if name.is_empty() {
        "it is empty".to_owned()
    } else if name.len() > TAG_BYTES_MAX {
        format!("it has {} bytes, at most {TAG_BYTES_MAX} are allowed", name.len())
    } else if name.bytes().all(|byte| byte.is_ascii_digit()) {
        "it would be taken for a version number".to_owned()
    } else if let Some(c) = name.chars().find(|c| matches!(c, '@' | '/') || is_hidden(*c)) {
        format!("it contains '{}'", shown(&c.to_string()))
    } else {
        return Ok(());
    };
    // The name may be as long as a command line allows.
    let start: String = name.chars().take(80).collect();
    Err(Error::Refused(format!(
        "'{}' cannot be a tag: {wrong}; use 1 to {TAG_BYTES_MAX} bytes that are not just digits, without @, / and \
         control characters, such as v1",
        shown(&start)
    )))
}

/// Checks a message: one line or several.
///
/// # Errors
/// [`Error::Refused`] with the fault and the remedy.
pub fn check_message(message: &str) -> Result<(), Error> {
    if message.len() > TEXT_BYTES_MAX {
        let why = format!("the message has {} bytes, at most {TEXT_BYTES_MAX} are allowed: shorten it", message.len());
        return Err(Error::Refused(why));
    }
    match message.chars().find(|c| is_hidden(*c) && !matches!(c, '\n' | '\t')) {
        None => Ok(()),
        Some(c) => {
            let c = c.to_string();
            Err(Error::Refused(format!(
                "the message contains the control character '{}': remove it; only newlines and tabs are allowed",
                shown(&c)
            )))
        }
    }
}

/// Returns the message of a version that is a copy. It passes [`check_message`] for any name of the
/// source.
pub fn copy_message(source: &str, version: u64) -> String {
    let message = format!("copy of version {version} of {}", shown(source));
    let end = message.floor_char_boundary(TEXT_BYTES_MAX);
    message[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    #[test]
    fn tags_can_be_written_behind_an_at() {
        for good in ["v1", "2026-11-26", "a b", "ü€", "first.draft", &"x".repeat(255), "0x1"] {
            check_tag(good).unwrap_or_else(|error| panic!("{good}: {error}"));
        }
        for (bad, why) in [
            ("", "empty"),
            ("17", "number"),
            ("a/b", "'/'"),
            ("a@b", "'@'"),
            ("a\nb", "'\\n'"),
            ("\u{1b}[31mred", "'\\u{1b}'"),
            ("a\0", "'\\u{0}'"),
            ("a\u{85}b", "'\\u{85}'"),
            ("gpj\u{202e}exe", "'\\u{202e}'"),
            (&"x".repeat(256), "256 bytes"),
        ] {
            let error = check_tag(bad).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("such as v1"), "{error}");
            assert!(!error.contains(is_hidden) && error.len() < 400, "{error}");
        }
    }

    #[test]
    fn messages_have_lines_and_no_escapes() {
        check_message("").unwrap();
        check_message("first line\n\tsecond 'line'").unwrap();
        check_message(&"x".repeat(1024)).unwrap();
        assert!(check_message(&"x".repeat(1025)).unwrap_err().to_string().contains("1025 bytes"));
        assert!(check_message("a\u{7}").unwrap_err().to_string().contains("'\\u{7}'"));
        assert!(check_message("a\rb").unwrap_err().to_string().contains("'\\r'"));
    }

    #[test]
    fn what_is_shown_changes_nothing_that_can_be_read() {
        assert!(matches!(shown("it's \"ü\" \\ @1"), Cow::Borrowed(_)));
        assert_eq!(shown("a\nb\u{1b}[2J\u{2028}"), "a\\nb\\u{1b}[2J\\u{2028}");
    }

    #[test]
    fn the_message_of_a_copy_is_always_one() {
        for source in ["file:///a", &"ü".repeat(700), "a\u{1b}b"] {
            let message = copy_message(source, 7);
            check_message(&message).unwrap();
            assert!(message.starts_with("copy of version 7 of "));
        }
    }
}
