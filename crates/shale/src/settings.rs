//! The settings file of a server: TOML whose keys are the options of `shale serve`.
//!
//! There is no second list of options. A key is looked up among those of [`ServeSettings`], its
//! value becomes words of a command line, and the command line's parser checks these. So equal
//! settings in a file and on a command line have the same meaning, and the same errors.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::ops::Range;
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind as Refusal};
use clap::{Arg, ArgAction, Args, Command, FromArgMatches};
use operations::path_error;
use serde::Serialize;
use surface::{Error, ErrorKind, Result};
use toml::de::{DeTable, DeValue};

use crate::cli::ServeSettings;

/// The key that is not an option, but the argument of `shale serve`.
const POOL: &str = "pool";
/// Columns of comments in the example.
const COLUMNS: usize = 96;

/// An error in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// Line, from 1; `None` if a key is missing.
    pub line: Option<usize>,
    /// The key.
    pub key: Option<String>,
    /// Message.
    pub message: String,
}

/// A valid settings file.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Its values, parsed.
    pub serve: ServeSettings,
    /// Words for each key, defaults included.
    values: BTreeMap<String, Vec<OsString>>,
}

impl Settings {
    /// Reads a file, and returns its settings or its faults.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(file: &Path) -> Result<std::result::Result<Self, Vec<Fault>>> {
        let bytes = std::fs::read(file).map_err(|error| path_error("cannot read", file, error))?;
        let is_no_text = |error: std::str::Utf8Error| {
            let line = line_of(&String::from_utf8_lossy(&bytes), &(error.valid_up_to()..bytes.len()));
            vec![Fault { line: Some(line), key: None, message: "the file is not UTF-8".to_owned() }]
        };
        Ok(std::str::from_utf8(&bytes).map_err(is_no_text).and_then(Self::parse))
    }

    /// Reads a file that must be valid.
    ///
    /// # Errors
    /// `Invalid`, with each fault and its line.
    pub fn load(file: &Path) -> Result<Self> {
        Self::read(file)?.map_err(|faults| {
            let lines: Vec<_> = faults.iter().map(|fault| fault.in_file(file)).collect();
            Error::new(ErrorKind::Invalid, lines.join("\n"))
        })
    }

    /// Returns the keys whose values differ.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let differ = |key: &&String| self.values.get(*key) != other.values.get(*key);
        self.values.keys().filter(differ).cloned().collect()
    }

    fn parse(text: &str) -> std::result::Result<Self, Vec<Fault>> {
        let table = DeTable::parse(text).map_err(|error| {
            let line = error.span().map(|span| line_of(text, &span));
            vec![Fault { line, key: None, message: error.message().to_owned() }]
        })?;
        let (mut lines, mut faults) = (BTreeMap::new(), Vec::new());
        let mut words: BTreeMap<String, Vec<OsString>> = BTreeMap::new();
        let command = command();
        for (key, value) in table.get_ref() {
            let (name, line) = (&**key.get_ref(), line_of(text, &key.span()));
            lines.insert(name.to_owned(), line);
            let made = command.get_arguments().find(|arg| is_key(arg) && key_of(arg) == name).map_or_else(
                || {
                    let known = command.get_arguments().filter(|arg| is_key(arg)).map(key_of);
                    Err(format!("unknown key{}", units::did_you_mean(name, known)))
                },
                |arg| words_of(arg, value.get_ref()),
            );
            match made {
                Ok(made) => drop(words.insert(name.to_owned(), made)),
                Err(message) => faults.push(Fault { line: Some(line), key: Some(name.to_owned()), message }),
            }
        }
        loop {
            let refused = match parsed(&words) {
                Ok((serve, values)) if faults.is_empty() => return Ok(Self { serve, values }),
                Ok(_) => break,
                Err(refused) => refused,
            };
            let (key, message) = why(&refused, &words);
            let line = key.as_ref().and_then(|key| lines.get(key)).copied();
            let is_found = key.as_ref().is_some_and(|key| words.remove(key).is_some());
            // A fault without a key may follow from another one: it is reported only if it is the
            // only one.
            if is_found || faults.is_empty() {
                faults.push(Fault { line, key, message });
            }
            if !is_found {
                break;
            }
        }
        faults.sort_by_key(|fault| fault.line);
        Err(faults)
    }
}

