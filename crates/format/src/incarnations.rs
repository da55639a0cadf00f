//! The recorded openings of a pool: void batches may lie past the end of the log that each opening
//! found.

use units::Seq;

use crate::FormatError;
use crate::cursor::{Cursor, put_uint, seal, unseal};

const WHAT: &str = "end of the log";
/// Bytes of an incarnation.
const INCARNATION_BYTES: usize = 16;
/// Most incarnations recorded: as many crashes.
pub const INCARNATIONS_MAX: usize = 128;
/// Set in their number: some were forgotten.
const FLAG_FORGOTTEN: u16 = 1 << 15;
/// The key of [`LogEnd`] in the map store.
pub const KEY_END: &[u8] = b"E";

/// An opening of the pool: its number, and the sequence number of its first batch. Batches of
/// earlier openings from that number on are void.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Incarnation {
    /// Number of the opening.
    pub number: u64,
    /// Sequence number of its first batch.
    pub first_seq: Seq,
}

/// The openings that are remembered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Incarnations {
    /// Those that did not follow an orderly end, oldest first.
    pub known: Vec<Incarnation>,
    /// Number of the newest forgotten incarnation, and first sequence number of the oldest: whether
    /// batches of older openings from there on are valid is unknown.
    pub forgotten: Option<Incarnation>,
}

impl Incarnations {
    /// Adds an opening. One that wrote nothing is superseded by the next one; beyond
    /// [`INCARNATIONS_MAX`] the oldest are forgotten.
    pub fn enter(&mut self, new: Incarnation) {
        if self.known.last().is_some_and(|last| last.number >= new.number) {
            return;
        }
        self.known.retain(|old| old.first_seq < new.first_seq);
        self.known.push(new);
        let over = self.known.len().saturating_sub(INCARNATIONS_MAX);
        for old in self.known.drain(..over) {
            self.forgotten = Some(Self::around(self.forgotten, old));
        }
    }

    /// The forgotten range when `more` is forgotten as well.
    pub fn around(forgotten: Option<Incarnation>, more: Incarnation) -> Incarnation {
        let known = forgotten.unwrap_or(more);
        Incarnation { number: known.number.max(more.number), first_seq: known.first_seq.min(more.first_seq) }
    }

    /// Encodes: their number 2, with bit 15 set if some were forgotten, each 16 (number 8, first
    /// sequence number 8), and 16 for the forgotten ones if flagged.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        let flag = if self.forgotten.is_some() { FLAG_FORGOTTEN } else { 0 };
        put_uint(out, u64::from(self.known.len() as u16 | flag), 2);
        for incarnation in self.known.iter().chain(&self.forgotten) {
            put_uint(out, incarnation.number, 8);
            put_uint(out, incarnation.first_seq.0, 8);
        }
    }

    /// Inverse of [`put`](Self::put).
    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<Self, FormatError> {
        let head = cursor.u16()?;
        let count = usize::from(head & !FLAG_FORGOTTEN);
        if count > INCARNATIONS_MAX || cursor.remaining() < count * INCARNATION_BYTES {
            return Err(cursor.fail(format!("{count} incarnations in {} bytes", cursor.remaining())));
        }
        let mut read = || Ok(Incarnation { number: cursor.u64()?, first_seq: Seq(cursor.u64()?) });
        let known = (0..count).map(|_| read()).collect::<Result<_, _>>()?;
        let forgotten = if head & FLAG_FORGOTTEN != 0 { Some(read()?) } else { None };
        Ok(Self { known, forgotten })
    }
}

/// Final end of an opening's log: it wrote no batch with this number or a greater one, and never
/// will.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogEnd {
    /// Number of the opening.
    pub incarnation: u64,
    /// Sequence number after its last batch.
    pub next_seq: Seq,
}

impl LogEnd {
    /// Encodes: number 8, sequence number 8, crc32c 4.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_uint(&mut out, self.incarnation, 8);
        put_uint(&mut out, self.next_seq.0, 8);
        seal(&mut out);
        out
    }

    /// Decodes and checks.
    ///
    /// # Errors
    /// When the checksum or the length does not hold.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(WHAT, unseal(WHAT, bytes)?);
        let end = Self { incarnation: cursor.u64()?, next_seq: Seq(cursor.u64()?) };
        cursor.end()?;
        Ok(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openings_that_wrote_nothing_are_left_out_and_very_old_ones_leave_a_mark() {
        let mut known = Incarnations::default();
        let mut enter = |number, first| known.enter(Incarnation { number, first_seq: Seq(first) });
        enter(1, 1);
        enter(2, 10);
        enter(3, 10);
        enter(3, 10);
        enter(4, 12);
        let told: Vec<_> = known.known.iter().map(|i| (i.number, i.first_seq.0)).collect();
        assert_eq!((told, known.forgotten), (vec![(1, 1), (3, 10), (4, 12)], None));
        for number in 5..500 {
            known.enter(Incarnation { number, first_seq: Seq(100 + number) });
        }
        assert_eq!((known.known.len(), known.known[0].number), (INCARNATIONS_MAX, 372));
        assert_eq!(known.forgotten, Some(Incarnation { number: 371, first_seq: Seq(1) }));
    }

    #[test]
    fn they_round_trip_with_and_without_forgotten_ones() {
        let one = |number| Incarnation { number, first_seq: Seq(7 * number) };
        for forgotten in [None, Some(one(9))] {
            let known = Incarnations { known: (10..10 + INCARNATIONS_MAX as u64).map(one).collect(), forgotten };
            let mut bytes = Vec::new();
            known.put(&mut bytes);
            let mut cursor = Cursor::new(WHAT, &bytes);
            assert_eq!(Incarnations::read(&mut cursor).unwrap(), known);
            cursor.end().unwrap();
            assert!(Incarnations::read(&mut Cursor::new(WHAT, &bytes[..bytes.len() - 1])).is_err());
        }
    }

    #[test]
    fn the_end_round_trips_and_notices_damage() {
        let end = LogEnd { incarnation: 3, next_seq: Seq(77) };
        let bytes = end.encode();
        assert_eq!(LogEnd::decode(&bytes).unwrap(), end);
        crate::cursor::expect_every_bit_to_count(&bytes, |bytes| LogEnd::decode(bytes).is_err());
    }
}
