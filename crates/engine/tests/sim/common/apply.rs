//! Does an operation to the engine and to the model, and judges how it ended.

use bytes::Bytes;
use sim::{Fault, Outcome, Rng, TableOp, fill_content};
use surface::{Error, ErrorKind, WriteOptions, ZeroOptions};

use super::limits::{EXTENTS_WITH_ROOM_TO_OVERWRITE, bytes_asked, usable_extents};
use super::together::read_in_pieces;
use super::{Failure, Op, World, lens};

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// As it should.
    Well,
    /// The power is off.
    Dark,
    /// Refused, because the pool is full.
    Full,
    /// Refused, because of a quota, or of a reservation that does not fit.
    Limited,
    /// Failed, because of a fault that was injected.
    Disturbed,
}

/// Bytes of log that finding a pool full may cost, in pools of that size.
const FULL_LOGS_MAX: u64 = 100;

impl World {
    /// Chooses an operation and does it.
    pub fn step(&mut self) -> Result<Ended, Failure> {
        // After a change of the table that may or may not have happened only a restart shows the
        // result.
        if self.model.is_in_doubt() {
            return Ok(if self.machine.power.is_lost() { Ended::Dark } else { Ended::Disturbed });
        }
        let op = Op::choose(&mut self.rng, &self.model, &self.shape);
        let op = if self.shape.copies { op } else { op.with_one_copy() };
        self.machine.clock.advance_ms(self.rng.below(20));
        self.apply(&op)
    }

    /// Does an operation.
    pub fn apply(&mut self, op: &Op) -> Result<Ended, Failure> {
        self.op_number += 1;
        self.model.begin_op(self.op_number);
        self.note(format!("op {} (next point {}): {op:?}", self.op_number, self.machine.power.next_point()));
        let ended = self.perform(op)?;
        if ended != Ended::Well {
            self.note(format!("   op {} ended: {ended:?}", self.op_number));
        }
        if ended == Ended::Full
            && let Some(pool) = &self.pool
        {
            // Cleaning ends when it brings nothing, however much it seems to.
            let status = pool.status();
            let (log, capacity) = (status.log_bytes, status.capacity_bytes);
            if log > capacity * FULL_LOGS_MAX * (1 + self.fulls) {
                return Err(self.fail(format!("{log} bytes of log to find a pool of {capacity} full")));
            }
        }
        // The power may have failed in work that no client waited for.
        Ok(if self.machine.power.is_lost() { Ended::Dark } else { ended })
    }

    /// Judges a request that a program that dies in standby memory does not answer any more: there,
    /// nothing fails.
    fn judge_answer(&mut self, op: &Op, result: Result<(), Error>, may_be_full: bool) -> Result<Ended, Failure> {
        let ended = self.judge(op, result, may_be_full)?;
        let is_dead = self.shape.standby && self.machine.power.is_lost();
        Ok(if ended == Ended::Well && is_dead { Ended::Dark } else { ended })
    }

