//! The model of lives, pins, removals and clones of clones: keys 0 (the source), 1 (its clone) and
//! 2 (the clone's clone), with a rival that uses key 1, and collectors that drop dead pins. A
//! commit is one step here: the model of one log shows why that is allowed.
//!
//! A pin is an object of its own: it is written, late or twice, and its maker reads the log
//! afterwards. Expiry, collectors and removers list the pins, and act on the list at any later
//! time.

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
    /// Expired versions.
    expired: BTreeSet<usize>,
    /// Existing pin objects.
    pins: BTreeSet<Pin>,
    /// Requests to write a pin whose answer was lost: they may take effect at any time, even after
    /// the pin was removed.
    late: BTreeSet<Pin>,
    closed: bool,
    own: BTreeSet<Pack>,
    /// The versions that an expiry will expire: it has listed the pins.
    expiring: Option<BTreeSet<usize>>,
    collecting: Collecting,
    removing: Removing,
    /// The blob and the version that it was cloned from.
    origin: Option<(Inc, usize)>,
}

/// The steps of a collector.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Collecting {
    Idle,
    /// Only with a bug: it has listed the pins first, on these versions.
    ListedFirst(BTreeSet<usize>),
    /// These packs are named by no version that is live as of the known record.
    Marked(BTreeSet<Pack>),
    /// And by none that is pinned.
    Listed(BTreeSet<Pack>),
}

/// The steps of a remover after the log is closed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Removing {
    Idle,
    /// It has listed the pins.
    Listed(BTreeSet<usize>),
    /// It has expired all other versions.
    GivenUp,
    /// It has listed the pins again, and retains these versions.
    Deleting(BTreeSet<usize>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    /// Pins in the blobs of this list are still to be made: (blob, version).
    Pinning {
        life: usize,
        left: Vec<(Inc, usize)>,
        made: Vec<(Inc, Pin)>,
        /// The first of the list is written; its maker has not read the log yet.
        written: bool,
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
    /// Pins that a collector has decided to remove but has not removed yet.
    dropping: BTreeSet<(Inc, Pin)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Put,
    /// An expiry, or another remover, lists the pins.
    Plan(Inc),
    Expire(Inc),
    /// The next step of a collector.
    Collect(Inc),
    Close(Inc),
    Gone(Key),
    /// The next step of a remover.
    Remove(Inc),
    Begin(usize),
    /// Writes the next pin; whether its request may have a second effect.
    Pin(usize, bool),
    Late(Inc, Pin),
    /// Reads the log after the pin is written.
    Look(usize),
    Kill(usize),
    Bear(usize),
    Adopt(usize),
    Rival,
    Judge(Inc, Pin),
    Drop(Inc, Pin),
}

#[derive(Debug, Clone)]
pub struct CloneModel {
    pub canary: &'static str,
    /// Clones of clones are made, and an expiry, a collection, a removal and the making of a pin
    /// are one step each. Otherwise there is one clone, and any other step may come between their
    /// steps.
    pub deep: bool,
}

impl Blob {
    /// Returns whether a version is live as of the newest record. Pins are not part of the log.
    fn is_live(&self, version: usize) -> bool {
        !self.expired.contains(&version) || (!self.closed && version + 1 == self.versions.len())
    }

    fn live(&self) -> BTreeSet<usize> {
        (0..self.versions.len()).filter(|version| self.is_live(*version)).collect()
    }

    fn pinned(&self) -> BTreeSet<usize> {
        self.pins.iter().map(|pin| pin.0).collect()
    }

    fn names(&self, versions: &BTreeSet<usize>) -> BTreeSet<Pack> {
        versions.iter().filter_map(|version| self.versions.get(*version)).flatten().copied().collect()
    }

    /// The versions that an expiry or a remover selects.
    fn old(&self) -> BTreeSet<usize> {
        let kept = usize::from(!self.closed);
        (0..self.versions.len().saturating_sub(kept)).filter(|version| !self.expired.contains(version)).collect()
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
            expired: BTreeSet::new(),
            pins: BTreeSet::new(),
            late: BTreeSet::new(),
            closed: false,
            own: BTreeSet::new(),
            expiring: None,
            collecting: Collecting::Idle,
            removing: Removing::Idle,
            origin: None,
        });
        let inc = self.blobs.len() - 1;
        self.lives[key].push(Life::Born(inc));
        inc
    }

    fn delete(&mut self, packs: &BTreeSet<Pack>) {
        packs.iter().for_each(|pack| self.there[*pack] = false);
    }
}

impl CloneModel {
    fn has(&self, canary: &str) -> bool {
        self.canary == canary
    }

