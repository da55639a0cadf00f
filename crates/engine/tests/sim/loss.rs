//! `check --repair` of a log that is damaged where it was durable, or cut off: as much as possible
//! is kept; losses are reported before, volume by volume, and must be accepted; then they are
//! recorded. Also the description of a torn end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;

use crate::common::machine_env::env;
use bytes::Bytes;
use engine::{FormatOptions, Loss, Pool, PoolOptions, Properties};
use env::Disk as _;
use format::{Batch, Entry, decode_batch};
use sim::{Fault, Machine, Rng};
use surface::{BlockDevice, Error, ErrorKind, WriteOptions};

const CAPACITY_BYTES: u64 = 8 << 20;
const EXTENT_BYTES: u32 = 64 << 10;
const BLOCK: usize = 4096;
const BLOCKS: u64 = 16;
/// Batches after the checkpoint.
const STEPS: usize = 24;

/// Content of volumes: the version of each block, 0 for zeroes.
type State = BTreeMap<(&'static str, u64), u64>;

/// A pool that was killed with a log after its checkpoint.
struct Killed {
    machine: Machine,
    /// Its batches, in their order, each with its place on the disk.
    log: Vec<(u64, Batch)>,
    /// State after each step that was flushed. Steps and batches are the same.
    states: Vec<State>,
}

fn options() -> PoolOptions {
    PoolOptions { workers: 0, checkpoint_log_bytes: 64 << 20, ..PoolOptions::default() }
}

fn repair() -> PoolOptions {
    PoolOptions { repair: true, ..options() }
}

fn accepting() -> PoolOptions {
    PoolOptions { accept_loss: true, ..repair() }
}

/// Bytes that do not compress.
fn content(block: u64, version: u64) -> Vec<u8> {
    let mut rng = Rng::new(block << 32 | version);
    (0..BLOCK).map(|_| rng.next_u64() as u8).collect()
}

fn read(pool: &Pool, name: &str, block: u64) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0xee; BLOCK];
    pool.volume(name)?.read(block * BLOCK as u64, &mut bytes).map(|()| bytes)
}

/// The version of a block; `None` if it cannot be read.
fn version(pool: &Pool, name: &str, block: u64) -> Option<u64> {
    let bytes = read(pool, name, block).ok()?;
    if bytes.iter().all(|byte| *byte == 0) {
        return Some(0);
    }
    let known = (1..=STEPS as u64 + 1).find(|version| bytes == content(block, *version));
    Some(known.unwrap_or_else(|| panic!("HARNESS: block {block} of {name} was never like that")))
}

impl Killed {
    /// Step `n` writes version `n + 1` of a few blocks, and is one batch; some steps discard, take
    /// a snapshot, or make a volume.
    fn new(seed: u64) -> Self {
        let mut machine = Machine::new(CAPACITY_BYTES, seed);
        let format = FormatOptions {
            capacity_bytes: CAPACITY_BYTES,
            extent_bytes: EXTENT_BYTES,
            properties: Properties::from([("compression".to_owned(), "off".to_owned())]),
        };
        Pool::format(&env(&machine), &format).unwrap();
        let pool = Pool::open(env(&machine), options()).unwrap();
        let mut state = State::new();
        let write = |pool: &Pool, state: &mut State, name: &'static str, block: u64, version: u64| {
            let volume = pool.volume(name).unwrap();
            volume.write(block * BLOCK as u64, Bytes::from(content(block, version)), WriteOptions::default()).unwrap();
            state.insert((name, block), version);
        };
        for name in ["a", "b"] {
            pool.create_volume(name, BLOCKS * BLOCK as u64, &Properties::new()).unwrap();
            (0..BLOCKS).for_each(|block| write(&pool, &mut state, name, block, 1));
        }
        pool.checkpoint().unwrap();
        let mut states = vec![state.clone()];
        let mut rng = Rng::new(seed);
        for step in 1..=STEPS {
            let name = *rng.pick(&["a", "a", "a", "b"]);
            match step {
                12 => pool.take_snapshot("a", "s", false).unwrap(),
                16 => drop(pool.create_volume("c", BLOCKS * BLOCK as u64, &Properties::new()).unwrap()),
                8 | 20 => {
                    pool.volume(name).unwrap().discard(0, 2 * BLOCK as u64).unwrap();
                    state.extend((0..2).map(|block| ((name, block), 0)));
                }
                _ => {
                    let first = rng.below(BLOCKS - 2);
                    (first..first + 2).for_each(|block| write(&pool, &mut state, name, block, step as u64 + 1));
                }
            }
            pool.flush().unwrap();
            states.push(state.clone());
        }
        drop(pool);
        machine.restart();
        let mut killed = Self { machine, log: Vec::new(), states };
        killed.find_log();
        killed
    }

    fn find_log(&mut self) {
        let checkpoint = self.machine.store.dump().into_iter().find(|(key, _)| key[..] == *format::KEY_CHECKPOINT);
        let checkpoint = format::Checkpoint::decode(&checkpoint.unwrap().1).unwrap();
        let mut disk = vec![0; CAPACITY_BYTES as usize];
        self.machine.disk.peek(0, &mut disk);
        let mut at = EXTENT_BYTES as usize;
        while at < disk.len() {
            match decode_batch(&disk[at..]) {
                Ok(batch) if batch.header.seq >= checkpoint.next_seq => {
                    at += batch.batch_bytes;
                    self.log.push(((at - batch.batch_bytes) as u64, batch));
                }
                _ => at += BLOCK,
            }
        }
        self.log.sort_by_key(|(_, batch)| batch.header.seq);
        assert_eq!(self.log.len(), STEPS, "each step is a batch");
    }

    fn copy(&self) -> Machine {
        self.machine.duplicate(1)
    }

    /// Number of the batch of a step.
    fn number(&self, step: usize) -> u64 {
        self.log[step - 1].1.header.seq.0
    }

    fn tear_header(&self, machine: &Machine, step: usize) {
        machine.disk.poke(self.log[step - 1].0, &[0; 512]);
    }

    /// A bit of the first payload of a step; `false` if it has none.
    fn flip_payload(&self, machine: &Machine, step: usize) -> bool {
        let (at, batch) = &self.log[step - 1];
        let has_payload = batch.entries.iter().flat_map(Entry::payloads).next().is_some();
        if has_payload {
            machine.disk.flip_bit(at + batch.header_bytes as u64 + 7, 3);
        }
        has_payload
    }
}

