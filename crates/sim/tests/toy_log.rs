//! Tests the simulator with a toy: a log of one block per record. The correct one passes; each
//! planted bug is one that real logs had, and the simulator must find it. Otherwise its silence
//! about the engine would mean nothing.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use env::{AlignedBuf, Disk};
use sim::{ContentKind, DiskHandle, Fault, Machine, Model, Outcome, Rng, TableOp, digest, fill_content};

const BLOCKS: u64 = 8;
const BLOCK: usize = 4096;
/// A record: a page with sequence number, block index and digests, then the block.
const RECORD: usize = 2 * BLOCK;
const DISK_BYTES: u64 = 64 * RECORD as u64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    /// A flush that does nothing.
    NoSync,
    /// A flush that does nothing unless this process has written something.
    NoSyncAfterRestart,
    /// The header is verified, the payload is believed.
    NoPayloadChecksum,
    /// Sequence numbers are ignored: stale records of an earlier round are accepted.
    NoSequence,
    /// Records do not name their predecessor: one that survived after a lost one reappears once the
    /// gap is filled.
    NoChain,
    /// A failed sync is tried again and believed.
    RetrySync,
}

struct ToyLog {
    disk: Arc<DiskHandle>,
    blocks: Vec<[u8; BLOCK]>,
    next: u64,
    /// Digest of the header before.
    last: u64,
    dirty: bool,
    bug: Bug,
}

impl ToyLog {
    fn open(disk: Arc<DiskHandle>, bug: Bug) -> std::io::Result<Self> {
        let mut log = Self { disk, blocks: vec![[0; BLOCK]; BLOCKS as usize], next: 0, last: 0, dirty: false, bug };
        let mut record = AlignedBuf::new(RECORD);
        while (log.next + 1) * RECORD as u64 <= DISK_BYTES {
            log.disk.read_at(log.next * RECORD as u64, &mut record, RECORD)?;
            let word = |i: usize| u64::from_le_bytes(record[i * 8..i * 8 + 8].try_into().unwrap());
            let (seq, block, payload) = (word(0), word(1), word(2));
            let valid = word(4) == digest(&record[..32])
                && word(4) != 0
                && (word(3) == log.last || matches!(bug, Bug::NoChain | Bug::NoSequence))
                && (seq == log.next || bug == Bug::NoSequence)
                && block < BLOCKS
                && (bug == Bug::NoPayloadChecksum || payload == digest(&record[BLOCK..RECORD]));
            if !valid {
                break;
            }
            log.last = word(4);
            log.blocks[block as usize].copy_from_slice(&record[BLOCK..RECORD]);
            log.next += 1;
        }
        Ok(log)
    }

    fn is_full(&self) -> bool {
        (self.next + 1) * RECORD as u64 > DISK_BYTES
    }

    fn write(&mut self, block: u64, data: &[u8]) -> std::io::Result<()> {
        let mut record = AlignedBuf::new(RECORD);
        record[..8].copy_from_slice(&self.next.to_le_bytes());
        record[8..16].copy_from_slice(&block.to_le_bytes());
        record[16..24].copy_from_slice(&digest(data).to_le_bytes());
        record[24..32].copy_from_slice(&self.last.to_le_bytes());
        let header = digest(&record[..32]);
        record[32..40].copy_from_slice(&header.to_le_bytes());
        record[BLOCK..RECORD].copy_from_slice(data);
        self.disk.write_at(self.next * RECORD as u64, &record, RECORD)?;
        self.last = header;
        self.next += 1;
        self.dirty = true;
        self.blocks[block as usize].copy_from_slice(data);
        Ok(())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let skip = match self.bug {
            Bug::NoSync => true,
            Bug::NoSyncAfterRestart => !self.dirty,
            _ => false,
        };
        if skip {
            return Ok(());
        }
        match self.disk.sync() {
            Err(_) if self.bug == Bug::RetrySync => self.disk.sync(),
            other => other,
        }
    }
}

