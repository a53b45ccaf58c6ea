use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};

use cubicle_worker::Completion;
use cubicle_worker::webhook::{signature, standard_signature};

use crate::harness::Task;

struct Request {
    head: String,
    body: Vec<u8>,
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }
}

/// Answers one status after the other, and hands on what it got.
fn receiver(statuses: &'static [u16]) -> (String, Receiver<Request>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        for status in statuses {
            let (stream, _) = listener.accept().unwrap();
            sender.send(exchange(stream, *status)).unwrap();
        }
    });
    (address, requests)
}

fn exchange(mut stream: TcpStream, status: u16) -> Request {
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    let end = loop {
        let length = stream.read(&mut piece).unwrap();
        bytes.extend_from_slice(&piece[..length]);
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let mut request = Request { head, body: bytes[end..].to_vec() };
    let length: usize = request.header("content-length").unwrap().parse().unwrap();
    while request.body.len() < length {
        let read = stream.read(&mut piece).unwrap();
        request.body.extend_from_slice(&piece[..read]);
    }
    write!(stream, "HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n").unwrap();
    request
}

#[test]
fn completion_is_told_with_both_signatures_and_again_after_a_failure() {
    let (address, requests) = receiver(&[503, 200]);
    let mut task = Task::shell("echo x >output/a.txt; exit 4");
    task.assignment.webhook = Some(format!("http://{address}/api/webhooks/worker-complete?token=abc"));
    task.variables.insert("WEBHOOK_SECRET".into(), "hush".into());
    let ran = task.run();
    ran.ended("failed", 1, "exit code 4");
    let (first, second) = (requests.recv().unwrap(), requests.recv().unwrap());
    assert_eq!(first.body, second.body);
    assert!(
        second.head.starts_with("POST /api/webhooks/worker-complete?token=abc HTTP/1.1\r\n"),
        "{}",
        second.head
    );
    assert_eq!(second.header("content-type"), Some("application/json"));
    assert_eq!(second.header("x-webhook-source"), Some("kubernetes"));
    assert_eq!(second.header("x-webhook-signature").unwrap(), signature(b"hush", &second.body));
    let id = second.header("webhook-id").unwrap();
    let time: i64 = second.header("webhook-timestamp").unwrap().parse().unwrap();
    assert_eq!(
        second.header("webhook-signature").unwrap(),
        standard_signature("hush", id, time, &second.body)
    );
    assert_eq!(first.header("webhook-id"), Some(id));
    let told: Completion = serde_json::from_slice(&second.body).unwrap();
    assert_eq!(told, Completion::of(ran.task.assignment.task_id, &ran.status));
    assert_eq!((told.exit_code, told.output_files), (Some(4), vec!["a.txt".to_owned()]));
}

#[test]
fn a_receiver_that_refuses_or_is_not_there_changes_nothing() {
    let (address, requests) = receiver(&[403]);
    let mut task = Task::shell("true");
    task.assignment.webhook = Some(format!("http://{address}/x"));
    let ran = task.run();
    ran.ended("success", 0, "");
    assert!(ran.stderr.contains("answered 403"), "{}", ran.stderr);
    assert_eq!(requests.recv().unwrap().header("x-webhook-signature"), None);
    let mut task = Task::shell("true");
    task.assignment.webhook = Some("http://127.0.0.1:1/x".into());
    let ran = task.run();
    ran.ended("success", 0, "");
    assert!(ran.stderr.contains("the webhook was not told"), "{}", ran.stderr);
}

#[test]
fn the_proxy_of_the_sandbox_is_taken() {
    let (proxy, requests) = receiver(&[200]);
    let mut task = Task::shell("true");
    task.assignment.webhook = Some("http://assistant.example.org/hook?token=1".into());
    task.variables.insert("http_proxy".into(), format!("http://{proxy}"));
    task.run().ended("success", 0, "");
    let request = requests.recv().unwrap();
    assert!(request.head.starts_with("POST http://assistant.example.org/hook?token=1 HTTP/1.1\r\n"));
    assert_eq!(request.header("host"), Some("assistant.example.org"));
}
