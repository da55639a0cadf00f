//! Names from elsewhere that, with right checksums, record wrong free pages: none of their pages is
//! used, no program ends because of them, and no name is lost.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use share::Tree;
use sim::{Rng, SimSpace};
use surface::{ObjectSpace, SEAL};
use xxhash_rust::xxh3::xxh3_128;

use crate::repair::{BEGIN, CALLER, Content, files_of, filled, mend};
use crate::run::OPTIONS;

const LEAF: u8 = 1;
const BRANCH: u8 = 2;

/// Where a head has the root of the tables, and that of `redb`'s own.
const TABLES: usize = 8;
const OWN_TABLES: usize = 40;
const FREED: [&str; 2] = ["data_pages_unreachable", "system_pages_unreachable"];

/// Keys of `redb`'s list of free pages begin with their kind.
const OF_REGION: u8 = 3;

/// As if it had been received.
pub fn unseal(space: &SimSpace) {
    space.discard(SEAL, 0..u64::MAX).unwrap();
    space.flush().unwrap();
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(*bytes[at..].first_chunk().unwrap()) as usize
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().unwrap())
}

/// The pages below a branch: their checksums, and their numbers.
type Below = Vec<(u128, u64)>;

/// Changes pages, and corrects their checksums.
struct Forger<'a> {
    space: &'a SimSpace,
    /// Changes a value of a leaf: its key, the value.
    value: &'a mut dyn FnMut(&[u8], &mut [u8]),
    /// Changes the pages below a branch.
    branch: &'a mut dyn FnMut(&mut Below),
}

/// Bytes of a head that say something.
const HEAD_BYTES: usize = 320;

fn head(space: &SimSpace) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    space.read(1, BEGIN, &mut head).unwrap();
    head
}

/// Changes the commit of a head that counts.
fn forge_head(space: &SimSpace, change: impl FnOnce(&mut [u8], &mut [u8])) {
    let mut head = head(space);
    let slot_at = 64 + 128 * usize::from(head[9] & 1);
    let (first, slots) = head.split_at_mut(slot_at);
    let slot = &mut slots[..128];
    change(first, slot);
    let sum = xxh3_128(&slot[..112]).to_le_bytes();
    slot[112..].copy_from_slice(&sum);
    space.write(1, BEGIN, Bytes::copy_from_slice(&head)).unwrap();
}

fn place_of(page: u64) -> (u64, usize) {
    let bytes = 4096_u64 << (page >> 59);
    (BEGIN + 4096 + (page & 0xf_ffff) * bytes, bytes as usize)
}

/// The ranges of keys and values in a leaf.
fn pairs(page: &[u8], widths: [Option<usize>; 2]) -> Vec<(Range<usize>, Range<usize>)> {
    let count = usize::from(u16::from_le_bytes([page[2], page[3]]));
    let ends = |width: Option<usize>| if width.is_none() { 4 * count } else { 0 };
    let mut from = 4 + ends(widths[0]) + ends(widths[1]);
    let mut parts = |width: Option<usize>, ends_at: usize| {
        let part = |n: usize| {
            let to = width.map_or_else(|| u32_at(page, ends_at + 4 * n), |width| from + width);
            let part = from..to;
            from = to;
            part
        };
        (0..count).map(part).collect::<Vec<_>>()
    };
    let keys = parts(widths[0], 4);
    let values = parts(widths[1], 4 + ends(widths[0]));
    keys.into_iter().zip(values).collect()
}

