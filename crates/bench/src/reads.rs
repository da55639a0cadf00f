//! Reads of a device with many requests in flight, as in the front ends: a few threads with several
//! each.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use surface::{BlockDevice, PendingRead};

use crate::Outcome;
use crate::load::{Done, drive};

/// Threads that share the requests in flight: as many as read together in the front ends.
const THREADS: usize = 4;

/// State of a thread.
#[derive(Default)]
struct Own {
    /// Unused buffers: as many as requests may start.
    spare: Vec<Vec<u8>>,
    done: u64,
    failure: Option<surface::Error>,
}

struct Read {
    offset: u64,
    /// `None` only while it ends.
    buf: Option<Vec<u8>>,
    own: Rc<RefCell<Own>>,
}

impl PendingRead for Read {
    fn offset(&self) -> u64 {
        self.offset
    }

    fn buf(&mut self) -> &mut [u8] {
        self.buf.as_deref_mut().unwrap_or_default()
    }

    fn finish(mut self: Box<Self>, result: surface::Result<()>) {
        let mut own = self.own.borrow_mut();
        own.spare.extend(self.buf.take());
        match result {
            Ok(()) => own.done += 1,
            Err(error) => own.failure = Some(error),
        }
    }
}

/// Reads `length` bytes at each of the places that `place` gives for numbers 0 to `count - 1`,
/// `depth` at a time, until that is done or `seconds` are over.
///
/// # Errors
/// The first error of a read; the rest is not done then.
pub fn drive_reads(
    device: &dyn BlockDevice,
    depth: usize,
    length: usize,
    count: u64,
    seconds: f64,
    place: impl Fn(u64) -> u64 + Sync,
) -> Outcome<Done> {
    let threads = THREADS.min(depth);
    let (next, done, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let began = Instant::now();
    // One operation of a thread is all of its reads.
    let driven = drive(
        threads,
        threads as u64,
        f64::INFINITY,
        || (),
        |(), _| {
            let own = Rc::new(RefCell::new(Own::default()));
            own.borrow_mut().spare = (0..depth / threads).map(|_| vec![0; length]).collect();
            device.read_many(&mut || {
                if own.borrow().failure.is_some() || stop.load(Ordering::Relaxed) {
                    return None;
                }
                let buf = own.borrow_mut().spare.pop()?;
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= count || began.elapsed().as_secs_f64() >= seconds {
                    stop.store(true, Ordering::Relaxed);
                    return None;
                }
                Some(Box::new(Read { offset: place(index), buf: Some(buf), own: own.clone() }))
            });
            let mut own = own.borrow_mut();
            done.fetch_add(own.done, Ordering::Relaxed);
            match own.failure.take() {
                Some(error) => {
                    stop.store(true, Ordering::Relaxed);
                    Err(error.into())
                }
                None => Ok(()),
            }
        },
    )?;
    Ok(Done { count: done.into_inner(), seconds: driven.seconds })
}
