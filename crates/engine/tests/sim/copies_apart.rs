//! Data of which the tree of a share keeps a copy: one damaged block of the medium takes only one
//! of the two, however little is written at once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bytes::Bytes;
use engine::{Files, FormatOptions, Pool, PoolOptions, Properties};
use sim::{Machine, Rng};
use surface::{Hint, ObjectSpace};

use crate::common::machine_env::env;

const BYTES: u64 = 16 << 20;
const EXTENT: u64 = 256 << 10;
const BLOCK: u64 = 4096;
const PAGES: u64 = 40;
/// The files with the data and with the copies; one of the tree's own, as trees do it.
const DATA: u64 = 1;
const COPIES: u64 = 4;

/// A page that takes some hundred bytes in the log.
fn page(number: u64) -> Bytes {
    let mut rng = Rng::new(number);
    let mut bytes = vec![0; BLOCK as usize];
    bytes[..300].iter_mut().for_each(|byte| *byte = rng.below(256) as u8);
    Bytes::from(bytes)
}

/// Location of a page: in the first MiB of its file, and beyond that.
fn place(number: u64) -> u64 {
    number * 9 * BLOCK
}

#[test]
fn no_damaged_block_takes_data_and_its_copy() {
    let machine = Machine::new(BYTES, 5);
    let format = FormatOptions { capacity_bytes: BYTES, extent_bytes: EXTENT as u32, properties: Properties::new() };
    Pool::format(&env(&machine), &format).unwrap();
    let pool = Pool::open(env(&machine), PoolOptions { workers: 0, ..PoolOptions::default() }).unwrap();
    pool.create_share("s", &Properties::new()).unwrap();
    let volume = pool.volume("s").unwrap();
    let files = Files::new(volume.clone(), volume).unwrap();
    let hint = Hint { is_copy: true, ..Hint::default() };
    // Commits of some pages each.
    for number in 0..PAGES {
        files.write_hinted(COPIES, place(number), page(number), hint).unwrap();
        files.write(DATA, place(number), page(number)).unwrap();
        if number % 4 == 3 {
            files.flush().unwrap();
        }
    }
    let is_there = |file, number| {
        let mut found = vec![0; BLOCK as usize];
        files.read(file, place(number), &mut found).is_ok_and(|()| found == page(number))
    };
    let mut lost = [0, 0];
    for block in EXTENT / BLOCK..BYTES / BLOCK {
        let mut content = vec![0; BLOCK as usize];
        machine.disk.peek(block * BLOCK, &mut content);
        if content.iter().all(|byte| *byte == 0) {
            continue;
        }
        machine.disk.break_reads(block * BLOCK..(block + 1) * BLOCK);
        pool.drop_caches();
        for number in 0..PAGES {
            let there = [DATA, COPIES].map(|file| is_there(file, number));
            assert!(there != [false; 2], "HARNESS: block {block} takes page {number} and its copy");
            (0..2).filter(|file| !there[*file]).for_each(|file| lost[file] += 1);
        }
        machine.disk.heal();
    }
    assert!(lost.iter().all(|lost| *lost >= PAGES), "HARNESS: {lost:?} pages and copies were hit");
}
