//! The client against sandboxes that misbehave.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use cubicle_model::{Command, ExecSpec, Exit, Listener, SandboxId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::*;
use crate::journal::record::{Draft, Kind, encode_header};

/// What a made-up sandbox does with one connection.
enum Script {
    /// Answers each request with the next of these bytes, then hangs up.
    Answers(Vec<Vec<u8>>),
    /// Says hello with another key.
    WrongKey,
    /// Sends these bytes and hangs up.
    Raw(Vec<u8>),
    /// Hangs up after the opening and the first request.
    HangUp,
}

const KEY: [u8; 32] = [3; 32];

fn sandbox() -> SandboxId {
    SandboxId::from_random([5; 16])
}

fn spec() -> ExecSpec {
    ExecSpec::new(Command::Shell("true".into()))
}

/// A guest whose connections follow the scripts one after another, and the requests that it sent.
fn guest(scripts: Vec<Script>) -> (Guest, Arc<Mutex<Vec<String>>>) {
    let scripts = Arc::new(Mutex::new(VecDeque::from(scripts)));
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = requests.clone();
    let connector = move || {
        let script = scripts.lock().unwrap().pop_front();
        let seen = seen.clone();
        async move {
            let script = script.ok_or(std::io::ErrorKind::ConnectionRefused)?;
            let (ours, theirs) = UnixStream::pair()?;
            tokio::spawn(act(theirs, script, seen));
            Ok(ours)
        }
    };
    let random = |bytes: &mut [u8]| bytes.fill(7);
    (Guest::new(connector, Key::new(KEY), sandbox(), random), requests)
}

async fn act(mut stream: UnixStream, script: Script, seen: Arc<Mutex<Vec<String>>>) {
    let nonce = Nonce([9; 32]);
    if let Script::Raw(bytes) = &script {
        let _ = stream.write_all(bytes).await;
        return;
    }
    stream.write_all(&hello::line(&hello::greet(sandbox(), &[], nonce))).await.unwrap();
    let mut received = Vec::new();
    let line = loop {
        if let Some(end) = received.iter().position(|byte| *byte == b'\n') {
            break received.drain(..=end).collect::<Vec<_>>();
        }
        if stream.read_buf(&mut received).await.unwrap() == 0 {
            return;
        }
    };
    let client = hello::parse_client_hello(&line).unwrap();
    let key = if matches!(script, Script::WrongKey) { Key::new([4; 32]) } else { Key::new(KEY) };
    let answer = hello::admit(&client, sandbox(), &Key::new(KEY), nonce).unwrap();
    let answer = if matches!(script, Script::WrongKey) {
        let forged = hello::introduce(&hello::greet(sandbox(), &[], nonce), sandbox(), &key, nonce).unwrap();
        hello::ServerAnswer::Proof(forged.proof)
    } else {
        answer
    };
    stream.write_all(&hello::line(&answer)).await.unwrap();
    let answers = if let Script::Answers(answers) = script { answers } else { Vec::new() };
    let mut answers = answers.into_iter();
    loop {
        let Some(request) = next_request(&mut stream, &mut received).await else { return };
        seen.lock().unwrap().push(request);
        let Some(answer) = answers.next() else { return };
        stream.write_all(&answer).await.unwrap();
        if answers.len() == 0 {
            return;
        }
    }
}

async fn next_request(stream: &mut UnixStream, received: &mut Vec<u8>) -> Option<String> {
    loop {
        let text = String::from_utf8_lossy(received).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.map_or(0, |length| length.parse().unwrap());
            if body.len() >= length {
                let whole = head.len() + 4 + length;
                received.drain(..whole);
                return Some(text[..whole].to_owned());
            }
        }
        if stream.read_buf(received).await.unwrap_or(0) == 0 {
            return None;
        }
    }
}

