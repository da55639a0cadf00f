//! Source of an import: a regular file with holes, or a stream of bytes. Yields pieces in ascending
//! order.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

use bytes::Bytes;
use surface::{Error, ErrorKind, Result};
use units::BLOCK_BYTES;

use super::PIECE_BYTES;
use operations::{Outcome, path_error};

/// A part of the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Bytes at an offset; whole blocks, but for the last piece of a file or stream that does not
    /// end with one.
    Data {
        /// Where they belong.
        offset: u64,
        /// The bytes.
        data: Bytes,
        /// Number of bytes that come from the source.
        own_bytes: u64,
    },
    /// Bytes at an offset that were not read: the consumer of the piece reads them.
    Range {
        /// Where they are, and where they belong.
        offset: u64,
        /// Number of bytes that come from the source; the last block must be padded with zeroes.
        own_bytes: u64,
    },
    /// Nothing is stored here.
    Hole {
        /// Where it begins.
        offset: u64,
        /// Its length.
        length: u64,
    },
}

/// Something to read.
pub struct Source {
    file: File,
    name: String,
    /// Known for files and devices; none for a stream.
    size_bytes: Option<u64>,
    /// Where the next piece begins.
    position: u64,
    /// End of the data that begins at or before `position`, where holes are known.
    data_end: u64,
    /// Whether the file system reports holes.
    tells_holes: bool,
    /// Pieces are given unread.
    unread: bool,
    /// The first piece of a stream, if its beginning was examined.
    looked_at: Option<Piece>,
}

impl Source {
    /// Opens a file or block device, or `-` for stdin.
    ///
    /// # Errors
    /// `NotFound` and others.
    pub fn open(path: &Path) -> Result<Self> {
        let file = if path == Path::new("-") {
            let stdin = std::io::stdin().as_fd().try_clone_to_owned();
            File::from(stdin.map_err(|error| Error::from_io("cannot use stdin", error))?)
        } else {
            File::open(path).map_err(|error| path_error("cannot open", path, error))?
        };
        let name = if path == Path::new("-") { "stdin".to_owned() } else { path.display().to_string() };
        Self::from_file(file, name)
    }

    /// Wraps an open file, device, pipe or socket.
    ///
    /// # Errors
    /// When it is none of these.
    pub fn from_file(mut file: File, name: String) -> Result<Self> {
        let failed = |error| Error::from_io(format!("cannot access {name}"), error);
        let metadata = file.metadata().map_err(failed)?;
        if metadata.is_dir() {
            return Err(Error::new(ErrorKind::Invalid, format!("{name} is a directory; import takes a file")));
        }
        let kind = metadata.file_type();
        let mut position = 0;
        let size_bytes = if kind.is_file() || kind.is_block_device() {
            // Stdin may be a partly read file: only the rest is imported.
            position = file.stream_position().map_err(failed)?;
            let end = file.seek(SeekFrom::End(0)).map_err(failed)?;
            file.seek(SeekFrom::Start(position)).map_err(failed)?;
            Some(end)
        } else {
            None
        };
        if position > 0 {
            // Offsets would not be those of the volume: read it as a stream.
            return Ok(Self {
                file,
                name,
                size_bytes: None,
                position: 0,
                data_end: 0,
                tells_holes: false,
                unread: false,
                looked_at: None,
            });
        }
        let tells_holes = kind.is_file();
        Ok(Self { file, name, size_bytes, position: 0, data_end: 0, tells_holes, unread: false, looked_at: None })
    }

    /// Its name for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its first bytes, at most `length`; none for a stream, which would lose them.
    pub fn head(&self, length: usize) -> Vec<u8> {
        let mut head = vec![0; length];
        let read = if self.size_bytes.is_some() { self.file.read_at(&mut head, 0).unwrap_or(0) } else { 0 };
        head.truncate(read);
        head
    }

