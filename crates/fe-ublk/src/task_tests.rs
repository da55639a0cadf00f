//! Requests of a queue that no kernel knows, through the pool, to their answers.

use std::sync::Mutex;

use surface::BlockDevice;
use testkit::{Memory, until};

use super::*;
use crate::queue::Queue;
use crate::wire::{FUA, operation};

const SIZE: u64 = 1 << 20;
const BUFFER: usize = 4096;

struct Setup {
    volume: Arc<Memory>,
    target: Arc<Target>,
    pool: Arc<Pool<Task>>,
    queue: Arc<Queue>,
    dispatch: Dispatch,
    log: Arc<Mutex<Vec<String>>>,
}

impl Setup {
    fn new() -> Self {
        let (volume, log) = (Memory::new(SIZE), Arc::new(Mutex::new(Vec::new())));
        let sink = Arc::clone(&log);
        let target = Arc::new(Target {
            disk: Disk::new(volume.clone()),
            name: "vm".to_owned(),
            reads_together: volume.reads_together(),
            held: Arc::new(Held::start("test-held").unwrap()),
            is_stopping: AtomicBool::new(false),
            is_left: AtomicBool::new(false),
            log: Some(Arc::new(move |line: &str| sink.lock().unwrap().push(line.to_owned()))),
            told: AtomicU32::new(0),
        });
        let pool = Arc::new(Pool::start("test", 2).unwrap());
        let dispatch = Dispatch::new(Arc::clone(&target), Arc::clone(&pool), pool.open());
        Self { volume, target, pool, queue: Queue::new(0, 8, BUFFER).unwrap(), dispatch, log }
    }

    fn send(&mut self, tag: u16, op_flags: u32, sectors: u32, start_sector: u64, is_alone: bool) {
        let taken = self.queue.taken_in_test(tag);
        self.dispatch.serve(&Descriptor { op_flags, sectors, start_sector }, taken, is_alone);
    }

    fn write(&mut self, tag: u16) {
        self.send(tag, operation::WRITE.into(), 1, u64::from(tag), false);
    }

    fn await_all(&self) {
        until("all are settled", || self.queue.in_hand() == 0);
    }
}

#[test]
fn requests_are_answered_here_if_they_need_not_wait() {
    let mut setup = Setup::new();
    setup.write(0);
    setup.send(1, operation::READ.into(), 8, 0, false);
    setup.send(2, 0xff, 1, 0, false);
    assert_eq!(setup.queue.answered(), [(0, 512), (1, 4096), (2, -libc::EOPNOTSUPP)]);
    // These go to the pool: a write that would wait, one that must be durable, a flush, and a
    // read from the disk.
    setup.volume.cached.store(false, Ordering::Release);
    setup.volume.full_buffer.store(true, Ordering::Release);
    setup.volume.release();
    [&setup.volume.reads, &setup.volume.writes, &setup.volume.flushes].into_iter().for_each(|gate| gate.shut());
    setup.write(3);
    setup.volume.full_buffer.store(false, Ordering::Release);
    setup.send(4, u32::from(operation::WRITE) | FUA, 1, 0, false);
    setup.volume.writes.wait_for(2);
    assert_eq!(setup.queue.answered().len(), 3);
    setup.send(5, operation::READ.into(), 1, 0, false);
    setup.send(6, operation::FLUSH.into(), 0, 0, false);
    setup.volume.release();
    setup.await_all();
    let mut answers = setup.queue.answered()[3..].to_vec();
    answers.sort_unstable();
    assert_eq!(answers, [(3, 512), (4, 512), (5, 512), (6, 0)]);
}

#[test]
fn a_program_with_one_request_at_a_time_is_served_without_the_pool() {
    let mut setup = Setup::new();
    setup.volume.set_recording();
    for _ in 0..LONE_STREAK + 1 {
        setup.send(0, operation::FLUSH.into(), 0, 0, true);
        setup.await_all();
    }
    let names = setup.volume.flush_threads.lock().clone();
    let here = std::thread::current().name().unwrap().to_owned();
    assert_eq!(names.iter().filter(|name| **name == here).count(), 2, "{names:?}");
}

#[test]
fn reads_are_done_together_and_into_their_own_buffers() {
    let setup = Setup::new();
    setup.volume.write(0, vec![1; 512].into(), surface::WriteOptions::default()).unwrap();
    setup.volume.write(512, vec![2; 512].into(), surface::WriteOptions::default()).unwrap();
    setup.volume.cached.store(false, Ordering::Release);
    let target = Arc::clone(&setup.target);
    let task = |tag, offset| Task {
        target: Arc::clone(&target),
        taken: setup.queue.taken_in_test(tag),
        work: Work::Read { offset, length: 512 },
    };
    let mut more = vec![task(1, 512), task(2, SIZE)];
    task(0, 0).join(&mut || more.pop());
    assert_eq!(setup.volume.most_together.load(Ordering::Acquire), 3);
    let mut answers = setup.queue.answered();
    answers.sort_unstable();
    assert_eq!(answers, [(0, 512), (1, 512), (2, -libc::EIO)]);
    let (mut first, mut second) = (setup.queue.taken_in_test(0), setup.queue.taken_in_test(1));
    assert_eq!((first.room()[511], second.room()[511]), (1, 2));
    first.leave();
    second.leave();
}

#[test]
fn a_write_waits_for_room_and_is_left_to_the_next_server() {
    let mut setup = Setup::new();
    *setup.volume.no_room.lock() = Some(Duration::from_secs(3600));
    setup.write(0);
    setup.write(1);
    assert_eq!((setup.queue.in_hand(), setup.target.held.count()), (2, 2));
    setup.target.is_left.store(true, Ordering::Release);
    setup.target.held.close();
    assert_eq!((setup.queue.in_hand(), setup.queue.answered()), (0, vec![]), "no answer: it comes again");
}

#[test]
fn a_failure_is_left_to_the_next_server() {
    let mut setup = Setup::new();
    setup.volume.fail(Some(ErrorKind::Io));
    setup.write(0);
    assert_eq!(setup.queue.answered(), [(0, -libc::EIO)]);
    setup.target.is_left.store(true, Ordering::Release);
    setup.write(1);
    setup.send(2, operation::FLUSH.into(), 0, 0, false);
    setup.await_all();
    assert_eq!(setup.queue.answered().len(), 1, "no answer: they come again");
    // What the kernel cannot have meant is refused by each server.
    setup.send(3, 0xff, 1, 0, false);
    assert_eq!(setup.queue.answered()[1], (3, -libc::EOPNOTSUPP));
    assert_eq!(setup.log.lock().unwrap().len(), 1, "the first failure");
}

#[test]
fn a_write_that_waits_for_room_fails_when_the_device_stops() {
    let mut setup = Setup::new();
    *setup.volume.no_room.lock() = Some(Duration::from_secs(3600));
    setup.write(0);
    // Without the other devices of the server, whose requests stay held.
    setup.target.is_stopping.store(true, Ordering::Release);
    setup.await_all();
    assert_eq!(setup.queue.answered(), [(0, -libc::ENOSPC)]);
    assert!(setup.log.lock().unwrap()[0].starts_with("ublk: 'vm': no room"));
    *setup.volume.no_room.lock() = None;
    setup.target.is_stopping.store(false, Ordering::Release);
    setup.write(1);
    setup.await_all();
    assert_eq!(setup.queue.answered()[1], (1, 512));
    setup.pool.stop();
}
