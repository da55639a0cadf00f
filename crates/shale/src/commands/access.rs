//! `shale passwd` and `token`: users and tokens of HTTP; `history`: the audit log.

use std::io::{BufRead, IsTerminal, stdin};
use std::path::Path;

use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};
use serde_json::json;
use surface::{Error, ErrorKind};

use crate::cli::{
    Access, HistoryArgs, PasswdArgs, TokenArgs, TokenCommand, TokenCreateArgs, TokenListArgs, TokenRevokeArgs,
};
use crate::output::{Output, table};
use crate::times::{show_moment, show_second};
use operations::{Failure, Outcome, Reply, Request, UserLine};
use server::audit::AuditLog;
use server::pool_dir::PoolDir;
use server::session::Session;

/// Maximum length of a line that is read as a password.
const LINE_BYTES_MAX: u64 = 4096;
/// The byte of Ctrl-C.
const INTERRUPT: u8 = 3;

/// Runs `shale passwd`.
pub fn passwd(args: PasswdArgs, output: &Output) -> Outcome {
    let PasswdArgs { pool, user, role, remove, list: _, access } = args;
    let Some(user) = user else { return users(&pool, &access, output) };
    if remove {
        let request = Request::RemoveUser { name: user.clone() };
        Session::with(&pool, &access, |session| Ok(session.done(request)?))?;
        output.done(&json!({ "user": user }), || format!("user {user} removed\n"));
        return Ok(());
    }
    // Before the question: the user may have named the wrong pool.
    PoolDir::new(&pool).ready_config()?;
    // Only the role of an existing user.
    let is_known = role.is_some() && listed(&pool, &access)?.iter().any(|known| known.name == user);
    let password = if is_known { None } else { Some(ask_password(&user, output)?) };
    let what = if is_known { "role" } else { "password" };
    let request = Request::SetPassword { name: user.clone(), password, role: role.map(Into::into) };
    Session::with(&pool, &access, |session| Ok(session.done(request)?))?;
    output.done(&json!({ "user": user }), || format!("{what} of user {user} set\n"));
    Ok(())
}

fn listed(pool: &Path, access: &Access) -> Outcome<Vec<UserLine>> {
    Session::with(pool, access, |session| match session.call(Request::Users)? {
        Reply::Users { users } => Ok(users),
        other => Err(other.unexpected().into()),
    })
}

fn users(pool: &Path, access: &Access, output: &Output) -> Outcome {
    let users = listed(pool, access)?;
    output.result(&users, || {
        if users.is_empty() {
            return "there are no users".to_owned();
        }
        let mut rows = vec![["USER", "ROLE", "PASSWORD SET"].map(str::to_owned).to_vec()];
        rows.extend(
            users.iter().map(|user| {
                vec![user.name.clone(), user.role.name().to_owned(), show_moment(user.password_set_unix_s)]
            }),
        );
        table(&rows)
    });
    Ok(())
}

/// A terminal without echo, until dropped.
struct Quiet(Termios);

impl Quiet {
    fn begin() -> std::io::Result<Self> {
        let usual = tcgetattr(stdin())?;
        let mut quiet = usual.clone();
        // Ctrl-C ends the line instead of the process, which would leave the terminal without echo.
        quiet.local_modes.remove(LocalModes::ECHO | LocalModes::ISIG);
        quiet.special_codes[SpecialCodeIndex::VEOL] = INTERRUPT;
        tcsetattr(stdin(), OptionalActions::Flush, &quiet)?;
        Ok(Self(usual))
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // A closed terminal shows nothing anyway.
        let _ = tcsetattr(stdin(), OptionalActions::Flush, &self.0);
    }
}

fn read_line() -> Outcome<String> {
    use std::io::Read;
    let mut line = Vec::new();
    let failed = |error| Error::from_io("cannot read the password", error);
    stdin().lock().take(LINE_BYTES_MAX).read_until(b'\n', &mut line).map_err(failed)?;
    if line.contains(&INTERRUPT) {
        return Err(Failure::Interrupted("interrupted".to_owned()));
    }
    while line.last().is_some_and(|last| matches!(last, b'\n' | b'\r')) {
        line.pop();
    }
    let text = "the password is not UTF-8";
    Ok(String::from_utf8(line).map_err(|_| Error::new(ErrorKind::Invalid, text))?)
}

