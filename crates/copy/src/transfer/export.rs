//! Copies a volume to a sink: one thread plans from the volume's allocation, several read. For a
//! sink with random access, the readers write, in any order (or the pool's server does, if there is
//! one and the file is passed to it); for a stream they take turns, and pass their data to one
//! writer.

use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use surface::{Allocation, Error, ErrorKind, Result};

use super::sink::{Target, stream_zeroes};
use super::{Moved, PIECE_BYTES, QUEUED_PIECES_MAX, REPORT_EVERY, Shared, Sink, THREADS};
use crate::volume_io::{FileCopier, VolumeIo};
use operations::Outcome;

/// Runs asked for at a time: a reply of 64 KiB.
const RUNS_MAX: u32 = 8192;

/// The volume and file of a copy.
pub struct Export<'a> {
    /// The volume.
    pub volume: &'a dyn VolumeIo,
    /// How much of it.
    pub size_bytes: u64,
    /// Set when a signal asks to stop.
    pub interrupted: &'a AtomicBool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Job {
    Data { offset: u64, length: usize },
    Hole { offset: u64, length: u64 },
}

enum Output {
    Data(Vec<u8>),
    Hole(u64),
}

/// Copies everything, without syncing. Calls `report` periodically with the bytes processed.
///
/// # Errors
/// Those of the volume and of the sink, and an interruption.
pub fn export(plan: &Export<'_>, sink: &Sink, report: &mut dyn FnMut(u64)) -> Outcome<Moved> {
    let shared = Shared::new(plan.interrupted);
    let copier = sink.target().map(|target| plan.volume.with_file(target.file())).transpose()?.flatten();
    let copier = copier.as_deref();
    // No data is ever sent: the channel closes when the last thread that holds a sender ends.
    let (alive, all_done) = bounded::<()>(0);
    std::thread::scope(|scope| {
        let shared = &shared;
        let mut jobs = Vec::new();
        match sink {
            Sink::File(target) | Sink::Device(target) => {
                let keeps_old = matches!(sink, Sink::Device(_));
                let (send, receive) = bounded(QUEUED_PIECES_MAX);
                jobs.push(send);
                for _ in 0..THREADS {
                    let (receive, alive) = (receive.clone(), alive.clone());
                    shared.start(scope, move || {
                        stop_on_error(shared, copy_pieces(plan, copier, target, keeps_old, &receive, shared));
                        drop(alive);
                    });
                }
            }
            Sink::Stream(stream) => {
                // Reader i has pieces i, i + THREADS, ...: the writer takes from the readers in
                // turn.
                let mut outputs = Vec::new();
                for _ in 0..THREADS {
                    let (send_job, receive_job) = bounded(1);
                    let (send_output, receive_output) = bounded(1);
                    jobs.push(send_job);
                    outputs.push(receive_output);
                    let alive = alive.clone();
                    shared.start(scope, move || {
                        stop_on_error(shared, read_pieces(plan, &receive_job, &send_output, shared));
                        drop(alive);
                    });
                }
                let alive = alive.clone();
                shared.start(scope, move || {
                    stop_on_error(shared, write_stream(stream, &outputs, shared));
                    drop(alive);
                });
            }
        }
        shared.start(scope, move || {
            stop_on_error(shared, make_jobs(plan, &jobs, shared));
            drop(alive);
        });
        while let Err(RecvTimeoutError::Timeout) = all_done.recv_timeout(REPORT_EVERY) {
            report(shared.done());
        }
    });
    report(shared.done());
    shared.outcome()
}

fn stop_on_error(shared: &Shared<'_>, result: Result<()>) {
    if let Err(error) = result {
        shared.fail(error);
    }
}

/// Deals out the jobs, to the queues in turn.
fn make_jobs(plan: &Export<'_>, queues: &[Sender<Job>], shared: &Shared<'_>) -> Result<()> {
    let mut turn = queues.iter().cycle();
    let mut send = |job| shared.go_on() && turn.next().is_some_and(|queue| queue.send(job).is_ok());
    let mut offset = 0;
    while offset < plan.size_bytes {
        let runs = plan.volume.allocation(offset, plan.size_bytes - offset, RUNS_MAX)?;
        let before = offset;
        for run in runs {
            let end = plan.size_bytes.min(offset.saturating_add(run.length));
            match run.allocation {
                Allocation::Hole => {
                    if !send(Job::Hole { offset, length: end - offset }) {
                        return Ok(());
                    }
                }
                Allocation::Data => {
                    while offset < end {
                        let room = PIECE_BYTES as u64 - offset % PIECE_BYTES as u64;
                        let length = usize::try_from(room.min(end - offset)).unwrap_or(PIECE_BYTES);
                        if !send(Job::Data { offset, length }) {
                            return Ok(());
                        }
                        offset += length as u64;
                    }
                }
            }
            offset = end;
        }
        if offset == before {
            let message = format!("the volume did not report its allocation at byte {offset}");
            return Err(Error::new(ErrorKind::Io, message));
        }
    }
    Ok(())
}

fn copy_pieces(
    plan: &Export<'_>,
    copier: Option<&dyn FileCopier>,
    target: &Target,
    keeps_old: bool,
    jobs: &Receiver<Job>,
    shared: &Shared<'_>,
) -> Result<()> {
    let mut buffer = Vec::new();
    for job in jobs {
        if !shared.go_on() {
            break;
        }
        match job {
            Job::Data { offset, length } => {
                if let Some(copier) = copier {
                    let what = || format!("{}", target.path().display());
                    copier.copy_out(offset, length as u64).map_err(|error| error.context(what()))?;
                } else {
                    buffer.resize(PIECE_BYTES, 0);
                    plan.volume.read(offset, &mut buffer[..length])?;
                    target.write(offset, &buffer[..length])?;
                }
                shared.copied.fetch_add(length as u64, Ordering::Relaxed);
            }
            Job::Hole { offset, length } => {
                if keeps_old {
                    target.zero(offset, length)?;
                }
                shared.holes.fetch_add(length, Ordering::Relaxed);
            }
        }
    }
    Ok(())
}

fn read_pieces(plan: &Export<'_>, jobs: &Receiver<Job>, outputs: &Sender<Output>, shared: &Shared<'_>) -> Result<()> {
    for job in jobs {
        let output = match job {
            Job::Data { offset, length } => {
                let mut data = vec![0; length];
                plan.volume.read(offset, &mut data)?;
                Output::Data(data)
            }
            Job::Hole { length, .. } => Output::Hole(length),
        };
        if !shared.go_on() || outputs.send(output).is_err() {
            break;
        }
    }
    Ok(())
}

fn write_stream(mut stream: &File, outputs: &[Receiver<Output>], shared: &Shared<'_>) -> Result<()> {
    let failed = |error| Error::from_io("cannot write to the output", error);
    for receiver in outputs.iter().cycle() {
        // Closed: the reader whose turn it is has no more jobs, and then no reader has any; or it
        // failed, and reported that.
        let Ok(output) = receiver.recv() else { break };
        if !shared.go_on() {
            break;
        }
        match output {
            Output::Data(data) => {
                stream.write_all(&data).map_err(failed)?;
                shared.copied.fetch_add(data.len() as u64, Ordering::Relaxed);
            }
            Output::Hole(length) => {
                stream_zeroes(stream, length).map_err(failed)?;
                shared.holes.fetch_add(length, Ordering::Relaxed);
            }
        }
    }
    Ok(())
}
