//! Dictionaries of shares: small files of a type teach one together, wherever they lie, and are
//! compressed with the one that helps their type.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bytes::Bytes;
use codec::Codec;
use engine::{Files, FormatOptions, Pool, PoolOptions, Properties, Training};
use sim::{Machine, Rng};
use surface::{Advice, Hint, ObjectSpace};

use crate::common::machine_env::env;

const MIB: usize = 1 << 20;
const TYPES: u64 = 3;
/// Words of a type: more than a dictionary of all types together can hold.
const WORDS: usize = 4000;
const FILE_BYTES: usize = 8 << 10;
/// Files of one half: those that teach, and those that are helped.
const FILES: u64 = 3 * 110;
const FIRST_FILE: u64 = 16;

/// The words of a type.
fn words(of_type: u64) -> Vec<Vec<u8>> {
    let mut rng = Rng::new(1000 + of_type);
    (0..WORDS).map(|_| (0..6 + rng.index(12)).map(|_| b'a' + rng.below(26) as u8).collect()).collect()
}

/// A file: words of its type, and numbers that are its own.
fn content(words: &[Vec<u8>], seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut bytes = Vec::with_capacity(FILE_BYTES + 64);
    while bytes.len() < FILE_BYTES {
        bytes.extend_from_slice(&words[rng.index(words.len())]);
        bytes.extend_from_slice(format!("={:04x}\n", rng.below(1 << 16)).as_bytes());
    }
    bytes.truncate(FILE_BYTES);
    bytes
}

/// Files of several types, one after the other.
struct Share {
    _machine: Machine,
    pool: Pool,
    files: Files,
    words: Vec<Vec<Vec<u8>>>,
}

impl Share {
    fn new() -> Self {
        let machine = Machine::new(96 << 20, 11);
        let properties = Properties::from([("candidates".to_owned(), "zstd-3".to_owned())]);
        let format = FormatOptions { capacity_bytes: 96 << 20, extent_bytes: 256 << 10, properties };
        Pool::format(&env(&machine), &format).unwrap();
        let training = Training { sample_bytes: 4 * MIB, pause_bytes: 0, ..Training::default() };
        let options = PoolOptions { workers: 0, memory_bytes: 512 << 20, training, ..PoolOptions::default() };
        let pool = Pool::open(env(&machine), options).unwrap();
        pool.create_share("s", &Properties::new()).unwrap();
        let volume = pool.volume("s").unwrap();
        let files = Files::new(volume.clone(), volume).unwrap();
        Self { _machine: machine, pool, files, words: (0..TYPES).map(words).collect() }
    }

    fn content(&self, file: u64) -> Vec<u8> {
        content(&self.words[(file % TYPES) as usize], file)
    }

    /// Writes so many files from one on; the bytes of fragments that they take.
    fn write(&self, first: u64, hint: impl Fn(u64) -> Hint) -> u64 {
        let before = self.pool.status().fragment_bytes;
        for file in first..first + FILES {
            self.files.write_hinted(file, 0, Bytes::from(self.content(file)), hint(file)).unwrap();
        }
        self.pool.checkpoint().unwrap();
        self.pool.status().fragment_bytes - before
    }

    fn expect(&self, first: u64) {
        self.pool.drop_caches();
        for file in first..first + FILES {
            let mut back = vec![0; FILE_BYTES];
            let read = self.files.read(file, 0, &mut back);
            assert!(read.is_ok() && back == self.content(file), "HARNESS: file {file} does not read back: {read:?}");
        }
    }
}

/// A tree's hints for a file of a type that it knows.
fn of_its_type(how: Advice) -> impl Fn(u64) -> Hint {
    move |file| Hint { how, kind: 1 + (file % TYPES) as u16, ..Hint::default() }
}

#[test]
fn each_type_of_file_has_a_dictionary_that_helps_it() {
    let stored = |hint: &dyn Fn(u64) -> Hint| {
        let share = Share::new();
        let without = share.write(FIRST_FILE, hint);
        let adopted = share.pool.train().unwrap();
        // At first each type's region compares them.
        share.write(FIRST_FILE + FILES, hint);
        let with = share.write(FIRST_FILE + 2 * FILES, hint);
        (0..3).for_each(|part| share.expect(FIRST_FILE + part * FILES));
        assert!(share.pool.check(false, &mut |_, _| ()).unwrap().problems.is_empty());
        assert_eq!(adopted, share.pool.status().dictionaries);
        (adopted, without, with)
    };
    let (adopted, without, with) = stored(&of_its_type(Advice::Usual));
    assert!((2..=4).contains(&adopted), "HARNESS: {adopted} dictionaries for {TYPES} types");
    assert!(with * 100 < without * 80, "HARNESS: {without} bytes without dictionaries, {with} with");
    // Without hints for the types, each dictionary has some words of all.
    let (_, _, untold) = stored(&|_| Hint::default());
    assert!(with * 100 < untold * 95, "HARNESS: {with} bytes with dictionaries by type, {untold} without types");
}

/// Files that a default rule would compress with zstd teach as well, and are helped from then on.
#[test]
fn what_a_default_rule_guesses_teaches_a_dictionary() {
    let zstd = "zstd-3".parse::<Codec>().unwrap().id().0;
    let share = Share::new();
    let without = share.write(FIRST_FILE, of_its_type(Advice::Guess(zstd)));
    assert!(share.pool.train().unwrap() > 0);
    share.write(FIRST_FILE + FILES, of_its_type(Advice::Guess(zstd)));
    let with = share.write(FIRST_FILE + 2 * FILES, of_its_type(Advice::Guess(zstd)));
    assert!(with * 100 < without * 80, "{without} bytes without dictionaries, {with} with");
    share.expect(FIRST_FILE + 2 * FILES);
    // A codec that a user has set is followed.
    let share = Share::new();
    let without = share.write(FIRST_FILE, of_its_type(Advice::Codec(zstd)));
    assert_eq!(share.pool.train().unwrap(), 0);
    let with = share.write(FIRST_FILE + FILES, of_its_type(Advice::Codec(zstd)));
    assert!(with.abs_diff(without) * 50 < without, "{without} bytes at first, {with} then");
}
