//! What comes over the control socket, on both sides: request and reply lines, bulk frames, replies to them, and the pool's own
//! description file. Nothing may crash or take memory out of proportion, and what is understood is understood the same when it is sent on.
//!
//! Input: byte 0 chooses what it is taken for, the rest is what came.
#![cfg_attr(not(test), no_main)]

use libfuzzer_sys::fuzz_target;
use operations::{decode_reply, decode_request, encode_reply, encode_request, read_line};
use server::control::bulk::{DATA_BYTES_MAX, Frame, decode_error, decode_runs, encode_runs, read_reply_head};
use server::pool_dir::Config;

fuzz_target!(|input: &[u8]| {
    let Some((which, came)) = input.split_first() else { return };
    match which % 5 {
        0 => requests(came),
        1 => {
            if let Ok(reply) = decode_reply(came) {
                let line = encode_reply(&Ok(reply)).expect("what came in a line fits in one");
                let again = decode_reply(&line).expect("what was understood is understood again");
                // Figures that are not numbers are not equal to themselves: the lines are compared.
                assert_eq!(encode_reply(&Ok(again)).ok(), Some(line));
            }
        }
        2 => frames(came),
        3 => {
            let mut rest = came;
            while let Ok((_, length)) = read_reply_head(&mut rest) {
                assert!(length as u64 <= DATA_BYTES_MAX);
                let Some((payload, behind)) = rest.split_at_checked(length) else { break };
                let runs = decode_runs(payload);
                assert_eq!(encode_runs(&runs), payload[..runs.len() * 8]);
                let _ = decode_error(payload).to_string();
                rest = behind;
            }
        }
        _ => {
            let _ = Config::decode(came);
        }
    }
});

fn requests(came: &[u8]) {
    let mut reader = came;
    while let Ok(Some(line)) = read_line(&mut reader) {
        if let Ok(request) = decode_request(&line) {
            let again = encode_request(&request).expect("what came in a line fits in one");
            assert_eq!(decode_request(&again[..again.len() - 1]).ok(), Some(request));
        }
    }
}

fn frames(came: &[u8]) {
    let mut reader = came;
    while let Ok(Some(frame)) = Frame::read(&mut reader) {
        assert_eq!(Frame::decode(&frame.encode()).ok(), Some(frame));
    }
}
