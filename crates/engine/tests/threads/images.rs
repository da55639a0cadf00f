//! Volumes of images that are read by several threads: each group is fetched once for all of them,
//! and groups that a stream of reads will need are fetched before they are requested.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use engine::{FormatOptions, Pool, PoolEnv, PoolOptions, Properties};
use env::{OriginError, Origins, RemoteGroup, RemoteImage, Wait};
use sim::Machine;
use surface::BlockDevice;

use crate::common::fake_origin::FakeOrigin;
use crate::common::machine_env;

const GROUP: usize = 128 << 10;
const CAPACITY_BYTES: u64 = 32 << 20;
/// How long an answer is held up for something that does not come.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
struct Turns {
    /// The first group, and then the second, have been asked for.
    asked_first: bool,
    asked_second: bool,
    /// The read of the first group has ended.
    had_first: bool,
}

/// A store that answers for the first group when the second one is asked for, and for that when the
/// read of the first one has ended.
#[derive(Debug)]
struct Holding {
    origin: Arc<FakeOrigin>,
    turns: (Mutex<Turns>, Condvar),
}

impl Holding {
    fn set(&self, change: impl FnOnce(&mut Turns)) {
        change(&mut self.turns.0.lock().unwrap());
        self.turns.1.notify_all();
    }

    fn wait(&self, has_come: impl Fn(&Turns) -> bool) {
        let turns = self.turns.0.lock().unwrap();
        let (turns, _) = self.turns.1.wait_timeout_while(turns, PATIENCE, |turns| !has_come(turns)).unwrap();
        assert!(has_come(&turns), "HARNESS: the other thread's turn did not come");
    }
}

impl Origins for Holding {
    fn fetch(&self, image: &RemoteImage, groups: &[u64], wait: &Wait<'_>) -> Vec<Result<RemoteGroup, OriginError>> {
        let answers = self.origin.fetch(image, groups, wait);
        if groups == [0] && !self.turns.0.lock().unwrap().had_first {
            self.set(|turns| turns.asked_first = true);
            self.wait(|turns| turns.asked_second);
        } else if groups == [1] {
            self.set(|turns| turns.asked_second = true);
            self.wait(|turns| turns.had_first);
        }
        answers
    }
}

/// One volume looks for two groups while another one's read has the first of them under way. That
/// read ends before the second group has come.
#[test]
fn a_group_that_has_come_for_another_volume_is_not_fetched_again() {
    let machine = Machine::new(CAPACITY_BYTES, 5);
    let origin = FakeOrigin::new(11, 8 * GROUP);
    let holding = Arc::new(Holding { origin: origin.clone(), turns: Default::default() });
    let env = || PoolEnv { origins: Some(holding.clone()), ..machine_env::env(&machine) };
    let format =
        FormatOptions { capacity_bytes: CAPACITY_BYTES, extent_bytes: 256 << 10, properties: Default::default() };
    Pool::format(&env(), &format).unwrap();
    let options = PoolOptions { memory_bytes: 8 << 20, workers: 1, ..PoolOptions::default() };
    let pool = Pool::open(env(), options).unwrap();
    for name in ["one", "two"] {
        pool.clone_image(&origin.image, name, None, &Properties::new()).unwrap();
    }
    let (mut first, mut both) = (vec![0xee; 4096], vec![0xee; 2 * GROUP]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pool.volume("one").unwrap().read(0, &mut first).unwrap();
            holding.set(|turns| turns.had_first = true);
        });
        holding.wait(|turns| turns.asked_first);
        pool.volume("two").unwrap().read(0, &mut both).unwrap();
    });
    assert!(first == origin.content[..4096] && both == origin.content[..2 * GROUP], "HARNESS: not the image's content");
    assert_eq!(origin.asked(), BTreeMap::from([(0, 1), (1, 1)]), "HARNESS: how often each group was fetched");
    pool.close().unwrap();
}

/// A store that notes the groups that are asked for.
#[derive(Debug)]
struct Noting {
    origin: Arc<FakeOrigin>,
    asked: (Mutex<BTreeSet<u64>>, Condvar),
}

impl Origins for Noting {
    fn fetch(&self, image: &RemoteImage, groups: &[u64], wait: &Wait<'_>) -> Vec<Result<RemoteGroup, OriginError>> {
        let answers = self.origin.fetch(image, groups, wait);
        self.asked.0.lock().unwrap().extend(groups);
        self.asked.1.notify_all();
        answers
    }
}

#[test]
fn a_stream_has_the_groups_before_it_fetched() {
    let machine = Machine::new(CAPACITY_BYTES, 6);
    let origin = FakeOrigin::new(12, 64 * GROUP);
    let noting = Arc::new(Noting { origin: origin.clone(), asked: Default::default() });
    let env = || PoolEnv { origins: Some(noting.clone()), ..machine_env::env(&machine) };
    let format =
        FormatOptions { capacity_bytes: CAPACITY_BYTES, extent_bytes: 256 << 10, properties: Default::default() };
    Pool::format(&env(), &format).unwrap();
    let options = PoolOptions { memory_bytes: 8 << 20, workers: 1, ..PoolOptions::default() };
    let pool = Pool::open(env(), options).unwrap();
    pool.clone_image(&origin.image, "v", None, &Properties::new()).unwrap();
    let volume = pool.volume("v").unwrap();
    let mut bytes = vec![0; GROUP];
    let mut read = |group: usize| {
        volume.read((group * GROUP) as u64, &mut bytes).unwrap();
        assert!(bytes == origin.content[group * GROUP..][..GROUP], "HARNESS: group {group} of the image");
    };
    // A single read asks for nothing else.
    read(40);
    assert_eq!(origin.asked(), BTreeMap::from([(40, 1)]));
    (0..10).for_each(&mut read);
    let asked = noting.asked.0.lock().unwrap();
    let (asked, _) = noting.asked.1.wait_timeout_while(asked, PATIENCE, |asked| !asked.contains(&10)).unwrap();
    assert!(asked.contains(&10), "HARNESS: nothing was fetched before it was read");
    drop(asked);
    (10..64).for_each(&mut read);
    assert!(origin.asked().values().all(|times| *times == 1), "HARNESS: {:?}", origin.asked());
    pool.close().unwrap();
}
