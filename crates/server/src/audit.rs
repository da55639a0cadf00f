//! The audit log: each change with its user, the client's address, and the outcome.
//!
//! Owns `audit/` in the pool's directory: files of JSON lines, numbered in the order of creation,
//! the oldest removed beyond [`FILES_MAX`]. Any thread may append; a line is one write(2) to a file
//! opened for appending, so a crash tears at most the last line, which readers skip. Lines are not
//! synced: the changes they record are durable already, and the log must not slow a request down. A
//! line that cannot be written fails no request; the server's log reports the failure once.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use operations::{Audit, AuditLine, AuditOutcome, AuditRecord};
use parking_lot::Mutex;
use surface::{Error, ErrorKind, Result};

/// Size at which the next file begins.
const FILE_BYTES: u64 = 4 << 20;
/// Number of files that are kept.
const FILES_MAX: usize = 8;
/// Maximum length of a line: longer ones lose their list of changes.
const LINE_BYTES_MAX: usize = 64 << 10;

#[derive(Default)]
struct State {
    file: Option<File>,
    bytes: u64,
    /// Time of the last line about a refused request.
    refused_unix_s: u64,
    /// Refused requests since then.
    refused_unsaid: u64,
    /// Writing fails, and this was logged.
    is_failing: bool,
}

/// See the module's text.
pub struct AuditLog {
    dir: PathBuf,
    /// Changes that succeeded since the pool was opened.
    changes: AtomicU64,
    state: Mutex<State>,
}

/// Returns the directory of a pool's log.
fn dir_of(pool: &Path) -> PathBuf {
    pool.join("audit")
}

/// Returns the files by number.
fn files(dir: &Path) -> std::io::Result<Vec<(u64, PathBuf)>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let number = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".jsonl")?.parse().ok());
        found.extend(number.map(|number| (number, path)));
    }
    found.sort();
    Ok(found)
}

impl AuditLog {
    /// Log of a pool's directory. Nothing is made before the first line.
    pub fn new(pool: &Path) -> Self {
        Self { dir: dir_of(pool), changes: AtomicU64::new(0), state: Mutex::default() }
    }

    /// Counts a change of the server's own, which is not in the log.
    pub(crate) fn count_change(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of changes that succeeded since the pool was opened.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Appends a line.
    pub fn append(&self, mut line: AuditLine) {
        let mut state = self.state.lock();
        if line.outcome == AuditOutcome::Refused {
            if state.refused_unix_s == line.unix_s {
                state.refused_unsaid += 1;
                return;
            }
            state.refused_unix_s = line.unix_s;
            line.refused_before = std::mem::take(&mut state.refused_unsaid);
        }
        match self.write(&mut state, &line) {
            Ok(()) => state.is_failing = false,
            Err(error) => {
                state.file = None;
                if !std::mem::replace(&mut state.is_failing, true) {
                    log::warn!("the audit log in {} cannot be written: {error}", self.dir.display());
                }
            }
        }
    }

    fn write(&self, state: &mut State, line: &AuditLine) -> std::io::Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        if bytes.len() > LINE_BYTES_MAX {
            bytes = serde_json::to_vec(&AuditLine { about: "(too long)".to_owned(), error: None, ..line.clone() })?;
        }
        bytes.push(b'\n');
        if state.file.is_none() || state.bytes >= FILE_BYTES {
            let (file, length) = self.current(state.bytes >= FILE_BYTES)?;
            state.file = Some(file);
            state.bytes = length;
        }
        let Some(file) = &mut state.file else { return Ok(()) };
        file.write_all(&bytes)?;
        state.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Returns the file to append to, and its length.
    fn current(&self, is_full: bool) -> std::io::Result<(File, u64)> {
        match std::fs::DirBuilder::new().mode(0o700).create(&self.dir) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let known = files(&self.dir)?;
        let last = known.last();
        let has_room = last.is_some_and(|(_, path)| path.metadata().is_ok_and(|meta| meta.len() < FILE_BYTES));
        let number = match last {
            Some((number, _)) if has_room && !is_full => *number,
            Some((number, _)) => number + 1,
            None => 1,
        };
        let path = self.dir.join(format!("{number:08}.jsonl"));
        let mut file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path)?;
        let length = file.metadata()?.len();
        if length > 0 && !ends_a_line(&path, length)? {
            // Separates a torn line from those that follow.
            file.write_all(b"\n")?;
        }
        let beyond = files(&self.dir)?;
        for (_, old) in beyond.iter().take(beyond.len().saturating_sub(FILES_MAX)) {
            std::fs::remove_file(old)?;
        }
        Ok((file, length))
    }

    /// Returns the newest lines, oldest first: at most `count` of those that `is_meant`.
    ///
    /// # Errors
    /// When the files cannot be read.
    pub fn read(pool: &Path, count: usize, is_meant: impl Fn(&AuditLine) -> bool) -> Result<Vec<AuditLine>> {
        let dir = dir_of(pool);
        let failed = |error| Error::from_io(format!("cannot read the audit log in {}", dir.display()), error);
        let mut found = Vec::new();
        for (_, path) in files(&dir).map_err(failed)?.iter().rev() {
            let lines = read_file(path, &is_meant).map_err(failed)?;
            let missing = count.saturating_sub(found.len());
            let newest = lines.into_iter().rev().take(missing);
            found.extend(newest);
            if found.len() >= count {
                break;
            }
        }
        found.reverse();
        Ok(found)
    }
}

