//! Round trips, limits and hostile input, for every codec.

use codec::{Codec, CodecId, DecodeError, UNIT_BYTES_MAX, Workspace};
use proptest::prelude::*;

/// Marks bytes that no decoder may write to.
const GUARD: u8 = 0xa5;
const GUARD_BYTES: usize = 64;

/// Reproducible data of a kind: runs, text, records or noise.
fn data(kind: u8, seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = move || {
        // xorshift64*: good enough to be incompressible.
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    };
    let words = [b"extent ".as_slice(), b"the ", b"checkpoint ", b"of a ", b"log\n", b"0x7f3e ", b"    "];
    let mut bytes = Vec::with_capacity(len + 16);
    while bytes.len() < len {
        match kind % 5 {
            0 => bytes.extend_from_slice(&next().to_le_bytes()),
            1 => bytes.extend_from_slice(words[(next() >> 32) as usize % words.len()]),
            2 => bytes.extend_from_slice(&(bytes.len() as u32 / 16 + (next() >> 62) as u32).to_le_bytes()),
            3 => bytes.resize(bytes.len() + (next() >> 56) as usize + 1, (next() >> 60) as u8),
            _ => {
                let noise = next();
                if noise >> 63 == 0 {
                    bytes.extend_from_slice(&noise.to_le_bytes());
                } else {
                    bytes.extend_from_slice(words[noise as usize % words.len()]);
                }
            }
        }
    }
    bytes.truncate(len);
    bytes
}

/// Compresses into `limit` bytes between guards.
fn compress(workspace: &mut Workspace, codec: Codec, src: &[u8], limit: usize) -> Option<Vec<u8>> {
    let mut dst = vec![GUARD; limit + GUARD_BYTES];
    let written = workspace.compress(codec, src, &mut dst[..limit]);
    assert!(dst[limit..].iter().all(|b| *b == GUARD), "{codec} wrote past dst");
    written.map(|n| {
        assert!(n > 0 && n <= limit);
        dst.truncate(n);
        dst
    })
}

/// Decodes into `raw` bytes between guards.
fn decompress(workspace: &mut Workspace, id: CodecId, src: &[u8], raw: usize) -> Result<Vec<u8>, DecodeError> {
    let mut dst = vec![GUARD; raw + GUARD_BYTES];
    let done = workspace.decompress(id, src, &mut dst[..raw]);
    assert!(dst[raw..].iter().all(|b| *b == GUARD), "{id} wrote past dst");
    dst.truncate(raw);
    done.map(|()| dst)
}

/// Larger than anything a codec makes of a unit.
fn roomy(len: usize) -> usize {
    len + len / 8 + 1024
}

/// Codecs for which fewer cases suffice: the others exercise the same code of this crate.
fn is_slow(codec: Codec) -> bool {
    match codec {
        Codec::Zstd(level) => level.get() > 9,
        Codec::Lz4Hc(level) => level.get() > 9,
        Codec::Bzip2(_) => true,
        _ => false,
    }
}

fn any_codec() -> impl Strategy<Value = Codec> {
    // The slow levels run rarely: they differ from the others only in their search.
    let quick: Vec<_> = Codec::all().filter(|c| *c != Codec::Off && !is_slow(*c)).collect();
    let slow: Vec<_> = Codec::all().filter(|c| is_slow(*c)).collect();
    prop_oneof![
        3 => Just(Codec::Lz4),
        2 => Just(Codec::Lzo),
        2 => Just(Codec::Lzjb),
        2 => Just(Codec::Zle),
        8 => prop::sample::select(quick),
        1 => prop::sample::select(slow),
    ]
}

