//! `compression=auto` through the whole engine: how data is stored, which statistics are kept, and
//! that every decision reads back.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;

use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolEnv, PoolOptions, Properties, TraceRecord};
use env::MapStore as _;
use sim::{ContentKind, Machine, Rng, fill_content};
use surface::{BlockDevice, WriteOptions};

const GROUP: usize = 128 << 10;
const VOLUME_BYTES: u64 = 48 << 20;

fn properties(pairs: &[(&str, &str)]) -> Properties {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

struct World {
    machine: Machine,
    pool: Option<Pool>,
}

impl World {
    fn new(pairs: &[(&str, &str)]) -> Self {
        let machine = Machine::new(128 << 20, 7);
        let mut world = Self { machine, pool: None };
        let format = FormatOptions { capacity_bytes: 128 << 20, extent_bytes: 1 << 20, properties: properties(pairs) };
        Pool::format(&world.env(), &format).unwrap();
        world.open();
        world.pool().create_volume("v", VOLUME_BYTES, &Properties::new()).unwrap();
        world
    }

    fn env(&self) -> PoolEnv {
        crate::common::machine_env::env(&self.machine)
    }

    fn open(&mut self) {
        let options = PoolOptions { memory_bytes: 32 << 20, workers: 0, ..PoolOptions::default() };
        self.pool = Some(Pool::open(self.env(), options).unwrap());
    }

    fn pool(&self) -> &Pool {
        self.pool.as_ref().unwrap()
    }

    /// Writes `bytes` from a byte on, flushes, and gives the trace of it.
    fn write(&self, at: u64, bytes: &[u8]) -> Vec<TraceRecord> {
        let volume = self.pool().volume("v").unwrap();
        self.pool().set_trace(true);
        for (index, chunk) in bytes.chunks(GROUP).enumerate() {
            let offset = at + (index * GROUP) as u64;
            volume.write(offset, Bytes::copy_from_slice(chunk), WriteOptions::default()).unwrap();
        }
        volume.flush().unwrap();
        let trace = self.pool().take_trace(usize::MAX);
        self.pool().set_trace(false);
        let mut back = vec![0; bytes.len()];
        self.pool().drop_caches();
        volume.read(at, &mut back).unwrap();
        assert!(back == bytes, "what was written at byte {at} reads back");
        trace
    }
}

fn content(seed: u64, kind: ContentKind, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut bytes = vec![0; len];
    for part in bytes.chunks_mut(4096) {
        fill_content(&mut rng, kind, part);
    }
    bytes
}

fn share(trace: &[TraceRecord]) -> f64 {
    let sum = |of: fn(&TraceRecord) -> u32| trace.iter().map(|r| f64::from(of(r))).sum::<f64>();
    sum(|r| r.stored_bytes) / sum(|r| r.raw_bytes)
}

fn count(trace: &[TraceRecord], of: impl Fn(&TraceRecord) -> bool) -> usize {
    trace.iter().filter(|r| of(r)).count()
}

#[test]
fn text_is_compressed_random_data_is_not_and_both_read_back() {
    for mode in ["performance", "balanced", "energy", "archive"] {
        let world = World::new(&[("compression", "auto"), ("mode", mode)]);
        let text = world.write(0, &content(1, ContentKind::Text, 4 << 20));
        assert_eq!(text.len(), 128);
        assert!(share(&text) < 0.6, "{mode}: {:.3}", share(&text));
        let random = world.write(8 << 20, &content(2, ContentKind::Random, 4 << 20));
        assert_eq!(share(&random), 1.0, "{mode}");
        assert!(count(&random, |r| r.class == 7) > 120, "{mode}");
        let trace = world.write(16 << 20, &content(3, ContentKind::Constant, 1 << 20));
        assert!(share(&trace) < 0.01, "{mode}");
    }
}

#[test]
fn properties_change_online() {
    let world = World::new(&[("compression", "auto"), ("candidates", "gzip-1,lz4")]);
    let text = content(5, ContentKind::Text, 2 << 20);
    let trace = world.write(0, &text);
    assert_eq!(count(&trace, |r| !["lz4", "gzip-1", "raw"].contains(&r.codec.as_str())), 0);
    let set = |key: &str, value: &str| {
        world.pool().set_properties(Some("v"), &[(key.to_owned(), Some(value.to_owned()))]).unwrap();
    };
    set("candidates", "zstd-3");
    let trace = world.write(0, &text);
    assert_eq!(count(&trace, |r| r.codec != "zstd-3"), 0, "a winner that is no candidate any more is not used");
    set("compression", "lzo");
    assert!(world.write(0, &text).is_empty(), "nothing is chosen");
    set("compression", "auto");
    set("min-saving", "90");
    let trace = world.write(0, &text);
    assert_eq!(count(&trace, |r| r.codec == "raw"), trace.len());
}

#[test]
fn what_was_learned_survives_a_restart_and_damage_to_it_does_no_harm() {
    let mut world = World::new(&[("compression", "auto")]);
    world.write(0, &content(11, ContentKind::Text, 8 << 20));
    world.pool.take().unwrap().close().unwrap();
    let store = world.machine.store.handle();
    let kept = store.get(format::KEY_LEARNED).unwrap().expect("costs are kept by a checkpoint");
    assert!(format::decode_learned(&kept).unwrap().len() > 2);
    world.machine.restart();
    world.open();
    world.write(0, &content(12, ContentKind::Text, 1 << 20));
    world.pool.take().unwrap().close().unwrap();
    // Damaged.
    world.machine.restart();
    let store = world.machine.store.handle();
    let mut batch = env::MapBatch::default();
    batch.put(format::KEY_LEARNED, vec![7; 33]);
    store.commit(batch).unwrap();
    store.persist().unwrap();
    drop(store);
    world.open();
    let trace = world.write(0, &content(13, ContentKind::Text, 1 << 20));
    assert!(share(&trace) < 0.6);
    world.pool.take().unwrap().close().unwrap();
}

#[test]
fn the_size_of_units_follows_their_use() {
    let world = World::new(&[("compression", "auto"), ("unit", "8K-128K")]);
    let text = content(21, ContentKind::Text, 4 << 20);
    let trace = world.write(0, &text);
    assert_eq!(count(&trace, |r| r.raw_bytes != 128 << 10), 0, "a stream gets the largest units");
    let trace = world.write(GROUP as u64, &content(22, ContentKind::Text, 40 << 10));
    assert_eq!(trace.iter().map(|r| r.raw_bytes).collect::<Vec<_>>(), [32 << 10, 8 << 10], "a part of a group");
    // Read in pieces: small reads, cold.
    let volume = world.pool().volume("v").unwrap();
    let mut block = vec![0; 4096];
    for index in 0..200u64 {
        world.pool().drop_caches();
        volume.read(index * 37 % 1000 * 4096, &mut block).unwrap();
    }
    let trace = world.write(0, &text[..1 << 20]);
    assert_eq!(count(&trace, |r| r.raw_bytes != 8 << 10), 0, "what is read in pieces gets the smallest");
}

#[test]
fn the_same_calls_make_the_same_decisions() {
    let run = || {
        let world = World::new(&[("compression", "auto")]);
        let mut all = BTreeMap::new();
        for (index, kind) in [ContentKind::Text, ContentKind::Mixed, ContentKind::Random].into_iter().enumerate() {
            let index = index as u64;
            all.insert(index, world.write(index * (8 << 20), &content(index, kind, 4 << 20)));
        }
        all
    };
    assert!(run() == run());
}

#[test]
fn explain_tells_what_is_stored_and_why_others_lose() {
    let world = World::new(&[("compression", "auto"), ("candidates", "lz4,zstd-1,zstd-9")]);
    world.write(0, &content(31, ContentKind::Text, 4 << 20));
    world.write(8 << 20, &content(32, ContentKind::Random, 1 << 20));
    let (regions, next) = world.pool().explain("v", 0, 100).unwrap();
    assert_eq!(next, None);
    assert_eq!(regions.iter().map(|r| (r.offset, r.raw_bytes)).collect::<Vec<_>>(), [(0, 4 << 20), (8 << 20, 1 << 20)]);
    let status = world.pool().status();
    assert_eq!(regions.iter().map(|r| r.stored_bytes).sum::<u64>(), status.fragment_bytes);
    assert!(regions[0].remembered.is_some());
    assert_eq!(regions[1].codecs.len(), 1);
    assert_eq!((regions[1].codecs[0].codec.as_str(), regions[1].codecs[0].units), ("raw", 32));
    let (page, next) = world.pool().explain("v", 0, 1).unwrap();
    assert_eq!((page.len(), next), (1, Some(4 << 20)));

    let detail = world.pool().explain_region("v", 70 << 10).unwrap();
    assert_eq!((detail.unit_offset, detail.unit_bytes), (64 << 10, 32 << 10));
    assert_eq!(detail.trials.iter().map(|t| t.codec.as_str()).collect::<Vec<_>>(), ["lz4", "zstd-1", "zstd-9"]);
    assert_eq!(detail.trials.iter().filter(|t| t.verdict == "wins").count(), 1, "{:?}", detail.trials);
    let random = world.pool().explain_region("v", 8 << 20).unwrap();
    assert!(random.bits_per_byte > 7.5 && random.trials.iter().all(|t| t.stored_bytes.is_none()), "{random:?}");
    assert!(random.chosen == "raw" || random.chosen == "lz4", "{random:?}");
    assert_eq!(world.pool().explain_region("v", 20 << 20).unwrap_err().kind(), surface::ErrorKind::NotFound);
    assert_eq!(world.pool().explain_region("v", VOLUME_BYTES).unwrap_err().kind(), surface::ErrorKind::Invalid);
    assert_eq!(world.pool().explain("x", 0, 1).unwrap_err().kind(), surface::ErrorKind::NotFound);
}

/// Sizes around those of a group and a region, with data at the end or nowhere. The clock of the
/// simulation stands still, so no time limit ends a search that does not end by itself.
#[test]
fn explain_ends_at_the_end_of_a_volume_of_any_size() {
    let world = World::new(&[]);
    let pool = world.pool();
    for blocks in [1, 32, 33, 1024, 1025, 1057] {
        let name = format!("of-{blocks}");
        pool.create_volume(&name, blocks * 4096, &Default::default()).unwrap();
        assert_eq!(pool.explain(&name, 0, 100).unwrap(), (Vec::new(), None), "{name}, empty");
        let volume = pool.volume(&name).unwrap();
        let last = (blocks - 1) * 4096;
        volume.write(last, Bytes::from(vec![b'x'; 4096]), WriteOptions::default()).unwrap();
        pool.flush().unwrap();
        let (regions, next) = pool.explain(&name, 0, 100).unwrap();
        assert_eq!((regions.len(), regions[0].raw_bytes, next), (1, 4096, None), "{name}");
        volume.discard(last, 4096).unwrap();
        pool.flush().unwrap();
        assert_eq!(pool.explain(&name, 0, 100).unwrap(), (Vec::new(), None), "{name}, discarded");
    }
}

/// Everyone who could read figures could make the pool write all buffers, again and again.
#[test]
fn explain_writes_nothing_and_tells_what_is_in_the_write_buffer() {
    let world = World::new(&[]);
    let pool = world.pool();
    let volume = pool.volume("v").unwrap();
    volume.write(0, Bytes::from(vec![b'x'; 8192]), WriteOptions::default()).unwrap();
    let before = pool.status();
    assert_eq!(pool.explain("v", 0, 100).unwrap(), (Vec::new(), None));
    assert_eq!(pool.buffered_bytes("v").unwrap(), 8192);
    let error = pool.explain_region("v", 0).unwrap_err();
    assert_eq!(error.kind(), surface::ErrorKind::NotFound);
    assert!(error.to_string().contains("in the write buffer only"), "{error}");
    let after = pool.status();
    assert_eq!((after.log_bytes, after.checkpoints), (before.log_bytes, before.checkpoints));
    pool.flush().unwrap();
    assert!(pool.status().log_bytes > before.log_bytes);
    let (regions, _) = pool.explain("v", 0, 100).unwrap();
    assert_eq!((regions[0].raw_bytes, pool.buffered_bytes("v").unwrap()), (8192, 0));
    assert_eq!(pool.explain_region("v", 0).unwrap().region.raw_bytes, 8192);
}
