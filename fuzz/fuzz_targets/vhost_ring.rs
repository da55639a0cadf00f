//! Rings of a virtual machine's disk: guest memory with anything in it, worked off as the thread of
//! a queue does. The input and what must hold stand at the head of the code, which a campaign of
//! `make test` shares.
#![cfg_attr(not(test), no_main)]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/fe-vhost/tests/vhost/image.rs"]
mod image;

fuzz_target!(|data: &[u8]| image::run(data));
