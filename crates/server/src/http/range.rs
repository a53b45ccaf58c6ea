//! A part of something that has a size: `Range` in, `Content-Range` out.

use std::ops::Range;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use cubicle_model::{Fault, Kind};

use super::problem::{Answer, Problem};

/// The part that is asked for; none where everything is.
pub(super) fn asked(headers: &HeaderMap, size: u64) -> Answer<Option<Range<u64>>> {
    let Some(text) = headers.get(header::RANGE).and_then(|range| range.to_str().ok()) else {
        return Ok(None);
    };
    byte_range(text, size).map(Some).ok_or_else(|| {
        let fault = Fault::new(Kind::Invalid, format!("there are {size} bytes; this range is not in them"));
        Problem::with_status(fault, StatusCode::RANGE_NOT_SATISFIABLE)
    })
}

/// Bytes of which nobody says what they are, all or a part of them.
pub(super) fn response(body: Body, size: u64, part: Option<Range<u64>>) -> Response {
    let mut response = Response::new(body);
    let out = response.headers_mut();
    out.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    out.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    let length = part.as_ref().map_or(size, |part| part.end - part.start);
    out.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    if let Some(part) = part {
        let text = format!("bytes {}-{}/{size}", part.start, part.end - 1);
        if let Ok(value) = HeaderValue::from_str(&text) {
            out.insert(header::CONTENT_RANGE, value);
        }
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    response
}

/// `bytes=a-b`, `bytes=a-` or `bytes=-n`; one range only.
fn byte_range(text: &str, size: u64) -> Option<std::ops::Range<u64>> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    let range = match (first.trim(), last.trim()) {
        ("", last) => size.saturating_sub(last.parse::<u64>().ok()?)..size,
        (first, "") => first.parse().ok()?..size,
        (first, last) => first.parse().ok()?..last.parse::<u64>().ok()?.saturating_add(1).min(size),
    };
    (range.start < range.end && range.end <= size).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_within_the_file_or_refused() {
        let table = [
            ("bytes=0-0", Some(0..1)),
            ("bytes=2-", Some(2..10)),
            ("bytes=-3", Some(7..10)),
            ("bytes=-30", Some(0..10)),
            ("bytes=5-100", Some(5..10)),
            ("bytes=10-", None),
            ("bytes=3-2", None),
            ("bytes=a-b", None),
            ("lines=1-2", None),
            ("bytes=0-1,3-4", None),
        ];
        for (text, expected) in table {
            assert_eq!(byte_range(text, 10), expected, "{text}");
        }
    }
}
