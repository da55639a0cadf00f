//! How long requests wait for the store of an image that takes its time: `remote-timeout`, for all
//! that a request needs together; not at all when they are given up; hardly when the process ends.

use engine::{Pool, Properties};
use env::Clock;
use surface::{BlockDevice, Error, ErrorKind, WriteOptions};

use crate::common::fake_origin::Mood;
use crate::common::noise;
use crate::image_world::{GROUP, IMAGE, World};

/// Longer than any request of these tests waits.
const NEVER_MS: u64 = 3_600_000;

fn world(seed: u64, remote_timeout: &str) -> World {
    let world = World::without_volumes(seed, 64 << 20, IMAGE, Properties::new());
    world.clone_image("v");
    world.set_timeout("v", remote_timeout);
    world
}

impl World {
    fn set_timeout(&self, volume: &str, value: &str) {
        let change = [("remote-timeout".to_owned(), Some(value.to_owned()))];
        self.pool().set_properties(Some(volume), &change).unwrap();
    }

    fn hang(&self, ms: u64) {
        self.origin.hang(&self.machine.clock, ms);
    }

    /// Milliseconds that some work takes on the clock, and what comes of it.
    fn timed<T>(&self, work: impl FnOnce(&Pool) -> T) -> (u64, T) {
        let began = self.machine.clock.now_ns();
        let done = work(self.pool());
        ((self.machine.clock.now_ns() - began) / 1_000_000, done)
    }
}

fn read(pool: &Pool, volume: &str, first: usize, groups: usize) -> Result<(), Error> {
    pool.volume(volume).unwrap().read((first * GROUP) as u64, &mut vec![0xaa; groups * GROUP])
}

fn send(pool: &Pool, snapshot: &str, is_over: &dyn Fn() -> bool) -> Result<u64, Error> {
    let mut sender = pool.send(snapshot, None)?;
    while sender.next_chunk_unless(is_over)?.is_some() {}
    Ok(sender.payload_bytes())
}

fn told(error: &Error) -> String {
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    let text = error.to_string();
    assert!(text.contains("s3://bucket/image@7"), "{text}");
    text
}

#[test]
fn a_request_under_way_is_given_up_at_the_deadline() {
    for groups in [1, 12] {
        let world = world(3, "6s");
        world.hang(NEVER_MS);
        let (took, done) = world.timed(|pool| read(pool, "v", 2, groups));
        assert!(told(&done.unwrap_err()).contains("no answer in time"));
        assert_eq!(took, 6_000, "{groups} groups");
        // A part of a block needs the rest of it.
        let change = |pool: &Pool| pool.volume("v").unwrap().write(5, noise(1, 10), WriteOptions::default());
        let (took, done) = world.timed(change);
        told(&done.unwrap_err());
        assert!(took <= 6_000, "{took} ms");
        assert_eq!(world.pool().images()[0].waiting, 0);
    }
}

#[test]
fn all_tries_of_a_read_have_one_deadline() {
    let world = world(3, "6s");
    // Two and a half of these would fit without pauses.
    world.hang(2_500);
    let (took, done) = world.timed(|pool| read(pool, "v", 2, 12));
    told(&done.unwrap_err());
    assert!((5_000..=6_000).contains(&took), "{took} ms");
    assert_eq!(world.pool().images()[0].failures, 3);
    // A store that is back serves the next read.
    world.origin.set(Mood::Well);
    world.machine.clock.advance_ms(60_000);
    assert!(world.read("v") == world.expected());
}

