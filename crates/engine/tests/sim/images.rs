//! Volumes that were cloned from images: they read as the image, fetched once, in any state of its
//! store; an unavailable group is an error, and never zeroes.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolEnv, PoolOptions, Properties, PushBase, SalvageSource};
use env::RemoteGroup;
use sim::Machine;
use surface::{Allocation, BlockDevice, ErrorKind, PendingRead, Result, WriteOptions};

use crate::common::fake_origin::Mood;
use crate::common::{machine_env, noise};
use crate::image_world::{GROUP, IMAGE, World, read, write};

const SIZE: usize = IMAGE.next_multiple_of(4096);

impl World {
    fn new(capacity_bytes: u64, image: usize) -> Self {
        let properties = Properties::from([("compression".to_owned(), "lz4".to_owned())]);
        let world = Self::without_volumes(3, capacity_bytes, image, properties);
        world.clone_image("v");
        world
    }

    fn set(&self, volume: Option<&str>, key: &str, value: &str) {
        self.pool().set_properties(volume, &[(key.to_owned(), Some(value.to_owned()))]).unwrap();
    }
}

#[test]
fn what_clones_of_an_image_read_is_fetched_once() {
    let mut world = World::new(64 << 20, IMAGE);
    let pool = world.pool();
    assert_eq!(world.origin.asked_total(), 0, "a clone fetches nothing");
    pool.clone_image(&world.origin.image, "w", None, &Properties::new()).unwrap();
    let mut small = [0; 100];
    pool.volume("v").unwrap().read(5 * GROUP as u64 + 7, &mut small).unwrap();
    assert_eq!(small[..], world.origin.content[5 * GROUP + 7..][..100]);
    assert_eq!(world.origin.asked().keys().copied().collect::<Vec<_>>(), [5], "and a read only what it reads");
    assert!(world.read("v") == world.expected() && world.read("w") == world.expected());
    world.check();
    world.reopen();
    world.origin.set(Mood::Away);
    assert!(world.read("w") == world.expected());
    let asked = world.origin.asked();
    assert!(asked.len() == 21 && asked.values().all(|times| *times == 1), "{asked:?}");
    let images = world.pool().images();
    assert_eq!((images.len(), images[0].volumes.len()), (1, 2));
    // Every hole of the image is known, and nothing else.
    let runs = world.pool().volume("v").unwrap().allocation(0, SIZE as u64, usize::MAX).unwrap();
    assert!(runs.iter().any(|run| run.allocation == Allocation::Hole));
    for name in ["v", "w"] {
        world.pool().destroy(name, true).unwrap();
    }
    world.pool().checkpoint().unwrap();
    world.check();
    assert_eq!(world.pool().images(), []);
    assert_eq!(world.pool().status().live_bytes, 0);
    world.reopen();
}

#[test]
fn what_has_not_been_fetched_is_told_as_data_and_a_resize_goes_along() {
    let mut world = World::new(64 << 20, IMAGE);
    let runs = world.pool().volume("v").unwrap().allocation(0, SIZE as u64, usize::MAX).unwrap();
    assert!(runs.iter().all(|run| run.allocation == Allocation::Data), "{runs:?}");
    world.pool().resize_volume("v", 3 * GROUP as u64 + 100).unwrap();
    world.pool().resize_volume("v", SIZE as u64 + GROUP as u64).unwrap();
    world.reopen();
    let mut expected = world.expected();
    expected[3 * GROUP + 100..].fill(0);
    expected.resize(SIZE + GROUP, 0);
    assert!(world.read("v") == expected);
    world.check();
}

