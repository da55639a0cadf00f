//! Several streams in one: a *set* begins with a chunk that announces the content, followed by the
//! streams, each encoded as if sent alone, with positions of its own, and a final chunk that
//! confirms that all were sent. If a set is interrupted, the receiver has whole snapshots and at
//! most one partial one, which continues with its resume token.

use crate::FormatError;
use crate::cursor::{Cursor, put_text, put_uint};
use crate::stream::{KIND_SET_BEGIN, KIND_SET_END, StreamHead, make_chunk};

/// Version of the set.
pub const STREAM_SET_VERSION: u16 = 1;

/// Announces the content of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamSetBegin {
    /// Streams that follow.
    pub streams: u32,
    /// Volumes that they are of. If it is one, the receiver may call it as it likes.
    pub volumes: u32,
    /// The folder that contains the volumes on the sending side, ending with `/`; empty: none. All
    /// names begin with it.
    pub root: String,
}

/// Totals to check at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamSetEnd {
    /// Streams.
    pub streams: u32,
    /// Their bytes.
    pub bytes: u64,
}

impl StreamSetBegin {
    /// The first chunk of a set. Body: version 2, streams 4, volumes 4, root (2 + bytes).
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        put_uint(&mut body, STREAM_SET_VERSION.into(), 2);
        put_uint(&mut body, self.streams.into(), 4);
        put_uint(&mut body, self.volumes.into(), 4);
        put_text(&mut body, &self.root);
        make_chunk(KIND_SET_BEGIN, &body, 0)
    }

    /// Inverse of [`encode`](Self::encode).
    ///
    /// # Errors
    /// When the chunk is damaged, of another version, or impossible.
    pub fn decode(head: &StreamHead, body: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new("set of streams", body);
        head.check(&cursor, body, 0)?;
        let version = cursor.u16()?;
        if version != STREAM_SET_VERSION {
            return Err(
                cursor.fail(format!("version {version}, this program supports {STREAM_SET_VERSION}: use a newer one"))
            );
        }
        let begin = Self { streams: cursor.u32()?, volumes: cursor.u32()?, root: cursor.text()? };
        cursor.end()?;
        if begin.volumes > begin.streams || (begin.volumes == 0) != (begin.streams == 0) {
            return Err(cursor.fail(format!("{} streams of {} volumes", begin.streams, begin.volumes)));
        }
        if !begin.root.is_empty() && !begin.root.ends_with('/') {
            return Err(cursor.fail("its root is not a folder"));
        }
        Ok(begin)
    }
}

impl StreamSetEnd {
    /// The last chunk of a set. Body: streams 4, their bytes 8. It follows `before` bytes of the
    /// set.
    pub fn encode(&self, before: u64) -> Vec<u8> {
        let mut body = Vec::new();
        put_uint(&mut body, self.streams.into(), 4);
        put_uint(&mut body, self.bytes, 8);
        make_chunk(KIND_SET_END, &body, before)
    }

    /// Inverse of [`encode`](Self::encode).
    ///
    /// # Errors
    /// When the chunk is damaged or not in its place.
    pub fn decode(head: &StreamHead, body: &[u8], before: u64) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new("set of streams", body);
        head.check(&cursor, body, before)?;
        let end = Self { streams: cursor.u32()?, bytes: cursor.u64()? };
        cursor.end()?;
        Ok(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{STREAM_HEAD_BYTES, StreamReader};

    fn parts(chunk: &[u8]) -> (StreamHead, &[u8]) {
        let (head, body) = chunk.split_first_chunk::<STREAM_HEAD_BYTES>().unwrap();
        (StreamHead::decode(head).unwrap(), body)
    }

    #[test]
    fn sets_round_trip_and_notice_damage() {
        let begin = StreamSetBegin { streams: 7, volumes: 2, root: "projects/".to_owned() };
        let bytes = begin.encode();
        let (head, body) = parts(&bytes);
        assert!(head.is_set_begin() && !head.is_begin() && !head.is_set_end());
        assert_eq!(StreamSetBegin::decode(&head, body).unwrap(), begin);
        let end = StreamSetEnd { streams: 7, bytes: 1 << 40 };
        let last = end.encode(99);
        let (last_head, last_body) = parts(&last);
        assert!(last_head.is_set_end());
        assert_eq!(StreamSetEnd::decode(&last_head, last_body, 99).unwrap(), end);
        assert!(StreamSetEnd::decode(&last_head, last_body, 98).is_err());
        for at in 0..bytes.len() * 8 {
            let mut wrong = bytes.clone();
            wrong[at / 8] ^= 1 << (at % 8);
            let (first, rest) = wrong.split_first_chunk::<STREAM_HEAD_BYTES>().unwrap();
            let read = StreamHead::decode(first).and_then(|head| StreamSetBegin::decode(&head, rest));
            assert!(read.is_err(), "bit {at}");
        }
        // It is no chunk of a stream.
        assert!(StreamReader::default().take(&head, body).is_err());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for begin in [
            StreamSetBegin { streams: 1, volumes: 2, root: String::new() },
            StreamSetBegin { streams: 1, volumes: 0, root: String::new() },
            StreamSetBegin { streams: 1, volumes: 1, root: "a".to_owned() },
        ] {
            let bytes = begin.encode();
            let (head, body) = parts(&bytes);
            assert!(StreamSetBegin::decode(&head, body).is_err(), "{begin:?}");
        }
    }
}