fn ok(body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

fn record(seq: u64, kind: Kind, payload: &[u8]) -> Vec<u8> {
    let draft = Draft { kind, exec: 1, time_us: 1000 * seq, stream_offset: 0, payload };
    [&encode_header(&draft, seq)[..], payload].concat()
}

/// A chunked answer with these records, cut into chunks of a size that has nothing to do with them.
fn records(records: &[Vec<u8>], chunk: usize) -> Vec<u8> {
    let mut answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for piece in records.concat().chunks(chunk) {
        answer.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        answer.extend_from_slice(piece);
        answer.extend_from_slice(b"\r\n");
    }
    answer.extend_from_slice(b"0\r\n\r\n");
    answer
}

const EXIT: &[u8] = br#"{"exit":{"code":3},"timed_out":false,"user_us":1,"sys_us":2,"max_rss_kb":4}"#;
const EOF: &[u8] = br#"{"stdout":6,"stderr":1}"#;

fn whole_exec() -> Vec<Vec<u8>> {
    vec![
        record(10, Kind::Start, b"{}"),
        record(11, Kind::Stdout, b"abc"),
        record(12, Kind::Unknown(77), b"from a later version"),
        record(13, Kind::Stderr, b"!"),
        record(14, Kind::Stdout, b"def"),
        record(15, Kind::Exit, EXIT),
        record(16, Kind::Eof, EOF),
    ]
}

#[tokio::test]
async fn an_exec_is_gathered_however_its_records_are_cut() {
    for chunk in [1, 7, 40, 41, 1000] {
        let (guest, _) = guest(vec![Script::Answers(vec![records(&whole_exec(), chunk)])]);
        let outcome = guest.run(&spec(), OutputLimits::default()).await.unwrap();
        assert_eq!((outcome.exit, outcome.timed_out), (Exit::Code(3), false));
        assert_eq!((outcome.stdout.as_slice(), outcome.stderr.as_slice()), (&b"abcdef"[..], &b"!"[..]));
        assert!(!outcome.stdout_truncated && !outcome.stderr_truncated);
        assert_eq!(outcome.duration, Duration::from_millis(5));
    }
}

#[tokio::test]
async fn output_beyond_the_limit_is_cut_and_said_to_be() {
    let (guest, _) = guest(vec![Script::Answers(vec![records(&whole_exec(), 100)])]);
    let outcome = guest.run(&spec(), OutputLimits { stdout: 4, stderr: 1 }).await.unwrap();
    assert_eq!(outcome.stdout, b"abcd");
    assert!(outcome.stdout_truncated && !outcome.stderr_truncated);
    assert_eq!(outcome.written.stdout, 6);
}

#[tokio::test]
async fn what_a_sandbox_must_not_send_is_an_error_and_not_an_outcome() {
    let start = record(1, Kind::Start, b"{}");
    let exit = record(2, Kind::Exit, EXIT);
    let mut damaged = record(2, Kind::Stdout, b"abc");
    *damaged.last_mut().unwrap() ^= 1;
    let mut huge = record(2, Kind::Stdout, b"");
    huge[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    let table = [
        ("the same seq twice", vec![start.clone(), record(1, Kind::Stdout, b"a")]),
        ("a seq that goes back", vec![exit.clone(), start.clone()]),
        ("no exit", vec![start.clone()]),
        ("no end of output", vec![start.clone(), exit.clone()]),
        ("half a record", vec![start.clone(), exit[..50].to_vec()]),
        ("a damaged record", vec![start.clone(), damaged]),
        ("a record without end", vec![start.clone(), huge]),
        ("an exit that is none", vec![start.clone(), record(2, Kind::Exit, b"0")]),
    ];
    for (what, sent) in table {
        let (guest, _) = guest(vec![Script::Answers(vec![records(&sent, 64)])]);
        let error = guest.run(&spec(), OutputLimits::default()).await.unwrap_err();
        assert!(matches!(error, ClientError::Protocol(_) | ClientError::Corrupt(_)), "{what}: {error:?}");
    }
}

#[tokio::test]
async fn every_exec_has_an_id_that_makes_repeating_it_safe() {
    let (guest, requests) = guest(vec![Script::Answers(vec![records(&whole_exec(), 100)])]);
    guest.run(&spec(), OutputLimits::default()).await.unwrap();
    let request = requests.lock().unwrap().remove(0);
    let (_, body) = request.split_once("\r\n\r\n").unwrap();
    let sent: ExecSpec = serde_json::from_str(body).unwrap();
    assert_eq!(sent.exec_id, Some(cubicle_model::ExecId::from_random([7; 16])));
    let endless = ExecSpec { timeout_seconds: Some(f64::NAN), ..spec() };
    assert!(matches!(guest.exec(&endless).await, Err(ClientError::Invalid(_))));
}

#[tokio::test]
async fn a_connection_serves_one_request_after_another() {
    let answers = vec![ok("{}"), ok("{}"), ok("{}")];
    let (guest, requests) = guest(vec![Script::Answers(answers)]);
    for _ in 0..3 {
        guest.receipt().await.unwrap();
    }
    assert_eq!(requests.lock().unwrap().len(), 3);
    assert!(matches!(guest.receipt().await, Err(ClientError::Unavailable(_))));
}

#[tokio::test]
async fn a_stale_connection_is_replaced_where_repeating_is_safe() {
    let exec = || Script::Answers(vec![records(&whole_exec(), 100)]);
    // The second request is read and not answered.
    let stale = || Script::Answers(vec![ok("{}"), Vec::new()]);
    let (repeats, requests) = guest(vec![stale(), exec()]);
    repeats.receipt().await.unwrap();
    repeats.run(&spec(), OutputLimits::default()).await.unwrap();
    assert_eq!(requests.lock().unwrap().len(), 3);
    let (never, requests) = guest(vec![stale(), exec()]);
    never.receipt().await.unwrap();
    let id = cubicle_model::ExecId::from_random([1; 16]);
    assert!(matches!(never.stdin(id, b"once", false).await, Err(ClientError::Unavailable(_))));
    assert_eq!(requests.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn a_new_connection_that_fails_is_not_tried_again() {
    let (guest, requests) = guest(vec![Script::HangUp, Script::HangUp]);
    assert!(matches!(guest.receipt().await, Err(ClientError::Unavailable(_))));
    assert_eq!(requests.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_reader_that_was_cut_off_comes_back_where_it_was() {
    let all = whole_exec();
    let mut cut = records(&all[..3], 100);
    cut.truncate(cut.len() - 5);
    let rest = records(&all[3..], 100);
    let (guest, requests) = guest(vec![Script::Answers(vec![cut]), Script::Answers(vec![rest])]);
    let outcome = guest.run(&spec(), OutputLimits::default()).await.unwrap();
    assert_eq!(outcome.stdout, b"abcdef");
    let again = requests.lock().unwrap()[1].clone();
    assert!(again.contains("?from=13 HTTP"), "{again}");
}

#[tokio::test]
async fn a_sandbox_without_the_key_is_not_believed() {
    let (guest, _) = guest(vec![Script::WrongKey]);
    let error = guest.receipt().await.unwrap_err();
    assert!(matches!(error, ClientError::Hello(hello::HelloError::WrongKey)), "{error:?}");
}

#[tokio::test]
async fn what_is_no_sandbox_is_an_error() {
    let table: [&[u8]; 4] = [b"SSH-2.0-OpenSSH_9.6\r\n", b"\n", &[b'x'; 3000], b"{\"cubicle\":\"other\"}\n"];
    for bytes in table {
        let (guest, _) = guest(vec![Script::Raw(bytes.to_vec())]);
        let error = guest.health().await.unwrap_err();
        assert!(matches!(error, ClientError::Hello(_) | ClientError::Protocol(_)), "{error:?}");
    }
    let (guest, _) = guest(vec![Script::Raw(Vec::new())]);
    assert!(matches!(guest.health().await, Err(ClientError::Unavailable(_))));
}

#[tokio::test]
async fn a_refusal_keeps_the_connection() {
    let body = r#"{"error":{"code":"command_not_found","message":"no such command","hint":"look"}}"#;
    let refusal = format!("HTTP/1.1 422 No\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes();
    let (guest, requests) = guest(vec![Script::Answers(vec![refusal, ok("{}")])]);
    let error = guest.exec(&spec()).await.unwrap_err();
    assert_eq!(error.code(), Some("command_not_found"));
    guest.receipt().await.unwrap();
    assert_eq!(requests.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn an_answer_that_is_too_long_is_not_read() {
    let long = b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n".to_vec();
    let (guest, _) = guest(vec![Script::Answers(vec![long, Vec::new()])]);
    assert!(matches!(guest.receipt().await, Err(ClientError::TooLong { .. })));
    assert!(guest.idle().is_empty());
}

#[tokio::test]
async fn listeners_without_descriptors_are_not_taken() {
    let said = r#"{"listeners":[{"protocol":"tcp","address":"loopback","port":1}]}"#;
    let (guest, _) = guest(vec![Script::Answers(vec![ok(said), Vec::new()])]);
    let refused = guest.listen(&[Listener::tcp(1)]).await;
    assert!(matches!(refused, Err(ClientError::Protocol(_))), "{refused:?}");
    let none = guest.listen(&[]).await;
    assert!(matches!(none, Err(ClientError::Invalid(_))), "{none:?}");
}

#[tokio::test]
async fn bytes_that_come_with_an_upgrade_belong_to_the_stream() {
    let answer = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: tcp\r\n\r\nearly".to_vec();
    let (guest, _) = guest(vec![Script::Answers(vec![answer])]);
    let mut tunnel = guest.port(80).await.unwrap();
    let mut text = String::new();
    tunnel.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "early");
}

#[tokio::test]
async fn a_parked_connection_says_what_is_asked_for() {
    let answer = b"HTTP/1.1 101 Switching Protocols\r\n\r\n{\"open\":\"egress\"}\nfirst".to_vec();
    let (guest, _) = guest(vec![Script::Answers(vec![answer])]);
    let (name, mut tunnel) = guest.park_accept().await.unwrap().opened().await.unwrap();
    let mut text = String::new();
    tunnel.read_to_string(&mut text).await.unwrap();
    assert_eq!((name.as_str(), text.as_str()), ("egress", "first"));
}

#[tokio::test]
async fn a_connection_from_a_listener_that_nobody_asked_for_is_not_taken() {
    let said = r#"{"listeners":[{"protocol":"tcp","address":"loopback","port":80}]}"#;
    let table = [
        (r#"{"open":"listener"}"#, false),
        (
            r#"{"open":"listener","arrival":{"listener":{"protocol":"tcp","address":"loopback","port":81},"to":"127.0.0.1:81"}}"#,
            false,
        ),
        (
            r#"{"open":"listener","arrival":{"listener":{"protocol":"tcp","address":"loopback","port":80},"to":"127.0.0.1:81"}}"#,
            false,
        ),
        (
            r#"{"open":"listener","arrival":{"listener":{"protocol":"tcp","address":"loopback","port":80},"to":"127.0.0.1:80"}}"#,
            true,
        ),
    ];
    for (line, taken) in table {
        let opened = format!("HTTP/1.1 101 Switching Protocols\r\n\r\n{line}\nfirst").into_bytes();
        let scripts = vec![Script::Answers(vec![ok(said)]), Script::Answers(vec![opened])];
        let (guest, _) = guest(scripts);
        let mut forwarding = guest.forward(&[Listener::tcp(80)], 1).await.unwrap();
        match forwarding.next().await {
            Ok(mut forwarded) => {
                let mut text = String::new();
                forwarded.stream.read_to_string(&mut text).await.unwrap();
                assert!(taken && text == "first", "{line}");
            }
            Err(error) => assert!(!taken && matches!(error, ClientError::Protocol(_)), "{line}: {error:?}"),
        }
    }
    let (guest, _) = guest(vec![Script::Answers(vec![ok(said)])]);
    let other = guest.forward(&[Listener::tcp(81)], 1).await;
    assert!(matches!(other, Err(ClientError::Protocol(_))), "{other:?}");
}
