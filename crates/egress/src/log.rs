//! One line per request or tunnel, in the common log format with the name of the host before it.

use std::fmt;
use std::sync::Arc;

use cubicle_model::egress::Host;
use cubicle_model::{SandboxId, Timestamp};

/// What is told of a request or a tunnel when it has ended. Paths are left out: they may hold secrets.
#[derive(Debug, Clone)]
pub struct AccessLine {
    pub sandbox: SandboxId,
    pub at: Timestamp,
    pub host: Host,
    pub port: u16,
    /// None for a tunnel.
    pub method: Option<&'static str>,
    /// The status of the answer; none where the gateway did not read it or none came.
    pub status: Option<u16>,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub milliseconds: u64,
}

/// Where lines go.
pub type AccessLog = Arc<dyn Fn(&AccessLine) + Send + Sync>;

impl fmt::Display for AccessLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sandbox, at, host, port, bytes_sent, bytes_received, milliseconds, .. } = self;
        let method = self.method.unwrap_or("CONNECT");
        let status = self.status.map_or("-".to_owned(), |status| status.to_string());
        let time = at.strftime("%d/%b/%Y:%H:%M:%S +0000");
        write!(
            f,
            "{host}:{port} {sandbox} - - [{time}] \"{method} {host}:{port}\" {status} {bytes_received} {bytes_sent} {milliseconds}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_common_form() {
        let line = AccessLine {
            sandbox: SandboxId::from_random([0; 16]),
            at: Timestamp::from_second(1_700_000_000).unwrap(),
            host: "a.example".parse().unwrap(),
            port: 443,
            method: None,
            status: None,
            bytes_sent: 10,
            bytes_received: 20,
            milliseconds: 5,
        };
        assert_eq!(
            line.to_string(),
            "a.example:443 sbx-aaaaaaaaaaaaaaaaaaaaaaaaaa - - [14/Nov/2023:22:13:20 +0000] \"CONNECT a.example:443\" - 20 10 5"
        );
    }
}
