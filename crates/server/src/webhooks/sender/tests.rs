//! Receivers of all kinds, behind names and addresses that are made up: what was dialled is what was checked.

use std::collections::VecDeque;
use std::sync::Mutex;

use async_trait::async_trait;
use cubicle_model::egress::HostName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// Names lead to the next of these; the last one stays.
struct Script(Mutex<VecDeque<Vec<IpAddr>>>);

#[async_trait]
impl Names for Script {
    async fn resolve(&self, _: &HostName) -> io::Result<Vec<IpAddr>> {
        let mut script = self.0.lock().unwrap();
        let now = script.front().cloned().unwrap_or_default();
        if script.len() > 1 {
            script.pop_front();
        }
        Ok(now)
    }
}

/// Whatever is dialled, one receiver answers.
struct Recorder {
    dialled: Mutex<Vec<SocketAddr>>,
    to: SocketAddr,
}

#[async_trait]
impl Dial for Recorder {
    async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        self.dialled.lock().unwrap().push(to);
        TcpStream::connect(self.to).await
    }

    fn is_here(&self, address: IpAddr) -> bool {
        address.is_loopback()
    }
}

struct World {
    sender: Sender,
    recorder: Arc<Recorder>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl World {
    /// The receiver writes `answer` to everybody, and hangs up unless it is empty.
    async fn new(leads_to: &[&[&str]], allow: &str, answer: &'static [u8]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        tokio::spawn(async move {
            let mut silent = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut bytes = vec![0; 64 * 1024];
                let mut length = 0;
                while !bytes[..length].windows(4).any(|part| part == b"\r\n\r\n") {
                    length += stream.read(&mut bytes[length..]).await.unwrap();
                }
                seen.lock().unwrap().push(String::from_utf8_lossy(&bytes[..length]).into_owned());
                _ = stream.write_all(answer).await;
                if answer.is_empty() {
                    silent.push(stream);
                }
            }
        });
        let parsed = |all: &&[&str]| all.iter().map(|one| one.parse().unwrap()).collect();
        let names = Script(Mutex::new(leads_to.iter().map(parsed).collect()));
        let recorder = Arc::new(Recorder { dialled: Mutex::default(), to });
        let settings = WebhookSettings {
            allow: allow.parse().unwrap(),
            timeout: Duration::from_millis(400),
            ..WebhookSettings::default()
        };
        let sender = Sender::over(Arc::new(names), Arc::clone(&recorder) as _, &settings);
        Self { sender, recorder, asked }
    }

    async fn post(&self, url: &str) -> Result<Sent, NotSent> {
        let headers = [("webhook-id", "dlv-1".to_owned())];
        let body = Bytes::from_static(b"{\"a\":1}");
        let now = Timestamp::from_second(784_111_777).unwrap();
        self.sender.post(&url.parse().unwrap(), &headers, body, now).await
    }

    fn dialled(&self) -> Vec<String> {
        self.recorder.dialled.lock().unwrap().iter().map(ToString::to_string).collect()
    }
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi";

#[tokio::test]
async fn a_receiver_gets_the_body_with_its_headers() {
    let world = World::new(&[&["93.184.216.34"]], "", OK).await;
    let sent = world.post("http://hooks.example:8080/a?b=c").await.unwrap();
    assert_eq!(sent, Sent { status: 200, retry_after: None, answer: "hi".into() });
    let asked = world.asked.lock().unwrap()[0].clone();
    let mut lines = asked.lines();
    assert_eq!(lines.next(), Some("POST /a?b=c HTTP/1.1"));
    for line in [
        "host: hooks.example:8080",
        "content-type: application/json",
        "webhook-id: dlv-1",
        "content-length: 7",
    ] {
        assert!(asked.contains(&format!("{line}\r\n")), "{line}: {asked}");
    }
}

#[tokio::test]
async fn a_name_that_is_rebound_to_loopback_is_dialled_once_and_then_refused() {
    let world = World::new(&[&["93.184.216.34"], &["127.0.0.1"]], "", OK).await;
    assert_eq!(world.post("http://rebound.example/").await.unwrap().status, 200);
    // Between check and connection nobody asked again, or it would have been loopback.
    assert_eq!(world.dialled(), ["93.184.216.34:80"]);
    let refused = world.post("http://rebound.example/").await.unwrap_err();
    assert!(matches!(refused, NotSent::Refused(_)), "{refused}");
    assert!(refused.to_string().contains("webhooks.allow"), "{refused}");
    assert_eq!(world.dialled(), ["93.184.216.34:80"]);
}

