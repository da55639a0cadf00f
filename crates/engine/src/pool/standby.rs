//! The standby memory of an open pool: created when the pool is opened, verified while it is in
//! use, and removed at the end. Owns whether the guarantee holds that a crash of the process loses
//! nothing.
//!
//! 1. A ring is completed before it gets its place, and the map records that it is needed before
//!    the first request ([`Core::begin_standby`]).
//! 2. The pool's keeper verifies several times a second that the next process would find the ring
//!    ([`Core::look_at_standby`]), and so does `status`.
//! 3. A ring that the next process would not find, or would find damaged at its beginning, moves to
//!    new memory. If there was no room for one at the opening, one begins later. All earlier data
//!    is then drained: it may not be in the ring. Only then does `status` report the guarantee
//!    again.
//! 4. A pool that dies in between is the case of a lost ring: the map records that one was needed
//!    (`standby_lost`). It also records which shares have a journal next to the ring.

use std::io::ErrorKind;
use std::sync::Arc;

use env::MapBatch;
use format::{STANDBY_RING_OFFSET, StandbyHeader, StandbyNeed, journal_key};
use store::base::canary::Canary;
use store::base::status::StandbyStatus;
use store::buffer::standby::{LogFacts, Ring, SLACK_BYTES, ring_bytes, write_beginning};
use surface::{DeviceId, Error, ErrorKind as Kind, Result};
use units::{ObjectId, format_size};

use crate::pool::Pool;
use crate::pool::core::Core;
use crate::repair::StandbyFacts;

/// Lower bound for the ring: twice the slack, so that writers wait for drains and not for single
/// records.
const RING_BYTES_MIN: usize = 2 * SLACK_BYTES;
/// Time between two attempts to create missing standby memory.
const RETRY_NS: u64 = 2_000_000_000;

impl Core {
    /// Step 1.
    pub(super) fn begin_standby(&self) -> std::result::Result<(), String> {
        let Some(standby) = &self.vitals.env.standby else { return Ok(()) };
        let (pool, most) = (&self.pool_id, self.vitals.options.standby_bytes_max);
        let message = |error: std::io::Error| error.to_string();
        let boot = standby.boot().map_err(message)?;
        let mut id = [0; 8];
        self.vitals.env.entropy.fill(&mut id).map_err(message)?;
        let session = u64::from_le_bytes(id);
        let (copy, path, incarnation) = (standby.copy(), standby.pool_path(), self.log.incarnation());
        let log = LogFacts { applied: self.log.applied_seq(), durable: self.log.durable_before() };
        let header_of = |bytes| {
            let ring_bytes = ring_bytes(bytes);
            StandbyHeader { pool: *pool, boot, copy, session, incarnation, ring_bytes }
        };
        let mut wanted = (self.shares.write_buffer + SLACK_BYTES).min(most);
        let memory = loop {
            // With less memory writers wait sooner; that is the only effect.
            let bytes = STANDBY_RING_OFFSET + wanted.max(RING_BYTES_MIN);
            let header = header_of(bytes);
            match standby.make(pool, bytes, &|memory| write_beginning(memory, &header, log, &path)) {
                Ok(memory) => break memory,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(message(error)),
                Err(error) if wanted <= RING_BYTES_MIN => {
                    let text = format!("{error}; at least {} are needed there", format_size(RING_BYTES_MIN as u64));
                    return Err(text);
                }
                Err(_) => wanted /= 2,
            }
        };
        let header = header_of(memory.len());
        if let Err(error) = self.repairs.note_need(StandbyNeed { boot, copy }) {
            drop(memory);
            let _ = standby.remove(pool);
            return Err(error.to_string());
        }
        let ring = Arc::new(Ring::new(memory, &header, log));
        self.buffer.begin_standby(Arc::clone(&ring));
        // A checkpoint may have switched to another one in the meantime.
        ring.goes_with(self.log.incarnation());
        Ok(())
    }

    /// Returns why the next process would not find the ring; `None` if it would, or there is none.
    fn standby_fault(&self) -> Option<String> {
        self.buffer.standby()?.fault(&**self.vitals.env.standby.as_ref()?, &self.pool_id)
    }