fn expect_state(pool: &Pool, state: &State) {
    for ((name, block), expected) in state {
        assert_eq!(version(pool, name, *block), Some(*expected), "HARNESS: block {block} of {name}");
    }
}

fn refused(machine: &Machine, options: PoolOptions) -> Error {
    match Pool::open(env(machine), options) {
        Ok(_) => panic!("HARNESS: opened without a word on what is lost"),
        Err(error) => error,
    }
}

fn loss(error: &Error) -> &Loss {
    let source = std::error::Error::source(error).unwrap_or_else(|| panic!("HARNESS: no loss: {error}"));
    source.downcast_ref().unwrap_or_else(|| panic!("HARNESS: no loss: {error}"))
}

/// Everything after a flipped bit in a payload was dropped, and older data showed.
#[test]
fn a_damaged_payload_takes_nothing_back_but_is_an_error() {
    let killed = Killed::new(1);
    let mut tried = 0;
    // Nothing says that the last batch was durable.
    for step in 1..STEPS {
        let machine = killed.copy();
        if !killed.flip_payload(&machine, step) {
            continue;
        }
        assert_eq!(refused(&machine, options()).kind(), ErrorKind::Corrupt);
        let pool = Pool::open(env(&machine), repair()).unwrap();
        assert!(pool.losses().is_empty() && pool.accepted_loss().is_none());
        let last = killed.states.last().unwrap();
        let wrote = |block: u64, name: &str| killed.states[step].get(&(name, block)) == Some(&(step as u64 + 1));
        let mut unreadable = 0;
        for ((name, block), expected) in last {
            match version(&pool, name, *block) {
                None => {
                    assert!(wrote(*block, name), "HARNESS: block {block} of {name} was written by another batch");
                    unreadable += 1;
                }
                Some(found) => assert_eq!(found, *expected, "HARNESS: step {step}, block {block} of {name}"),
            }
        }
        let report = pool.check(true, &mut |_, _| ()).unwrap();
        assert!(report.problems.iter().any(|p| p.kind == "log" && p.repaired && p.detail.contains("it is applied")));
        let seen = report.problems.iter().filter(|p| p.kind == "fragment" && !p.repaired).count();
        assert!(unreadable == 0 || seen > 0, "HARNESS: {report:?}");
        tried += 1;
        pool.close().unwrap();
        drop(Pool::open(env(&machine), options()).unwrap());
    }
    assert!(tried > 10, "{tried}");
}

