//! Random operations on clones of an image whose store is moody, with crashes in between: reads
//! match the model, or return an error of the store.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolEnv, PoolOptions, Properties};
use sim::{ContentKind, Fault, Machine, Rng, fill_content, is_power_loss};
use surface::{BlockDevice, Error, ErrorKind, WriteOptions};

use crate::common::fake_origin::{FakeOrigin, Mood};
use crate::common::{Campaign, Failure, Tally, machine_env};

const GROUP: usize = 128 << 10;
const STEPS: u32 = 60;
const BLOCK: usize = 4096;

struct Run {
    rng: Rng,
    machine: Machine,
    origin: Arc<FakeOrigin>,
    pool: Option<Pool>,
    /// Volumes and snapshots: the content of each, after every operation since the last flush.
    model: BTreeMap<String, Vec<Vec<u8>>>,
    tally: Tally,
}

type Outcome<T> = Result<T, Failure>;

fn fail(text: impl std::fmt::Display) -> Failure {
    Failure(text.to_string())
}

impl Run {
    fn new(seed: u64) -> Outcome<Self> {
        let mut rng = Rng::new(seed);
        let capacity = [12 << 20, 24 << 20][rng.index(2)];
        let image = (rng.between(8, 24) as usize) * GROUP + rng.below(GROUP as u64) as usize;
        let machine = Machine::new(capacity, seed);
        let origin = FakeOrigin::new(seed, image);
        let mut run = Self { rng, machine, origin, pool: None, model: BTreeMap::new(), tally: Tally::default() };
        let extent_bytes = [64 << 10, 256 << 10][run.rng.index(2)];
        let mut properties = Properties::from([("compression".to_owned(), "lz4".to_owned())]);
        let cache = *run.rng.pick(&["25%", "1M", "90%", "0%"]);
        properties.insert("remote-cache".to_owned(), cache.to_owned());
        let format = FormatOptions { capacity_bytes: capacity, extent_bytes, properties };
        Pool::format(&run.env(), &format).map_err(fail)?;
        run.open()?;
        for name in ["a", "b"] {
            run.pool().clone_image(&run.origin.image, name, None, &Properties::new()).map_err(fail)?;
            let mut content = run.origin.content.clone();
            content.resize(image.next_multiple_of(BLOCK), 0);
            run.model.insert(name.to_owned(), vec![content]);
        }
        run.origin.set(Mood::Moody(12));
        Ok(run)
    }

    fn env(&self) -> PoolEnv {
        PoolEnv { origins: Some(self.origin.clone()), ..machine_env::env(&self.machine) }
    }

    fn open(&mut self) -> Outcome<()> {
        let options = PoolOptions { memory_bytes: 4 << 20, workers: 0, ..PoolOptions::default() };
        self.pool = Some(Pool::open(self.env(), options).map_err(|error| fail(format!("open: {error}")))?);
        Ok(())
    }

    fn pool(&self) -> &Pool {
        self.pool.as_ref().expect("the pool is open")
    }

    fn name(&mut self, snapshots: bool) -> Option<String> {
        let names: Vec<_> = self.model.keys().filter(|name| snapshots || !name.contains('@')).cloned().collect();
        (!names.is_empty()).then(|| self.rng.pick(&names).clone())
    }

    /// Whether an error is allowed: one of the store, of a full pool, or of the power.
    fn excuse(&mut self, error: &Error) -> Outcome<()> {
        let text = error.to_string();
        let of_store = text.contains("could not be fetched");
        self.tally.faults += u64::from(of_store);
        self.tally.fulls += u64::from(error.kind() == ErrorKind::Full);
        if of_store || error.kind() == ErrorKind::Full || self.machine.power.is_lost() || is_power_loss(&text) {
            return Ok(());
        }
        Err(fail(format!("unexpected: {text}")))
    }

    fn range(&mut self, len: usize) -> (usize, usize) {
        let whole = self.rng.percent(70);
        let longest = if self.rng.percent(20) { 6 * GROUP } else { 40_000 };
        let unit = if whole { BLOCK } else { 1 };
        let offset = self.rng.below((len / unit) as u64) as usize * unit;
        let count = (self.rng.between(1, longest as u64) as usize).next_multiple_of(unit);
        (offset, count.min(len - offset))
    }

