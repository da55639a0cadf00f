//! Copies a source into a volume: one thread reads, several write, in any order. If the pool has a
//! server and the source is a file, the file is passed to the server, and only offsets go over the
//! socket.

use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use surface::{Error, ErrorKind, Result};

use super::{Moved, Piece, QUEUED_PIECES_MAX, REPORT_EVERY, Shared, Source, THREADS};
use crate::volume_io::{FileCopier, VolumeIo};
use operations::Outcome;

/// The file and volume of a copy.
pub struct Import<'a> {
    /// The volume.
    pub volume: &'a dyn VolumeIo,
    /// Its size now.
    pub size_bytes: u64,
    /// Enlarges the volume to at least that size and returns the new size; none if it must not
    /// change.
    pub grow: Option<&'a (dyn Fn(u64) -> Result<u64> + Sync)>,
    /// The volume held something before: holes must be made.
    pub make_holes: bool,
    /// Set when a signal asks to stop.
    pub interrupted: &'a AtomicBool,
}

/// Copies everything, without flushing. Calls `report` periodically with the bytes processed.
///
/// # Errors
/// Those of the source and of the volume, `Invalid` when the source is larger than the volume, and
/// an interruption.
pub fn import(plan: &Import<'_>, source: &mut Source, report: &mut dyn FnMut(u64)) -> Outcome<Moved> {
    let shared = Shared::new(plan.interrupted);
    let copier = source.file().map(|file| plan.volume.with_file(file)).transpose()?.flatten();
    let copier = copier.as_deref();
    if copier.is_some() {
        source.leave_unread();
    }
    let (send, receive) = bounded::<Piece>(QUEUED_PIECES_MAX);
    // No data is ever sent: the channel closes when the last thread that holds a sender ends.
    let (alive, all_done) = bounded::<()>(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            let (receive, shared, alive) = (receive.clone(), &shared, alive.clone());
            shared.start(scope, move || {
                write_pieces(plan, copier, &receive, shared);
                drop(alive);
            });
        }
        drop(receive);
        let shared = &shared;
        shared.start(scope, move || {
            if let Err(failure) = read_pieces(plan, source, &send, shared) {
                shared.fail(failure);
            }
            drop(alive);
        });
        while let Err(RecvTimeoutError::Timeout) = all_done.recv_timeout(REPORT_EVERY) {
            report(shared.done());
        }
    });
    report(shared.done());
    shared.outcome()
}

fn read_pieces(plan: &Import<'_>, source: &mut Source, send: &Sender<Piece>, shared: &Shared<'_>) -> Outcome {
    let mut size_bytes = plan.size_bytes;
    while shared.go_on() {
        let Some(piece) = source.next(&|| shared.go_on())? else { return Ok(()) };
        if let Piece::Data { offset, own_bytes, .. } | Piece::Range { offset, own_bytes } = &piece {
            let end = offset + own_bytes;
            if end > size_bytes {
                size_bytes = match plan.grow {
                    Some(grow) => grow(end)?,
                    None => return Err(too_large(source.name(), size_bytes).into()),
                };
            }
        }
        if send.send(piece).is_err() {
            // All writers ended: one of them failed.
            return Ok(());
        }
    }
    Ok(())
}

fn too_large(name: &str, size_bytes: u64) -> Error {
    let size = units::format_size(size_bytes);
    Error::new(ErrorKind::Invalid, format!("{name} is larger than the volume ({size}); enlarge the volume"))
}

fn write_pieces(plan: &Import<'_>, copier: Option<&dyn FileCopier>, receive: &Receiver<Piece>, shared: &Shared<'_>) {
    for piece in receive {
        if !shared.go_on() {
            return;
        }
        let (result, counter, bytes) = match piece {
            Piece::Data { offset, data, own_bytes } => (plan.volume.write(offset, data), &shared.copied, own_bytes),
            Piece::Range { offset, own_bytes } => {
                let copied = copier.map_or_else(
                    || Err(Error::new(ErrorKind::Invalid, "internal error: unread piece without a file")),
                    |copier| copier.copy_in(offset, own_bytes),
                );
                (copied, &shared.copied, own_bytes)
            }
            Piece::Hole { offset, length } => {
                let inside = length.min(plan.size_bytes.saturating_sub(offset));
                let result = if plan.make_holes && inside > 0 { plan.volume.discard(offset, inside) } else { Ok(()) };
                (result, &shared.holes, length)
            }
        };
        match result {
            Ok(()) => counter.fetch_add(bytes, Ordering::Relaxed),
            Err(error) => return shared.fail(error),
        };
    }
}
