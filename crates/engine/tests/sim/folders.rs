//! Folders: names, properties and quotas of objects that lie in them, under random operations with
//! losses of power, and one by one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::machine_env::{env, features};
use crate::common::{Campaign, Failure, Shape, Tally, World};
use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolOptions, Properties, PropertySource};
use sim::{Fault, Machine};
use surface::{BlockDevice, DeviceSet, ErrorKind, WriteOptions};

const MIB: u64 = 1 << 20;

fn model_run(seed: u64) -> Result<Tally, Failure> {
    let mut world = World::new(seed, Shape::with_folders)?;
    world.run_without_faults(300)?;
    world.verify()?;
    world.verify_check()?;
    Ok(world.tally())
}

fn crash_run(seed: u64) -> Result<Tally, Failure> {
    let mut world = World::new(seed, Shape::with_folders)?;
    for _ in 0..10 {
        let within = *world.rng.pick(&[3, 10, 30, 100]);
        world.plan_crash(within);
        world.run_until_dark(60, World::step)?;
        world.crash()?;
    }
    world.verify_check()?;
    // At last the map is lost: the log alone yields the same.
    if seed.is_multiple_of(3) {
        world.verify_flushed_log()?;
    }
    Ok(world.tally())
}

#[test]
fn random_operations() {
    Campaign { file: "folders", test: "random_operations", seeds: 60, soaks: true }.run(model_run);
}

#[test]
fn random_crashes() {
    let campaign = Campaign { file: "folders", test: "random_crashes", seeds: 400, soaks: true };
    let total = campaign.run(crash_run);
    campaign.demand(total.crashes >= 4000, "at least 4000 crash points");
}

fn new_pool(machine: &Machine) -> Pool {
    let format = FormatOptions { capacity_bytes: 64 << 20, extent_bytes: 256 << 10, properties: Properties::new() };
    Pool::format(&env(machine), &format).unwrap();
    open(machine)
}

fn open(machine: &Machine) -> Pool {
    let options = PoolOptions { workers: 0, memory_bytes: 4 << 20, ..PoolOptions::default() };
    Pool::open(env(machine), options).unwrap()
}

fn own(pairs: &[(&str, &str)]) -> Properties {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn set(pool: &Pool, name: &str, key: &str, value: Option<&str>) -> surface::Result<()> {
    pool.set_properties(Some(name), &[(key.to_owned(), value.map(str::to_owned))])
}

/// A property in force, and where it comes from.
fn get(pool: &Pool, name: &str, key: &str) -> (String, PropertySource) {
    let found = pool.properties(Some(name)).unwrap().into_iter().find(|property| property.key == key).unwrap();
    (found.value, found.source)
}

fn names(pool: &Pool) -> Vec<String> {
    pool.volumes().into_iter().map(|volume| volume.name).collect()
}

fn kind(result: surface::Result<impl std::fmt::Debug>) -> ErrorKind {
    result.unwrap_err().kind()
}

/// Incompressible bytes.
fn noise(seed: u64, bytes: u64) -> Bytes {
    testkit::noise(seed, bytes as usize).into()
}

/// Destroyed objects go.
fn reap(pool: &Pool) {
    pool.checkpoint().unwrap();
    while pool.status().reaping > 0 {
        pool.checkpoint().unwrap();
    }
}

/// `projects` with `web/db1`, `web/db2` and `old` in it, and `single` outside.
fn tree(pool: &Pool) {
    for folder in ["projects", "projects/web"] {
        pool.create_folder(folder, &Properties::new()).unwrap();
    }
    for volume in ["projects/web/db1", "projects/web/db2", "projects/old", "single"] {
        pool.create_volume(volume, 4 * MIB, &Properties::new()).unwrap();
    }
}

#[test]
fn a_name_needs_its_folder_and_is_free() {
    let machine = Machine::new(64 << 20, 1);
    let pool = new_pool(&machine);
    tree(&pool);
    assert_eq!(names(&pool), ["projects/old", "projects/web/db1", "projects/web/db2", "single"]);
    let none = Properties::new();
    let create = |name: &str| pool.create_volume(name, MIB, &none);
    let missing = create("nothing/here").unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert!(missing.to_string().contains("there is no folder 'nothing'"), "{missing}");
    assert_eq!(kind(create("single/inside")), ErrorKind::Invalid);
    assert_eq!(kind(create("projects")), ErrorKind::Exists);
    assert_eq!(kind(create("projects/web")), ErrorKind::Exists);
    assert_eq!(kind(pool.create_folder("projects/old", &none)), ErrorKind::Exists);
    assert_eq!(kind(pool.create_folder("projects", &none)), ErrorKind::Exists);
    for bad in ["/a", "a/", "projects//x", "projects/..", "projects/../x", "projects/-x", "projects/a b"] {
        assert_eq!(kind(create(bad)), ErrorKind::Invalid, "{bad}");
        assert_eq!(kind(pool.create_folder(bad, &none)), ErrorKind::Invalid, "{bad}");
        assert_eq!(kind(pool.rename("single", bad)), ErrorKind::Invalid, "{bad}");
    }
    // A folder is no volume, and the message says so.
    let error = pool.volume("projects").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("is a folder"), "{error}");
    // A name keeps its case.
    pool.create_folder("Projects", &none).unwrap();
    let folders: Vec<_> = pool.folders().into_iter().map(|folder| folder.name).collect();
    assert_eq!(folders, ["Projects", "projects", "projects/web"]);
    let (listed, shown) = (pool.list().unwrap(), DeviceSet::folders(&pool).unwrap());
    assert_eq!(listed.iter().map(|info| info.name.as_str()).collect::<Vec<_>>(), names(&pool));
    assert_eq!(shown.len(), 3);
}

