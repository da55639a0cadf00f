//! Users, tokens and sessions of the HTTP front end.
//!
//! Owns `access.json` in the pool's directory, and in memory the sessions, the log-in link, the
//! counts of failed attempts, and the addresses from which users have logged in. Without threads and without a clock: each call receives the time. Any
//! thread may call it; a log-in takes some 30 ms of one CPU, and two run at a time.
//!
//! Secrets are never stored in the clear: a password becomes an argon2id hash, tokens, session ids
//! and the key of the log-in link become SHA-256 hashes (they have 256 random bits, so a slow hash
//! adds nothing). Sessions end with the server, and with a change of their user's password or role.

mod attempts;
mod file;
mod secret;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use operations::{NewToken, Role, TokenLine, UserLine, Who};
use parking_lot::Mutex;
use surface::{Error, ErrorKind, Result};

use self::attempts::Attempts;
use self::file::{Contents, StoredToken, StoredUser};
use self::secret::{Digest, Hashing, Password};

/// Maximum lifetime of a session.
const SESSION_SECONDS: u64 = 12 * 3600;
/// A session that is not used for this long ends.
const SESSION_IDLE_SECONDS: u64 = 3600;
/// Maximum number of sessions: a new one displaces the one that was idle longest.
const SESSIONS_MAX: usize = 1024;
/// Lifetime of the log-in link.
const LINK_SECONDS: u64 = 15 * 60;
/// Minimum interval between writes of a token's last use.
const LAST_USE_EVERY_SECONDS: u64 = 60;
/// Maximum number of users, and of tokens: each request scans them.
const ENTRIES_MAX: usize = 1000;
/// Minimum length of a password.
const PASSWORD_BYTES_MIN: usize = 8;
/// Maximum length of a password: argon2 reads all of it.
const PASSWORD_BYTES_MAX: usize = 1024;
/// Prefix of tokens, which lets secret scanners find them.
const TOKEN_PREFIX: &str = "shale_";

/// The time of a call.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// Wall clock, for times in the file.
    pub unix_s: u64,
    /// Seconds of a monotonic clock, for sessions and attempts.
    pub monotonic_s: u64,
}

/// Credentials of a client.
#[derive(Debug, Clone, Copy)]
pub enum Proof<'a> {
    /// The id of a session.
    Session(&'a str),
    /// A token.
    Token(&'a str),
}

/// Identity and role of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Identity.
    pub who: Who,
    /// Role.
    pub role: Role,
}

/// A session that has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSession {
    /// Its id, for the cookie; not stored anywhere.
    pub id: String,
    /// Its owner.
    pub grant: Grant,
    /// Its maximum lifetime.
    pub seconds: u64,
}

/// Reason to refuse a log-in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The credentials are wrong, or have expired. No more is revealed.
    Wrong,
    /// Too many attempts failed: the next one is answered after so many seconds.
    TooMany(u64),
}

struct SessionEntry {
    user: String,
    role: Role,
    began_s: u64,
    used_s: u64,
}

struct State {
    contents: Contents,
    /// By the hash of the id.
    sessions: BTreeMap<Digest, SessionEntry>,
    /// Hash of the log-in link's key, and its expiry.
    link: Option<(Digest, u64)>,
    attempts: Attempts,
}

/// See the module's text.
pub struct Access {
    path: PathBuf,
    state: Mutex<State>,
    /// Limits concurrent hashing.
    hashing: Hashing,
    /// Error of the file, which makes every log-in fail and prevents writes.
    unusable: Option<String>,
}

/// The user of the log-in link.
const LINK_USER: &str = "admin";

impl Access {
    /// Reads the file in a pool's directory. A damaged file disables all log-ins, but does not keep
    /// the pool from being opened.
    pub fn open(pool: &Path) -> Self {
        let path = pool.join("access.json");
        let (contents, unusable) = match Contents::read(&path) {
            Ok(contents) => (contents, None),
            Err(error) => (Contents::default(), Some(error.to_string())),
        };
        let state = State { contents, sessions: BTreeMap::new(), link: None, attempts: Attempts::default() };
        Self { path, state: Mutex::new(state), hashing: Hashing::default(), unusable }
    }

