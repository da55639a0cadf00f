//! Batches in the queue of the log's writers while these end, or others wait for them.
#![allow(clippy::unwrap_used, clippy::panic)]

use sim::Machine;
use store::log::Purpose;
use store::log::prepared::Prepared;

use crate::pool::testing::pool_on;

/// A cleaner, or a worker, may submit a batch after the writers have ended.
#[test]
fn what_comes_when_the_writers_have_ended_is_written_all_the_same() {
    let machine = Machine::new(8 << 20, 1);
    let core = pool_on(&machine, machine.disk.handle(), 8 << 20, 1).core;
    core.workers.stop(&core.signals, &core.jobs, &core.log);
    let before = core.log.applied_seq();
    let batch = Prepared::metadata(Vec::new(), &core.buffers);
    let Ok(ticket) = core.log.enqueue(batch, Purpose::Metadata) else { panic!("it was refused") };
    assert_eq!(core.log.applied_seq().0, before.0 + 1, "it has its place, and waits for ever");
    core.log.wait_applied(ticket).unwrap();
}

/// A batch that was divided, and whose rest was refused, is still on its way.
#[test]
fn who_waits_for_all_that_has_its_place_waits_for_what_the_writers_have() {
    let machine = Machine::new(8 << 20, 1);
    let core = pool_on(&machine, machine.disk.handle(), 8 << 20, 0).core;
    core.log.wait_settled();
    let batch = Prepared::metadata(Vec::new(), &core.buffers);
    let Ok(ticket) = core.log.enqueue(batch, Purpose::Metadata) else { panic!("it was refused") };
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            core.log.wait_settled();
            core.log.applied_seq()
        });
        core.log.write_queued();
        assert!(waiter.join().unwrap() > ticket.seq, "it came back before the batch was applied");
    });
}