    fn perform(&mut self, op: &Op) -> Result<Ended, Failure> {
        match op {
            Op::Write { volume, offset, len, kind, seed, fua } => {
                let mut data = vec![0; *len as usize];
                fill_content(&mut Rng::new(*seed), *kind, &mut data);
                let result = self.device(volume)?.write(*offset, Bytes::from(data.clone()), WriteOptions { fua: *fua });
                let ended = self.judge_answer(op, result, true)?;
                self.model.write(volume, *offset, &data, outcome(ended, *fua));
                Ok(ended)
            }
            Op::Zero { volume, offset, len, no_hole, fua } => {
                let options = ZeroOptions { fua: *fua, no_hole: *no_hole };
                let result = self.device(volume)?.write_zeroes(*offset, *len, options);
                let ended = self.judge_answer(op, result, true)?;
                self.model.zero(volume, *offset, *len, outcome(ended, *fua));
                Ok(ended)
            }
            Op::Discard { volume, offset, len } => {
                let result = self.device(volume)?.discard(*offset, *len);
                // Whole blocks can always be discarded; the ends of a range may need a write.
                let size = self.model.size_bytes(volume);
                let end = offset + len;
                let whole = offset.is_multiple_of(4096) && (end.is_multiple_of(4096) || end == size);
                let ended = self.judge_answer(op, result, !whole)?;
                self.model.zero(volume, *offset, *len, outcome(ended, false));
                Ok(ended)
            }
            Op::Read { volume, offset, len, pieces } => {
                let mut buf = vec![0xee; *len as usize];
                let device = self.device(volume)?;
                let result = match pieces {
                    1 => device.read(*offset, &mut buf),
                    _ => read_in_pieces(&*device, *offset, &mut buf, *pieces),
                };
                self.judge_read(op, volume, *offset, result.map(|()| true), &buf)
            }
            Op::ReadCached { volume, offset, len } => {
                let mut buf = vec![0xee; *len as usize];
                let result = self.device(volume)?.read_cached(*offset, &mut buf);
                self.judge_read(op, volume, *offset, result, &buf)
            }
            Op::Prefetch { volume, offset, len } => {
                let result = self.device(volume)?.prefetch(*offset, *len);
                self.judge(op, result, false)
            }
            Op::Flush { volume } => {
                let result = self.device(volume)?.flush();
                let ended = self.judge(op, result, false)?;
                if ended == Ended::Well {
                    self.model.flushed(volume);
                }
                Ok(ended)
            }
            Op::FlushPool => self.flush_pool(op, engine::Pool::flush),
            Op::Checkpoint => self.flush_pool(op, engine::Pool::checkpoint),
            Op::LightCheckpoint => self.flush_pool(op, engine::Pool::light_checkpoint),
            Op::Tick { ms } => {
                self.machine.clock.advance_ms(*ms);
                let result = self.pool().tick();
                self.judge(op, result, false)
            }
            Op::Clean { all } => {
                let result = self.pool().clean(*all, 20);
                self.judge(op, result.map(|_| ()), false)
            }
            Op::Recompress { volume, mode, bytes, restart } => {
                let result = self.pool().recompress(volume, *mode, *bytes, *restart);
                if let Ok(report) = &result
                    && report.after_bytes > report.before_bytes
                {
                    return Err(self.fail(format!("recompression made data larger: {report:?}")));
                }
                match result {
                    // It needs room for the new data before the old is freed.
                    Err(error) if error.kind() == ErrorKind::Full => Ok(Ended::Well),
                    other => self.judge(op, other.map(|_| ()), false),
                }
            }
            Op::Sort { bytes, restart } => match self.pool().sort(*bytes, *restart) {
                // It needs room for the new data before the old is freed.
                Err(error) if error.kind() == ErrorKind::Full => Ok(Ended::Well),
                other => self.judge(op, other.map(|_| ()), false),
            },
            Op::Scrub { bytes, restart } => {
                let mut result = self.pool().scrub(*bytes, *restart);
                self.notice_faults();
                if result.as_ref().is_ok_and(|report| report.found > 0) && self.disturbed.is_none() {
                    // It may be a finding of an earlier slice while a fault was active.
                    result = self.pool().scrub(*bytes, true);
                    self.notice_faults();
                }
                if let Ok(report) = &result
                    && report.found > 0
                    && self.disturbed.is_none()
                {
                    return Err(self.fail(format!("scrub found damage where there is none: {report:?}")));
                }
                self.judge(op, result.map(|_| ()), false)
            }
            Op::DropCaches => {
                self.pool().drop_caches();
                Ok(Ended::Well)
            }
            Op::Allocation { volume, offset, len } => {
                if self.disturbed.is_some() {
                    return Ok(Ended::Well);
                }
                let verified = self.verify_allocation(volume, *offset, *len);
                self.notice_faults();
                match verified {
                    _ if self.machine.power.is_lost() => Ok(Ended::Dark),
                    _ if self.disturbed.is_some() => Ok(Ended::Disturbed),
                    verified => verified.map(|()| Ended::Well),
                }
            }
            Op::Table(change) => self.perform_table(op, change),
            Op::Refused => self.perform_refused(),
        }
    }

