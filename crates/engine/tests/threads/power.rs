//! The power fails while threads write, flush, take snapshots and roll back to them, and while the
//! engine's own threads and others write batches, take checkpoints, clean, sort and recompress:
//! flushed data, flushed by any thread, is there when the power is back, or later data of the same
//! block. Changes of volumes have happened wholly or not at all.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolOptions};
use sim::{Fault, Machine, Rng};
use surface::{BlockDevice, Result, WriteOptions, ZeroOptions};

use super::{BLOCK, tag_of, tagged_block};
use crate::common::machine_env::env;
use crate::common::{Campaign, Tally};

const THREADS: u64 = 3;
const BLOCKS: u64 = 384;
/// Blocks of the shared volume that follow one another and belong to one thread.
const STRIPE_BLOCKS: u64 = 4;
const SHARED: &str = "shared";
const SNAPSHOTS_MAX: usize = 3;
const CAPACITY_BYTES: u64 = 64 << 20;
/// Operations of the disk and the store until the power fails, at most.
const POINTS_MAX: u64 = 20_000;
/// Operations of a thread before the power is cut in any case.
const OPS_MAX: u64 = 2000;
const ROUNDS: u64 = 3;

/// Allowed content of a block: the tags that were written to it, oldest first, each with the number
/// of the operation, 0 if it is certainly durable.
#[derive(Debug, Clone)]
struct Block(Vec<(u64, u64)>);

impl Block {
    fn certain(tag: u64) -> Self {
        Self(vec![(0, tag)])
    }

    fn newest(&self) -> u64 {
        self.0.last().expect("never empty").1
    }

    /// If everything up to the operation `durable` is durable.
    fn can_hold(&self, tag: u64, durable: u64) -> bool {
        let first = self.0.iter().rposition(|(op, _)| *op <= durable).unwrap_or(0);
        self.0[first..].iter().any(|(_, possible)| *possible == tag)
    }
}

fn certain(tags: &[u64]) -> Vec<Block> {
    tags.iter().copied().map(Block::certain).collect()
}

/// All that one thread knows of its volumes.
#[derive(Debug, Clone)]
struct World {
    volume: Vec<Block>,
    /// Of the shared volume; only its own blocks count.
    shared: Vec<Block>,
    snapshots: Vec<(String, Vec<u64>)>,
    copy: Option<Vec<Block>>,
}

/// Facts about a thread that others may use.
#[derive(Debug, Default)]
struct Progress {
    acknowledged: AtomicU64,
    durable: AtomicU64,
}

struct Client<'a> {
    number: u64,
    rng: Rng,
    pool: Pool,
    op: u64,
    world: World,
    /// Its alternative state if the failed operation has happened.
    or_else: Option<World>,
    progress: &'a Progress,
    /// The operations of the thread, in order: the way to a fault.
    story: Vec<String>,
}

