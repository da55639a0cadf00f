//! Contracts of single operations.

use std::sync::Arc;

use bytes::Bytes;
use share::{Caller, SetAttributes, Time, TimeToSet, Tree};
use sim::{Rng, SimSpace};
use surface::Allocation;

use crate::run::OPTIONS;

const CALLER: Caller = Caller { uid: 1000, gid: 100 };

fn tree() -> (Arc<SimSpace>, Tree) {
    let space = SimSpace::new();
    let tree = Tree::create(space.clone(), 7, OPTIONS).unwrap();
    (space, tree)
}

fn file(tree: &Tree, name: &[u8]) -> u64 {
    tree.make(Tree::ROOT, name, CALLER, libc::S_IFREG | 0o644, 0, 0).unwrap().0
}

fn size(tree: &Tree, node: u64, size: u64) {
    tree.set_attributes(node, &SetAttributes { size: Some(size), ..SetAttributes::default() }).unwrap();
}

fn content(tree: &Tree, node: u64) -> Vec<u8> {
    let mut content = vec![0; tree.inode(node).unwrap().size as usize];
    let length = tree.read(node, 0, &mut content).unwrap();
    assert_eq!(length, content.len());
    content
}

/// Bytes that a write left past the end of a file, whose size was lost in a power loss, must not
/// appear when the file grows.
#[test]
fn a_file_that_grows_after_a_loss_of_power_shows_zeroes_and_no_lost_bytes() {
    let (space, tree) = tree();
    let node = file(&tree, b"f");
    tree.write(node, 0, Bytes::from_static(b"kept"), false).unwrap();
    tree.sync().unwrap();
    tree.write(node, 4, Bytes::from(vec![b'x'; 9000]), false).unwrap();
    // The data reaches the medium, the size does not.
    surface::ObjectSpace::flush(&*space).unwrap();
    let space = space.after_power_loss(&mut Rng::new(1));
    let tree = Tree::open(space, OPTIONS).unwrap();
    assert_eq!(content(&tree, node), b"kept");
    size(&tree, node, 10_000);
    let mut expected = b"kept".to_vec();
    expected.resize(10_000, 0);
    assert_eq!(content(&tree, node), expected);
}

/// Bytes that a write left past the end of a file before it failed for lack of space must not
/// appear when the file grows: by a cut, by a write after them, in the next session.
#[test]
fn a_refused_write_leaves_nothing_that_a_later_growth_shows() {
    let (space, tree) = tree();
    let nodes: Vec<u64> = [&b"a"[..], b"b", b"c"].into_iter().map(|name| file(&tree, name)).collect();
    for &node in &nodes {
        tree.write(node, 0, Bytes::from_static(b"kept"), false).unwrap();
    }
    tree.commit().unwrap();
    for &node in &nodes {
        space.limit(2, 1000, u64::MAX);
        let refused = tree.write(node, 0, Bytes::from(vec![b'x'; 6 * 4096]), false);
        assert_eq!(refused.unwrap_err().errno(), libc::ENOSPC);
        assert_eq!(tree.inode(node).unwrap().size, 4);
        space.lift_limit();
    }
    let mut expected = b"kept".to_vec();
    expected.resize(30_000, 0);
    size(&tree, nodes[0], 30_000);
    assert_eq!(content(&tree, nodes[0]), expected);
    tree.write(nodes[1], 29_999, Bytes::from_static(b"\0"), false).unwrap();
    assert_eq!(content(&tree, nodes[1]), expected);
    tree.close().unwrap();
    drop(tree);
    let tree = Tree::open(space, OPTIONS).unwrap();
    size(&tree, nodes[2], 30_000);
    assert_eq!(content(&tree, nodes[2]), expected);
}