#[test]
fn properties_come_from_the_nearest_folder() {
    let mut machine = Machine::new(64 << 20, 1);
    let pool = new_pool(&machine);
    tree(&pool);
    let folder = |name: &str| PropertySource::Folder(name.to_owned());
    let db1 = "projects/web/db1";
    assert_eq!(get(&pool, db1, "compression"), ("auto".to_owned(), PropertySource::Default));
    pool.set_properties(None, &[("compression".to_owned(), Some("lz4".to_owned()))]).unwrap();
    assert_eq!(get(&pool, db1, "compression"), ("lz4".to_owned(), PropertySource::Pool));
    set(&pool, "projects", "compression", Some("zstd-3")).unwrap();
    assert_eq!(get(&pool, db1, "compression"), ("zstd-3".to_owned(), folder("projects")));
    assert_eq!(get(&pool, "projects/web", "compression"), ("zstd-3".to_owned(), folder("projects")));
    assert_eq!(get(&pool, "projects", "compression"), ("zstd-3".to_owned(), PropertySource::Own));
    set(&pool, "projects/web", "compression", Some("off")).unwrap();
    set(&pool, "projects/web", "snapshots", Some("hourly")).unwrap();
    assert_eq!(get(&pool, db1, "compression"), ("off".to_owned(), folder("projects/web")));
    assert_eq!(get(&pool, db1, "snapshots"), ("hourly".to_owned(), folder("projects/web")));
    assert_eq!(get(&pool, "projects/old", "compression"), ("zstd-3".to_owned(), folder("projects")));
    assert_eq!(get(&pool, "single", "compression"), ("lz4".to_owned(), PropertySource::Pool));
    set(&pool, db1, "compression", Some("gzip-1")).unwrap();
    assert_eq!(get(&pool, db1, "compression"), ("gzip-1".to_owned(), PropertySource::Own));
    set(&pool, db1, "compression", None).unwrap();
    // The meaning goes with the value: data written to it now is not compressed.
    let device = pool.volume(db1).unwrap();
    device.write(0, Bytes::from(vec![7; 1 << 20]), WriteOptions { fua: true }).unwrap();
    pool.checkpoint().unwrap();
    let stored = |name: &str| pool.volumes().into_iter().find(|volume| volume.name == name).unwrap().stored_bytes;
    assert_eq!(stored(db1), 1 << 20);
    // Another folder, other properties; also after opening the pool again, from the map and the
    // log.
    pool.rename(db1, "projects/db1").unwrap();
    assert_eq!(get(&pool, "projects/db1", "compression"), ("zstd-3".to_owned(), folder("projects")));
    pool.rename("projects", "p").unwrap();
    assert_eq!(get(&pool, "p/db1", "compression"), ("zstd-3".to_owned(), folder("p")));
    assert_eq!(get(&pool, "p/web/db2", "snapshots"), ("hourly".to_owned(), folder("p/web")));
    for _ in 0..2 {
        machine.restart();
        let pool = open(&machine);
        assert_eq!(names(&pool), ["p/db1", "p/old", "p/web/db2", "single"]);
        assert_eq!(get(&pool, "p/db1", "compression"), ("zstd-3".to_owned(), folder("p")));
        let device = pool.volume("p/db1").unwrap();
        device.write(MIB, Bytes::from(vec![7; 1 << 20]), WriteOptions { fua: true }).unwrap();
        pool.close().unwrap();
    }
    let pool = open(&machine);
    let stored = pool.volumes().into_iter().find(|volume| volume.name == "p/db1").unwrap().stored_bytes;
    assert!(stored < (1 << 20) + (64 << 10), "{stored}");
    // Properties that only a pool or a volume can have.
    for (key, value) in [("reservation", "1M"), ("clean-low", "5"), ("incomplete", "yes"), ("colour", "red")] {
        assert_eq!(kind(set(&pool, "p", key, Some(value))), ErrorKind::Invalid, "{key}");
        assert_eq!(kind(pool.create_folder("q", &own(&[(key, value)]))), ErrorKind::Invalid, "{key}");
    }
    let keys: Vec<_> = pool.properties(Some("p")).unwrap().into_iter().map(|property| property.key).collect();
    assert!(keys.contains(&"quota".to_owned()) && !keys.contains(&"reservation".to_owned()), "{keys:?}");
}