    /// Returns the error of the file, which disables all log-ins.
    pub fn unusable(&self) -> Option<&str> {
        self.unusable.as_deref()
    }

    /// Returns whether there is a user or a token.
    pub fn has_anybody(&self) -> bool {
        let state = self.state.lock();
        !state.contents.users.is_empty() || !state.contents.tokens.is_empty()
    }

    /// Returns the users by name.
    pub fn users(&self) -> Vec<UserLine> {
        self.state.lock().contents.users.iter().map(StoredUser::line).collect()
    }

    /// Returns the tokens by name.
    pub fn tokens(&self) -> Vec<TokenLine> {
        self.state.lock().contents.tokens.iter().map(StoredToken::line).collect()
    }

    /// Changes the file atomically.
    fn change<T>(&self, change: impl FnOnce(&mut Contents) -> Result<T>) -> Result<T> {
        if let Some(why) = &self.unusable {
            let text = format!("{why}: restore the file, or move it away and set passwords again");
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        let mut state = self.state.lock();
        let mut next = state.contents.clone();
        let value = change(&mut next)?;
        next.write(&self.path)?;
        state.contents = next;
        let State { contents, sessions, .. } = &mut *state;
        sessions.retain(|_, session| contents.user(&session.user).is_none_or(|user| user.role == session.role));
        Ok(value)
    }

    /// Sets a user's password, and makes the user if missing; without a `role` it stays, or is
    /// `Admin` for a new user. Ends the user's sessions.
    ///
    /// # Errors
    /// `Invalid` for an invalid name or password, and those of the file.
    pub fn set_password(&self, user: &str, password: Option<&str>, role: Option<Role>, now: Moment) -> Result<()> {
        check_name(user, "a user")?;
        let Some(password) = password else { return self.set_role(user, role) };
        if !(PASSWORD_BYTES_MIN..=PASSWORD_BYTES_MAX).contains(&password.len()) {
            let text = format!("a password has {PASSWORD_BYTES_MIN} to {PASSWORD_BYTES_MAX} bytes");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let hashed = self.hashing.hash(password)?;
        self.change(|contents| {
            let before = contents.user(user).map(|user| user.role);
            if before.is_none() && contents.users.len() >= ENTRIES_MAX {
                return Err(Error::new(ErrorKind::Invalid, format!("there are {ENTRIES_MAX} users already")));
            }
            let role = role.or(before).unwrap_or(Role::Admin);
            contents.put_user(StoredUser {
                name: user.to_owned(),
                role,
                password: hashed,
                password_set_unix_s: now.unix_s,
            });
            Ok(())
        })?;
        self.end_sessions_of(user);
        Ok(())
    }

    fn set_role(&self, user: &str, role: Option<Role>) -> Result<()> {
        let Some(role) = role else {
            return Err(Error::new(ErrorKind::Invalid, "specify a password or a role: nothing would change"));
        };
        self.change(|contents| {
            let Some(known) = contents.user(user) else {
                let text = format!("there is no user '{user}': a new user needs a password");
                return Err(Error::new(ErrorKind::NotFound, text));
            };
            let changed = StoredUser { role, ..known.clone() };
            contents.put_user(changed);
            Ok(())
        })?;
        self.end_sessions_of(user);
        Ok(())
    }

    /// Removes a user, and ends their sessions.
    ///
    /// # Errors
    /// `NotFound`, and those of the file.
    pub fn remove_user(&self, user: &str) -> Result<()> {
        self.change(|contents| {
            let before = contents.users.len();
            contents.users.retain(|known| known.name != user);
            let found = contents.users.len() < before;
            found.then_some(()).ok_or_else(|| Error::new(ErrorKind::NotFound, format!("there is no user '{user}'")))
        })?;
        self.end_sessions_of(user);
        Ok(())
    }

    fn end_sessions_of(&self, user: &str) {
        self.state.lock().sessions.retain(|_, session| session.user != user);
    }

    /// Makes a token.
    ///
    /// # Errors
    /// `Invalid` for an invalid name, `Exists` for one that is in use, and those of the file.
    pub fn create_token(&self, name: &str, role: Role, expires_unix_s: Option<u64>, now: Moment) -> Result<NewToken> {
        check_name(name, "a token")?;
        if expires_unix_s.is_some_and(|at| at <= now.unix_s) {
            let text = format!("the token '{name}' would have expired already: choose a later time");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let text = format!("{TOKEN_PREFIX}{}", secret::random_text()?);
        let digest = Digest::of(&text);
        let line = self.change(|contents| {
            if contents.tokens.iter().any(|token| token.name == name) {
                let text = format!("token '{name}' exists: choose another name, or revoke it first");
                return Err(Error::new(ErrorKind::Exists, text));
            }
            if contents.tokens.len() >= ENTRIES_MAX {
                let text = format!("there are {ENTRIES_MAX} tokens already: revoke some");
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            let token = StoredToken {
                name: name.to_owned(),
                role,
                digest,
                created_unix_s: now.unix_s,
                expires_unix_s,
                last_used_unix_s: None,
            };
            let line = token.line();
            contents.tokens.push(token);
            contents.tokens.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(line)
        })?;
        Ok(NewToken { line, token: text })
    }

    /// Revokes a token: the next request with it is refused.
    ///
    /// # Errors
    /// `NotFound`, and those of the file.
    pub fn revoke_token(&self, name: &str) -> Result<()> {
        self.change(|contents| {
            let before = contents.tokens.len();
            contents.tokens.retain(|token| token.name != name);
            let found = contents.tokens.len() < before;
            found.then_some(()).ok_or_else(|| Error::new(ErrorKind::NotFound, format!("there is no token '{name}'")))
        })
    }

    /// Makes the key of a log-in link, which is valid once; an earlier one becomes invalid.
    ///
    /// # Errors
    /// When the system has no random bytes.
    pub fn new_link(&self, now: Moment) -> Result<String> {
        let key = secret::random_text()?;
        self.state.lock().link = Some((Digest::of(&key), now.monotonic_s + LINK_SECONDS));
        Ok(key)
    }

    /// Begins a session with a password. `from`: the client's address.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn log_in(
        &self,
        user: &str,
        password: &str,
        from: &str,
        now: Moment,
    ) -> std::result::Result<NewSession, Refusal> {
        let known = self.attempt(from, Some(user), now, |state| {
            state.contents.user(user).map(|user| (user.role, user.password.clone()))
        })?;
        // An unknown user takes as long as a known one.
        let hash = known.as_ref().map_or_else(Password::of_nobody, |(_, hash)| hash.clone());
        let is_right = password.len() <= PASSWORD_BYTES_MAX && self.hashing.matches(&hash, password);
        let (role, hash) = known.filter(|_| is_right).ok_or(Refusal::Wrong)?;
        let mut state = self.state.lock();
        // It may have been changed while the hash was computed.
        if state.contents.user(user).is_none_or(|user| user.password != hash) {
            return Err(Refusal::Wrong);
        }
        state.attempts.succeeded(from, Some(user), now.monotonic_s);
        begin_session(&mut state, user, role, now)
    }

    /// Begins a session with the key of the log-in link.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn log_in_by_link(&self, key: &str, from: &str, now: Moment) -> std::result::Result<NewSession, Refusal> {
        let digest = Digest::of(key);
        let is_right = self.attempt(from, None, now, |state| {
            let is_right = state.link.as_ref().is_some_and(|(link, until)| *link == digest && now.monotonic_s < *until);
            if is_right {
                state.link = None;
            }
            is_right
        })?;
        if !is_right {
            return Err(Refusal::Wrong);
        }
        let mut state = self.state.lock();
        state.attempts.succeeded(from, None, now.monotonic_s);
        begin_session(&mut state, LINK_USER, Role::Admin, now)
    }

    /// Counts an attempt before it is checked, so that concurrent attempts are counted too.
    fn attempt<T>(
        &self,
        from: &str,
        user: Option<&str>,
        now: Moment,
        look: impl FnOnce(&mut State) -> T,
    ) -> std::result::Result<T, Refusal> {
        let mut state = self.state.lock();
        if self.unusable.is_some() {
            return Err(Refusal::Wrong);
        }
        state.attempts.begin(from, user, now.monotonic_s).map_err(Refusal::TooMany)?;
        Ok(look(&mut state))
    }

    /// Ends a session.
    pub fn log_out(&self, session: &str) {
        self.state.lock().sessions.remove(&Digest::of(session));
    }

    /// Returns the owner of the credentials; `None`: they are wrong, or have expired.
    pub fn check(&self, proof: Proof<'_>, now: Moment) -> Option<Grant> {
        let mut state = self.state.lock();
        match proof {
            Proof::Session(id) => check_session(&mut state, &Digest::of(id), now),
            Proof::Token(text) => {
                let (grant, is_news) = check_token(&mut state, &Digest::of(text), now)?;
                // If it cannot be written, the next use tries again after a minute.
                if is_news && let Err(error) = state.contents.write(&self.path) {
                    log::warn!("the last use of a token cannot be kept: {error}");
                }
                Some(grant)
            }
        }
    }
}

fn begin_session(state: &mut State, user: &str, role: Role, now: Moment) -> std::result::Result<NewSession, Refusal> {
    let id = secret::random_text().map_err(|_| Refusal::TooMany(1))?;
    state.sessions.retain(|_, session| session.is_live(now));
    if state.sessions.len() >= SESSIONS_MAX
        && let Some(idle) = state.sessions.iter().min_by_key(|(_, session)| session.used_s).map(|(id, _)| *id)
    {
        state.sessions.remove(&idle);
    }
    let entry = SessionEntry { user: user.to_owned(), role, began_s: now.monotonic_s, used_s: now.monotonic_s };
    let grant = entry.grant();
    state.sessions.insert(Digest::of(&id), entry);
    Ok(NewSession { id, grant, seconds: SESSION_SECONDS })
}

fn check_session(state: &mut State, id: &Digest, now: Moment) -> Option<Grant> {
    let session = state.sessions.get_mut(id)?;
    if session.is_live(now) {
        session.used_s = now.monotonic_s;
        return Some(session.grant());
    }
    state.sessions.remove(id);
    None
}

/// Returns the grant of a token, and whether the time of its last use must be written.
fn check_token(state: &mut State, digest: &Digest, now: Moment) -> Option<(Grant, bool)> {
    let token = state.contents.tokens.iter_mut().find(|token| token.digest == *digest)?;
    if token.expires_unix_s.is_some_and(|at| now.unix_s >= at) {
        return None;
    }
    let is_news = token.last_used_unix_s.is_none_or(|last| now.unix_s.abs_diff(last) >= LAST_USE_EVERY_SECONDS);
    if is_news {
        token.last_used_unix_s = Some(now.unix_s);
    }
    Some((Grant { who: Who::Token(token.name.clone()), role: token.role }, is_news))
}

impl SessionEntry {
    fn is_live(&self, now: Moment) -> bool {
        now.monotonic_s.saturating_sub(self.began_s) < SESSION_SECONDS
            && now.monotonic_s.saturating_sub(self.used_s) < SESSION_IDLE_SECONDS
    }

    fn grant(&self) -> Grant {
        Grant { who: Who::User(self.user.clone()), role: self.role }
    }
}

/// Refuses a name that would not fit a line of a log or a table.
fn check_name(name: &str, whose: &str) -> Result<()> {
    operations::names::short_name(name)
        .map(drop)
        .map_err(|why| Error::new(ErrorKind::Invalid, format!("'{name}' cannot be the name of {whose}: {why}")))
}

#[cfg(test)]
mod tests;
