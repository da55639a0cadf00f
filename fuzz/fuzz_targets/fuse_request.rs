//! FUSE requests: arbitrary messages through the decoder, as `/dev/fuse` gives them and as a ring does. Both ways must agree, and
//! nothing that is decoded may reach beyond the message.
//!
//! Input: byte 0 is how many bytes of the arguments a ring has in a place of their own; the rest is a message.
#![cfg_attr(not(test), no_main)]

use fuse::wire::request::forgotten;
use fuse::wire::{IN_HEADER_BYTES, decode, init};
use fuse::{Operation, WriteData};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&split, message)) = data.split_first() else { return };
    let Some((header, arguments)) = message.split_at_checked(IN_HEADER_BYTES) else { return };
    let _ = init::offered(arguments);
    if let Ok(request) = decode(header, arguments, &[], None) {
        assert!(request.supplementary_groups().count() * 4 <= arguments.len());
        match request.operation {
            Operation::Write { data: WriteData::Here(data), .. } => assert!(data.len() <= arguments.len()),
            Operation::Write { data: WriteData::InAnswer(_), .. } => panic!("no answer was there"),
            Operation::BatchForget { pairs } => assert_eq!(forgotten(pairs).count(), pairs.len() / 16),
            Operation::Lookup { name } => assert!(!name.contains(&0)),
            Operation::Rename { name, new_name, .. } => assert!(!name.contains(&0) && !new_name.contains(&0)),
            _ => {}
        }
    }
    let (first, rest) = arguments.split_at(usize::from(split).min(arguments.len()));
    let _ = decode(header, first, rest, None);
    let _ = decode(header, first, &[], Some(rest.len()));
});
