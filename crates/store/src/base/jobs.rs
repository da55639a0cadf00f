//! Jobs of the threads that read ahead. Owns their queue. Any thread may submit one; the threads
//! themselves are those of `pool::threads`.

use std::collections::VecDeque;

use crate::base::ranked::{Condvar, Mutex};
use crate::base::ranks;

/// Upper bound of waiting jobs: more read-ahead than this would be stale before it ran.
const JOBS_MAX: usize = 64;

pub(crate) type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    stop: bool,
}

/// See the module.
#[derive(Default)]
pub struct Jobs {
    state: Mutex<State, ranks::Jobs>,
    come: Condvar,
}

impl Jobs {
    /// Passes a job to the readers; dropped when too many wait.
    pub fn submit(&self, job: Job) {
        let mut state = self.state.lock();
        if state.waiting.len() < JOBS_MAX && !state.stop {
            state.waiting.push_back(job);
            drop(state);
            self.come.notify_one();
        }
    }

    /// Waits for a job, and runs it. Returns `false` if the thread is to end.
    pub fn run_one(&self) -> bool {
        let job = {
            let mut state = self.state.lock();
            loop {
                if state.stop {
                    return false;
                }
                if let Some(job) = state.waiting.pop_front() {
                    break job;
                }
                self.come.wait(&mut state);
            }
        };
        job();
        true
    }

    /// Drops the waiting jobs, and all that come.
    pub fn stop(&self) {
        let waiting = {
            let mut state = self.state.lock();
            state.stop = true;
            std::mem::take(&mut state.waiting)
        };
        drop(waiting);
        self.come.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn jobs_run_in_turn_up_to_a_bound_and_none_after_the_end() {
        let (jobs, done) = (Jobs::default(), Arc::new(AtomicUsize::new(0)));
        let submit = || {
            let done = Arc::clone(&done);
            jobs.submit(Box::new(move || {
                done.fetch_add(1, Ordering::Relaxed);
            }));
        };
        (0..JOBS_MAX + 3).for_each(|_| submit());
        (0..JOBS_MAX).for_each(|_| assert!(jobs.run_one()));
        assert_eq!(done.load(Ordering::Relaxed), JOBS_MAX);
        submit();
        jobs.stop();
        submit();
        assert!(!jobs.run_one());
        assert_eq!(Arc::strong_count(&done), 1, "no job is kept");
        assert_eq!(done.load(Ordering::Relaxed), JOBS_MAX);
    }
}
