//! A tree on its way into a mounted share, both ends.
//!
//! After `import_tree` the client sends an archive as [`TarSink`] writes it, and closes its half of
//! the connection. So the command reads its files itself, with the rights of its user, and the
//! server needs no message for each. The server answers once, with a line of JSON ([`Ended`]): after
//! the end of the archive, or early after a failure, when it reads no further.

use std::io::{BufRead, BufReader, BufWriter, Result as IoResult, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;

use copy::trees::{Sink, Tally, TarSink, TarSource, copy};
use operations::{Failure, Outcome};
use report::JobFault;
use serde::{Deserialize, Serialize};
use surface::{Error, ErrorKind};

use super::client::gone;
use crate::jobs::is_broken;
use crate::share_import::TreeImport;

/// Bytes of the archive per read and write.
const BUFFER_BYTES: usize = 256 << 10;

/// Outcome of an import.
#[derive(Serialize, Deserialize)]
struct Ended {
    /// Counts of the copy, with those of a failed one.
    tally: Tally,
    /// Reason why it was not completed.
    fault: Option<JobFault>,
}

/// The server's end. `is_stopping` returns whether the server is shutting down.
pub(super) fn serve_import(
    mut stream: &UnixStream,
    mut import: TreeImport,
    is_stopping: impl Fn() -> bool,
) -> IoResult<()> {
    // As the threads that serve the mount, which may wait for this one.
    fuse::become_io_flusher();
    let input = BufReader::with_capacity(BUFFER_BYTES, stream);
    let mut source = TarSource::new(input, "the tree from the command").for_share();
    let mut tally = Tally::default();
    let done = copy(&mut source, import.sink(), &AtomicBool::new(false), &mut tally, &mut |_, _| {});
    let has_ended = import.has_ended();
    // What it has not completed is removed, and the share can be unmounted.
    drop(import);
    let fault = done.err().map(|failure| match failure {
        _ if has_ended || is_stopping() => {
            let text = "the share was unmounted, or its server is stopping: import again with --overwrite later";
            JobFault::from(&Error::new(ErrorKind::Io, text))
        }
        failure => JobFault { kind: failure.kind_name().to_owned(), message: failure.to_string() },
    });
    if fault.is_some() {
        // The client may be waiting for room for more.
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
    /// Has `work` fill the share. Returns the counts of the server, if it could report them; it has
    /// no part in problems of the source.
    pub fn fill(self, work: impl FnOnce(&mut dyn Sink) -> Outcome) -> (Outcome, Option<Tally>) {
        let output = BufWriter::with_capacity(BUFFER_BYTES, &self.stream);
        let sent = work(&mut TarSink::new(output).with_sockets());
        // An archive that is cut off ends the import. If it fails, the connection has ended.
        drop(self.stream.shutdown(Shutdown::Write));
        let mut line = Vec::new();
        let ended = BufReader::new(&self.stream).read_until(b'\n', &mut line);
        let ended = ended.and_then(|_| Ok(serde_json::from_slice::<Ended>(&line)?));
        let sent = sent.or_else(|failure| if is_broken(&failure) { Ok(()) } else { Err(failure) });
        match ended {
            Ok(Ended { tally, fault }) => {
                let done = fault.map_or(Ok(()), |fault| Err(Failure::from(fault.error())));
                (sent.and(done), Some(tally))
            }
            Err(error) => (sent.and(Err(gone(error).into())), None),
        }
    }
}