/// The same for a write whose data has found space, but whose size has not: the commit that was due
/// before it fails.
#[test]
pub fn a_write_without_its_size_leaves_nothing_that_a_later_growth_shows() {
    let (space, tree) = tree();
    let node = file(&tree, b"f");
    tree.write(node, 0, Bytes::from(vec![b'k'; 4096]), false).unwrap();
    let new = file(&tree, b"new");
    tree.commit().unwrap();
    // The next commit finds no room, whenever it is due.
    let mut made = 0;
    loop {
        space.limit(1000, 0, 0);
        let name = format!("n{made}");
        if tree.make(Tree::ROOT, name.as_bytes(), CALLER, libc::S_IFREG | 0o644, 0, 0).is_err() {
            break;
        }
        made += 1;
        assert!(made < 100_000, "HARNESS: no commit is due");
    }
    space.limit(1000, 0, 0);
    for (node, offset) in [(node, 4096), (new, 0)] {
        let refused = tree.write(node, offset, Bytes::from(vec![b'x'; 4096]), false);
        assert_eq!(refused.map_err(share::Failure::errno), Err(libc::ENOSPC), "HARNESS: after {made} files");
    }
    space.lift_limit();
    for (node, kept) in [(node, 4096), (new, 0)] {
        size(&tree, node, 30_000);
        let mut expected = vec![b'k'; kept];
        expected.resize(30_000, 0);
        let shown = content(&tree, node).iter().filter(|byte| **byte == b'x').count();
        assert_eq!(shown, 0, "HARNESS: bytes of a refused write are shown");
        assert!(content(&tree, node) == expected);
    }
}

/// A write that finds room for some of its blocks only leaves these, and nothing to commit. An
/// `fsync` that could not use the log before makes them durable all the same.
#[test]
pub fn what_a_refused_write_leaves_is_durable_after_a_sync() {
    let (space, tree) = tree();
    let node = file(&tree, b"f");
    tree.write(node, 8192, Bytes::from(vec![b'o'; 8192]), false).unwrap();
    tree.sync().unwrap();
    // A commit discards a removed file's data; the log finds no room for the note of that.
    let gone = file(&tree, b"gone");
    tree.write(gone, 0, Bytes::from(vec![b'g'; 8192]), false).unwrap();
    tree.sync().unwrap();
    tree.unlink(Tree::ROOT, b"gone").unwrap();
    tree.forget(gone).unwrap();
    tree.commit().unwrap();
    space.refuse_all();
    assert_eq!(tree.sync().map_err(share::Failure::errno), Err(libc::ENOSPC), "HARNESS: room for a sync");
    space.lift_limit();
    // Of three blocks, the first has no room.
    space.limit(0, 1000, u64::MAX);
    let refused = tree.write(node, 4096, Bytes::from(vec![b'n'; 12_288]), false);
    assert_eq!(refused.map_err(share::Failure::errno), Err(libc::ENOSPC), "HARNESS: room for a block");
    let shown = content(&tree, node);
    assert!(shown[8192..].iter().all(|byte| *byte == b'n'), "HARNESS: nothing of the refused write was stored");
    tree.sync().unwrap();
    for seed in 0..20 {
        let after = Tree::open(space.after_power_loss(&mut Rng::new(seed)), OPTIONS).unwrap();
        assert!(content(&after, node) == shown, "HARNESS: seed {seed}: what was synced is lost");
    }
}