impl Audit for AuditLog {
    fn record(&self, record: &AuditRecord<'_>) {
        if record.error.is_none() {
            self.changes.fetch_add(1, Ordering::Relaxed);
        }
        let outcome = match record.error.map(Error::kind) {
            None => AuditOutcome::Done,
            Some(ErrorKind::Denied) => AuditOutcome::Refused,
            Some(_) => AuditOutcome::Failed,
        };
        self.append(AuditLine {
            unix_s: host::unix_s(),
            who: record.caller.who.to_string(),
            from: record.caller.from.clone(),
            operation: record.about.op(),
            about: record.text.to_owned(),
            outcome,
            error: record.error.map(ToString::to_string),
            refused_before: 0,
        });
    }
}

fn ends_a_line(path: &Path, length: u64) -> std::io::Result<bool> {
    let mut last = [0];
    std::os::unix::fs::FileExt::read_exact_at(&File::open(path)?, &mut last, length - 1)?;
    Ok(last == *b"\n")
}

fn read_file(path: &Path, is_meant: impl Fn(&AuditLine) -> bool) -> std::io::Result<Vec<AuditLine>> {
    let mut lines = Vec::new();
    let file = match File::open(path) {
        Ok(file) => file,
        // The server has just removed it.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(lines),
        Err(error) => return Err(error),
    };
    for line in BufReader::new(file).split(b'\n') {
        // A torn line is skipped.
        lines.extend(serde_json::from_slice(&line?).ok().filter(|line| is_meant(line)));
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use testkit::TempDir;

    use super::*;

    fn line(unix_s: u64, about: &str, outcome: AuditOutcome) -> AuditLine {
        AuditLine {
            unix_s,
            who: "user anna".to_owned(),
            from: "10.0.0.1".to_owned(),
            operation: "set".to_owned(),
            about: about.to_owned(),
            outcome,
            error: None,
            refused_before: 0,
        }
    }

    fn all(dir: &TempDir) -> Vec<AuditLine> {
        AuditLog::read(dir.path(), usize::MAX, |_| true).unwrap()
    }

    #[test]
    fn lines_outlive_a_restart_and_a_newline_in_a_name_makes_no_second_line() {
        let dir = TempDir::new("audit-lines");
        assert_eq!(all(&dir), []);
        let odd = line(1, "vm\n{\"who\":\"root\"}", AuditOutcome::Done);
        AuditLog::new(dir.path()).append(odd.clone());
        AuditLog::new(dir.path()).append(line(2, "b", AuditOutcome::Failed));
        assert_eq!(all(&dir), [odd, line(2, "b", AuditOutcome::Failed)]);
        assert_eq!(AuditLog::read(dir.path(), 1, |_| true).unwrap(), [line(2, "b", AuditOutcome::Failed)]);
        assert_eq!(AuditLog::read(dir.path(), 9, |line| line.unix_s < 2).unwrap().len(), 1);
        let file = dir.path().join("audit/00000001.jsonl");
        assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn refused_requests_have_one_line_a_second_and_the_rest_is_counted() {
        let dir = TempDir::new("audit-refused");
        let audit = AuditLog::new(dir.path());
        for unix_s in [5, 5, 5, 5, 6] {
            audit.append(line(unix_s, "x", AuditOutcome::Refused));
        }
        audit.append(line(6, "y", AuditOutcome::Done));
        let counts: Vec<_> = all(&dir).iter().map(|line| (line.unix_s, line.refused_before)).collect();
        assert_eq!(counts, [(5, 0), (6, 3), (6, 0)]);
    }

    #[test]
    fn files_are_bounded_in_size_and_number() {
        let dir = TempDir::new("audit-bound");
        let audit = AuditLog::new(dir.path());
        let long = "x".repeat(60 << 10);
        for unix_s in 0..800 {
            audit.append(line(unix_s, &long, AuditOutcome::Done));
        }
        let kept = files(&dir.path().join("audit")).unwrap();
        assert_eq!(kept.len(), FILES_MAX);
        for (_, path) in &kept {
            assert!(path.metadata().unwrap().len() < FILE_BYTES + LINE_BYTES_MAX as u64 + 1024);
        }
        assert_eq!(all(&dir).last().map(|line| line.unix_s), Some(799));
    }

    #[test]
    fn a_torn_line_is_skipped_and_the_next_one_is_whole() {
        let dir = TempDir::new("audit-torn");
        AuditLog::new(dir.path()).append(line(1, "a", AuditOutcome::Done));
        let path = dir.path().join("audit/00000001.jsonl");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend(b"{\"unix_s\":2,\"who\":\"us");
        std::fs::write(&path, bytes).unwrap();
        AuditLog::new(dir.path()).append(line(3, "c", AuditOutcome::Done));
        assert_eq!(all(&dir).iter().map(|line| line.unix_s).collect::<Vec<_>>(), [1, 3]);
    }
}
