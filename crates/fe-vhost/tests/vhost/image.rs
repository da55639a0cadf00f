//! A ring as a guest may have left it in its memory, worked off: by the fuzz target `vhost_ring`,
//! and here by a campaign over seeds. Nothing may panic, each head that is taken is answered once,
//! and no answer claims more than it could write.
//!
//! Input: byte 0 has bit 0 for notifications by index, and bit 1 for in-flight memory; the rest is
//! the guest's memory from [`BASE`] on. The table lies at its start, the available ring at 0x100,
//! the used ring at 0x140; all have [`SIZE`] descriptors.

use std::collections::BTreeSet;

use fe_vhost::chain::{BYTES_MAX, bytes_of, follow};
use fe_vhost::execute::{Disk, Outcome};
use fe_vhost::inflight::Inflight;
use fe_vhost::memory::Guest;
use fe_vhost::request::Request;
use fe_vhost::ring::{Ring, Setup};
use fe_vhost::wire::InflightShape;
use testkit::Memory;
use vm_memory::{Bytes, GuestAddress};

/// The first address of the guest's memory.
pub const BASE: u64 = 0x1000;
/// Descriptors.
pub const SIZE: u16 = 16;
/// Bytes of memory.
const MEMORY_BYTES: usize = 0x10000;
/// Rounds; a guest could go on without end.
const ROUNDS: usize = 8;

/// Works an image off.
pub fn run(input: &[u8]) {
    let Some((knobs, image)) = input.split_first() else { return };
    let memory = Guest::from_ranges(&[(GuestAddress(BASE), MEMORY_BYTES)]).unwrap();
    memory.write_slice(&image[..image.len().min(MEMORY_BYTES)], GuestAddress(BASE)).unwrap();
    let inflight = (knobs & 2 != 0)
        .then(|| Inflight::create(InflightShape { size: 0, offset: 0, queues: 1, queue_size: SIZE }).unwrap());
    let setup = Setup {
        size: SIZE,
        descriptors: GuestAddress(BASE),
        available: GuestAddress(BASE + 0x100),
        used: GuestAddress(BASE + 0x140),
        base: 0,
        has_event_index: knobs & 1 != 0,
        tracked: inflight.as_ref().map(|inflight| inflight.queue(0, SIZE).unwrap()),
        call: None,
    };
    let Ok((ring, left)) = Ring::start(setup, &memory) else { return };
    assert!(left.is_empty());
    let device = Memory::new(1 << 20);
    let disk = Disk::new(device, "serial");
    disk.set_write_through(knobs & 4 != 0);
    for _ in 0..ROUNDS {
        let mut heads = Vec::new();
        let taken = ring.take(&memory, &mut heads);
        assert_eq!(heads.len(), usize::from(ring.under_way()));
        assert!(heads.iter().collect::<BTreeSet<_>>().len() <= usize::from(SIZE));
        for head in heads {
            assert!(head < SIZE);
            let chain = follow(&memory, ring.descriptors(), ring.size(), head);
            let Ok(mut request) = chain.and_then(|chain| Request::parse(&memory, head, chain)) else {
                ring.leave();
                continue;
            };
            let room = bytes_of(&request.data);
            assert!(u64::from(room) <= BYTES_MAX);
            let answer = loop {
                match disk.step(&memory, &mut request) {
                    Outcome::Done(answer) | Outcome::Failed(answer, _) => break answer,
                    Outcome::Left => {}
                    Outcome::Full(..) => unreachable!("the device has room"),
                }
            };
            assert!(answer.written <= room);
            // A status outside of memory is not written.
            let _ = memory.write_obj(answer.status.code(), request.status);
            ring.complete(&memory, head, answer.written + 1);
        }
        assert_eq!(ring.under_way(), 0);
        if taken.is_err() || !matches!(ring.await_kick(&memory), Ok(true)) {
            return;
        }
    }
}
