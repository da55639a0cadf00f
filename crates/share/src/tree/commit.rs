//! Makes changes durable: by periodic commits of the database, and by the log on `fsync`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use surface::ErrorKind;

use super::{Namespace, Tree};
use crate::failure::{Failure, Result};
use crate::scratch::Scratch;
use crate::store::{State, ToLog};

/// Commits after which a tree that keeps changing is settled as far as possible.
const SETTLING_COMMITS: u32 = 4;

/// Approximate cost of a new name, with its inode and its share of their pages.
const NAME_BYTES: usize = 4 << 10;

/// Why a commit failed.
enum Failed {
    /// Its changes wait for the next one.
    Waits(Failure),
    /// Nothing becomes durable until the share is reopened.
    ForGood(Failure),
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Self {
        if failure.errno() == libc::ENOSPC { Self::Waits(failure) } else { Self::ForGood(failure) }
    }
}

impl From<surface::Error> for Failed {
    fn from(error: surface::Error) -> Self {
        Failure::from(error).into()
    }
}

/// A commit failed because of a page that it needs: its changes wait, and no more are accepted
/// before a commit.
fn stuck(state: &mut State, failure: Failure) -> Failed {
    if failure.errno() != libc::ENOSPC && !std::mem::replace(&mut state.is_stuck, true) {
        log::error!(
            "a share accepts no changes: a page of its names that they need is unreadable; all other names can be read, \
             and earlier changes are in memory; to repair it, run shale check --repair while the share is not served"
        );
    }
    Failed::Waits(failure)
}

impl Tree {
    /// Writes all changes made before the call into the database, durably. One commit serves all
    /// callers that wait for it; reads and changes continue.
    ///
    /// # Errors
    /// `ENOSPC`: operation continues, and a later commit makes the changes durable. `EIO`: no
    /// change is accepted until the share is reopened, or a commit can read the page for which this
    /// one failed. Nothing durable is lost.
    pub fn commit(&self) -> Result<()> {
        let wanted = self.state.read().changes;
        self.commit_up_to(wanted, false)
    }

