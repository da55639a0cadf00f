//! Dictionaries: trained on samples of one kind, they save on others of that kind, on every thread,
//! and never confuse.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use codec::{
    Codec, CodecId, DICTIONARY_BYTES_MAX, DecodeDictionary, DecodeError, DictionaryNumber, EncodeDictionary, Workspace,
    ZstdLevel, evaluate, train,
};

/// A page of records that share their words but not their values.
fn page(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut bytes = Vec::new();
    while bytes.len() < len {
        let level = ["information", "warning", "error"][(next() % 3) as usize];
        let line = format!(
            "{{\"time\":\"2026-11-{:02}T08:{:02}\",\"severity\":\"{level}\",\"component\":\"checkpoint\",\"request\":\"{:016x}\"}}\n",
            next() % 30 + 1,
            next() % 60,
            next()
        );
        bytes.extend_from_slice(line.as_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn pages(seeds: std::ops::Range<u64>, len: usize) -> Vec<Vec<u8>> {
    seeds.map(|seed| page(seed, len)).collect()
}

fn borrowed(pages: &[Vec<u8>]) -> Vec<&[u8]> {
    pages.iter().map(Vec::as_slice).collect()
}

fn trained() -> Vec<u8> {
    train(&borrowed(&pages(1..400, 1024)), 8 << 10).unwrap()
}

fn level(level: u8) -> ZstdLevel {
    ZstdLevel::new(level).unwrap()
}

fn limit(raw: usize) -> usize {
    raw * 7 / 8
}

#[test]
fn a_dictionary_saves_on_what_it_was_not_trained_with() {
    let dictionary = trained();
    assert!(dictionary.len() <= 8 << 10);
    let held_out = pages(1000..1050, 1024);
    let result = evaluate(&dictionary, level(3), &borrowed(&held_out), limit).unwrap();
    assert_eq!(result.raw_bytes, 50 * 1024);
    assert!(result.gain_permille() > 100, "{result:?}");
    assert!(result.stored_with < result.stored_without);
}

#[test]
fn the_evaluation_is_what_a_writer_would_store() {
    let dictionary = trained();
    let held_out = pages(1000..1010, 1024);
    let result = evaluate(&dictionary, level(3), &borrowed(&held_out), limit).unwrap();
    let prepared = Arc::new(EncodeDictionary::prepare(DictionaryNumber(9), &dictionary, level(3)).unwrap());
    let mut workspace = Workspace::new();
    let mut dst = vec![0; limit(1024)];
    let (mut with, mut without) = (0, 0);
    for page in &held_out {
        with += workspace.compress_with(&prepared, page, &mut dst).unwrap_or(1024) as u64;
        without += workspace.compress(Codec::Zstd(level(3)), page, &mut dst).unwrap_or(1024) as u64;
    }
    assert_eq!((result.stored_with, result.stored_without), (with, without));
}

#[test]
fn a_dictionary_of_another_kind_gains_nothing() {
    let mut state = 5u32;
    let mut noise = |_| {
        (0..1024)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
            .collect::<Vec<u8>>()
    };
    let other: Vec<Vec<u8>> = (0..20).map(&mut noise).collect();
    let result = evaluate(&trained(), level(3), &borrowed(&other), limit).unwrap();
    // Stored raw either way: no gain, and no loss either.
    assert_eq!(result.gain_permille(), 0);
    assert_eq!(result.stored_with, result.raw_bytes);
}

#[test]
fn too_few_samples_train_nothing() {
    assert!(train(&borrowed(&pages(0..31, 1024)), 8 << 10).is_none());
    assert!(train(&[], 8 << 10).is_none());
    assert!(train(&[&b""[..]; 100], 8 << 10).is_none());
    // Identical tiny samples: there is nothing to learn, and nothing breaks.
    let _ = train(&[&b"a"[..]; 100], 8 << 10);
}

#[test]
fn training_depends_on_the_samples_only() {
    assert_eq!(trained(), trained());
}

#[test]
fn units_with_and_without_and_with_another_dictionary_mix_in_one_workspace() {
    let bytes = [trained(), train(&borrowed(&pages(5000..5400, 4096)), 16 << 10).unwrap()];
    let number = |index: usize| DictionaryNumber(70_000 + index as u32);
    let encode: Vec<_> = (0..2)
        .map(|i| Arc::new(EncodeDictionary::prepare(number(i), &bytes[i], level(3 + 6 * i as u8)).unwrap()))
        .collect();
    let decode: Vec<_> = (0..2).map(|i| Arc::new(DecodeDictionary::prepare(number(i), &bytes[i]).unwrap())).collect();
    let mut lookup = |wanted| decode.iter().find(|d| d.number() == wanted).cloned();
    let mut workspace = Workspace::new();
    let mut dst = vec![0; 8192];
    for round in 0..60 {
        let raw = page(round, 1 + (round as usize * 997) % 4096);
        let mut back = vec![0; raw.len()];
        if round % 3 == 2 {
            let stored = workspace.compress(Codec::Zstd(level(3)), &raw, &mut dst).unwrap();
            workspace.decompress(CodecId(67), &dst[..stored], &mut back).unwrap();
        } else {
            let stored = workspace.compress_with(&encode[round as usize % 3], &raw, &mut dst).unwrap();
            assert_eq!(DictionaryNumber::split(&dst[..stored]).unwrap().0, number(round as usize % 3));
            workspace.decompress_with(CodecId::ZSTD_DICTIONARY, &dst[..stored], &mut back, &mut lookup).unwrap();
            let half = raw.len() / 2;
            let mut part = vec![0; raw.len()];
            workspace
                .decompress_prefix_with(CodecId::ZSTD_DICTIONARY, &dst[..stored], &mut part, half, &mut lookup)
                .unwrap();
            assert_eq!(part[..half], raw[..half]);
        }
        assert_eq!(back, raw, "{round}");
    }
}

/// A frame that did not fit was left half written, and the context accepted no other dictionary:
/// everything after it was stored raw.
#[test]
fn after_a_unit_that_does_not_fit_others_compress_with_and_without() {
    let encode = Arc::new(EncodeDictionary::prepare(DictionaryNumber(1), &trained(), level(3)).unwrap());
    let mut workspace = Workspace::new();
    let raw = page(3, 4096);
    let mut dst = vec![0; 4096];
    for round in 0..4 {
        for small in [10, 300] {
            if round % 2 == 0 {
                assert!(workspace.compress(Codec::Zstd(level(3)), &raw, &mut dst[..small]).is_none());
            } else {
                assert!(workspace.compress_with(&encode, &raw, &mut dst[..small]).is_none());
            }
            assert!(workspace.compress_with(&encode, &raw, &mut dst).is_some(), "{round} {small}: with");
            assert!(workspace.compress(Codec::Zstd(level(3)), &raw, &mut dst[..small]).is_none());
            assert!(workspace.compress(Codec::Zstd(level(1)), &raw, &mut dst).is_some(), "{round} {small}: without");
        }
    }
}

/// A workspace may outlive the caller's hold on a dictionary that it used last.
#[test]
fn a_dropped_dictionary_does_no_harm() {
    let bytes = trained();
    let mut workspace = Workspace::new();
    let raw = page(3, 1024);
    let mut dst = vec![0; 2048];
    let mut back = vec![0; 1024];
    for number in 0..4 {
        let encode = Arc::new(EncodeDictionary::prepare(DictionaryNumber(number), &bytes, level(3)).unwrap());
        let stored = workspace.compress_with(&encode, &raw, &mut dst).unwrap();
        drop(encode);
        workspace
            .decompress_with(CodecId::ZSTD_DICTIONARY, &dst[..stored], &mut back, &mut |n| {
                DecodeDictionary::prepare(n, &bytes).map(Arc::new)
            })
            .unwrap();
        assert_eq!(back, raw);
        let plain = workspace.compress(Codec::Zstd(level(3)), &raw, &mut dst).unwrap();
        workspace.decompress(CodecId(67), &dst[..plain], &mut back).unwrap();
        assert_eq!(back, raw);
        assert!(stored < plain);
    }
}

#[test]
fn a_missing_dictionary_is_named() {
    let encode = Arc::new(EncodeDictionary::prepare(DictionaryNumber(77), &trained(), level(3)).unwrap());
    let mut workspace = Workspace::new();
    let mut dst = vec![0; 2048];
    let stored = workspace.compress_with(&encode, &page(3, 1024), &mut dst).unwrap();
    let error = workspace.decompress(CodecId::ZSTD_DICTIONARY, &dst[..stored], &mut [0; 1024]).unwrap_err();
    assert_eq!(error, DecodeError::MissingDictionary(DictionaryNumber(77)));
    assert!(error.to_string().contains("dictionary 77"), "{error}");
}

#[test]
fn the_wrong_dictionary_and_damage_give_errors_or_the_right_length() {
    let (right, wrong) = (trained(), train(&borrowed(&pages(9000..9400, 512)), 4 << 10).unwrap());
    let encode = Arc::new(EncodeDictionary::prepare(DictionaryNumber(1), &right, level(5)).unwrap());
    let decode = Arc::new(DecodeDictionary::prepare(DictionaryNumber(1), &right).unwrap());
    let other = Arc::new(DecodeDictionary::prepare(DictionaryNumber(1), &wrong).unwrap());
    let mut workspace = Workspace::new();
    let mut dst = vec![0; 2048];
    let raw = page(3, 1024);
    let stored = workspace.compress_with(&encode, &raw, &mut dst).unwrap();
    let mut back = vec![0xa5; 1024 + 16];
    for end in 0..stored {
        let cut = workspace.decompress_with(CodecId::ZSTD_DICTIONARY, &dst[..end], &mut back[..1024], &mut |_| {
            Some(Arc::clone(&decode))
        });
        assert!(cut.is_err(), "{end}");
    }
    for bit in 0..stored * 8 {
        let mut hurt = dst[..stored].to_vec();
        hurt[bit / 8] ^= 1 << (bit % 8);
        for dictionary in [&decode, &other] {
            let _ = workspace.decompress_with(CodecId::ZSTD_DICTIONARY, &hurt, &mut back[..1024], &mut |_| {
                Some(Arc::clone(dictionary))
            });
            assert_eq!(back[1024..], [0xa5; 16]);
        }
    }
}

#[test]
fn nothing_is_written_past_the_limit_and_bounds_are_kept() {
    let encode = Arc::new(EncodeDictionary::prepare(DictionaryNumber(1), &trained(), level(3)).unwrap());
    let mut workspace = Workspace::new();
    let raw = page(3, 1024);
    let mut dst = vec![0xa5; 2048];
    let needed = workspace.compress_with(&encode, &raw, &mut dst).unwrap();
    for limit in 0..=needed {
        let mut dst = vec![0xa5u8; limit + 16];
        let done = workspace.compress_with(&encode, &raw, &mut dst[..limit]);
        assert!(done.is_none_or(|n| n <= limit));
        assert_eq!(dst[limit..], [0xa5; 16]);
    }
    let long = vec![1; DICTIONARY_BYTES_MAX + 1];
    assert!(EncodeDictionary::prepare(DictionaryNumber(1), &long, level(3)).is_none());
    assert!(DecodeDictionary::prepare(DictionaryNumber(1), &long).is_none());
    assert!(DecodeDictionary::prepare(DictionaryNumber(1), &[]).is_none());
    assert!(encode.memory_bytes() > 8 << 10 && encode.memory_bytes() < 1 << 20);
}

/// Bytes that start like a trained dictionary but are not one.
#[test]
fn a_damaged_dictionary_is_refused_or_harmless() {
    let good = trained();
    let raw = page(3, 1024);
    let mut dst = vec![0; 2048];
    let mut back = vec![0; 1024];
    for at in 0..200 {
        let mut hurt = good.clone();
        hurt[at] ^= 0x55;
        let mut workspace = Workspace::new();
        let number = DictionaryNumber(1);
        let (Some(encode), Some(decode)) =
            (EncodeDictionary::prepare(number, &hurt, level(3)), DecodeDictionary::prepare(number, &hurt))
        else {
            continue;
        };
        let decode = Arc::new(decode);
        if let Some(stored) = workspace.compress_with(&Arc::new(encode), &raw, &mut dst) {
            let _ = workspace.decompress_with(CodecId::ZSTD_DICTIONARY, &dst[..stored], &mut back, &mut |_| {
                Some(Arc::clone(&decode))
            });
        }
    }
}
