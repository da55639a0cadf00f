//! Other copies of a fragment that is damaged or unreadable (the property `copies`). Owns no state;
//! any thread may call it that may wait for the disk.
//!
//! The copies of a block are fragments of the same object and epoch, at addresses that follow from
//! the block's own (`write::copies`). A copy that exists in that epoch has the content of its
//! original there, so its own checksum is all that has to be verified. It may be divided into other
//! units, because the cleaner handles each copy by itself.

use format::FragmentRef;
use store::base::canary::Canary;
use store::base::scratch::Scratch;
use store::map::Piece;
use store::objects::Object;
use store::objects::level::Level;
use surface::{ErrorKind, Result};
use units::{BlockMask, COPIES_MAX, Epoch, GroupIndex, ObjectId};

use crate::read::Reads;
use crate::read::lacking::MissingGroups;
use crate::read::reader::{Request, Wanted};

impl Reads {
    /// Returns the other copies of some blocks of a group: for each that has all of them, its
    /// fragments. The caller holds [`Reads::readers`].
    pub(crate) fn other_copies(
        &self,
        (object, epoch): (ObjectId, Epoch),
        group: GroupIndex,
        blocks: BlockMask,
    ) -> impl Iterator<Item = Vec<Wanted>> {
        let level = [Level { object, epoch, newest: None, cuts: Vec::new(), image: None }];
        let known = if Canary::CopiesUnused.is_planted() { 0 } else { COPIES_MAX + 1 };
        (0..known).filter(move |number| *number != group.copy()).filter_map(move |number| {
            let group = group.nth_copy(number);
            let pieces = self.map.lookup_stored(&level, group, blocks).ok()?;
            let same_epoch = |piece: &Piece| piece.epoch == epoch;
            let wanted: Vec<_> = pieces.into_iter().filter(same_epoch).map(|piece| Wanted { group, piece }).collect();
            let found = wanted.iter().fold(BlockMask::EMPTY, |mask, wanted| mask.or(wanted.piece.fragment.live));
            (found == blocks).then_some(wanted)
        })
    }

    /// Reads a fragment from another copy, after reading it has failed. Returns whether there was
    /// one. The caller holds [`Reads::readers`].
    pub(crate) fn read_other_copy(
        &self,
        object: &Object,
        wanted: &Wanted,
        scratch: &mut Scratch,
        request: &mut Request<'_>,
    ) -> bool {
        let Piece { object: owner, epoch, fragment: FragmentRef { live, .. } } = wanted.piece;
        let mut others = self.other_copies((owner, epoch), wanted.group, live);
        let has_read = others.any(|copy| {
            copy.iter().all(|wanted| {
                let part = std::slice::from_ref(wanted);
                let read = self.with_payloads(object, part, scratch, &mut |_, payload, codecs, unit| {
                    self.deliver(object, wanted, payload, (codecs, unit), request)
                });
                read.is_ok()
            })
        });
        if has_read {
            self.vitals.counters.reads_of_copies.add(1);
        }
        has_read
    }

    /// Reads fragments one by one, each from another copy if it cannot be read. `error` is the
    /// reason why they could not be read together.
    pub(crate) fn read_each(
        &self,
        object: &Object,
        span: &[Wanted],
        scratch: &mut Scratch,
        request: &mut Request<'_>,
        error: surface::Error,
    ) -> Result<()> {
        if !matches!(error.kind(), ErrorKind::Io | ErrorKind::Corrupt) || MissingGroups::in_chain(&error) {
            return Err(error);
        }
        let mut error = Some(error);
        for wanted in span {
            let read = match error.take_if(|_| span.len() == 1) {
                Some(error) => Err(error),
                None => {
                    let part = std::slice::from_ref(wanted);
                    self.with_payloads(object, part, scratch, &mut |_, payload, codecs, unit| {
                        self.deliver(object, wanted, payload, (codecs, unit), request)
                    })
                }
            };
            if let Err(error) = read
                && !self.read_other_copy(object, wanted, scratch, request)
            {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Returns the verified payload of a fragment, if it can be read. The caller holds
    /// [`Reads::readers`].
    pub(crate) fn payload_alone(&self, object: &Object, wanted: &Wanted) -> Option<Vec<u8>> {
        let mut found = None;
        store::base::scratch::with(|scratch| {
            let part = std::slice::from_ref(wanted);
            self.with_payloads(object, part, scratch, &mut |_, payload, _, _| {
                found = Some(payload.to_vec());
                Ok(())
            })
        })
        .ok()
        .and(found)
    }
}