    fn flush_pool(&mut self, op: &Op, flush: fn(&engine::Pool) -> surface::Result<()>) -> Result<Ended, Failure> {
        // Acknowledged data has its place in the log.
        let result = flush(self.pool());
        let ended = self.judge(op, result, false)?;
        if ended == Ended::Well {
            self.model.flushed_all();
        }
        Ok(ended)
    }

    fn judge_read(
        &mut self,
        op: &Op,
        volume: &str,
        offset: u64,
        result: surface::Result<bool>,
        buf: &[u8],
    ) -> Result<Ended, Failure> {
        let filled = matches!(result, Ok(true));
        let ended = self.judge(op, result.map(|_| ()), false)?;
        if filled {
            let checked = self.model.check_read(volume, offset, buf);
            checked.map_err(|m| self.fail(format!("{op:?}: {m}")))?;
        }
        Ok(ended)
    }

    fn perform_table(&mut self, op: &Op, change: &TableOp) -> Result<Ended, Failure> {
        // The first share is said in the superblock.
        self.resized |= matches!(change, TableOp::Create { size_bytes: lens::SHARE_BYTES, .. });
        // So is the first folder, and the first share in a share.
        self.resized |= matches!(change, TableOp::CreateFolder { .. });
        if let TableOp::Rename { new: name, .. } | TableOp::Clone { name, .. } = change {
            self.resized |= name.contains('/');
        }
        self.note_copies(match change {
            TableOp::Create { properties, .. }
            | TableOp::CreateFolder { properties, .. }
            | TableOp::Clone { properties, .. } => properties.get("copies").map(String::as_str),
            TableOp::Set { changes, .. } => {
                changes.iter().find(|(key, _)| key == "copies").and_then(|(_, value)| value.as_deref())
            }
            _ => None,
        });
        let pool = self.pool();
        let result = match change {
            TableOp::Create { name, size_bytes: lens::SHARE_BYTES, properties } => {
                pool.create_share(name, properties).map(drop)
            }
            TableOp::Create { name, size_bytes, properties } => {
                pool.create_volume(name, *size_bytes, properties).map(drop)
            }
            TableOp::CreateFolder { name, properties } => pool.create_folder(name, properties).map(drop),
            TableOp::SnapshotFolder { folder, name } => pool.snapshot_folder(folder, name).map(drop),
            TableOp::Destroy { name } => pool.destroy(name, true),
            TableOp::Snapshot { volume, name } => pool.snapshot(volume, name),
            TableOp::Clone { snapshot, name, properties } => pool.clone_snapshot(snapshot, name, properties),
            TableOp::Rollback { snapshot } => {
                let recursive = !self.model.newer_than(snapshot).is_empty();
                pool.rollback(snapshot, recursive)
            }
            TableOp::Rename { old, new } => pool.rename(old, new),
            TableOp::Promote { name } => pool.promote(name),
            TableOp::Resize { name, size_bytes } => pool.resize_volume(name, *size_bytes),
            TableOp::Set { name, changes } => pool.set_properties(name.as_deref(), changes),
        };
        match change {
            TableOp::Destroy { name } => {
                let inside = format!("{name}/");
                let goes =
                    |other: &str| other.split('@').next() == Some(name) || other == name || other.starts_with(&inside);
                self.devices.retain(|other, _| !goes(other));
            }
            // A renamed volume is another device. Devices of a volume that was rolled back stay
            // valid. The files of a share are reopened after a rollback, as its tree is.
            TableOp::Rename { .. } | TableOp::Promote { .. } => self.devices.clear(),
            TableOp::Rollback { .. } if self.shape.shares => self.devices.clear(),
            TableOp::Rollback { .. } => self.devices.retain(|name, _| !name.contains('@')),
            _ => {}
        }
        let may_be_full = !matches!(change, TableOp::Destroy { .. } | TableOp::Rollback { .. });
        match self.judge(op, result, may_be_full)? {
            Ended::Well => {
                self.model.table_done(change);
                Ok(Ended::Well)
            }
            // Refused for want of space, it has not happened.
            ended @ (Ended::Full | Ended::Limited) => self.verify_table().map(|()| ended),
            ended => {
                self.model.table_in_doubt(change.clone());
                Ok(ended)
            }
        }
    }

