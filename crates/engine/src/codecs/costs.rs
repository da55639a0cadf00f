//! The table of codec costs, shared by all threads: one word for each cell, read and replaced
//! without a lock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use format::{decode_learned, encode_learned};
use policy::{CELLS, Key, Learned, Power, Table};

/// Index of the word that is not a cell of the table: the power of a busy CPU.
const POWER_INDEX: u16 = u16::MAX;
const _: () = assert!(CELLS <= POWER_INDEX as usize);

pub(crate) struct Costs {
    cells: Box<[AtomicU64]>,
    /// [`Power::bits`]; 0: never calibrated.
    power: AtomicU64,
    changed: AtomicBool,
}

impl Costs {
    /// Restores the costs stored by a checkpoint. Without them, or if they cannot be decoded,
    /// learning starts over, which only costs time.
    pub(crate) fn new(kept: Option<&[u8]>) -> Self {
        let costs = Self {
            cells: (0..CELLS).map(|_| AtomicU64::new(0)).collect(),
            power: AtomicU64::new(0),
            changed: AtomicBool::new(false),
        };
        for (index, word) in kept.and_then(|bytes| decode_learned(bytes).ok()).unwrap_or_default() {
            let cell = if index == POWER_INDEX { Some(&costs.power) } else { costs.cells.get(usize::from(index)) };
            if let Some(cell) = cell {
                cell.store(word, Ordering::Relaxed);
            }
        }
        costs
    }

    /// Encodes the table for a checkpoint, if anything has changed since the last one.
    pub(crate) fn encode_if_changed(&self) -> Option<Vec<u8>> {
        if !self.changed.swap(false, Ordering::Relaxed) {
            return None;
        }
        let words = self.cells.iter().map(|cell| cell.load(Ordering::Relaxed));
        let power = (POWER_INDEX, self.power.load(Ordering::Relaxed));
        let words = (0u16..).zip(words).chain([power]);
        let cells: Vec<(u16, u64)> = words.filter(|(_, word)| *word != 0).collect();
        Some(encode_learned(&cells))
    }

    /// Power of a busy CPU; nominal before a calibration.
    pub(crate) fn power(&self) -> Power {
        Power::from_bits(self.power.load(Ordering::Relaxed))
    }

    /// Sets the power found by a calibration.
    pub(crate) fn set_power(&self, power: Power) {
        self.power.store(power.bits(), Ordering::Relaxed);
        self.changed.store(true, Ordering::Relaxed);
    }
}

impl Table for Costs {
    fn cell(&self, key: Key) -> Learned {
        Learned(self.cells[key.index()].load(Ordering::Relaxed))
    }
    fn update(&self, key: Key, cell: Learned) {
        self.cells[key.index()].store(cell.0, Ordering::Relaxed);
        self.changed.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use codec::CodecId;
    use policy::{Class, SizeClass};

    #[test]
    fn what_was_learned_survives_and_damage_only_costs_it() {
        let costs = Costs::new(None);
        assert!(costs.encode_if_changed().is_none());
        let key = Key { codec: CodecId::LZ4, class: Class::DENSE, size: SizeClass::of(4096) };
        for _ in 0..50 {
            costs.learn_time(key, 4096, 9000);
            costs.learn_savings(key.class, key.size, &[(key.codec, 0.25)]);
        }
        assert_eq!(costs.power(), Power::NOMINAL);
        let power = Power::measured(7_000_000, 1_000_000_000).unwrap();
        costs.set_power(power);
        let mut kept = costs.encode_if_changed().unwrap();
        assert_eq!(Costs::new(Some(&kept)).power(), power);
        assert!(costs.encode_if_changed().is_none());
        assert_eq!(Costs::new(Some(&kept)).estimate(key), costs.estimate(key));
        kept[5] ^= 1;
        assert_eq!(Costs::new(Some(&kept)).estimate(key), Costs::new(None).estimate(key));
        assert_eq!(Costs::new(Some(&kept)).power(), Power::NOMINAL);
    }
}
