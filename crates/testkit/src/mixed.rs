//! Data of several kinds in fixed proportions, the same for a seed on every machine: a test whose
//! outcome depends on how well data compresses must not take the machine's own files.

use crate::{Rng, noise};

/// Bytes of one kind before the next one's turn.
const PIECE_BYTES: usize = 16 << 10;
/// The kinds in rotation: of eight pieces four are text, two are log lines, one is binary records,
/// and one is random bytes. Records come first, because no type of file starts like that.
const TURNS: [Make; 8] = [records, text, lines, text, text, lines, text, random];
/// Words of the texts. The first ones come often, as in a language.
const WORDS: usize = 2048;

/// Makes a piece: from a generator, and the words of texts.
type Make = fn(&mut Rng, &[String], usize) -> Vec<u8>;

/// Returns bytes of mixed kinds: text, log lines, binary records and random bytes.
pub fn mixed(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let words: Vec<String> = (0..WORDS as u64).map(word).collect();
    let mut data = Vec::with_capacity(bytes + PIECE_BYTES);
    for make in TURNS.iter().cycle() {
        if data.len() >= bytes {
            break;
        }
        data.extend(make(&mut rng, &words, PIECE_BYTES));
    }
    data.truncate(bytes);
    data
}

/// A word of 2 to 10 letters: always the same for a number, independent of the seed.
fn word(number: u64) -> String {
    let mut letters = Rng::new(number + 1);
    (0..2 + letters.below(9)).map(|_| char::from(b'a' + letters.below(26).min(letters.below(26)) as u8)).collect()
}

fn text(rng: &mut Rng, words: &[String], bytes: usize) -> Vec<u8> {
    let mut text = String::with_capacity(bytes + 16);
    while text.len() < bytes {
        // The least of three numbers: most words are among the first few hundred.
        let number = (0..3).map(|_| rng.index(words.len())).min().unwrap_or(0);
        text.push_str(&words[number]);
        text.push(if rng.below(12) == 0 { '\n' } else { ' ' });
    }
    let mut text = text.into_bytes();
    text.truncate(bytes);
    text
}

fn lines(rng: &mut Rng, words: &[String], bytes: usize) -> Vec<u8> {
    let mut text = String::with_capacity(bytes + 128);
    let mut second = 1_700_000_000 + rng.below(1 << 20);
    while text.len() < bytes {
        second += rng.below(3);
        let (host, path, status) =
            (rng.below(250), &words[rng.index(64)], [200, 200, 200, 304, 404][rng.below(5) as usize]);
        text.push_str(&format!("{second} 10.0.0.{host} GET /{path}/index.html {status} {}\n", rng.below(20_000)));
    }
    let mut text = text.into_bytes();
    text.truncate(bytes);
    text
}

fn records(rng: &mut Rng, _: &[String], bytes: usize) -> Vec<u8> {
    let mut data = Vec::with_capacity(bytes + 24);
    let mut id = rng.below(1 << 24);
    while data.len() < bytes {
        id += 1 + rng.below(4);
        data.extend((id as u32).to_le_bytes());
        data.extend((rng.below(1000) as u32).to_le_bytes());
        data.extend(rng.below(1 << 40).to_le_bytes());
        data.extend([0; 8]);
    }
    data.truncate(bytes);
    data
}

fn random(rng: &mut Rng, _: &[String], bytes: usize) -> Vec<u8> {
    noise(rng.below(u64::MAX), bytes)
}
