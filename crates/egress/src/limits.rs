//! Bounds that hold for every sandbox, whatever its policy allows.

use std::time::Duration;

/// What one client may take of the gateway.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The head of a request or an answer, in bytes.
    pub head: usize,
    /// Header lines of a request or an answer.
    pub headers: usize,
    /// The body of one request, in bytes.
    pub request_body: u64,
    /// Open connections of all sandboxes together.
    pub connections: usize,
    /// Open connections of one sandbox, unless its budget says less.
    pub connections_per_sandbox: usize,
    /// Until a client has sent the head of its request, or the hello of its TLS.
    pub head_deadline: Duration,
    /// Until a name is resolved, and again until a connection is made.
    pub connect_deadline: Duration,
    /// Until the head of an answer has come. Models think for minutes before they say a word.
    pub answer_deadline: Duration,
    /// Without a byte in a body or, in both directions, in a tunnel.
    pub idle: Duration,
    /// Upstream connections that are kept open between requests, per sandbox.
    pub idle_upstream: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head: 64 * 1024,
            headers: 128,
            request_body: 8 << 30,
            connections: 8192,
            connections_per_sandbox: 1024,
            head_deadline: Duration::from_secs(20),
            connect_deadline: Duration::from_secs(10),
            answer_deadline: Duration::from_secs(900),
            idle: Duration::from_secs(900),
            idle_upstream: 16,
        }
    }
}