impl Fault {
    /// Formats the fault like a compiler's message.
    pub fn in_file(&self, file: &Path) -> String {
        let line = self.line.map_or_else(String::new, |line| format!(":{line}"));
        let key = self.key.as_ref().map_or_else(String::new, |key| format!(" '{key}':"));
        format!("{}{line}:{key} {}", file.display(), self.message)
    }
}

/// Returns a parser of the settings only.
fn command() -> Command {
    // The pool is required without it.
    let config = Arg::new("config").long("config").hide(true);
    ServeSettings::augment_args(Command::new("serve").arg(config).disable_help_flag(true))
}

fn is_key(arg: &Arg) -> bool {
    !arg.is_hide_set()
}

fn key_of(arg: &Arg) -> &str {
    arg.get_long().unwrap_or(POOL)
}

fn line_of(text: &str, span: &Range<usize>) -> usize {
    1 + text.bytes().take(span.start).filter(|byte| *byte == b'\n').count()
}

/// Converts a value to words of a command line.
fn words_of(arg: &Arg, value: &DeValue<'_>) -> std::result::Result<Vec<OsString>, String> {
    let word = |value: &DeValue<'_>| {
        let text = match value {
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(number) if number.radix() == 10 => number.as_str().to_owned(),
            DeValue::Boolean(is_on) if is_switch(arg) => if *is_on { "on" } else { "off" }.to_owned(),
            other => return Err(format!("expected {}, found {}", expected(arg), other.type_str())),
        };
        let text = if arg.is_positional() { text } else { format!("--{}={text}", key_of(arg)) };
        Ok(OsString::from(text))
    };
    match (arg.get_action(), value) {
        (ArgAction::SetTrue, DeValue::Boolean(is_on)) => {
            Ok(is_on.then(|| OsString::from(format!("--{}", key_of(arg)))).into_iter().collect())
        }
        (ArgAction::SetTrue, other) => Err(format!("expected true or false, found {}", other.type_str())),
        (ArgAction::Append, DeValue::Array(values)) => values.iter().map(|value| word(value.get_ref())).collect(),
        (_, value) => Ok(vec![word(value)?]),
    }
}

/// Returns whether the option has the values `on` and `off`, for which a file may use `true` and
/// `false`.
fn is_switch(arg: &Arg) -> bool {
    arg.get_possible_values().iter().any(|value| value.get_name() == "off")
}

fn expected(arg: &Arg) -> String {
    let one = match arg.get_value_names() {
        Some([name, ..]) => format!("a string ({name})"),
        _ => "a string".to_owned(),
    };
    if matches!(arg.get_action(), ArgAction::Append) { format!("{one} or an array of them") } else { one }
}

type Parsed = (ServeSettings, BTreeMap<String, Vec<OsString>>);

fn parsed(words: &BTreeMap<String, Vec<OsString>>) -> std::result::Result<Parsed, clap::Error> {
    let command = command();
    let options = words.iter().filter(|(key, _)| *key != POOL).flat_map(|(_, words)| words.clone());
    let pool = words.get(POOL).into_iter().flatten().cloned();
    let line = std::iter::once(OsString::from("serve")).chain(options).chain([OsString::from("--")]).chain(pool);
    let matches = command.clone().try_get_matches_from(line)?;
    let values = command.get_arguments().filter(|arg| is_key(arg)).map(|arg| {
        let raw = matches.get_raw(arg.get_id().as_str()).into_iter().flatten();
        (key_of(arg).to_owned(), raw.map(ToOwned::to_owned).collect())
    });
    let values = values.collect();
    Ok((ServeSettings::from_arg_matches(&matches)?, values))
}

