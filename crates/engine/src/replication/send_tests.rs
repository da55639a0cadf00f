//! Reads of a sender while it blocks others.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use sim::Machine;
use surface::{BlockDevice, WriteOptions};
use units::GROUP_BYTES;

use super::*;
use crate::pool::testing::pool_on;

#[test]
fn no_more_than_a_page_with_a_change_is_read_while_checkpoints_wait() {
    const GROUPS: u64 = 6000;
    let machine = Machine::new(64 << 20, 1);
    let pool = pool_on(&machine, machine.disk.handle(), 64 << 20, 0);
    pool.create_volume("v", GROUPS * GROUP_BYTES as u64, &Default::default()).unwrap();
    let volume = pool.volume("v").unwrap();
    let write = |group: u64, byte: u8| {
        let data = Bytes::from(vec![byte; BLOCK_BYTES]);
        volume.write(group * GROUP_BYTES as u64, data, WriteOptions::default()).unwrap();
    };
    (0..GROUPS).for_each(|group| write(group, 1));
    pool.snapshot("v", "a").unwrap();
    [10, GROUPS - 10].into_iter().for_each(|group| write(group, 2));
    pool.snapshot("v", "b").unwrap();
    let mut sender = pool.send("v@b", Some("a")).unwrap();
    let all = sender.gather(GroupIndex(10), GroupIndex(10), false).unwrap();
    assert_eq!((all.wanted.len(), all.next), (2, sender.compared.end()));
    sender.pages = Pages::default();
    let one = sender.gather(GroupIndex(10), GroupIndex(10), true).unwrap();
    assert_eq!(one.wanted.len(), 1);
    let next = one.next;
    assert!(next.0 > 10 && next.0 < GROUPS - 10, "{next:?}");
    let rest = sender.gather(next, next, false).unwrap();
    assert_eq!((rest.wanted.len(), rest.next), (1, sender.compared.end()));
}