    fn read(&mut self, name: &str) -> Outcome<()> {
        let latest = self.model[name].last().expect("a state").clone();
        let (offset, len) = self.range(latest.len());
        let mut bytes = vec![0xaa; len];
        let volume = self.pool().volume(name).map_err(fail)?;
        match volume.read(offset as u64, &mut bytes) {
            Ok(()) if bytes == latest[offset..offset + len] => Ok(()),
            Ok(()) => Err(fail(format!("'{name}' reads wrong within {len} bytes at {offset}"))),
            Err(error) => self.excuse(&error),
        }
    }

    fn change(&mut self, name: &str) -> Outcome<()> {
        let mut states = self.model.remove(name).expect("a volume");
        let mut content = states.last().expect("a state").clone();
        let (offset, len) = self.range(content.len());
        let volume = self.pool().volume(name).map_err(fail)?;
        let done = if self.rng.percent(25) {
            content[offset..offset + len].fill(0);
            volume.discard(offset as u64, len as u64)
        } else {
            let mut data = vec![0; len];
            let kind = ContentKind::choose(&mut self.rng);
            fill_content(&mut self.rng, kind, &mut data);
            content[offset..offset + len].copy_from_slice(&data);
            volume.write(offset as u64, Bytes::from(data), WriteOptions::default())
        };
        // One that fails may have happened in part.
        states.push(content);
        self.model.insert(name.to_owned(), states);
        if let Err(error) = done {
            self.excuse(&error)?;
            if !self.machine.power.is_lost() {
                // Unflushed changes may still be lost.
                self.machine.power.clear_plan();
                let before = self.model[name].clone();
                self.settle(name)?;
                let now = self.model.remove(name).into_iter().flatten();
                self.model.insert(name.to_owned(), before.into_iter().chain(now).collect());
            }
        }
        Ok(())
    }

    /// The present content, each block of which one of the possible states has, becomes the only
    /// state.
    fn settle(&mut self, name: &str) -> Outcome<()> {
        self.origin.set(Mood::Well);
        let states = self.model.remove(name).ok_or_else(|| fail("no such volume"))?;
        let volume = self.pool().volume(name).map_err(fail)?;
        let mut now = vec![0; states[0].len()];
        self.machine.clock.advance_ms(900_000);
        volume.read(0, &mut now).map_err(|error| fail(format!("reading '{name}': {error}")))?;
        for (index, block) in now.chunks(BLOCK).enumerate() {
            let at = index * BLOCK;
            if !states.iter().any(|state| state[at..at + block.len()] == *block) {
                return Err(fail(format!("block {index} of '{name}' is none of the {} it may be", states.len())));
            }
        }
        self.model.insert(name.to_owned(), vec![now]);
        self.origin.set(Mood::Moody(12));
        Ok(())
    }

    fn flush(&mut self) -> Outcome<bool> {
        match self.pool().flush() {
            Ok(()) => {
                for states in self.model.values_mut() {
                    states.drain(..states.len() - 1);
                }
                Ok(true)
            }
            Err(error) => self.excuse(&error).map(|()| false),
        }
    }

