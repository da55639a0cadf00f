//! Extended attributes lost with damaged pages: their owners are reported, and no user gets more
//! rights than before.

use std::collections::BTreeMap;

use bytes::Bytes;
use share::Tree;
use share::posix_acl::{AclEntry, GROUP_OBJ, MASK, OTHER, USER, USER_OBJ, encode};
use sim::{Rng, SimSpace};
use surface::ObjectSpace;

use crate::repair::{BEGIN, CALLER, filled, mend, remove};
use crate::run::OPTIONS;

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";
const CAPABILITY: &[u8] = b"security.capability";

/// The owner and one named user may read and write; the group may not, and the mode has the mask.
fn acl() -> Vec<u8> {
    let entry = |tag, permissions, id| AclEntry { tag, permissions, id };
    let any = u32::MAX;
    encode(&[
        entry(USER_OBJ, 6, any),
        entry(USER, 6, 1234),
        entry(GROUP_OBJ, 0, any),
        entry(MASK, 6, any),
        entry(OTHER, 4, any),
    ])
}

fn is_of(key: &[u8], node: u64, name: &[u8]) -> bool {
    key == [&node.to_be_bytes()[..], name].concat()
}

#[test]
fn acls_that_are_lost_take_rights_with_them_and_are_told_by_path() {
    let space = SimSpace::new();
    let tree = Tree::create(space.clone(), 7, OPTIONS).unwrap();
    let make = |name: &[u8], kind: u32| tree.make(Tree::ROOT, name, CALLER, kind, 0, 0).unwrap().0;
    let [lost, kept, tool] = [&b"lost"[..], b"kept", b"tool"].map(|name| make(name, libc::S_IFREG | 0o600));
    let inbox = make(b"inbox", libc::S_IFDIR | 0o755);
    for node in [lost, kept] {
        tree.set_xattr(node, ACCESS, &acl(), 0, false).unwrap();
        tree.set_xattr(node, b"user.note", b"a note", 0, false).unwrap();
        assert_eq!(tree.inode(node).unwrap().mode & 0o777, 0o664);
    }
    tree.set_xattr(inbox, DEFAULT, &acl(), 0, false).unwrap();
    tree.set_xattr(tool, CAPABILITY, &[0; 20], 0, false).unwrap();
    tree.link(lost, inbox, b"linked").unwrap();
    tree.close().unwrap();
    assert!(Tree::survey(space.clone()).unwrap().unwrap().attributes.is_empty());
    let removed = remove(&space, "xattr", |key, _| {
        is_of(key, lost, ACCESS) || is_of(key, inbox, DEFAULT) || is_of(key, tool, CAPABILITY)
    });
    assert_eq!(removed, 3);
    let attributes = Tree::survey(space.clone()).unwrap().unwrap().attributes;
    assert_eq!(attributes.certain.iter().copied().collect::<Vec<_>>(), [lost, tool, inbox]);
    assert!(attributes.possible.is_empty(), "no page is lost: {attributes:?}");
    let words = Tree::attributes_lost_in_words(space.clone(), &attributes, 2);
    assert_eq!(words.len(), 3, "{words:?}");
    assert!(
        words[0].contains("/lost") && words[0].contains("/inbox/linked") && words[2].contains("of 1 more"),
        "{words:?}"
    );

    // Before it is repaired only the owner gets in, and a new file has no more rights either.
    let tree = Tree::open(space.clone(), OPTIONS).unwrap();
    assert_eq!(tree.xattr(lost, ACCESS).unwrap_err().errno(), libc::EIO);
    assert_eq!(tree.xattr(kept, ACCESS).unwrap(), acl());
    let made = tree.make(inbox, b"early", CALLER, libc::S_IFREG | 0o666, 0o022, 0).unwrap().1;
    assert_eq!(made.mode & 0o777, 0o600);
    let wrong = tree.check().unwrap();
    let says =
        |all: &[String], path: &str, what: &str| all.iter().any(|text| text.contains(path) && text.contains(what));
    assert!(says(&wrong, "/lost: ", "access ACL is lost") || says(&wrong, "/inbox/linked: ", "access ACL is lost"));
    assert!(
        says(&wrong, "/inbox: ", "its default ACL is lost") && says(&wrong, "/tool: ", "capabilities"),
        "{wrong:?}"
    );
    tree.close().unwrap();

    let (tree, mended, _) = mend(&space);
    assert!(says(&mended, ": its access ACL is lost", "from 0664 to 0600"), "{mended:?}");
    assert_eq!(tree.inode(lost).unwrap().mode & 0o7777, 0o600);
    assert_eq!(tree.xattr(lost, ACCESS).unwrap_err().errno(), libc::ENODATA);
    assert_eq!(tree.xattr(lost, b"user.note").unwrap(), b"a note");
    assert_eq!((tree.inode(kept).unwrap().mode & 0o777, tree.xattr(kept, ACCESS).unwrap()), (0o664, acl()));
    assert_eq!(tree.xattr(tool, CAPABILITY).unwrap_err().errno(), libc::ENODATA);
    let (below, _) = tree.make(inbox, b"below", CALLER, libc::S_IFDIR | 0o777, 0o022, 0).unwrap();
    let made = tree.make(below, b"late", CALLER, libc::S_IFREG | 0o666, 0o022, 0).unwrap().1;
    assert_eq!((tree.inode(below).unwrap().mode & 0o777, made.mode & 0o777), (0o700, 0o600));
    assert_eq!(tree.check().unwrap(), Vec::<String>::new());
}

