//! Streams that tell the difference from an image: the receiver's volume falls through to the same
//! image, and reads as the sender's. A cache of the image is not sent.

use std::sync::Arc;

use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolEnv, PoolOptions, Properties, Receiver, Sender};
use format::STREAM_HEAD_BYTES;
use sim::{ContentKind, Machine, Rng, fill_content};
use surface::{BlockDevice, Error, ErrorKind, WriteOptions};

use crate::common::fake_origin::{FakeOrigin, Mood};
use crate::common::machine_env;

const GROUP: usize = 128 << 10;
/// Ends within a block.
const IMAGE: usize = 20 * GROUP + 5000;
const SEED: u64 = 11;
const CAPACITY_BYTES: u64 = 64 << 20;

/// A machine with a pool, and its own way to the store.
struct Side {
    machine: Machine,
    origin: Arc<FakeOrigin>,
    pool: Option<Pool>,
}

impl Side {
    fn new(seed: u64) -> Self {
        let machine = Machine::new(CAPACITY_BYTES, seed);
        let mut side = Self { machine, origin: FakeOrigin::new(SEED, IMAGE), pool: None };
        let format =
            FormatOptions { capacity_bytes: CAPACITY_BYTES, extent_bytes: 256 << 10, properties: Properties::new() };
        Pool::format(&side.env(), &format).unwrap();
        side.open();
        side
    }

    fn env(&self) -> PoolEnv {
        PoolEnv { origins: Some(self.origin.clone()), ..machine_env::env(&self.machine) }
    }

    fn open(&mut self) {
        let options = PoolOptions { memory_bytes: 8 << 20, workers: 0, ..PoolOptions::default() };
        self.pool = Some(Pool::open(self.env(), options).unwrap());
    }

    fn reopen(&mut self) {
        self.pool.take().unwrap().close().unwrap();
        self.open();
    }

    fn pool(&self) -> &Pool {
        self.pool.as_ref().unwrap()
    }

    fn clone_image(&self, name: &str) {
        self.pool().clone_image(&self.origin.image, name, None, &Properties::new()).unwrap();
    }

    fn write(&self, name: &str, model: &mut [u8], offset: usize, data: &Bytes) {
        self.pool().volume(name).unwrap().write(offset as u64, data.clone(), WriteOptions::default()).unwrap();
        model[offset..offset + data.len()].copy_from_slice(data);
    }

    fn discard(&self, name: &str, model: &mut [u8], offset: usize, len: usize) {
        self.pool().volume(name).unwrap().discard(offset as u64, len as u64).unwrap();
        model[offset..offset + len].fill(0);
    }

    fn read(&self, name: &str) -> Vec<u8> {
        self.pool().drop_caches();
        let volume = self.pool().volume(name).unwrap();
        let mut bytes = vec![0xaa; volume.size_bytes() as usize];
        for (index, part) in bytes.chunks_mut(300_000).enumerate() {
            volume.read(index as u64 * 300_000, part).unwrap();
        }
        bytes
    }

    fn check(&self) {
        self.pool().checkpoint().unwrap();
        let report = self.pool().check(false, &mut |_, _| ()).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }

    /// The token of the only stream that has broken off.
    fn token(&self) -> String {
        let receives = self.pool().receives();
        assert_eq!(receives.len(), 1);
        receives[0].token.clone()
    }
}

/// The image, and zeroes up to the end of a block.
fn expected(origin: &FakeOrigin) -> Vec<u8> {
    let mut expected = origin.content.clone();
    expected.resize(expected.len().next_multiple_of(4096), 0);
    expected
}

fn noise(seed: u64, len: usize) -> Bytes {
    let mut bytes = vec![0; len];
    fill_content(&mut Rng::new(seed), ContentKind::Random, &mut bytes);
    bytes.into()
}

fn give(receiver: &mut Receiver, chunk: &[u8]) -> Result<bool, Error> {
    let (head, body) = chunk.split_first_chunk::<STREAM_HEAD_BYTES>().unwrap();
    receiver.take(head, body).map(|report| report.is_some())
}

/// Brings at most so many chunks of a stream to a volume of a pool; whether that was all.
fn bring(sender: &mut Sender, to: &Pool, volume: &str, most: usize) -> Result<bool, Error> {
    let mut receiver = to.receive(volume, &Properties::new());
    for _ in 0..most {
        match sender.next_chunk()? {
            Some(chunk) => drop(give(&mut receiver, &chunk)?),
            None => return Ok(true),
        }
    }
    Ok(false)
}