fn any_len() -> impl Strategy<Value = usize> {
    prop_oneof![1usize..=64, 1usize..=4096, 1usize..=UNIT_BYTES_MAX, (1usize..=32).prop_map(|n| n * 4096)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn what_goes_in_comes_out(steps in prop::collection::vec((any_codec(), any::<u8>(), any::<u64>(), any_len()), 1..6)) {
        // One workspace for several steps: a context must not remember anything of the unit before.
        let mut workspace = Workspace::new();
        for (codec, kind, seed, len) in steps {
            let raw = data(kind, seed, len);
            let stored = compress(&mut workspace, codec, &raw, roomy(len)).unwrap();
            prop_assert_eq!(decompress(&mut workspace, codec.id(), &stored, len).unwrap(), raw);
        }
    }

    #[test]
    fn a_limit_is_kept_and_only_costs_what_does_not_fit(
        codec in any_codec(), kind: u8, seed: u64, len in any_len(), part in 0usize..1200,
    ) {
        let mut workspace = Workspace::new();
        let raw = data(kind, seed, len);
        let free = compress(&mut workspace, codec, &raw, roomy(len)).unwrap();
        let limit = len * part / 1000;
        if let Some(stored) = compress(&mut workspace, codec, &raw, limit) {
            prop_assert_eq!(decompress(&mut workspace, codec.id(), &stored, len).unwrap(), raw);
        } else {
            // A codec may want a few bytes of working room beyond the result, but no more.
            prop_assert!(limit < free.len() + 64, "{} needs {} and was given {}", codec, free.len(), limit);
        }
    }

    #[test]
    fn damage_gives_an_error_or_the_right_length(
        codec in any_codec(), kind: u8, seed: u64, len in any_len(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 8),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 1..24),
    ) {
        let mut workspace = Workspace::new();
        let raw = data(kind, seed, len);
        let stored = compress(&mut workspace, codec, &raw, roomy(len)).unwrap();
        for cut in cuts {
            let end = cut.index(stored.len());
            // A prefix of a stream never decodes to the whole.
            prop_assert!(decompress(&mut workspace, codec.id(), &stored[..end], len).is_err());
        }
        for (at, bit) in flips {
            let mut hurt = stored.clone();
            hurt[at.index(stored.len())] ^= 1 << bit;
            let _ = decompress(&mut workspace, codec.id(), &hurt, len);
            let mut dst = vec![GUARD; len + GUARD_BYTES];
            let _ = workspace.decompress_prefix(codec.id(), &hurt, &mut dst[..len], at.index(len));
            prop_assert!(dst[len..].iter().all(|b| *b == GUARD));
        }
        // And the context still works.
        prop_assert_eq!(decompress(&mut workspace, codec.id(), &stored, len).unwrap(), raw);
    }

    #[test]
    fn another_length_is_an_error(codec in any_codec(), kind: u8, seed: u64, len in any_len(), other in any_len()) {
        prop_assume!(len != other);
        let mut workspace = Workspace::new();
        let stored = compress(&mut workspace, codec, &data(kind, seed, len), roomy(len)).unwrap();
        prop_assert!(decompress(&mut workspace, codec.id(), &stored, other).is_err());
    }

    #[test]
    fn a_prefix_is_the_beginning(codec in any_codec(), kind: u8, seed: u64, len in any_len(), part in any::<prop::sample::Index>()) {
        let mut workspace = Workspace::new();
        let raw = data(kind, seed, len);
        let stored = compress(&mut workspace, codec, &raw, roomy(len)).unwrap();
        for wanted in [part.index(len + 1), 0, len] {
            let mut dst = vec![GUARD; len + GUARD_BYTES];
            workspace.decompress_prefix(codec.id(), &stored, &mut dst[..len], wanted).unwrap();
            prop_assert_eq!(&dst[..wanted], &raw[..wanted]);
            prop_assert!(dst[len..].iter().all(|b| *b == GUARD));
        }
    }

    #[test]
    fn noise_never_crashes_a_decoder(id: u8, noise in prop::collection::vec(any::<u8>(), 0..3000), raw in 0usize..5000) {
        let mut workspace = Workspace::new();
        let result = decompress(&mut workspace, CodecId(id), &noise, raw);
        if !CodecId(id).is_known() {
            prop_assert_eq!(result, Err(DecodeError::UnknownCodec(CodecId(id))));
        }
    }
}

#[test]
fn every_truncation_and_every_bit_flip_of_a_block() {
    let mut workspace = Workspace::new();
    // One of each stream format; the levels of a family differ only in their search.
    for name in ["zle", "lzjb", "lz4", "lz4hc-9", "lzo", "gzip-6", "bzip2-9", "zstd-fast-3", "zstd-1", "zstd-6"] {
        let codec: Codec = name.parse().unwrap();
        // Text; records for zle, which saves on zeroes only.
        let raw = data(if codec == Codec::Zle { 2 } else { 1 }, 7, 4096);
        let stored = compress(&mut workspace, codec, &raw, roomy(4096)).unwrap();
        for end in 0..stored.len() {
            assert!(decompress(&mut workspace, codec.id(), &stored[..end], 4096).is_err(), "{codec} cut at {end}");
        }
        for bit in 0..stored.len() * 8 {
            let mut hurt = stored.clone();
            hurt[bit / 8] ^= 1 << (bit % 8);
            let _ = decompress(&mut workspace, codec.id(), &hurt, 4096);
        }
    }
}

#[test]
fn all_codecs_at_the_sizes_of_units() {
    let mut workspace = Workspace::new();
    for codec in Codec::all().filter(|c| *c != Codec::Off) {
        for len in [1, 4096, 32768, UNIT_BYTES_MAX] {
            for kind in 0..5 {
                let raw = data(kind, 3, len);
                let stored = compress(&mut workspace, codec, &raw, roomy(len)).unwrap();
                assert_eq!(decompress(&mut workspace, codec.id(), &stored, len).unwrap(), raw, "{codec} {len} {kind}");
            }
        }
    }
}