/// Returns the key that the command line's parser refuses, and the reason.
fn why(refused: &clap::Error, words: &BTreeMap<String, Vec<OsString>>) -> (Option<String>, String) {
    let context = |kind| refused.get(kind);
    let key = |shown: &str| {
        let name = shown.trim_start_matches("--").split([' ', '=']).next().unwrap_or_default();
        if shown.starts_with("--") { name.to_owned() } else { POOL.to_owned() }
    };
    let named = match context(ContextKind::InvalidArg) {
        Some(ContextValue::String(shown)) => vec![key(shown)],
        Some(ContextValue::Strings(shown)) => shown.iter().map(|shown| key(shown)).collect(),
        _ => Vec::new(),
    };
    let value = match context(ContextKind::InvalidValue) {
        Some(ContextValue::String(value)) => value.as_str(),
        _ => "",
    };
    match (refused.kind(), named.first()) {
        (Refusal::MissingRequiredArgument, Some(first)) if first == POOL => {
            (Some(POOL.to_owned()), "the key is missing: specify the directory of the pool".to_owned())
        }
        (Refusal::MissingRequiredArgument, _) => {
            let without = |key: &&String| {
                let mut others = words.clone();
                others.remove(*key);
                parsed(&others).is_ok()
            };
            let needing = words.keys().find(without).cloned();
            (needing, format!("requires the key '{}', which is missing", named.join("', '")))
        }
        (Refusal::InvalidValue, first) => {
            let known = match context(ContextKind::ValidValue) {
                Some(ContextValue::Strings(known)) => format!(": use {}", known.join(" or ")),
                _ => String::new(),
            };
            (first.cloned(), format!("invalid value '{value}'{known}"))
        }
        (Refusal::ValueValidation, first) => {
            let source = std::error::Error::source(refused).map(|source| format!(": {source}")).unwrap_or_default();
            (first.cloned(), format!("invalid value '{value}'{source}"))
        }
        (_, first) => {
            let text = refused.to_string();
            let text = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
            (first.cloned(), text.split_whitespace().collect::<Vec<_>>().join(" "))
        }
    }
}

/// Returns a file with every key, its meaning and its default.
pub fn example() -> String {
    let mut text = "# Settings of a server: `shale serve --config FILE`, `shale config check FILE`.\n# A missing \
     key has the default shown here. Keys that begin with '#' have none.\n# `shale reload POOL`, or SIGHUP, makes \
     the server reload this file.\n"
        .to_owned();
    for arg in command().get_arguments().filter(|arg| is_key(arg)) {
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        text.push('\n');
        for line in wrapped(&help) {
            text += &format!("# {line}\n");
        }
        let names = arg.get_value_names().unwrap_or_default();
        if !names.is_empty() && arg.get_action().takes_values() && !arg.is_positional() {
            text += &format!("# Values: {}\n", names.join(" "));
        }
        let key = key_of(arg);
        let default = arg.get_default_values().first().map(|value| value.to_string_lossy());
        text += &match (arg.get_action(), default) {
            (ArgAction::SetTrue, _) => format!("{key} = false\n"),
            (ArgAction::Append, _) => format!("{key} = []\n"),
            (_, Some(default)) if default.parse::<u64>().is_ok() => format!("{key} = {default}\n"),
            (_, Some(default)) => format!("{key} = \"{default}\"\n"),
            (_, None) if arg.is_positional() => format!("{key} = \"/srv/pool\"\n"),
            (_, None) => format!("#{key} = \"\"\n"),
        };
    }
    text
}

fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= COLUMNS => {
                line.push_str(if line.is_empty() { "" } else { " " });
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use testkit::TempDir;

    use super::*;

    fn faults(text: &str) -> Vec<(Option<usize>, String, String)> {
        let faults = Settings::parse(text).unwrap_err();
        faults.into_iter().map(|fault| (fault.line, fault.key.unwrap_or_default(), fault.message)).collect()
    }

    fn only(text: &str) -> (Option<usize>, String, String) {
        let mut faults = faults(text);
        assert_eq!(faults.len(), 1, "{faults:?}");
        faults.remove(0)
    }

    #[test]
    fn a_file_and_a_command_line_mean_the_same() {
        let file = "pool = '/p'\nnbd = ['unix:/run/x', '127.0.0.1:1']\nmount = '/m'\nconnections = 7\noverlay = true\n\
                    keep-mounts = false\nmemory = '1G'\nvolume = 'a'\n";
        let words = "serve --nbd unix:/run/x --nbd 127.0.0.1:1 --mount /m --connections 7 --overlay --keep-mounts off \
                     --memory 1G --volume a /p";
        let matches = command().try_get_matches_from(words.split_whitespace()).unwrap();
        let typed = ServeSettings::from_arg_matches(&matches).unwrap();
        assert_eq!(format!("{:?}", Settings::parse(file).unwrap().serve), format!("{typed:?}"));
    }

    #[test]
    fn a_fault_has_its_line_its_key_and_the_nearest_name() {
        let (line, key, message) = only("pool = '/p'\n\n# x\nconections = 7\n");
        assert_eq!((line, key.as_str()), (Some(4), "conections"));
        assert_eq!(message, "unknown key; did you mean 'connections'?");
        // An option only of the command line.
        assert_eq!(only("pool = '/p'\ndetach = true\n").0, Some(2));
        assert!(only("pool = '/p'\nready-fd = 3\n").2.contains("unknown key"));
        for (text, words) in [
            ("memory = '1X'", "invalid value '1X': "),
            ("memory = 1.5", "expected a string (SIZE), found float"),
            ("connections = 0", "invalid value '0': "),
            ("metrics = 'all'", "invalid value 'all': use open or token"),
            ("overlay = 'yes'", "expected true or false, found string"),
            ("nbd = [true]", "expected a string (unix:PATH|HOST:PORT) or an array of them, found boolean"),
            ("nbd = '10809'", "there is no port"),
            ("exports = '/e'", "requires the key 'shares'"),
            ("http-cert = '/c'", "requires the key 'http-key'"),
            ("nbd = ':1'\nnbd-tls = 'required'", "requires the key 'nbd-certificates'"),
            ("nbd = ':1'\nnbd-certificates = '/c'\nnbd-client = 'hv1'", "write CLIENT=VOLUME"),
            ("mount = '/a'\nmount = '/b'", "duplicate key"),
            ("[limits]\nmemory = '1G'", "unknown key"),
            ("pool2 = ", "string values must be quoted"),
        ] {
            let (line, _, message) = only(&format!("pool = '/p'\n{text}\n"));
            assert!(message.contains(words) && line >= Some(2), "{text}: {line:?} {message}");
        }
        assert_eq!(
            only("mount = '/m'\n"),
            (None, POOL.into(), "the key is missing: specify the directory of the pool".into())
        );
        let several = faults("pool = '/p'\nmemory = '1X'\nmout = '/m'\nconnections = 'many'\n");
        assert_eq!(several.iter().map(|fault| fault.0).collect::<Vec<_>>(), [Some(2), Some(3), Some(4)], "{several:?}");
    }

    #[test]
    fn the_example_has_every_key_and_says_what_holds_without_it() {
        let example = example();
        let short = Settings::parse("pool = '/srv/pool'").unwrap();
        assert_eq!(format!("{:?}", Settings::parse(&example).unwrap().serve), format!("{:?}", short.serve));
        for arg in command().get_arguments().filter(|arg| is_key(arg)) {
            let key = key_of(arg);
            let has_it = |line: &str| line.trim_start_matches('#').starts_with(&format!("{key} = "));
            assert_eq!(example.lines().filter(|line| has_it(line)).count(), 1, "{key}");
        }
        assert_eq!(example.lines().find(|line| line.chars().count() > COLUMNS + 2), None);
    }

    #[test]
    fn a_file_that_is_no_text_is_wrong_at_a_line() {
        let dir = TempDir::new("settings");
        let file = dir.join("shale.toml");
        std::fs::write(&file, b"pool = '/p'\nmount = '\xff'\n").unwrap();
        let faults = Settings::read(&file).unwrap().unwrap_err();
        assert_eq!((faults[0].line, faults[0].message.as_str()), (Some(2), "the file is not UTF-8"));
        assert_eq!(Settings::load(&file).unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn keys_that_differ_are_known() {
        let [a, b] = ["pool = '/p'\nmemory = '1G'", "pool = '/p'\nnbd = ':1'\nmemory = '1G'\nwait = 1"]
            .map(|text| Settings::parse(text).unwrap());
        assert_eq!((a.differences(&b), b.differences(&a)), (vec!["nbd".to_owned()], vec!["nbd".to_owned()]));
        assert_eq!(a.differences(&a.clone()), [""; 0]);
    }
}