/// Runs one seed; the error comes from the model.
fn run(seed: u64, bug: Bug) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let mut machine = Machine::new(DISK_BYTES, rng.next_u64());
    if bug == Bug::NoSequence {
        // Initial content of a used disk: records of an older log, each in another's place.
        let mut old = ToyLog::open(machine.disk.handle(), Bug::None).unwrap();
        for i in 0..20 {
            old.next = 20 - i;
            old.write(i % BLOCKS, &[7; BLOCK]).unwrap();
        }
        old.flush().unwrap();
    }
    let mut model = Model::new(Default::default());
    let volume =
        TableOp::Create { name: "v".into(), size_bytes: BLOCKS * BLOCK as u64, properties: Default::default() };
    model.table_done(&volume);
    let mut log = ToyLog::open(machine.disk.handle(), bug).map_err(|e| e.to_string())?;
    for _generation in 0..4 {
        if rng.coin() {
            machine.power.plan(machine.power.next_point() + rng.below(20), Fault::Crash);
        }
        if rng.percent(20) {
            machine.power.plan(machine.power.next_point() + rng.below(20), *rng.pick(&[Fault::Io, Fault::ShortWrite]));
        }
        for op in 0..rng.between(1, 14) {
            model.begin_op(op + 1);
            if rng.percent(70) {
                if log.is_full() {
                    break;
                }
                let block = rng.below(BLOCKS);
                let mut data = vec![0; BLOCK];
                fill_content(&mut rng, ContentKind::Text, &mut data);
                let outcome = if log.write(block, &data).is_ok() { Outcome::Done } else { Outcome::Failed };
                model.write("v", block * BLOCK as u64, &data, outcome);
                if outcome == Outcome::Failed {
                    break;
                }
            } else {
                match log.flush() {
                    Ok(()) => model.flushed("v"),
                    Err(_) => break,
                }
            }
        }
        machine.power.clear_plan();
        let lost_power = machine.power.is_lost() || rng.coin();
        if lost_power {
            machine.power_cycle();
        } else {
            machine.restart();
        }
        model.crashed();
        log = ToyLog::open(machine.disk.handle(), bug).map_err(|e| e.to_string())?;
        for block in 0..BLOCKS {
            model.check_read("v", block * BLOCK as u64, &log.blocks[block as usize]).map_err(|m| m.to_string())?;
        }
        if lost_power {
            model.settled();
        }
    }
    Ok(())
}

const SEEDS: u64 = 1000;

fn must_be_caught(bug: Bug) {
    let caught = (0..SEEDS).filter(|seed| run(*seed, bug).is_err()).count();
    assert!(caught > 0, "{bug:?}: {SEEDS} seeds did not notice it");
    println!("{bug:?}: caught by {caught} of {SEEDS} seeds");
}

#[test]
fn correct_log_passes() {
    for seed in 0..SEEDS {
        if let Err(what) = run(seed, Bug::None) {
            panic!("seed {seed}: {what}");
        }
    }
}

#[test]
fn skipped_sync_is_caught() {
    must_be_caught(Bug::NoSync);
}

#[test]
fn skipped_sync_after_a_restart_is_caught() {
    must_be_caught(Bug::NoSyncAfterRestart);
}

#[test]
fn unverified_payload_is_caught() {
    must_be_caught(Bug::NoPayloadChecksum);
}

#[test]
fn stale_records_are_caught() {
    must_be_caught(Bug::NoSequence);
}

#[test]
fn records_from_behind_a_gap_are_caught() {
    must_be_caught(Bug::NoChain);
}

#[test]
fn believing_a_repeated_sync_is_caught() {
    must_be_caught(Bug::RetrySync);
}

#[test]
fn one_seed_is_one_run() {
    let caught: Vec<u64> = (0..SEEDS).filter(|seed| run(*seed, Bug::NoSync).is_err()).collect();
    for seed in caught.iter().take(20) {
        assert_eq!(run(*seed, Bug::NoSync), run(*seed, Bug::NoSync));
    }
}
