//! Whole pages: after a loss of power, a unit of a share's file has the content that some number of
//! the writes to it left, and so has no part of a write without the rest. Random writes of any
//! blocks of a unit, with zero blocks among them, in nearly full pools of small extents, so that
//! batches are divided; while extents are cleaned, data is sorted and recompressed, and units are
//! read in pieces. With the power cut at every step, and the program killed at every step of its
//! standby memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fmt::Write as _;
use std::rc::Rc;

use bytes::Bytes;
use engine::{Files, FormatOptions, Pool, PoolOptions, Properties};
use sim::{ContentKind, Fault, Machine, Rng, fill_content};
use surface::{ErrorKind, ObjectSpace};

use crate::common::machine_env::env;
use crate::common::{Campaign, Failure, Tally};

const BLOCK: usize = 4096;
/// Where the units are, in turns: in windows of files, at their ends, and in pieces of large files.
const PLACES: [(u64, u64); 4] = [(16, 0), (17, 640 << 10), (18, 2 << 20), (19, 6 << 40)];
/// The property `unit`, and the bytes of a unit: a range has the guarantee of its largest size.
const UNITS: [(&str, usize); 9] = [
    ("4K", 4 << 10),
    ("8K", 8 << 10),
    ("16K", 16 << 10),
    ("32K", 32 << 10),
    ("64K", 64 << 10),
    ("128K", 128 << 10),
    ("4K-32K", 32 << 10),
    ("8K-64K", 64 << 10),
    ("4K-128K", 128 << 10),
];
/// Reads that make a region one that is read in pieces.
const PIECES: usize = 24;

/// A unit and its possible contents.
struct Unit {
    file: u64,
    offset: u64,
    /// Its contents since the last flush, oldest first.
    states: Vec<Rc<[u8]>>,
    /// The content of the last flush, and that of the last acknowledged write.
    flushed: usize,
    acknowledged: usize,
}

impl Unit {
    /// Blocks were changed, or may have been.
    fn changed(&mut self, blocks: std::ops::Range<usize>, bytes: &[u8], is_acknowledged: bool) {
        let mut state = self.states.last().expect("it has one").to_vec();
        state[blocks.start * BLOCK..blocks.end * BLOCK].copy_from_slice(bytes);
        self.states.push(state.into());
        if is_acknowledged {
            self.acknowledged = self.states.len() - 1;
        }
    }
}

/// A pool with a share on a simulated machine.
struct Pages {
    machine: Machine,
    rng: Rng,
    options: PoolOptions,
    pool: Option<Pool>,
    share: Option<Files>,
    unit_bytes: usize,
    units: Vec<Unit>,
    story: Vec<String>,
    tally: Tally,
}

/// How an operation has ended.
#[derive(PartialEq, Eq)]
enum Ended {
    Well,
    Full,
    Dark,
}

