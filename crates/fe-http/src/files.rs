//! Bytes of files of shares: ranges, versions, and headers that keep a browser from showing them.
//!
//! A file is sent part by part, and the server checks the credentials for each. A slow client holds
//! one of [`DOWNLOADS_MAX`] permits and none of the server's connections.

use std::io;
use std::ops::Range;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, Response as HttpResponse, StatusCode, header};
use axum::response::Response;
use futures_util::stream;
use operations::Request;
use report::FileVersion;

use crate::backend::NoAnswer;
use crate::problem;
use crate::router::Shared;
use crate::wire::{Answer, Ask, ContentWish, What};

/// Downloads at a time: each has a part in memory.
pub(crate) const DOWNLOADS_MAX: usize = 32;
/// Bytes of a part.
const PART_BYTES: u32 = 512 << 10;

/// The file that a request may turn out to be about.
pub(crate) fn wish_of(request: &Request) -> Option<ContentWish> {
    let Request::Files { object, path, at, .. } = request else { return None };
    Some(ContentWish {
        object: object.clone(),
        path: path.clone(),
        at: at.clone(),
        offset: 0,
        length: 0,
        version: None,
    })
}

/// Whether the answer is about a file, whose bytes are sent instead.
pub(crate) fn is_of_file(answer: &Answer) -> bool {
    matches!(answer, Answer::Document { document, .. } if document["entry"]["kind"] == "file")
}

/// The bytes of a file that a `Range` asks for.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    All,
    Part(Range<u64>),
    /// It begins at or after the end.
    Unsatisfiable,
}

/// Several ranges, and units other than bytes, are ignored, as RFC 9110 allows.
fn range_of(text: Option<&str>, size: u64) -> Wanted {
    let parsed = || {
        let (first, last) = text?.trim().strip_prefix("bytes=")?.split_once('-')?;
        let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().ok());
        Some(match (first, last) {
            ("", last) => size.saturating_sub(number(last)??)..size,
            (first, "") => number(first)??..size,
            (first, last) => {
                let (first, last) = (number(first)??, number(last)??);
                if last < first {
                    return None;
                }
                first..last.saturating_add(1).min(size)
            }
        })
    };
    match parsed() {
        None => Wanted::All,
        Some(range) if range.start >= range.end => Wanted::Unsatisfiable,
        Some(range) => Wanted::Part(range),
    }
}

/// `attachment` with the name of a file (RFC 6266): as plain ASCII, and in full.
fn disposition(name: &str) -> String {
    let is_plain = |letter: &char| letter.is_ascii_alphanumeric() || " .-_()+,=@~".contains(*letter);
    let plain: String = name.chars().map(|letter| if is_plain(&letter) { letter } else { '_' }).collect();
    let mut full = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' => full.push(char::from(byte)),
            byte => full.push_str(&format!("%{byte:02X}")),
        }
    }
    format!("attachment; filename=\"{plain}\"; filename*=UTF-8''{full}")
}

/// Asks for a part.
async fn part(shared: &Shared, ask: &Ask, wish: ContentWish) -> Result<(FileVersion, Vec<u8>), Response> {
    match shared.backend.ask(Ask { what: What::Content(wish), ..ask.clone() }).await {
        Ok(Answer::Content(content)) => Ok((content.file, content.bytes)),
        Ok(Answer::Fault(fault)) => Err(problem::of(&fault)),
        Ok(_) => Err(problem::no_answer(NoAnswer::Gone)),
        Err(why) => Err(problem::no_answer(why)),
    }
}