impl Client<'_> {
    fn name(&self) -> String {
        format!("v{}", self.number)
    }

    fn copy_name(&self) -> String {
        format!("c{}", self.number)
    }

    /// Until something fails, which only happens without power.
    fn run(mut self, machine: &Machine) -> Self {
        for _ in 0..OPS_MAX {
            if let Err(error) = self.step() {
                assert!(machine.power.is_lost(), "HARNESS: with the power on: {:?}: {error}", error.kind());
                return self;
            }
        }
        machine.power.cut();
        self
    }

    fn step(&mut self) -> Result<()> {
        self.op += 1;
        match self.rng.below(100) {
            0..80 => self.write()?,
            80..83 => self.flush()?,
            83..88 if self.world.snapshots.len() < SNAPSHOTS_MAX => self.snapshot()?,
            88..91 => self.destroy()?,
            91..93 => self.roll_back()?,
            93..95 => self.copy()?,
            95..97 => self.end_copy()?,
            _ => self.pool.tick()?,
        }
        self.progress.acknowledged.store(self.op, Ordering::SeqCst);
        Ok(())
    }

    /// Writes, discards or zeroes blocks of the own volume, its clone or the shared one.
    fn write(&mut self) -> Result<()> {
        let first = self.rng.below(BLOCKS);
        let range = first..(first + self.rng.between(1, 48)).min(BLOCKS);
        let (name, copy_name) = (self.name(), self.copy_name());
        match (self.rng.below(10), &self.world.copy) {
            (0..3, _) => {
                let stripe = first / STRIPE_BLOCKS / THREADS * THREADS + self.number;
                let first = stripe * STRIPE_BLOCKS;
                let range = first..first + self.rng.between(1, STRIPE_BLOCKS);
                self.change(SHARED, |world| &mut world.shared, range)
            }
            (3..5, Some(_)) => self.change(&copy_name, |world| world.copy.as_mut().expect("is there"), range),
            _ => self.change(&name, |world| &mut world.volume, range),
        }
    }

    fn change(
        &mut self,
        name: &str,
        blocks: fn(&mut World) -> &mut Vec<Block>,
        range: std::ops::Range<u64>,
    ) -> Result<()> {
        let tag = if self.rng.percent(20) { 0 } else { (self.number + 1) << 32 | self.op };
        let fua = self.rng.percent(5);
        let (offset, bytes) = (range.start * BLOCK, (range.end - range.start) * BLOCK);
        let own = range.start as usize..range.end as usize;
        self.story.push(format!("{}: {name} {own:?} {tag:#x}{}", self.op, if fua { " fua" } else { "" }));
        blocks(&mut self.world)[own.clone()].iter_mut().for_each(|block| block.0.push((self.op, tag)));
        let device = self.pool.volume(name)?;
        match tag {
            0 if fua => device.write_zeroes(offset, bytes, ZeroOptions { fua, no_hole: self.rng.coin() })?,
            0 => device.discard(offset, bytes)?,
            tag => {
                let mut data = vec![0; bytes as usize];
                data.chunks_mut(BLOCK as usize).for_each(|block| tagged_block(tag, block));
                device.write(offset, Bytes::from(data), WriteOptions { fua })?;
            }
        }
        if fua {
            blocks(&mut self.world)[own].iter_mut().for_each(|block| *block = Block::certain(tag));
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        if self.rng.coin() {
            self.pool.flush()?
        } else {
            self.pool.volume(SHARED)?.flush()?
        }
        // One volume's flush covers this volume's writes; the pool has only one log, and says so.
        self.progress.durable.fetch_max(self.op, Ordering::SeqCst);
        Ok(())
    }

    /// Changes of volumes: on an error they may have happened.
    fn alter(&mut self, what: &str, after: World, alter: impl FnOnce(&Pool) -> Result<()>) -> Result<()> {
        self.story.push(format!("{}: {what}", self.op));
        self.or_else = Some(after);
        alter(&self.pool)?;
        self.world = self.or_else.take().expect("just set");
        Ok(())
    }

    fn snapshot(&mut self) -> Result<()> {
        let (name, own) = (self.name(), format!("s{}", self.op));
        let tags: Vec<_> = self.world.volume.iter().map(Block::newest).collect();
        let mut after = self.world.clone();
        after.volume = certain(&tags);
        after.snapshots.push((format!("{name}@{own}"), tags));
        self.alter(&format!("snapshot {name}@{own}"), after, |pool| pool.snapshot(&name, &own))
    }

    fn destroy(&mut self) -> Result<()> {
        if self.world.copy.is_some() || self.world.snapshots.is_empty() {
            return Ok(());
        }
        let mut after = self.world.clone();
        let (name, _) = after.snapshots.remove(self.rng.index(self.world.snapshots.len()));
        self.alter(&format!("destroy {name}"), after, |pool| pool.destroy(&name, false))
    }

    fn roll_back(&mut self) -> Result<()> {
        let Some((name, tags)) = self.world.snapshots.last().cloned() else { return Ok(()) };
        let after = World { volume: certain(&tags), ..self.world.clone() };
        self.alter(&format!("rollback {name}"), after, |pool| pool.rollback(&name, false))
    }

    fn copy(&mut self) -> Result<()> {
        if self.world.copy.is_some() || self.world.snapshots.is_empty() {
            return Ok(());
        }
        let (origin, tags) = self.world.snapshots[self.rng.index(self.world.snapshots.len())].clone();
        let copy_name = self.copy_name();
        let after = World { copy: Some(certain(&tags)), ..self.world.clone() };
        self.alter(&format!("clone {origin}"), after, |pool| {
            pool.clone_snapshot(&origin, &copy_name, &Default::default())
        })
    }

    fn end_copy(&mut self) -> Result<()> {
        if self.world.copy.is_none() {
            return Ok(());
        }
        let copy_name = self.copy_name();
        let after = World { copy: None, ..self.world.clone() };
        self.alter("destroy the clone", after, |pool| pool.destroy(&copy_name, false))
    }

    /// With the power back: the one of the possible worlds that is there, with all that it holds
    /// certain.
    fn settle(mut self, pool: &Pool) -> World {
        let durable = self.progress.durable.load(Ordering::SeqCst);
        let mut worlds = vec![self.world.clone()];
        worlds.extend(self.or_else.take());
        let names: BTreeSet<String> = worlds.iter().flat_map(|world| self.names(world)).collect();
        let there: BTreeSet<_> = names.into_iter().filter(|name| pool.volume(name).is_ok()).collect();
        let mut why = Vec::new();
        for world in worlds {
            match self.compare(pool, world, &there, durable) {
                Ok(world) => return world,
                Err(error) => why.push(error),
            }
        }
        panic!(
            "HARNESS: thread {}, durable up to operation {durable} of {}: {}",
            self.number,
            self.op,
            why.join("; or ")
        );
    }

    fn names(&self, world: &World) -> BTreeSet<String> {
        let mut names = BTreeSet::from([self.name(), SHARED.to_owned()]);
        names.extend(world.snapshots.iter().map(|(name, _)| name.clone()));
        names.extend(world.copy.as_ref().map(|_| self.copy_name()));
        names
    }

    fn compare(
        &self,
        pool: &Pool,
        mut world: World,
        there: &BTreeSet<String>,
        durable: u64,
    ) -> std::result::Result<World, String> {
        let names = self.names(&world);
        if names != *there {
            return Err(format!("there are {there:?}, not {names:?}"));
        }
        let is_own = |block: u64| block / STRIPE_BLOCKS % THREADS == self.number;
        settle_blocks(pool, SHARED, &mut world.shared, durable, is_own)?;
        settle_blocks(pool, &self.name(), &mut world.volume, durable, |_| true)?;
        if let Some(copy) = &mut world.copy {
            settle_blocks(pool, &self.copy_name(), copy, durable, |_| true)?;
        }
        for (name, tags) in &world.snapshots {
            settle_blocks(pool, name, &mut certain(tags), durable, |_| true)?;
        }
        Ok(world)
    }
}

