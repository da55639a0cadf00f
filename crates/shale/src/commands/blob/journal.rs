//! State of an interrupted upload: a file in the user's state directory, one for each blob and
//! source. Owns its lines. It is made when an upload is longer than a pack or two, locked while it
//! runs, and removed when it is done.
//!
//! The first line is a JSON document that names the upload; each other one is a pack that the store
//! has acknowledged, in hexadecimal digits preceded by their hash. An incomplete line ends the
//! usable part. Each line is on the disk before the next step: after a crash the next process finds
//! the operation under its name and does not repeat it.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use ::blob::{Blob, DataHash, FRAME_BYTES, Finished, Journal, OpId, Uploading};
use bytes::Bytes;
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::failure;
use super::source::next_data;
use operations::Outcome;

/// Content of the first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    /// Identity of the upload, in one text: store, key, source, command, properties.
    upload: String,
    incarnation: String,
    born: u64,
    op: String,
}

/// An upload that a later process can resume.
pub struct Resumable {
    /// Its state for the library.
    pub uploading: Uploading,
    /// Position in the source where it resumes.
    pub from: u64,
    /// Objects that earlier processes have stored, and their bytes.
    pub known: (u64, u64),
    path: PathBuf,
}

impl Resumable {
    /// Removes the file: the upload is done, or cannot be resumed.
    pub fn finish(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The file, locked.
struct Lines(Mutex<File>);

impl Journal for Lines {
    fn finished(&self, finished: &Finished) {
        let bytes = finished.encode();
        let line = format!("{:032x} {}\n", DataHash::of_frame(&bytes), hex(&bytes));
        let mut file = self.0.lock();
        // A journal that cannot be written only costs another upload.
        let _ = file.write_all(line.as_bytes()).and_then(|()| file.sync_data());
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
    digits.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect()
}

fn parse(line: &str) -> Option<Finished> {
    let (hash, bytes) = line.strip_suffix('\n')?.split_once(' ')?;
    let bytes = unhex(bytes)?;
    (u128::from_str_radix(hash, 16).ok()? == DataHash::of_frame(&bytes)).then(|| Finished::decode(&bytes)).flatten()
}

/// Returns the directory of persistent state on desktops: `$XDG_STATE_HOME`, else `~/.local/state`.
fn directory() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = set("XDG_STATE_HOME").or_else(|| set("HOME").map(|home| home.join(".local/state")))?;
    Some(state.join("shale/uploads"))
}

/// Finds an earlier process's upload of `source`, or begins one. `None`: there is no place to store
/// it, or another process is uploading the same.
pub async fn open(blob: &Blob, upload: String, source: &File) -> Outcome<Option<Resumable>> {
    let Some(directory) = directory() else { return Ok(None) };
    let path = directory.join(format!("{:032x}", DataHash::of_frame(upload.as_bytes())));
    if std::fs::create_dir_all(&directory).is_err() {
        return Ok(None);
    }
    let opened = OpenOptions::new().read(true).append(true).create(true).open(&path);
    let Ok(mut file) = opened else { return Ok(None) };
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(None);
    }
    let mut text = String::new();
    let _ = file.read_to_string(&mut text);
    let mut lines = text.split_inclusive('\n');
    let header = lines.next().and_then(|line| serde_json::from_str::<Header>(line).ok());
    let incarnation = blob.log().inc().to_string();
    let known = header.filter(|header| header.upload == upload && header.incarnation == incarnation);
    if let Some(header) = known
        && let Ok(op) = u128::from_str_radix(&header.op, 16)
        && let Ok(data) = source.try_clone()
    {
        let all: Vec<(usize, Finished)> = lines.map_while(|line| Some((line.len(), parse(line)?))).collect();
        let checked = tokio::task::spawn_blocking(move || same(data, all)).await;
        if let Some((head, done, bytes)) = checked.ok().flatten() {
            let first = text.split_inclusive('\n').next().map_or(0, str::len);
            let _ = file.set_len((first + bytes) as u64);
            let from = done.last().map_or(0, |finished| finished.to);
            let known = (done.len() as u64, done.last().map_or(0, |finished| finished.stored));
            let journal = Arc::new(Lines(Mutex::new(file)));
            let uploading = Uploading::resume(blob, header.born, OpId(op), head, done, journal).map_err(failure)?;
            return Ok(Some(Resumable { uploading, from, known, path }));
        }
    }
    let kept = file.try_clone().ok().map(|file| Arc::new(Lines(Mutex::new(file))));
    let Some(journal) = kept else { return Ok(None) };
    let uploading = Uploading::begin(blob, journal).await.map_err(failure)?;
    let header = Header { upload, incarnation, born: uploading.born(), op: uploading.op().to_string() };
    let line = serde_json::to_string(&header).unwrap_or_default() + "\n";
    if file.set_len(0).and_then(|()| file.write_all(line.as_bytes())).and_then(|()| file.sync_data()).is_err() {
        return Ok(None);
    }
    Ok(Some(Resumable { uploading, from: 0, known: (0, 0), path }))
}

/// Returns the beginning of the data, the packs whose data the file has now, and the length of
/// their lines; `None` if there are none.
fn same(source: File, all: Vec<(usize, Finished)>) -> Option<(Bytes, Vec<Finished>, usize)> {
    let (mut head, mut done, mut bytes, mut at) = (Bytes::new(), Vec::new(), 0, 0);
    let mut frame = vec![0; FRAME_BYTES as usize];
    // A hole need not be read: its end, and the end of the data after it.
    let (mut hole_end, mut data_end, zeroes) = (0, 0, DataHash::of_frame(&frame));
    'packs: for (length, finished) in all {
        let mut hash = DataHash::default();
        if finished.number as usize != done.len() || finished.to < at {
            break;
        }
        while at < finished.to {
            let part = &mut frame[..(finished.to - at).min(u64::from(FRAME_BYTES)) as usize];
            let end = at + part.len() as u64;
            if at >= data_end {
                let Ok(found) = next_data(&source, at) else { break 'packs };
                (hole_end, data_end) = found;
            }
            let is_hole = part.len() == FRAME_BYTES as usize && end <= hole_end;
            if !is_hole && source.read_exact_at(part, at).is_err() {
                break 'packs;
            }
            if at == 0 {
                head = Bytes::copy_from_slice(&part[..part.len().min(policy::HEAD_BYTES)]);
            }
            hash.add(if is_hole { zeroes } else { DataHash::of_frame(part) });
            at = end;
        }
        if hash.finish() != finished.hash {
            break;
        }
        bytes += length;
        done.push(finished);
    }
    (!done.is_empty()).then_some((head, done, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(number: u32, to: u64, data: &[&[u8]]) -> Finished {
        let mut hash = DataHash::default();
        data.iter().for_each(|frame| hash.add(DataHash::of_frame(frame)));
        Finished { number, to, stored: 7, hash: hash.finish(), pieces: ::blob::Layout::default() }
    }

    #[test]
    fn a_line_that_is_cut_or_changed_is_none() {
        let bytes = finished(3, 9, &[b"x"]).encode();
        let line = format!("{:032x} {}\n", DataHash::of_frame(&bytes), hex(&bytes));
        assert_eq!(parse(&line), Some(finished(3, 9, &[b"x"])));
        assert!((0..line.len()).all(|cut| parse(&line[..cut]).is_none()));
        assert_eq!(parse(&line.replacen('3', "4", 1)), None);
    }

    #[test]
    fn only_packs_of_the_same_data_count() {
        let dir = testkit::TempDir::new("journal");
        let path = dir.join("data");
        let frame = FRAME_BYTES as usize;
        let data: Vec<u8> = (0..3 * frame).map(|at| (at / 7) as u8).collect();
        std::fs::write(&path, &data).unwrap();
        let first = finished(0, 2 * frame as u64, &[&data[..frame], &data[frame..2 * frame]]);
        let good = finished(1, 3 * frame as u64, &[&data[2 * frame..]]);
        let bad = finished(1, 3 * frame as u64, &[&data[..frame]]);
        let run = |all: Vec<Finished>| {
            let all = all.into_iter().map(|finished| (10, finished)).collect();
            same(File::open(&path).unwrap(), all).map(|(_, done, bytes)| (done.len(), bytes))
        };
        assert_eq!(run(vec![first.clone(), good]), Some((2, 20)));
        assert_eq!(run(vec![first.clone(), bad.clone()]), Some((1, 10)));
        assert_eq!(run(vec![bad]), None);
        assert_eq!(run(vec![finished(0, 9 * frame as u64, &[])]), None);
        // A hole is equivalent to zeroes.
        let sparse = File::options().write(true).truncate(true).open(&path).unwrap();
        sparse.set_len(40 * frame as u64).unwrap();
        sparse.write_all_at(&data[..frame], 30 * frame as u64).unwrap();
        let zeroes = vec![0; frame];
        let mut frames = vec![&zeroes[..]; 40];
        frames[30] = &data[..frame];
        assert_eq!(run(vec![finished(0, 40 * frame as u64, &frames)]), Some((1, 10)));
        frames[5] = &data[..frame];
        assert_eq!(run(vec![finished(0, 40 * frame as u64, &frames)]), None);
    }
}