    fn perform_refused(&mut self) -> Result<Ended, Failure> {
        let pool = self.pool();
        let mut answers = vec![
            ("destroy of nothing", pool.destroy_volume("nothing"), ErrorKind::NotFound),
            ("resize of nothing", pool.resize_volume("nothing", 4096), ErrorKind::NotFound),
            ("snapshot of nothing", pool.snapshot("nothing", "s"), ErrorKind::NotFound),
            ("rollback to nothing", pool.rollback("nothing@s", true), ErrorKind::NotFound),
            ("promote nothing", pool.promote("nothing"), ErrorKind::NotFound),
            ("open of nothing", pool.volume("nothing").map(|_| ()), ErrorKind::NotFound),
            ("bad name", pool.create_volume("../x", 4096, &Default::default()).map(drop), ErrorKind::Invalid),
            ("no folder", pool.create_volume("nothing/x", 4096, &Default::default()).map(drop), ErrorKind::NotFound),
            ("snapshot of no folder", pool.snapshot_folder("nothing", "s").map(drop), ErrorKind::NotFound),
            (
                "bad property",
                pool.set_properties(None, &[("unit".into(), Some("16K".into())), ("unit".into(), Some("3K".into()))]),
                ErrorKind::Invalid,
            ),
            (
                "unknown property",
                pool.set_properties(None, &[("compression".into(), Some("off".into())), ("colour".into(), None)]),
                ErrorKind::Invalid,
            ),
        ];
        if let Some(name) = self.model.names().first() {
            answers.push((
                "create in a volume",
                pool.create_volume(&format!("{name}/x"), 4096, &Default::default()).map(drop),
                ErrorKind::Invalid,
            ));
            answers.push((
                "create twice",
                pool.create_volume(name, 4096, &Default::default()).map(drop),
                ErrorKind::Exists,
            ));
            let size = self.model.size_bytes(name);
            let device = self.device(name)?;
            let past_end = [
                device.write(size - 1, Bytes::from_static(b"xy"), WriteOptions::default()),
                device.read(size, &mut [0]),
                device.read(u64::MAX, &mut [0, 0]),
                device.discard(size, 1),
                device.write_zeroes(u64::MAX - 1, 2, ZeroOptions::default()),
                device.allocation(size + 1, 1, 1).map(|_| ()),
            ];
            if let Some(snapshot) = self.model.snapshots_of(name).first() {
                let device = self.device(snapshot)?;
                let read_only = [
                    device.write(0, Bytes::from_static(b"x"), WriteOptions::default()),
                    device.discard(0, 1),
                    device.write_zeroes(0, 1, ZeroOptions { no_hole: true, fua: true }),
                ];
                answers.extend(read_only.into_iter().map(|a| ("write to a snapshot", a, ErrorKind::ReadOnly)));
                let pool = self.pool();
                let short = snapshot.split('@').next_back().unwrap_or_default();
                answers.extend([
                    ("destroy with snapshots", pool.destroy(name, false), ErrorKind::InUse),
                    ("snapshot twice", pool.snapshot(name, short), ErrorKind::Exists),
                    ("snapshot of a snapshot", pool.snapshot(snapshot, "x"), ErrorKind::Invalid),
                    ("resize of a snapshot", pool.resize_volume(snapshot, 4096), ErrorKind::Invalid),
                    ("rename to itself's volume", pool.rename(snapshot, name), ErrorKind::Invalid),
                    (
                        "clone onto its volume",
                        pool.clone_snapshot(snapshot, name, &Default::default()),
                        ErrorKind::Exists,
                    ),
                ]);
                if !self.model.newer_than(snapshot).is_empty() && self.model.can_roll_back(snapshot) {
                    answers.push(("rollback over newer ones", pool.rollback(snapshot, false), ErrorKind::InUse));
                }
            }
            answers.extend(past_end.into_iter().map(|answer| ("past the end", answer, ErrorKind::Invalid)));
        }
        self.notice_faults();
        for (what, answer, expected) in answers {
            match answer {
                Err(e) if e.kind() == expected => {}
                _ if self.disturbed.is_some() || self.machine.power.is_lost() => {}
                other => return Err(self.fail(format!("{what}: expected {expected:?}, got {other:?}"))),
            }
        }
        Ok(Ended::Well)
    }

