//! Messages of the server during the handshake, appended to `out`.

use super::{
    MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, PAYLOAD_BYTES_MAX, STRING_BYTES_MAX, handshake_flag, option::info,
};

/// Done.
pub const ACK: u32 = 1;
/// An export.
pub const SERVER: u32 = 2;
/// A piece of information about an export.
pub const INFO: u32 = 3;
/// A metadata context.
pub const META_CONTEXT: u32 = 4;
/// This server does not know the option.
pub const ERR_UNSUP: u32 = 0x8000_0001;
/// Refused by a rule of the server.
pub const ERR_POLICY: u32 = 0x8000_0002;
/// The data of the option makes no sense.
pub const ERR_INVALID: u32 = 0x8000_0003;
/// The server's system failed.
pub const ERR_PLATFORM: u32 = 0x8000_0004;
/// Nothing but TLS may be asked for before TLS.
pub const ERR_TLS_REQD: u32 = 0x8000_0005;
/// No such export.
pub const ERR_UNKNOWN: u32 = 0x8000_0006;
/// Too large to process.
pub const ERR_TOO_BIG: u32 = 0x8000_0009;
/// Not possible any more after extended headers were agreed on.
pub const ERR_EXT_HEADER_REQD: u32 = 0x8000_000a;

/// The server's first bytes.
pub fn greeting() -> [u8; 18] {
    let mut bytes = [0; 18];
    bytes[..8].copy_from_slice(&MAGIC.to_be_bytes());
    bytes[8..16].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
    bytes[16..].copy_from_slice(&(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES).to_be_bytes());
    bytes
}

/// Appends a reply of type `kind` to `option`; its data is the concatenation of `parts`.
pub fn put(out: &mut Vec<u8>, option: u32, kind: u32, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|p| p.len()).sum();
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&(length as u32).to_be_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// An error with a text for people, cut at the protocol's limit for strings.
pub fn put_error(out: &mut Vec<u8>, option: u32, kind: u32, message: &str) {
    put(out, option, kind, &[clip(message)]);
}

/// One export of a list.
pub fn put_server(out: &mut Vec<u8>, option: u32, name: &str) {
    put(out, option, SERVER, &[&(name.len() as u32).to_be_bytes(), name.as_bytes()]);
}

/// Size and transmission flags of an export.
pub fn put_info_export(out: &mut Vec<u8>, option: u32, size_bytes: u64, flags: u16) {
    put(out, option, INFO, &[&info::EXPORT.to_be_bytes(), &size_bytes.to_be_bytes(), &flags.to_be_bytes()]);
}

/// A text about an export: its name or its description.
pub fn put_info_text(out: &mut Vec<u8>, option: u32, kind: u16, text: &str) {
    put(out, option, INFO, &[&kind.to_be_bytes(), clip(text)]);
}

/// Sizes of requests: any size works, aligned `preferred` works best.
pub fn put_info_block_size(out: &mut Vec<u8>, option: u32, preferred: u32) {
    let (minimum, maximum) = (1u32.to_be_bytes(), PAYLOAD_BYTES_MAX.to_be_bytes());
    put(out, option, INFO, &[&info::BLOCK_SIZE.to_be_bytes(), &minimum, &preferred.to_be_bytes(), &maximum]);
}

/// A metadata context with its id.
pub fn put_meta_context(out: &mut Vec<u8>, option: u32, id: u32, name: &str) {
    put(out, option, META_CONTEXT, &[&id.to_be_bytes(), name.as_bytes()]);
}

/// The answer to `EXPORT_NAME`, which has no header.
pub fn put_export(out: &mut Vec<u8>, size_bytes: u64, flags: u16, zeroes: bool) {
    out.extend_from_slice(&size_bytes.to_be_bytes());
    out.extend_from_slice(&flags.to_be_bytes());
    if zeroes {
        out.extend_from_slice(&[0; 124]);
    }
}

/// `text` cut at the protocol's limit, between two characters.
pub(super) fn clip(text: &str) -> &[u8] {
    let mut end = text.len().min(STRING_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text.as_bytes()[..end]
}
