//! Auditing a whole blob, where `verify` reads one version: every entry of the life log, every
//! record, the nodes of every live version, and every pack that a live version names, each object
//! once. Owns no state; any number of tasks may audit at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use codec::Workspace;
use futures_util::StreamExt;

use crate::blob::Blob;
use crate::data::extent::{PackRef, Session};
use crate::data::pack::{FrameSet, verify_named};
use crate::data::upload::Tally;
use crate::error::Error;
use crate::protocol::life;
use crate::protocol::walk::Named;

/// Packs read at once: each takes up to 64 MiB of memory.
const PACKS_AT_ONCE: usize = 2;
/// Frames held in memory for comparison with the versions that name them: some 60 MiB. With more
/// frames, the packs are audited in parts, and each part reads the nodes again.
const FRAMES_MAX: usize = 1 << 21;
/// Packs of one part.
const PART_PACKS: usize = 1024;
/// Objects named in a report; a longer list is of no use to a reader.
const WRONG_MAX: usize = 1000;
/// Reads of a pack whose bytes do not match: the link may have flipped some.
const TRIES: u32 = 2;

/// The smallest and the largest possible pack name.
const FIRST: PackRef = PackRef { origin: 0, born: 0, session: Session(0), number: 0 };
const LAST: PackRef = PackRef { origin: 0, born: u64::MAX, session: Session(u128::MAX), number: u32::MAX };

/// The result of an audit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Audited {
    /// Records read, including tombstones.
    pub records: u64,
    /// Live versions.
    pub versions: u64,
    /// Packs of this blob that the live versions name.
    pub packs: u64,
    /// Bytes of these packs.
    pub bytes: u64,
    /// Damaged objects, each with a reason; at most 1000.
    pub wrong: Vec<(String, String)>,
}

impl Audited {
    fn add(&mut self, object: String, why: &Error) {
        if self.wrong.len() < WRONG_MAX {
            self.wrong.push((object, why.to_string()));
        }
    }
}

impl Blob {
    /// Reads every record, and every pack of this blob that a live version names. Verifies all
    /// checksums, and that each pack has the frames that the versions name. The packs of a clone's
    /// origins are left to audits of the origins. `tally.raw` counts the bytes of packs read.
    ///
    /// # Errors
    /// When the store fails. Damage is reported in the result, not as an error.
    pub async fn audit(&self, tally: &Tally) -> Result<Audited, Error> {
        self.audit_by(FRAMES_MAX, PART_PACKS, tally).await
    }

    async fn audit_by(&self, frames_max: usize, part_packs: usize, tally: &Tally) -> Result<Audited, Error> {
        let log = self.log();
        let head = self.refresh().await?;
        let mut audited = Audited::default();
        let pinned = self.audit_pins(&mut audited).await?;
        for number in 1..=log.life {
            match life::read_existing(&log.backend, &log.key, number).await {
                Ok(_) => {}
                Err(error) if is_wrong(&error) => audited.add(log.key.life(number).to_string(), &error),
                Err(error) => return Err(error),
            }
        }
        let (mut named, mut live) = (Named::watching(FIRST..=LAST, frames_max), Vec::new());
        for seq in 1..=head.seq {
            let read = async {
                let record = log.read_existing(seq).await?;
                let is_live = (head.is_live(seq) || pinned.contains(&seq)) && !record.tombstone;
                if is_live {
                    named.add(log, &record).await?;
                }
                Ok((is_live, is_live && record.is_version_as_of(&head)))
            };
            match read.await {
                Ok((is_live, is_version)) => {
                    audited.records += 1;
                    audited.versions += u64::from(is_version);
                    live.extend(is_live.then_some(seq));
                }
                Err(error) if is_wrong(&error) => audited.add(log.key.record(log.inc, seq).to_string(), &error),
                Err(error) => return Err(error),
            }
        }
        if let Some(frames) = named.frames() {
            let packs: Vec<_> = named.packs.into_iter().collect();
            self.audit_packs(&packs, frames, &mut audited, tally).await?;
            return Ok(audited);
        }
        let packs: Vec<_> = named.packs.into_iter().collect();
        for part in packs.chunks(part_packs) {
            let (Some(first), Some(last)) = (part.first(), part.last()) else { continue };
            let mut named = Named::watching(*first..=*last, usize::MAX);
            for seq in &live {
                let record = log.read_existing(*seq).await?;
                if !record.tombstone {
                    named.add(log, &record).await?;
                }
            }
            self.audit_packs(part, named.frames().unwrap_or_default(), &mut audited, tally).await?;
        }
        Ok(audited)
    }

