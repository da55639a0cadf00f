//! A tree on its way into a new share, both ends.
//!
//! After `import_tree` the client sends an archive as [`TarSink`] writes it, and closes its half of
//! the connection. So the command reads its files itself, with the rights of its user. The server
//! answers once, with a line of JSON ([`Ended`]): after the end of the archive, or early after a
//! failure, when it reads no further. An archive that is cut off may look whole to the server; then
//! the mark `incomplete`, which only the command removes, stays.

use std::io::{BufRead, BufReader, BufWriter, Result as IoResult, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;

use copy::trees::{Sink, Tally, TarSink, TarSource, copy};
use operations::Outcome;
use report::JobFault;
use serde::{Deserialize, Serialize};
use surface::{Error, ErrorKind};

use super::client::gone;
use crate::jobs::is_broken;
use crate::service::TreeImport;

/// Bytes of the archive per read and write.
const BUFFER_BYTES: usize = 256 << 10;

/// Outcome of an import.
#[derive(Serialize, Deserialize)]
struct Ended {
    /// Counts of the copy, also of a failed one.
    tally: Tally,
    /// Reason why it was not completed.
    fault: Option<JobFault>,
}

/// The server's end. `is_stopping` returns whether the server is shutting down.
pub(super) fn serve_import(
    mut stream: &UnixStream,
    import: TreeImport,
    is_stopping: impl Fn() -> bool,
) -> IoResult<()> {
    let mut tally = Tally::default();
    let mut fill = || -> Outcome {
        let input = BufReader::with_capacity(BUFFER_BYTES, stream);
        let mut source = TarSource::new(input, "the tree from the command").for_share();
        copy(&mut source, &mut import.sink()?, &AtomicBool::new(false), &mut tally, &mut |_, _| {})
    };
    let filled = fill();
    let is_over = is_stopping();
    let ended = import.end(!is_over);
    let done = match filled.and_then(|()| Ok(ended?)) {
        _ if is_over => Err(Error::new(ErrorKind::Io, "the pool's server is stopping").into()),
        done => done,
    };
    let fault =
        done.err().map(|failure| JobFault { kind: failure.kind_name().to_owned(), message: failure.to_string() });
    if fault.is_some() {
        // The client may be waiting until more is read.
        stream.shutdown(Shutdown::Read)?;
    }
    let mut line = serde_json::to_vec(&Ended { tally, fault })?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// The client's end.
pub struct RemoteTree {
    pub(super) stream: UnixStream,
}

impl RemoteTree {
    /// Has `work` fill the share, and returns the outcome with the counts of the server, or those of
    /// `work` if the server cannot report any.
    pub fn fill(self, work: impl FnOnce(&mut dyn Sink, &mut Tally) -> Outcome) -> (Outcome, Tally) {
        let mut sent = Tally::default();
        let output = BufWriter::with_capacity(BUFFER_BYTES, &self.stream);
        let done = work(&mut TarSink::new(output).with_sockets(), &mut sent);
        // If this fails, the connection has ended.
        drop(self.stream.shutdown(Shutdown::Write));
        let mut line = Vec::new();
        let read = BufReader::new(&self.stream).read_until(b'\n', &mut line);
        let (ended, tally) = match read.and_then(|_| Ok(serde_json::from_slice::<Ended>(&line)?)) {
            Ok(Ended { tally, fault }) => (fault.map_or(Ok(()), |fault| Err(fault.error())), tally.with_source(sent)),
            Err(error) => (Err(gone(error)), sent),
        };
        match done {
            Err(failure) if !(is_broken(&failure) && ended.is_err()) => (Err(failure), tally),
            _ => (ended.map_err(Into::into), tally),
        }
    }
}