#[test]
fn a_store_that_is_away_is_an_error_that_names_it_and_never_zeroes() {
    let world = World::new(64 << 20, IMAGE);
    let volume = world.pool().volume("v").unwrap();
    let at = (0..20).find(|group| world.origin.content[group * GROUP..][..4096].iter().any(|b| *b != 0)).unwrap();
    let mut block = vec![0; 4096];
    for (mood, kind, text) in [
        (Mood::Away, ErrorKind::Io, "no route to the store"),
        (Mood::Denies, ErrorKind::Io, "denied access: 403"),
        (Mood::Gone, ErrorKind::Io, "no longer exists"),
    ] {
        world.origin.set(mood);
        world.machine.clock.advance_ms(900_000);
        let error = volume.read((at * GROUP) as u64, &mut block).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        let said = error.to_string();
        assert!(said.contains(text) && said.contains("s3://bucket/image@7") && said.contains("'v'"), "{said}");
        assert!(world.pool().images()[0].last_error.as_ref().unwrap().contains(text.split(':').next().unwrap()));
        // A part of a block needs the rest of it; whole blocks need nothing.
        volume.write((at * GROUP + 5) as u64, noise(1, 10), WriteOptions::default()).unwrap_err();
        volume.write(((at + 1) * GROUP) as u64, noise(1, 8192), WriteOptions::default()).unwrap();
        volume.flush().unwrap();
    }
    world.origin.set(Mood::Well);
    world.machine.clock.advance_ms(900_000);
    volume.read((at * GROUP) as u64, &mut block).unwrap();
    assert_eq!(block[..], world.origin.content[at * GROUP..][..4096]);
    assert_eq!(world.pool().images()[0].last_error, None);
    volume.write((at * GROUP + 5) as u64, noise(1, 10), WriteOptions::default()).unwrap();
    volume.read((at * GROUP) as u64, &mut block).unwrap();
    assert_eq!(
        (&block[..5], &block[15..]),
        (&world.origin.content[at * GROUP..][..5], &world.origin.content[at * GROUP + 15..][..4081])
    );
}

#[test]
fn an_image_that_is_gone_is_told_until_it_is_back() {
    let world = World::new(64 << 20, IMAGE);
    let volume = world.pool().volume("v").unwrap();
    let has_data = |group: &usize| world.origin.content[group * GROUP..][..4096].iter().any(|b| *b != 0);
    let groups: Vec<usize> = (0..20).filter(has_data).take(2).collect();
    let read = |group: usize, mood: Mood| {
        world.origin.set(mood);
        world.machine.clock.advance_ms(900_000);
        volume.read((group * GROUP) as u64, &mut vec![0; 4096])
    };
    let status = || world.pool().images().remove(0);
    read(groups[0], Mood::Away).unwrap_err();
    assert!(!status().is_gone, "a store that is away says nothing about its images");
    read(groups[0], Mood::Gone).unwrap_err();
    assert!(status().is_gone);
    read(groups[1], Mood::Well).unwrap();
    assert!(status().is_gone, "another part of it that is there says nothing about the one that is not");
    // Once it is held, the part is asked for again.
    let image = status().image;
    world.origin.set(Mood::Gone);
    world.pool().note_held(&image);
    assert!(status().is_gone);
    world.origin.set(Mood::Well);
    world.pool().note_held(&image);
    assert!(!status().is_gone && status().last_error.is_none());
    read(groups[0], Mood::Gone).unwrap();
    // It could not be held, and is.
    world.pool().note_gone(&image, "there is no blob".to_owned());
    assert_eq!((status().is_gone, status().last_error.as_deref()), (true, Some("there is no blob")));
    world.pool().note_held(&image);
    assert!(!status().is_gone && status().last_error.is_none());
    let other = env::RemoteImage { version: image.version + 1, ..image };
    world.pool().note_gone(&other, "another one".to_owned());
    assert!(!status().is_gone);
}

/// Start of a read, and its result.
type Ended = (u64, Result<Vec<u8>>);

/// A read of one group among others.
struct Pending {
    offset: u64,
    bytes: Vec<u8>,
    ended: Rc<RefCell<Vec<Ended>>>,
}

impl PendingRead for Pending {
    fn offset(&self) -> u64 {
        self.offset
    }

