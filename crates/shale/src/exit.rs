//! Ends the process: reports a failure and converts it to the exit code.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use operations::{Failure, code_of};
use surface::ErrorKind;

use crate::cli::{habits, help};
use crate::output::{self, Output};

/// Reports a failure to the user and returns the exit code.
pub fn report(failure: &Failure, output: &Output) -> ExitCode {
    match failure {
        Failure::Reported(_) | Failure::Lossy => {}
        failure => output.error(failure.kind_name(), &failure.to_string()),
    }
    ExitCode::from(failure.code())
}

/// Reports a usage error (or prints the requested help), and returns the exit code.
pub fn report_usage(error: clap::Error) -> ExitCode {
    let asked_for = !error.use_stderr();
    // The flags could not be parsed, so this searches for --json itself.
    let json = !asked_for && std::env::args_os().any(|arg| arg == "--json");
    if let Some(answer) = habits::answer(&error) {
        Output::new(json, false).error(ErrorKind::Invalid.name(), &answer);
        return ExitCode::from(code_of(ErrorKind::Invalid));
    }
    let error = habits::without_dangerous_suggestions(error);
    if json {
        let text = error.to_string();
        // The fault, without the advice after it.
        let message = text.split("\n\n").next().unwrap_or(&text);
        let message = message.strip_prefix("error: ").unwrap_or(message);
        let words: Vec<_> = message.split_whitespace().collect();
        Output::new(true, false).error(ErrorKind::Invalid.name(), &words.join(" "));
    } else if let Err(unwritten) = print(&error, asked_for)
        && asked_for
    {
        output::unwritten(unwritten);
    }
    if !asked_for {
        return ExitCode::from(code_of(ErrorKind::Invalid));
    }
    output::all_was_written()
        .map_or_else(|failure| report(&failure, &Output::new(false, false)), |()| ExitCode::SUCCESS)
}

/// Prints the parser's message, in colour on a terminal that allows it.
fn print(error: &clap::Error, asked_for: bool) -> std::io::Result<()> {
    let wants_colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
    let rendered = error.render();
    let text = |is_terminal: bool| {
        let text = if is_terminal && wants_colour { rendered.ansi().to_string() } else { rendered.to_string() };
        help::plain(&text)
    };
    if asked_for {
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(text(stdout.is_terminal()).as_bytes())?;
        stdout.flush()
    } else {
        let mut stderr = std::io::stderr().lock();
        stderr.write_all(text(stderr.is_terminal()).as_bytes())
    }
}