#[test]
fn a_folder_is_renamed_with_everything_in_it() {
    let machine = Machine::new(64 << 20, 1);
    let pool = new_pool(&machine);
    tree(&pool);
    let device = pool.volume("projects/web/db1").unwrap();
    device.write(0, noise(1, MIB), WriteOptions { fua: true }).unwrap();
    pool.snapshot("projects/web/db1", "s").unwrap();
    pool.bookmark("projects/web/db1@s", "b").unwrap();
    pool.clone_snapshot("projects/web/db1@s", "projects/clone", &Properties::new()).unwrap();
    pool.rename("projects/web", "w").unwrap();
    assert_eq!(names(&pool), ["projects/clone", "projects/old", "single", "w/db1", "w/db2"]);
    assert_eq!(device.name(), "w/db1");
    device.write(MIB, noise(2, MIB), WriteOptions { fua: true }).unwrap();
    let mut found = vec![0; MIB as usize];
    pool.volume("w/db1@s").unwrap().read(0, &mut found).unwrap();
    assert_eq!(found, noise(1, MIB));
    assert_eq!(pool.snapshots(Some("w")).unwrap()[0].volume, "w/db1");
    assert_eq!(pool.bookmarks(Some("w")).unwrap()[0].volume, "w/db1");
    let origin = pool.volumes().into_iter().find(|volume| volume.name == "projects/clone").unwrap().origin;
    assert_eq!(origin.as_deref(), Some("w/db1@s"));
    // Into itself, onto something, into nothing.
    assert_eq!(kind(pool.rename("w", "w/inner")), ErrorKind::Invalid);
    assert_eq!(kind(pool.rename("w", "projects")), ErrorKind::Exists);
    assert_eq!(kind(pool.rename("w", "single")), ErrorKind::Exists);
    assert_eq!(kind(pool.rename("w", "nothing/w")), ErrorKind::NotFound);
    assert_eq!(kind(pool.rename("w", "single/w")), ErrorKind::Invalid);
    pool.rename("w", "w").unwrap();
    // No name becomes longer than one can be: not with its snapshots, and not with those by the
    // clock.
    pool.create_folder(&"x".repeat(240), &Properties::new()).unwrap();
    pool.rename("w", &format!("{}/w", "x".repeat(240))).unwrap();
    pool.rename(&format!("{}/w", "x".repeat(240)), "w").unwrap();
    pool.create_volume(&format!("w/{}", "y".repeat(40)), MIB, &Properties::new()).unwrap();
    let error = pool.rename("w", &format!("{}/w", "x".repeat(240))).unwrap_err();
    assert_eq!((error.kind(), error.to_string().contains("too long")), (ErrorKind::Invalid, true), "{error}");
    set(&pool, "w", "snapshots", Some("daily")).unwrap();
    let error = pool.rename("w", &"z".repeat(200)).unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().contains("scheduled snapshots")),
        (ErrorKind::Invalid, true),
        "{error}"
    );
    assert!(names(&pool).contains(&"w/db1".to_owned()));
    assert!(pool.check(false, &mut |_, _| ()).unwrap().problems.is_empty());
    pool.close().unwrap();
}

