//! A writer's hints about its data, and their effect on a unit. Owns how far a hint is trusted; the
//! writer decides which hints to give (for a share, its tree).

use codec::{Codec, CodecId};
use policy::{Compression, Settings, codec_fits, probe};
use store::base::canary::Canary;
use store::buffer::write_buffer::DirtyRun;
use store::objects::file_layout::is_in_window;
use surface::{Advice, Hint};
use units::{BlockIndex, BlockMask};

use crate::codecs::regions::Place;

/// Returns the hint of the newest data among runs of a group: they are of one file, whose hint may
/// have changed.
pub(crate) fn hint_of(runs: &[DirtyRun], wanted: BlockMask) -> Hint {
    let touches = |run: &&DirtyRun| run.data.is_some() && !run.mask().and(wanted).is_empty();
    // Data that is being sorted has none.
    let hints = runs.iter().filter(touches).map(|run| run.hint);
    hints.max_by_key(|hint| Hint { copies: 0, ..*hint } != Hint::default()).unwrap_or_default()
}

/// Returns in how many more copies data is stored that lies in these runs of a group.
pub(crate) fn copies_of(runs: &[DirtyRun], wanted: BlockMask) -> u8 {
    let touches = |run: &&DirtyRun| run.data.is_some() && !run.mask().and(wanted).is_empty();
    runs.iter().filter(touches).map(|run| run.hint.copies).max().unwrap_or(0)
}

/// Returns the region whose memory applies to such data: small files of a kind share one.
pub(crate) fn place_of(first: BlockIndex, hint: Hint) -> Place {
    if hint.kind != 0 && is_in_window(first) { Place::of_kind(hint.kind) } else { Place::of(first) }
}

/// Returns the part of its object for which dictionaries are trained with such data: small files of
/// a kind are one.
pub(crate) fn taught_by(first: BlockIndex, hint: Hint) -> Place {
    if Canary::KindsTaughtTogether.is_planted() { Place::of(first) } else { place_of(first, hint) }
}

/// Returns whether a codec is only the guess of a default rule, and one that a dictionary could
/// help.
pub(crate) fn may_be_helped(hint: Hint, codec: Codec) -> bool {
    matches!((hint.how, codec), (Advice::Guess(_), Codec::Zstd(_)))
}

/// The codec of that number.
fn known(number: u8) -> Option<Codec> {
    Codec::all().find(|codec| codec.id() == CodecId(number))
}

/// Returns the compression of a unit with this hint. `is_helped`: there are dictionaries for units
/// of its size, which gain more than a codec of a default rule alone.
pub(crate) fn compression_of(hint: Hint, settings: &Settings, raw: &[u8], is_helped: bool) -> Compression {
    match hint.how {
        Advice::Usual => settings.compression,
        Advice::Auto => Compression::Auto,
        Advice::Codec(number) => known(number).map_or(settings.compression, Compression::Fixed),
        Advice::Guess(number) => match known(number) {
            Some(Codec::Zstd(_)) if is_helped => Compression::Auto,
            Some(codec) if codec_fits(codec, probe(raw).class) => Compression::Fixed(codec),
            _ => Compression::Auto,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_believed_as_far_as_the_data_bears_it_out() {
        let mut state = 1u32;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .take(32768)
        .collect();
        let text = b"int main(void) { return 0; }\n".repeat(1130)[..32768].to_vec();
        let lz4: Settings = Settings { compression: Compression::Fixed(Codec::Lz4), ..Settings::default() };
        let fixed = |text: &str| Compression::Fixed(text.parse().unwrap());
        let (zle, zstd) = (CodecId::ZLE.0, "zstd-3".parse::<Codec>().unwrap().id().0);
        for (how, raw, is_helped, expected) in [
            (Advice::Usual, &text, false, fixed("lz4")),
            (Advice::Auto, &text, false, Compression::Auto),
            (Advice::Codec(zle), &text, true, fixed("zle")),
            (Advice::Codec(250), &text, false, fixed("lz4")),
            (Advice::Guess(zle), &text, false, Compression::Auto),
            (Advice::Guess(zle), &noise, false, fixed("zle")),
            (Advice::Guess(zstd), &text, false, fixed("zstd-3")),
            (Advice::Guess(zstd), &text, true, Compression::Auto),
            (Advice::Guess(zstd), &noise, false, Compression::Auto),
            (Advice::Guess(250), &text, false, Compression::Auto),
        ] {
            assert_eq!(
                compression_of(Hint { how, ..Hint::default() }, &lz4, raw, is_helped),
                expected,
                "{how:?} {is_helped}"
            );
        }
    }
}
