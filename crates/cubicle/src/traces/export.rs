//! Sends spans that have ended, together and in the background.

use std::time::Duration;

use cubicle_api::client::{HeaderName, HeaderValue, Peer, Secret};
use cubicle_model::{Fault, Kind};
use cubicle_server::SpanCounts;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tracing::{info, warn};

use super::span::Ended;
use super::{Destination, otlp};

/// At most so many are sent together.
const TOGETHER: usize = 512;
/// How long a span waits for others to be sent with.
const GATHERING: Duration = Duration::from_secs(1);
/// For an answer of the collector.
const PATIENCE: Duration = Duration::from_secs(10);
/// For the rest, when the server stops.
const LAST_PATIENCE: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(crate) struct Exporter {
    collector: Peer,
    headers: Vec<(HeaderName, HeaderValue)>,
    service: String,
    endpoint: String,
    ended: mpsc::Receiver<Ended>,
    counts: SpanCounts,
    /// Whether the last attempt failed, so that an outage is one line of the log.
    failing: bool,
}

/// A running exporter.
#[derive(Debug)]
pub(crate) struct Sending {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Sending {
    /// Sends what has ended until now, and ends.
    pub(crate) async fn finish(self) {
        // An exporter that has ended needs no word.
        let _ = self.stop.send(());
        // Dropped in the end: a collector that hangs does not keep the server.
        let _ = tokio::time::timeout(2 * LAST_PATIENCE, self.task).await;
    }
}

impl Exporter {
    pub(super) fn new(
        destination: Destination,
        ended: mpsc::Receiver<Ended>,
        counts: SpanCounts,
    ) -> Result<Self, Fault> {
        let mut headers =
            vec![(HeaderName::from_static("content-type"), HeaderValue::from_static("application/json"))];
        headers.extend(destination.headers.as_ref().map(parse_headers).transpose()?.into_iter().flatten());
        Ok(Self {
            endpoint: destination.endpoint.to_string(),
            collector: Peer::new(destination.endpoint),
            headers,
            service: destination.service,
            ended,
            counts,
            failing: false,
        })
    }

    pub(crate) fn start(self) -> Sending {
        let (stop, stopped) = oneshot::channel();
        Sending { stop, task: tokio::spawn(self.send_until(stopped)) }
    }

    async fn send_until(mut self, mut stopped: oneshot::Receiver<()>) {
        let mut batch = Vec::with_capacity(TOGETHER);
        loop {
            let received = tokio::select! {
                // Nothing is lost: what has been queued is sent below.
                _ = &mut stopped => break,
                received = self.ended.recv() => received,
            };
            let Some(first) = received else { return };
            batch.push(first);
            tokio::select! {
                _ = &mut stopped => break,
                () = self.gather(&mut batch) => {}
            }
            self.send(&mut batch, PATIENCE).await;
        }
        while let Ok(ended) = self.ended.try_recv() {
            batch.push(ended);
        }
        for part in batch.chunks(TOGETHER) {
            self.send(&mut part.to_vec(), LAST_PATIENCE).await;
        }
    }

    /// Dropped half-way it loses nothing: what was received is in the batch.
    async fn gather(&mut self, batch: &mut Vec<Ended>) {
        let until = tokio::time::Instant::now() + GATHERING;
        while batch.len() < TOGETHER {
            match tokio::time::timeout_at(until, self.ended.recv()).await {
                Ok(Some(ended)) => batch.push(ended),
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// One attempt: a collector that is down must not make the server remember ever more.
    async fn send(&mut self, batch: &mut Vec<Ended>, patience: Duration) {
        let body = otlp::body(&self.service, batch);
        let outcome = self.collector.post("/v1/traces", &self.headers, body, patience).await;
        let refusal = match outcome {
            Ok(200..300) => None,
            Ok(status) => Some(format!("status {status}")),
            Err(error) => Some(Fault::from(error).to_string()),
        };
        match refusal {
            None => {
                self.counts.sent(batch.len());
                if std::mem::take(&mut self.failing) {
                    let dropped = self.counts.dropped_so_far();
                    info!(endpoint = self.endpoint, dropped, "traces are taken again");
                }
            }
            Some(error) => {
                self.counts.dropped(batch.len());
                if !std::mem::replace(&mut self.failing, true) {
                    let endpoint = self.endpoint.as_str();
                    warn!(endpoint, error, "traces are not taken; spans are dropped until they are");
                }
            }
        }
        batch.clear();
    }
}

/// `name=value,name=value`; values are percent-encoded, as in a W3C baggage header.
fn parse_headers(text: &Secret) -> Result<Vec<(HeaderName, HeaderValue)>, Fault> {
    let bad = || {
        Fault::new(Kind::Invalid, "the headers for traces cannot be read")
            .hint("write OTEL_EXPORTER_OTLP_HEADERS as name=value,name=value")
    };
    let pairs = text.expose().split(',').map(str::trim).filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').ok_or_else(bad)?;
            let name = HeaderName::try_from(name.trim()).map_err(|_| bad())?;
            let value = percent_decoded(value.trim()).ok_or_else(bad)?;
            let mut value = HeaderValue::from_bytes(&value).map_err(|_| bad())?;
            value.set_sensitive(true);
            Ok((name, value))
        })
        .collect()
}

fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        if *first != b'%' {
            bytes.push(*first);
            rest = after;
            continue;
        }
        let (digits, after) = after.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = after;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_every_exporter_reads_them() {
        let headers = parse_headers(&Secret::new("x-key=abc, authorization=Bearer%20t%3D,")).unwrap();
        let shown: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        assert_eq!(shown, [("x-key", &b"abc"[..]), ("authorization", &b"Bearer t="[..])]);
        for bad in ["nonsense", "a b=c", "a=%", "a=%zz", "a=%0a"] {
            let fault = parse_headers(&Secret::new(bad)).unwrap_err();
            assert!(fault.way_out().is_some_and(|hint| hint.contains("name=value")), "{bad}");
            assert!(!fault.to_string().contains(bad), "a header may be a secret");
        }
    }
}
