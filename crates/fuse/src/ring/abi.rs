//! The part of the FUSE protocol that is specific to rings: `include/uapi/linux/fuse.h` of Linux
//! 6.14 and later (protocol 7.42). All numbers are in the machine's byte order. No I/O, no state.

use crate::wire::{IN_HEADER_BYTES, OUT_HEADER_BYTES, u32_at, u64_at};

/// Offset of the operation's arguments in `struct fuse_uring_req_header`.
const OP_IN: usize = 128;
/// Bytes reserved for them.
const OP_IN_BYTES: usize = 128;
/// Offset of `commit_id` of `struct fuse_uring_ent_in_out`, which follows them.
const COMMIT_ID: usize = 264;
/// Offset of its `payload_sz`.
const PAYLOAD_BYTES: usize = 272;
/// Bytes of `struct fuse_uring_req_header`.
pub(super) const REQUEST_HEADER_BYTES: usize = 288;

/// `FUSE_IO_URING_CMD_REGISTER` of `enum fuse_uring_cmd`.
pub(super) const CMD_REGISTER: u32 = 1;
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`.
pub(super) const CMD_COMMIT_AND_FETCH: u32 = 2;

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}

/// Returns the operation of a message of the kernel.
pub(super) fn opcode_of(message: &[u8]) -> u32 {
    u32_at(message, 4)
}

/// Returns the number of the request that a message makes or answers.
pub(super) fn unique_of(message: &[u8]) -> u64 {
    u64_at(message, 8)
}

/// Returns the error of an answer: 0, or a negative errno.
#[cfg(test)]
pub(super) fn error_of(answer: &[u8]) -> i32 {
    u32_at(answer, 4).cast_signed()
}

/// The fields of `struct fuse_uring_req_header`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RingRequest {
    /// The operation.
    pub(super) opcode: u32,
    /// The number of the request.
    pub(super) unique: u64,
    /// The number by which the kernel finds the request when it is answered.
    pub(super) commit_id: u64,
    /// Bytes of arguments after the first one, which is in the header.
    pub(super) payload_bytes: usize,
}

/// Reads `struct fuse_uring_req_header`.
pub(super) fn asked(header: &[u8]) -> RingRequest {
    RingRequest {
        opcode: opcode_of(header),
        unique: unique_of(header),
        commit_id: u64_at(header, COMMIT_ID),
        payload_bytes: u32_at(header, PAYLOAD_BYTES) as usize,
    }
}

/// Copies the request's header and its first argument, whose memory the reply reuses; `None` if the
/// lengths are inconsistent.
pub(super) fn parts(header: &[u8], payload_bytes: usize) -> Option<([u8; IN_HEADER_BYTES], Vec<u8>)> {
    let total = u32_at(header, 0) as usize;
    let first = total.checked_sub(IN_HEADER_BYTES)?.checked_sub(payload_bytes)?;
    let copy = header.get(..IN_HEADER_BYTES)?.try_into().ok()?;
    let place = header.get(OP_IN..OP_IN + OP_IN_BYTES)?;
    Some((copy, place.get(..first)?.to_vec()))
}

/// Turns the header into that of an answer: `error` is 0 or a negative errno.
pub(super) fn answer(header: &mut [u8], unique: u64, error: i32, payload_bytes: usize) {
    let payload_bytes = u32::try_from(payload_bytes).unwrap_or(0);
    put(header, 0, &(OUT_HEADER_BYTES as u32).saturating_add(payload_bytes).to_ne_bytes());
    put(header, 4, &error.to_ne_bytes());
    put(header, 8, &unique.to_ne_bytes());
    put(header, PAYLOAD_BYTES, &payload_bytes.to_ne_bytes());
}

/// Encodes `struct fuse_uring_cmd_req` for the command area of a submission.
pub(super) fn command(queue: u16, commit_id: u64) -> [u8; 80] {
    let mut command = [0; 80];
    put(&mut command, 8, &commit_id.to_ne_bytes());
    put(&mut command, 16, &queue.to_ne_bytes());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(total: u32, payload_bytes: u32) -> [u8; REQUEST_HEADER_BYTES] {
        let mut header = [0; REQUEST_HEADER_BYTES];
        put(&mut header, 0, &total.to_ne_bytes());
        put(&mut header, 4, &crate::wire::opcode::READDIR.to_ne_bytes());
        put(&mut header, 8, &77_u64.to_ne_bytes());
        for (index, byte) in header[OP_IN..OP_IN + OP_IN_BYTES].iter_mut().enumerate() {
            *byte = index as u8;
        }
        put(&mut header, COMMIT_ID, &78_u64.to_ne_bytes());
        put(&mut header, PAYLOAD_BYTES, &payload_bytes.to_ne_bytes());
        header
    }

    #[test]
    fn a_request_is_read_where_the_kernel_puts_it() {
        let asked = asked(&header(50, 3));
        assert_eq!(
            asked,
            RingRequest { opcode: crate::wire::opcode::READDIR, unique: 77, commit_id: 78, payload_bytes: 3 }
        );
    }

    #[test]
    fn a_request_has_header_and_argument_apart() {
        let (copy, first) = parts(&header(40 + 7 + 3, 3), 3).unwrap();
        assert_eq!((&first[..], opcode_of(&copy), unique_of(&copy)), (&b"\x00\x01\x02\x03\x04\x05\x06"[..], 28, 77));
        // Less than the header, less than the payload, more than fits for the first argument.
        assert_eq!(parts(&header(39, 0), 0), None);
        assert_eq!(parts(&header(42, 3), 3), None);
        assert_eq!(parts(&header(40 + 129, 0), 0), None);
    }

    #[test]
    fn an_answer_says_how_long_it_is_in_both_places() {
        let mut header = header(50, 3);
        answer(&mut header, 77, -5, 9);
        assert_eq!((u32_at(&header, 0), error_of(&header), unique_of(&header)), (25, -5, 77));
        assert_eq!(u32_at(&header, PAYLOAD_BYTES), 9);
    }
}
