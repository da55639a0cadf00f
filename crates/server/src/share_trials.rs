//! Results of other codecs for a file: compresses its first unit with each of them when a user
//! asks.

use codec::{Codec, UNIT_BYTES_MAX, Workspace};
use engine::FilePart;
use share::Tree;
use units::BLOCK_BYTES;

use report::{OtherLine, Trials};

/// Codecs that are tried: one of each kind, and several levels where they differ much.
const TRIED: [&str; 7] = ["lz4", "lz4hc-9", "gzip-6", "zstd-1", "zstd-3", "zstd-9", "zstd-19"];

/// Tries the first unit of a file; `None` if it has none, or cannot be read.
pub fn of_file(tree: &Tree, node: u64, parts: &[FilePart]) -> Option<Trials> {
    let first = parts.first().filter(|part| part.units > 0)?;
    let raw_bytes = (first.raw_bytes / first.units).min(UNIT_BYTES_MAX as u64);
    // The last block is stored whole, with zeroes after the end.
    let mut raw = vec![0; (raw_bytes as usize).next_multiple_of(BLOCK_BYTES).min(UNIT_BYTES_MAX)];
    tree.read(node, first.offset, &mut raw).ok().filter(|length| *length > 0)?;
    Some(Trials {
        offset: first.offset,
        raw_bytes: raw.len() as u64,
        stored_bytes: first.stored_bytes / first.units,
        others: others(&raw),
    })
}

/// Returns a unit's size with each codec; its raw size where a codec saves nothing.
fn others(raw: &[u8]) -> Vec<OtherLine> {
    let (mut workspace, mut target) = (Workspace::new(), vec![0; raw.len()]);
    let tried = TRIED.iter().filter_map(|name| name.parse::<Codec>().ok());
    let line = |codec: Codec| {
        let stored = workspace.compress(codec, raw, &mut target).unwrap_or(raw.len());
        OtherLine { codec: codec.to_string(), stored_bytes: stored as u64 }
    };
    tried.map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_codec_says_what_it_would_take() {
        let text = b"int main(void) { return 0; }\n".repeat(1130)[..32768].to_vec();
        let told = others(&text);
        assert_eq!(told.len(), TRIED.len());
        for line in &told {
            let codec: Codec = line.codec.parse().unwrap();
            let mut target = vec![0; text.len()];
            let alone = Workspace::new().compress(codec, &text, &mut target).unwrap();
            assert_eq!(line.stored_bytes, alone as u64, "{}", line.codec);
            assert!(alone < text.len() / 10, "{}", line.codec);
        }
        let mut state = 1u32;
        let mut noise = vec![0; 4096];
        noise.fill_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        });
        assert!(others(&noise).iter().all(|line| line.stored_bytes == 4096));
    }
}