#[test]
fn a_folder_goes_only_when_it_is_empty_or_with_everything_in_it() {
    let machine = Machine::new(64 << 20, 1);
    let pool = new_pool(&machine);
    tree(&pool);
    pool.snapshot("projects/web/db1", "s").unwrap();
    pool.clone_snapshot("projects/web/db1@s", "clone", &Properties::new()).unwrap();
    let error = pool.destroy("projects", false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(error.to_string().contains("projects/old") && error.to_string().contains("(-r)"), "{error}");
    pool.hold("projects/web/db1@s", "audit").unwrap();
    let error = pool.destroy("projects", true).unwrap_err();
    assert!(error.kind() == ErrorKind::InUse && error.to_string().contains("audit"), "{error}");
    assert_eq!(names(&pool).len(), 5, "nothing has gone");
    pool.release("projects/web/db1@s", "audit").unwrap();
    pool.destroy("projects", true).unwrap();
    assert_eq!(names(&pool), ["clone", "single"]);
    assert!(pool.folders().is_empty());
    // The names are free again.
    tree_without_single(&pool);
    pool.destroy("projects/web/db1", false).unwrap();
    pool.destroy("projects/web/db2", false).unwrap();
    pool.destroy("projects/web", false).unwrap();
    assert_eq!(pool.folders().len(), 1);
    reap(&pool);
    assert!(pool.check(false, &mut |_, _| ()).unwrap().problems.is_empty());
    pool.close().unwrap();
    assert_eq!(names(&open(&machine)), ["clone", "projects/old", "single"]);
}

fn tree_without_single(pool: &Pool) {
    pool.destroy("single", false).unwrap();
    tree(pool);
}

/// The shares `home`, `home/meier`, `home/meier/mail` and `home/ada`, and the volume `single`.
fn homes(pool: &Pool) {
    for share in ["home", "home/meier", "home/meier/mail", "home/ada"] {
        pool.create_share(share, &Properties::new()).unwrap();
    }
    pool.create_volume("single", 4 * MIB, &Properties::new()).unwrap();
}

#[test]
fn a_share_holds_shares_and_nothing_else() {
    let machine = Machine::new(64 << 20, 1);
    let pool = new_pool(&machine);
    homes(&pool);
    assert!(features(&machine).iter().all(|bits| bits & format::INCOMPAT_NESTED_SHARES != 0));
    assert_eq!(names(&pool), ["home", "home/ada", "home/meier", "home/meier/mail", "single"]);
    let none = Properties::new();
    let error = pool.create_volume("home/disk", MIB, &none).unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("can only contain shares"), "{error}");
    assert_eq!(kind(pool.create_folder("home/f", &none)), ErrorKind::Invalid);
    assert_eq!(kind(pool.rename("single", "home/single")), ErrorKind::Invalid);
    assert_eq!(kind(pool.create_share("single/x", &none)), ErrorKind::Invalid);
    assert_eq!(kind(pool.create_share("gone/x", &none)), ErrorKind::NotFound);
    assert_eq!(kind(pool.rename("home", "home/ada/home")), ErrorKind::Invalid);
    pool.create_folder("f", &none).unwrap();
    assert_eq!(kind(pool.rename("f", "home/f")), ErrorKind::Invalid);
    // A share hands down its own properties, but not its quota, its reservation, and that it is not
    // whole.
    let from = |name: &str| PropertySource::Folder(name.to_owned());
    for (key, value) in [("compression", "zstd-3"), ("quota", "20M"), ("reservation", "1M"), ("incomplete", "yes")] {
        set(&pool, "home", key, Some(value)).unwrap();
    }
    assert_eq!(get(&pool, "home/meier/mail", "compression"), ("zstd-3".to_owned(), from("home")));
    set(&pool, "home/meier", "compression", Some("off")).unwrap();
    assert_eq!(get(&pool, "home/meier/mail", "compression"), ("off".to_owned(), from("home/meier")));
    for (key, value) in [("quota", "none"), ("reservation", "none"), ("incomplete", "no")] {
        assert_eq!(get(&pool, "home/ada", key), (value.to_owned(), PropertySource::Default));
    }
    // It takes its contents along, and snapshots of all are of one moment.
    assert_eq!(pool.snapshot_folder("home/meier", "s").unwrap(), ["home/meier/mail@s", "home/meier@s"]);
    pool.rename("home/meier", "f/m").unwrap();
    assert_eq!(names(&pool), ["f/m", "f/m/mail", "home", "home/ada", "single"]);
    assert_eq!(get(&pool, "f/m/mail", "compression"), ("off".to_owned(), from("f/m")));
    pool.rename("f/m", "home/meier").unwrap();
    pool.clone_snapshot("home/meier/mail@s", "home/ada/mail", &none).unwrap();
    pool.rename("home", "h").unwrap();
    let expected = ["h", "h/ada", "h/ada/mail", "h/meier", "h/meier/mail", "single"];
    pool.close().unwrap();
    let mut machine = machine;
    machine.restart();
    let pool = open(&machine);
    assert_eq!(names(&pool), expected);
    assert_eq!(get(&pool, "h/ada/mail", "compression"), ("zstd-3".to_owned(), from("h")));
    let inside: Vec<_> = pool.volumes_in("h/meier").unwrap().into_iter().map(|(_, name)| name).collect();
    assert_eq!(inside, ["h/meier", "h/meier/mail"]);
    // It goes when it is empty, or with everything in it.
    let error = pool.destroy("h/meier", false).unwrap_err();
    assert!(error.kind() == ErrorKind::InUse && error.to_string().contains("h/meier/mail"), "{error}");
    pool.hold("h/meier@s", "audit").unwrap();
    assert_eq!(kind(pool.destroy("h", true)), ErrorKind::InUse);
    assert_eq!(names(&pool), expected, "nothing has gone");
    pool.release("h/meier@s", "audit").unwrap();
    pool.destroy("h", true).unwrap();
    assert_eq!(names(&pool), ["single"]);
    reap(&pool);
    assert!(pool.check(false, &mut |_, _| ()).unwrap().problems.is_empty());
    pool.close().unwrap();
}