    /// Its first bytes, at most `length`, including those of a stream: they are repeated in its
    /// first piece.
    ///
    /// # Errors
    /// Those of [`next`](Self::next).
    pub fn beginning(&mut self, length: usize, go_on: &dyn Fn() -> bool) -> Outcome<Vec<u8>> {
        if self.size_bytes.is_some() {
            return Ok(self.head(length));
        }
        if self.looked_at.is_none() {
            self.looked_at = self.next_of_stream(go_on)?;
        }
        let Some(Piece::Data { data, .. }) = &self.looked_at else { return Ok(Vec::new()) };
        Ok(data[..data.len().min(length)].to_vec())
    }

    /// Its size; none for a stream, whose size is unknown.
    pub const fn size_bytes(&self) -> Option<u64> {
        self.size_bytes
    }

    /// The file, if it can be read anywhere.
    pub fn file(&self) -> Option<&File> {
        self.size_bytes.map(|_| &self.file)
    }

    /// From now on a file's data is not read: pieces are [`Piece::Range`]s. A stream is always
    /// read.
    pub fn leave_unread(&mut self) {
        self.unread = self.size_bytes.is_some();
    }

    /// Returns the next piece; none at the end. `go_on` is polled while a stream blocks; when it
    /// returns false, the source ends.
    ///
    /// # Errors
    /// I/O errors, and `Io` when a file shrank while it was read.
    pub fn next(&mut self, go_on: &dyn Fn() -> bool) -> Outcome<Option<Piece>> {
        if let Some(piece) = self.looked_at.take() {
            return Ok(Some(piece));
        }
        match self.size_bytes {
            None => self.next_of_stream(go_on),
            Some(size) if self.position >= size => Ok(None),
            Some(size) => self.next_of_file(size).map(Some),
        }
    }

    fn read_error(&self, error: std::io::Error) -> Error {
        Error::from_io(format!("cannot read {}", self.name), error)
    }

    fn next_of_file(&mut self, size: u64) -> Outcome<Piece> {
        if self.position >= self.data_end {
            let data = self.next_data(size);
            let (begin, end) = data.map_err(|error| self.read_error(error))?;
            // Whole blocks, whatever the file system's granularity.
            let begin = begin - begin % BLOCK_BYTES as u64;
            if begin > self.position {
                let hole = Piece::Hole { offset: self.position, length: begin.min(size) - self.position };
                self.position = begin;
                self.data_end = end;
                return Ok(hole);
            }
            self.data_end = end;
        }
        let offset = self.position;
        let end = self.data_end.next_multiple_of(BLOCK_BYTES as u64).min(size);
        // Up to the next multiple of a piece's size, so that no unit of the volume is cut in the
        // middle.
        let room = PIECE_BYTES as u64 - offset % PIECE_BYTES as u64;
        let own_bytes = (end - offset).min(room);
        if self.unread {
            self.position = offset + own_bytes;
            return Ok(Piece::Range { offset, own_bytes });
        }
        let length = usize::try_from(own_bytes).unwrap_or(PIECE_BYTES);
        self.file.seek(SeekFrom::Start(offset)).map_err(|error| self.read_error(error))?;
        let data = host::read_up_to(&self.file, length).map_err(|error| self.read_error(error))?;
        if data.len() < length {
            let message = format!("{} shrank while it was read: it ends before byte {}", self.name, end);
            return Err(Error::new(ErrorKind::Io, message).into());
        }
        self.position = offset + own_bytes;
        Ok(Piece::Data { offset, data: data.into(), own_bytes })
    }