    /// Remembers that a fault other than a crash has happened.
    pub fn notice_faults(&mut self) {
        let fired = self.machine.power.take_fired();
        if let Some((point, fault)) = fired.into_iter().find(|(_, fault)| *fault != Fault::Crash) {
            self.disturbed = Some(format!("{fault:?} at {point}"));
        }
    }

    /// An error needs a reason: the power is off, a fault was injected, a quota or a reservation
    /// forbids it, or the pool is full.
    fn judge(&mut self, op: &Op, result: surface::Result<()>, may_be_full: bool) -> Result<Ended, Failure> {
        self.notice_faults();
        let Err(error) = result else { return Ok(Ended::Well) };
        if self.machine.power.is_lost() {
            return Ok(Ended::Dark);
        }
        if self.disturbed.is_some() {
            return Ok(Ended::Disturbed);
        }
        if error.kind() == ErrorKind::Invalid && self.judge_contradiction(op, &error)? {
            return Ok(Ended::Limited);
        }
        if error.kind() == ErrorKind::Full && may_be_full {
            if self.judge_quota(op, &error)? || self.judge_reservation(op, &error)? {
                return Ok(Ended::Limited);
            }
            self.fulls += 1;
            self.judge_reserved(op, &error)?;
            return self.judge_full(op, &error).map(|()| Ended::Full);
        }
        Err(self.fail(format!("{op:?} failed without a reason ({:?}): {error}", error.kind())))
    }

    /// A pool with much free space is not full. In the smallest extents a unit that just does not
    /// fit leaves three quarters unused, and the engine must allow for that; the reserve of six
    /// extents is not for data, nor is space reserved for others or for the trees of shares, nor the
    /// overwriting share.
    fn judge_full(&self, op: &Op, error: &Error) -> Result<(), Failure> {
        let asked = match op {
            Op::Write { volume, .. } | Op::Zero { volume, .. } => bytes_asked(&self.model, op) * self.times(volume),
            _ => 0,
        };
        let status = self.pool().status();
        let reserved = self.extents_reserved(op) + self.tree_extents(&status);
        let (free, total) = (status.extents_free, status.extents_total);
        let for_overwriting = if total >= EXTENTS_WITH_ROOM_TO_OVERWRITE { total / 28 } else { 0 };
        let for_copies = self.streams_of_copies();
        let usable = free.saturating_sub(6 + for_copies + reserved + for_overwriting) * status.extent_bytes / 4;
        if usable > asked + (32 << 10) {
            return Err(self.fail(format!("{op:?}: full with {free} of {total} extents free: {error}")));
        }
        // Dead data can be recovered by cleaning: even if all live data were packed as loosely as
        // possible, it must have left no room.
        let packed = status.live_bytes.div_ceil(status.extent_bytes / 4);
        let kept = 6 + 3 + 2 * for_copies;
        if total.saturating_sub(kept + packed + reserved) * status.extent_bytes / 4 > asked + (32 << 10) {
            return Err(self.fail(format!("{op:?}: full with {packed} of {total} extents' worth alive: {error}")));
        }
        Ok(())
    }

