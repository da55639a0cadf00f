//! Copies through a client's file: its descriptor is passed over the control connection, and the
//! server copies between file and volume itself. Import and export of files use this, because bytes
//! that pass through a socket are copied twice more and wake two processes for each piece.
//!
//! 1. The client sends a `lend` frame, followed by one byte that carries the descriptor
//!    (SCM_RIGHTS). The server accepts a regular file or a block device, and refuses everything
//!    else: reads and writes of those always end, those of a pipe may block indefinitely.
//! 2. Each `copy-out` frame names a range of the volume: the server reads it and writes it to the
//!    file at the same offset.
//! 3. Each `copy-in` frame names a range of the file: the server reads it, pads its last block with
//!    zeroes, and writes it to the volume.
//!
//! A file on a FUSE mount is neither lent nor accepted: the mount may be the server's own. A thread
//! of the server that waits for its own mount keeps the process from ending, even after kill -9.
//! The client reads or writes such a file itself.
//!
//! The descriptor gives the server the client's rights, no more: the client opened it. The copies
//! are bounded like all frames, so a connection never holds more than one piece, and a client that
//! disconnects ends its copy.

use std::fs::File;
use std::io::{Error as IoError, ErrorKind as IoErrorKind, IoSlice, IoSliceMut, Result as IoResult};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt};

use bytes::Bytes;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use surface::{BlockDevice, Error, ErrorKind, Result, WriteOptions};
use units::BLOCK_BYTES;

use host::read_exact_at;
use operations::kind_of;

/// The byte that carries the descriptor.
const CARRIER: u8 = b'F';

/// Passes a descriptor.
///
/// # Errors
/// I/O errors.
pub(super) fn pass(socket: impl AsFd, file: impl AsFd) -> IoResult<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [file.as_fd()];
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(IoError::other("no room for a file descriptor in the message"));
    }
    let carrier = [CARRIER];
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(&carrier)], &mut control, SendFlags::NOSIGNAL)?;
    if sent == 1 { Ok(()) } else { Err(IoError::from(IoErrorKind::WriteZero)) }
}

/// Receives a descriptor. The inner error is the reason why it cannot be used; the connection
/// continues.
///
/// # Errors
/// I/O errors, and `InvalidData` when something else arrives.
pub(super) fn take(socket: impl AsFd) -> IoResult<Result<File>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut carrier = [0];
    let received = loop {
        let mut buffers = [IoSliceMut::new(&mut carrier)];
        match rustix::net::recvmsg(&socket, &mut buffers, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            result => break result?,
        }
    };
    let passed = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    match passed {
        Some(fd) if received.bytes == 1 && carrier == [CARRIER] => Ok(usable(File::from(fd))),
        _ => Err(IoError::new(IoErrorKind::InvalidData, "an announced file descriptor is missing")),
    }
}

/// Returns whether a file lies on a FUSE mount, served by any process.
///
/// # Errors
/// I/O errors.
pub(super) fn is_on_fuse(file: impl AsFd) -> Result<bool> {
    let failed = |error| Error::from_io("cannot determine the file system of the file", IoError::from(error));
    Ok(rustix::fs::fstatfs(file).map_err(failed)?.f_type == libc::FUSE_SUPER_MAGIC)
}

fn usable(file: File) -> Result<File> {
    if is_on_fuse(&file)? {
        return Err(Error::new(ErrorKind::Invalid, "a file on a FUSE mount cannot be copied by the server"));
    }
    let metadata = file.metadata().map_err(|error| Error::from_io("cannot inspect the passed file", error))?;
    let kind = metadata.file_type();
    if kind.is_file() || kind.is_block_device() {
        return Ok(file);
    }
    Err(Error::new(ErrorKind::Invalid, "only a regular file or a block device can be copied by the server"))
}

fn not_lent() -> Error {
    Error::new(ErrorKind::Invalid, "no file was passed on this connection")
}

/// Copies from the volume to the file. `buffer` belongs to the connection, and grows at most to the
/// size of a frame.
pub(super) fn copy_out(
    device: &dyn BlockDevice,
    file: Option<&File>,
    (offset, length): (u64, usize),
    buffer: &mut Vec<u8>,
) -> Result<()> {
    let file = file.ok_or_else(not_lent)?;
    if buffer.len() < length {
        buffer.resize(length, 0);
    }
    device.read(offset, &mut buffer[..length])?;
    let failed =
        |error| Error::with_source(kind_of(&error), format!("cannot write at byte {offset} of the file"), error);
    file.write_all_at(&buffer[..length], offset).map_err(failed)
}

/// Copies from the file to the volume.
pub(super) fn copy_in(device: &dyn BlockDevice, file: Option<&File>, (offset, length): (u64, usize)) -> Result<()> {
    let file = file.ok_or_else(not_lent)?;
    if !offset.is_multiple_of(BLOCK_BYTES as u64) {
        // Aligned pieces never share a block.
        return Err(Error::new(ErrorKind::Invalid, format!("byte {offset} is not aligned to a block")));
    }
    let failed = |error: IoError| {
        let what = match error.kind() {
            IoErrorKind::UnexpectedEof => {
                format!("the file was truncated while it was read, at byte {offset} or later")
            }
            _ => format!("cannot read at byte {offset} of the file"),
        };
        Error::with_source(kind_of(&error), what, error)
    };
    let data = read_exact_at(file, offset, length, length).map_err(failed)?;
    device.write(offset, Bytes::from(data), WriteOptions::default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_descriptor_is_passed_and_is_the_same_file() {
        let (here, there) = UnixStream::pair().unwrap();
        let dir = testkit::TempDir::new("lent");
        let path = dir.path().join("file");
        let mut file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
        file.write_all(b"what is in it").unwrap();
        pass(&here, &file).unwrap();
        let taken = take(&there).unwrap().unwrap();
        let mut bytes = [0; 13];
        taken.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"what is in it");
    }

    #[test]
    fn pipes_directories_and_nothing_are_refused() {
        let (here, mut there) = UnixStream::pair().unwrap();
        let (reader, _writer) = std::io::pipe().unwrap();
        for odd in [std::os::fd::OwnedFd::from(reader), File::open("/tmp").unwrap().into()] {
            pass(&here, &odd).unwrap();
            assert_eq!(take(&there).unwrap().unwrap_err().kind(), ErrorKind::Invalid);
        }
        // The byte without a descriptor, another byte, and the end of the connection.
        there.write_all(&[CARRIER]).unwrap();
        assert_eq!(take(&here).unwrap_err().kind(), IoErrorKind::InvalidData);
        drop(there);
        assert_eq!(take(&here).unwrap_err().kind(), IoErrorKind::InvalidData);
    }

    #[test]
    fn several_descriptors_at_once_leave_none_behind() {
        let (here, there) = UnixStream::pair().unwrap();
        let file = File::open("/proc/self/exe").unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [file.as_fd(), file.as_fd(), file.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        rustix::net::sendmsg(&here, &[IoSlice::new(&[CARRIER])], &mut control, SendFlags::empty()).unwrap();
        // The kernel closes descriptors that do not fit; one is received.
        assert!(take(&there).unwrap().is_ok());
    }
}