/// In a directory reserved for the mount of another tree, no name can be created by any operation.
fn names_come_into_no_mount_point() {
    let (_, tree) = tree();
    let make = |directory, name: &[u8], mode| tree.make(directory, name, CALLER, mode | 0o755, 0, 0).map(|made| made.0);
    let busy = |what: &str, done: share::Result<()>| {
        assert_eq!(done.map_err(share::Failure::errno), Err(libc::EBUSY), "HARNESS: {what}");
    };
    let kept = make(Tree::ROOT, b"kept", libc::S_IFDIR).unwrap();
    let old = make(kept, b"old", libc::S_IFREG).unwrap();
    let (outside, full) = (file(&tree, b"outside"), make(Tree::ROOT, b"full", libc::S_IFDIR).unwrap());
    make(full, b"x", libc::S_IFREG).unwrap();
    tree.keep_for_mounts([b"kept".to_vec(), b"later".to_vec()]).unwrap();
    for mode in [libc::S_IFREG, libc::S_IFDIR, libc::S_IFIFO] {
        busy("make", make(kept, b"new", mode).map(drop));
    }
    busy("symlink", tree.make_link(kept, b"new", CALLER, b"target").map(drop));
    busy("link", tree.link(outside, kept, b"new").map(drop));
    busy("rename", tree.rename(Tree::ROOT, b"outside", kept, b"new", 0));
    busy("rename onto", tree.rename(Tree::ROOT, b"outside", kept, b"old", 0));
    busy("exchange", tree.rename(Tree::ROOT, b"outside", kept, b"old", libc::RENAME_EXCHANGE));
    busy("whiteout", tree.rename(kept, b"old", Tree::ROOT, b"out", libc::RENAME_WHITEOUT));
    // Only an empty directory can take the name.
    busy("a file", make(Tree::ROOT, b"later", libc::S_IFREG).map(drop));
    busy("a link", tree.link(outside, Tree::ROOT, b"later").map(drop));
    busy("a full directory", tree.rename(Tree::ROOT, b"full", Tree::ROOT, b"later", 0));
    let later = make(Tree::ROOT, b"later", libc::S_IFDIR).unwrap();
    busy("make in it", make(later, b"new", libc::S_IFREG).map(drop));
    // Names in the way can be removed, and so can the directory.
    tree.rename(kept, b"old", Tree::ROOT, b"out", 0).unwrap();
    assert_eq!(tree.lookup(Tree::ROOT, b"out").unwrap().0, old);
    tree.rename(Tree::ROOT, b"kept", Tree::ROOT, b"moved", 0).unwrap();
    make(kept, b"new", libc::S_IFREG).unwrap();
    busy("not empty any more", tree.rename(Tree::ROOT, b"moved", Tree::ROOT, b"kept", 0));
    tree.remove_directory(Tree::ROOT, b"later").unwrap();
    assert_eq!(tree.check().unwrap(), Vec::<String>::new());
    // No longer reserved.
    tree.keep_for_mounts([]).unwrap();
    file(&tree, b"later");
}

#[test]
fn a_mount_point_takes_no_names() {
    names_come_into_no_mount_point();
    share::canary::plant(Some("names-below-a-mount"));
    let ran = std::panic::catch_unwind(names_come_into_no_mount_point);
    share::canary::plant(None);
    assert!(ran.is_err(), "NOT CAUGHT: names-below-a-mount");
}

/// Nothing can take the name of a share's snapshots, which would hide it.
fn nothing_gets_the_name_of_snapshots() {
    let (_, tree) = tree();
    let name = share::KEPT_NAME;
    let make = |directory, name: &[u8], mode| tree.make(directory, name, CALLER, mode | 0o755, 0, 0).map(|made| made.0);
    let refused = |what: &str, done: share::Result<()>| {
        assert_eq!(done.map_err(share::Failure::errno), Err(libc::EEXIST), "HARNESS: {what}");
    };
    let (a, d) = (file(&tree, b"a"), make(Tree::ROOT, b"d", libc::S_IFDIR).unwrap());
    for mode in [libc::S_IFREG, libc::S_IFDIR, libc::S_IFIFO, libc::S_IFCHR] {
        refused("make", make(Tree::ROOT, name, mode).map(drop));
    }
    refused("symlink", tree.make_link(Tree::ROOT, name, CALLER, b"target").map(drop));
    refused("link", tree.link(a, Tree::ROOT, name).map(drop));
    for flags in [0, libc::RENAME_NOREPLACE, libc::RENAME_EXCHANGE, libc::RENAME_WHITEOUT] {
        refused("rename of a file", tree.rename(Tree::ROOT, b"a", Tree::ROOT, name, flags));
        refused("rename of a directory", tree.rename(Tree::ROOT, b"d", Tree::ROOT, name, flags));
    }
    // Elsewhere, and with more letters, it is a name like others.
    make(d, name, libc::S_IFDIR).unwrap();
    refused("rename from below", tree.rename(d, name, Tree::ROOT, name, 0));
    file(&tree, b".shale2");
    assert_eq!(tree.free_kept_name(), Ok(None));
    assert_eq!(tree.check().unwrap(), Vec::<String>::new());
}