impl Forger<'_> {
    /// Changes a page and those below it; returns its checksum.
    fn page(&mut self, number: u64, widths: [Option<usize>; 2]) -> u128 {
        let (at, bytes) = place_of(number);
        let mut page = vec![0; bytes];
        self.space.read(1, at, &mut page).unwrap();
        let end = if page[0] == LEAF {
            let pairs = pairs(&page, widths);
            for (key, value) in &pairs {
                let key = page[key.clone()].to_vec();
                (self.value)(&key, &mut page[value.clone()]);
            }
            pairs.last().unwrap().1.end
        } else {
            let count = usize::from(u16::from_le_bytes([page[2], page[3]]));
            let (sums_at, pages_at, ends_at) = (8, 8 + 16 * (count + 1), 8 + 24 * (count + 1));
            let below = |n: usize| u64_at(&page, pages_at + 8 * n);
            let mut below: Vec<_> = (0..=count).map(below).map(|below| (self.page(below, widths), below)).collect();
            (self.branch)(&mut below);
            for (n, (sum, number)) in below.into_iter().enumerate() {
                page[sums_at + 16 * n..][..16].copy_from_slice(&sum.to_le_bytes());
                page[pages_at + 8 * n..][..8].copy_from_slice(&number.to_le_bytes());
            }
            widths[0].map_or_else(|| u32_at(&page, ends_at + 4 * (count - 1)), |width| ends_at + width * count)
        };
        let sum = xxh3_128(&page[..end]);
        self.space.write(1, at, Bytes::from(page)).unwrap();
        sum
    }

    /// Changes a table; `false` if it does not exist or is empty.
    fn table(&mut self, root_at: usize, name: &str) -> bool {
        let mut is_there = false;
        let root = u64_at(&head(self.space)[64 + 128 * usize::from(head(self.space)[9] & 1)..], root_at);
        let space = self.space;
        let mut definition = |key: &[u8], table: &mut [u8]| {
            if key != name.as_bytes() || table[9] == 0 {
                return;
            }
            is_there = true;
            let width = |at: usize| (table[at] != 0).then(|| u32_at(table, at + 1));
            let sum = self.page(u64_at(table, 10), [width(42), width(47)]);
            table[18..34].copy_from_slice(&sum.to_le_bytes());
        };
        let sum = Forger { space, value: &mut definition, branch: &mut |_| () }.page(root, [None, None]);
        forge_head(space, |_, slot| slot[root_at + 8..root_at + 24].copy_from_slice(&sum.to_le_bytes()));
        is_there
    }
}

/// Changes the values of a table.
fn forge(space: &SimSpace, root_at: usize, name: &str, mut value: impl FnMut(&[u8], &mut [u8])) -> bool {
    Forger { space, value: &mut value, branch: &mut |_| () }.table(root_at, name)
}

/// Changes the lists of pages pending release.
fn forge_freed(space: &SimSpace, mut change: impl FnMut(usize, &mut [u8])) {
    let mut count = 0;
    let mut value = |_: &[u8], list: &mut [u8]| {
        let pages = usize::from(u16::from_le_bytes([list[0], list[1]]));
        for page in list[2..].chunks_exact_mut(8).take(pages) {
            change(count, page);
            count += 1;
        }
    };
    for name in FREED {
        forge(space, OWN_TABLES, name, &mut value);
    }
    assert!(count > 1, "only {count} pages are about to be free");
}

/// Page numbers of a table of the names, the root first.
fn pages_of(space: &SimSpace, name: &str) -> Vec<u64> {
    let mut pages = Vec::new();
    let mut branch = |below: &mut Below| pages.extend(below.iter().map(|(_, page)| *page));
    assert!(Forger { space, value: &mut |_, _| (), branch: &mut branch }.table(TABLES, name));
    pages
}

/// Marks all pages of the first region as free, including those past its end.
fn all_is_free(space: &SimSpace) {
    let mut is_done = false;
    let is_there = forge(space, OWN_TABLES, "allocator_state", |key, value| {
        if key[0] != OF_REGION {
            return;
        }
        // Orders 1, 3 unused, pages 4, ends of the orders' maps 4 each. A map: levels 4, their ends
        // 4 each; a level: bits 4, words of 8.
        let map = 8 + 4 * (usize::from(value[0]) + 1)..u32_at(value, 8);
        let map = &mut value[map];
        let levels = u32_at(map, 0);
        let mut from = 4 + 4 * levels;
        for level in 0..levels {
            let to = u32_at(map, 4 + 4 * level);
            map[from + 4..to].fill(0);
            from = to;
        }
        is_done = true;
    });
    assert!(is_there && is_done);
}

