//! The files of the page, from a table that is compiled in; no file system is read.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::problem::{self, Refused};

include!(concat!(env!("OUT_DIR"), "/assets.rs"));

/// Shown by a program that was built without the page.
const NO_PAGE: &str = "<!doctype html><meta charset=utf-8><title>Shale</title><h1>Shale</h1><p>This program was built \
                       without its page. The API is at /api/v1; see docs/API.md.";

fn find(path: &str) -> Option<&'static [u8]> {
    let place = ASSETS.binary_search_by(|(name, _)| (*name).cmp(path)).ok()?;
    Some(ASSETS[place].1)
}

/// Media type by file name extension. Browsers save files of other types.
fn type_of(path: &str) -> &'static str {
    match path.rsplit_once('.').map_or("", |(_, ending)| ending) {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "json" | "map" => "application/json",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "ico" => "image/x-icon",
        "woff2" => "font/woff2",
        "txt" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

fn etag_of(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    let digits: String = digest.as_ref()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("\"{digits}\"")
}

fn takes_brotli(fields: &HeaderMap) -> bool {
    let accepted = fields.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    accepted.flat_map(|line| line.split(',')).any(|coding| coding.split(';').next().is_some_and(|c| c.trim() == "br"))
}

/// The file at a path of the request line.
pub(crate) fn serve(path: &str, fields: &HeaderMap) -> Response {
    let path = if path == "/" { "/index.html" } else { path };
    let Some(plain) = find(path).filter(|_| path != "/assets.json") else {
        if path == "/index.html" {
            return (StatusCode::OK, [(header::CONTENT_TYPE, "text/html; charset=utf-8")], NO_PAGE).into_response();
        }
        return problem::refuse(Refused::NoSuchPath);
    };
    let packed = find(&format!("{path}.br")).filter(|_| takes_brotli(fields));
    let body = packed.unwrap_or(plain);
    let etag = etag_of(body);
    // Only names with a hash of their content in them never change it.
    let keep = if path == "/index.html" { "no-cache" } else { "public, max-age=31536000, immutable" };
    let is_known = fields.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == etag.as_bytes());
    let mut response =
        if is_known { StatusCode::NOT_MODIFIED.into_response() } else { (StatusCode::OK, body).into_response() };
    let answer = response.headers_mut();
    answer.insert(header::CONTENT_TYPE, HeaderValue::from_static(type_of(path)));
    answer.insert(header::CACHE_CONTROL, HeaderValue::from_static(keep));
    answer.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    if let Ok(etag) = HeaderValue::from_str(&etag) {
        answer.insert(header::ETAG, etag);
    }
    if packed.is_some() {
        answer.insert(header::CONTENT_ENCODING, HeaderValue::from_static("br"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order_and_paths_are_names_in_it_only() {
        assert!(ASSETS.is_sorted_by(|a, b| a.0 < b.0));
        assert_eq!(serve("/", &HeaderMap::new()).status(), StatusCode::OK);
        for path in ["/../Cargo.toml", "/%2e%2e/Cargo.toml", "//index.html", "/index.html%00", "/assets.json", "/x"] {
            assert_eq!(serve(path, &HeaderMap::new()).status(), StatusCode::NOT_FOUND, "{path}");
        }
    }

    #[test]
    fn every_file_is_served_with_its_type_and_its_hash() {
        for (path, bytes) in ASSETS.iter().filter(|(path, _)| !path.ends_with(".br") && *path != "/assets.json") {
            let response = serve(path, &HeaderMap::new());
            assert_eq!(response.status(), StatusCode::OK, "{path}");
            assert_eq!(response.headers()[header::ETAG].to_str().unwrap(), etag_of(bytes), "{path}");
            let mut known = HeaderMap::new();
            known.insert(header::IF_NONE_MATCH, response.headers()[header::ETAG].clone());
            assert_eq!(serve(path, &known).status(), StatusCode::NOT_MODIFIED, "{path}");
        }
    }
}