#[test]
fn what_goes_back_is_told_before_it_does() {
    let killed = Killed::new(2);
    for step in 1..STEPS {
        let machine = killed.copy();
        killed.tear_header(&machine, step);
        let before = (machine.store.dump(), image(&machine));
        let text = refused(&machine, options()).to_string();
        assert!(text.contains("check --repair"), "{text}");
        let error = refused(&machine, repair());
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!((machine.store.dump(), image(&machine)) == before, "HARNESS: it was changed before that was accepted");
        let loss = loss(&error).clone();
        let behind = (STEPS - step) as u64;
        assert_eq!((loss.first_batch, loss.batches, loss.batches_whole), (killed.number(step), behind, behind));
        assert_eq!((loss.batches_unknown, loss.volumes_total), (1, loss.volumes.len() as u64), "HARNESS: {loss:?}");
        assert!(loss.flushed_before > killed.number(step), "a later batch says so: {loss:?}");
        // Every difference is in a named volume, or in the lost batch.
        for name in ["a", "b"] {
            let of = |state: &State| -> Vec<_> {
                state.iter().filter(|((n, _), _)| *n == name).map(|(_, version)| *version).collect()
            };
            let is_named = loss.volumes.iter().any(|of| of.name == name);
            let differs = of(&killed.states[step]) != of(killed.states.last().unwrap());
            assert!(is_named || !differs, "HARNESS: step {step}: {name} goes back: {loss:?}");
        }
        let is_told =
            |name: &str, what: &str| loss.volumes.iter().any(|of| of.name == name && of.to_string().contains(what));
        assert_eq!(is_told("a@s", "is gone"), step < 12, "HARNESS: {loss:?}");
        assert_eq!(is_told("c", "is gone"), step < 16, "HARNESS: {loss:?}");
        let written: u64 = loss.volumes.iter().map(|of| of.written_bytes).sum();
        let wrote = |n: &usize| ![8, 12, 16, 20].contains(n);
        assert_eq!(written, (step + 1..=STEPS).filter(wrote).count() as u64 * 2 * BLOCK as u64);
        // The report's figure for salvage is the result of a salvage.
        assert!(loss.lines().iter().any(|line| line.contains("salvage")));
        // Accepted, it is in the state before the batch.
        let pool = Pool::open(env(&machine), accepting()).unwrap();
        expect_state(&pool, &killed.states[step - 1]);
        assert_eq!(pool.accepted_loss().as_ref(), Some(&loss));
        let report = pool.check(true, &mut |_, _| ()).unwrap();
        assert!(loss.volumes.iter().all(|of| report.volumes.contains_key(&of.name)), "HARNESS: {report:?}");
        pool.close().unwrap();
        // It is recorded until a user has seen it.
        let pool = Pool::open(env(&machine), options()).unwrap();
        assert!(pool.losses().len() == 1 && pool.losses()[0].1.contains(&format!("batch {}", killed.number(step))));
        pool.acknowledge_losses().unwrap();
        assert!(pool.losses().is_empty());
        drop(pool);
        assert!(Pool::open(env(&machine), options()).unwrap().losses().is_empty());
    }
}

fn image(machine: &Machine) -> Vec<u8> {
    let mut disk = vec![0; CAPACITY_BYTES as usize];
    machine.disk.peek(0, &mut disk);
    disk
}

/// The end of the data was recreated, the log ended where it had been cut off, and nothing was
/// reported.
#[test]
fn a_log_that_was_cut_off_is_not_taken_for_its_end() {
    let killed = Killed::new(3);
    for step in 1..=STEPS {
        let machine = killed.copy();
        let cut = killed.log[step - 1].0;
        machine.disk.become_file(CAPACITY_BYTES);
        machine.disk.handle().shrink(cut).unwrap();
        machine.disk.handle().sync().unwrap();
        let text = refused(&machine, options()).to_string();
        assert!(text.contains("cut off"), "{text}");
        let error = refused(&machine, repair());
        assert!(loss(&error).first_batch > 0 && loss(&error).what.contains("cut off"), "HARNESS: {error}");
        assert_eq!(
            machine.disk.handle().size_bytes().unwrap(),
            cut,
            "HARNESS: it was made longer before that was accepted"
        );
        let pool = Pool::open(env(&machine), accepting()).unwrap();
        assert_eq!(machine.disk.handle().size_bytes().unwrap(), CAPACITY_BYTES);
        let text = pool.losses()[0].1.clone();
        assert!(text.contains("cut off"), "{text}");
        // The state after some step, except for older data in the part that was cut off.
        let all = ["a", "b"].into_iter().flat_map(|name| (0..BLOCKS).map(move |block| (name, block)));
        let found: Vec<_> = all.map(|(name, block)| ((name, block), version(&pool, name, block))).collect();
        let is_like = |state: &State| found.iter().all(|(key, found)| found.is_none_or(|found| state[key] == found));
        assert!(killed.states[..step].iter().any(is_like), "HARNESS: a mixture: {found:?}");
    }
}