    fn buf(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn finish(self: Box<Self>, result: Result<()>) {
        let Self { offset, bytes, ended } = *self;
        ended.borrow_mut().push((offset, result.map(|()| bytes)));
    }
}

/// Reads the first blocks of these groups together.
fn read_together(pool: &Pool, groups: std::ops::Range<u64>) -> Vec<Ended> {
    let ended = Rc::new(RefCell::new(Vec::new()));
    let mut reads = groups.map(|group| group * GROUP as u64);
    pool.volume("v").unwrap().read_many(&mut || {
        let offset = reads.next()?;
        Some(Box::new(Pending { offset, bytes: vec![0xaa; 4096], ended: ended.clone() }))
    });
    ended.take()
}

#[test]
fn reads_of_one_thread_wait_for_a_store_together() {
    let failures = |groups: std::ops::Range<u64>| {
        let world = World::new(64 << 20, IMAGE);
        world.origin.set(Mood::Away);
        let count = groups.clone().count();
        let ended = read_together(world.pool(), groups.clone());
        assert_eq!(ended.len(), count);
        for (offset, result) in ended {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(&format!("from byte {offset} of")) && error.contains("no route"), "{error}");
        }
        let failures = world.pool().images()[0].failures;
        world.origin.set(Mood::Well);
        world.machine.clock.advance_ms(900_000);
        let ended = read_together(world.pool(), groups);
        assert_eq!(ended.len(), count);
        for (offset, result) in ended {
            assert!(result.unwrap() == world.origin.content[offset as usize..][..4096]);
        }
        failures
    };
    let alone = failures(3..4);
    assert!(alone > 3);
    assert_eq!(failures(3..19), alone);
}

#[test]
fn a_wrong_checksum_is_fetched_once_more_and_then_an_error() {
    let world = World::new(64 << 20, IMAGE);
    world.origin.set(Mood::Lies(1));
    assert!(world.read("v") == world.expected());
    assert!(world.pool().images()[0].failures >= 1);
    let world = World::new(64 << 20, IMAGE);
    world.origin.set(Mood::Lies(u32::MAX));
    let volume = world.pool().volume("v").unwrap();
    let mut bytes = vec![0; SIZE];
    let error = volume.read(0, &mut bytes).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("checksum"), "{error}");
    // The status reports it until the damaged group has arrived whole.
    let told = || (world.pool().images()[0].is_damaged, world.pool().images()[0].is_gone);
    assert_eq!(told(), (true, false));
    world.origin.set(Mood::Away);
    world.machine.clock.advance_ms(900_000);
    volume.read(0, &mut bytes).unwrap_err();
    assert_eq!(told(), (true, false), "a store that is away says nothing about its images");
    world.origin.set(Mood::Well);
    world.machine.clock.advance_ms(900_000);
    volume.read(0, &mut bytes).unwrap();
    assert_eq!(told(), (false, false));
}

#[test]
fn what_is_discarded_before_it_was_fetched_stays_discarded() {
    let mut world = World::new(64 << 20, 100 * GROUP);
    let mut expected = world.expected();
    for (offset, len) in [(3 * GROUP, 90 * GROUP), (4096, 8192), (95 * GROUP + 100, 5000)] {
        world.pool().volume("v").unwrap().discard(offset as u64, len as u64).unwrap();
        expected[offset..offset + len].fill(0);
    }
    world.reopen();
    assert!(world.read("v") == expected, "HARNESS: a discard shows what the image has there");
    world.check();
}

#[test]
fn damage_of_what_was_fetched_is_fetched_again() {
    let world = World::new(64 << 20, IMAGE);
    assert!(world.read("v") == world.expected());
    world.pool().checkpoint().unwrap();
    let fragments: Vec<u64> = world
        .machine
        .store
        .dump()
        .into_iter()
        .filter(|(key, _)| format::parse_record_key(key).is_some())
        .flat_map(|(_, value)| format::Record::decode(&value).unwrap().fragments.into_iter().map(|f| f.location))
        .collect();
    for location in fragments.iter().step_by(3) {
        world.machine.disk.flip_bit(*location + 3, 1);
    }
    let before = world.origin.asked_total();
    assert!(world.read("v") == world.expected());
    assert!(world.origin.asked_total() > before);
    world.origin.set(Mood::Away);
    assert!(world.read("v") == world.expected(), "and has taken the place of what was damaged");
    world.check();
}