fn settle_blocks(
    pool: &Pool,
    name: &str,
    blocks: &mut [Block],
    durable: u64,
    is_own: impl Fn(u64) -> bool,
) -> std::result::Result<(), String> {
    let mut data = vec![0xee; (BLOCKS * BLOCK) as usize];
    pool.volume(name).unwrap().read(0, &mut data).map_err(|error| format!("{name}: {error}"))?;
    for ((index, block), bytes) in (0..).zip(blocks).zip(data.chunks(BLOCK as usize)) {
        if is_own(index) {
            let tag = tag_of(bytes, index);
            if !block.can_hold(tag, durable) {
                return Err(format!("block {index} of {name} has {tag:#x}, not one of {block:x?}"));
            }
            *block = Block::certain(tag);
        }
    }
    Ok(())
}

/// Does this until the power fails.
fn again_and_again(machine: &Machine, is_over: &AtomicBool, action: &mut dyn FnMut() -> Result<()>) {
    while !is_over.load(Ordering::Relaxed) {
        if let Err(error) = action() {
            // A clone may be gone by now.
            let is_gone = error.kind() == surface::ErrorKind::NotFound;
            assert!(is_gone || machine.power.is_lost(), "HARNESS: with the power on: {:?}: {error}", error.kind());
            if machine.power.is_lost() {
                return;
            }
        }
    }
}

/// Work that runs along with the writers until the power fails.
#[derive(Debug, Clone, Copy)]
struct Beside {
    checkpoints: bool,
    cleaning: bool,
    rewriting: bool,
    /// A thread that flushes for all: data acknowledged before on any thread is durable.
    flushes: bool,
}