impl Pages {
    fn new(seed: u64, has_standby: bool) -> Result<Self, Failure> {
        let mut rng = Rng::new(seed);
        let (unit, unit_bytes) = *rng.pick(&UNITS);
        // A raw unit takes at most half an extent.
        let extents: Vec<u32> = [32 << 10, 64 << 10, 128 << 10, 256 << 10]
            .into_iter()
            .filter(|bytes| *bytes as usize >= 2 * unit_bytes)
            .collect();
        let extent_bytes = *rng.pick(&extents);
        let extent_count = rng.between(24, 48);
        let capacity_bytes = extent_count * u64::from(extent_bytes);
        let machine = Machine::new(capacity_bytes, rng.next_u64());
        let codec = *rng.pick(&["off", "lz4", "zstd-1", "auto"]);
        let properties: Properties = [("unit", unit), ("compression", codec), ("cold-mode", "archive")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let format = FormatOptions { capacity_bytes, extent_bytes, properties };
        Pool::format(&env(&machine), &format).map_err(|e| Failure(format!("format: {e}")))?;
        let options = PoolOptions {
            memory_bytes: *rng.pick(&[256 << 10, 1 << 20, 4 << 20]),
            workers: 0,
            checkpoint_log_bytes: *rng.pick(&[64 << 10, 512 << 10, 4 << 20]),
            age_limit_ms: 5000,
            standby_bytes_max: if has_standby { usize::MAX } else { 0 },
            ..PoolOptions::default()
        };
        // A part of what surely fits, whatever its content.
        let extent = u64::from(extent_bytes);
        let usable = (extent_count - 10) * (extent - unit_bytes as u64 - 2 * BLOCK as u64);
        let count = (usable * rng.between(30, 70) / 100 / unit_bytes as u64).clamp(2, 64);
        let units = (0..count)
            .map(|index| {
                let (file, begin) = PLACES[index as usize % PLACES.len()];
                let offset = begin + index / PLACES.len() as u64 * unit_bytes as u64;
                Unit { file, offset, states: vec![vec![0; unit_bytes].into()], flushed: 0, acknowledged: 0 }
            })
            .collect();
        machine.power.number_standby(has_standby);
        let story = vec![format!("unit {unit}, extents of {extent_bytes}, {count} units, {codec}, {options:?}")];
        let mut pages =
            Self { machine, rng, options, pool: None, share: None, unit_bytes, units, story, tally: Tally::default() };
        pages.open()?;
        pages.pool().create_share("s", &Properties::new()).map_err(|e| pages.failure(format!("create: {e}")))?;
        pages.find_share()?;
        Ok(pages)
    }

    fn failure(&self, what: impl std::fmt::Display) -> Failure {
        let mut text = what.to_string();
        let _ = write!(text, "\n  {}", self.story[0]);
        for line in self.story.iter().skip(1).rev().take(30).rev() {
            let _ = write!(text, "\n  {line}");
        }
        Failure(text)
    }

    fn pool(&self) -> &Pool {
        self.pool.as_ref().expect("the pool is open")
    }

    fn share(&self) -> &Files {
        self.share.as_ref().expect("the share is open")
    }

    fn open(&mut self) -> Result<(), Failure> {
        let opened = Pool::open(env(&self.machine), self.options.clone());
        self.pool = Some(opened.map_err(|e| self.failure(format!("open: {e}")))?);
        Ok(())
    }

    fn find_share(&mut self) -> Result<(), Failure> {
        let volume = self.pool().volume("s").map_err(|e| self.failure(e))?;
        self.share = Some(Files::new(volume.clone(), volume).map_err(|e| self.failure(e))?);
        Ok(())
    }

    fn judge(&self, result: surface::Result<()>) -> Result<Ended, Failure> {
        match result {
            _ if self.machine.power.is_lost() => Ok(Ended::Dark),
            Ok(()) => Ok(Ended::Well),
            Err(error) if error.kind() == ErrorKind::Full => Ok(Ended::Full),
            Err(error) => Err(self.failure(error)),
        }
    }

    /// Blocks of a unit, for a write: all of them, a page, or any.
    fn choose_blocks(&mut self) -> std::ops::Range<usize> {
        let blocks = self.unit_bytes / BLOCK;
        match self.rng.below(4) {
            0..2 => 0..blocks,
            2 => {
                let page = 1 << self.rng.below(u64::from(blocks.ilog2()) + 1);
                let first = self.rng.index(blocks / page) * page;
                first..first + page
            }
            _ => {
                let first = self.rng.index(blocks);
                first..first + 1 + self.rng.index(blocks - first)
            }
        }
    }

    /// Content of a write: blocks of any kind, some of them zero, or all.
    fn content(&mut self, blocks: usize) -> Vec<u8> {
        let zero_percent = *self.rng.pick(&[0, 0, 20, 50, 90, 100]);
        let mut bytes = vec![0; blocks * BLOCK];
        for block in bytes.chunks_mut(BLOCK) {
            if !self.rng.percent(zero_percent) {
                let kind =
                    *self.rng.pick(&[ContentKind::Random, ContentKind::Random, ContentKind::Text, ContentKind::Mixed]);
                fill_content(&mut self.rng, kind, block);
            }
        }
        bytes
    }

    /// A write within a unit, or one from the middle of a unit to the middle of the next.
    fn write(&mut self) -> Result<Ended, Failure> {
        let (index, blocks) = (self.rng.index(self.units.len()), self.unit_bytes / BLOCK);
        let next = index + PLACES.len();
        let is_across = blocks > 1 && next < self.units.len() && self.rng.percent(15);
        let parts = if is_across {
            vec![(index, blocks / 2..blocks), (next, 0..blocks / 2)]
        } else {
            vec![(index, self.choose_blocks())]
        };
        let bytes = self.content(parts.iter().map(|(_, blocks)| blocks.len()).sum());
        let shape = bytes.chunks(BLOCK).map(|block| if block.iter().all(|byte| *byte == 0) { '0' } else { 'x' });
        let shape: String = shape.collect();
        self.story.push(format!("write {shape} at block {} of unit {index}", parts[0].1.start));
        let offset = self.units[index].offset + (parts[0].1.start * BLOCK) as u64;
        let written = self.share().write(self.units[index].file, offset, Bytes::from(bytes.clone()));
        let ended = self.judge(written)?;
        let mut rest = &bytes[..];
        for (index, blocks) in parts {
            let (mine, others) = rest.split_at(blocks.len() * BLOCK);
            rest = others;
            // A refused request has been refused before any of it was written: it is small.
            if ended != Ended::Full {
                self.units[index].changed(blocks, mine, ended == Ended::Well);
            }
        }
        Ok(ended)
    }

    /// A block becomes a hole: the smallest discard, because larger ones are several changes.
    fn discard(&mut self) -> Result<Ended, Failure> {
        let index = self.rng.index(self.units.len());
        let block = self.rng.index(self.unit_bytes / BLOCK);
        self.story.push(format!("discard block {block} of unit {index}"));
        let unit = &self.units[index];
        let offset = unit.offset + (block * BLOCK) as u64;
        let ended = self.judge(self.share().discard(unit.file, offset..offset + BLOCK as u64))?;
        if ended != Ended::Full {
            self.units[index].changed(block..block + 1, &[0; BLOCK], ended == Ended::Well);
        }
        Ok(ended)
    }

    /// Everything acknowledged is durable.
    fn flushed(&mut self, ended: Ended) -> Ended {
        if ended == Ended::Well {
            self.units.iter_mut().for_each(|unit| unit.flushed = unit.acknowledged);
        }
        ended
    }

    fn read(&self, unit: &Unit, blocks: std::ops::Range<usize>) -> surface::Result<Vec<u8>> {
        let mut bytes = vec![0xee; blocks.len() * BLOCK];
        self.share().read(unit.file, unit.offset + (blocks.start * BLOCK) as u64, &mut bytes)?;
        Ok(bytes)
    }

    /// Blocks of a unit are read one at a time.
    fn read_in_pieces(&mut self) -> Result<Ended, Failure> {
        let index = self.rng.index(self.units.len());
        let unit = &self.units[index];
        for piece in 0..PIECES {
            let block = piece % (self.unit_bytes / BLOCK);
            let found = self.read(unit, block..block + 1).map_err(|e| self.failure(e))?;
            let expected = &unit.states[unit.acknowledged][block * BLOCK..(block + 1) * BLOCK];
            if found != expected {
                return Err(self.failure(format!("block {block} of unit {index} has other bytes than were written")));
            }
            // From the disk each time.
            self.pool().drop_caches();
        }
        Ok(Ended::Well)
    }

    fn step(&mut self) -> Result<Ended, Failure> {
        let name = ["flush", "checkpoint", "light checkpoint", "clean", "recompress", "sort", "tick", "scrub"];
        let result = match self.rng.below(100) {
            0..72 => return self.write(),
            72..78 => return self.discard(),
            78..80 => return self.read_in_pieces(),
            chosen => {
                let index = (chosen - 80) as usize % name.len();
                self.story.push(name[index].to_owned());
                let (all, restart) = (self.rng.percent(30), self.rng.coin());
                let bytes = self.rng.between(1, 2 << 20);
                let pool = self.pool();
                let result = match index {
                    0 => self.share().flush(),
                    1 => pool.checkpoint(),
                    2 => pool.light_checkpoint(),
                    3 => pool.clean(all, 20).map(drop),
                    4 => pool.recompress("s", Some("archive"), bytes, restart).map(drop),
                    5 => pool.sort(bytes, restart).map(drop),
                    6 => {
                        self.machine.clock.advance_ms(6000);
                        pool.tick()
                    }
                    _ => pool.scrub(bytes, restart).map(drop),
                };
                result.map(|()| index < 3)
            }
        };
        let is_flush = *result.as_ref().unwrap_or(&false);
        let ended = self.judge(result.map(drop))?;
        Ok(if is_flush { self.flushed(ended) } else { ended })
    }

    /// Operations until the power is gone, or so many.
    fn run(&mut self, steps: u64) -> Result<(), Failure> {
        for _ in 0..steps {
            self.tally.ops += 1;
            match self.step()? {
                Ended::Dark => break,
                Ended::Full => self.tally.fulls += 1,
                Ended::Well => {}
            }
        }
        Ok(())
    }

    /// Plans the end at one of the next points.
    fn plan(&mut self, within: u64) {
        let point = self.machine.power.next_point() + self.rng.below(within);
        self.machine.power.plan(point, Fault::Crash);
    }

    /// The power fails, or only the program dies, in `power_percent` of a hundred cases; each unit
    /// has one of its possible contents.
    fn end(&mut self, power_percent: u64) -> Result<(), Failure> {
        let mut has_lost_power = false;
        loop {
            let is_power_loss = self.rng.percent(power_percent);
            has_lost_power |= is_power_loss;
            self.machine.power.cut();
            self.share = None;
            self.pool = None;
            self.machine.power.clear_plan();
            if is_power_loss {
                self.machine.power_cycle();
            } else {
                self.machine.restart();
            }
            self.tally.crashes += 1;
            self.story.push(if is_power_loss { "the power fails".to_owned() } else { "the program dies".to_owned() });
            // It may end again while the pool is opened: in the midst of a replay, for example.
            if self.rng.percent(30) {
                self.plan(60);
            }
            let opened = Pool::open(env(&self.machine), self.options.clone());
            if !self.machine.power.is_lost() {
                self.machine.power.clear_plan();
                self.pool = Some(opened.map_err(|e| self.failure(format!("open: {e}")))?);
                break;
            }
        }
        self.find_share()?;
        for (index, unit) in self.units.iter().enumerate() {
            let found = self.read(unit, 0..self.unit_bytes / BLOCK).map_err(|e| self.failure(e))?;
            let oldest = if has_lost_power { unit.flushed } else { unit.acknowledged };
            if unit.states[oldest..].iter().any(|state| state[..] == found[..]) {
                continue;
            }
            // Of each block, the writes after which it had these bytes.
            let blocks = found.chunks(BLOCK).enumerate().map(|(block, bytes)| {
                let has = |state: &Rc<[u8]>| state[block * BLOCK..(block + 1) * BLOCK] == *bytes;
                unit.states
                    .iter()
                    .enumerate()
                    .filter(|(_, state)| has(state))
                    .map(|(number, _)| number)
                    .collect::<Vec<_>>()
            });
            let (blocks, last) = (blocks.collect::<Vec<_>>(), unit.states.len() - 1);
            return Err(self.failure(format!(
                "unit {index} is torn: its blocks are of states {blocks:?}, of which {oldest} to {last} are allowed"
            )));
        }
        for index in 0..self.units.len() {
            let found = self.read(&self.units[index], 0..self.unit_bytes / BLOCK).map_err(|e| self.failure(e))?;
            let unit = &mut self.units[index];
            (unit.states, unit.flushed, unit.acknowledged) = (vec![found.into()], 0, 0);
        }
        Ok(())
    }

    /// What was found after the end becomes durable.
    fn settle(&mut self) -> Result<(), Failure> {
        let result = self.share().flush();
        let ended = self.judge(result)?;
        self.flushed(ended);
        Ok(())
    }
}

fn power_run(seed: u64) -> Result<Tally, Failure> {
    let mut pages = Pages::new(seed, false)?;
    for _ in 0..8 {
        let within = *pages.rng.pick(&[3, 10, 30, 100]);
        pages.plan(within);
        pages.run(80)?;
        pages.end(100)?;
        pages.settle()?;
    }
    let check = pages.pool().check(false, &mut |_, _| ()).map_err(|e| pages.failure(e))?;
    if let Some(problem) = check.problems.first() {
        return Err(pages.failure(format!("check: {problem:?}")));
    }
    Ok(pages.tally)
}

/// The program dies, and perhaps the power fails before all of its memory is in the log.
fn death_run(seed: u64) -> Result<Tally, Failure> {
    let mut pages = Pages::new(seed, true)?;
    for _ in 0..8 {
        let within = *pages.rng.pick(&[10, 100, 300, 1000]);
        pages.plan(within);
        pages.run(80)?;
        pages.end(30)?;
        pages.settle()?;
    }
    Ok(pages.tally)
}

#[test]
fn no_loss_of_power_tears_a_unit() {
    let campaign = Campaign { file: "pages", test: "no_loss_of_power_tears_a_unit", seeds: 400, soaks: true };
    let total = campaign.run(power_run);
    campaign.demand(total.crashes >= 3200, "at least 3200 losses of power");
}

#[test]
fn no_death_of_the_program_tears_a_unit() {
    let campaign = Campaign { file: "pages", test: "no_death_of_the_program_tears_a_unit", seeds: 300, soaks: true };
    let total = campaign.run(death_run);
    campaign.demand(total.crashes >= 2400, "at least 2400 ends");
}

/// The same operations, with the power cut at each of their points.
fn every_point(seed: u64) -> Result<Tally, Failure> {
    let mut tally = Tally::default();
    let mut plain = Pages::new(seed, false)?;
    let first = plain.machine.power.next_point();
    plain.run(25)?;
    let end = plain.machine.power.next_point();
    drop(plain);
    for point in first..end {
        let mut pages = Pages::new(seed, false)?;
        pages.machine.power.plan(point, Fault::Crash);
        pages.run(25)?;
        pages.machine.reseed(seed ^ point);
        pages.end(100).map_err(|Failure(what)| Failure(format!("at point {point}: {what}")))?;
        tally.ops += pages.tally.ops;
        tally.crashes += pages.tally.crashes;
    }
    Ok(tally)
}

#[test]
fn the_power_may_fail_at_every_point() {
    let campaign = Campaign { file: "pages", test: "the_power_may_fail_at_every_point", seeds: 80, soaks: false };
    let total = campaign.run(every_point);
    campaign.demand(total.crashes >= 2000, "at least 2000 losses of power");
}