#[test]
fn the_name_of_snapshots_is_kept() {
    nothing_gets_the_name_of_snapshots();
    share::canary::plant(Some("name-of-snapshots-given"));
    let ran = std::panic::catch_unwind(nothing_gets_the_name_of_snapshots);
    // A share with files of that name.
    let (space, tree) = tree();
    let old = tree.make(Tree::ROOT, share::KEPT_NAME, CALLER, libc::S_IFDIR | 0o755, 0, 0).unwrap().0;
    file(&tree, b".shale-1");
    let inside = tree.make(old, b"thesis", CALLER, libc::S_IFREG | 0o644, 0, 0).unwrap().0;
    share::canary::plant(None);
    assert!(ran.is_err(), "NOT CAUGHT: name-of-snapshots-given");
    tree.close().unwrap();
    let tree = Tree::open(space, OPTIONS).unwrap();
    assert_eq!(tree.free_kept_name(), Ok(Some(b".shale-2".to_vec())));
    assert_eq!(tree.free_kept_name(), Ok(None));
    let moved = tree.lookup(Tree::ROOT, b".shale-2").unwrap().0;
    assert_eq!((moved, tree.lookup(moved, b"thesis").unwrap().0), (old, inside));
    assert_eq!(tree.check().unwrap(), Vec::<String>::new());
}

/// The data of a file that a loss of power took belongs to no file made later.
#[test]
fn numbers_and_data_of_lost_files_are_never_seen_again() {
    let (space, tree) = tree();
    let lost = file(&tree, b"lost");
    tree.write(lost, 0, Bytes::from(vec![b's'; 5000]), false).unwrap();
    surface::ObjectSpace::flush(&*space).unwrap();
    let space = space.after_power_loss(&mut Rng::new(1));
    let tree = Tree::open(space.clone(), OPTIONS).unwrap();
    assert_eq!(tree.lookup(Tree::ROOT, b"lost").unwrap_err().errno(), libc::ENOENT);
    assert_eq!(space.allocated_blocks(lost..lost + 1), 0);
    let new = file(&tree, b"new");
    assert!(new > lost, "number {new} after {lost}");
    size(&tree, new, 5000);
    assert_eq!(content(&tree, new), vec![0; 5000]);
}

#[test]
fn emptying_a_file_keeps_its_content_until_that_is_durable_and_frees_it_then() {
    let (space, tree) = tree();
    let node = file(&tree, b"f");
    tree.write(node, 0, Bytes::from(vec![b'o'; 8192]), false).unwrap();
    tree.sync().unwrap();
    size(&tree, node, 0);
    tree.write(node, 0, Bytes::from_static(b"new"), false).unwrap();
    assert_eq!(content(&tree, node), b"new");
    assert!(space.allocated_blocks(node..node + 1) == 2, "the old content went before that was durable");
    let before = Tree::open(space.after_power_loss(&mut Rng::new(3)), OPTIONS).unwrap();
    assert_eq!(content(&before, node), vec![b'o'; 8192]);
    tree.commit().unwrap();
    assert_eq!(space.allocated_blocks(node..node + 1), 0);
    assert_eq!(content(&tree, node), b"new");
}

#[test]
fn a_removed_file_lives_while_it_is_held_and_leaves_nothing() {
    let (space, tree) = tree();
    let node = file(&tree, b"f");
    tree.write(node, 0, Bytes::from(vec![1; 4096]), false).unwrap();
    tree.set_xattr(node, b"user.x", b"y", 0, false).unwrap();
    assert_eq!(tree.unlink(Tree::ROOT, b"f").unwrap(), node);
    assert_eq!(content(&tree, node), vec![1; 4096]);
    assert_eq!(tree.inode(node).unwrap().links, 0);
    tree.forget(node).unwrap();
    assert_eq!(tree.inode(node).unwrap_err().errno(), libc::ESTALE);
    tree.commit().unwrap();
    assert_eq!((space.allocated_blocks(node..node + 1), tree.xattr_count().unwrap()), (0, 0));
}

#[test]
fn orphans_of_a_killed_session_are_reaped() {
    let (space, tree) = tree();
    let node = file(&tree, b"f");
    tree.write(node, 0, Bytes::from(vec![1; 4096]), false).unwrap();
    tree.unlink(Tree::ROOT, b"f").unwrap();
    let (nameless, _) = tree.make_nameless(Tree::ROOT, CALLER, 0o600, 0).unwrap();
    tree.sync().unwrap();
    let space = space.after_power_loss(&mut Rng::new(1));
    let tree = Tree::open(space.clone(), OPTIONS).unwrap();
    for gone in [node, nameless] {
        assert_eq!(tree.inode(gone).unwrap_err().errno(), libc::ESTALE);
    }
    assert_eq!((space.allocated_blocks(node..node + 1), tree.check().unwrap()), (0, Vec::new()));
}