/// From an open pool until the power fails; returns the threads with their knowledge.
fn until_the_power_fails<'a>(
    machine: &Machine,
    pool: &Pool,
    mut clients: Vec<Client<'a>>,
    beside: Beside,
) -> Vec<Client<'a>> {
    let is_over = AtomicBool::new(false);
    let progress: Vec<_> = clients.iter().map(|client| client.progress).collect();
    std::thread::scope(|scope| {
        let (is_over, progress) = (&is_over, &progress);
        let until_over = move |action: &mut dyn FnMut() -> Result<()>| again_and_again(machine, is_over, action);
        if beside.checkpoints {
            scope.spawn(move || until_over(&mut || pool.checkpoint()));
        }
        if beside.cleaning {
            scope.spawn(move || until_over(&mut || pool.clean(true, 4).map(drop)));
        }
        if beside.rewriting {
            scope.spawn(move || {
                let mut number = 0;
                until_over(&mut || {
                    number = (number + 1) % THREADS;
                    pool.sort(1 << 20, true)?;
                    pool.recompress(&format!("v{number}"), Some("archive"), 1 << 20, true).map(drop)
                });
            });
        }
        if beside.flushes {
            scope.spawn(move || {
                until_over(&mut || {
                    let seen: Vec<_> = progress.iter().map(|one| one.acknowledged.load(Ordering::SeqCst)).collect();
                    pool.volume(SHARED)?.flush()?;
                    for (one, op) in progress.iter().zip(seen) {
                        one.durable.fetch_max(op, Ordering::SeqCst);
                    }
                    Ok(())
                });
            });
        }
        let threads: Vec<_> = clients.drain(..).map(|client| scope.spawn(move || client.run(machine))).collect();
        let clients: std::result::Result<_, _> = threads.into_iter().map(|thread| thread.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        clients.unwrap()
    })
}

/// Number before the first operation of a round.
fn first_op(round: u64) -> u64 {
    round * OPS_MAX * 2
}

fn run(seed: u64) -> Tally {
    let mut rng = Rng::new(seed);
    let mut machine = Machine::new(CAPACITY_BYTES, rng.next_u64());
    let compression = ["lz4", "zstd-1", "auto"][rng.index(3)];
    let properties = [("compression".to_owned(), compression.to_owned())].into();
    let extent_bytes = 64 << 10 << (2 * rng.below(3));
    let format = FormatOptions { capacity_bytes: CAPACITY_BYTES, extent_bytes, properties };
    Pool::format(&env(&machine), &format).unwrap();
    let options = PoolOptions {
        memory_bytes: 16 << 20,
        workers: 2,
        checkpoint_log_bytes: 1 << 20,
        age_limit_ms: 5,
        ..PoolOptions::default()
    };
    let mut pool = Pool::open(env(&machine), options.clone()).unwrap();
    let nothing = vec![0; BLOCKS as usize];
    pool.create_volume(SHARED, BLOCKS * BLOCK, &Default::default()).unwrap();
    let mut worlds: Vec<_> = (0..THREADS)
        .map(|number| {
            pool.create_volume(&format!("v{number}"), BLOCKS * BLOCK, &Default::default()).unwrap();
            let (volume, shared) = (certain(&nothing), certain(&nothing));
            World { volume, shared, snapshots: Vec::new(), copy: None }
        })
        .collect();
    let mut ops = 0;
    for round in 0..ROUNDS {
        let at = machine.power.next_point() + rng.below(POINTS_MAX);
        machine.power.plan(at, Fault::Crash);
        let progress: Vec<_> = (0..THREADS).map(|_| Progress::default()).collect();
        let known = (0..THREADS).zip(&progress).zip(worlds.drain(..));
        let clients = known.map(|((number, progress), world)| {
            let (rng, pool) = (rng.fork(), pool.clone());
            Client { number, rng, pool, op: first_op(round), world, or_else: None, progress, story: Vec::new() }
        });
        let clients = clients.collect();
        let [checkpoints, cleaning, rewriting, flushes] = [40, 60, 40, 30].map(|percent| rng.percent(percent));
        let beside = Beside { checkpoints, cleaning, rewriting, flushes };
        println!("{compression}, extents of {extent_bytes}, round {round}: {beside:?}");
        let mut clients = until_the_power_fails(&machine, &pool, clients, beside);
        // It cannot be closed in order any more; its threads end.
        let _ = pool.close();
        machine.power.clear_plan();
        machine.power_cycle();
        pool = Pool::open(env(&machine), options.clone()).unwrap_or_else(|error| panic!("HARNESS: opening: {error}"));
        clients.iter_mut().for_each(|client| client.pool = pool.clone());
        ops += clients.iter().map(|client| client.op - first_op(round)).sum::<u64>();
        worlds = clients.into_iter().map(|client| client.settle(&pool)).collect();
        let report = pool.check(false, &mut |_, _| ()).unwrap();
        assert!(report.problems.is_empty(), "HARNESS: check: {:?}", report.problems);
    }
    pool.close().unwrap();
    Tally { ops, crashes: ROUNDS, ..Tally::default() }
}

#[test]
fn threads_and_the_power() {
    let test = "threads::power::threads_and_the_power";
    Campaign { file: "model", test, seeds: 4, soaks: true }.run(|seed| Ok(run(seed)));
}
