//! CPU affinity of threads.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processor that the calling thread runs on at this moment.
pub fn current_cpu() -> usize {
    rustix::thread::sched_getcpu()
}

/// Lets the calling thread run wherever the process's first thread may. A new thread inherits the
/// CPUs of the one that started it, which may be bound to one at that moment.
pub fn use_all_cpus() {
    let usual = sched_getaffinity(Some(rustix::process::getpid()));
    // Otherwise only speed suffers.
    let _ = usual.and_then(|usual| sched_setaffinity(None, &usual));
}

/// Keeps the thread that owns it off one CPU: for a helper woken by a thread that is busy there. A
/// virtual machine's scheduler wakes the helper on the same CPU, where it has to wait its turn,
/// because a sleeping CPU looks like one that the hypervisor has descheduled.
#[derive(Default)]
pub struct KeepOff {
    /// That processor, and those that the thread might use before.
    off: Option<(usize, CpuSet)>,
}

impl KeepOff {
    /// Moves the exclusion to this CPU, if that leaves another one to run on.
    pub fn set(&mut self, cpu: usize) {
        if self.off.as_ref().is_some_and(|(now, _)| *now == cpu) {
            return;
        }
        self.clear();
        let Ok(before) = sched_getaffinity(None) else { return };
        let mut others = before;
        if cpu < CpuSet::MAX_CPU {
            others.unset(cpu);
        }
        if others.count() > 0 && sched_setaffinity(None, &others).is_ok() {
            self.off = Some((cpu, before));
        }
    }

    /// Wherever it might run before.
    pub fn clear(&mut self) {
        if let Some((_, before)) = self.off.take() {
            // If it cannot be undone, only speed suffers.
            let _ = sched_setaffinity(None, &before);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_a_bound_one_starts_can_use_all_cpus() {
        let usual = sched_getaffinity(Some(rustix::process::getpid())).unwrap();
        let found = std::thread::spawn(|| {
            let mut one = CpuSet::new();
            one.set(current_cpu());
            sched_setaffinity(None, &one).unwrap();
            let started = std::thread::spawn(|| {
                use_all_cpus();
                sched_getaffinity(None).unwrap()
            });
            started.join().unwrap()
        });
        assert_eq!(found.join().unwrap(), usual);
    }

    #[test]
    fn a_thread_keeps_off_one_processor_at_a_time_and_comes_back() {
        let mine = sched_getaffinity(None).unwrap();
        let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| mine.is_set(*cpu)).collect();
        let mut keep = KeepOff::default();
        for cpu in &cpus {
            keep.set(*cpu);
            let now = sched_getaffinity(None).unwrap();
            let expected = if cpus.len() > 1 { cpus.len() - 1 } else { 1 };
            assert_eq!(now.count() as usize, expected);
            assert_eq!(now.is_set(*cpu), cpus.len() == 1);
            assert!(cpus.len() == 1 || current_cpu() != *cpu);
        }
        keep.clear();
        assert_eq!(sched_getaffinity(None).unwrap(), mine);
        // A CPU that does not exist.
        keep.set(CpuSet::MAX_CPU + 1);
        keep.clear();
        assert_eq!(sched_getaffinity(None).unwrap(), mine);
    }
}