/// The record of a file is lost, and not its ACL: the file is root's, and has no rights by an ACL
/// that was another owner's.
#[test]
fn an_acl_whose_inode_is_lost_does_not_come_back_without_a_word() {
    let space = SimSpace::new();
    let tree = Tree::create(space.clone(), 7, OPTIONS).unwrap();
    let node = tree.make(Tree::ROOT, b"file", CALLER, libc::S_IFREG | 0o600, 0, 0).unwrap().0;
    tree.write(node, 0, Bytes::from(vec![7; 5000]), false).unwrap();
    tree.set_xattr(node, ACCESS, &acl(), 0, false).unwrap();
    tree.close().unwrap();
    assert_eq!(remove(&space, "inode", |key, _| key == node.to_be_bytes()), 1);
    let (tree, mended, _) = mend(&space);
    assert!(
        mended.iter().any(|text| text.starts_with("/file: inode") && text.contains("does not record")),
        "{mended:?}"
    );
    assert_eq!(tree.inode(node).unwrap().mode & 0o777, 0o600);
    assert_eq!(tree.xattr_names(node).unwrap(), Vec::<Vec<u8>>::new());
    assert_eq!(tree.check().unwrap(), Vec::<String>::new());
}

/// Pages of attributes are lost, one at a time: each file that has lost one is named, and not all
/// files are.
#[test]
fn pages_of_attributes_that_are_lost_name_those_that_may_have_had_some() {
    let mut header = [0; 16];
    let (space, content) = filled(400);
    space.read(1, 0, &mut header).unwrap();
    let pages = u64::from_le_bytes(*header[8..].first_chunk().unwrap()) / 4096;
    let mut lossy = 0;
    for page in 0..pages {
        let mut byte = [0];
        space.read(1, BEGIN + page * 4096, &mut byte).unwrap();
        // Only leaves.
        if byte != [1] {
            continue;
        }
        let space = space.after_power_loss(&mut Rng::new(page));
        space.write(1, BEGIN + page * 4096, Bytes::from(vec![0x5a; 4096])).unwrap();
        let survey = Tree::survey(space.clone()).unwrap().unwrap();
        if !survey.is_lossy || survey.loses_names {
            assert!(survey.attributes.is_empty() || survey.loses_names, "page {page}: {survey:?}");
            continue;
        }
        let words = Tree::attributes_lost_in_words(space.clone(), &survey.attributes, 1000);
        let (tree, ..) = mend(&space);
        let mut by_name = BTreeMap::new();
        for path in content.keys() {
            let mut node = Tree::ROOT;
            for name in path[1..].split(|byte| *byte == b'/') {
                node = tree.lookup(node, name).unwrap().0;
            }
            by_name.insert(path, tree.xattr(node, b"user.number").is_ok());
        }
        let lost: Vec<_> = by_name.iter().filter(|(_, is_there)| !**is_there).map(|(path, _)| path).collect();
        assert!(!lost.is_empty(), "page {page}: {survey:?}");
        for path in &lost {
            let told = format!("{}: extended attributes", String::from_utf8_lossy(path));
            assert!(words.iter().any(|words| words.starts_with(&told)), "page {page}: {told} in {words:?}");
        }
        // The last of a page and the first of the next may be named, too, and directories.
        assert!(words.len() <= lost.len() + 20, "page {page}: {} lost, {} told", lost.len(), words.len());
        lossy += 1;
    }
    assert!(lossy > 2, "{lossy}");
}
