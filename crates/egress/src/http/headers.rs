//! Header fields that belong to one connection, and those that a proxy adds.

use hyper::header::{CONNECTION, HeaderName, HeaderValue, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, VIA};
use hyper::{HeaderMap, Uri};

/// Fields that end at the next hop, besides those that `Connection` names.
const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("proxy-authorization"),
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("http2-settings"),
];

/// Removes what must not be passed on. Without `Upgrade` an offer of another protocol, as HTTP/2 in plain text, is
/// never seen by the other side, and so never taken; a WebSocket that the rules allow is offered anew.
pub(super) fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = listed(headers, &CONNECTION).filter_map(|name| name.parse().ok()).collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        // A client must not have the gateway remove what the request means by naming it in `Connection`.
        if *name != hyper::header::HOST && *name != hyper::header::CONTENT_LENGTH {
            headers.remove(name);
        }
    }
}

/// What a side wants to leave HTTP for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Upgrade {
    /// Nothing, or only what may be ignored: an offer of HTTP/2.
    None,
    WebSocket,
    /// Something that would be waited for.
    Other,
}

pub(super) fn upgrade(headers: &HeaderMap) -> Upgrade {
    let asks = listed(headers, &CONNECTION).any(|name| name.eq_ignore_ascii_case("upgrade"));
    let mut protocols = listed(headers, &UPGRADE).filter(|_| asks);
    match (protocols.next(), protocols.next()) {
        (None, _) => Upgrade::None,
        (Some(only), None) if only.eq_ignore_ascii_case("h2c") => Upgrade::None,
        (Some(only), None) if only.eq_ignore_ascii_case("websocket") => Upgrade::WebSocket,
        _ => Upgrade::Other,
    }
}

/// Whether the request came through the gateway of this name before.
pub(super) fn came_through(headers: &HeaderMap, via: &str) -> bool {
    listed(headers, &VIA).any(|hop| hop.split_whitespace().nth(1) == Some(via))
}

pub(super) fn add_via(headers: &mut HeaderMap, via: &str) {
    if let Ok(value) = HeaderValue::from_str(&format!("1.1 {via}")) {
        headers.append(VIA, value);
    }
}

/// How long a head is when it is written, but for what is the same in each.
pub(super) fn length(uri: &Uri, headers: &HeaderMap) -> usize {
    let target = uri.path_and_query().map_or(0, |target| target.as_str().len());
    let fields = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len());
    target + fields.sum::<usize>()
}

fn listed<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|item| !item.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn what_belongs_to_one_connection_is_not_passed_on() {
        let mut all = headers(&[
            ("connection", "keep-alive, X-Hop ,upgrade"),
            ("connection", "x-other, host, content-length"),
            ("x-hop", "1"),
            ("x-other", "1"),
            ("keep-alive", "5"),
            ("proxy-authorization", "Basic x"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
            ("http2-settings", "x"),
            ("host", "a.example"),
            ("content-length", "3"),
            ("accept", "*/*"),
        ]);
        strip(&mut all);
        let mut left: Vec<_> = all.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["accept", "content-length", "host"]);
    }

    #[test]
    fn an_offer_of_plain_http_2_is_ignored_and_other_upgrades_are_not() {
        for (fields, expected) in [
            (&[("connection", "Upgrade, HTTP2-Settings"), ("upgrade", "h2c")][..], Upgrade::None),
            (&[("connection", "upgrade"), ("upgrade", "WebSocket")], Upgrade::WebSocket),
            (&[("connection", "upgrade"), ("upgrade", "h2c, websocket")], Upgrade::Other),
            (&[("connection", "upgrade"), ("upgrade", "websocket"), ("upgrade", "x")], Upgrade::Other),
            (&[("connection", "upgrade"), ("upgrade", "TLS/1.0")], Upgrade::Other),
            (&[("upgrade", "websocket")], Upgrade::None),
        ] {
            assert_eq!(upgrade(&headers(fields)), expected, "{fields:?}");
        }
    }

    #[test]
    fn a_request_that_comes_back_is_known() {
        let mut all = headers(&[("via", "1.0 fred, 1.1 p.example")]);
        assert!(!came_through(&all, "cubicle-1"));
        add_via(&mut all, "cubicle-1");
        assert!(came_through(&all, "cubicle-1"));
        assert!(!came_through(&all, "cubicle-2"));
    }
}