    /// The blobs in which a clone of `cloner.source` must pin, and which version.
    fn holders(&self, world: &World, cloner: &Cloner) -> Vec<(Inc, usize)> {
        let mut holders = vec![(cloner.source, cloner.version)];
        let source = &world.blobs[cloner.source];
        let far = cloner.names.iter().any(|pack| !source.own.contains(pack));
        if far && !self.has("only-the-nearest-is-pinned") {
            holders.extend(source.origin);
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
            Phase::Pinning { life, left, made: Vec::new(), written: false }
        };
        world.cloners[index] = cloner;
        Some(())
    }

    fn pin(&self, world: &mut World, index: usize, twice: bool) -> Option<()> {
        let to = world.cloners[index].to;
        let Phase::Pinning { life, left, written, .. } = &mut world.cloners[index].phase else { return None };
        *written = true;
        let (inc, pin) = (left[0].0, (left[0].1, to, *life));
        world.blobs[inc].pins.insert(pin);
        if twice {
            world.blobs[inc].late.insert(pin);
        }
        Some(())
    }

    fn look(&self, world: &mut World, index: usize) -> Option<()> {
        let mut cloner = world.cloners[index].clone();
        let Phase::Pinning { life, mut left, mut made, .. } = cloner.phase else { return None };
        let (inc, version) = left.remove(0);
        cloner.phase = if !world.blobs[inc].is_live(version) && !self.has("pin-not-looked-behind") {
            // The clone is refused; its pins are garbage.
            Phase::Done
        } else {
            made.push((inc, (version, cloner.to, life)));
            match left.is_empty() {
                true => Phase::Bearing { life, made },
                false => Phase::Pinning { life, left, made, written: false },
            }
        };
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

    /// Takes one step, or all until nothing is in progress.
    fn all_or_one(
        &self,
        world: &mut World,
        inc: Inc,
        step: impl Fn(&Self, &mut World, Inc) -> Option<()>,
        is_idle: impl Fn(&Blob) -> bool,
    ) -> Option<()> {
        step(self, world, inc)?;
        while self.deep && !is_idle(&world.blobs[inc]) {
            step(self, world, inc)?;
        }
        Some(())
    }

    /// The next step of a remover of a closed blob.
    fn remove(&self, world: &mut World, inc: Inc) -> Option<()> {
        let blob = &mut world.blobs[inc];
        blob.removing = match blob.removing.clone() {
            // Nothing is left to be deleted.
            Removing::Idle if !blob.own.iter().any(|pack| world.there[*pack]) => return None,
            Removing::Idle if self.has("rm-ignores-pins") => Removing::Deleting(BTreeSet::new()),
            Removing::Idle if self.has("rm-lists-pins-once") => Removing::Deleting(blob.pinned()),
            Removing::Idle => Removing::Listed(blob.pinned()),
            Removing::Listed(pinned) => {
                let old = blob.old();
                blob.expired.extend(old.difference(&pinned));
                Removing::GivenUp
            }
            Removing::GivenUp => Removing::Deleting(&blob.live() | &blob.pinned()),
            Removing::Deleting(kept) => {
                let garbage = &blob.own - &blob.names(&kept);
                blob.removing = Removing::Idle;
                world.delete(&garbage);
                return Some(());
            }
        };
        Some(())
    }

    /// The next step of a collector: it knows a record before it lists the pins.
    fn collect(&self, world: &mut World, inc: Inc) -> Option<()> {
        let blob = &mut world.blobs[inc];
        let marked = |blob: &Blob| &blob.own - &blob.names(&blob.live());
        blob.collecting = match blob.collecting.clone() {
            Collecting::Idle if self.has("gc-lists-pins-first") => Collecting::ListedFirst(blob.pinned()),
            Collecting::Idle => Collecting::Marked(marked(blob)),
            Collecting::ListedFirst(pinned) => Collecting::Listed(&marked(blob) - &blob.names(&pinned)),
            Collecting::Marked(packs) => Collecting::Listed(&packs - &blob.names(&blob.pinned())),
            Collecting::Listed(packs) => {
                blob.collecting = Collecting::Idle;
                world.delete(&packs);
                return Some(());
            }
        };
        Some(())
    }

    /// Whether a collector may remove a pin; it may first have to prevent the birth of the holder.
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
        let cloners = if self.deep { vec![cloner(1), cloner(2)] } else { vec![cloner(1)] };
        let mut world = World {
            lives: [Vec::new(), Vec::new(), Vec::new()],
            blobs: Vec::new(),
            there: vec![true],
            cloners,
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
            match &blob.expiring {
                None if !blob.old().is_empty() => steps.push(Step::Plan(inc)),
                None => {}
                Some(_) => steps.push(Step::Expire(inc)),
            }
            if !blob.closed {
                steps.push(Step::Close(inc));
            } else if world.newest(world.key_of(inc)) == Some(inc) {
                steps.push(Step::Gone(world.key_of(inc)));
            } else {
                steps.push(Step::Remove(inc));
            }
            let is_begun = blob.collecting != Collecting::Idle;
            // A collector of a closed blob cannot fence: it continues only if it has.
            if is_begun || (!blob.closed && blob.own.iter().any(|pack| world.there[*pack])) {
                steps.push(Step::Collect(inc));
            }
            steps.extend(blob.pins.iter().map(|pin| Step::Judge(inc, *pin)));
            steps.extend(blob.late.iter().map(|pin| Step::Late(inc, *pin)));
        }
        steps.extend(world.dropping.iter().map(|(inc, pin)| Step::Drop(*inc, *pin)));
        for (index, cloner) in world.cloners.iter().enumerate() {
            match cloner.phase {
                Phase::Idle => steps.push(Step::Begin(index)),
                Phase::Pinning { written: false, .. } => {
                    steps.push(Step::Pin(index, false));
                    if !self.deep {
                        steps.extend([Step::Pin(index, true), Step::Kill(index)]);
                    }
                }
                Phase::Pinning { written: true, .. } => steps.extend([Step::Look(index), Step::Kill(index)]),
                Phase::Bearing { .. } => {
                    steps.push(Step::Bear(index));
                    if !self.deep {
                        steps.push(Step::Kill(index));
                    }
                }
                Phase::Born(_) => steps.push(Step::Adopt(index)),
                Phase::Done => {}
            }
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
            Step::Plan(inc) => {
                let blob = &mut world.blobs[inc];
                let old = &blob.old() - &blob.pinned();
                if self.deep {
                    blob.expired.extend(old);
                } else {
                    blob.expiring = Some(old);
                }
            }
            Step::Expire(inc) => {
                let blob = &mut world.blobs[inc];
                blob.expired.extend(blob.expiring.take()?);
            }
            Step::Collect(inc) => {
                self.all_or_one(&mut world, inc, Self::collect, |blob| blob.collecting == Collecting::Idle)?;
            }
            Step::Close(inc) => world.blobs[inc].closed = true,
            Step::Gone(key) => world.lives[key].push(Life::Gone),
            Step::Remove(inc) => {
                self.all_or_one(&mut world, inc, Self::remove, |blob| blob.removing == Removing::Idle)?;
            }
            Step::Begin(index) => self.begin(&mut world, index)?,
            Step::Pin(index, twice) => {
                self.pin(&mut world, index, twice)?;
                if self.deep {
                    self.look(&mut world, index)?;
                }
            }
            Step::Late(inc, pin) => {
                world.blobs[inc].late.remove(&pin);
                world.blobs[inc].pins.insert(pin);
            }
            Step::Look(index) => self.look(&mut world, index)?,
            Step::Kill(index) => world.cloners[index].phase = Phase::Done,
            Step::Bear(index) => self.bear(&mut world, index)?,
            Step::Adopt(index) => {
                let Phase::Born(inc) = world.cloners[index].phase else { return None };
                world.cloners[index].phase = Phase::Done;
                if self.has("pin-after-birth") {
                    let cloner = world.cloners[index].clone();
                    let life = world.lives[cloner.to].len();
                    if world.newest(cloner.to) == Some(inc) {
                        for (holder, version) in self.holders(&world, &cloner) {
                            world.blobs[holder].pins.insert((version, cloner.to, life));
                        }
                    }
                }
                if !world.blobs[inc].closed {
                    let Cloner { source, version, names, .. } = world.cloners[index].clone();
                    world.blobs[inc].versions.push(names);
                    world.blobs[inc].origin = Some((source, version));
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
            // The decision stays: the request may take effect again, after a late write of the pin.
            Step::Drop(inc, pin) => drop(world.blobs[inc].pins.remove(&pin)),
        }
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no blob that lives names a pack that is not there", |_, world: &World| {
                (0..3).filter_map(|key| world.newest(key)).all(|inc| {
                    let blob = &world.blobs[inc];
                    blob.closed || blob.names(&blob.live()).iter().all(|pack| world.there[*pack])
                })
            }),
            Property::sometimes("a clone's clone outlives both", |_, world: &World| {
                let clone = world.newest(2).is_some_and(|inc| !world.blobs[inc].versions.is_empty());
                clone && world.newest(0).is_none() && world.newest(1).is_none()
            }),
            Property::sometimes("a pin keeps a version that expired after the pins were listed", |_, world: &World| {
                let source = &world.blobs[0];
                let raced = source.pins.iter().any(|pin| !source.is_live(pin.0) && world.there[pin.0]);
                raced && world.newest(1).is_some_and(|inc| !world.blobs[inc].versions.is_empty())
            }),
            Property::sometimes("a removed blob's packs are deleted", |_, world: &World| {
                world.newest(0).is_none() && !world.there[0]
            }),
        ]
    }
}
