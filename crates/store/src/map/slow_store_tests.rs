//! Changes of the map while a group is being read from the store. The store makes them itself, in
//! the middle of an answer: after it has read, and before it returns. Each test also proves that no
//! lock of the map is held then: the thread would be refused a second one.
#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, Weak};

use env::{MapBatch, MapError, ScanStep, StoreLayer};
use format::{RecordKey, record_key};
use sim::Machine;
use smallvec::smallvec;

use super::look::MISSES_MAX;
use super::*;

const KEY: GroupKey = GroupKey { object: ObjectId(1), group: GroupIndex(0) };
const FIRST: Epoch = Epoch(0);

type Event = Box<dyn FnOnce(&Map) + Send>;

/// A store that runs an action after each of its next answers, one after the other.
struct SlowStore {
    below: Arc<dyn MapStore>,
    map: OnceLock<Weak<Map>>,
    events: Mutex<VecDeque<Event>>,
    asked: AtomicU32,
}

impl SlowStore {
    fn has_read(&self) {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let event = self.events.lock().unwrap().pop_front();
        if let (Some(event), Some(map)) = (event, self.map.get().and_then(Weak::upgrade)) {
            event(&map);
        }
    }
}

impl StoreLayer for SlowStore {
    fn below(&self) -> &dyn MapStore {
        &*self.below
    }
    fn get(&self, key: &[u8]) -> std::result::Result<Option<Vec<u8>>, MapError> {
        let found = self.below.get(key);
        self.has_read();
        found
    }
    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> ScanStep,
    ) -> std::result::Result<(), MapError> {
        self.below.scan(from, to, visit)?;
        self.has_read();
        Ok(())
    }
}

/// A map whose store has a block at 1000.
struct World {
    store: Arc<SlowStore>,
    map: Arc<Map>,
    newest: Arc<AtomicU32>,
}

fn at(location: u64) -> FragmentRef {
    let live = BlockMask::run(3, 1);
    FragmentRef { live, first: 3, count: 1, codec: 16, stored: 900, checksum: 7, location }
}

fn change(map: &Map, epoch: Epoch, location: u64) {
    map.active().change(KEY, epoch, |record| record.put(at(location), &mut |_| ()));
}

fn change_group(map: &Map, group: u64) {
    let key = GroupKey { group: GroupIndex(group), ..KEY };
    map.active().change(key, FIRST, |record| record.put(at(1000), &mut |_| ()));
}

impl World {
    fn new(machine: &Machine) -> Self {
        let store = Arc::new(SlowStore {
            below: machine.store.handle(),
            map: OnceLock::new(),
            events: Mutex::default(),
            asked: AtomicU32::new(0),
        });
        let map = Arc::new(Map::new(Arc::clone(&store) as _, 1 << 20, Arc::default()));
        store.map.set(Arc::downgrade(&map)).unwrap();
        let world = Self { store, map, newest: Arc::default() };
        world.commit(0, FIRST, 1000);
        world
    }

    fn commit(&self, group: u64, epoch: Epoch, location: u64) {
        commit(&*self.store, group, epoch, location);
    }

    fn then(&self, event: impl FnOnce(&Map) + Send + 'static) {
        self.store.events.lock().unwrap().push_back(Box::new(event));
    }

    fn asked(&self) -> u32 {
        self.store.asked.swap(0, Ordering::Relaxed)
    }

    fn find(&self, epoch: Epoch) -> u64 {
        let newest = (epoch == FIRST).then(|| Arc::clone(&self.newest));
        let level = Level { object: KEY.object, epoch, newest, cuts: Vec::new(), image: None };
        self.map.lookup_stored(&[level], KEY.group, BlockMask::run(3, 1)).unwrap()[0].fragment.location
    }

    fn groups(&self) -> Vec<u64> {
        let (groups, _) = self.map.groups_in(KEY.object, GroupIndex(0), GroupIndex(100), usize::MAX).unwrap();
        groups.into_iter().map(|group| group.0).collect()
    }
}

fn commit(store: &dyn MapStore, group: u64, epoch: Epoch, location: u64) {
    let record = Record { holes: BlockMask::EMPTY, fragments: smallvec![at(location)] };
    let mut batch = MapBatch::default();
    let key = RecordKey { object: KEY.object, group: GroupIndex(group), epoch };
    batch.put(record_key(&key), record.encode());
    store.commit(batch).unwrap();
}

#[test]
fn a_capture_comes_while_a_group_is_loaded_and_the_look_sees_what_came_before_its_end() {
    let machine = Machine::new(1 << 20, 1);
    let world = World::new(&machine);
    world.then(|map| {
        change(map, FIRST, 2000);
        map.freeze();
    });
    assert_eq!(world.find(FIRST), 2000);
    assert_eq!(world.asked(), 1, "what was loaded is good all the same");
    world.map.drop_frozen(Kind::Light);
    assert_eq!((world.find(FIRST), world.asked()), (1000, 0), "it is in the cache");
}

