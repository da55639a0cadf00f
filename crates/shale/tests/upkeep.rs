//! What a running server sees to by itself.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::io::{BufRead, BufReader};

use support::{Dir, Server, on};

#[test]
fn a_server_takes_the_snapshots_that_are_due() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["v", "--size", "1M", "-o", "snapshots=hourly"]).ok();
    let mut server = Server::start(&dir, &[]);
    let said = BufReader::new(server.child.stderr.take().unwrap());
    let taken = said.lines().map(Result::unwrap).find(|line| line.contains("snapshot v@auto-"));
    assert!(taken.is_some_and(|line| line.ends_with(" taken")), "the server has ended");
    let list = on(&dir, "list", &["-r", "--json"]).ok().json();
    assert!(list[0]["snapshots"][0]["name"].as_str().unwrap().starts_with("auto-"), "{list}");
    server.signal(libc::SIGTERM);
    assert!(server.child.wait().unwrap().success());
}