#[test]
fn what_differs_from_an_image_is_sent_and_nothing_else() {
    let source = Side::new(3);
    source.clone_image("v");
    let mut model = expected(&source.origin);
    // A half of the image is here.
    source.pool().volume("v").unwrap().read(0, &mut vec![0; 10 * GROUP]).unwrap();
    source.pool().resize_volume("v", (model.len() + 2 * GROUP) as u64).unwrap();
    model.resize(model.len() + 2 * GROUP, 0);
    source.write("v", &mut model, 3 * GROUP + 4096, &noise(6, GROUP));
    source.write("v", &mut model, 14 * GROUP + 77, &noise(7, 5000));
    let behind = model.len() - GROUP;
    source.write("v", &mut model, behind, &noise(8, 8192));
    // A part of it was fetched.
    for (first, len) in [(5 * GROUP, 3 * GROUP), (16 * GROUP + 8192, 3 * GROUP), (19 * GROUP, 4096)] {
        source.discard("v", &mut model, first, len);
    }
    source.pool().snapshot("v", "one").unwrap();
    let one = model.clone();
    source.write("v", &mut model, 6 * GROUP, &noise(9, 4096));
    source.discard("v", &mut model, 3 * GROUP, 2 * GROUP);
    source.pool().snapshot("v", "two").unwrap();

    // The sender needs no store, and neither does the receiver before it reads.
    source.origin.set(Mood::Away);
    let mut target = Side::new(5);
    let mut sender = source.pool().send_thin("v@one").unwrap().with_chunk_bytes(4096);
    assert_eq!(sender.image().as_ref(), Some(&source.origin.image));
    assert!(!bring(&mut sender, target.pool(), "copy", 3).unwrap());
    target.reopen();
    let images = target.pool().images();
    assert_eq!((images[0].volumes.len(), &images[0].incoming[..]), (0, &["copy".to_owned()][..]));
    let token = target.token();
    assert!(token.starts_with("shale2-"), "{token}");
    // The whole snapshot would say nothing of what the image has and the snapshot has not.
    source.origin.set(Mood::Well);
    let error = bring(&mut source.pool().send("v@one", None).unwrap(), target.pool(), "copy", 1).unwrap_err();
    assert!(
        error.kind() == ErrorKind::Conflict && error.to_string().contains("the image s3://bucket/image@7"),
        "{error}"
    );
    source.origin.set(Mood::Away);
    let mut rest = source.pool().send_resumed(&token).unwrap();
    assert!(bring(&mut rest, target.pool(), "copy", usize::MAX).unwrap());
    let sent = sender.payload_bytes() + rest.payload_bytes();
    assert!(sent < 2 * GROUP as u64, "{sent} bytes were sent");
    assert_eq!(target.origin.asked_total(), 0);
    assert!(target.read("copy") == one, "HARNESS: the copy is not the snapshot");
    // The next difference.
    let mut sender = source.pool().send("v@two", Some("one")).unwrap();
    assert!(bring(&mut sender, target.pool(), "copy", usize::MAX).unwrap());
    assert!(target.read("copy") == model && target.read("copy@one") == one);
    target.reopen();
    assert!(target.read("copy") == model);
    target.check();
    // And on from there.
    let third = Side::new(7);
    assert!(bring(&mut target.pool().send_thin("copy@two").unwrap(), third.pool(), "far", usize::MAX).unwrap());
    assert!(third.read("far") == model);
    third.pool().destroy("far", true).unwrap();
    third.pool().checkpoint().unwrap();
    third.check();
    assert_eq!(third.pool().images(), []);
    assert_eq!(third.pool().status().live_bytes, 0);
}

#[test]
fn what_was_cut_off_stays_cut_off_where_it_is_received() {
    let (source, target) = (Side::new(3), Side::new(5));
    source.clone_image("v");
    let mut model = expected(&source.origin);
    source.pool().resize_volume("v", 3 * GROUP as u64 + 100).unwrap();
    source.pool().snapshot("v", "s").unwrap();
    assert!(bring(&mut source.pool().send_thin("v@s").unwrap(), target.pool(), "v", usize::MAX).unwrap());
    target.pool().resize_volume("v", model.len() as u64).unwrap();
    model[3 * GROUP + 100..].fill(0);
    assert!(target.read("v") == model, "HARNESS: a larger volume shows what the image has there");
    target.check();
}

#[test]
fn parts_of_thin_and_of_whole_streams_do_not_mix() {
    let (source, mut target) = (Side::new(3), Side::new(5));
    source.clone_image("v");
    let mut model = expected(&source.origin);
    source.write("v", &mut model, 2 * GROUP, &noise(1, GROUP));
    source.pool().snapshot("v", "s").unwrap();
    let whole =
        |pool: &Pool| source.pool().send("v@s", None).map(|s| bring(&mut s.with_chunk_bytes(4096), pool, "c", 4));
    assert!(!whole(target.pool()).unwrap().unwrap());
    assert!(target.token().starts_with("shale1-"));
    assert_eq!(target.pool().images(), []);
    let mut thin = source.pool().send_thin("v@s").unwrap();
    let error = bring(&mut thin, target.pool(), "c", 1).unwrap_err();
    assert!(error.kind() == ErrorKind::Conflict && error.to_string().contains("a whole snapshot"), "{error}");
    target.pool().destroy("c", false).unwrap();
    // One that is given up lets go of the image.
    let mut thin = source.pool().send_thin("v@s").unwrap().with_chunk_bytes(4096);
    assert!(!bring(&mut thin, target.pool(), "c", 2).unwrap());
    assert_eq!(target.pool().images().len(), 1);
    target.pool().destroy("c", false).unwrap();
    target.pool().checkpoint().unwrap();
    assert_eq!(target.pool().images(), []);
    target.reopen();
    target.check();
    source.pool().create_volume("w", 1 << 20, &Properties::new()).unwrap();
    source.pool().snapshot("w", "s").unwrap();
    let error = source.pool().send_thin("w@s").unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("--thin"), "{error}");
}
