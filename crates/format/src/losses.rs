//! The pool's record of repairs that dropped data which was, or may have been, flushed.

use crate::FormatError;
use crate::cursor::{Cursor, put_text, put_uint, seal, unseal};

const WHAT: &str = "note of losses";
/// Key of the losses in the map store; may be missing.
pub const KEY_LOSSES: &[u8] = b"A";
/// Losses that are remembered: the newest. A repair with loss is an event that an administrator
/// acts upon, not a habit.
pub const LOSSES_MAX: usize = 16;
/// Most bytes stored of a description: about a hundred paths.
pub const LOSS_TEXT_BYTES_MAX: usize = 16_000;

const ACKNOWLEDGED: u8 = 1;
/// Programs that do not know it take the loss for one that is not acknowledged.
const UNTOLD: u8 = 2;

/// One repair that lost something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LossNote {
    /// When, in seconds since 1970.
    pub unix_s: u64,
    /// Whether an administrator has acknowledged it.
    pub is_acknowledged: bool,
    /// Whether the repair has not reported it yet: if the repair was killed, the next one reports
    /// it.
    pub is_untold: bool,
    /// The loss, in words.
    pub text: String,
}

impl LossNote {
    /// A loss that was reported when it was accepted.
    pub const fn new(unix_s: u64, text: String) -> Self {
        Self { unix_s, is_acknowledged: false, is_untold: false, text }
    }
}

/// Encodes the newest ones: number 2, each as time 8, state 1 (1: acknowledged, 2: not reported
/// yet), text (2 + bytes); crc32c 4.
pub fn encode_losses(losses: &[LossNote]) -> Vec<u8> {
    let newest = &losses[losses.len().saturating_sub(LOSSES_MAX)..];
    let mut out = Vec::new();
    put_uint(&mut out, newest.len() as u64, 2);
    for loss in newest {
        put_uint(&mut out, loss.unix_s, 8);
        let state = if loss.is_acknowledged { ACKNOWLEDGED } else { u8::from(loss.is_untold) * UNTOLD };
        put_uint(&mut out, state.into(), 1);
        put_text(&mut out, &loss.text[..loss.text.floor_char_boundary(LOSS_TEXT_BYTES_MAX)]);
    }
    seal(&mut out);
    out
}

/// Decodes and checks.
///
/// # Errors
/// When the checksum or a length does not hold.
pub fn decode_losses(bytes: &[u8]) -> Result<Vec<LossNote>, FormatError> {
    let mut cursor = Cursor::new(WHAT, unseal(WHAT, bytes)?);
    let mut losses = Vec::new();
    for _ in 0..cursor.u16()? {
        let (unix_s, state) = (cursor.u64()?, cursor.u8()?);
        let (is_acknowledged, is_untold) = (state == ACKNOWLEDGED, state == UNTOLD);
        losses.push(LossNote { unix_s, is_acknowledged, is_untold, text: cursor.text()? });
    }
    cursor.end()?;
    Ok(losses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_losses_round_trip_and_notice_damage() {
        let loss = |n: usize| LossNote {
            unix_s: n as u64,
            is_acknowledged: n % 3 == 1,
            is_untold: n % 3 == 2,
            text: "ü".repeat(n * 1000),
        };
        let losses: Vec<_> = (0..LOSSES_MAX + 4).map(loss).collect();
        let bytes = encode_losses(&losses);
        let decoded = decode_losses(&bytes).unwrap();
        assert_eq!(decoded.len(), LOSSES_MAX);
        assert!(decoded.iter().zip(&losses[4..]).all(|(a, b)| a.unix_s == b.unix_s && b.text.starts_with(&a.text)));
        let states =
            |notes: &[LossNote]| -> Vec<_> { notes.iter().map(|n| (n.is_acknowledged, n.is_untold)).collect() };
        assert_eq!(states(&decoded), states(&losses[4..]));
        assert!(decoded.iter().any(|loss| loss.text.len() < 2 * loss.unix_s as usize * 1000), "none is too long");
        assert!(decoded.iter().all(|loss| loss.text.len() <= LOSS_TEXT_BYTES_MAX));
        let short = encode_losses(&losses[..2]);
        crate::cursor::expect_every_bit_to_count(&short, |bytes| decode_losses(bytes).is_err());
    }
}