    /// Returns the start and end of the data at or after `position`. Starts at the file's end if
    /// there is none.
    fn next_data(&mut self, size: u64) -> std::io::Result<(u64, u64)> {
        if !self.tells_holes {
            return Ok((self.position, size));
        }
        let begin = match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(self.position)) {
            Ok(begin) => begin,
            // No more data: a hole up to the end, unless the end has moved.
            Err(rustix::io::Errno::NXIO) if self.file.metadata()?.len() < size => {
                return Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "it shrank while it was read"));
            }
            Err(rustix::io::Errno::NXIO) => return Ok((size.next_multiple_of(BLOCK_BYTES as u64), size)),
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::OPNOTSUPP) => {
                self.tells_holes = false;
                return Ok((self.position, size));
            }
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Hole(begin))?;
        Ok((begin.min(size), end.min(size)))
    }

    fn next_of_stream(&mut self, go_on: &dyn Fn() -> bool) -> Outcome<Option<Piece>> {
        let mut data = Vec::with_capacity(PIECE_BYTES);
        while data.len() < PIECE_BYTES {
            if !go_on() {
                return Ok(None);
            }
            if !host::readable(&self.file).map_err(|error| self.read_error(error))? {
                continue;
            }
            match rustix::io::read(&self.file, rustix::buffer::spare_capacity(&mut data)) {
                Ok(0) => break,
                Ok(_) | Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                Err(error) => return Err(self.read_error(error.into()).into()),
            }
        }
        if data.is_empty() {
            return Ok(None);
        }
        let offset = self.position;
        let own_bytes = data.len() as u64;
        self.position += own_bytes;
        Ok(Some(Piece::Data { offset, data: data.into(), own_bytes }))
    }
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Source({}, {:?} bytes)", self.name, self.size_bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use testkit::TempDir;

    use super::*;

    fn pieces(mut source: Source) -> Vec<Piece> {
        std::iter::from_fn(|| source.next(&|| true).unwrap()).collect()
    }

    fn temporary(name: &str) -> (TempDir, std::path::PathBuf, File) {
        let dir = TempDir::new(name);
        let path = dir.join("data");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        (dir, path, file)
    }

    #[test]
    fn holes_are_pieces_and_the_end_is_exact() {
        let (_dir, path, file) = temporary("source-holes");
        file.set_len(10 << 20).unwrap();
        file.write_all_at(&[1; 8192], 3 << 20).unwrap();
        file.write_all_at(&[2; 100], 10 << 20).unwrap();
        let source = Source::open(&path).unwrap();
        let size = source.size_bytes().unwrap();
        assert_eq!(size, (10 << 20) + 100);
        let mut end = 0;
        let mut data_bytes = 0;
        for piece in pieces(source) {
            let (offset, length) = match &piece {
                Piece::Hole { offset, length } => (*offset, *length),
                Piece::Range { .. } => panic!("nobody asked for unread pieces"),
                Piece::Data { offset, data, own_bytes } => {
                    data_bytes += own_bytes;
                    assert!(data.len().is_multiple_of(BLOCK_BYTES) || *offset + data.len() as u64 == size);
                    let filler = if *offset < 10 << 20 { 1 } else { 2 };
                    let own = usize::try_from(*own_bytes).unwrap();
                    assert!(data[..own].iter().all(|b| *b == filler || *b == 0));
                    assert!(data[own..].iter().all(|b| *b == 0));
                    (*offset, *own_bytes)
                }
            };
            assert_eq!(offset, end, "pieces follow each other");
            end += length;
        }
        assert_eq!(end, size);
        assert!(data_bytes >= 8292, "{data_bytes}");
        assert!(data_bytes < 1 << 20, "holes were read as data: {data_bytes}");
    }

    #[test]
    fn a_file_of_nothing_but_a_hole_is_one_hole() {
        let (_dir, path, file) = temporary("source-empty");
        file.set_len(1_000_000).unwrap();
        let all = pieces(Source::open(&path).unwrap());
        let length: u64 = all.iter().map(|p| if let Piece::Hole { length, .. } = p { *length } else { 0 }).sum();
        assert_eq!(length, 1_000_000);
        file.set_len(0).unwrap();
        assert_eq!(pieces(Source::open(&path).unwrap()), []);
    }

    #[test]
    fn a_stream_comes_in_whole_pieces_however_it_is_written() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let total = PIECE_BYTES * 2 + 5000;
        let feeder = std::thread::spawn(move || {
            for chunk in vec![7u8; total].chunks(3333) {
                writer.write_all(chunk).unwrap();
            }
        });
        let source = Source::from_file(File::from(std::os::fd::OwnedFd::from(reader)), "pipe".to_owned()).unwrap();
        assert_eq!(source.size_bytes(), None);
        let lengths: Vec<_> = pieces(source)
            .iter()
            .map(|p| if let Piece::Data { data, own_bytes, .. } = p { (data.len(), *own_bytes) } else { (0, 0) })
            .collect();
        feeder.join().unwrap();
        assert_eq!(lengths, [(PIECE_BYTES, 1 << 20), (PIECE_BYTES, 1 << 20), (5000, 5000)]);
    }

    #[test]
    fn the_beginning_of_a_stream_comes_again_with_its_first_piece() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"QFI\xfb and so on").unwrap();
        drop(writer);
        let file = File::from(std::os::fd::OwnedFd::from(reader));
        let mut source = Source::from_file(file, "pipe".to_owned()).unwrap();
        assert_eq!(source.beginning(4, &|| true).unwrap(), b"QFI\xfb");
        assert_eq!(source.beginning(100, &|| true).unwrap().len(), 14);
        assert!(matches!(source.next(&|| true).unwrap(), Some(Piece::Data { offset: 0, own_bytes: 14, .. })));
        assert_eq!(source.next(&|| true).unwrap(), None);
        let (_dir, path, file) = temporary("source-beginning");
        file.write_all_at(b"QFI\xfb", 0).unwrap();
        assert_eq!(Source::open(&path).unwrap().beginning(100, &|| true).unwrap(), b"QFI\xfb");
    }

    #[test]
    fn a_waiting_stream_can_be_given_up() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let mut source = Source::from_file(File::from(std::os::fd::OwnedFd::from(reader)), "pipe".to_owned()).unwrap();
        let asked = std::cell::Cell::new(0);
        let twice = || {
            asked.set(asked.get() + 1);
            asked.get() < 3
        };
        assert_eq!(source.next(&twice).unwrap(), None);
    }

    #[test]
    fn a_file_that_becomes_shorter_is_an_error() {
        let (_dir, path, file) = temporary("source-shorter");
        file.write_all_at(&[1; 8192], 0).unwrap();
        let mut source = Source::open(&path).unwrap();
        file.set_len(4096).unwrap();
        let outcomes: Vec<_> = std::iter::from_fn(|| source.next(&|| true).transpose()).take(3).collect();
        assert!(outcomes.iter().any(|outcome| outcome.is_err()), "{outcomes:?}");
    }

    #[test]
    fn the_head_is_read_without_moving_on() {
        let (_dir, path, file) = temporary("source-head");
        file.write_all_at(b"CDF\x01 and so on", 0).unwrap();
        let mut source = Source::open(&path).unwrap();
        assert_eq!(source.head(3), b"CDF");
        assert_eq!(source.head(1000).len(), 14);
        assert!(matches!(source.next(&|| true).unwrap(), Some(Piece::Data { offset: 0, own_bytes: 14, .. })));
    }

    #[test]
    fn unread_pieces_are_those_that_would_be_read() {
        let (_dir, path, file) = temporary("source-unread");
        file.set_len(5 << 20).unwrap();
        file.write_all_at(&[1; (1 << 20) + 5000], 1 << 20).unwrap();
        file.write_all_at(&[2; 100], 5 << 20).unwrap();
        let read = pieces(Source::open(&path).unwrap());
        let mut unread = Source::open(&path).unwrap();
        unread.leave_unread();
        let as_ranges: Vec<_> = read
            .into_iter()
            .map(|piece| match piece {
                Piece::Data { offset, own_bytes, .. } => Piece::Range { offset, own_bytes },
                other => other,
            })
            .collect();
        assert!(as_ranges.iter().any(|piece| matches!(piece, Piece::Range { .. })));
        assert_eq!(pieces(unread), as_ranges);
    }

    #[test]
    fn a_directory_is_refused() {
        assert_eq!(Source::open(Path::new("/tmp")).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(Source::open(Path::new("/nonexistent")).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
