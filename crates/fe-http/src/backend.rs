//! Connections to the server, for requests. Owns them, and the bound on requests that wait.

use std::io;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::wire::{Answer, Ask, LINE_BYTES_MAX, What, decode, encode};

/// Requests that may wait for a connection: a second's work at most.
const WAITING_MAX: usize = 64;
/// Longest wait for one.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the server may take to say that it is there.
const HELLO_PATIENCE: Duration = Duration::from_secs(2);

/// Exit status when no connection to the server is left.
const NO_CONNECTION: i32 = 70;

/// Reason for a missing answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// Too many requests wait already.
    Busy,
    /// The server has gone; this process ends soon, too.
    Gone,
}

/// See the module's text. Clones share the connections.
#[derive(Clone)]
pub(crate) struct Backend {
    shared: Arc<Shared>,
}

struct Shared {
    idle: Mutex<Vec<BufReader<UnixStream>>>,
    /// One permit for each connection that is idle.
    free: Semaphore,
    /// Connections that are not broken.
    whole: AtomicUsize,
    waiting: AtomicUsize,
}

/// Counts one that waits.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Backend {
    /// Over these connections. Needs the runtime.
    pub(crate) fn new(streams: Vec<StdStream>) -> io::Result<Self> {
        let mut idle = Vec::new();
        for stream in streams {
            stream.set_nonblocking(true)?;
            idle.push(BufReader::new(UnixStream::from_std(stream)?));
        }
        let (free, whole) = (Semaphore::new(idle.len()), AtomicUsize::new(idle.len()));
        Ok(Self { shared: Arc::new(Shared { idle: Mutex::new(idle), free, whole, waiting: AtomicUsize::new(0) }) })
    }

    /// Asks the server. The exchange goes on when the caller is dropped: half an answer would be
    /// taken for the beginning of the next one.
    pub(crate) async fn ask(&self, ask: Ask) -> Result<Answer, NoAnswer> {
        let shared = Arc::clone(&self.shared);
        if shared.waiting.fetch_add(1, Ordering::Relaxed) >= WAITING_MAX {
            shared.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(NoAnswer::Busy);
        }
        let waiting = Waiting(&self.shared.waiting);
        match timeout(PATIENCE, self.shared.free.acquire()).await {
            Ok(Ok(permit)) => permit.forget(),
            Ok(Err(_)) => return Err(NoAnswer::Gone),
            Err(_) => return Err(NoAnswer::Busy),
        }
        drop(waiting);
        let work = tokio::spawn(async move {
            let Some(mut line) = shared.idle.lock().pop() else { return Err(NoAnswer::Gone) };
            match exchange(&mut line, &ask).await {
                Ok(answer) => {
                    shared.idle.lock().push(line);
                    shared.free.add_permits(1);
                    Ok(answer)
                }
                Err(error) => {
                    // A broken connection costs one request. When none is left, the server has
                    // gone, or starts this process again.
                    log::warn!("the server does not answer a request: {error}");
                    if shared.whole.fetch_sub(1, Ordering::Relaxed) == 1 {
                        std::process::exit(NO_CONNECTION);
                    }
                    Err(NoAnswer::Gone)
                }
            }
        });
        work.await.unwrap_or(Err(NoAnswer::Gone))
    }

    /// Whether the server answers.
    pub(crate) async fn is_well(&self) -> bool {
        let hello = Ask { from: String::new(), proof: crate::wire::Proof::None, what: What::Hello };
        matches!(timeout(HELLO_PATIENCE, self.ask(hello)).await, Ok(Ok(Answer::Done)))
    }
}

async fn exchange(line: &mut BufReader<UnixStream>, ask: &Ask) -> io::Result<Answer> {
    line.get_mut().write_all(&encode(ask)?).await?;
    let mut answer = Vec::new();
    (&mut *line).take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut answer).await?;
    if answer.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut answer = decode(&answer)?;
    if let Answer::Content(content) = &mut answer {
        content.bytes = vec![0; content.length as usize];
        line.read_exact(&mut content.bytes).await?;
    }
    Ok(answer)
}
