//! Decoding of stored units: any bytes, under any codec's number, for any raw length, whole or in part, twice with the same
//! context. Nothing may crash or be written past the end, and what decodes once decodes again to the same.
//!
//! An input is: the codec's number, the raw length (3 bytes), the wanted prefix (3 bytes), then the stored bytes.
#![cfg_attr(not(test), no_main)]

use codec::{CodecId, UNIT_BYTES_MAX, Workspace};
use libfuzzer_sys::fuzz_target;

const GUARD: [u8; 32] = [0xa5; 32];

fuzz_target!(|input: &[u8]| {
    let Some((head, stored)) = input.split_first_chunk::<7>() else { return };
    let [id, a, b, c, x, y, z] = *head;
    let raw = u32::from_le_bytes([a, b, c, 0]) as usize % (UNIT_BYTES_MAX + 2);
    let wanted = u32::from_le_bytes([x, y, z, 0]) as usize % (raw + 2);
    let id = CodecId(id);
    let mut workspace = Workspace::new();
    let mut decode = |prefix: Option<usize>| {
        let mut dst = vec![0u8; raw + GUARD.len()];
        dst[raw..].copy_from_slice(&GUARD);
        let done = match prefix {
            None => workspace.decompress(id, stored, &mut dst[..raw]),
            Some(wanted) => workspace.decompress_prefix(id, stored, &mut dst[..raw], wanted),
        };
        assert_eq!(dst[raw..], GUARD);
        done.ok().map(|()| dst)
    };
    let first = decode(None);
    let part = decode(Some(wanted));
    let second = decode(None);
    assert_eq!(first, second);
    if !id.is_known() {
        assert!(first.is_none() && part.is_none());
    }
    if let (Some(whole), true) = (&first, wanted <= raw) {
        let part = part.expect("what decodes as a whole decodes in part");
        assert_eq!(part[..wanted], whole[..wanted]);
    }
});
