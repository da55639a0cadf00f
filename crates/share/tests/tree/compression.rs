//! Compression of files: which rule, set value or property applies to which file, on a pool,
//! verified by the codecs in its map.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use codec::Codec;
use engine::{Files, FormatOptions, Pool, PoolEnv, PoolOptions, Properties};
use policy::InForce;
use share::{Caller, SetAttributes, Tree};
use sim::Machine;
use surface::Advice;

use crate::run::OPTIONS;

const CALLER: Caller = Caller { uid: 0, gid: 0 };
const NAME: &[u8] = b"user.shale.compression";
/// Content of a file: eight units of the default size.
const BYTES: usize = 256 << 10;

/// A pool with a share, and its tree.
struct World {
    pool: Pool,
    files: Arc<Files>,
    tree: Tree,
    machine: Machine,
}

fn properties(pairs: &[(&str, &str)]) -> Properties {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

impl World {
    /// `pool`: properties of the pool; `share`: those of the share.
    fn new(pool: &[(&str, &str)], share: &[(&str, &str)]) -> Self {
        let machine = Machine::new(64 << 20, 3);
        let env = || PoolEnv { standby: None, ..machine.env() };
        let format = FormatOptions { capacity_bytes: 64 << 20, extent_bytes: 1 << 20, properties: properties(pool) };
        Pool::format(&env(), &format).unwrap();
        let pool = Pool::open(env(), PoolOptions { workers: 0, ..PoolOptions::default() }).unwrap();
        pool.create_share("home", &properties(share)).unwrap();
        let volume = pool.volume("home").unwrap();
        let files = Arc::new(Files::new(volume.clone(), volume).unwrap());
        let tree = Tree::create(files.clone(), 7, OPTIONS).unwrap();
        tree.follow(files.clone());
        Self { pool, files, tree, machine }
    }

    fn set(&self, key: &str, value: &str) {
        self.pool.set_properties(Some("home"), &[(key.to_owned(), Some(value.to_owned()))]).unwrap();
    }

    fn make(&self, directory: u64, name: &str) -> u64 {
        self.tree.make(directory, name.as_bytes(), CALLER, libc::S_IFREG | 0o644, 0, 0).unwrap().0
    }

    fn directory(&self, directory: u64, name: &str) -> u64 {
        self.tree.make(directory, name.as_bytes(), CALLER, libc::S_IFDIR | 0o755, 0, 0).unwrap().0
    }

    fn write(&self, node: u64, offset: usize, content: &[u8]) {
        self.tree.write(node, offset as u64, Bytes::copy_from_slice(content), false).unwrap();
    }

    /// A file with this content in the root.
    fn file(&self, name: &str, content: &[u8]) -> u64 {
        let node = self.make(Tree::ROOT, name);
        self.write(node, 0, content);
        node
    }

    /// The codecs of a file, from its beginning on, neighbours joined.
    fn codecs(&self, node: u64) -> String {
        self.files.settle().unwrap();
        let data = self.tree.inode(node).unwrap().data_file();
        let stored = self.files.stored(data, 64).unwrap();
        assert_eq!(stored.parts.iter().map(|part| part.raw_bytes).sum::<u64>(), stored.raw_bytes);
        stored.parts.into_iter().map(|part| part.codec).collect::<Vec<_>>().join(",")
    }

    fn told(&self, node: u64) -> String {
        String::from_utf8(self.tree.xattr(node, NAME).unwrap()).unwrap()
    }

    fn set_xattr(&self, node: u64, value: &str) {
        self.tree.set_xattr(node, NAME, value.as_bytes(), 0, false).unwrap();
    }

    fn saved(&self, node: u64) -> f64 {
        self.files.settle().unwrap();
        let stored = self.files.stored(self.tree.inode(node).unwrap().data_file(), 0).unwrap();
        1.0 - stored.stored_bytes as f64 / stored.raw_bytes as f64
    }
}

/// Lines, all different: every codec finds something.
fn text() -> Vec<u8> {
    let mut content = Vec::new();
    for line in 0.. {
        if content.len() >= BYTES {
            break;
        }
        content.extend(format!("static int value_{line} = {}; /* of {line} */\n", line * 7919).bytes());
    }
    content.truncate(BYTES);
    content
}

fn noise(head: &[u8]) -> Vec<u8> {
    let mut content = testkit::noise(11, BYTES);
    content[..head.len()].copy_from_slice(head);
    content
}

const GZ: &[u8] = b"\x1f\x8b\x08\0";

/// Table 3.4 of the thesis, by name, content, mode and property.
#[test]
fn the_rules_name_codecs_by_type_and_mode() {
    let table = [
        ("rule.txt", "archive:gzip-6,energy:gzip-1,performance:lz4"),
        ("rule.log", "archive:gzip-9,energy:gzip-6,performance:gzip-1"),
        ("rule.nc", "archive:gzip-1,energy:lz4,performance:lz4"),
        ("rule.gz", "off"),
    ];
    for compression in ["auto", "lz4", "off"] {
        for (mode, codecs) in [
            ("archive", ["gzip-6", "gzip-9", "gzip-1", "raw"]),
            ("energy", ["gzip-1", "gzip-6", "lz4", "raw"]),
            ("performance", ["lz4", "gzip-1", "lz4", "raw"]),
            // The rule does not cover this mode: the defaults apply, for the content where there is
            // none for the name.
            ("balanced", ["zstd-3", "zstd-3", "zstd-3", "raw"]),
        ] {
            let world = World::new(&table, &[]);
            world.set("compression", compression);
            world.set("mode", mode);
            for (name, codec) in ["a.txt", "b.log", "c.nc", "d.gz"].into_iter().zip(codecs) {
                let node = world.file(name, &text());
                assert_eq!(world.codecs(node), codec, "compression={compression} mode={mode} {name}");
            }
            // No name: the first bytes.
            for (name, head, index) in [("nc", &b"CDF\x01"[..], 2), ("gz", GZ, 3), ("txt", b"text", 0)] {
                // Of this type no rule speaks then, nor a default.
                if (mode, name) == ("balanced", "nc") {
                    continue;
                }
                let node = world.file(name, &[head, &text()[4..]].concat());
                assert_eq!(
                    world.codecs(node),
                    codecs[index],
                    "compression={compression} mode={mode}, {name} by content"
                );
                assert!(world.told(node).contains("by its first bytes"), "{}", world.told(node));
            }
        }
    }
}

/// Figure 3.1 of the thesis: a known extension selects its rule, everything else is tested, with
/// compression off as with `auto`; a codec that was named applies to unknown files.
#[test]
fn figure_3_1_of_the_thesis_holds() {
    let mixed = |world: &World, name: &str| {
        let (good, bad) = (world.file(name, &text()), world.file(&format!("n-{name}"), &noise(b"\x01\x02\x03")));
        (world.codecs(good), world.codecs(bad))
    };
    for compression in ["off", "auto"] {
        let world = World::new(&[], &[("compression", compression), ("mode", "balanced")]);
        assert_eq!(mixed(&world, "known.c").0, "zstd-3", "compression={compression}");
        // Binary data: neither name nor first bytes identify it.
        let odd = world.file("odd.unheard", &[b"\x01\x02\x03\0", &text()[4..]].concat());
        assert!(world.codecs(odd) != "raw" && world.saved(odd) > 0.5, "compression={compression}: it is tested");
        let random = world.file("random.unheard", &noise(b"\x01\x02\x03\0"));
        assert_eq!(world.codecs(random), "raw", "compression={compression}: tests find nothing");
    }
    let world = World::new(&[], &[("compression", "off")]);
    assert_eq!(mixed(&world, "known.c").0, "raw", "without a mode compression=off means all files");
    let world = World::new(&[], &[("compression", "lz4"), ("mode", "balanced")]);
    let odd = world.file("odd.unheard", &[b"\x01\x02\x03\0", &text()[4..]].concat());
    assert_eq!((world.codecs(odd).as_str(), mixed(&world, "known.c").0.as_str()), ("lz4", "zstd-3"));
}

/// Name before content, and a decision stays with the file.
fn name_and_rename() {
    let world = World::new(&[("rule.c", "lz4hc-9"), ("rule.gz", "off")], &[]);
    let node = world.make(Tree::ROOT, "a.c");
    world.write(node, 0, &[GZ, &text()[4..BYTES / 2]].concat());
    assert_eq!(world.codecs(node), "lz4hc-9", "HARNESS: the name counts before the first bytes");
    world.tree.rename(Tree::ROOT, b"a.c", Tree::ROOT, b"b.gz", 0).unwrap();
    world.write(node, BYTES / 2, &text()[BYTES / 2..]);
    assert_eq!(world.codecs(node), "lz4hc-9", "HARNESS: what was decided follows a rename");
    assert_eq!(world.told(node), "lz4hc-9 (rule for c, by its name)");
}

/// A value of a directory holds below it, before every rule.
fn below_a_directory() {
    let world = World::new(&[("rule.c", "lz4")], &[]);
    let top = world.directory(Tree::ROOT, "top");
    world.set_xattr(top, "gzip-9");
    let deep = world.directory(world.directory(top, "a"), "b");
    let node = world.make(deep, "x.c");
    world.write(node, 0, &text());
    assert_eq!(world.codecs(node), "gzip-9", "HARNESS: a directory's value is inherited");
    assert_eq!(world.told(node), "gzip-9 (inherited from its directory)");
    assert_eq!(world.told(top), "gzip-9 (set here)");
    // Elsewhere, and for existing files, nothing has changed.
    world.set_xattr(top, "off");
    world.write(node, 0, &text());
    assert_eq!(world.codecs(node), "gzip-9");
    assert_eq!(world.codecs(world.file("y.c", &text())), "lz4");
}

#[test]
fn names_count_before_content_and_go_with_the_file() {
    name_and_rename();
}

#[test]
fn directories_pass_on_what_was_set() {
    below_a_directory();
}

#[test]
fn planted_bugs_in_decisions_are_caught() {
    for (canary, test) in [
        ("hint-lost-on-rename", name_and_rename as fn()),
        ("content-before-name", name_and_rename),
        ("parent-ignored", below_a_directory),
    ] {
        share::canary::plant(Some(canary));
        let ran = catch_unwind(AssertUnwindSafe(test));
        share::canary::plant(None);
        let payload = ran.expect_err(canary);
        let said = payload.downcast_ref::<String>().cloned().unwrap_or_default();
        assert!(said.contains("HARNESS:"), "NOT CAUGHT: {canary}: {said}");
    }
}

#[test]
fn what_is_set_can_be_read_copied_and_taken_back() {
    let world = World::new(&[], &[]);
    let node = world.make(Tree::ROOT, "a.c");
    let names = || world.tree.xattr_names(node).unwrap();
    assert_eq!(world.told(node), "zstd-3 (default rule for c, by its name)");
    assert!(names().is_empty(), "what a rule says is not copied as if it had been set");
    // A tool can write back the value that it has read: nothing was set, and nothing is.
    world.set_xattr(node, "zstd-3 (default rule for c, by its name)");
    assert!(names().is_empty());
    world.set_xattr(node, "lz4hc-4");
    assert_eq!((world.told(node), names()), ("lz4hc-4 (set here)".to_owned(), vec![NAME.to_vec()]));
    // In the middle of writing: from then on.
    world.write(node, 0, &text()[..BYTES / 2]);
    world.files.settle().unwrap();
    world.set_xattr(node, "gzip-3 (set here)");
    world.write(node, BYTES / 2, &text()[BYTES / 2..]);
    assert_eq!(world.codecs(node), "lz4hc-4,gzip-3");
    // One more name is one more name of the same file.
    world.tree.link(node, Tree::ROOT, b"b.jpg").unwrap();
    world.write(node, 0, &text());
    assert_eq!(world.codecs(node), "gzip-3");
    world.tree.remove_xattr(node, NAME).unwrap();
    assert_eq!(world.told(node), "zstd-3 (default rule for c, by its name)");
    let errno = |failed: share::Result<()>| failed.unwrap_err().errno();
    assert_eq!(errno(world.tree.remove_xattr(node, NAME)), libc::ENODATA);
    for wrong in ["lz5", "", "archive", "zstd-20"] {
        assert_eq!(errno(world.tree.set_xattr(node, NAME, wrong.as_bytes(), 0, false)), libc::EINVAL, "{wrong}");
    }
    assert_eq!(errno(world.tree.set_xattr(node, NAME, b"lz4", libc::XATTR_REPLACE, false)), libc::ENODATA);
    world.tree.set_xattr(node, NAME, b"lz4", libc::XATTR_CREATE, false).unwrap();
    assert_eq!(errno(world.tree.set_xattr(node, NAME, b"lz4", libc::XATTR_CREATE, false)), libc::EEXIST);
    let link = world.tree.make_link(Tree::ROOT, b"link", CALLER, b"a.c").unwrap().0;
    assert_eq!(errno(world.tree.set_xattr(link, NAME, b"lz4", 0, false)), libc::EPERM);
    assert_eq!(world.tree.xattr(link, NAME).unwrap_err().errno(), libc::ENODATA);
}

#[test]
fn chattr_sets_what_the_attribute_shows() {
    const COMPRESS: u32 = 4;
    const NOT: u32 = 0x400;
    let world = World::new(&[], &[("compression", "off")]);
    let node = world.file("a.unheard", &text());
    assert_eq!((world.codecs(node).as_str(), world.tree.flags(node).unwrap()), ("raw", 0));
    world.tree.set_flags(node, COMPRESS).unwrap();
    assert_eq!((world.told(node).as_str(), world.tree.flags(node).unwrap()), ("auto (set here)", COMPRESS));
    world.write(node, 0, &text());
    assert!(world.saved(node) > 0.5);
    world.set_xattr(node, "gzip-2");
    world.tree.set_flags(node, COMPRESS).unwrap();
    assert_eq!(world.told(node), "gzip-2 (set here)", "a codec that was named does");
    // As set by `chattr +m`, in addition to the existing flag.
    world.tree.set_flags(node, COMPRESS | NOT).unwrap();
    assert_eq!((world.told(node).as_str(), world.tree.flags(node).unwrap()), ("off (set here)", NOT));
    world.tree.set_flags(node, COMPRESS | NOT).unwrap();
    assert_eq!(world.told(node), "auto (set here)");
    world.tree.set_flags(node, NOT).unwrap();
    world.tree.set_flags(node, 0).unwrap();
    assert_eq!(world.told(node), "off (properties of the share)");
    let errno = |flags| world.tree.set_flags(node, flags).unwrap_err().errno();
    assert_eq!((errno(COMPRESS | NOT), errno(0x10)), (libc::EINVAL, libc::EOPNOTSUPP));
}

/// Logs of a database get the codec of the set, under the names that they are made with, and tables
/// that of the share.
#[test]
fn logs_of_databases_follow_their_rule_set() {
    let world = World::new(&[], &[("compression", "zstd-6")]);
    let before = world.file("app.db-wal", &text());
    world.set("rule-set", "database");
    let log = world.file("xlogtemp.4711", &text());
    world.tree.rename(Tree::ROOT, b"xlogtemp.4711", Tree::ROOT, b"000000010000000000000002", 0).unwrap();
    for (name, codec) in [("ib_logfile101", "lz4"), ("mysql-bin.000001", "lz4"), ("stock.ibd", "zstd-6")] {
        assert_eq!(world.codecs(world.file(name, &text())), codec, "{name}");
    }
    assert_eq!((world.codecs(log).as_str(), world.codecs(before).as_str()), ("lz4", "zstd-6"));
    assert_eq!(world.told(log), "lz4 (rule for wal of rule set database, by its name)");
    world.set("rule.wal", "off");
    assert_eq!(world.codecs(world.file("000000010000000000000003", &text())), "raw");
    world.set("rule-set", "none");
    assert_eq!(world.codecs(world.file("ib_logfile0", &text())), "zstd-6");
}

/// Files that no rule should be trusted with are probed: a wrong extension or signature does not
/// cost the savings.
#[test]
fn a_wrong_name_or_signature_does_not_cost_the_saving() {
    let world = World::new(&[], &[]);
    for (name, content) in [("photo.jpg", text()), ("signature", [GZ, &text()[4..]].concat())] {
        let node = world.file(name, &content);
        assert!(world.saved(node) > 0.5, "{name}: {} saved, as {}", world.saved(node), world.codecs(node));
    }
    // And data that matches its type is left alone, or compressed, according to the rule.
    assert_eq!(world.codecs(world.file("real.gz", &noise(GZ))), "raw");
    assert_eq!(world.codecs(world.file("real.c", &text())), "zstd-3");
    assert_eq!(world.codecs(world.file("wrong.c", &noise(b"x"))), "raw");
}

/// Properties apply to the next file, without a remount; decisions stay.
#[test]
fn properties_change_while_files_are_written() {
    let world = World::new(&[], &[("compression", "lz4")]);
    let node = world.file("a.c", &text()[..BYTES / 2]);
    assert_eq!(world.codecs(node), "lz4");
    world.set("compression", "gzip-4");
    world.write(node, BYTES / 2, &text()[BYTES / 2..]);
    assert_eq!(world.codecs(node), "lz4,gzip-4", "what no rule speaks of follows the properties");
    world.set("compression", "auto");
    world.set("mode", "balanced");
    let ruled = world.file("b.c", &text());
    assert_eq!(world.codecs(ruled), "zstd-3");
    world.set("rule.c", "balanced:gzip-9,energy:lz4");
    assert_eq!(world.codecs(world.file("c.c", &text())), "gzip-9");
    world.set("mode", "energy");
    assert_eq!(world.codecs(world.file("d.c", &text())), "lz4");
    world.write(ruled, 0, &text());
    assert_eq!(world.codecs(ruled), "zstd-3", "a file keeps what was decided when it was made");
}

/// A rule set later does not affect a file until it is looked up again, and the difference is
/// reported.
#[test]
fn what_is_in_force_is_told_where_another_rule_counts() {
    let world = World::new(&[], &[]);
    let again = |node, name: &str| world.tree.in_force_for(node, name.as_bytes()).unwrap();
    let (named, other) = (world.file("a.c", &text()), world.file("noname", &[b"CDF\x01", &text()[4..]].concat()));
    assert_eq!((again(named, "a.c"), again(other, "noname")), (None, None));
    world.set("rule.c", "gzip-9");
    world.set("rule.nc", "lz4");
    let (told, hint) = again(named, "a.c").unwrap();
    assert_eq!(told, "gzip-9 (rule for c, by its name)");
    assert_eq!(hint.how, Advice::Codec("gzip-9".parse::<Codec>().unwrap().id().0));
    assert_eq!(again(named, "a.sql").unwrap().0, "zstd-3 (default rule for sql, by its name)");
    assert_eq!(again(other, "noname").unwrap().0, "lz4 (rule for nc, by its first bytes)");
    assert_eq!(world.told(named), "zstd-3 (default rule for c, by its name)", "what counts for it");
    world.tree.decide_again(named, b"a.c", &world.files.in_force(), true).unwrap();
    assert_eq!((again(named, "a.c"), world.told(named)), (None, told));
    // A value set by a user takes precedence, whatever the rules.
    world.set_xattr(other, "lzo");
    assert_eq!(again(other, "noname"), None);
}

/// A file that is emptied is examined again; decisions survive a restart.
#[test]
fn decisions_are_kept_and_forgotten_with_the_content() {
    let world = World::new(&[("rule.nc", "gzip-7")], &[]);
    let node = world.file("noname", &[b"CDF\x01", &text()[4..]].concat());
    let named = world.file("x.nc", &text());
    let set = world.directory(Tree::ROOT, "d");
    world.set_xattr(set, "lzo");
    assert_eq!(world.codecs(node), "gzip-7");
    let World { pool, files, tree, machine } = world;
    tree.close().unwrap();
    let tree = Tree::open(files.clone(), OPTIONS).unwrap();
    tree.follow(files.clone());
    let world = World { pool, files, tree, machine };
    assert_eq!(world.told(node), "gzip-7 (rule for nc, by its first bytes)");
    assert_eq!(world.told(named), "gzip-7 (rule for nc, by its name)");
    assert_eq!(world.told(set), "lzo (set here)");
    world.tree.set_attributes(node, &SetAttributes { size: Some(0), ..SetAttributes::default() }).unwrap();
    world.write(node, 0, &noise(b"\x01\x02\x03\0"));
    assert_eq!(world.codecs(node), "raw");
    world.tree.set_attributes(named, &SetAttributes { size: Some(0), ..SetAttributes::default() }).unwrap();
    world.write(named, 0, &text());
    assert_eq!(world.codecs(named), "gzip-7");
}

/// The second of many small files of a type is no stranger.
#[test]
fn small_files_of_a_type_share_what_was_learnt() {
    let world = World::new(&[], &[("rule.zz", "auto")]);
    let node = world.file("first.zz", &text());
    world.files.settle().unwrap();
    let kind = world.tree.hint(node).unwrap().kind;
    assert!(kind != 0 && world.files.remembered(kind).is_some(), "nothing is remembered of the type");
    let other = world.make(Tree::ROOT, "second.zz");
    assert_eq!(world.tree.hint(other).unwrap().kind, kind);
    let stranger = world.make(Tree::ROOT, "third.yy");
    assert_ne!(world.tree.hint(stranger).unwrap().kind, kind);
}

/// A misspelt name of ours would be stored like any attribute, and have no effect.
#[test]
fn attributes_of_ours_that_are_not_known_are_refused() {
    let world = World::new(&[], &[("compression", "lz4")]);
    let node = world.make(Tree::ROOT, "a");
    for name in [&b"user.shale.compresion"[..], b"user.shale.", b"user.shale.compression.x"] {
        let refused = world.tree.set_xattr(node, name, b"zstd-9", 0, false).unwrap_err();
        assert_eq!(refused.errno(), libc::EINVAL, "{}", name.escape_ascii());
    }
    assert!(world.tree.xattr_names(node).unwrap().is_empty());
    world.tree.set_xattr(node, b"user.shales", b"another's", 0, false).unwrap();
    world.set_xattr(node, "zstd-9");
}

/// Figures of files add up to those of their directory, and cannot be set.
#[test]
fn usage_is_told_by_an_attribute() {
    let world = World::new(&[], &[("compression", "lz4")]);
    let usage = |node| String::from_utf8(world.tree.xattr(node, b"user.shale.usage").unwrap()).unwrap();
    let directory = world.directory(Tree::ROOT, "d");
    let node = world.make(directory, "a.c");
    world.write(node, 0, &text()[..BYTES / 2 + 5]);
    world.tree.link(node, directory, b"b.c").unwrap();
    // The last writes are included, even those that are only in memory.
    let told = usage(node);
    let stored = world.files.stored(world.tree.inode(node).unwrap().data_file(), 0).unwrap();
    let expected = format!("files=1 size={} data={} stored={}", BYTES / 2 + 5, BYTES / 2 + 4096, stored.stored_bytes);
    assert_eq!((told, usage(directory), usage(Tree::ROOT)), (expected.clone(), expected.clone(), expected));
    assert!(stored.stored_bytes < stored.raw_bytes / 2);
    assert_eq!(world.tree.set_xattr(node, b"user.shale.usage", b"0", 0, false).unwrap_err().errno(), libc::EPERM);
    assert!(world.tree.xattr_names(node).unwrap().is_empty());
}
