//! The model of lives, pins, removals and clones of clones: keys 0 (the source), 1 (its clone) and 2 (the clone's clone), with a rival that
//! uses key 1, and collectors that drop dead pins. Commits are one step here: the model of one log shows why they may be.

use std::collections::BTreeSet;

use stateright::{Model, Property};

type Key = usize;
type Inc = usize;
type Pack = usize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Life {
    Born(Inc),
    Gone,
}

/// A version kept for a holder: (version, holder's key, number in its life log).
type Pin = (usize, Key, usize);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Blob {
    versions: Vec<BTreeSet<Pack>>,
    /// Versions in front of this one are expired.
    expired: usize,
    pins: BTreeSet<Pin>,
    closed: bool,
    own: BTreeSet<Pack>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    /// Pins in the blobs of this list are still to be made: (blob, version).
    Pinning {
        life: usize,
        left: Vec<(Inc, usize)>,
        made: Vec<(Inc, Pin)>,
    },
    Bearing {
        life: usize,
        made: Vec<(Inc, Pin)>,
    },
    Born(Inc),
    Done,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Cloner {
    source: Inc,
    to: Key,
    names: BTreeSet<Pack>,
    version: usize,
    phase: Phase,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    lives: [Vec<Life>; 3],
    blobs: Vec<Blob>,
    there: Vec<bool>,
    cloners: Vec<Cloner>,
    puts: u8,
    rivals: u8,
    /// What a collector has decided to take away, and not yet taken.
    dropping: BTreeSet<(Inc, Pin)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Put,
    Expire(Inc),
    Collect(Inc),
    Close(Inc),
    Gone(Key),
    DeleteUnpinned(Inc),
    Begin(usize),
    PinNext(usize),
    Bear(usize),
    Adopt(usize),
    Rival,
    Judge(Inc, Pin),
    Drop(Inc, Pin),
}

#[derive(Debug, Clone)]
pub struct CloneModel {
    pub canary: &'static str,
}

impl Blob {
    fn is_live(&self, version: usize) -> bool {
        version + 1 == self.versions.len() || version >= self.expired || self.pins.iter().any(|pin| pin.0 == version)
    }
}

impl World {
    fn newest(&self, key: Key) -> Option<Inc> {
        match self.lives[key].last() {
            Some(Life::Born(inc)) => Some(*inc),
            _ => None,
        }
    }

    fn key_of(&self, inc: Inc) -> Key {
        self.lives.iter().position(|lives| lives.contains(&Life::Born(inc))).unwrap_or(0)
    }

    fn bear(&mut self, key: Key) -> Inc {
        self.blobs.push(Blob {
            versions: Vec::new(),
            expired: 0,
            pins: BTreeSet::new(),
            closed: false,
            own: BTreeSet::new(),
        });
        let inc = self.blobs.len() - 1;
        self.lives[key].push(Life::Born(inc));
        inc
    }
}

impl CloneModel {
    fn has(&self, canary: &str) -> bool {
        self.canary == canary
    }

    /// The blobs in which a clone of `cloner.source` must pin, and which version.
    fn holders(&self, world: &World, cloner: &Cloner) -> Vec<(Inc, usize)> {
        let mut holders = vec![(cloner.source, cloner.version)];
        let far = cloner.names.iter().any(|pack| !world.blobs[cloner.source].own.contains(pack));
        if far && !self.has("only-the-nearest-is-pinned") {
            // The version that is pinned there in the source's own name.
            let (key, inc) = (world.key_of(cloner.source), cloner.source);
            let life = world.lives[key].iter().position(|life| *life == Life::Born(inc)).map_or(0, |at| at + 1);
            let pin = world.blobs[0].pins.iter().find(|pin| (pin.1, pin.2) == (key, life));
            holders.push((0, pin.map_or(usize::MAX, |pin| pin.0)));
        }
        holders
    }

    fn begin(&self, world: &mut World, index: usize) -> Option<()> {
        let cloner = &world.cloners[index];
        let source = world.newest(if cloner.to == 1 { 0 } else { 1 })?;
        let blob = &world.blobs[source];
        if blob.versions.is_empty() || blob.closed || world.newest(cloner.to).is_some() {
            return None;
        }
        let version = blob.versions.len() - 1;
        let names = blob.versions[version].clone();
        let life = world.lives[cloner.to].len() + 1;
        let mut cloner = Cloner { source, version, names, ..cloner.clone() };
        let left = self.holders(world, &cloner);
        cloner.phase = if self.has("pin-after-birth") {
            Phase::Bearing { life, made: Vec::new() }
        } else {
            Phase::Pinning { life, left, made: Vec::new() }
        };
        world.cloners[index] = cloner;
        Some(())
    }

    fn pin_next(&self, world: &mut World, index: usize) -> Option<()> {
        let mut cloner = world.cloners[index].clone();
        let Phase::Pinning { life, mut left, mut made } = cloner.phase else { return None };
        let (inc, version) = left.remove(0);
        let blob = &mut world.blobs[inc];
        if version == usize::MAX || blob.closed || !blob.is_live(version) {
            // The clone is refused; what it has pinned is garbage.
            cloner.phase = Phase::Done;
        } else {
            let pin = (version, cloner.to, life);
            blob.pins.insert(pin);
            made.push((inc, pin));
            cloner.phase =
                if left.is_empty() { Phase::Bearing { life, made } } else { Phase::Pinning { life, left, made } };
        }
        world.cloners[index] = cloner;
        Some(())
    }

    fn bear(&self, world: &mut World, index: usize) -> Option<()> {
        let mut cloner = world.cloners[index].clone();
        let Phase::Bearing { life, made } = cloner.phase else { return None };
        let lives = world.lives[cloner.to].len();
        let free = lives + 1 == life || (self.has("life-number-reused") && world.newest(cloner.to).is_none());
        cloner.phase = if free {
            Phase::Born(world.bear(cloner.to))
        } else {
            for (inc, pin) in made {
                world.blobs[inc].pins.remove(&pin);
            }
            Phase::Idle
        };
        world.cloners[index] = cloner;
        Some(())
    }

    /// Whether a collector may take a pin away; it may have to make sure that the holder is never born.
    fn judge(&self, world: &mut World, pin: Pin) -> bool {
        let (_, key, life) = pin;
        match world.lives[key].get(life - 1) {
            Some(Life::Gone) => true,
            Some(Life::Born(_)) => world.lives[key].len() > life,
            None if self.has("pin-dropped-without-claim") => true,
            None if world.lives[key].len() + 1 == life => {
                world.lives[key].push(Life::Gone);
                true
            }
            None => false,
        }
    }
}

impl Model for CloneModel {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let cloner = |to| Cloner { source: 0, to, names: BTreeSet::new(), version: 0, phase: Phase::Idle };
        let mut world = World {
            lives: [Vec::new(), Vec::new(), Vec::new()],
            blobs: Vec::new(),
            there: vec![true],
            cloners: vec![cloner(1), cloner(2)],
            puts: 0,
            rivals: 0,
            dropping: BTreeSet::new(),
        };
        world.bear(0);
        world.blobs[0].versions.push(BTreeSet::from([0]));
        world.blobs[0].own.insert(0);
        vec![world]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.puts < 1 {
            steps.push(Step::Put);
        }
        for (inc, blob) in world.blobs.iter().enumerate() {
            if !blob.closed && blob.expired + 1 < blob.versions.len() {
                steps.push(Step::Expire(inc));
            }
            if !blob.closed {
                steps.push(Step::Close(inc));
                steps.push(Step::Collect(inc));
            } else if world.newest(world.key_of(inc)) == Some(inc) {
                steps.push(Step::Gone(world.key_of(inc)));
            } else {
                steps.push(Step::DeleteUnpinned(inc));
            }
            steps.extend(blob.pins.iter().map(|pin| Step::Judge(inc, *pin)));
        }
        steps.extend(world.dropping.iter().map(|(inc, pin)| Step::Drop(*inc, *pin)));
        for (index, cloner) in world.cloners.iter().enumerate() {
            steps.push(match cloner.phase {
                Phase::Idle => Step::Begin(index),
                Phase::Pinning { .. } => Step::PinNext(index),
                Phase::Bearing { .. } => Step::Bear(index),
                Phase::Born(_) => Step::Adopt(index),
                Phase::Done => continue,
            });
        }
        if world.rivals < 1 && world.newest(1).is_none() {
            steps.push(Step::Rival);
        }
    }

    fn next_state(&self, last: &World, step: Step) -> Option<World> {
        let mut world = last.clone();
        match step {
            Step::Put => {
                let inc = world.newest(0).filter(|inc| !world.blobs[*inc].closed)?;
                world.there.push(true);
                let pack = world.there.len() - 1;
                world.blobs[inc].own.insert(pack);
                world.blobs[inc].versions.push(BTreeSet::from([pack]));
                world.puts += 1;
            }
            Step::Expire(inc) => world.blobs[inc].expired = world.blobs[inc].versions.len() - 1,
            Step::Collect(inc) => {
                let blob = &world.blobs[inc];
                let live = (0..blob.versions.len()).filter(|version| blob.is_live(*version));
                let named: BTreeSet<Pack> = live.flat_map(|version| blob.versions[version].clone()).collect();
                for pack in blob.own.clone() {
                    if !named.contains(&pack) {
                        world.there[pack] = false;
                    }
                }
            }
            Step::Close(inc) => world.blobs[inc].closed = true,
            Step::Gone(key) => world.lives[key].push(Life::Gone),
            Step::DeleteUnpinned(inc) => {
                let blob = world.blobs[inc].clone();
                let pinned: BTreeSet<Pack> = match self.has("rm-ignores-pins") {
                    true => BTreeSet::new(),
                    false => blob.pins.iter().flat_map(|pin| blob.versions[pin.0].clone()).collect(),
                };
                for pack in blob.own {
                    if !pinned.contains(&pack) {
                        world.there[pack] = false;
                    }
                }
            }
            Step::Begin(index) => self.begin(&mut world, index)?,
            Step::PinNext(index) => self.pin_next(&mut world, index)?,
            Step::Bear(index) => self.bear(&mut world, index)?,
            Step::Adopt(index) => {
                let Phase::Born(inc) = world.cloners[index].phase else { return None };
                world.cloners[index].phase = Phase::Done;
                if self.has("pin-after-birth") {
                    let cloner = world.cloners[index].clone();
                    let life = world.lives[cloner.to].len();
                    if world.newest(cloner.to) == Some(inc) {
                        for (holder, version) in self.holders(&world, &cloner) {
                            if version != usize::MAX {
                                world.blobs[holder].pins.insert((version, cloner.to, life));
                            }
                        }
                    }
                }
                if !world.blobs[inc].closed {
                    let names = world.cloners[index].names.clone();
                    world.blobs[inc].versions.push(names);
                }
            }
            Step::Rival => {
                world.rivals += 1;
                world.bear(1);
            }
            Step::Judge(inc, pin) => {
                if !self.judge(&mut world, pin) {
                    return None;
                }
                world.dropping.insert((inc, pin));
            }
            Step::Drop(inc, pin) => {
                world.dropping.remove(&(inc, pin));
                world.blobs[inc].pins.remove(&pin);
            }
        }
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no blob that lives names a pack that is not there", |_, world: &World| {
                (0..3).filter_map(|key| world.newest(key)).all(|inc| {
                    let blob = &world.blobs[inc];
                    let live = (0..blob.versions.len()).filter(|version| blob.is_live(*version));
                    blob.closed || live.flat_map(|version| &blob.versions[version]).all(|pack| world.there[*pack])
                })
            }),
            Property::sometimes("a clone's clone outlives both", |_, world: &World| {
                let clone = world.newest(2).is_some_and(|inc| !world.blobs[inc].versions.is_empty());
                clone && world.newest(0).is_none() && world.newest(1).is_none()
            }),
            Property::sometimes("a removed blob's packs are deleted", |_, world: &World| {
                world.newest(0).is_none() && !world.there[0]
            }),
        ]
    }
}