#[test]
fn a_session_that_ended_in_order_leaves_its_numbers() {
    let (space, tree) = tree();
    let first = file(&tree, b"a");
    tree.close().unwrap();
    drop(tree);
    let tree = Tree::open(space, OPTIONS).unwrap();
    assert_eq!(file(&tree, b"b"), first + 1);
}

#[test]
fn listings_go_on_where_they_stopped_whatever_changes() {
    let (_, tree) = tree();
    for number in 0..700 {
        file(&tree, format!("file {number}").as_bytes());
    }
    let (mut seen, mut after) = (Vec::new(), 0);
    loop {
        let mut step = Vec::new();
        tree.list(Tree::ROOT, after, |listed, inode| {
            assert_eq!(listed.kind, inode.kind());
            after = listed.cookie;
            step.push(listed.name);
            step.len() < 50
        })
        .unwrap();
        if step.is_empty() {
            break;
        }
        // Names that were listed go; new ones come.
        for name in step.iter().filter(|name| name.starts_with(b"file")) {
            tree.unlink(Tree::ROOT, name).unwrap();
            file(&tree, &[b"new ", &name[..]].concat());
        }
        seen.extend(step);
    }
    seen.retain(|name| name.starts_with(b"file"));
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 700);
}

#[test]
fn privileges_go_with_a_write_by_others() {
    let (_, tree) = tree();
    let node = file(&tree, b"f");
    let mode = SetAttributes { mode: Some(0o6775), ..SetAttributes::default() };
    tree.set_attributes(node, &mode).unwrap();
    tree.set_xattr(node, b"security.capability", b"cap", 0, false).unwrap();
    assert!(!tree.write(node, 0, Bytes::from_static(b"x"), false).unwrap().changed_mode);
    assert_eq!(tree.inode(node).unwrap().mode & 0o7777, 0o6775);
    assert_eq!(tree.xattr(node, b"security.capability").unwrap_err().errno(), libc::ENODATA);
    assert!(tree.write(node, 0, Bytes::from_static(b"x"), true).unwrap().changed_mode);
    assert_eq!(tree.inode(node).unwrap().mode & 0o7777, 0o775);
    // Without execute permission for the group the bit means mandatory locking, and stays.
    tree.set_attributes(node, &SetAttributes { mode: Some(0o2664), ..SetAttributes::default() }).unwrap();
    assert!(!tree.write(node, 0, Bytes::from_static(b"x"), true).unwrap().changed_mode);
    let chown = SetAttributes { uid: Some(5), ..SetAttributes::default() };
    tree.set_attributes(node, &mode).unwrap();
    assert_eq!(tree.set_attributes(node, &chown).unwrap().mode & 0o7777, 0o775);
}

fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut out = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        out.extend(tag.to_le_bytes());
        out.extend(permissions.to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

#[test]
fn default_acls_are_inherited_instead_of_the_umask() {
    let (_, tree) = tree();
    let default = acl(&[(1, 7, 0), (2, 6, 9), (4, 5, 0), (0x10, 7, 0), (0x20, 4, 0)]);
    tree.set_xattr(Tree::ROOT, b"system.posix_acl_default", &default, 0, false).unwrap();
    let (plain, inode) = tree.make(Tree::ROOT, b"f", CALLER, libc::S_IFREG | 0o666, 0o077, 0).unwrap();
    assert_eq!(inode.mode & 0o777, 0o664);
    let inherited = acl(&[(1, 6, 0), (2, 6, 9), (4, 5, 0), (0x10, 6, 0), (0x20, 4, 0)]);
    assert_eq!(tree.xattr(plain, b"system.posix_acl_access").unwrap(), inherited);
    let (directory, _) = tree.make(Tree::ROOT, b"d", CALLER, libc::S_IFDIR | 0o777, 0o077, 0).unwrap();
    assert_eq!(tree.xattr(directory, b"system.posix_acl_default").unwrap(), default);
    let changed = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    tree.set_attributes(plain, &changed).unwrap();
    let masked = acl(&[(1, 6, 0), (2, 6, 9), (4, 5, 0), (0x10, 0, 0), (0x20, 0, 0)]);
    assert_eq!(tree.xattr(plain, b"system.posix_acl_access").unwrap(), masked);
}

#[test]
fn set_group_id_directories_give_their_group() {
    let (_, tree) = tree();
    let (shared, _) = tree.make(Tree::ROOT, b"d", Caller { uid: 0, gid: 55 }, libc::S_IFDIR | 0o2775, 0, 0).unwrap();
    let (_, inner) = tree.make(shared, b"d", CALLER, libc::S_IFDIR | 0o755, 0, 0).unwrap();
    let (_, plain) = tree.make(shared, b"f", CALLER, libc::S_IFREG | 0o644, 0, 0).unwrap();
    assert_eq!((inner.gid, inner.mode & libc::S_ISGID, plain.gid), (55, libc::S_ISGID, 55));
}

#[test]
fn whiteouts_links_and_times() {
    let (_, tree) = tree();
    let node = file(&tree, b"f");
    tree.rename(Tree::ROOT, b"f", Tree::ROOT, b"g", libc::RENAME_WHITEOUT).unwrap();
    let (_, whiteout) = tree.lookup(Tree::ROOT, b"f").unwrap();
    assert_eq!((whiteout.kind(), whiteout.device, whiteout.links), (libc::S_IFCHR, 0, 1));
    assert_eq!(tree.lookup(Tree::ROOT, b"g").unwrap().0, node);
    tree.link(node, Tree::ROOT, b"h").unwrap();
    // Two names of one file: nothing happens.
    tree.rename(Tree::ROOT, b"g", Tree::ROOT, b"h", 0).unwrap();
    assert_eq!(tree.inode(node).unwrap().links, 2);
    let far = Time { seconds: -5_000_000_000, nanoseconds: 999_999_999 };
    let set = SetAttributes { modified: Some(TimeToSet::At(far)), ..SetAttributes::default() };
    assert_eq!(tree.set_attributes(node, &set).unwrap().modified, far);
    assert_eq!(tree.check().unwrap(), Vec::<String>::new());
}

#[test]
fn holes_are_found() {
    let (_, tree) = tree();
    let node = file(&tree, b"f");
    tree.write(node, 1 << 20, Bytes::from(vec![1; 4096]), false).unwrap();
    size(&tree, node, 2 << 20);
    assert_eq!(tree.seek(node, 0, Allocation::Data).unwrap(), 1 << 20);
    assert_eq!(tree.seek(node, 1 << 20, Allocation::Hole).unwrap(), (1 << 20) + 4096);
    assert_eq!(tree.seek(node, (1 << 20) + 4096, Allocation::Data).unwrap_err().errno(), libc::ENXIO);
    assert_eq!(tree.seek(node, 2 << 20, Allocation::Hole).unwrap_err().errno(), libc::ENXIO);
}

/// Names in the directory; `SHALE_TREE_NAMES` asks for more.
fn many() -> u64 {
    std::env::var("SHALE_TREE_NAMES").ok().and_then(|text| text.parse().ok()).unwrap_or(50_000)
}

/// Cookies stay the same however large the directory is, and across commits and openings.
#[test]
fn a_large_directory_is_listed_whole_and_in_one_order() {
    let options = share::Options { cache_bytes: 64 << 20, ..OPTIONS };
    let space = SimSpace::new();
    let tree = Tree::create(space.clone(), 7, options).unwrap();
    let node = file(&tree, b"0");
    for number in 1..many() {
        tree.link(node, Tree::ROOT, number.to_string().as_bytes()).unwrap();
    }
    let cookies = |tree: &Tree, after: u64| {
        let mut cookies = Vec::new();
        tree.list(Tree::ROOT, after, |listed, _| {
            cookies.push(listed.cookie);
            true
        })
        .unwrap();
        cookies
    };
    let before = cookies(&tree, share::COOKIE_DOT_DOT);
    assert_eq!(before.len() as u64, many());
    assert!(before.is_sorted());
    tree.close().unwrap();
    drop(tree);
    let tree = Tree::open(space, options).unwrap();
    let half = before.len() / 2;
    assert!(cookies(&tree, before[half]) == before[half + 1..]);
    let last = (many() - 1).to_string();
    assert_eq!(tree.lookup(Tree::ROOT, last.as_bytes()).unwrap().0, node);
}
