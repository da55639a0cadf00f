//! Looking at a blob as a whole, where `verify` looks at one version: every entry of the life log,
//! every record, the nodes of every live version, and every pack that one of these names, each
//! object once. Owns no state.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use codec::Workspace;
use futures_util::StreamExt;

use crate::blob::Blob;
use crate::error::Error;
use crate::extent::PackRef;
use crate::life;
use crate::pack::verify_pack;
use crate::survey::is_damage;
use crate::upload::Tally;
use crate::walk::Named;

/// Packs that are read at once: each takes up to 64 MiB of memory.
const PACKS_AT_ONCE: usize = 2;
/// Objects that are named in a report; the rest is of no use to a reader.
const WRONG_MAX: usize = 1000;
/// How often a pack is read whose bytes do not match: the link may have turned some over.
const TRIES: u32 = 2;

/// What an audit found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Audited {
    /// Records read, tombstones among them.
    pub records: u64,
    /// Versions that are live.
    pub versions: u64,
    /// Packs of this blob that these name, and their bytes.
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
    /// Reads every record, and every pack of this blob that a live version names, and verifies all
    /// checksums. Packs of the blobs that this one was cloned from are theirs to audit. `tally.raw`
    /// tells how many bytes of packs were read.
    ///
    /// # Errors
    /// When the store fails. Damage is no error; it is reported.
    pub async fn audit(&self, tally: &Tally) -> Result<Audited, Error> {
        let log = self.log();
        let head = self.refresh().await?;
        let mut audited = Audited::default();
        for number in 1..=log.life {
            match life::known(&log.world, &log.key, number).await {
                Ok(_) => {}
                Err(error) if is_wrong(&error) => audited.add(log.key.life(number).to_string(), &error),
                Err(error) => return Err(error),
            }
        }
        let mut named = Named::default();
        for seq in 1..=head.seq {
            let read = async {
                let record = log.known(seq).await?;
                let is_live = head.is_live(seq) && !record.tombstone;
                if is_live {
                    named.add(log, &record).await?;
                }
                Ok(is_live && record.is_version())
            };
            match read.await {
                Ok(is_version) => {
                    audited.records += 1;
                    audited.versions += u64::from(is_version);
                }
                Err(error) if is_wrong(&error) => audited.add(log.key.record(log.inc, seq).to_string(), &error),
                Err(error) => return Err(error),
            }
        }
        let packs = named.packs.into_iter().map(|pack| async move { (pack, self.check_pack(&pack).await) });
        let mut checks = futures_util::stream::iter(packs).buffer_unordered(PACKS_AT_ONCE);
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
        Ok(audited)
    }

    /// Reads a pack and verifies it alone; returns its bytes.
    async fn check_pack(&self, pack: &PackRef) -> Result<u64, Error> {
        let fetcher = self.fetcher();
        let path = fetcher.key.pack(fetcher.inc, pack);
        let mut tries = 0;
        loop {
            let bytes = fetcher.whole(&path).await?;
            let len = bytes.len() as u64;
            let verify = move |bytes: Bytes| verify_pack(&bytes, &mut Workspace::new()).map(|_| ());
            let verified = tokio::task::spawn_blocking(move || verify(bytes)).await;
            match verified.map_err(|_| Error::Refused("the audit was given up".into()))? {
                Ok(()) => return Ok(len),
                Err(source) if tries + 1 == TRIES => return Err(Error::Damaged { what: path.to_string(), source }),
                Err(_) => tries += 1,
            }
        }
    }
}

/// Tells whether an error is about stored bytes: damaged, or denied for good.
const fn is_wrong(error: &Error) -> bool {
    is_damage(error) || matches!(error, Error::StoreLies(_))
}