fn ask_password(user: &str, output: &Output) -> Outcome<String> {
    if !stdin().is_terminal() {
        return read_line();
    }
    let quiet = Quiet::begin().map_err(|error| Error::from_io("cannot set the terminal", error))?;
    let ask = |words: &str| {
        output.prompt(words);
        let line = read_line();
        output.prompt("\n");
        line
    };
    let first = ask(&format!("new password of {user}: "))?;
    let second = ask("again: ")?;
    drop(quiet);
    if first == second {
        return Ok(first);
    }
    Err(Error::new(ErrorKind::Invalid, "the two passwords differ: nothing was changed").into())
}

/// Runs `shale token`.
pub fn token(args: TokenArgs, output: &Output) -> Outcome {
    match args.command {
        TokenCommand::Create(args) => create(args, output),
        TokenCommand::List(args) => list(&args, output),
        TokenCommand::Revoke(args) => revoke(&args, output),
    }
}

fn create(args: TokenCreateArgs, output: &Output) -> Outcome {
    let expires_unix_s = args.expires.map(|age| host::unix_s().saturating_add(age.as_secs()));
    let request = Request::CreateToken { name: args.name, role: args.role.into(), expires_unix_s };
    let made = Session::with(&args.pool, &args.access, |session| match session.call(request)? {
        Reply::Token(token) => Ok(token),
        other => Err(other.unexpected().into()),
    })?;
    output.note("store this token: it is not shown again");
    output.result(&made, || format!("{}\n", made.token));
    Ok(())
}

fn list(args: &TokenListArgs, output: &Output) -> Outcome {
    let tokens = Session::with(&args.pool, &args.access, |session| match session.call(Request::Tokens)? {
        Reply::Tokens { tokens } => Ok(tokens),
        other => Err(other.unexpected().into()),
    })?;
    output.result(&tokens, || {
        if tokens.is_empty() {
            return "there are no tokens\n".to_owned();
        }
        let mut rows = vec![["TOKEN", "ROLE", "CREATED", "EXPIRES", "LAST USED"].map(str::to_owned).to_vec()];
        let or_never = |moment: Option<u64>| moment.map_or_else(|| "never".to_owned(), show_moment);
        rows.extend(tokens.iter().map(|token| {
            let (name, role) = (token.name.clone(), token.role.name().to_owned());
            let (expires, used) = (or_never(token.expires_unix_s), or_never(token.last_used_unix_s));
            vec![name, role, show_moment(token.created_unix_s), expires, used]
        }));
        table(&rows)
    });
    Ok(())
}

fn revoke(args: &TokenRevokeArgs, output: &Output) -> Outcome {
    let request = Request::RevokeToken { name: args.name.clone() };
    Session::with(&args.pool, &args.access, |session| Ok(session.done(request)?))?;
    output.done(&json!({ "token": args.name }), || format!("token {} revoked\n", args.name));
    Ok(())
}

/// Shows the audit log.
pub fn history(args: &HistoryArgs, output: &Output) -> Outcome {
    PoolDir::new(&args.pool).ready_config()?;
    let lines = AuditLog::read(&args.pool, args.count, |_| true)?;
    output.result(&lines, || {
        if lines.is_empty() {
            return "nothing was changed yet\n".to_owned();
        }
        let mut rows = vec![["TIME", "WHO", "FROM", "OUTCOME", "WHAT"].map(str::to_owned).to_vec()];
        for line in &lines {
            let what = if line.about.is_empty() { &line.operation } else { &line.about };
            let more =
                if line.refused_before > 0 { format!(" (and {} more)", line.refused_before) } else { String::new() };
            let why = line.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
            let outcome = line.outcome.name().to_owned();
            rows.push(vec![
                show_second(line.unix_s),
                line.who.clone(),
                line.from.clone(),
                outcome,
                format!("{what}{why}{more}"),
            ]);
        }
        table(&rows)
    });
    Ok(())
}
