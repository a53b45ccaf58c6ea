//! Counts what a sandbox reaches, while it reaches it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use cubicle_model::egress::{Bill, BillLine, Budget, Denial, Host};
use tokio::time::Instant;

use crate::log::AccessLine;
use crate::outlet::Outlet;
use crate::refusal::Spent;

/// A client can make up hosts without end, so lines are bounded; what finds none is counted.
const MOST_LINES: usize = 1024;
const MOST_DENIALS: usize = 256;
const LONGEST_TARGET: usize = 260;

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    entries: Mutex<Entries>,
    /// Bytes of the whole sandbox, for its budget.
    sent: AtomicU64,
    received: AtomicU64,
}

#[derive(Debug, Default)]
struct Entries {
    lines: HashMap<Key, Arc<Line>>,
    denials: HashMap<(String, String), u64>,
    unlisted: u64,
}

type Key = (Host, u16, Option<&'static str>);

#[derive(Debug, Default)]
struct Line {
    requests: AtomicU64,
    failures: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
    milliseconds: AtomicU64,
}

impl Ledger {
    fn line(&self, key: Key) -> Arc<Line> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.lines.len() >= MOST_LINES && !entries.lines.contains_key(&key) {
            entries.unlisted += 1;
            return Arc::default();
        }
        Arc::clone(entries.lines.entry(key).or_default())
    }

    pub(crate) fn deny(&self, target: &str, rule: String) {
        let clean = |c: char| if c.is_control() { '?' } else { c };
        let target: String = target.chars().take(LONGEST_TARGET).map(clean).collect();
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (target, rule);
        if entries.denials.len() >= MOST_DENIALS && !entries.denials.contains_key(&key) {
            entries.unlisted += 1;
            return;
        }
        *entries.denials.entry(key).or_default() += 1;
    }

    /// Counts the head of a request towards the budget, where a secret could leave as well as in a body, and says whether
    /// anything is left of the budget.
    pub(crate) fn spend(&self, budget: Budget, head: usize) -> Result<(), Spent> {
        let sent = self.sent.fetch_add(head as u64, Relaxed) + head as u64;
        let received = self.received.load(Relaxed);
        match () {
            () if budget.bytes_sent.is_some_and(|most| sent > most) => Err(Spent::Sent),
            () if budget.bytes_received.is_some_and(|most| received > most) => Err(Spent::Received),
            () => Ok(()),
        }
    }

    pub(crate) fn bill(&self) -> Bill {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let line = |((host, port, method), line): (&Key, &Arc<Line>)| BillLine {
            host: host.clone(),
            port: *port,
            method: method.map(str::to_owned),
            requests: line.requests.load(Relaxed),
            failures: line.failures.load(Relaxed),
            bytes_sent: line.sent.load(Relaxed),
            bytes_received: line.received.load(Relaxed),
            milliseconds: line.milliseconds.load(Relaxed),
        };
        let denial = |((target, rule), count): (&(String, String), &u64)| Denial {
            target: target.clone(),
            rule: rule.clone(),
            count: *count,
        };
        let mut lines: Vec<_> = entries.lines.iter().map(line).collect();
        lines.sort_by(|a, b| (&a.host, a.port, &a.method).cmp(&(&b.host, b.port, &b.method)));
        let mut denials: Vec<_> = entries.denials.iter().map(denial).collect();
        denials.sort_by(|a, b| (&a.target, &a.rule).cmp(&(&b.target, &b.rule)));
        Bill { lines, denials, unlisted: entries.unlisted }
    }
}

/// One request or tunnel, counted from its beginning to its end.
pub(crate) struct Tally {
    outlet: Arc<Outlet>,
    line: Arc<Line>,
    host: Host,
    port: u16,
    method: Option<&'static str>,
    began: Instant,
    sent: AtomicU64,
    received: AtomicU64,
    /// Zero until an answer came.
    status: AtomicU16,
}

