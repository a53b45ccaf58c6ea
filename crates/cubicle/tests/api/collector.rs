//! A collector of traces on loopback, which looks closely at what it is sent.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::Value;

pub(crate) struct Collector {
    pub(crate) address: SocketAddr,
    received: Arc<Mutex<Received>>,
}

#[derive(Default)]
struct Received {
    spans: Vec<Value>,
    services: Vec<Value>,
    headers: Vec<String>,
    wrong: Vec<String>,
}

/// How it treats whoever connects.
#[derive(Clone, Copy)]
pub(crate) enum Manners {
    Takes,
    /// Takes what is sent, and never answers.
    Hangs,
}

impl Collector {
    pub(crate) fn start(manners: Manners) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a port");
        let address = listener.local_addr().expect("it listens");
        let received = Arc::new(Mutex::new(Received::default()));
        let shared = Arc::clone(&received);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || serve(stream, &shared, manners));
            }
        });
        Self { address, received }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Every span so far. One that is not of the right form fails the test.
    pub(crate) fn spans(&self) -> Vec<Value> {
        let received = self.received.lock().expect("nobody panics with the lock");
        assert_eq!(received.wrong, Vec::<String>::new());
        received.spans.clone()
    }

    /// Those of one trace.
    pub(crate) fn trace(&self, id: &str) -> Vec<Value> {
        self.spans().into_iter().filter(|span| span["traceId"] == id).collect()
    }

    pub(crate) fn services(&self) -> Vec<Value> {
        self.received.lock().expect("nobody panics with the lock").services.clone()
    }

    pub(crate) fn headers(&self) -> Vec<String> {
        self.received.lock().expect("nobody panics with the lock").headers.clone()
    }
}

fn serve(stream: TcpStream, received: &Mutex<Received>, manners: Manners) {
    let mut answers = stream.try_clone().expect("a socket can be duplicated");
    let mut requests = BufReader::new(stream);
    while let Some((head, body)) = request(&mut requests) {
        let mut received = received.lock().expect("nobody panics with the lock");
        received.take(&head, &body);
        drop(received);
        match manners {
            Manners::Takes => {
                let answer =
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
                if answers.write_all(answer.as_bytes()).is_err() {
                    return;
                }
            }
            // Until whoever sent it gives up.
            Manners::Hangs => drop(requests.read(&mut [0])),
        }
    }
}

fn request(from: &mut impl BufRead) -> Option<(Vec<String>, Vec<u8>)> {
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        if from.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line => head.push(line.to_owned()),
        }
    }
    let length =
        head.iter().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    from.read_exact(&mut body).ok()?;
    Some((head, body))
}

impl Received {
    fn take(&mut self, head: &[String], body: &[u8]) {
        self.headers.extend_from_slice(head);
        if head.first().map(String::as_str) != Some("POST /v1/traces HTTP/1.1") {
            self.wrong.push(format!("a request that no collector has: {head:?}"));
        }
        if !head.iter().any(|line| line == "content-type: application/json") {
            self.wrong.push(format!("it is not called JSON: {head:?}"));
        }
        let Ok(body) = serde_json::from_slice::<Value>(body) else {
            self.wrong.push(format!("not JSON: {}", String::from_utf8_lossy(body)));
            return;
        };
        for resource in items(&body["resourceSpans"]) {
            self.services.extend(items(&resource["resource"]["attributes"]).cloned());
            for scope in items(&resource["scopeSpans"]) {
                for span in items(&scope["spans"]) {
                    self.wrong.extend(faults(span));
                    self.spans.push(span.clone());
                }
            }
        }
    }
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().map(Vec::as_slice).unwrap_or_default().iter()
}

/// What about a span is not as OTLP maps it to JSON.
fn faults(span: &Value) -> Vec<String> {
    let hexadecimal = |value: &Value, length: usize| {
        value.as_str().is_some_and(|text| {
            text.len() == length
                && text.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c))
                && text.bytes().any(|c| c != b'0')
        })
    };
    let nanoseconds = |value: &Value| value.as_str().and_then(|text| text.parse::<u64>().ok());
    let (began, ended) = (nanoseconds(&span["startTimeUnixNano"]), nanoseconds(&span["endTimeUnixNano"]));
    let checks = [
        ("traceId", hexadecimal(&span["traceId"], 32)),
        ("spanId", hexadecimal(&span["spanId"], 16)),
        ("parentSpanId", span.get("parentSpanId").is_none_or(|parent| hexadecimal(parent, 16))),
        ("name", span["name"].as_str().is_some_and(|name| !name.is_empty())),
        ("kind", span["kind"].as_u64().is_some_and(|kind| (1..=5).contains(&kind))),
        ("times", began.zip(ended).is_some_and(|(began, ended)| began > 1 << 60 && began <= ended)),
        ("status", span.get("status").is_none_or(|status| status["code"].is_u64())),
        ("attributes", span["attributes"].is_array() && items(&span["attributes"]).all(is_attribute)),
    ];
    checks
        .into_iter()
        .filter(|(_, good)| !good)
        .map(|(what, _)| format!("{what} is not as it should be: {span}"))
        .collect()
}

fn is_attribute(attribute: &Value) -> bool {
    let value = attribute["value"].as_object();
    let Some((kind, value)) = value.filter(|value| value.len() == 1).and_then(|value| value.iter().next())
    else {
        return false;
    };
    let good = match kind.as_str() {
        "stringValue" => value.is_string(),
        "intValue" => value.as_str().is_some_and(|text| text.parse::<i64>().is_ok()),
        "boolValue" => value.is_boolean(),
        "doubleValue" => value.is_number(),
        _ => false,
    };
    good && attribute["key"].as_str().is_some_and(|key| !key.is_empty())
}