/// Sends a file, or a range of it. `ask` has the credentials.
pub(crate) async fn download(shared: &Shared, ask: &Ask, wish: ContentWish, fields: &HeaderMap) -> Response {
    let Ok(permit) = shared.downloads.clone().try_acquire_owned() else {
        return problem::no_answer(NoAnswer::Busy);
    };
    let (file, _) = match part(shared, ask, wish.clone()).await {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    let size = file.entry.size_bytes;
    let etag = format!("\"{}\"", file.version);
    let text = |name: header::HeaderName| fields.get(name).map(|value| value.to_str().unwrap_or("?"));
    let is_current = text(header::IF_RANGE).is_none_or(|known| known == etag);
    let (status, range) = match range_of(text(header::RANGE).filter(|_| is_current), size) {
        Wanted::All => (StatusCode::OK, 0..size),
        Wanted::Part(range) => (StatusCode::PARTIAL_CONTENT, range),
        Wanted::Unsatisfiable => (StatusCode::RANGE_NOT_SATISFIABLE, 0..0),
    };
    let length = range.end - range.start;
    let wish = ContentWish { version: Some(file.version), ..wish };
    let state = (shared.clone(), ask.clone(), wish, range.clone(), permit);
    let body = stream::try_unfold(state, |(shared, ask, wish, left, permit)| async move {
        if left.is_empty() {
            return Ok(None);
        }
        let length = u32::try_from(left.end - left.start).unwrap_or(u32::MAX).min(PART_BYTES);
        let next = ContentWish { offset: left.start, length, ..wish.clone() };
        // The client sees that the body is too short.
        let failed = || io::Error::other("the file has changed, or cannot be read");
        let (_, bytes) = part(&shared, &ask, next).await.map_err(|_| failed())?;
        if bytes.is_empty() {
            return Err(failed());
        }
        let left = left.start + bytes.len() as u64..left.end;
        Ok(Some((Bytes::from(bytes), (shared, ask, wish, left, permit))))
    });
    let body = if length == 0 { Body::empty() } else { Body::from_stream(body) };
    let mut response = HttpResponse::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    let mut set = |name, value: &str| drop(HeaderValue::from_str(value).map(|value| headers.insert(name, value)));
    // A browser saves it, and neither shows nor runs it.
    set(header::CONTENT_TYPE, "application/octet-stream");
    set(header::CONTENT_DISPOSITION, &disposition(&file.entry.name));
    set(header::CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox");
    set(header::ACCEPT_RANGES, "bytes");
    set(header::ETAG, &etag);
    set(header::CONTENT_LENGTH, &length.to_string());
    match status {
        StatusCode::PARTIAL_CONTENT => {
            set(header::CONTENT_RANGE, &format!("bytes {}-{}/{size}", range.start, range.end - 1));
        }
        StatusCode::RANGE_NOT_SATISFIABLE => set(header::CONTENT_RANGE, &format!("bytes */{size}")),
        _ => {}
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_one_part_of_a_file_or_all_of_it() {
        let range = |text: &str, size| range_of(Some(text), size);
        assert_eq!(range_of(None, 10), Wanted::All);
        assert_eq!(range("bytes=0-0", 10), Wanted::Part(0..1));
        assert_eq!(range("bytes=4-", 10), Wanted::Part(4..10));
        assert_eq!(range("bytes=-3", 10), Wanted::Part(7..10));
        assert_eq!(range("bytes=-30", 10), Wanted::Part(0..10));
        assert_eq!(range("bytes=4-99999999999999999999", 10), Wanted::All, "no number");
        assert_eq!(range(&format!("bytes=4-{}", u64::MAX), 10), Wanted::Part(4..10));
        for unsatisfiable in ["bytes=10-", "bytes=10-11", "bytes=-0"] {
            assert_eq!(range(unsatisfiable, 10), Wanted::Unsatisfiable, "{unsatisfiable}");
        }
        assert_eq!(range("bytes=0-", 0), Wanted::Unsatisfiable);
        for ignored in ["bytes=0-1,3-4", "bytes=3-2", "bytes=", "bytes=-", "items=0-1", "bytes=+1-2", "bytes=a-b"] {
            assert_eq!(range(ignored, 10), Wanted::All, "{ignored}");
        }
    }

    #[test]
    fn no_name_gets_out_of_its_header() {
        assert_eq!(disposition("a b.txt"), "attachment; filename=\"a b.txt\"; filename*=UTF-8''a%20b.txt");
        let hostile = disposition("x\"; filename=\"evil\r\nSet-Cookie: a\\%41é/..");
        assert!(!hostile.contains(['\r', '\n', '\\', '/']), "{hostile}");
        assert_eq!(hostile.matches('"').count(), 2, "{hostile}");
        assert!(HeaderValue::from_str(&hostile).is_ok() && hostile.contains("%0D%0A") && hostile.contains("%C3%A9"));
    }
}
