//! How long requests wait for the store of an image that takes its time: `remote-timeout`, for all
//! that a request needs together; not at all when they are given up; hardly when the process ends.

use engine::{Pool, Properties};
use env::Clock;
use surface::{BlockDevice, Error, ErrorKind, WriteOptions};

use crate::common::fake_origin::Mood;
use crate::common::noise;
use crate::image_world::{GROUP, IMAGE, World, write};

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

    /// Returns the milliseconds that some work takes on the clock, and its result.
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
    // Later changes of its volume's property apply to it, too.
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
    // The received part is there, and the rest is waited for by the receiver's rule.
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
    world.machine.clock.advance_ms(1);
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

/// Nothing but `fetched` is here of the image, and the store hangs when a server is asked to end.
fn the_end_keeps_what_was_acknowledged(is_power_lost: bool) {
    let mut world = world(3, "0");
    world.machine.clock.advance_ms(1);
    let mut model = world.expected();
    let fetched = 2 * GROUP;
    read(world.pool(), "v", 2, 1).unwrap();
    write(world.pool(), "v", &mut model, 5 * GROUP, &noise(1, 4096));
    write(world.pool(), "v", &mut model, 5 * GROUP + 100, &noise(2, 50));
    world.hang(NEVER_MS);
    let change = |at: usize, len: usize| {
        move |pool: &Pool| pool.volume("v").unwrap().write(at as u64, noise(9, len), WriteOptions::default())
    };
    // The end begins while a write of a part of a block waits for the rest of it.
    let pool = world.pool().clone();
    world.origin.meanwhile(move || pool.end_fetching());
    assert_eq!(world.pool().unwritten(), []);
    let (took, done) = world.timed(change(9 * GROUP + 10, 100));
    told(&done.unwrap_err());
    assert_eq!(took, 5_000, "the store has a moment left");
    // It is not waited for again, for none of the ways to change a part of a block.
    let (took, done) = world.timed(change(12 * GROUP + 4090, 20));
    told(&done.unwrap_err());
    let (again, zeroed) = world.timed(|pool| pool.volume("v").unwrap().discard(14 * GROUP as u64 + 100, 200));
    let error = told(&zeroed.unwrap_err());
    assert_eq!((took, again), (0, 0));
    let unwritten = world.pool().unwritten();
    assert_eq!((unwritten.len(), &*unwritten[0].volume, unwritten[0].changes), (1, "v", 3));
    assert_eq!(unwritten[0].range, (9 * GROUP + 10) as u64..(14 * GROUP + 300) as u64);
    assert_eq!(unwritten[0].why, error);
    // Writes that do not need the store are acknowledged, and kept.
    write(world.pool(), "v", &mut model, fetched + 5000, &noise(3, 300));
    write(world.pool(), "v", &mut model, 9 * GROUP + 4096, &noise(4, 8192));
    write(world.pool(), "v", &mut model, 5 * GROUP + 200, &noise(5, 50));
    assert_eq!(world.pool().unwritten(), unwritten, "of what was kept nothing is told");
    if is_power_lost {
        world.pool().volume("v").unwrap().flush().unwrap();
        world.pool = None;
        world.machine.power_cycle();
        world.open();
    } else {
        world.reopen();
    }
    world.origin.set(Mood::Well);
    assert!(world.read("v") == model, "what was acknowledged is there, and nothing of the rest");
    world.check();
}

#[test]
fn a_write_is_kept_or_fails_and_is_told_of_when_the_process_ends() {
    the_end_keeps_what_was_acknowledged(false);
    the_end_keeps_what_was_acknowledged(true);
}

#[test]
fn a_store_that_was_away_is_asked_once_more_at_the_end() {
    let world = world(3, "6s");
    let mut model = world.expected();
    world.origin.set(Mood::Away);
    told(&read(world.pool(), "v", 4, 1).unwrap_err());
    world.origin.set(Mood::Well);
    // It has a pause of seconds before it, which the end does not wait for.
    world.pool().end_fetching();
    write(world.pool(), "v", &mut model, 4 * GROUP + 10, &noise(1, 100));
    assert_eq!((world.read("v") == model, world.pool().unwritten()), (true, vec![]));
}
