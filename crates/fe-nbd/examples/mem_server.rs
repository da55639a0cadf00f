//! Serves a device in memory, to measure the server without a storage engine behind it:
//! `mem_server unix:/tmp/mem.sock 1G [THREADS]`. Runs until its standard input ends.

#[allow(dead_code, missing_docs, reason = "shared with the tests, which use more of it")]
#[path = "../tests/support/memory.rs"]
mod memory;

use std::io::Read;

use fe_nbd::{Listen, Server, ServerOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [listen, size, threads @ ..] = arguments.as_slice() else {
        return Err("usage: mem_server unix:PATH|HOST:PORT SIZE [THREADS]".into());
    };
    let size = units::parse_size(size)?;
    let threads = threads.first().map_or(Ok(16), |t| t.parse())?;
    let device = memory::Memory::new(size, size);
    let options = ServerOptions { threads, ..ServerOptions::default() };
    let server = Server::start(memory::Devices::of(&[("mem", &device)]), &[Listen::parse(listen)?], options)?;
    for address in server.local_addresses() {
        println!("{}", address.uri("mem"));
    }
    std::io::stdin().read_to_end(&mut Vec::new())?;
    server.stop();
    Ok(())
}