type Forgery = (&'static str, fn(&SimSpace));

/// Lists that are wrong, with right checksums.
const LISTS: [Forgery; 5] = [
    ("all pages are free", all_is_free),
    ("pages in use are about to be free", |space| {
        let pages = pages_of(space, "inode");
        forge_freed(space, |n, page| page.copy_from_slice(&pages[n % pages.len()].to_le_bytes()));
    }),
    ("a page is about to be free twice", |space| {
        let mut first: Option<[u8; 8]> = None;
        forge_freed(space, |_, page| {
            let first = first.get_or_insert_with(|| *page.first_chunk().unwrap());
            page.copy_from_slice(first);
        });
    }),
    ("pages behind the end are about to be free", |space| {
        forge_freed(space, |n, page| page.copy_from_slice(&(0xf_ff00 + n as u64).to_le_bytes()));
    }),
    ("pages of regions that are not there are about to be free", |space| {
        forge_freed(space, |n, page| page.copy_from_slice(&(77 << 20 | n as u64).to_le_bytes()));
    }),
];

/// Changes a tree in many ways, and looks for everything that was in it before.
fn is_used(space: &Arc<SimSpace>, content: &Content) -> bool {
    let used = catch_unwind(AssertUnwindSafe(|| {
        for round in 0..4 {
            let tree = Tree::open(space.clone(), OPTIONS)?;
            for number in 0..200 {
                let name = format!("new {round} {number}");
                let made = tree.make(Tree::ROOT, name.as_bytes(), CALLER, libc::S_IFREG | 0o644, 0, 0)?.0;
                tree.set_xattr(made, b"user.new", name.as_bytes(), 0, false)?;
                if number % 50 == 0 {
                    tree.commit()?;
                }
            }
            tree.close()?;
        }
        let tree = Tree::open(space.clone(), OPTIONS)?;
        let mut found = files_of(&tree);
        found.retain(|path, _| !path.starts_with(b"/new "));
        share::Result::Ok(tree.check()?.is_empty() && found == *content)
    }));
    matches!(used, Ok(Ok(true)))
}

#[test]
fn wrong_lists_of_free_pages_do_no_harm() {
    let (space, content) = filled(400);
    let mut harmful = 0;
    for (what, make) in LISTS {
        let space = space.snapshot();
        make(&space);
        // Most would, if they counted.
        harmful += usize::from(!is_used(&space.snapshot(), &content));
        unseal(&space);
        assert!(Tree::survey(space.clone()).unwrap().unwrap().is_whole, "{what}: the names are damaged");
        // A moment is only read.
        let moment: Arc<dyn ObjectSpace> = Arc::new(share::Scratch::over(space.snapshot()));
        assert!(files_of(&Tree::open(moment, OPTIONS).unwrap()) == content, "{what}: in a moment");
        assert!(is_used(&space, &content), "{what}");
    }
    assert!(harmful > 1, "only {harmful} of these lists do harm");
}

/// Impossible databases of names: pages used twice, wrong counts, a head of another program.
#[test]
fn tables_that_contradict_themselves_are_not_opened_and_can_be_mended() {
    let twice: fn(&SimSpace) = |space| {
        let mut branch = |below: &mut Below| below[1] = below[0];
        assert!(Forger { space, value: &mut |_, _| (), branch: &mut branch }.table(TABLES, "xattr"));
    };
    let count: fn(&SimSpace) = |space| {
        let root = u64_at(&head(space)[64 + 128 * usize::from(head(space)[9] & 1)..], TABLES);
        let mut value = |key: &[u8], table: &mut [u8]| {
            if key == b"entry" {
                table[1..9].fill(0);
                table[34..42].fill(0);
            }
        };
        let sum = Forger { space, value: &mut value, branch: &mut |_| () }.page(root, [None, None]);
        forge_head(space, |_, slot| slot[TABLES + 8..TABLES + 24].copy_from_slice(&sum.to_le_bytes()));
    };
    let (space, content) = filled(400);
    for (what, make) in [("a page is used twice", twice), ("a count is wrong", count)] {
        let space = space.snapshot();
        make(&space);
        unseal(&space);
        assert!(!Tree::survey(space.clone()).unwrap().unwrap().is_whole, "{what}");
        assert_eq!(Tree::open(space.clone(), OPTIONS).err().unwrap().errno(), libc::EIO, "{what}");
        let (tree, ..) = mend(&space);
        assert!(files_of(&tree) == content, "{what}");
        tree.close().unwrap();
        assert!(is_used(&space, &content), "{what}");
    }
    // Heads of another program: its pages are elsewhere, or where they were.
    for (what, at, bytes) in [("small regions", 20, 8_u32), ("regions with heads", 16, 1)] {
        let space = space.snapshot();
        forge_head(&space, |first, _| first[at..at + 4].copy_from_slice(&bytes.to_le_bytes()));
        unseal(&space);
        match Tree::open(space, OPTIONS) {
            Ok(tree) => assert!(files_of(&tree) == content, "{what}"),
            Err(failure) => assert_eq!(failure.errno(), libc::EIO, "{what}"),
        }
    }
}

/// A length for which a list of free pages would take all memory, and a number of the last commit
/// that no other can follow.
#[test]
fn a_head_that_asks_for_too_much_gets_what_its_pages_need() {
    let (space, content) = filled(100);
    let header = [&b"SHLTREE1"[..], &(4096_u64 + (1 << 50)).to_le_bytes(), &[0; 8]].concat();
    space.write(1, 0, Bytes::from(header)).unwrap();
    unseal(&space);
    let last = space.snapshot();
    forge_head(&last, |_, slot| slot[104..112].fill(0xff));
    assert!(is_used(&space, &content));
    // It is in the other file now.
    let mut header = [0; 16];
    space.read(3, 0, &mut header).unwrap();
    assert!(u64_at(&header, 8) < 64 << 20);
    assert_eq!(Tree::open(last.clone(), OPTIONS).err().unwrap().errno(), libc::EIO);
    assert!(Tree::survey(last).unwrap().unwrap().loses_names);
}

/// Branches that all have the next one below them twice: a pass over such a table would not end.
#[test]
fn pages_that_lead_to_the_same_page_again_and_again_are_refused() {
    const FIRST: u64 = 1 << 12;
    const LEVELS: u64 = 60;
    let (space, content) = filled(100);
    let write = |number: u64, mut page: Vec<u8>| {
        page.resize(4096, 0);
        space.write(1, place_of(number).0, Bytes::from(page)).unwrap();
    };
    for level in 0..LEVELS {
        let below = (FIRST + level + 1).to_le_bytes();
        let head = [BRANCH, 0, 1, 0, 0, 0, 0, 0];
        let key = [&61_u32.to_le_bytes()[..], b"k"].concat();
        write(FIRST + level, [&head[..], &[0; 32], &below, &below, &key].concat());
    }
    // A leaf without a pair.
    write(FIRST + LEVELS, vec![LEAF]);
    let header = [&b"SHLTREE1"[..], &(32_u64 << 20).to_le_bytes(), &[0; 8]].concat();
    space.write(1, 0, Bytes::from(header)).unwrap();
    let root = u64_at(&head(&space)[64 + 128 * usize::from(head(&space)[9] & 1)..], TABLES);
    let mut value = |key: &[u8], table: &mut [u8]| {
        if key == b"entry" {
            table[10..18].copy_from_slice(&FIRST.to_le_bytes());
        }
    };
    let sum = Forger { space: &space, value: &mut value, branch: &mut |_| () }.page(root, [None, None]);
    forge_head(&space, |_, slot| slot[TABLES + 8..TABLES + 24].copy_from_slice(&sum.to_le_bytes()));
    unseal(&space);
    let survey = Tree::survey(space.clone()).unwrap().unwrap();
    assert!(survey.loses_names, "{survey:?}");
    assert_eq!(Tree::open(space.clone(), OPTIONS).err().unwrap().errno(), libc::EIO);
    let (tree, ..) = mend(&space);
    // Without names, all of them are in `lost+found`.
    assert_eq!(files_of(&tree).len(), content.len());
}

/// Everything is present however the first opening ends, and the second one trusts the data written
/// by the first one.
#[test]
fn names_from_elsewhere_are_there_wherever_the_first_opening_ends() {
    let (space, content) = filled(300);
    unseal(&space);
    let mut rng = Rng::new(3);
    let mut ended = 0;
    for accesses in 1..60 {
        let space = space.snapshot();
        space.fail_after(accesses);
        let opened = Tree::open(space.clone(), OPTIONS).and_then(|tree| tree.close());
        ended += usize::from(opened.is_err());
        let space = if opened.is_err() { space.after_power_loss(&mut rng) } else { space.snapshot() };
        let tree = Tree::open(space.clone(), OPTIONS).unwrap();
        assert!(files_of(&tree) == content, "after {accesses} accesses");
        assert_eq!(tree.check().unwrap(), Vec::<String>::new());
        tree.close().unwrap();
        assert!(space.allocated_blocks(SEAL..SEAL + 1) == 1);
        assert!(accesses % 10 > 0 || is_used(&space, &content), "after {accesses} accesses");
    }
    assert!(ended > 3, "only {ended} openings came to no end");
}
