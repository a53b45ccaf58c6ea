//! Traces: the server's spans, sent to a collector that speaks OTLP over HTTP in its JSON form.
//!
//! Nothing waits for a collector. Spans that have ended are queued up to a bound and sent together by a task of their own;
//! what finds no place in the queue, or is not taken, is dropped and counted.

mod export;
mod otlp;
mod span;

use std::fmt;

use cubicle_api::client::{Address, Secret};
use cubicle_model::{Fault, Timestamp};
use cubicle_server::{LogMasks, SpanCounts};
use cubicle_store::Random;
use tokio::sync::mpsc;
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::FilterFn;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

pub(crate) use export::{Exporter, Sending};
use span::{Ended, Open};

/// More than a second's worth on a busy server.
const QUEUED: usize = 4096;
/// Asked all day by machines that look after the server.
const UNTRACED: [&str; 3] = ["/health", "/ready", "/metrics"];

/// Where traces go, and as whose.
#[derive(Debug)]
pub(crate) struct Destination {
    pub(crate) endpoint: Address,
    /// As `name=value,name=value`, the values percent-encoded.
    pub(crate) headers: Option<Secret>,
    pub(crate) service: String,
}

/// What notes spans, and what sends them.
pub(crate) fn to(
    destination: Destination,
    random: Random,
    counts: SpanCounts,
    masks: LogMasks,
) -> Result<(Recorder, Exporter), Fault> {
    let (queue, ended) = mpsc::channel(QUEUED);
    let exporter = Exporter::new(destination, ended, counts.clone())?;
    Ok((Recorder { queue, random, counts, masks }, exporter))
}

/// Notes the beginning and the end of spans.
pub(crate) struct Recorder {
    queue: mpsc::Sender<Ended>,
    random: Random,
    counts: SpanCounts,
    masks: LogMasks,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recorder")
    }
}

/// The spans of this product: libraries have theirs for themselves.
pub(crate) fn filter() -> FilterFn<fn(&Metadata<'_>) -> bool> {
    FilterFn::new(|metadata| metadata.is_span() && metadata.target().starts_with("cubicle"))
}

/// The trace that a span is a part of, in hexadecimal.
pub(crate) fn trace_of<'a, S: LookupSpan<'a>>(
    span: &tracing_subscriber::registry::SpanRef<'a, S>,
) -> Option<String> {
    span.extensions().get::<Open>().map(|open| cubicle_model::hexadecimal(&open.context().trace))
}

impl Recorder {
    fn now(&self) -> i128 {
        // Whoever reads a trace compares it with other clocks of the same moment.
        Timestamp::now().as_nanosecond()
    }

    fn random<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        (self.random)(&mut bytes);
        bytes
    }

    fn enqueue(&self, mut ended: Ended) {
        ended.mask(&self.masks);
        if self.queue.try_send(ended).is_err() {
            self.counts.dropped(1);
        }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Recorder {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let parent = span.parent().and_then(|parent| parent.extensions().get::<Open>().map(Open::context));
        let mut open = Open::begin(span.name(), self.random(), self.now());
        attributes.record(&mut open);
        open.place(parent, || self.random());
        if open.text("route").is_some_and(|route| UNTRACED.contains(&route)) {
            open.leave_out();
        }
        span.extensions_mut().insert(open);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut extensions = span.extensions_mut();
        let Some(open) = extensions.get_mut::<Open>() else { return };
        values.record(open);
        if open.has_its_result()
            && let Some(ended) = open.end(self.now())
        {
            self.enqueue(ended);
        }
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(open) = span.extensions_mut().get_mut::<Open>() {
            open.left(self.now());
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let mut extensions = span.extensions_mut();
        let ended = extensions.get_mut::<Open>().and_then(|open| {
            // What it began may have kept it open after its own work was done.
            let at = open.last_left().unwrap_or_else(|| self.now());
            open.end(at)
        });
        if let Some(ended) = ended {
            self.enqueue(ended);
        }
    }
}
