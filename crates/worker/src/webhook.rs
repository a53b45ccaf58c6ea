//! Tells that a task has ended: one POST in plain HTTP/1.1, signed, tried a few times. What becomes of it changes nothing about the
//! task.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::Completion;
use crate::completion::SOURCE;

pub const SIGNATURE: &str = "X-Webhook-Signature";

/// Between tries.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(250), Duration::from_millis(1000), Duration::from_millis(3000)];
const PATIENCE: Duration = Duration::from_secs(5);

/// `sha256=` and the HMAC of the raw body in hexadecimal digits.
pub fn signature(secret: &[u8], body: &[u8]) -> String {
    let digits: String = hmac(secret, &[body]).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256={digits}")
}

/// The signature of Standard Webhooks. A secret of the form `whsec_…` is the key in base64, any other is the key itself.
pub fn standard_signature(secret: &str, id: &str, timestamp: i64, body: &[u8]) -> String {
    let key = secret
        .strip_prefix("whsec_")
        .and_then(|text| STANDARD.decode(text).ok())
        .unwrap_or_else(|| secret.as_bytes().to_vec());
    let head = format!("{id}.{timestamp}.");
    format!("v1,{}", STANDARD.encode(hmac(&key, &[head.as_bytes(), body])))
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any length is a key");
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().to_vec()
}

/// Where and how completion is told.
#[derive(Debug)]
pub(crate) struct Webhook<'a> {
    pub(crate) url: &'a str,
    pub(crate) secret: Option<&'a str>,
    pub(crate) proxy: Option<Authority>,
    /// Seconds since 1970.
    pub(crate) time: i64,
}

impl Webhook<'_> {
    pub(crate) fn tell(&self, completion: &Completion) -> Result<(), String> {
        let target = Target::parse(self.url)?;
        let body = serde_json::to_vec(completion).map_err(|error| error.to_string())?;
        let request = self.request(&target, completion, &body);
        let to = self.proxy.as_ref().unwrap_or(&target.authority);
        let mut pauses = PAUSES.iter();
        loop {
            let trouble = match post(to, &request) {
                Ok(200..=299) => return Ok(()),
                Ok(status @ (408 | 425 | 429 | 500..)) => format!("answered {status}"),
                Ok(status) => return Err(format!("answered {status}")),
                Err(error) => error.to_string(),
            };
            match pauses.next() {
                Some(pause) => std::thread::sleep(*pause),
                None => return Err(trouble),
            }
        }
    }

    fn request(&self, target: &Target, completion: &Completion, body: &[u8]) -> Vec<u8> {
        let path = match &self.proxy {
            Some(_) => format!("http://{}{}", target.authority, target.path),
            None => target.path.clone(),
        };
        let mut head = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
             Connection: close\r\nUser-Agent: cubicle-worker\r\nX-Webhook-Source: {SOURCE}\r\n",
            target.authority,
            body.len()
        );
        if let Some(secret) = self.secret {
            let id = format!("msg_{}", completion.task_id);
            let signed = standard_signature(secret, &id, self.time, body);
            head.push_str(&format!(
                "{SIGNATURE}: {}\r\nwebhook-id: {id}\r\nwebhook-timestamp: {}\r\nwebhook-signature: {signed}\r\n",
                signature(secret.as_bytes(), body),
                self.time
            ));
        }
        [head.as_bytes(), b"\r\n", body].concat()
    }
}

fn post(to: &Authority, request: &[u8]) -> io::Result<u16> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, format!("{} has no address", to.host));
    for address in (to.host.as_str(), to.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return exchange(stream, request),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn exchange(mut stream: TcpStream, request: &[u8]) -> io::Result<u16> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(request)?;
    // Only the first line matters.
    let mut answer = Vec::new();
    let mut piece = [0; 512];
    while !answer.contains(&b'\n') && answer.len() < 4096 {
        match stream.read(&mut piece)? {
            0 => break,
            length => answer.extend_from_slice(&piece[..length]),
        }
    }
    let line = String::from_utf8_lossy(&answer);
    let status =
        line.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)).and_then(|code| code.parse().ok());
    status.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the answer is not HTTP"))
}

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Authority {
    host: String,
    port: u16,
}

impl std::fmt::Display for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.host.contains(':'), self.port) {
            (true, port) => write!(f, "[{}]:{port}", self.host),
            (false, 80) => f.write_str(&self.host),
            (false, port) => write!(f, "{}:{port}", self.host),
        }
    }
}

