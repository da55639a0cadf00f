//! Encoding and decoding of requests and replies on the control socket. No sockets here.
//!
//! Request: `{"version":1,"request":{"op":"create","volume":"vm",...}}`. Reply:
//! `{"version":1,"reply":{...}}` or `{"version":1,"error":{"kind":"not-found","message":"..."}}`.

use std::io::BufRead;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use surface::{Error, ErrorKind, Result};

use crate::catalogue::Request;
use crate::reply::Reply;

/// Version of the protocol. Raised when a request or reply changes its meaning; new requests alone
/// do not raise it.
pub const VERSION: u32 = 1;

/// Longest line. A list of 10,000 volumes with properties takes about 4 MiB; this leaves room, and
/// limits the memory that a peer can make us use.
pub const LINE_BYTES_MAX: usize = 16 << 20;

#[derive(Serialize, Deserialize)]
struct ErrorDocument {
    kind: String,
    message: String,
}

#[derive(Serialize, Deserialize)]
struct Envelope<T> {
    version: u32,
    #[serde(flatten)]
    body: T,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Outgoing<'a> {
    Request(&'a Request),
    Reply(&'a Reply),
    Error(ErrorDocument),
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Incoming {
    Request(Request),
    Reply(Reply),
    Error(ErrorDocument),
}

fn encode(body: Outgoing<'_>) -> Result<Vec<u8>> {
    let mut line = serde_json::to_vec(&Envelope { version: VERSION, body })
        .map_err(|error| Error::with_source(ErrorKind::Invalid, "a control message cannot be encoded", error))?;
    if line.len() >= LINE_BYTES_MAX {
        let message = format!("a control message of {} bytes is longer than {LINE_BYTES_MAX}", line.len());
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    line.push(b'\n');
    Ok(line)
}

fn decode(line: &[u8]) -> Result<Incoming> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    // The version first: a message of another version may not parse at all.
    let malformed = |error| Error::with_source(ErrorKind::Invalid, "a control message cannot be understood", error);
    let Version { version } = serde_json::from_slice(line).map_err(malformed)?;
    if version != VERSION {
        let message = format!(
            "the other side of the control socket speaks version {version}, this program {VERSION}; \
             use the same version of shale on both sides"
        );
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    serde_json::from_slice(line).map(|envelope: Envelope<Incoming>| envelope.body).map_err(malformed)
}

/// Decodes the request of a preview. One of a preview is refused before it is decoded: that would
/// take as much stack as they are nested.
pub(crate) fn previewed<'de, D: Deserializer<'de>>(given: D) -> std::result::Result<Box<Request>, D::Error> {
    let document = Value::deserialize(given)?;
    if document.get("op").and_then(Value::as_str) == Some("preview") {
        return Err(D::Error::custom("a preview of a preview"));
    }
    serde_json::from_value(document).map(Box::new).map_err(D::Error::custom)
}

/// The line of a request.
///
/// # Errors
/// When it is too long.
pub fn encode_request(request: &Request) -> Result<Vec<u8>> {
    encode(Outgoing::Request(request))
}

/// The line of a reply, or of the error instead of it.
///
/// # Errors
/// When it is too long.
pub fn encode_reply(reply: &Result<Reply>) -> Result<Vec<u8>> {
    match reply {
        Ok(reply) => encode(Outgoing::Reply(reply)),
        Err(error) => {
            let document = ErrorDocument { kind: error.kind().name().to_owned(), message: error.to_string() };
            encode(Outgoing::Error(document))
        }
    }
}

/// The request of a line.
///
/// # Errors
/// `Invalid` for nonsense, `Unsupported` for another version.
pub fn decode_request(line: &[u8]) -> Result<Request> {
    match decode(line)? {
        Incoming::Request(request) => Ok(request),
        _ => Err(Error::new(ErrorKind::Invalid, "a request was expected on the control socket")),
    }
}

/// The reply of a line.
///
/// # Errors
/// The error that the server sent, or one about the line.
pub fn decode_reply(line: &[u8]) -> Result<Reply> {
    match decode(line)? {
        Incoming::Reply(reply) => Ok(reply),
        Incoming::Error(document) => Err(Error::new(ErrorKind::by_name(&document.kind), document.message)),
        Incoming::Request(_) => Err(Error::new(ErrorKind::Invalid, "a reply was expected on the control socket")),
    }
}

/// Reads one line of at most [`LINE_BYTES_MAX`] bytes, without its end; none at the end of the
/// stream.
///
/// # Errors
/// I/O errors; `InvalidData` for a line that is too long or ends in the middle.
pub fn read_line(reader: &mut impl BufRead) -> std::io::Result<Option<Vec<u8>>> {
    use std::io::{Error, ErrorKind::InvalidData, ErrorKind::UnexpectedEof, Read};
    let mut line = Vec::new();
    reader.by_ref().take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line)?;
    match line.pop() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(line)),
        Some(_) if line.len() + 1 >= LINE_BYTES_MAX => Err(Error::new(InvalidData, "a control message is too long")),
        Some(_) => Err(Error::new(UnexpectedEof, "a control message ends in the middle")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::estimates::EstimateWish;
    use crate::objects::{ListWish, Which};
    use crate::streams::{ImportWish, ReceiveWish, SendWish, SetWish};
    use report::{JobFault, JobKind, JobPace, JobWish, StatusReport};

    #[test]
    fn requests_round_trip() {
        let requests = [
            Request::Hello,
            Request::Create {
                volume: "vm".to_owned(),
                size_bytes: 1 << 40,
                properties: BTreeMap::from([("compression".to_owned(), "zstd-3".to_owned())]),
                parents: true,
            },
            Request::Destroy {
                object: Which::Known { id: 7, name: "vm".to_owned() },
                recursive: false,
                force: true,
                if_match: Some("7-ab".to_owned()),
            },
            Request::GiveUp { title: "vm@s".to_owned() },
            Request::Preview {
                request: Box::new(Request::Rollback { snapshots: vec![Which::Id(9)], recursive: true, force: true }),
            },
            Request::Snapshot { object: Which::Id(u64::MAX), name: "s".to_owned() },
            Request::SnapshotFolder { folder: "a/b".into(), name: "s".to_owned() },
            Request::SnapshotTogether { snapshots: vec!["a/b@s".to_owned(), "c@t".to_owned()] },
            Request::CreateFolder { folder: "a/b".to_owned(), properties: BTreeMap::new(), parents: false },
            Request::Folders,
            Request::Rollback { snapshots: vec!["vm@s".into()], recursive: true, force: false },
            Request::Hold { object: "vm@s".into(), tag: "t".to_owned() },
            Request::Release { object: "vm@s".into(), tag: "t".to_owned() },
            Request::Holds { object: Some("vm".into()) },
            Request::Bookmark { object: "vm@s".into(), name: "s".to_owned() },
            Request::Bookmarks { object: None },
            Request::Place { volume: "vm".to_owned(), to: [7; 16], from: None },
            Request::PlanSend(SetWish {
                of: "vm*@s".to_owned(),
                from: Some("#b".to_owned()),
                all: true,
                below: false,
                resume: None,
                thin: true,
            }),
            Request::Snapshots { object: Some("a".into()), name: Some("s".to_owned()), below: true },
            Request::Diff { object: "vm".into(), from: "vm@s".into(), start: 1 << 60 },
            Request::Resize { object: "17".into(), size_bytes: 4096, shrink: false, force: false, if_match: None },
            Request::Grow { capacity_bytes: 1 << 40 },
            Request::Shrink { capacity_bytes: 1 << 30, background: false },
            Request::List,
            Request::Status,
            Request::Reload,
            Request::Get { object: None },
            Request::Set {
                object: Some(Which::Id(3)),
                if_match: None,
                changes: BTreeMap::from([("unit".to_owned(), None)]),
            },
            Request::Checkpoint,
            Request::Acknowledge,
            Request::SortReport,
            Request::ScrubReport,
            Request::RecompressReport {
                object: "vm".into(),
                mode: Some("archive".to_owned()),
                path: Some("a".to_owned()),
            },
            Request::Explain { object: "vm".into(), from: 1 << 40, count: 7 },
            Request::ExplainRegion { object: "vm".into(), offset: 4096 },
            Request::ExplainFile { object: "home".into(), path: "a/b.c".to_owned() },
            Request::Usage { object: "home@monday".into(), path: String::new() },
            Request::Trace { count: 100 },
            Request::TraceEnd,
            Request::Traffic { object: Some("vm@monday".into()) },
            Request::StartJob {
                wish: JobWish::Recompress {
                    volume: "home".to_owned(),
                    mode: Some("archive".to_owned()),
                    path: Some("a".to_owned()),
                    pace: JobPace { rate: Some(u64::MAX), restart: true },
                },
                background: true,
            },
            Request::Jobs,
            Request::WatchJob { id: u64::MAX, seen: Some(3), patience_ms: 200 },
            Request::CancelJob { id: 1, interrupted: true },
            Request::RegisterJob { kind: JobKind::Send, target: Some("vm@s".to_owned()) },
            Request::TellJob { bytes_done: 3, bytes_total: None },
            Request::FinishJob {
                bytes_done: 3,
                fault: Some(JobFault { kind: "full".to_owned(), message: "no room".to_owned() }),
            },
            Request::Send(SendWish {
                snapshot: Some("vm@s".to_owned()),
                from: None,
                resume: Some("x".to_owned()),
                thin: true,
            }),
            Request::Receive(ReceiveWish { volume: "vm".to_owned(), properties: BTreeMap::new(), force: true }),
            Request::ImportTree(ImportWish { share: "home".to_owned(), properties: BTreeMap::new() }),
            Request::Receives,
            Request::Bulk { object: Which::known("vm", Some(7)) },
            Request::ListObjects(ListWish { cursor: Some("[7,8]".to_owned()), ..ListWish::default() }),
            Request::Object { object: Which::Id(7), usage: true },
            Request::Estimate { object: Which::Id(7) },
            Request::StartEstimate(EstimateWish {
                path: Some("a".to_owned()),
                choices: Some(vec!["lz4".to_owned()]),
                background: false,
                ..EstimateWish::of("vm".into())
            }),
        ];
        for request in requests {
            let line = encode_request(&request).unwrap();
            assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
            assert_eq!(decode_request(&line[..line.len() - 1]).unwrap(), request);
        }
    }

    #[test]
    fn replies_and_errors_round_trip() {
        let status = StatusReport { capacity_bytes: u64::MAX, ratio: Some(2.5), ..StatusReport::default() };
        let reply = Reply::Status(Box::new(status));
        assert_eq!(decode_reply(&encode_reply(&Ok(reply.clone())).unwrap()).unwrap(), reply);
        assert_eq!(decode_reply(&encode_reply(&Ok(Reply::Done)).unwrap()).unwrap(), Reply::Done);
        for name in [
            "invalid",
            "not-found",
            "exists",
            "in-use",
            "full",
            "corrupt",
            "io",
            "read-only",
            "unsupported",
            "conflict",
        ] {
            let kind = ErrorKind::by_name(name);
            assert_eq!(kind.name(), name);
            let line = encode_reply(&Err(Error::new(kind, "volume \"x\"\nnewline"))).unwrap();
            let error = decode_reply(&line).unwrap_err();
            assert_eq!((error.kind(), error.to_string().as_str()), (kind, "volume \"x\"\nnewline"));
        }
    }

    /// A thread that answers has 2 MiB.
    #[test]
    fn previews_of_previews_take_no_stack() {
        let nested = (0..100)
            .fold(r#"{"op":"hello"}"#.to_owned(), |inner, _| format!(r#"{{"op":"preview","request":{inner}}}"#));
        let line = format!(r#"{{"version":{VERSION},"request":{nested}}}"#);
        let small = std::thread::Builder::new().stack_size(512 << 10);
        let refused = small.spawn(move || decode_request(line.as_bytes()).unwrap_err()).unwrap().join().unwrap();
        assert!(format!("{:?}", std::error::Error::source(&refused)).contains("preview of a preview"), "{refused:?}");
    }

    #[test]
    fn another_version_is_told_apart_from_nonsense() {
        for other in [&br#"{"version":0,"request":{"op":"list"}}"#[..], br#"{"version":3,"request":{"op":"teleport"}}"#]
        {
            assert_eq!(decode_request(other).unwrap_err().kind(), ErrorKind::Unsupported, "{other:?}");
        }
        for nonsense in
            [&b""[..], b"{}", b"GET / HTTP/1.1", br#"{"version":1}"#, br#"{"version":1,"request":{"op":"x"}}"#]
        {
            assert_eq!(decode_request(nonsense).unwrap_err().kind(), ErrorKind::Invalid, "{nonsense:?}");
        }
        let unknown = decode_request(br#"{"version":1,"request":{"op":"teleport","from":"vm"}}"#).unwrap_err();
        assert!(unknown.to_string().contains("unknown variant `teleport`"), "{unknown}");
        let reply = encode_reply(&Ok(Reply::Done)).unwrap();
        assert_eq!(decode_request(&reply).unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn a_line_without_end_does_not_fill_memory() {
        let mut endless = std::io::BufReader::new(std::io::repeat(b'x'));
        assert_eq!(read_line(&mut endless).unwrap_err().kind(), std::io::ErrorKind::InvalidData);
        assert_eq!(read_line(&mut &b"ab"[..]).unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
        assert_eq!(read_line(&mut &b"ab\nc"[..]).unwrap(), Some(b"ab".to_vec()));
        assert_eq!(read_line(&mut &b""[..]).unwrap(), None);
    }
}
