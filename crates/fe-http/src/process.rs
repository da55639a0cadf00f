//! The process itself: takes its sockets from the server, gives up its rights, and serves until the
//! server goes.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, oneshot};

use crate::backend::Backend;
use crate::connections::{Limits, serve_tcp, serve_unix};
use crate::files::DOWNLOADS_MAX;
use crate::rights::give_up_rights;
use crate::router::{Site, router};
use crate::tls::Certificate;
use crate::wire::{Command, EVENT_LINES, Listener, REQUEST_LINES, Setup, receive_command};

/// Threads of the runtime, which only parse and copy.
const THREADS: usize = 2;
/// Memory that the process may map: 256 connections need a tenth of it.
const ADDRESS_SPACE_BYTES: u64 = 512 << 20;
/// Files that it may have open: 256 connections, its sockets, and room.
const FILES: u64 = 1024;

/// Serves until the server closes `control`, the socket for the commands of [`crate::wire`].
///
/// # Errors
/// When the message makes no sense, when rights cannot be given up, and for a certificate that
/// cannot be used.
pub fn run(control: OwnedFd) -> io::Result<()> {
    let broken = || io::Error::new(io::ErrorKind::InvalidData, "the server sent no beginning");
    let Some((Command::Begin(setup), descriptors)) = receive_command(&control)? else { return Err(broken()) };
    if descriptors.len() != setup.listeners.len() + REQUEST_LINES + EVENT_LINES {
        return Err(broken());
    }
    // Before there is a second thread, and before the first byte of a client.
    give_up_rights(FILES, ADDRESS_SPACE_BYTES)?;
    let certificate = setup.tls.as_ref().map(Certificate::new).transpose()?;
    let (end, ended) = oneshot::channel();
    let for_thread = certificate.clone();
    std::thread::Builder::new().name("http-control".to_owned()).spawn(move || {
        obey(&control, for_thread.as_deref());
        let _ = end.send(());
    })?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build()?;
    runtime.block_on(async {
        begin(setup, descriptors, certificate)?;
        // Its other end goes with the thread, too.
        drop(ended.await);
        Ok::<_, io::Error>(())
    })?;
    runtime.shutdown_background();
    Ok(())
}

/// Executes the server's commands until it closes the socket.
fn obey(control: &OwnedFd, certificate: Option<&Certificate>) {
    while let Ok(Some((command, _))) = receive_command(control) {
        if let (Command::Certificate(pem), Some(certificate)) = (command, certificate)
            && let Err(error) = certificate.replace(&pem)
        {
            log::warn!("HTTP keeps its current certificates: {error}");
        }
    }
}

fn begin(setup: Setup, descriptors: Vec<OwnedFd>, certificate: Option<Arc<Certificate>>) -> io::Result<()> {
    let mut descriptors = descriptors.into_iter();
    let listeners: Vec<_> = setup.listeners.iter().copied().zip(descriptors.by_ref()).collect();
    let lines = descriptors.by_ref().take(REQUEST_LINES).map(UnixStream::from).collect();
    let ticks = descriptors.map(UnixStream::from).collect();
    let site = Site {
        backend: Backend::new(lines)?,
        ticks: Backend::new(ticks)?,
        streams: Arc::default(),
        downloads: Arc::new(Semaphore::new(DOWNLOADS_MAX)),
        names: setup.names,
        version: setup.version,
        boot: setup.boot,
    };
    let app = router(site);
    let limits = Arc::new(Limits::default());
    let tls = certificate.map(Certificate::acceptor).transpose()?;
    for (kind, descriptor) in listeners {
        let (limits, app) = (Arc::clone(&limits), app.clone());
        match kind {
            Listener::Tcp => {
                let listener = std::net::TcpListener::from(descriptor);
                listener.set_nonblocking(true)?;
                tokio::spawn(serve_tcp(TcpListener::from_std(listener)?, limits, app, tls.clone()));
            }
            Listener::Unix => {
                let listener = std::os::unix::net::UnixListener::from(descriptor);
                listener.set_nonblocking(true)?;
                tokio::spawn(serve_unix(UnixListener::from_std(listener)?, limits, app));
            }
        }
    }
    Ok(())
}