    /// Commits until nothing exists in memory only: neither changes, nor completed discards. For a
    /// journal, which records everything from then on.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn settle(&self) -> Result<()> {
        if crate::canary!("cut-done-again") {
            return self.commit();
        }
        for _ in 0..SETTLING_COMMITS {
            if self.state.read().is_settled() {
                break;
            }
            self.commit_up_to(u64::MAX, false)?;
        }
        Ok(())
    }

    /// Commits, and records that the session ended cleanly. Nothing may be changed afterwards.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn close(&self) -> Result<()> {
        self.commit_up_to(u64::MAX, true)?;
        Ok(self.log.lock().log.clear()?)
    }

    pub(super) fn commit_up_to(&self, wanted: u64, is_last: bool) -> Result<()> {
        self.commit_locked(&mut self.committing.lock(), wanted, is_last)
    }

    pub(super) fn commit_locked(&self, namespace: &mut Namespace, wanted: u64, is_last: bool) -> Result<()> {
        self.check_health()?;
        if self.committed.load(Ordering::Acquire) >= wanted && !self.state.read().is_stuck {
            return Ok(());
        }
        match self.try_commit(namespace, is_last) {
            Ok(()) => Ok(()),
            Err(Failed::Waits(failure)) => Err(failure),
            Err(Failed::ForGood(failure)) => {
                self.has_failed.store(true, Ordering::Release);
                Err(failure)
            }
        }
    }

    /// A lack of space can be retried; all other failures are final.
    fn note_failure(&self, failure: Failure) {
        if failure.errno() != libc::ENOSPC {
            self.has_failed.store(true, Ordering::Release);
        }
    }

    /// Reserves in the space the numbers that may be handed out after the next commit.
    fn reserve_numbers(&self) -> surface::Result<()> {
        let Some(end) = self.state.read().numbers_to_reserve() else { return Ok(()) };
        self.space.reserve_numbers(end)?;
        self.state.write().numbers_are_reserved(end);
        Ok(())
    }

    fn try_commit(&self, namespace: &mut Namespace, is_last: bool) -> std::result::Result<(), Failed> {
        // A database with a failed read has stopped.
        if namespace.is_read_only || namespace.facts.was_damaged() {
            let writable = Namespace::open(&self.space, self.options);
            let mut state = self.state.write();
            let replaced = writable.and_then(|writable| namespace.replace(writable, &mut state));
            replaced.map_err(|failure| stuck(&mut state, failure))?;
        }
        self.reserve_numbers()?;
        let bytes = self.state.read().commit_bytes();
        // Even without that much, it may succeed: the estimate is cautious.
        let has_room = self.space.set_aside(bytes).is_ok();
        let mut state = self.state.write();
        let frozen = state.freeze(is_last)?;
        // After a failed one, nothing changes in the meantime: see `State::unfreeze`.
        let waiting = state.is_behind.then_some(state);
        // A canary: data that the commit will free is removed before it is durable.
        if crate::canary!("discard-before-durable") {
            for &(data, from) in &frozen.trims {
                self.space.discard(data, from..u64::MAX)?;
            }
        }
        // 1. The data that sizes in this commit show, and the namespace: the database flushes all
        //    before its head shows it.
        let mut committed = frozen.commit(&namespace.database);
        // It may have been a reader that met a damaged page: this one has no readers.
        if committed.is_err() && namespace.facts.is_only_damaged() {
            let writable = Namespace::open(&self.space, self.options);
            committed = writable.and_then(|writable| {
                *namespace = writable;
                frozen.commit(&namespace.database)
            });
        }
        let _ = self.space.set_aside(0);
        let mut state = waiting.unwrap_or_else(|| self.state.write());
        match committed {
            Ok(()) => state.thaw(&namespace.database, namespace.facts.clone())?,
            Err(_) if namespace.facts.was_full() => {
                // It has stopped for readers, too. Reopening it for writers may need space again.
                let below = Arc::new(Scratch::over(self.space.clone()));
                let read_only = Namespace { is_read_only: true, ..Namespace::open(&(below as _), self.options)? };
                namespace.replace(read_only, &mut state)?;
                state.unfreeze(frozen);
                // The caller gets the error, and the user sees it in the pool's health: logging
                // each attempt would fill the log.
                log::debug!(
                    "the namespace of a share finds no space, and is not durable (space was reserved: {has_room})"
                );
                return Err(Failure::new(libc::ENOSPC).into());
            }
            Err(failure) if namespace.facts.is_only_damaged() => {
                state.unfreeze(frozen);
                return Err(stuck(&mut state, failure));
            }
            Err(failure) => return Err(failure.into()),
        }
        drop(state);
        self.committed.store(frozen.changes, Ordering::Release);
        // 2. Discard data that no name refers to any more.
        let mut left = Vec::new();
        for &(data, from) in &frozen.trims {
            match self.space.discard(data, from..u64::MAX) {
                Ok(()) => {}
                // Once more after the next commit.
                Err(error) if error.kind() == ErrorKind::Full => left.push((data, from)),
                Err(error) => return Err(error.into()),
            }
        }
        // The journal and the next commit record that the data is gone, and no program looks for it
        // afterwards: so all of it must be gone first.
        if !frozen.trims.is_empty() && !crate::canary!("discards-not-finished") {
            match self.space.finish_discards() {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Full => left.clone_from(&frozen.trims),
                Err(error) => return Err(error.into()),
            }
        }
        // The next commit drops the record, when the discards are durable. Nothing requires that
        // commit.
        if !frozen.trims.is_empty() && !is_last {
            let mut state = self.state.write();
            let nothing_else = state.changes == frozen.changes;
            state.must_order_first = true;
            let is_done = |trim: &&(u64, u64)| !left.contains(trim);
            frozen.trims.iter().filter(is_done).for_each(|&(data, from)| state.trim_done_from(data, from));
            // An interrupted cut is completed when its file grows, or by the next opening: data
            // written before the next commit must stay.
            left.retain(|(_, from)| *from == 0);
            state.trim_again(left);
            if let Some(record) = state.end_operation(0, 0) {
                self.keep(state.commit_number(), &record);
            }
            if nothing_else {
                self.committed.store(state.changes, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Fails if names and their data, `bytes` of it, find no space where file data would not find
    /// any. Removed files free their space first.
    pub(super) fn admit(&self, bytes: usize) -> Result<()> {
        self.or_after_giving_back(|| self.space.admit((NAME_BYTES + bytes) as u64))
    }

    /// Executes an operation that needs space; if there is none, retries it once after removed
    /// files have freed theirs.
    pub(super) fn or_after_giving_back<T>(&self, mut what: impl FnMut() -> surface::Result<T>) -> Result<T> {
        match what() {
            Err(error) if error.kind() == ErrorKind::Full && self.state.read().commit_frees() => {
                self.commit()?;
                Ok(what()?)
            }
            done => Ok(done?),
        }
    }

    pub(super) fn check_health(&self) -> Result<()> {
        if self.has_failed.load(Ordering::Acquire) { Err(Failure::new(libc::EIO)) } else { Ok(()) }
    }

    /// `fsync` of a file or directory: makes all changes that were made before the call durable.
    /// One turn serves all that wait.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn sync(&self) -> Result<()> {
        let ticket = self.syncs.fetch_add(1, Ordering::AcqRel) + 1;
        let mut turn = self.log.lock();
        self.check_health()?;
        if turn.served >= ticket {
            return Ok(());
        }
        let all = self.syncs.load(Ordering::Acquire);
        let (wanted, to_log) = {
            let mut state = self.state.write();
            (state.changes, state.take_for_log())
        };
        let is_logged = match to_log {
            // If it fails, nothing is lost.
            ToLog::Nothing => {
                self.space.flush().inspect_err(|_| self.state.write().must_order_first = true)?;
                true
            }
            ToLog::TooMuch => false,
            ToLog::Record { commit, body, must_order_first } => {
                let logged = self.write_log(&mut turn.log, commit, &body, must_order_first);
                logged.inspect_err(|failure| {
                    self.note_failure(*failure);
                    self.state.write().log_failed();
                })?
            }
        };
        if !is_logged {
            let is_committed = self.committed.load(Ordering::Acquire) >= wanted;
            // No record contains the changes intended for the log. A commit that fails early,
            // because the database finds no space to be opened, does not remember them either.
            let committed = self.commit_up_to(wanted, false);
            committed.inspect_err(|_| self.state.write().log_failed())?;
            // A write that found too little space may have left data, but no change to commit.
            if is_committed && !crate::canary!("refused-write-unflushed") {
                self.space.flush()?;
            }
        }
        self.state.write().log_is_durable();
        turn.served = all;
        Ok(())
    }

    /// `fdatasync` of files: makes their data durable, with all that is needed to find it. A change
    /// of times alone needs no record: a loss of power may leave them older than the data.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn sync_data(&self, nodes: &[u64]) -> Result<()> {
        self.check_health()?;
        if self.needs_record(nodes) {
            return self.sync();
        }
        if crate::canary!("data-sync-without-flush") {
            return Ok(());
        }
        Ok(self.space.flush()?)
    }

    fn needs_record(&self, nodes: &[u64]) -> bool {
        let state = self.state.read();
        nodes.iter().any(|node| state.needs_record(*node))
    }

    /// Returns whether it fitted.
    fn write_log(&self, log: &mut crate::log::Log, commit: u64, body: &[u8], must_order_first: bool) -> Result<bool> {
        // A loss of power leaves no record without the data that it shows.
        if must_order_first && !crate::canary!("size-before-data") {
            self.space.order_writes()?;
        }
        if !log.append(commit, body)? {
            return Ok(false);
        }
        self.space.flush()?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use sim::SimSpace;

    use super::*;
    use crate::inode::Time;
    use crate::tree::{Caller, Options};

    const OPTIONS: Options = Options { now: || Time { seconds: 9, nanoseconds: 1 }, cache_bytes: 1 << 20 };

    fn tree_with_a_file(name: &[u8]) -> (Tree, u64) {
        let tree = Tree::create(SimSpace::new(), 7, OPTIONS).unwrap();
        let made = tree.make(Tree::ROOT, name, Caller { uid: 0, gid: 0 }, libc::S_IFREG | 0o644, 0, 0);
        (tree, made.unwrap().0)
    }

    /// Otherwise `fdatasync` would return before a record that another thread is writing.
    #[test]
    fn what_is_on_its_way_into_the_log_is_not_durable_yet() {
        let (tree, node) = tree_with_a_file(b"f");
        let mut state = tree.state.write();
        assert!(state.needs_record(node));
        assert!(matches!(state.take_for_log(), ToLog::Record { .. }));
        assert!(state.needs_record(node));
        state.log_is_durable();
        assert!(!state.needs_record(node));
    }

    #[test]
    fn what_the_log_did_not_take_waits_for_a_commit() {
        let (tree, node) = tree_with_a_file(b"f");
        let mut state = tree.state.write();
        assert!(matches!(state.take_for_log(), ToLog::Record { .. }));
        state.log_failed();
        assert!(state.needs_record(node));
        drop(state);
        tree.commit().unwrap();
        assert!(!tree.state.read().needs_record(node));
    }

    #[test]
    fn what_a_commit_is_writing_is_not_durable_yet() {
        let (tree, node) = tree_with_a_file(b"f");
        let mut state = tree.state.write();
        let frozen = state.freeze(false).unwrap();
        assert!(state.needs_record(node));
        state.unfreeze(frozen);
        assert!(state.needs_record(node));
    }
}