impl Authority {
    fn parse(text: &str) -> Option<Self> {
        let text = text.rsplit_once('@').map_or(text, |(_, rest)| rest);
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']')?;
                (host, rest.strip_prefix(':'))
            }
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let port = port.map_or(Some(80), |port| port.parse().ok())?;
        (!host.is_empty()).then(|| Self { host: host.to_owned(), port })
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Target {
    authority: Authority,
    /// With the query.
    path: String,
}

impl Target {
    fn parse(url: &str) -> Result<Self, String> {
        let Some(rest) = url.strip_prefix("http://") else {
            return Err("only http:// can be told from inside a sandbox".into());
        };
        if url.bytes().any(|byte| byte.is_ascii_control() || byte == b' ') {
            return Err("the webhook's address has characters that no address has".into());
        }
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let authority = Authority::parse(authority).ok_or("the webhook's address names no host")?;
        let slash = if path.starts_with('/') { "" } else { "/" };
        Ok(Self { authority, path: format!("{slash}{path}") })
    }
}

/// The proxy that plain HTTP to this address takes, by `HTTP_PROXY` and `NO_PROXY` in either case.
pub(crate) fn proxy_for(url: &str, variable: impl Fn(&str) -> Option<String>) -> Option<Authority> {
    let either = |upper: &str| variable(&upper.to_ascii_lowercase()).or_else(|| variable(upper));
    let target = Target::parse(url).ok()?.authority;
    let proxy = either("HTTP_PROXY").filter(|text| !text.is_empty())?;
    let exempt = either("NO_PROXY").unwrap_or_default();
    if exempt.split(',').any(|entry| is_exempt(entry.trim(), &target)) {
        return None;
    }
    let proxy = proxy.strip_prefix("http://").unwrap_or(&proxy);
    Authority::parse(proxy.trim_end_matches('/'))
}

fn is_exempt(entry: &str, target: &Authority) -> bool {
    let (host, port) = match entry.split_once(':') {
        Some((host, port)) if !port.contains(':') => (host, port.parse().ok()),
        _ => (entry, None),
    };
    let host = host.strip_prefix("*").filter(|rest| rest.starts_with('.')).unwrap_or(host);
    let matches = match host.strip_prefix('.') {
        Some(domain) => target.host == domain || target.host.ends_with(host),
        None => host == "*" || target.host == host || target.host.ends_with(&format!(".{host}")),
    };
    !host.is_empty() && matches && port.is_none_or(|port: u16| port == target.port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let target = |url| Target::parse(url).map(|target| (target.authority.to_string(), target.path));
        let table = [
            ("http://a:8000/x?token=1", "a:8000", "/x?token=1"),
            ("http://a", "a", "/"),
            ("http://a?b", "a", "/?b"),
            ("http://[::1]:9/x", "[::1]:9", "/x"),
        ];
        for (url, authority, path) in table {
            assert_eq!(target(url), Ok((authority.to_owned(), path.to_owned())));
        }
        for url in ["https://a/", "http://", "http://a:x/", "http://a/\r\nX: y"] {
            assert!(target(url).is_err(), "{url}");
        }
    }

    #[test]
    fn the_proxy_is_taken_unless_the_host_is_exempt() {
        let proxy = |no_proxy: &'static str| {
            proxy_for("http://hooks.example.org:81/x", move |name| match name {
                "HTTP_PROXY" => Some("http://127.0.0.1:3128/".into()),
                "no_proxy" => Some(no_proxy.into()),
                _ => None,
            })
        };
        for taken in ["", "localhost", "ample.org", "hooks.example.org:80", ".other"] {
            assert_eq!(
                proxy(taken).map(|proxy| proxy.to_string()).as_deref(),
                Some("127.0.0.1:3128"),
                "{taken}"
            );
        }
        for exempt in ["*", "example.org", ".example.org", "*.example.org", "x, hooks.example.org:81"] {
            assert_eq!(proxy(exempt), None, "{exempt}");
        }
    }

    #[test]
    fn signatures_are_those_of_the_specifications() {
        // RFC 4231, test case 2.
        assert_eq!(
            signature(b"Jefe", b"what do ya want for nothing?"),
            "sha256=5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        // The example of Standard Webhooks' own libraries.
        assert_eq!(
            standard_signature(
                "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
                "msg_p5jXN8AQM9LWM0D4loKWxJek",
                1_614_265_330,
                br#"{"test": 2432232314}"#
            ),
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
        );
    }
}
