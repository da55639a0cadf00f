//! Messages of a virtual machine monitor: an arbitrary stream. A decoded message is within its
//! limits and says how many descriptors come with it.
#![cfg_attr(not(test), no_main)]

use fe_vhost::wire::{BODY_BYTES_MAX, HEADER_BYTES, Header, Message, REGIONS_MAX};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut stream = data;
    while let Some((bytes, rest)) = stream.split_first_chunk::<HEADER_BYTES>() {
        let Ok(header) = Header::decode(bytes) else { return };
        assert!(header.size <= BODY_BYTES_MAX);
        let Some((body, rest)) = rest.split_at_checked(header.size as usize) else { return };
        stream = rest;
        if let Ok(message) = Message::decode(header.request, body) {
            assert!(message.descriptors() <= REGIONS_MAX);
        }
    }
});