#[test]
fn a_snapshot_waits_as_long_as_its_volume() {
    let world = world(3, "6s");
    world.pool().snapshot("v", "a").unwrap();
    world.hang(NEVER_MS);
    let (took, done) = world.timed(|pool| read(pool, "v@a", 2, 1));
    assert!(told(&done.unwrap_err()).contains("'v@a'"));
    assert_eq!(took, 6_000);
    let (took, done) = world.timed(|pool| send(pool, "v@a", &|| false));
    assert!(told(&done.unwrap_err()).contains("no answer in time"));
    assert!(took <= 6_000, "{took} ms");
    // What its volume is told later holds for it, too.
    world.machine.clock.advance_ms(60_000);
    world.set_timeout("v", "20s");
    let (took, done) = world.timed(|pool| send(pool, "v@a", &|| false));
    told(&done.unwrap_err());
    assert_eq!(took, 20_000);
}

#[test]
fn a_stream_that_is_given_up_ends_and_holds_nothing() {
    let world = world(3, "0");
    world.pool().snapshot("v", "a").unwrap();
    world.hang(NEVER_MS);
    let clock = &world.machine.clock;
    let until = clock.now_ns() + 2_000_000_000;
    let (took, done) = world.timed(|pool| send(pool, "v@a", &|| clock.now_ns() >= until));
    told(&done.unwrap_err());
    assert_eq!(took, 2_000);
    let image = &world.pool().images()[0];
    assert_eq!((image.waiting, image.failures, &image.last_error), (0, 0, &None), "this tells nothing of the store");
    // A stream that is given up already asks for nothing.
    let (took, done) = world.timed(|pool| send(pool, "v@a", &|| true));
    told(&done.unwrap_err());
    assert_eq!((took, world.origin.asked_total()), (0, 0));
    world.origin.set(Mood::Well);
    assert!(send(world.pool(), "v@a", &|| false).unwrap() > 0);
    world.hang(NEVER_MS);
    world.pool().destroy("v", true).unwrap();
    world.check();
    assert_eq!(world.pool().images(), []);
}

#[test]
fn a_thin_stream_waits_for_no_store() {
    let (source, target) = (world(3, "0"), World::without_volumes(5, 64 << 20, IMAGE, Properties::new()));
    let change = noise(6, GROUP);
    source.pool().volume("v").unwrap().write(3 * GROUP as u64, change.clone(), WriteOptions::default()).unwrap();
    source.pool().snapshot("v", "a").unwrap();
    source.hang(NEVER_MS);
    target.hang(NEVER_MS);
    let (took, sent) = source.timed(|pool| {
        let mut sender = pool.send_thin("v@a").unwrap();
        let mut receiver = target.pool().receive("copy", &Properties::new());
        while let Some(chunk) = sender.next_chunk().unwrap() {
            let (head, body) = chunk.split_first_chunk().unwrap();
            receiver.take(head, body).unwrap();
        }
        sender.payload_bytes()
    });
    assert!(took == 0 && sent >= GROUP as u64 / 2, "{took} ms, {sent} bytes");
    assert_eq!((source.origin.asked_total(), target.origin.asked_total(), target.machine.clock.now_ns()), (0, 0, 0));
    // What came is there, and the rest is waited for by the receiver's rule.
    target.set_timeout("copy", "6s");
    let mut came = vec![0; GROUP];
    target.pool().volume("copy").unwrap().read(3 * GROUP as u64, &mut came).unwrap();
    assert!(came == change[..], "not what was sent");
    let (took, done) = target.timed(|pool| read(pool, "copy", 5, 2));
    told(&done.unwrap_err());
    assert_eq!(took, 6_000);
}

#[test]
fn a_process_that_ends_waits_for_no_store() {
    let world = world(3, "0");
    world.pool().end_fetching();
    read(world.pool(), "v", 0, 2).unwrap();
    world.hang(NEVER_MS);
    let (took, done) = world.timed(|pool| read(pool, "v", 4, 2));
    told(&done.unwrap_err());
    assert_eq!(took, 5_000, "one attempt, and a short one");
    let (took, done) = world.timed(|pool| read(pool, "v", 8, 2));
    assert!(told(&done.unwrap_err()).contains("given up"));
    assert_eq!(took, 0, "none any more");
    read(world.pool(), "v", 0, 2).unwrap();
    world.check();
}