#[tokio::test]
async fn addresses_of_the_inside_are_passed_over() {
    let inside: &[&str] =
        &["10.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "fd00:ec2::254", "1.1.1.1"];
    let world = World::new(&[inside], "", OK).await;
    assert_eq!(world.post("http://many.example/").await.unwrap().status, 200);
    assert_eq!(world.dialled(), ["1.1.1.1:80"]);
    let world = World::new(&[&inside[..5]], "", OK).await;
    assert!(matches!(world.post("http://many.example/").await, Err(NotSent::Refused(_))));
    for url in [
        "http://127.0.0.1/",
        "http://[::1]/",
        "http://169.254.169.254/",
        "http://10.1.1.1/",
        "http://1.1.1.1:22/",
    ] {
        assert!(matches!(world.post(url).await, Err(NotSent::Refused(_))), "{url}");
        assert_eq!(world.sender.check(&url.parse().unwrap()).is_err(), !url.contains("example"), "{url}");
    }
    assert_eq!(world.dialled(), Vec::<String>::new());
    let world = World::new(&[&[]], "", OK).await;
    assert!(matches!(world.post("http://nowhere.example/").await, Err(NotSent::NoAddress)));
}

#[tokio::test]
async fn what_the_operator_allows_is_reached() {
    let world = World::new(&[&["10.0.0.1"]], "assistant.lan:8000 127.0.0.0/8", OK).await;
    assert_eq!(world.post("http://assistant.lan:8000/").await.unwrap().status, 200);
    assert_eq!(world.post("http://127.0.0.1:9/").await.unwrap().status, 200);
    assert!(world.post("http://assistant.lan:8001/").await.is_err());
    assert_eq!(world.dialled(), ["10.0.0.1:8000", "127.0.0.1:9"]);
}

#[tokio::test]
async fn nobody_is_followed_anywhere() {
    let answer = b"HTTP/1.1 307 Temporary Redirect\r\nlocation: http://169.254.169.254/latest/\r\ncontent-length: 0\r\n\r\n";
    let world = World::new(&[&["93.184.216.34"]], "", answer).await;
    assert_eq!(world.post("http://hooks.example/").await.unwrap().status, 307);
    assert_eq!(world.dialled(), ["93.184.216.34:80"]);
}

#[tokio::test]
async fn whoever_says_nothing_or_nonsense_is_not_waited_for() {
    let world = World::new(&[&["93.184.216.34"]], "", b"").await;
    assert!(matches!(world.post("http://silent.example/").await, Err(NotSent::TooLate(_))));
    let world = World::new(&[&["93.184.216.34"]], "", b"SSH-2.0-OpenSSH\r\n").await;
    assert!(matches!(world.post("http://odd.example/").await, Err(NotSent::Broken(_))));
    let world = World::new(&[&["93.184.216.34"]], "", OK).await;
    let plain = world.post("https://hooks.example/").await.unwrap_err();
    assert!(matches!(plain, NotSent::Tls(_) | NotSent::TooLate(_)), "{plain}");
}

#[tokio::test]
async fn of_an_answer_only_the_beginning_is_kept() {
    let long: &'static [u8] = Box::leak(
        [b"HTTP/1.1 500 No\r\n\r\n\x1b[31m\0".as_slice(), &[b'x'; 100_000]].concat().into_boxed_slice(),
    );
    let world = World::new(&[&["93.184.216.34"]], "", long).await;
    let sent = world.post("http://loud.example/").await.unwrap();
    assert_eq!(sent.status, 500);
    assert!(sent.answer.len() <= LONGEST_ANSWER && sent.answer.len() > 1000, "{}", sent.answer.len());
    assert!(sent.answer.starts_with("\u{fffd}[31m\u{fffd}xxx"), "{}", sent.answer);
    // A receiver that never ends its answer has answered.
    let world = World::new(&[&["93.184.216.34"]], "", b"HTTP/1.1 204 OK\r\n\r\n").await;
    assert_eq!(world.post("http://short.example/").await.unwrap().status, 204);
}

#[test]
fn a_pause_is_seconds_or_a_date() {
    let now = Timestamp::from_second(784_111_777).unwrap();
    let seconds = |text| pause(text, now).map(|pause| pause.as_secs());
    for (text, expected) in [
        ("120", Some(120)),
        (" 0 ", Some(0)),
        ("99999999999999999999", Some(24 * 3600)),
        ("Sun, 06 Nov 1994 08:50:37 GMT", Some(60)),
        ("Sun, 06 Nov 1994 08:00:00 GMT", Some(0)),
        ("-5", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
    ] {
        assert_eq!(seconds(text), expected, "{text}");
    }
}