    /// Snapshots, clones and similar changes, which are durable when they return, and all before
    /// them.
    fn history(&mut self, number: u32) -> Outcome<()> {
        self.machine.power.clear_plan();
        if self.machine.power.is_lost() || !self.flush()? {
            return Ok(());
        }
        let Some(volume) = self.name(false) else { return Ok(()) };
        match self.rng.below(5) {
            0 | 1 if self.model.len() < 8 => {
                let title = format!("{volume}@s{number}");
                self.pool().snapshot(&volume, &format!("s{number}")).map_err(fail)?;
                self.model.insert(title, self.model[&volume].clone());
            }
            2 => {
                let snapshots: Vec<_> = self.model.keys().filter(|name| name.contains('@')).cloned().collect();
                if !snapshots.is_empty() && self.model.len() < 8 {
                    let from = self.rng.pick(&snapshots).clone();
                    let name = format!("c{number}");
                    self.pool().clone_snapshot(&from, &name, &Properties::new()).map_err(fail)?;
                    self.model.insert(name, self.model[&from].clone());
                }
            }
            3 if self.model.len() > 2 => {
                let Some(name) = self.name(true) else { return Ok(()) };
                let below = format!("{name}@");
                self.pool().destroy(&name, true).map_err(fail)?;
                self.model.retain(|other, _| *other != name && !other.starts_with(&below));
            }
            _ => {
                let name = format!("i{number}");
                self.pool().clone_image(&self.origin.image, &name, None, &Properties::new()).map_err(fail)?;
                let mut content = self.origin.content.clone();
                content.resize(content.len().next_multiple_of(BLOCK), 0);
                self.model.insert(name, vec![content]);
            }
        }
        Ok(())
    }

    fn step(&mut self, number: u32) -> Outcome<()> {
        self.tally.ops += 1;
        let done = match self.rng.below(100) {
            0..40 => match self.name(true) {
                Some(name) => return self.read(&name),
                None => Ok(()),
            },
            40..65 => match self.name(false) {
                Some(name) => return self.change(&name),
                None => Ok(()),
            },
            65..73 => return self.history(number),
            73..80 => return self.flush().map(drop),
            80..85 => self.pool().checkpoint(),
            85..88 => self.pool().light_checkpoint(),
            88..91 => self.pool().clean(true, 2).map(drop),
            91..94 => {
                self.pool().drop_caches();
                self.machine.clock.advance_ms(900_000);
                let mood = *self.rng.pick(&[Mood::Moody(12), Mood::Away, Mood::Moody(3)]);
                self.origin.set(mood);
                Ok(())
            }
            94..96 => {
                let Some(name) = self.name(false) else { return Ok(()) };
                let value = *self.rng.pick(&["on", "off"]);
                self.machine.power.clear_plan();
                if self.machine.power.is_lost() {
                    return Ok(());
                }
                self.pool().set_properties(Some(&name), &[("hydrate".to_owned(), Some(value.to_owned()))])
            }
            _ => {
                self.machine.clock.advance_ms(20_000);
                self.pool().tick()
            }
        };
        done.or_else(|error| self.excuse(&error))
    }

    /// The power fails, and everything is in an allowed state.
    fn crash(&mut self) -> Outcome<()> {
        self.tally.crashes += 1;
        self.pool = None;
        self.machine.power.clear_plan();
        self.machine.power_cycle();
        self.open()?;
        self.verify()
    }

    fn verify(&mut self) -> Outcome<()> {
        for name in self.model.keys().cloned().collect::<Vec<_>>() {
            self.settle(&name)?;
        }
        self.pool().checkpoint().or_else(|error| self.excuse(&error))?;
        let report = self.pool().check(false, &mut |_, _| ()).map_err(fail)?;
        if report.problems.is_empty() { Ok(()) } else { Err(fail(format!("check: {:?}", report.problems))) }
    }

    fn run(mut self) -> Outcome<Tally> {
        for number in 0..STEPS {
            if self.rng.percent(10) {
                let point = self.machine.power.next_point() + self.rng.below(30);
                self.machine.power.plan(point, Fault::Crash);
            }
            self.step(number).map_err(|Failure(text)| fail(format!("step {number}: {text}")))?;
            if self.machine.power.is_lost() || self.rng.percent(2) {
                self.crash().map_err(|Failure(text)| fail(format!("crash behind step {number}: {text}")))?;
            }
        }
        self.machine.power.clear_plan();
        self.verify()?;
        Ok(self.tally)
    }
}

#[test]
fn random_operations() {
    let random = Campaign { file: "image_runs", test: "random_operations", seeds: 120, soaks: true };
    let total = random.run(|seed| Run::new(seed)?.run());
    random.demand(total.crashes > 100 && total.faults > 50, "crashes and failures of the store");
}
