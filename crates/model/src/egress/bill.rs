//! What went out and came in, for the owner of the work.

use serde::{Deserialize, Serialize};

use super::Host;

/// Everything one sandbox reached or tried to, since it was attached.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Bill {
    pub lines: Vec<BillLine>,
    pub denials: Vec<Denial>,
    /// Attempts that found no line left, as the number of lines is bounded.
    pub unlisted: u64,
}

/// Traffic with one host and port, by one method.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BillLine {
    pub host: Host,
    pub port: u16,
    /// Known for requests that the gateway reads; a tunnel has none.
    pub method: Option<String>,
    pub requests: u64,
    /// Requests and tunnels that came to nothing: no connection, a bad certificate, a broken answer.
    pub failures: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub milliseconds: u64,
}

/// Attempts that the policy refused, by what decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    /// As the client named it; what is not a host is given as it was sent, cut and without control characters.
    pub target: String,
    pub rule: String,
    pub count: u64,
}

impl Bill {
    /// Adds another bill of the same sandbox, as when it was attached anew.
    pub fn add(&mut self, other: Self) {
        for line in other.lines {
            let same = |own: &&mut BillLine| {
                (&own.host, own.port, &own.method) == (&line.host, line.port, &line.method)
            };
            match self.lines.iter_mut().find(same) {
                None => self.lines.push(line),
                Some(own) => {
                    own.requests = own.requests.saturating_add(line.requests);
                    own.failures = own.failures.saturating_add(line.failures);
                    own.bytes_sent = own.bytes_sent.saturating_add(line.bytes_sent);
                    own.bytes_received = own.bytes_received.saturating_add(line.bytes_received);
                    own.milliseconds = own.milliseconds.saturating_add(line.milliseconds);
                }
            }
        }
        for denial in other.denials {
            let same = |own: &&mut Denial| (&own.target, &own.rule) == (&denial.target, &denial.rule);
            match self.denials.iter_mut().find(same) {
                None => self.denials.push(denial),
                Some(own) => own.count = own.count.saturating_add(denial.count),
            }
        }
        self.unlisted = self.unlisted.saturating_add(other.unlisted);
    }

    /// What came to it since an earlier state of the same bill.
    pub fn since(&self, earlier: &Self) -> Self {
        let line = |line: &BillLine| {
            let key = (&line.host, line.port, &line.method);
            let before = earlier.lines.iter().find(|one| (&one.host, one.port, &one.method) == key);
            let Some(before) = before else { return line.clone() };
            BillLine {
                requests: line.requests.saturating_sub(before.requests),
                failures: line.failures.saturating_sub(before.failures),
                bytes_sent: line.bytes_sent.saturating_sub(before.bytes_sent),
                bytes_received: line.bytes_received.saturating_sub(before.bytes_received),
                milliseconds: line.milliseconds.saturating_sub(before.milliseconds),
                ..line.clone()
            }
        };
        let denial = |denial: &Denial| {
            let key = (&denial.target, &denial.rule);
            let before = earlier.denials.iter().find(|one| (&one.target, &one.rule) == key);
            let count = denial.count.saturating_sub(before.map_or(0, |before| before.count));
            Denial { count, ..denial.clone() }
        };
        Self {
            // A tunnel that was open before is no new request, but what went through it is.
            lines: self.lines.iter().map(line).filter(|line| !line.is_empty()).collect(),
            denials: self.denials.iter().map(denial).filter(|denial| denial.count > 0).collect(),
            unlisted: self.unlisted.saturating_sub(earlier.unlisted),
        }
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl BillLine {
    fn is_empty(&self) -> bool {
        self.requests == 0 && self.failures == 0 && self.bytes_sent == 0 && self.bytes_received == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bills_add_up_line_by_line() {
        let line = |port, requests| BillLine {
            host: "a.example".parse().unwrap(),
            port,
            method: None,
            requests,
            failures: 0,
            bytes_sent: 10,
            bytes_received: 20,
            milliseconds: 5,
        };
        let denial = Denial { target: "b.example:443".into(), rule: "not allowed".into(), count: 2 };
        let mut bill = Bill { lines: vec![line(443, 1)], denials: vec![denial.clone()], unlisted: 0 };
        bill.add(Bill { lines: vec![line(443, 2), line(80, 1)], denials: vec![denial], unlisted: 3 });
        assert_eq!(
            bill.lines.iter().map(|line| (line.port, line.requests)).collect::<Vec<_>>(),
            [(443, 3), (80, 1)]
        );
        assert_eq!((bill.denials[0].count, bill.unlisted), (4, 3));
        let json = serde_json::to_string(&bill).unwrap();
        assert_eq!(serde_json::from_str::<Bill>(&json).unwrap(), bill);
    }

    #[test]
    fn the_difference_of_two_states_is_what_came_in_between() {
        let line = |host: &str, requests, bytes_sent| BillLine {
            host: host.parse().unwrap(),
            port: 443,
            method: None,
            requests,
            failures: 0,
            bytes_sent,
            bytes_received: 0,
            milliseconds: 0,
        };
        let denial = |target: &str, count| Denial { target: target.into(), rule: "r".into(), count };
        let before = Bill {
            lines: vec![line("a.example", 1, 10), line("b.example", 1, 10)],
            denials: vec![denial("x", 1), denial("y", 1)],
            unlisted: 1,
        };
        let after = Bill {
            lines: vec![line("a.example", 1, 10), line("b.example", 1, 25), line("c.example", 2, 0)],
            denials: vec![denial("x", 3), denial("y", 1)],
            unlisted: 1,
        };
        let expected = Bill {
            lines: vec![line("b.example", 0, 15), line("c.example", 2, 0)],
            denials: vec![denial("x", 2)],
            unlisted: 0,
        };
        assert_eq!(after.since(&before), expected);
        assert!(after.since(&after).is_empty());
        let mut sum = before.clone();
        sum.add(after.since(&before));
        assert_eq!(sum, after);
    }
}