/// If a repair that drops data is interrupted at any point, the damage is found again, or the pool
/// has recorded the loss.
#[test]
fn a_loss_is_remembered_wherever_the_repair_was_cut_off() {
    let killed = Killed::new(4);
    let mut cut_off = 0;
    for (is_cut, step) in [(false, 3), (true, 3), (false, STEPS - 2), (true, STEPS - 2)] {
        for seed in 0..3 {
            for point in 0.. {
                let mut machine = killed.machine.duplicate(seed * 1000 + point);
                if is_cut {
                    machine.disk.become_file(CAPACITY_BYTES);
                    machine.disk.handle().shrink(killed.log[step - 1].0).unwrap();
                    machine.disk.handle().sync().unwrap();
                } else {
                    killed.tear_header(&machine, step);
                }
                machine.power.plan(machine.power.next_point() + point, Fault::Crash);
                drop(Pool::open(env(&machine), accepting()));
                machine.power.clear_plan();
                let is_done = machine.power.take_fired().is_empty();
                machine.power_cycle();
                match Pool::open(env(&machine), options()) {
                    Ok(pool) => {
                        assert!(!pool.losses().is_empty(), "HARNESS: what was lost is forgotten, point {point}")
                    }
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}"),
                }
                if is_done {
                    break;
                }
                cut_off += 1;
            }
        }
    }
    assert!(cut_off > 30, "{cut_off}");
}

/// The loss by a repair of a volume's content is recorded before: it is marked as reported later,
/// and stays until it is acknowledged.
#[test]
fn a_loss_that_is_noted_outlives_the_repair_that_was_to_tell_it() {
    let mut machine = Killed::new(6).machine;
    let noted =
        |pool: &Pool| (pool.losses().into_iter().map(|(_, text)| text).collect::<Vec<_>>(), pool.unreported_losses());
    let all = |losses: &[&str]| losses.iter().map(|text| (*text).to_owned()).collect::<Vec<String>>();
    let pool = Pool::open(env(&machine), options()).unwrap();
    pool.note_loss("names of a").unwrap();
    drop(pool);
    machine.power_cycle();
    let pool = Pool::open(env(&machine), options()).unwrap();
    assert_eq!(noted(&pool), (all(&["names of a"]), all(&["names of a"])));
    // The repair is run again, and finds one thing more.
    pool.note_loss("names of a").unwrap();
    pool.note_loss(&"b".repeat(100_000)).unwrap();
    assert!(pool.unreported_losses().len() == 2 && pool.unreported_losses()[1].len() < 20_000);
    pool.mark_losses_reported().unwrap();
    drop(pool);
    machine.power_cycle();
    let pool = Pool::open(env(&machine), options()).unwrap();
    assert!(pool.losses().len() == 2 && pool.unreported_losses().is_empty());
    // The same thing once more, in new damage.
    pool.note_loss("names of a").unwrap();
    assert_eq!((pool.losses().len(), pool.unreported_losses()), (3, all(&["names of a"])));
    pool.acknowledge_losses().unwrap();
    drop(pool);
    machine.power_cycle();
    let pool = Pool::open(env(&machine), options()).unwrap();
    assert_eq!(noted(&pool), (Vec::new(), Vec::new()));
}

/// The last batch may have been flushed, or not: `check` called the pool clean.
#[test]
fn of_a_torn_end_is_said_what_can_be_said() {
    let killed = Killed::new(5);
    let end = |machine: &Machine| {
        let pool = Pool::open(env(machine), options()).unwrap();
        let report = pool.check(false, &mut |_, _| ()).unwrap();
        assert!(report.problems.is_empty() && pool.losses().is_empty());
        drop(pool);
        report.log_end
    };
    let last = killed.number(STEPS);
    let whole = end(&killed.copy()).unwrap();
    assert!(whole.contains(&format!("ends with batch {last}")) && whole.contains("not closed properly"), "{whole}");
    let machine = killed.copy();
    assert!(killed.flip_payload(&machine, STEPS));
    let torn = end(&machine).unwrap();
    assert!(torn.contains(&format!("batch {last} is torn")) && torn.contains("it is unknown"), "{torn}");
    let machine = killed.copy();
    machine.disk.flip_bit(killed.log[STEPS - 1].0 + 9, 0);
    let torn = end(&machine).unwrap();
    assert!(torn.contains(&format!("batch {last} is torn")), "{torn}");
    let machine = killed.copy();
    killed.tear_header(&machine, STEPS);
    let gone = end(&machine).unwrap();
    assert!(gone.contains(&format!("ends with batch {}", last - 1)), "{gone}");
    // After an orderly end there is nothing to say.
    let machine = killed.copy();
    Pool::open(env(&machine), options()).unwrap().close().unwrap();
    assert_eq!(end(&machine), None);
}