#[test]
fn a_quota_of_a_share_is_for_those_in_it_too() {
    let machine = Machine::new(64 << 20, 1);
    let pool = new_pool(&machine);
    homes(&pool);
    set(&pool, "home", "quota", Some("4M")).unwrap();
    set(&pool, "home/meier", "quota", Some("2M")).unwrap();
    let write = |name: &str, at: u64, seed| {
        let share = pool.volume(name).unwrap();
        let files = engine::Files::new(share.clone(), share).unwrap();
        surface::ObjectSpace::write(&files, 70, at, noise(seed, MIB))
    };
    write("home", 0, 1).unwrap();
    write("home/meier", 0, 2).unwrap();
    write("home/meier/mail", 0, 3).unwrap();
    let error = write("home/meier/mail", MIB, 4).unwrap_err();
    assert!(error.kind() == ErrorKind::Full && error.to_string().contains("the share 'home/meier'"), "{error}");
    assert_eq!(kind(write("home/meier", MIB, 5)), ErrorKind::Full);
    write("home/ada", 0, 6).unwrap();
    let error = write("home", MIB, 7).unwrap_err();
    assert!(error.kind() == ErrorKind::Full && error.to_string().contains("'home'"), "{error}");
    let (_, left) = pool.volume("home").unwrap().room();
    assert!(left < MIB, "{left}");
    // A volume that would not fit is refused.
    assert_eq!(kind(pool.rename("home/ada", "home/meier/ada")), ErrorKind::Full);
    set(&pool, "home/meier", "quota", None).unwrap();
    pool.rename("home/ada", "home/meier/ada").unwrap();
    assert!(pool.check(false, &mut |_, _| ()).unwrap().problems.is_empty());
    pool.close().unwrap();
}