impl Tally {
    pub(crate) fn begin(outlet: &Arc<Outlet>, host: &Host, port: u16, method: Option<&str>) -> Arc<Self> {
        let method = method.map(known);
        let line = outlet.ledger().line((host.clone(), port, method));
        line.requests.fetch_add(1, Relaxed);
        Arc::new(Self {
            outlet: Arc::clone(outlet),
            line,
            host: host.clone(),
            port,
            method,
            began: Instant::now(),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            status: AtomicU16::new(0),
        })
    }

    /// Counts bytes towards the outside, and says whether the budget has more of them.
    pub(crate) fn sent(&self, bytes: usize) -> Result<(), Spent> {
        let bytes = bytes as u64;
        self.sent.fetch_add(bytes, Relaxed);
        self.line.sent.fetch_add(bytes, Relaxed);
        let all = self.outlet.ledger().sent.fetch_add(bytes, Relaxed) + bytes;
        let most = self.outlet.terms().policy.budget().bytes_sent;
        if most.is_some_and(|most| all > most) { Err(Spent::Sent) } else { Ok(()) }
    }

    pub(crate) fn received(&self, bytes: usize) -> Result<(), Spent> {
        let bytes = bytes as u64;
        self.received.fetch_add(bytes, Relaxed);
        self.line.received.fetch_add(bytes, Relaxed);
        let all = self.outlet.ledger().received.fetch_add(bytes, Relaxed) + bytes;
        let most = self.outlet.terms().policy.budget().bytes_received;
        if most.is_some_and(|most| all > most) { Err(Spent::Received) } else { Ok(()) }
    }

    pub(crate) fn bytes_sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    pub(crate) fn answered(&self, status: u16) {
        self.status.store(status, Relaxed);
    }

    pub(crate) fn failed(&self) {
        self.line.failures.fetch_add(1, Relaxed);
    }

    /// Notes that the budget stopped it.
    pub(crate) fn spent(&self, spent: Spent) {
        self.outlet.ledger().deny(&format!("{}:{}", self.host, self.port), format!("budget: {spent}"));
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        let milliseconds = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.line.milliseconds.fetch_add(milliseconds, Relaxed);
        let outside = &self.outlet.shared().outside;
        if let Some(log) = &outside.log {
            let status = self.status.load(Relaxed);
            log(&AccessLine {
                sandbox: self.outlet.sandbox(),
                at: (outside.clock)(),
                host: self.host.clone(),
                port: self.port,
                method: self.method,
                status: (status != 0).then_some(status),
                bytes_sent: self.sent.load(Relaxed),
                bytes_received: self.received.load(Relaxed),
                milliseconds,
            });
        }
    }
}

/// The method, where it is one of the usual: a client can make up methods without end.
fn known(method: &str) -> &'static str {
    const USUAL: [&str; 8] = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"];
    USUAL.into_iter().find(|usual| *usual == method).unwrap_or("OTHER")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_denials_are_bounded() {
        let ledger = Ledger::default();
        for index in 0..MOST_LINES + 7 {
            let host = format!("h{index}.example").parse().unwrap();
            ledger.line((host, 443, None)).requests.fetch_add(1, Relaxed);
        }
        for index in 0..MOST_DENIALS + 5 {
            ledger.deny(&format!("h{index}.example:443"), "not allowed".into());
        }
        ledger.deny("h0.example:443", "not allowed".into());
        let bill = ledger.bill();
        assert_eq!((bill.lines.len(), bill.denials.len(), bill.unlisted), (MOST_LINES, MOST_DENIALS, 12));
        assert_eq!(bill.denials.iter().find(|denial| denial.target == "h0.example:443").unwrap().count, 2);
    }

    #[test]
    fn a_denied_target_cannot_write_into_the_terminal_of_its_reader() {
        let ledger = Ledger::default();
        ledger.deny(&format!("\x1b[2J\r\n{}", "x".repeat(1000)), "not a host".into());
        let target = &ledger.bill().denials[0].target;
        assert!(target.starts_with("?[2J??xxx") && target.len() == LONGEST_TARGET, "{target:?}");
    }
}