#[test]
fn the_cache_is_bounded_and_makes_room_for_writes() {
    let world = World::new(32 << 20, 100 * GROUP);
    world.set(None, "remote-cache", "2M");
    for _ in 0..2 {
        assert!(world.read("v") == world.expected());
        world.pool().checkpoint().unwrap();
        assert!(world.pool().images()[0].stored_bytes <= 2 << 20, "{:?}", world.pool().images());
    }
    world.check();
    // As much as there is room for, until a write needs it.
    world.set(None, "remote-cache", "90%");
    assert!(world.read("v") == world.expected());
    let kept = world.pool().images()[0].stored_bytes;
    assert!(kept > 5 << 20, "{kept}");
    let fill = |world: &World| {
        world.pool().create_volume("w", 32 << 20, &Properties::new()).unwrap();
        let volume = world.pool().volume("w").unwrap();
        let mut taken = 0;
        while taken < 32 << 20 && volume.write(taken, noise(taken, GROUP), WriteOptions::default()).is_ok() {
            taken += GROUP as u64;
        }
        volume.flush().unwrap();
        taken
    };
    let taken = fill(&world);
    assert!(world.pool().images()[0].stored_bytes < kept / 8, "{kept} before: {:?}", world.pool().images());
    assert!(world.read("v") == world.expected(), "what was dropped is fetched again");
    let volume = world.pool().volume("w").unwrap();
    let mut bytes = vec![0; GROUP];
    for at in (0..taken).step_by(GROUP) {
        volume.read(at, &mut bytes).unwrap();
        assert!(bytes == noise(at, GROUP), "byte {at}");
    }
    world.check();
    // A pool without images takes no more.
    let other = World::new(32 << 20, 100 * GROUP);
    let without = fill(&other);
    assert!(taken + (2 << 20) >= without, "{taken} beside an image, {without} without");
}

#[test]
fn when_all_is_here_the_store_is_not_needed() {
    let mut world = World::new(64 << 20, IMAGE);
    let mut expected = world.expected();
    // Overwritten groups are not fetched.
    write(world.pool(), "v", &mut expected, 0, &noise(5, 2 * GROUP));
    world.pool().checkpoint().unwrap();
    world.set(Some("v"), "hydrate", "on");
    world.origin.set(Mood::Moody(4));
    for _ in 0..60 {
        world.machine.clock.advance_ms(60_000);
        let _ = world.pool().tick();
    }
    world.origin.set(Mood::Away);
    assert!(world.pool().images()[0].is_whole);
    let asked = world.origin.asked();
    assert!(!asked.contains_key(&0) && !asked.contains_key(&1) && asked.len() == 19, "{asked:?}");
    assert!(world.read("v") == expected);
    world.reopen();
    assert!(world.read("v") == expected);
    world.check();
}

#[test]
fn an_image_that_says_it_is_larger_than_any_volume_is_refused() {
    let world = World::new(64 << 20, IMAGE);
    for len in [u64::MAX, u64::MAX - 4095, (1 << 62) + 1, (1 << 50) + 1] {
        let image = env::RemoteImage { len, version: 9, ..world.origin.image.clone() };
        let error = world.pool().clone_image(&image, "w", None, &Properties::new()).unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains(&len.to_string()), "{error}");
    }
    assert_eq!(world.pool().images().len(), 1);
    world.check();
}

