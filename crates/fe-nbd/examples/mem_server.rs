//! Serves an in-memory device, to measure the server without a storage engine: `mem_server
//! unix:/tmp/mem.sock 1G [THREADS [uncached]]`. Uncached, every read goes through the pool. Runs
//! until its standard input ends.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fe_nbd::{Listen, Server, ServerOptions};
use testkit::{Memory, MemorySet};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [listen, size, rest @ ..] = arguments.as_slice() else {
        return Err("usage: mem_server unix:PATH|HOST:PORT SIZE [THREADS [uncached]]".into());
    };
    let size = units::parse_size(size)?;
    let (threads, uncached) = (rest.first(), rest.get(1));
    let threads = threads.map_or(Ok(16), |t| t.parse())?;
    let device = Memory::new(size);
    let is_uncached = uncached.is_some_and(|word| word == "uncached");
    device.cached.store(!is_uncached, Ordering::Release);
    let options = ServerOptions { threads, ..ServerOptions::default() };
    let devices = Arc::new(MemorySet::of(&[("mem", &device)]));
    let server = Server::start(devices, &[Listen::parse(listen)?], options)?;
    for address in server.local_addresses() {
        println!("{}", address.uri("mem"));
    }
    std::io::stdin().read_to_end(&mut Vec::new())?;
    server.stop();
    Ok(())
}
