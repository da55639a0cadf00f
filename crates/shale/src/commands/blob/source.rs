//! The source of an upload: a file, whose holes are skipped instead of read, or any stream that can
//! be read to its end. Owns the thread that reads, because reading waits.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;

use ::blob::Chunk;
use bytes::Bytes;
use futures_util::Stream;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// Size of a read: whole frames, so that none is copied. Holes are skipped in steps of it, so that
/// the data after one still begins with a frame.
const READ_BYTES: u64 = 1 << 20;
/// Number of reads that may wait for the uploader: the disk works while it compresses.
const READS_AHEAD: usize = 4;

/// Source of the bytes.
pub enum Source {
    /// A file, from this byte on. Its size may change while it is read.
    File(File, u64),
    /// A pipe, a terminal, a device.
    Stream(Box<dyn Read + Send>),
}

/// Receives a chunk, and returns whether it accepts more.
type Sink<'a> = &'a mut dyn FnMut(std::io::Result<Chunk>) -> bool;

/// Reads a source in a thread of its own.
pub fn chunks(source: Source) -> impl Stream<Item = std::io::Result<Chunk>> {
    let (sender, receiver) = tokio::sync::mpsc::channel(READS_AHEAD);
    tokio::task::spawn_blocking(move || {
        let sink: Sink<'_> = &mut |chunk| sender.blocking_send(chunk).is_ok();
        let read = match source {
            Source::File(file, from) => read_file(&file, from, sink),
            Source::Stream(input) => read_stream(input, sink),
        };
        if let Err(error) = read {
            sink(Err(error));
        }
    });
    futures_util::stream::unfold(receiver, |mut receiver| async move {
        let chunk = receiver.recv().await?;
        Some((chunk, receiver))
    })
}

fn read_stream(mut input: Box<dyn Read + Send>, sink: Sink<'_>) -> std::io::Result<()> {
    loop {
        let mut chunk = Vec::with_capacity(READ_BYTES as usize);
        input.by_ref().take(READ_BYTES).read_to_end(&mut chunk)?;
        let is_last = chunk.len() < READ_BYTES as usize;
        if chunk.is_empty() || !sink(Ok(Bytes::from(chunk).into())) || is_last {
            return Ok(());
        }
    }
}

fn read_file(file: &File, mut at: u64, sink: Sink<'_>) -> std::io::Result<()> {
    loop {
        let (from, to) = next_data(file, at)?;
        if from > at && !sink(Ok(Chunk::Zeroes(from - at))) {
            return Ok(());
        }
        at = from;
        // Only a read finds the end of a file: those in /proc are longer than their size.
        loop {
            let mut chunk = vec![0; READ_BYTES as usize];
            let len = read_full(file, &mut chunk, at)?;
            chunk.truncate(len);
            at += len as u64;
            if len == 0 || !sink(Ok(Bytes::from(chunk).into())) || len < READ_BYTES as usize {
                return Ok(());
            }
            if at >= to {
                break;
            }
        }
    }
}

/// Fills the buffer, or reads to the end.
fn read_full(file: &File, buffer: &mut [u8], at: u64) -> std::io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], at + done as u64) {
            Ok(0) => break,
            Ok(len) => done += len,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Returns the beginning and the end of the next stretch of a file that is not a hole, from byte
/// `at` on, both rounded to whole reads from `at`; twice the end of the file if there is none.
///
/// Any range that may not be a hole counts as data, even if the file is written and truncated
/// meanwhile.
pub fn next_data(file: &File, at: u64) -> std::io::Result<(u64, u64)> {
    let size = file.metadata()?.len().max(at);
    let from = match seek(file, SeekFrom::Data(at)) {
        Ok(from) => from,
        // Only a hole is left, or the file has just been truncated.
        Err(Errno::NXIO) => {
            let is_still = file.metadata()?.len() == size;
            return Ok(if is_still { (size, size) } else { (at, size) });
        }
        // This file system does not report holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok((at, size)),
        Err(error) => return Err(error.into()),
    };
    let to = seek(file, SeekFrom::Hole(from)).unwrap_or(size);
    let from = from - (from - at) % READ_BYTES;
    Ok((from, at + (to.max(from) - at).next_multiple_of(READ_BYTES)))
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn file(name: &str, size: u64, data: &[(u64, usize)]) -> File {
        // Its name is removed with the directory.
        let dir = testkit::TempDir::new(name);
        let file = File::options().read(true).write(true).create_new(true).open(dir.join("data")).unwrap();
        file.set_len(size).unwrap();
        for (at, len) in data {
            file.write_all_at(&vec![7; *len], *at).unwrap();
        }
        file
    }

    async fn all(source: Source) -> Vec<Chunk> {
        chunks(source).map(Result::unwrap).collect().await
    }

    #[tokio::test]
    async fn holes_are_passed_over_and_every_byte_comes_once() {
        let size = (1 << 40) + 5;
        let file = file("holes", size, &[(3 * MIB + 9, 10), (7 * MIB, 2 << 20), (1 << 39, 1)]);
        for from in [0, 3 * MIB, 8 * MIB, 1 << 40] {
            let (mut at, mut read) = (from, 0);
            for chunk in all(Source::File(file.try_clone().unwrap(), from)).await {
                if let Chunk::Data(bytes) = &chunk {
                    read += bytes.len();
                    let mut expected = vec![0; bytes.len()];
                    assert_eq!(read_full(&file, &mut expected, at).unwrap(), expected.len());
                    assert!(*bytes == expected, "at {at}");
                } else {
                    let mut expected = vec![1; 4096];
                    file.read_exact_at(&mut expected[..chunk.len().min(4096) as usize], at).unwrap();
                    assert!(expected[..chunk.len().min(4096) as usize].iter().all(|byte| *byte == 0), "at {at}");
                }
                at += chunk.len();
            }
            assert_eq!(at, size, "from {from}");
            assert!(read as u64 <= 8 * MIB, "{read} bytes were read");
        }
    }

    #[tokio::test]
    async fn a_stream_and_a_file_without_holes_come_in_whole_reads() {
        let file = file("whole", 0, &[(0, (2 << 20) + 3)]);
        for source in [Source::File(file.try_clone().unwrap(), 0), Source::Stream(Box::new(file.try_clone().unwrap()))]
        {
            use std::io::Seek;
            (&file).seek(std::io::SeekFrom::Start(0)).unwrap();
            let lengths: Vec<u64> = all(source).await.iter().map(Chunk::len).collect();
            assert_eq!(lengths, [MIB, MIB, 3]);
        }
    }
    #[tokio::test]
    async fn a_file_that_says_it_is_empty_is_read() {
        let file = File::open("/proc/self/status").unwrap();
        assert_eq!(file.metadata().unwrap().len(), 0);
        let chunks = all(Source::File(file, 0)).await;
        assert!(matches!(&chunks[..], [Chunk::Data(text)] if text.starts_with(b"Name:")), "{chunks:?}");
    }
}