#[test]
fn a_quota_of_a_folder_is_for_everything_in_it_together() {
    let mut machine = Machine::new(64 << 20, 1);
    let pool = new_pool(&machine);
    tree(&pool);
    set(&pool, "projects", "quota", Some("3M")).unwrap();
    // It is the folder's own, and no volume's.
    assert_eq!(get(&pool, "projects/web/db1", "quota"), ("none".to_owned(), PropertySource::Default));
    let (one, two, other) = (
        pool.volume("projects/web/db1").unwrap(),
        pool.volume("projects/old").unwrap(),
        pool.volume("single").unwrap(),
    );
    let write = |device: &engine::Volume, at: u64, seed| device.write(at, noise(seed, MIB), WriteOptions::default());
    write(&one, 0, 1).unwrap();
    write(&two, 0, 2).unwrap();
    write(&one, MIB, 3).unwrap();
    let error = write(&two, MIB, 4).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(
        error.to_string().contains("the folder 'projects'") && error.to_string().contains("of its quota"),
        "{error}"
    );
    // Its own data can be overwritten; others are not concerned.
    write(&one, 0, 5).unwrap();
    write(&other, 0, 6).unwrap();
    // A nested one counts as well.
    set(&pool, "projects", "quota", None).unwrap();
    set(&pool, "projects/web", "quota", Some("2M")).unwrap();
    write(&two, MIB, 7).unwrap();
    assert_eq!(kind(write(&one, 2 * MIB, 8)), ErrorKind::Full);
    // A volume that would not fit is refused, from outside or with a folder.
    assert_eq!(kind(pool.rename("single", "projects/web/single")), ErrorKind::Full);
    pool.create_folder("apart", &Properties::new()).unwrap();
    pool.rename("single", "apart/single").unwrap();
    assert_eq!(kind(pool.rename("apart", "projects/web/apart")), ErrorKind::Full);
    // Within the folder that has the quota things may move.
    pool.create_folder("projects/web/inner", &Properties::new()).unwrap();
    pool.rename("projects/web/db1", "projects/web/inner/db1").unwrap();
    pool.snapshot("projects/web/inner/db1", "s").unwrap();
    assert_eq!(kind(write(&one, 0, 9)), ErrorKind::Full, "a snapshot keeps what it overwrites");
    pool.destroy("projects/web/inner/db1@s", false).unwrap();
    one.discard(0, MIB).unwrap();
    reap(&pool);
    write(&one, 2 * MIB, 10).unwrap();
    assert_eq!(kind(write(&one, 3 * MIB, 11)), ErrorKind::Full);
    // The quota holds after opening again.
    pool.flush().unwrap();
    drop((one, two, other, pool));
    machine.restart();
    let pool = open(&machine);
    let one = pool.volume("projects/web/inner/db1").unwrap();
    assert_eq!(kind(one.write(3 * MIB, noise(12, MIB), WriteOptions::default())), ErrorKind::Full);
    set(&pool, "projects/web", "quota", Some("none")).unwrap();
    one.write(3 * MIB, noise(12, MIB), WriteOptions::default()).unwrap();
    // The pool's quota is that of each volume, and not of a folder.
    pool.set_properties(None, &[("quota".to_owned(), Some("1M".to_owned()))]).unwrap();
    set(&pool, "projects/web", "quota", None).unwrap();
    assert_eq!(get(&pool, "projects/web", "quota"), ("none".to_owned(), PropertySource::Default));
    assert_eq!(get(&pool, "projects/web/db2", "quota"), ("1M".to_owned(), PropertySource::Pool));
}

#[test]
fn a_share_in_a_folder_has_the_room_that_the_folder_leaves() {
    let machine = Machine::new(64 << 20, 1);
    let pool = new_pool(&machine);
    tree(&pool);
    pool.create_share("projects/home", &own(&[("quota", "2M")])).unwrap();
    let room = || pool.volume("projects/home").unwrap().room().1;
    assert_eq!(room(), 2 * MIB);
    set(&pool, "projects", "quota", Some("1M")).unwrap();
    assert_eq!(room(), MIB);
    let device = pool.volume("projects/old").unwrap();
    device.write(0, noise(1, MIB / 2), WriteOptions { fua: true }).unwrap();
    pool.checkpoint().unwrap();
    assert_eq!(room(), MIB / 2);
}

