//! One span, from its beginning to its end.

use std::borrow::Cow;
use std::fmt;

use cubicle_server::LogMasks;
use tracing::field::{Field, Visit};

/// Fields with which a span ends, whatever goes on in its name.
const RESULTS: [&str; 2] = ["status", "exit"];

/// Where a span is: in which trace, and under which id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) trace: [u8; 16],
    pub(super) span: [u8; 8],
    /// Whether the trace is wanted. Whoever began it decides.
    pub(super) sampled: bool,
}

impl Position {
    /// What a `traceparent` header says: `00-<trace>-<span>-<flags>`, as the W3C writes it.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        // Later versions may append parts; this one has none.
        if version == "ff" || (version == "00" && parts.next().is_some()) {
            return None;
        }
        let [_]: [u8; 1] = from_hexadecimal(version)?;
        let position = Self {
            trace: from_hexadecimal(trace)?,
            span: from_hexadecimal(span)?,
            sampled: from_hexadecimal::<1>(flags)?[0] & 1 == 1,
        };
        let nothing = position.trace == [0; 16] || position.span == [0; 8];
        (!nothing).then_some(position)
    }
}

/// A value as OTLP has it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Text(String),
    Whole(i64),
    Flag(bool),
    Real(f64),
}

/// A span that has not ended. It stays where it is after its end, for what began within it.
#[derive(Debug)]
pub(crate) struct Open {
    name: &'static str,
    position: Position,
    parent: Option<[u8; 8]>,
    began: i128,
    left: Option<i128>,
    fields: Vec<(&'static str, Value)>,
    ended: bool,
}

/// A span on its way to the collector.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ended {
    pub(super) name: &'static str,
    pub(super) position: Position,
    pub(super) parent: Option<[u8; 8]>,
    /// Nanoseconds since 1970.
    pub(super) began: i128,
    pub(super) ended: i128,
    pub(super) fields: Vec<(&'static str, Value)>,
}

impl Ended {
    pub(super) fn mask(&mut self, masks: &LogMasks) {
        for (_, value) in &mut self.fields {
            if let Value::Text(text) = value
                && let Cow::Owned(masked) = masks.text(text)
            {
                *text = masked;
            }
        }
    }
}

impl Open {
    pub(super) fn begin(name: &'static str, span: [u8; 8], now: i128) -> Self {
        let position = Position { trace: [0; 16], span, sampled: true };
        Self { name, position, parent: None, began: now, left: None, fields: Vec::new(), ended: false }
    }

    /// Below the span around it, or what a caller says is around it, or at the top of a new trace.
    pub(super) fn place(&mut self, around: Option<Position>, new_trace: impl FnOnce() -> [u8; 16]) {
        let around = around.or_else(|| self.text("traceparent").and_then(Position::parse));
        match around {
            Some(around) => {
                self.parent = Some(around.span);
                (self.position.trace, self.position.sampled) = (around.trace, around.sampled);
            }
            None => self.position.trace = new_trace(),
        }
    }

    pub(super) fn leave_out(&mut self) {
        self.position.sampled = false;
    }

    pub(super) fn context(&self) -> Position {
        self.position
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.fields.iter().find_map(|(known, value)| match value {
            Value::Text(text) if *known == name => Some(text.as_str()),
            _ => None,
        })
    }

    pub(super) fn has_its_result(&self) -> bool {
        self.fields.iter().any(|(name, _)| RESULTS.contains(name))
    }

    pub(super) fn left(&mut self, now: i128) {
        self.left = Some(now);
    }

    pub(super) fn last_left(&self) -> Option<i128> {
        self.left
    }

    /// What is to be sent; nothing the second time, or where nobody wants the trace.
    pub(super) fn end(&mut self, now: i128) -> Option<Ended> {
        if std::mem::replace(&mut self.ended, true) || !self.position.sampled {
            return None;
        }
        Some(Ended {
            name: self.name,
            position: self.position,
            parent: self.parent,
            began: self.began,
            // The clock of the host may be set back meanwhile.
            ended: now.max(self.began),
            fields: std::mem::take(&mut self.fields),
        })
    }

    fn set(&mut self, field: &Field, value: Value) {
        let name = field.name();
        match self.fields.iter_mut().find(|(known, _)| *known == name) {
            Some((_, before)) => *before = value,
            None => self.fields.push((name, value)),
        }
    }
}

impl Visit for Open {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, Value::Text(value.to_owned()));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, Value::Whole(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, Value::Whole(i64::try_from(value).unwrap_or(i64::MAX)));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, Value::Flag(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, Value::Real(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field, Value::Text(format!("{value:?}")));
    }
}

/// Only lower-case digits, as the header is specified.
fn from_hexadecimal<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
    if text.len() != 2 * N || !text.bytes().all(digits) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, at) in bytes.iter_mut().zip((0..text.len()).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use cubicle_model::hexadecimal;

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    #[test]
    fn a_traceparent_is_read_as_the_w3c_writes_it() {
        let position = Position::parse(&format!("00-{TRACE}-{SPAN}-01")).unwrap();
        assert_eq!((hexadecimal(&position.trace).as_str(), position.sampled), (TRACE, true));
        assert_eq!(hexadecimal(&position.span), SPAN);
        assert!(!Position::parse(&format!("00-{TRACE}-{SPAN}-00")).unwrap().sampled);
        assert!(Position::parse(&format!("cc-{TRACE}-{SPAN}-01-what-comes-later")).is_some());
    }

    #[test]
    fn a_traceparent_that_says_nothing_is_ignored() {
        let zeros = "0".repeat(32);
        for bad in [
            String::new(),
            "nonsense".into(),
            format!("00-{TRACE}-{SPAN}"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("00-{zeros}-{SPAN}-01"),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}é-{SPAN}-01"),
        ] {
            assert_eq!(Position::parse(&bad), None, "{bad}");
        }
    }

    #[test]
    fn a_span_ends_once() {
        let mut open = Open::begin("request", [1; 8], 10);
        open.place(None, || [2; 16]);
        let ended = open.end(5).unwrap();
        assert_eq!((ended.began, ended.ended), (10, 10), "no span ends before it began");
        assert_eq!(open.end(20), None);
    }

    #[test]
    fn what_its_caller_does_not_want_is_not_sent() {
        let around = Position { trace: [1; 16], span: [2; 8], sampled: false };
        let mut open = Open::begin("request", [3; 8], 0);
        open.place(Some(around), || [9; 16]);
        assert_eq!(open.context().trace, [1; 16]);
        assert_eq!(open.end(1), None);
    }
}
