//! Messages that a server sends without a request: a header with number 0 whose error field is the
//! code of the message. Pure functions.

/// `FUSE_NOTIFY_INVAL_INODE`.
const INVAL_INODE: i32 = 2;
/// `FUSE_NOTIFY_INVAL_ENTRY`.
const INVAL_ENTRY: i32 = 3;
/// `FUSE_NOTIFY_RESEND`.
const RESEND: i32 = 7;

fn message(code: i32, payload: &[u8]) -> Vec<u8> {
    [&super::reply::header(0, code, payload.len())[..], payload].concat()
}

/// Encodes a request to drop the attributes of a node, and the pages of a range: `length` 0 means
/// everything from `offset` on; a negative `offset` leaves the pages alone. Dirty pages of shared
/// mappings are written first.
pub fn inval_inode(node: u64, offset: i64, length: i64) -> Vec<u8> {
    message(INVAL_INODE, &[node.to_ne_bytes(), offset.to_ne_bytes(), length.to_ne_bytes()].concat())
}

/// Encodes a request to drop a name in a directory.
pub fn inval_entry(parent: u64, name: &[u8]) -> Vec<u8> {
    let length = u32::try_from(name.len()).unwrap_or(0);
    let numbers = [length.to_ne_bytes(), 0_u32.to_ne_bytes()].concat();
    message(INVAL_ENTRY, &[&parent.to_ne_bytes()[..], &numbers, name, &[0]].concat())
}

/// Encodes a request to send again all requests that were taken and not answered.
pub fn resend() -> Vec<u8> {
    message(RESEND, &[])
}
