//! Reading ahead of small files: their units go into the cache before any client asks for them. The
//! front end of a share chooses the files; this owns no state.
//!
//! Steps as in `prefetch`, for all files at once: files that were written together are close to each
//! other in the log, so few reads of the disk fetch many of them. All reads are in flight together.
//! A read that fails, and a unit that is damaged, are left to the client that asks for them, which
//! reports the error.

use std::ops::Range;

use store::base::scratch;
use store::objects::Object;
use units::BLOCK_BYTES;

use crate::read::Reads;
use crate::read::reader::{Wanted, verify};
use crate::read::spans::{EndedSpan, Span, SpanReads, payload_of};
use crate::read::unit_cache::{Claim, Purpose};

/// Reads in flight.
const READS_MAX: usize = 16;

/// A claimed unit, and the end of the data of its file.
struct Load<'a> {
    wanted: Wanted,
    claim: Option<Claim<'a>>,
    end: u64,
}

impl Reads {
    /// Loads the units of files into the cache, each file a range of the object that ends with its
    /// data. Returns the decoded bytes that it began to load.
    pub(crate) fn load_files(&self, object: &Object, files: impl Iterator<Item = Range<u64>>) -> u64 {
        let _in_extents = self.readers.read();
        let mut loads = Vec::new();
        for file in files.filter(|file| !file.is_empty()) {
            let end = file.end;
            let claimed = |wanted, claim| loads.push(Load { wanted, claim: Some(claim), end });
            // A record that cannot be read is reported to the client that needs it.
            let _ = self.claim_range(object, file, claimed);
        }
        loads.sort_unstable_by_key(|load| load.wanted.piece.fragment.location);
        // A location where no data can be is reported to the client that needs it.
        let spans = self.spans(object, &loads, |load| &load.wanted).flatten().collect();
        let bytes = loads.iter().map(|load| u64::from(load.wanted.piece.fragment.count) * BLOCK_BYTES as u64).sum();
        self.load_spans(object, &mut loads, spans);
        bytes
    }

    fn load_spans(&self, object: &Object, loads: &mut [Load<'_>], spans: Vec<Span>) {
        let ring = if spans.len() > 1 { SpanReads::in_ring(self) } else { None };
        let mut reads = ring.unwrap_or_else(|| SpanReads::one_by_one(self));
        let mut spans = spans.into_iter();
        spans.by_ref().take(READS_MAX).for_each(|span| reads.begin(0, span));
        while let Some(EndedSpan { span: Span { fragments, start, len }, is_whole, buf, .. }) = reads.wait() {
            if is_whole {
                self.fill_units(object, &mut loads[fragments], &buf[..len], start);
            } else {
                // Clients that wait for these units read them.
                loads[fragments].iter_mut().for_each(|load| load.claim = None);
            }
            self.buffers.put(buf);
            spans.by_ref().take(1).for_each(|span| reads.begin(0, span));
        }
    }

    /// Verifies, decodes and caches units that were read from byte `start` of the data file on.
    fn fill_units(&self, object: &Object, loads: &mut [Load<'_>], bytes: &[u8], start: u64) {
        scratch::with(|scratch| {
            for Load { wanted, claim, end } in loads {
                let Some(claim) = claim.take() else { continue };
                let payload = payload_of(wanted, bytes, start);
                if verify(wanted.group, &wanted.piece, payload).is_ok()
                    && let Ok(unit) = self.decode_unit(object, wanted, payload, &mut scratch.codecs)
                {
                    self.fill(claim, unit, Purpose::File { end: *end });
                }
            }
        });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use bytes::Bytes;
    use sim::{ContentKind, Machine, Rng, fill_content};
    use surface::{BlockDevice, ErrorKind, WriteOptions};
    use units::{BlockMask, GROUP_BYTES, GroupIndex};

    use super::*;
    use crate::Properties;
    use crate::pool::testing::pool_on;

    /// As the first MiB of each file of a share.
    const WINDOW: u64 = 1 << 20;
    const BYTES: u64 = 3000;

    #[test]
    fn files_written_together_are_read_together_and_a_damaged_one_is_left_out() {
        let machine = Machine::new(16 << 20, 1);
        let pool = pool_on(&machine, machine.disk.handle(), 16 << 20, 0);
        let properties = Properties::from([("compression".to_owned(), "off".to_owned())]);
        pool.create_volume("v", 64 * WINDOW, &properties).unwrap();
        let volume = pool.volume("v").unwrap();
        let mut data = vec![0; BYTES as usize];
        fill_content(&mut Rng::new(1), ContentKind::Random, &mut data);
        for file in 0..32 {
            volume.write(file * WINDOW, Bytes::from(data.clone()), WriteOptions::default()).unwrap();
        }
        pool.flush().unwrap();
        pool.drop_caches();
        let group = GroupIndex(5 * WINDOW / GROUP_BYTES as u64);
        let damaged = pool.core.map.lookup_stored(&volume.object.levels(), group, BlockMask::FULL).unwrap();
        machine.disk.flip_bit(damaged[0].fragment.location + 7, 1);
        let counters = &pool.core.vitals.counters;
        let (before, files) =
            (counters.read_disk_bytes.get(), || (0..32).map(|file| file * WINDOW..file * WINDOW + BYTES));
        assert_eq!(volume.read_files_ahead(files()), 32 * BLOCK_BYTES as u64);
        assert!(counters.read_disk_bytes.get() - before < 40 * BLOCK_BYTES as u64);
        assert_eq!(volume.read_files_ahead(files()), BLOCK_BYTES as u64, "the others are there");
        let read = counters.read_disk_bytes.get();
        let mut buf = vec![1; BYTES as usize];
        for file in (0..32).filter(|file| *file != 5) {
            assert!(volume.read_cached(file * WINDOW, &mut buf).unwrap());
            assert!(buf == data, "file {file}");
        }
        assert_eq!(volume.read(5 * WINDOW, &mut buf).unwrap_err().kind(), ErrorKind::Corrupt);
        assert!(counters.read_disk_bytes.get() - read < 2 * BLOCK_BYTES as u64, "only the damaged one");
        let ahead = [counters.ahead_bytes.get(), counters.ahead_used_bytes.get()];
        assert_eq!(ahead, [31 * BLOCK_BYTES as u64; 2]);
        // They stay for the next reader.
        assert!(volume.read_cached(0, &mut buf).unwrap());
        assert_eq!(counters.ahead_used_bytes.get(), ahead[1], "counted once");
    }

    #[test]
    fn holes_and_ranges_without_data_are_no_files() {
        let machine = Machine::new(16 << 20, 1);
        let pool = pool_on(&machine, machine.disk.handle(), 16 << 20, 0);
        pool.create_volume("v", 4 * WINDOW, &Properties::default()).unwrap();
        let volume = pool.volume("v").unwrap();
        assert_eq!(volume.read_files_ahead([0..BYTES, WINDOW..WINDOW].into_iter()), 0);
    }
}