    /// Takes steps up to a number of operations, none of which may fail; makes room when the pool
    /// is full, and reopens the pool now and then.
    pub fn run_without_faults(&mut self, ops: u64) -> Result<(), Failure> {
        while self.op_number < ops {
            match self.step()? {
                Ended::Well | Ended::Limited => {}
                Ended::Full => {
                    self.relieve()?;
                }
                ended @ (Ended::Dark | Ended::Disturbed) => return Err(self.fail(format!("{ended:?} without a fault"))),
            }
            match self.rng.below(200) {
                0..3 => self.reopen()?,
                3..5 => self.restart()?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Takes steps until the power fails, at most so many; makes room when the pool is full.
    pub fn run_until_dark(
        &mut self,
        steps_max: u64,
        step: impl Fn(&mut Self) -> Result<Ended, Failure>,
    ) -> Result<(), Failure> {
        for _ in 0..steps_max {
            match step(self)? {
                Ended::Dark => break,
                Ended::Full => {
                    if self.relieve()? == Ended::Dark {
                        break;
                    }
                }
                Ended::Well | Ended::Limited | Ended::Disturbed => {}
            }
        }
        Ok(())
    }

    /// Makes room: discards everything, and sees the space come back.
    pub fn relieve(&mut self) -> Result<Ended, Failure> {
        if self.claim_reservations()? == Ended::Dark {
            return Ok(Ended::Dark);
        }
        // Data that only snapshots and clones keep alive has no other owner.
        for name in self.model.all_names() {
            if name.contains('@') || self.model.is_clone(&name) {
                // A clone takes its snapshots with it.
                if !self.model.all_names().contains(&name) {
                    continue;
                }
                let ended = self.apply(&Op::Table(TableOp::Destroy { name }))?;
                if ended != Ended::Well {
                    return Ok(ended);
                }
            }
        }
        for volume in self.model.names() {
            let len = self.model.size_bytes(&volume);
            let ended = self.apply(&Op::Discard { volume, offset: 0, len })?;
            if ended != Ended::Well {
                return Ok(ended);
            }
        }
        // The first makes the discards durable, the second may hand out extents freed by the first
        // one; destroyed data is freed bit by bit.
        for round in 0..400 {
            if round >= 2 && self.pool().status().reaping == 0 {
                break;
            }
            let ended = self.apply(&Op::Checkpoint)?;
            if ended == Ended::Full {
                return Err(self.fail("checkpoint: full after everything was discarded"));
            }
            if ended != Ended::Well {
                return Ok(ended);
            }
        }
        let mut status = self.pool().status();
        // Dictionaries stay with their volumes. In a small pool each may sit in an extent of its
        // own; then cleaning brings them together.
        if status.dictionaries > 0 {
            for op in [Op::Clean { all: true }, Op::Checkpoint, Op::Checkpoint] {
                let ended = self.apply(&op)?;
                if ended != Ended::Well {
                    return Ok(ended);
                }
            }
            status = self.pool().status();
        }
        let total = usable_extents(&status, self.mark);
        // Tables of a share's files stay until the next flush, and one block for good.
        let parts = if self.shape.shares { 2 } else { 3 };
        let open = self.streams_of_copies();
        if (status.extents_free + open) * 4 < total * parts && self.disturbed.is_none() {
            let free = status.extents_free;
            return Err(self.fail(format!("everything was discarded, but only {free} of {total} extents are free")));
        }
        Ok(Ended::Well)
    }
}

const fn outcome(ended: Ended, fua: bool) -> Outcome {
    match (ended, fua) {
        (Ended::Well, true) => Outcome::Durable,
        (Ended::Well, false) => Outcome::Done,
        _ => Outcome::Failed,
    }
}