/// Snapshots of everything in a folder are taken or not taken, wherever the power fails.
#[test]
fn snapshots_of_a_folder_are_all_there_or_none() {
    let mut seen = (0, 0);
    for point in 0.. {
        let mut machine = Machine::new(64 << 20, point);
        let pool = new_pool(&machine);
        tree(&pool);
        for (index, name) in names(&pool).iter().enumerate() {
            pool.volume(name).unwrap().write(0, noise(index as u64, 65536), WriteOptions::default()).unwrap();
        }
        machine.power.plan(machine.power.next_point() + point, Fault::Crash);
        let taken = pool.snapshot_folder("projects", "s");
        drop(pool);
        machine.power.clear_plan();
        machine.reseed(point);
        machine.power_cycle();
        let pool = open(&machine);
        let there = pool.snapshots(None).unwrap();
        assert!(matches!(there.len(), 0 | 3), "point {point}: {there:?}");
        for (index, name) in names(&pool).iter().enumerate().filter(|_| !there.is_empty()) {
            let Ok(snapshot) = pool.volume(&format!("{name}@s")) else { continue };
            let mut found = vec![0; 65536];
            snapshot.read(0, &mut found).unwrap();
            assert_eq!(found, noise(index as u64, 65536), "point {point}: {name}");
        }
        if there.is_empty() {
            seen.0 += 1
        } else {
            seen.1 += 1
        }
        if let Ok(taken) = taken {
            assert_eq!(taken, ["projects/old@s", "projects/web/db1@s", "projects/web/db2@s"]);
            assert_eq!(there.len(), 3, "point {point}: what was acknowledged is gone");
            break;
        }
    }
    assert!(seen.0 > 0 && seen.1 > 0, "{seen:?}");
}

#[test]
fn a_snapshot_of_a_folder_is_refused_as_a_whole() {
    let machine = Machine::new(64 << 20, 1);
    let pool = new_pool(&machine);
    tree(&pool);
    pool.snapshot("projects/web/db2", "s").unwrap();
    assert_eq!(kind(pool.snapshot_folder("projects", "s")), ErrorKind::Exists);
    assert_eq!(pool.snapshots(None).unwrap().len(), 1);
    assert_eq!(kind(pool.snapshot_folder("single", "t")), ErrorKind::Invalid);
    assert_eq!(kind(pool.snapshot_folder("nothing", "t")), ErrorKind::NotFound);
    assert_eq!(kind(pool.snapshot_folder("projects", "a/b")), ErrorKind::Invalid);
    pool.create_folder("empty", &Properties::new()).unwrap();
    assert_eq!(kind(pool.snapshot_folder("empty", "t")), ErrorKind::NotFound);
    assert_eq!(pool.snapshot_folder("projects/web", "t").unwrap().len(), 2);
}

/// So many that their descriptors need several batches: all of one moment, each can be read.
#[test]
fn a_folder_of_many_volumes_is_renamed_at_once_and_has_its_snapshots() {
    let machine = Machine::new(64 << 20, 1);
    let format = FormatOptions { capacity_bytes: 64 << 20, extent_bytes: 32 << 10, properties: Properties::new() };
    Pool::format(&env(&machine), &format).unwrap();
    let pool = open(&machine);
    let part = "p".repeat(60);
    pool.create_folder(&part, &Properties::new()).unwrap();
    for n in 0..150 {
        let name = format!("{part}/{}{n}", "v".repeat(60));
        pool.create_volume(&name, MIB, &Properties::new()).unwrap();
        pool.volume(&name).unwrap().write(0, noise(n, 4096), WriteOptions::default()).unwrap();
    }
    let before = pool.status().log_bytes;
    pool.rename(&part, "short").unwrap();
    assert!(pool.status().log_bytes - before <= 8192, "a name costs one batch, whatever is in the folder");
    assert_eq!(pool.snapshot_folder("short", "s").unwrap().len(), 150);
    for n in 0..150 {
        let mut found = vec![0; 4096];
        pool.volume(&format!("short/{}{n}@s", "v".repeat(60))).unwrap().read(0, &mut found).unwrap();
        assert_eq!(found, noise(n, 4096));
    }
    pool.destroy("short", true).unwrap();
    assert!(pool.volumes().is_empty() && pool.folders().is_empty());
    pool.close().unwrap();
}

