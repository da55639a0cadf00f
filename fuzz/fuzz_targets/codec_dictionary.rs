//! Dictionaries that nobody trained: any bytes are prepared as one and used both ways. Whatever is made with a dictionary must
//! come back with it; frames that nobody made may fail, but nothing may crash or be written past the end.
//!
//! An input is: bytes of the dictionary (2 bytes), the raw length (2 bytes), the dictionary, then a payload.
#![cfg_attr(not(test), no_main)]

use std::sync::Arc;

use codec::{CodecId, DecodeDictionary, DictionaryNumber, EncodeDictionary, Workspace, ZstdLevel};
use libfuzzer_sys::fuzz_target;

const GUARD: [u8; 32] = [0xa5; 32];

fuzz_target!(|input: &[u8]| {
    let Some((head, rest)) = input.split_first_chunk::<4>() else { return };
    let [a, b, c, d] = *head;
    let Some((dictionary, payload)) = rest.split_at_checked(u16::from_le_bytes([a, b]) as usize) else { return };
    let raw = u16::from_le_bytes([c, d]) as usize;
    let number = DictionaryNumber(7);
    let Some(decode) = DecodeDictionary::prepare(number, dictionary).map(Arc::new) else { return };
    let mut workspace = Workspace::new();

    let mut dst = vec![0u8; raw + GUARD.len()];
    dst[raw..].copy_from_slice(&GUARD);
    let id = CodecId::ZSTD_DICTIONARY;
    let _ = workspace.decompress_with(id, payload, &mut dst[..raw], &mut |_| Some(Arc::clone(&decode)));
    assert_eq!(dst[raw..], GUARD);

    let Some(encode) = EncodeDictionary::prepare(number, dictionary, ZstdLevel::MIN) else { return };
    let mut stored = vec![0u8; payload.len() + 1024];
    let Some(len) = workspace.compress_with(&Arc::new(encode), payload, &mut stored) else { return };
    let mut back = vec![0u8; payload.len()];
    let done = workspace.decompress_with(id, &stored[..len], &mut back, &mut |n| {
        assert_eq!(n, number);
        Some(Arc::clone(&decode))
    });
    assert!(done.is_ok(), "{done:?}");
    assert_eq!(back, payload);
});