#[test]
fn a_group_that_was_loaded_before_a_full_checkpoint_came_to_its_end_is_loaded_anew() {
    let machine = Machine::new(1 << 20, 1);
    let world = World::new(&machine);
    let store = Arc::clone(&world.store.below);
    world.then(move |map| {
        change(map, FIRST, 2000);
        map.freeze();
        commit(&*store, 0, FIRST, 2000);
        map.thaw(Kind::Full, Vec::new());
    });
    assert_eq!((world.find(FIRST), world.asked()), (2000, 2));
    assert_eq!((world.find(FIRST), world.asked()), (2000, 0), "the old one is not in the cache");
}

#[test]
fn a_group_that_was_loaded_before_it_was_folded_is_loaded_anew() {
    let machine = Machine::new(1 << 20, 1);
    let world = World::new(&machine);
    change(&world.map, FIRST, 2000);
    world.map.freeze();
    world.map.thaw(Kind::Light, Vec::new());
    // The cleaner asks for the records below the settled change, too.
    let store = Arc::clone(&world.store.below);
    world.then(move |map| {
        commit(&*store, 0, FIRST, 2000);
        map.unsettle(&[KEY]);
    });
    let base = world.map.base_for_cleaning(KEY, || FIRST).unwrap();
    assert_eq!((base[0].1.fragments[0].location, world.asked()), (2000, 2));
    assert_eq!((world.find(FIRST), world.asked()), (2000, 0));
}

/// Only the first epoch exists when the look begins, and there are two when it ends.
#[test]
fn a_snapshot_that_comes_while_a_group_is_loaded_leaves_no_half_of_it_in_the_cache() {
    for is_published in [false, true] {
        let machine = Machine::new(1 << 20, 1);
        let world = World::new(&machine);
        let (newest, store) = (Arc::clone(&world.newest), Arc::clone(&world.store.below));
        world.then(move |map| {
            newest.store(1, Ordering::Release);
            change(map, Epoch(1), 2000);
            map.freeze();
            commit(&*store, 0, Epoch(1), 2000);
            if is_published {
                map.thaw(Kind::Full, Vec::new());
            }
        });
        assert_eq!(world.find(FIRST), 1000, "as it was then");
        if !is_published {
            world.map.thaw(Kind::Full, Vec::new());
        }
        assert_eq!(world.find(Epoch(1)), 2000, "published meanwhile: {is_published}");
        assert_eq!(world.find(FIRST), 1000);
    }
}

#[test]
fn a_look_ends_however_often_what_it_loads_is_out_of_date() {
    let machine = Machine::new(1 << 20, 1);
    let world = World::new(&machine);
    for _ in 0..MISSES_MAX {
        world.then(|map| map.unsettle(&[]));
    }
    // From then on it blocks departures.
    world.then(|map| assert!(map.base_stays.try_write().is_none(), "a departure could come"));
    assert_eq!((world.find(FIRST), world.asked()), (1000, MISSES_MAX + 1));
    assert!(world.map.base_stays.try_write().is_some());
}

#[test]
fn groups_that_leave_for_the_store_while_it_is_asked_for_them_are_found() {
    let machine = Machine::new(1 << 20, 1);
    let world = World::new(&machine);
    change_group(&world.map, 7);
    let store = Arc::clone(&world.store.below);
    world.then(move |map| {
        change_group(map, 5);
        map.freeze();
        commit(&*store, 7, FIRST, 1000);
        commit(&*store, 5, FIRST, 1000);
        map.thaw(Kind::Full, Vec::new());
        change_group(map, 9);
    });
    assert_eq!((world.groups(), world.asked()), (vec![0, 5, 7, 9], 2));
}

/// A wide hole relies on the store's answer from before the batch had its position in the log.
#[test]
fn what_was_foreseen_holds_until_changes_leave_for_the_store() {
    let machine = Machine::new(1 << 20, 1);
    let world = World::new(&machine);
    let foreseen = world.map.foresee_groups(KEY.object, GroupIndex(0), GroupIndex(100));
    assert_eq!(world.asked(), 1);
    let known = || {
        let known = world.map.known_groups(&foreseen)?.unwrap();
        Some(known.into_iter().map(|group| group.0).collect::<Vec<_>>())
    };
    change_group(&world.map, 7);
    assert_eq!(known(), Some(vec![0, 7]));
    world.map.freeze();
    change_group(&world.map, 8);
    assert_eq!(known(), Some(vec![0, 7, 8]), "captured");
    world.map.thaw(Kind::Light, Vec::new());
    assert_eq!(known(), Some(vec![0, 7, 8]), "settled");
    world.commit(7, FIRST, 1000);
    assert_eq!(known(), Some(vec![0, 7, 8]), "in the store as well");
    world.map.unsettle(&[GroupKey { group: GroupIndex(7), ..KEY }]);
    assert_eq!(known(), None, "in the store alone");
    assert_eq!(world.asked(), 0);
}
