//! Making changes durable: by a commit of the database from time to time, and by the log when `fsync` asks.

use std::sync::atomic::Ordering;

use super::Tree;
use crate::failure::{Failure, Result};
use crate::store::ToLog;

impl Tree {
    /// Writes all changes that were made before the call into the database, durably. One commit serves all that wait for it;
    /// reads and changes go on meanwhile.
    ///
    /// # Errors
    /// `ENOSPC`, `EIO`. After an error no change is taken until the share is opened again: what was durable before is.
    pub fn commit(&self) -> Result<()> {
        let wanted = self.state.read().changes;
        self.commit_up_to(wanted, false)
    }

    /// Commits, and says that the session ended in order. Nothing may be changed any more.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn close(&self) -> Result<()> {
        self.commit_up_to(u64::MAX, true)?;
        Ok(self.log.lock().log.clear()?)
    }

    /// Commits, and has `take` make a snapshot of the space before the database changes again.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn snapshot<T>(&self, take: impl FnOnce() -> T) -> Result<T> {
        let wanted = self.state.read().changes;
        let one = self.committing.lock();
        if !crate::canary!("overlay-not-in-snapshot") {
            self.commit_locked(wanted, false)?;
        }
        let taken = take();
        drop(one);
        Ok(taken)
    }

    pub(super) fn commit_up_to(&self, wanted: u64, is_last: bool) -> Result<()> {
        let _one = self.committing.lock();
        self.commit_locked(wanted, is_last)
    }

    /// With `committing` held.
    fn commit_locked(&self, wanted: u64, is_last: bool) -> Result<()> {
        self.check_health()?;
        if self.committed.load(Ordering::Acquire) >= wanted {
            return Ok(());
        }
        let committed = self.try_commit(is_last);
        if committed.is_err() {
            self.has_failed.store(true, Ordering::Release);
        }
        committed
    }

    fn try_commit(&self, is_last: bool) -> Result<()> {
        let frozen = self.state.write().freeze(is_last)?;
        // A canary: what the commit will remove goes before it is durable.
        if crate::canary!("discard-before-durable") {
            for &(data, from) in &frozen.trims {
                self.space.discard(data, from..u64::MAX)?;
            }
        }
        // 1. The data that sizes in this commit show, and the namespace: the database flushes all before its head shows it.
        frozen.commit(&self.database)?;
        self.state.write().thaw(&self.database)?;
        self.committed.store(frozen.changes, Ordering::Release);
        // 2. Data that no name shows any more.
        for &(data, from) in &frozen.trims {
            self.space.discard(data, from..u64::MAX)?;
        }
        // The next commit forgets it, when the discards are durable. Nothing asks for that commit.
        if !frozen.trims.is_empty() && !is_last {
            let mut state = self.state.write();
            let nothing_else = state.changes == frozen.changes;
            state.must_flush_first = true;
            frozen.trims.iter().for_each(|&(data, _)| state.trim_done(data));
            if let Some(record) = state.end_operation(0, 0) {
                self.keep(state.commit_number(), &record);
            }
            if nothing_else {
                self.committed.store(state.changes, Ordering::Release);
            }
        }
        Ok(())
    }

    pub(super) fn check_health(&self) -> Result<()> {
        if self.has_failed.load(Ordering::Acquire) { Err(Failure::new(libc::EIO)) } else { Ok(()) }
    }

    /// `fsync` of a file or directory: makes all changes that were made before the call durable. One turn serves all that wait.
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
            ToLog::Nothing => {
                self.space.flush()?;
                true
            }
            ToLog::TooMuch => false,
            ToLog::Record { commit, body, must_flush_first } => {
                let logged = self.write_log(&mut turn.log, commit, &body, must_flush_first);
                // Its changes are not remembered for another record.
                logged.inspect_err(|_| self.has_failed.store(true, Ordering::Release))?
            }
        };
        if !is_logged {
            self.commit_up_to(wanted, false)?;
        }
        turn.served = all;
        Ok(())
    }

    /// Whether there was room for it.
    fn write_log(&self, log: &mut crate::log::Log, commit: u64, body: &[u8], must_flush_first: bool) -> Result<bool> {
        if must_flush_first && !crate::canary!("size-before-data") {
            self.space.flush()?;
        }
        if !log.append(commit, body)? {
            return Ok(false);
        }
        self.space.flush()?;
        Ok(true)
    }
}
