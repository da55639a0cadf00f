//! A request that the kernel has handed over, and its buffer. Owns the rule that each gets one
//! answer, or is left to the next server. It may move between threads.
#![allow(unsafe_code)]

use std::sync::Arc;

use crate::queue::Queue;

/// See the module's text. One that is dropped is answered with an error.
pub struct Taken {
    queue: Arc<Queue>,
    tag: u16,
    is_settled: bool,
}

impl Taken {
    /// Wraps the request of a tag.
    ///
    /// # Safety
    /// The kernel has just handed it over, and there is no other `Taken` for it.
    pub unsafe fn new(queue: Arc<Queue>, tag: u16) -> Self {
        Self { queue, tag, is_settled: false }
    }

    /// The buffer.
    pub fn room(&mut self) -> &mut [u8] {
        // SAFETY: the buffer belongs to this request, and there is one such borrow at a time.
        unsafe { self.queue.buffers().get_mut(self.tag) }
    }

    /// Answers with a number of bytes, or a negative errno.
    pub fn answer(mut self, result: i32) {
        self.settle(Some(result));
    }

    /// Leaves it unanswered: the kernel hands it to the next server.
    pub fn leave(mut self) {
        self.settle(None);
    }

    fn settle(&mut self, result: Option<i32>) {
        self.is_settled = true;
        self.queue.settle(self.tag, result);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if !self.is_settled {
            self.settle(Some(-libc::EIO));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_is_settled_once_and_has_its_own_buffer() {
        let queue = Queue::new(0, 4, 4096).unwrap();
        let mut all: Vec<_> = (0..4).map(|tag| queue.taken_in_test(tag)).collect();
        all.iter_mut().zip(1..).for_each(|(taken, byte)| taken.room().fill(byte));
        assert_eq!(all.iter_mut().map(|taken| taken.room()[4095]).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert_eq!(queue.in_hand(), 4);
        let mut all = all.into_iter();
        all.next().unwrap().answer(512);
        all.next().unwrap().leave();
        drop(all.next());
        all.next().unwrap().answer(-libc::ENOSPC);
        assert_eq!(queue.in_hand(), 0);
        // A forgotten request fails, so that its program does not wait.
        assert_eq!(queue.answered(), [(0, 512), (2, -libc::EIO), (3, -libc::ENOSPC)]);
    }

    #[test]
    fn the_last_request_of_a_queue_is_waited_for() {
        let queue = Queue::new(0, 2, 4096).unwrap();
        let (first, second) = (queue.taken_in_test(0), queue.taken_in_test(1));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                queue.await_settled();
                queue.answered()
            });
            first.leave();
            second.answer(512);
            assert_eq!(waiting.join().unwrap(), [(1, 512)]);
        });
    }
}