#[test]
fn a_full_pool_does_not_fetch_the_rest_again_and_again() {
    let world = World::new(32 << 20, 100 * GROUP);
    world.pool().create_volume("w", 32 << 20, &Properties::new()).unwrap();
    let volume = world.pool().volume("w").unwrap();
    let writes = (0..)
        .map(|index| index * GROUP as u64)
        .take_while(|at| *at < 32 << 20 && volume.write(*at, noise(*at, GROUP), WriteOptions::default()).is_ok());
    assert!(writes.count() > 100);
    volume.flush().unwrap();
    world.set(Some("v"), "hydrate", "on");
    let ticks = || {
        for _ in 0..200 {
            world.machine.clock.advance_ms(60_000);
            let _ = world.pool().tick();
        }
    };
    ticks();
    let asked = world.origin.asked_total();
    assert!(asked <= 100, "HARNESS: {asked} groups were fetched that have no room");
    let image = &world.pool().images()[0];
    assert!(!image.is_whole && image.lacks_room, "{image:?}");
    assert!(world.read("v") == world.expected());
    // When there is room, it goes on.
    drop(volume);
    world.pool().destroy("w", false).unwrap();
    ticks();
    let image = &world.pool().images()[0];
    assert!(image.is_whole && !image.lacks_room, "{image:?}");
    world.check();
}

#[test]
fn a_stream_is_complete_whatever_had_been_fetched() {
    let world = World::new(64 << 20, IMAGE);
    let mut model = world.expected();
    write(world.pool(), "v", &mut model, 3 * GROUP + 4096, &noise(6, GROUP));
    world.pool().volume("v").unwrap().discard(7 * GROUP as u64, GROUP as u64).unwrap();
    model[7 * GROUP..8 * GROUP].fill(0);
    world.pool().snapshot("v", "one").unwrap();
    let first = model.clone();
    write(world.pool(), "v", &mut model, 9 * GROUP + 5, &noise(7, 100));
    world.pool().snapshot("v", "two").unwrap();
    let machine = Machine::new(64 << 20, 5);
    let env = machine_env::env(&machine);
    let format = FormatOptions { capacity_bytes: 64 << 20, extent_bytes: 256 << 10, properties: Properties::new() };
    Pool::format(&env, &format).unwrap();
    let other = Pool::open(env, PoolOptions { workers: 0, ..PoolOptions::default() }).unwrap();
    for (snapshot, from) in [("v@one", None), ("v@two", Some("v@one"))] {
        let mut sender = world.pool().send(snapshot, from).unwrap();
        let mut receiver = other.receive("copy", &Properties::new());
        while let Some(chunk) = sender.next_chunk().unwrap() {
            let (head, body) = chunk.split_first_chunk().unwrap();
            receiver.take(head, body).unwrap();
        }
    }
    assert!(read(&other, "copy@one") == first && read(&other, "copy") == model);
    assert!(world.read("v@one") == first && world.read("v") == model);
    let error = world.pool().send("v@two", None).map(|mut sender| {
        world.origin.set(Mood::Away);
        while sender.next_chunk().unwrap().is_some() {}
    });
    assert!(error.is_ok(), "what was fetched for a stream stays");
}

/// A store's content after applying a page.
fn apply(content: &mut [u8], group: u64, of: &RemoteGroup) {
    let start = group as usize * GROUP;
    let end = content.len().min(start + GROUP);
    let target = &mut content[start..end];
    match of {
        RemoteGroup::Zero => target.fill(0),
        RemoteGroup::Plain(bytes) => target.copy_from_slice(bytes),
        RemoteGroup::Stored { codec, data_len, bytes, checksum } => {
            assert_eq!((*checksum, *data_len as usize), (format::crc32c(bytes), target.len()));
            codec::Workspace::new().decompress(codec::CodecId(*codec), bytes, target).unwrap();
        }
    }
}