    /// Verifies the pins, and returns the versions that have one.
    async fn audit_pins(&self, audited: &mut Audited) -> Result<BTreeSet<u64>, Error> {
        for error in self.log().pins().await?.damaged {
            if let Error::Damaged { what, .. } = &error {
                audited.add(what.clone(), &error);
            }
        }
        self.log().pinned().await
    }

    /// Verifies packs, each against the frames that versions name in it.
    async fn audit_packs(
        &self,
        packs: &[PackRef],
        mut frames: BTreeMap<PackRef, FrameSet>,
        audited: &mut Audited,
        tally: &Tally,
    ) -> Result<(), Error> {
        let log = self.log();
        let checks = packs.iter().map(|pack| {
            let named = Arc::new(frames.remove(pack).unwrap_or_default());
            async move { (*pack, self.check_pack(pack, named).await) }
        });
        let mut checks = futures_util::stream::iter(checks).buffer_unordered(PACKS_AT_ONCE);
        let mut wrong = BTreeMap::new();
        while let Some((pack, checked)) = checks.next().await {
            audited.packs += 1;
            match checked {
                Ok(bytes) => {
                    audited.bytes += bytes;
                    tally.raw.fetch_add(bytes, Ordering::Relaxed);
                }
                Err(error) if is_wrong(&error) => {
                    wrong.insert(pack, error);
                }
                Err(error) => return Err(error),
            }
        }
        for (pack, error) in wrong {
            audited.add(log.key.pack(log.inc, &pack).to_string(), &error);
        }
        Ok(())
    }

    /// Reads a pack, verifies it and checks that it has the frames that versions name. Returns its
    /// bytes.
    async fn check_pack(&self, pack: &PackRef, named: Arc<FrameSet>) -> Result<u64, Error> {
        let fetcher = self.fetcher();
        let path = fetcher.key.pack(fetcher.inc, pack);
        let mut tries = 0;
        loop {
            let bytes = fetcher.whole(&path).await?;
            let len = bytes.len() as u64;
            let named = named.clone();
            let verify = move |bytes: Bytes| verify_named(&bytes, &named, &mut Workspace::new()).map(|_| ());
            let verified = tokio::task::spawn_blocking(move || verify(bytes)).await;
            match verified.map_err(|_| Error::Refused("the audit was cancelled".into()))? {
                Ok(()) => return Ok(len),
                Err(source) if tries + 1 == TRIES => return Err(Error::Damaged { what: path.to_string(), source }),
                Err(_) => tries += 1,
            }
        }
    }
}

/// Returns whether an error is about stored bytes: damaged, or missing for good.
const fn is_wrong(error: &Error) -> bool {
    error.is_damage() || matches!(error, Error::StoreInconsistent(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::upload::UploadOptions;
    use crate::names::BlobKey;
    use crate::store::connect::Connection;
    use object_store::memory::InMemory;
    use object_store::{ObjectStore, ObjectStoreExt};

    /// Swapped packs are found, both when all frames are compared at once and in parts.
    #[tokio::test]
    async fn exchanged_packs_are_found_part_by_part() {
        let store = Arc::new(InMemory::new());
        let connection = Connection::new(store.clone(), store.clone());
        let blob = Blob::open_or_create(&connection, BlobKey::new("k".into())).await.unwrap();
        for turn in 0..7_u64 {
            // Not compressible, so it does not fit inline in the record.
            let mut state = turn;
            let mut noise = |_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            };
            let data = (0..9000).map(&mut noise).collect::<Vec<_>>();
            let stream = futures_util::stream::iter([Ok(Bytes::from(data))]);
            blob.append(stream, "", &UploadOptions::default()).await.unwrap();
        }
        let listed: Vec<_> = store.list(Some(&blob.log().key.packs(blob.log().inc))).collect().await;
        let mut packs: Vec<_> = listed.into_iter().map(|meta| meta.unwrap().location).collect();
        packs.sort();
        assert_eq!(packs.len(), 7);
        for (frames_max, part_packs) in [(FRAMES_MAX, PART_PACKS), (3, 2), (3, 100)] {
            let found = blob.audit_by(frames_max, part_packs, &Tally::default()).await.unwrap();
            assert_eq!((found.packs, found.wrong), (7, Vec::new()));
        }
        let bytes = store.get(&packs[5]).await.unwrap().bytes().await.unwrap();
        store.put(&packs[2], bytes.into()).await.unwrap();
        for (frames_max, part_packs) in [(FRAMES_MAX, PART_PACKS), (3, 2), (3, 100)] {
            let found = blob.audit_by(frames_max, part_packs, &Tally::default()).await.unwrap();
            let wrong: Vec<_> = found.wrong.iter().map(|(object, _)| object.as_str()).collect();
            assert_eq!(wrong, [packs[2].as_ref()]);
        }
    }
}
