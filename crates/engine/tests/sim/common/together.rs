//! Reads of a device that are under way together.

use std::cell::RefCell;
use std::rc::Rc;

use surface::{BlockDevice, PendingRead, Result};

type Results = Rc<RefCell<Vec<Option<Result<Vec<u8>>>>>>;

struct Read {
    index: usize,
    offset: u64,
    data: Vec<u8>,
    results: Results,
}

impl PendingRead for Read {
    fn offset(&self) -> u64 {
        self.offset
    }

    fn buf(&mut self) -> &mut [u8] {
        &mut self.data
    }

    fn finish(self: Box<Self>, result: Result<()>) {
        let Self { index, data, results, .. } = *self;
        let earlier = results.borrow_mut()[index].replace(result.map(|()| data));
        assert!(earlier.is_none(), "HARNESS: read {index} ended twice");
    }
}

/// Reads ranges, given as offset and length; returns the results in order.
pub fn read_together(device: &dyn BlockDevice, ranges: &[(u64, usize)]) -> Vec<Result<Vec<u8>>> {
    let results = Results::default();
    results.borrow_mut().resize_with(ranges.len(), || None);
    let mut rest = ranges.iter().enumerate();
    device.read_many(&mut || {
        let (index, (offset, len)) = rest.next()?;
        Some(Box::new(Read { index, offset: *offset, data: vec![0xee; *len], results: results.clone() }))
    });
    let results = std::mem::take(&mut *results.borrow_mut());
    results.into_iter().map(|result| result.expect("HARNESS: a read never ended")).collect()
}

/// Reads one range in about that many pieces, of as many lengths; the first error, if there is any.
/// Of whole blocks each stays whole: others may be writing.
pub fn read_in_pieces(device: &dyn BlockDevice, offset: u64, buf: &mut [u8], pieces: usize) -> Result<()> {
    let is_whole = offset.is_multiple_of(4096) && buf.len().is_multiple_of(4096);
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < buf.len() {
        let number = ranges.len() + 1;
        let len = (buf.len() * number * 2 / (pieces * (pieces + 1))).max(1);
        let len = if is_whole { len.next_multiple_of(4096) } else { len }.min(buf.len() - at);
        ranges.push((offset + at as u64, len));
        at += len;
    }
    let mut at = 0;
    for piece in read_together(device, &ranges) {
        let piece = piece?;
        buf[at..at + piece.len()].copy_from_slice(&piece);
        at += piece.len();
    }
    Ok(())
}