#[test]
fn a_push_brings_what_has_changed_and_all_of_each_group() {
    let world = World::new(64 << 20, IMAGE);
    world.set(Some("v"), "unit", "128K");
    let mut model = world.expected();
    write(world.pool(), "v", &mut model, 2 * GROUP + 8192, &noise(8, 4096));
    write(world.pool(), "v", &mut model, 4 * GROUP, &Bytes::from(vec![b'x'; GROUP]));
    world.pool().volume("v").unwrap().discard(6 * GROUP as u64, GROUP as u64).unwrap();
    model[6 * GROUP..7 * GROUP].fill(0);
    world.pool().snapshot("v", "one").unwrap();
    assert_eq!(world.pool().pushed("v").unwrap(), []);
    let version = env::RemoteImage { version: 8, ..world.origin.image.clone() };
    world.pool().note_pushed("v@one", &version).unwrap();
    assert_eq!(world.pool().pushed("v").unwrap(), [("v@one".to_owned(), version)]);
    let pushed = |name: &str, base: &PushBase| {
        let (mut found, mut next) = (Vec::new(), Some(0));
        while let Some(from) = next {
            let page = world.pool().changed_groups(name, base, from, 2).unwrap();
            found.extend(page.groups);
            next = page.next;
        }
        found
    };
    let mut store = world.expected();
    let page = pushed("v@one", &PushBase::Image);
    let groups: Vec<u64> = page.iter().map(|(group, _)| *group).collect();
    assert!(groups.contains(&2) && groups.contains(&4) && groups.len() <= 3, "{groups:?}");
    assert!(page.iter().any(|(group, of)| *group == 4 && matches!(of, RemoteGroup::Stored { .. })), "{groups:?}");
    page.iter().for_each(|(group, of)| apply(&mut store, *group, of));
    assert!(store == model, "HARNESS: the new version is not the snapshot");
    // The next one is the difference of snapshots.
    write(world.pool(), "v", &mut model, 11 * GROUP + 1, &noise(9, 7));
    world.pool().snapshot("v", "two").unwrap();
    let page = pushed("v@two", &PushBase::Snapshot("v@one".to_owned()));
    assert_eq!(page.len(), 1);
    page.iter().for_each(|(group, of)| apply(&mut store, *group, of));
    assert!(store == model);
    // And all of it, as a new image.
    let mut store = vec![0; SIZE];
    pushed("v@two", &PushBase::Nothing).iter().for_each(|(group, of)| apply(&mut store, *group, of));
    assert!(store == model);
    world.origin.set(Mood::Away);
    world.pool().create_volume("w", SIZE as u64, &Properties::new()).unwrap();
    world.pool().snapshot("w", "s").unwrap();
    let refused = world.pool().changed_groups("w@s", &PushBase::Image, 0, 9).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
}

#[test]
fn salvage_makes_the_clone_anew_and_fetches_the_rest_again() {
    let world = World::new(64 << 20, IMAGE);
    let mut model = world.expected();
    assert!(world.read("v") == model);
    write(world.pool(), "v", &mut model, 5 * GROUP + 10, &noise(10, 9000));
    world.pool().snapshot("v", "one").unwrap();
    let first = model.clone();
    world.pool().volume("v").unwrap().discard(12 * GROUP as u64, GROUP as u64).unwrap();
    model[12 * GROUP..13 * GROUP].fill(0);
    world.pool().checkpoint().unwrap();
    let (old, temporary, machine) = (world.machine.duplicate(1), Machine::new(4096, 1), Machine::new(64 << 20, 6));
    let with = |disk: &Machine, rest: &Machine| PoolEnv {
        disk: disk.disk.handle(),
        origins: Some(world.origin.clone()),
        ..machine_env::env(rest)
    };
    let format = FormatOptions { capacity_bytes: 64 << 20, extent_bytes: 256 << 10, properties: Properties::new() };
    Pool::format(&with(&machine, &machine), &format).unwrap();
    let options = PoolOptions { memory_bytes: 1 << 20, workers: 0, ..PoolOptions::default() };
    let other = Pool::open(with(&machine, &machine), options.clone()).unwrap();
    let source = SalvageSource { id: None, map: None };
    let report = other.salvage_of(&source, &with(&old, &temporary), &options, &mut |_, _, _| Ok(())).unwrap();
    assert!(report.volumes.iter().all(|volume| volume.damaged_bytes == 0), "{report:?}");
    assert!(report.notes.iter().any(|note| note.contains("s3://bucket/image@7")), "{report:?}");
    // All of it was here: the store is not needed.
    world.origin.set(Mood::Away);
    assert!(read(&other, "v@one") == first && read(&other, "v") == model);
    assert_eq!(other.images().len(), 1);
}