    /// Steps 2 and 3.
    pub(crate) fn look_at_standby(&self) {
        let fault = self.standby_fault();
        {
            let mut facts = self.repairs.standby.lock();
            let now = self.vitals.env.clock.now_ns();
            if !facts.is_wanted || fault.is_none() && facts.why_none.is_none() || now < facts.next_try_ns {
                return;
            }
            facts.next_try_ns = now + RETRY_NS;
            if let Some(fault) = &fault {
                facts.why_none = Some(fault.clone());
            }
        }
        let made = match (fault, self.buffer.standby()) {
            (Some(fault), Some(ring)) => self.replace_ring(ring, &fault).map_err(|error| format!("{fault}; {error}")),
            (None, Some(_)) => Ok(()),
            (_, None) => self.begin_standby(),
        };
        let complete = made.and_then(|()| self.writes.drain_all().map_err(|error| error.to_string()));
        self.repairs.standby.lock().why_none = complete.err();
    }

    /// Moves the ring to new memory. A file in its place is set aside.
    fn replace_ring(&self, ring: &Ring, fault: &str) -> std::io::Result<()> {
        let Some(standby) = &self.vitals.env.standby else { return Ok(()) };
        let aside = match standby.set_aside(&self.pool_id) {
            Ok(place) => format!("; the file there is kept as {place} until you remove it"),
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        ring.replace(&standby.pool_path(), |bytes, fill| standby.make(&self.pool_id, bytes, fill))?;
        self.repairs.standby.lock().replaced = Some(format!("standby memory was recreated: {fault}{aside}"));
        Ok(())
    }

    /// For `status`.
    pub(crate) fn standby_status(&self) -> StandbyStatus {
        let facts = self.repairs.standby.lock().clone();
        let StandbyFacts { replayed, replayed_bytes, mut notes, is_wanted, why_none, replaced, .. } = facts;
        // The reason of the last attempt names the fault, and why there is still no other memory.
        let why_none = why_none.or_else(|| self.standby_fault()).filter(|_| is_wanted);
        let ring = self.buffer.standby().filter(|_| why_none.is_none());
        let place = ring.and(self.vitals.env.standby.as_ref()).map(|standby| standby.place(&self.pool_id));
        notes.extend(replaced);
        notes.extend(why_none.map(|why| format!("no standby memory: {why}")));
        let bytes = ring.map_or(0, |ring| ring.bytes() as u64);
        StandbyStatus { place, bytes, is_wanted, replayed, replayed_bytes, notes }
    }

    /// Called when the pool has been closed. If all data is in the log, the standby memory is
    /// removed; otherwise it stays for the next opening.
    pub(crate) fn end_standby(&self, is_durable: bool) {
        self.repairs.standby.lock().is_wanted = false;
        let Some(ring) = self.buffer.standby() else { return };
        ring.freeze();
        if let Some(standby) = &self.vitals.env.standby
            && is_durable
            && ring.is_empty()
            && self.repairs.forget_need().is_ok()
        {
            let _ = standby.remove(&self.pool_id);
        }
    }
}

impl Pool {
    /// Records that names of a share may be in its journal alone from now on. Durable on return.
    ///
    /// # Errors
    /// When the map store fails, or the boot of the machine is not known.
    pub fn note_journal(&self, share: DeviceId) -> Result<()> {
        let Some(standby) = &self.core.vitals.env.standby else {
            return Err(Error::new(Kind::Unsupported, "there is no standby memory"));
        };
        self.core.repairs.expect_open()?;
        if Canary::JournalNeedNotNoted.is_planted() {
            return Ok(());
        }
        let boot = standby.boot().map_err(|error| Error::from_io("the boot of this machine", error))?;
        let mut batch = MapBatch::default();
        batch.put(journal_key(ObjectId(share.0)), StandbyNeed { boot, copy: standby.copy() }.encode());
        self.core.repairs.commit_durably(batch)
    }

    /// Returns the shares that [`Self::note_journal`] recorded on this boot.
    ///
    /// # Errors
    /// When the map store fails.
    pub fn noted_journals(&self) -> Result<Vec<DeviceId>> {
        Ok(self.core.repairs.noted_journals()?.ours.into_iter().map(|share| DeviceId(share.0)).collect())
    }

    /// Records that all names of a share's journal are in its tree, or that their loss is
    /// remembered. Durable on return.
    ///
    /// # Errors
    /// When the map store fails.
    pub fn forget_journal(&self, share: DeviceId) -> Result<()> {
        self.core.repairs.expect_open()?;
        self.core.repairs.forget_journals(&[ObjectId(share.0)])
    }
}
