use std::time::Duration;

use cubicle_model::Kind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::super::endpoint::{Endpoint, Fetcher};
use super::super::read_discovery;

fn endpoint(url: &str) -> Endpoint {
    Endpoint::parse(url).unwrap()
}

/// Somebody who says this to whoever asks, and then hangs up or does nothing more.
async fn says(answer: Vec<u8>, hangs_up: bool) -> Endpoint {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = endpoint(&format!("http://{}/keys?a=b", listener.local_addr().unwrap()));
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = vec![0; 4096];
        let read = stream.read(&mut request).await.unwrap();
        assert!(request[..read].starts_with(b"GET /keys?a=b HTTP/1.1\r\n"));
        // Whoever has heard enough may have gone.
        _ = stream.write_all(&answer).await;
        if !hangs_up {
            std::future::pending::<()>().await;
        }
    });
    at
}

#[tokio::test]
async fn a_document_is_fetched_whole_however_it_is_sent() {
    for (head, body) in [
        ("content-length: 2\r\n\r\n", "{}"),
        ("\r\n", "{}"),
        ("transfer-encoding: chunked\r\n\r\n", "2\r\n{}\r\n0\r\n\r\n"),
    ] {
        let at = says(format!("HTTP/1.1 200 OK\r\n{head}{body}").into_bytes(), true).await;
        assert_eq!(Fetcher::default().get(&at).await.unwrap(), "{}", "{head}");
    }
}

#[tokio::test]
async fn what_is_no_document_is_a_failure_that_says_why() {
    let large = [b"HTTP/1.1 200 OK\r\n\r\n".as_slice(), &vec![b' '; 300 * 1024]].concat();
    let table: [(Vec<u8>, &str); 5] = [
        (
            b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1/\r\ncontent-length: 0\r\n\r\n".into(),
            "it answers 302",
        ),
        (b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n".into(), "it answers 500"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{".into(), "cannot be fetched"),
        (b"SSH-2.0-OpenSSH\r\n".into(), "cannot be fetched"),
        (large, "length limit exceeded"),
    ];
    for (answer, expected) in table {
        let at = says(answer, true).await;
        let fault = Fetcher::default().get(&at).await.unwrap_err();
        assert_eq!(fault.kind(), Kind::Unavailable);
        assert!(fault.message().contains(expected), "{fault}");
    }
}

#[tokio::test]
async fn whoever_never_ends_its_answer_is_not_waited_for() {
    let at = says(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{".into(), false).await;
    let fetcher = Fetcher::default();
    let fetching = fetcher.get(&at);
    tokio::pin!(fetching);
    assert!(tokio::time::timeout(Duration::from_millis(100), &mut fetching).await.is_err());
    tokio::time::pause();
    let fault = fetching.await.unwrap_err();
    assert!(fault.message().contains("within 10 seconds"), "{fault}");
}

#[test]
fn an_issuer_that_describes_itself_says_where_its_keys_are() {
    let from = endpoint("https://id.example.org/.well-known/openid-configuration");
    let read = |text: &str| read_discovery(text.as_bytes(), &from, "https://id.example.org");
    let good =
        r#"{"issuer": "https://id.example.org", "jwks_uri": "https://keys.example.org/k", "more": []}"#;
    assert_eq!(read(good).unwrap().to_string(), "https://keys.example.org/k");
    for (bad, way_out) in [
        (
            r#"{"issuer": "https://evil.example", "jwks_uri": "https://evil.example/k"}"#,
            Some("AUTH_TOKEN_ISSUER=https://evil.example"),
        ),
        (
            r#"{"issuer": "https://id.example.org/", "jwks_uri": "https://id.example.org/k"}"#,
            Some("AUTH_TOKEN_ISSUER=https://id.example.org/"),
        ),
        (r#"{"issuer": "https://id.example.org", "jwks_uri": "http://127.0.0.1/k"}"#, None),
        (r#"{"issuer": "https://id.example.org", "jwks_uri": "http://id.example.org/k"}"#, None),
        (r#"{"issuer": "https://id.example.org"}"#, None),
        ("<html>", None),
    ] {
        let fault = read(bad).unwrap_err();
        assert!(fault.message().contains("is no use"), "{fault}");
        assert!(way_out.is_none_or(|way| fault.way_out().unwrap().contains(way)), "{fault:?}");
    }
}
