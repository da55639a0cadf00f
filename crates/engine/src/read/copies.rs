//! Other copies of a fragment that is damaged or unreadable (the property `copies`). Owns no state;
//! any thread may call it that may wait for the disk.
//!
//! The copies of a block are fragments of the same object and epoch, at addresses that follow from
//! the block's own (`write::copies`). A copy that exists in that epoch has the content of its
//! original there, so its own checksum is all that has to be verified. It may be divided into other
//! units, because the cleaner handles each copy by itself.

use codec::Workspace;
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
use crate::read::reader::Wanted;

/// Uses the payload of a fragment, with a workspace and room for the unit.
pub(crate) type UseAny<'a> = &'a mut dyn FnMut(&Wanted, &[u8], &mut Workspace, &mut [u8]) -> Result<()>;

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

    /// Reads the fragments of a span, verifies each, and passes it with its payload to `each`; instead
    /// of one that cannot be read or used, the fragments of another copy. The caller holds
    /// [`Reads::readers`].
    ///
    /// # Errors
    /// Those of [`with_payloads`](Self::with_payloads) for data of which no copy can be used.
    pub(crate) fn with_payloads_or_copies(
        &self,
        object: &Object,
        span: &[Wanted],
        scratch: &mut Scratch,
        each: UseAny<'_>,
    ) -> Result<()> {
        let mut rest = span;
        while !rest.is_empty() {
            let mut done = 0;
            let read = self.with_payloads(object, rest, scratch, &mut |index, payload, codecs, unit| {
                each(&rest[index], payload, codecs, unit)?;
                done = index + 1;
                Ok(())
            });
            let Err(error) = read else { return Ok(()) };
            let is_damage = matches!(error.kind(), ErrorKind::Io | ErrorKind::Corrupt);
            if !is_damage || MissingGroups::in_chain(&error) || !self.use_other_copy(object, &rest[done], scratch, each)
            {
                return Err(error);
            }
            rest = &rest[done + 1..];
        }
        Ok(())
    }

    /// Passes the fragments of another copy of a fragment to `each`. Returns whether there was one.
    fn use_other_copy(&self, object: &Object, wanted: &Wanted, scratch: &mut Scratch, each: UseAny<'_>) -> bool {
        let Piece { object: owner, epoch, fragment: FragmentRef { live, .. } } = wanted.piece;
        let has_read = self.other_copies((owner, epoch), wanted.group, live).any(|copy| {
            // All of it, or nothing.
            copy.iter().all(|wanted| self.is_intact(object, wanted, scratch))
                && copy.iter().all(|wanted| {
                    let part = std::slice::from_ref(wanted);
                    let read = self.with_payloads(object, part, scratch, &mut |_, payload, codecs, unit| {
                        each(wanted, payload, codecs, unit)
                    });
                    read.is_ok()
                })
        });
        if has_read {
            self.vitals.counters.reads_of_copies.add(1);
        }
        has_read
    }

    fn is_intact(&self, object: &Object, wanted: &Wanted, scratch: &mut Scratch) -> bool {
        self.with_payloads(object, std::slice::from_ref(wanted), scratch, &mut |_, _, _, _| Ok(())).is_ok()
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
