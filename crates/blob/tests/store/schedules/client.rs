//! A client: follows the seed, is killed and comes back, and writes down its requests and their
//! answers.

use std::sync::Arc;
use std::time::Duration;

use blob::{
    Action, Backend, BlobKey, CommitOptions, Committer, Error, ExpireRule, Extent, Frame, GcOptions, Log, Op, OpId,
    PackRef, Patch, Piece, Place, Run, Session, expire, gc,
};
use bytes::Bytes;
use object_store::ObjectStoreExt;
use sim::Rng;

use super::history::{Answer, History, Request};
use crate::lying_store::LyingStore;

/// Attempts at one operation: with timeouts of at most a minute, longer than any effect is late.
const TRIES_MAX: usize = 60;

pub struct Client {
    pub backend: Backend,
    pub store: LyingStore,
    pub key: BlobKey,
    pub history: Arc<History>,
    pub rng: Rng,
    pub ops: u64,
    pub collects: bool,
}

impl Client {
    pub async fn run(mut self) {
        let mut committer = self.open().await;
        for _ in 0..self.ops {
            if self.collects && self.rng.percent(40) {
                // A run that the store interrupts leaves garbage, never a hole: the oracle checks.
                let options = GcOptions { upload_max: Duration::ZERO, grace: Duration::ZERO, ..GcOptions::default() };
                let limit = Duration::from_millis(self.rng.between(500, 100_000));
                let _ = tokio::time::timeout(limit, gc(&committer, &options)).await;
            } else if self.collects && self.rng.percent(40) {
                let rule = ExpireRule { keep_last: Some(self.rng.between(1, 2)), ..ExpireRule::default() };
                let _ = expire(&committer, &rule).await;
            } else {
                committer = self.operate(committer).await;
            }
            tokio::time::sleep(Duration::from_millis(self.rng.below(500))).await;
        }
    }

    async fn open(&mut self) -> Committer {
        let timeout = Duration::from_millis(*self.rng.pick(&[300, 3_000, 60_000]));
        loop {
            if let Ok((log, head)) = Log::open_or_create(self.backend.clone(), self.key.clone()).await {
                return Committer::new(log, head, CommitOptions { timeout, folder: None });
            }
        }
    }

    /// Completes one operation through kills and unknown outcomes, and returns the committer that
    /// did it.
    async fn operate(&mut self, mut committer: Committer) -> Committer {
        let id = OpId(u128::from(self.rng.next_u64()) << 64 | u128::from(self.rng.next_u64()));
        let kind = self.rng.below(12);
        let mut data = vec![0; self.rng.between(1, 24) as usize];
        self.rng.fill(&mut data);
        let began = committer.head().await.seq;
        let mut resumed = false;
        let Some(mut op) = self.op(&committer, id, kind, &data).await else { return committer };
        for _ in 0..TRIES_MAX {
            let known = op.clone();
            let answer = {
                let commit = async {
                    if resumed { committer.resume(known, began).await } else { committer.commit(known).await }
                };
                let limit = if self.rng.percent(15) { self.rng.below(400) } else { 300_000 };
                tokio::time::timeout(Duration::from_millis(limit), commit).await
            };
            match answer {
                Ok(Ok(done)) => {
                    self.history.note_answer(id, Answer::Done(done));
                    return committer;
                }
                // Not committed, and the packs may be deleted: upload again.
                Ok(Err(Error::Fenced { .. })) => {
                    let Some(again) = self.op(&committer, id, kind, &data).await else { return committer };
                    op = again;
                }
                Ok(Err(Error::Expired(_) | Error::NoVersion(_))) => {
                    self.history.note_answer(id, Answer::Refused);
                    return committer;
                }
                Ok(Err(Error::Refused(_))) if matches!(op.action, Action::Rewrite(_)) => return committer,
                // Killed, or without an answer: another process resumes it.
                Ok(Err(_)) | Err(_) => {
                    if self.rng.coin() {
                        committer = self.open().await;
                        resumed = true;
                    }
                }
            }
        }
        committer
    }

    /// Uploads the data of an operation, and writes down the request.
    async fn op(&mut self, committer: &Committer, id: OpId, kind: u64, data: &[u8]) -> Option<Op> {
        let head = committer.head().await;
        let new = Op { id, born: u64::MAX, raw: 0, stored: 0, message: String::new(), action: Action::Close };
        let versions = head.live();
        let (request, action, born) = match kind {
            0..=3 => {
                let run = self.upload(committer, head.seq, data).await;
                (Request::Append(data.to_vec()), Action::Append(run), head.seq)
            }
            4..=6 => {
                let run = self.upload(committer, head.seq, data).await;
                let at = self.rng.below(64);
                (Request::Write(at, data.to_vec()), Action::Write { at, run }, head.seq)
            }
            7 => {
                let run = self.upload(committer, head.seq, data).await;
                (Request::Put(data.to_vec()), Action::Put(run), head.seq)
            }
            8 => {
                let size = self.rng.below(80);
                (Request::Resize(size), Action::Resize(size), u64::MAX)
            }
            9 if !versions.is_empty() => {
                let version = *self.rng.pick(&versions);
                let record = committer.log().version(&head, version).await.ok()?;
                let (size, layout) = (record.size, record.layout.clone());
                (Request::Restore, Action::Restore { version, size, layout }, u64::MAX)
            }
            10 if !versions.is_empty() => {
                let (name, version) = (format!("tag-{}", self.rng.below(2)), *self.rng.pick(&versions));
                (Request::Same, Action::Tag { name, version }, u64::MAX)
            }
            _ => {
                // The first piece in another pack.
                let piece = head.layout.pieces().first()?.clone();
                let Piece::Extent(Extent { place: Place::Pack { pack, offset }, skip, len, .. }) = piece.clone() else {
                    return None;
                };
                let stored = self.store.truth(&self.key.pack(committer.log().inc(), &pack))?;
                let from = (offset + skip) as usize;
                let mut run = self.upload(committer, head.seq, &stored[from..from + len as usize]).await;
                run.pieces[0].set_start(piece.start());
                let (from, to) = (piece.start(), piece.end());
                let patch = Patch { from, to, before: vec![piece], after: run.pieces };
                (Request::Same, Action::Rewrite(vec![patch]), head.seq)
            }
        };
        self.history.note_request(id, request);
        Some(Op { born, action, ..new })
    }

    /// Uploads a pack of one raw frame under a new session, until it is acknowledged.
    async fn upload(&mut self, committer: &Committer, born: u64, data: &[u8]) -> Run {
        let session = Session(u128::from(self.rng.next_u64()));
        let pack = PackRef { origin: 0, born, session, number: 0 };
        let path = self.key.pack(committer.log().inc(), &pack);
        while self.store.put(&path, Bytes::copy_from_slice(data).into()).await.is_err() {}
        let len = data.len() as u32;
        let frame = Frame { stored: len, codec: codec::CodecId::RAW, crc: 0 };
        let place = Place::Pack { pack, offset: 0 };
        let extent = Extent { start: 0, len: u64::from(len), skip: 0, tail: len, place, frames: vec![frame] };
        Run { pieces: vec![Piece::Extent(extent)], len: u64::from(len) }
    }
}