#[test]
fn noise_does_not_fit_in_less() {
    let mut workspace = Workspace::new();
    let noise = data(0, 1, 32768);
    for codec in Codec::all() {
        assert_eq!(compress(&mut workspace, codec, &noise, 32767), None, "{codec}");
    }
}

#[test]
fn the_limits_of_compress() {
    let mut workspace = Workspace::new();
    let long = vec![0u8; UNIT_BYTES_MAX + 1];
    let mut dst = vec![0u8; UNIT_BYTES_MAX];
    for codec in Codec::all() {
        assert_eq!(workspace.compress(codec, &long, &mut dst), None);
        assert_eq!(workspace.compress(codec, &[], &mut dst), None);
        assert_eq!(workspace.compress(codec, &long[..4096], &mut []), None);
        let fits = workspace.compress(codec, &long[..4096], &mut dst).is_some();
        assert_eq!(fits, codec != Codec::Off);
    }
}

#[test]
fn raw_is_copied_if_the_length_is_right() {
    let mut workspace = Workspace::new();
    let raw = data(0, 9, 4096);
    assert_eq!(decompress(&mut workspace, CodecId::RAW, &raw, 4096).unwrap(), raw);
    assert!(decompress(&mut workspace, CodecId::RAW, &raw, 4095).is_err());
    assert!(decompress(&mut workspace, CodecId::RAW, &raw, 8192).is_err());
}

#[test]
fn unknown_numbers_are_named_in_the_error() {
    let error = Workspace::new().decompress(CodecId(107), &[1, 2, 3], &mut [0; 8]).unwrap_err();
    assert_eq!(error.to_string(), "this version cannot decode codec 107 (number 107 in the format)");
}

/// Stream formats are permanent: these recorded streams must decode in every version.
#[test]
fn streams_of_the_first_version_decode() {
    let text = b"shale shale shale shale shale shale shale shale shale shale\n";
    let mut workspace = Workspace::new();
    for (id, stored) in [(CodecId(16), LZ4_STREAM), (CodecId(67), ZSTD_STREAM)] {
        assert_eq!(decompress(&mut workspace, id, stored, text.len()).unwrap(), text, "{id}");
    }
}

const LZ4_STREAM: &[u8] = &[111, 115, 104, 97, 108, 101, 32, 6, 0, 30, 80, 104, 97, 108, 101, 10];
const ZSTD_STREAM: &[u8] = &[0, 0, 109, 0, 0, 56, 115, 104, 97, 108, 101, 32, 10, 1, 0, 202, 89, 138];

/// Interoperability with another implementation of LZO1X, in both directions.
#[test]
fn lzo_streams_are_exchanged_with_another_implementation() {
    let mut workspace = Workspace::new();
    let mut dictionary = lzokay::compress::Dict::new_const();
    for kind in 0..5 {
        for len in [1, 3, 4, 17, 238, 239, 300, 4096, 32768, 70_001, UNIT_BYTES_MAX] {
            let raw = data(kind, len as u64, len);
            let mut theirs = vec![0; lzokay::compress::compress_worst_size(len)];
            let written = lzokay::compress::compress_no_alloc(&raw, &mut theirs, &mut dictionary).unwrap();
            assert_eq!(decompress(&mut workspace, CodecId::LZO, &theirs[..written], len).unwrap(), raw, "{kind} {len}");
            let ours = compress(&mut workspace, Codec::Lzo, &raw, roomy(len)).unwrap();
            let mut back = vec![0; len];
            assert_eq!(lzokay::decompress::decompress(&ours, &mut back).unwrap(), len);
            assert_eq!(back, raw, "{kind} {len}");
        }
    }
}

/// A workspace allocates only for the codecs used, and repeated use does not add to it.
#[test]
fn memory_is_taken_when_needed_and_bounded() {
    let mut workspace = Workspace::new();
    assert_eq!(workspace.memory_bytes(), 0);
    let raw = data(4, 5, UNIT_BYTES_MAX);
    compress(&mut workspace, Codec::Lz4, &raw, roomy(raw.len())).unwrap();
    assert!(workspace.memory_bytes() < 17 << 10);
    let mut after = Vec::new();
    for _ in 0..3 {
        for codec in Codec::all().filter(|c| *c != Codec::Off) {
            for len in [4096, UNIT_BYTES_MAX] {
                let stored = compress(&mut workspace, codec, &raw[..len], roomy(len)).unwrap();
                decompress(&mut workspace, codec.id(), &stored, len).unwrap();
            }
        }
        after.push(workspace.memory_bytes());
    }
    assert!(after[0] < 12 << 20, "{after:?}");
    assert!(after[2] <= after[0], "{after:?}");
}