/// A program that does not know folders must refuse the pool. Wherever the power fails while the
/// first one is made, a pool that has one names the feature; one that has none is unchanged.
#[test]
fn a_pool_with_a_folder_refuses_older_programs_at_every_crash_point() {
    let says = |machine: &Machine| features(machine).iter().all(|bits| bits & format::INCOMPAT_FOLDERS != 0);
    for point in 0.. {
        let mut machine = Machine::new(64 << 20, point);
        let pool = new_pool(&machine);
        pool.create_volume("a", MIB, &Properties::new()).unwrap();
        pool.close().unwrap();
        machine.restart();
        let pool = open(&machine);
        assert_eq!(names(&pool), ["a"]);
        assert!(!says(&machine), "nothing keeps older programs off a pool without folders");
        machine.power.plan(machine.power.next_point() + point, Fault::Crash);
        let made = pool.create_folder("f", &Properties::new());
        drop(pool);
        machine.power.clear_plan();
        machine.reseed(point);
        machine.power_cycle();
        let pool = open(&machine);
        let has = pool.is_folder("f");
        assert!(has || made.is_err(), "point {point}: the folder is gone");
        assert!(!has || says(&machine), "point {point}: {:?}", features(&machine));
        assert_eq!(names(&pool), ["a"]);
        let report = pool.check(true, &mut |_, _| ()).unwrap();
        let is_torn = |problem: &engine::Problem| problem.kind == "superblock" && problem.repaired;
        assert!(report.problems.iter().all(is_torn), "point {point}: {:?}", report.problems);
        if made.is_ok() {
            assert!(point > 3, "the power never failed in the middle");
            break;
        }
    }
}

/// Streams bring volumes into folders, hidden until they are whole; a folder that gets another
/// name takes along even those.
#[test]
fn a_volume_is_received_into_a_folder() {
    let (here, there) = (Machine::new(64 << 20, 1), Machine::new(64 << 20, 2));
    let (from, to) = (new_pool(&here), new_pool(&there));
    from.create_volume("v", MIB, &Properties::new()).unwrap();
    from.volume("v").unwrap().write(0, noise(1, MIB), WriteOptions::default()).unwrap();
    from.snapshot("v", "s").unwrap();
    to.create_folder("copies", &own(&[("compression", "zstd-1"), ("quota", "512K")])).unwrap();
    let send = |name: &str| {
        let mut sender = from.send("v@s", None).unwrap();
        let mut receiver = to.receive(name, &Properties::new());
        let mut chunks = 0;
        while let Some(chunk) = sender.next_chunk()? {
            let (head, body) = chunk.split_at(format::STREAM_HEAD_BYTES);
            receiver.take(head.try_into().unwrap(), body)?;
            chunks += 1;
        }
        Ok::<_, surface::Error>(chunks)
    };
    assert_eq!(kind(send("nothing/v")), ErrorKind::NotFound);
    assert_eq!(kind(send("copies/v")), ErrorKind::Full, "the quota holds for what comes");
    let coming: Vec<_> = to.receives().into_iter().map(|receive| receive.volume).collect();
    if !coming.is_empty() {
        assert_eq!(coming, ["copies/v"]);
        to.rename("copies", "c").unwrap();
        assert_eq!(to.receives()[0].volume, "c/v");
        to.rename("c", "copies").unwrap();
        to.destroy("copies/v", false).unwrap();
    }
    set(&to, "copies", "quota", None).unwrap();
    send("copies/v").unwrap();
    assert_eq!(names(&to), ["copies/v"]);
    assert_eq!(get(&to, "copies/v", "compression").0, "zstd-1");
    let mut found = vec![0; MIB as usize];
    to.volume("copies/v@s").unwrap().read(0, &mut found).unwrap();
    assert_eq!(found, noise(1, MIB));
}
