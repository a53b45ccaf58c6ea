//! The server's log: one line per event on stderr, as text on a terminal and as JSON elsewhere. Every line carries what is
//! known of the request, the lease, the sandbox and the exec that it is about.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal, Write};

use cubicle_model::{Fault, Kind};
use cubicle_server::LogMasks;
use serde_json::{Map, Value as Json};
use tracing::field::{Field, Visit};
use tracing::span::Record;
use tracing::{Event, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry};

use crate::traces::{self, Recorder};

/// `what` is as in `info,cubicle_server=debug`. It is about the log alone: traces are whole.
pub(crate) fn start(what: Option<&str>, recorder: Option<Recorder>, masks: LogMasks) -> Result<(), Fault> {
    let filter = EnvFilter::try_new(what.unwrap_or("warn,cubicle=info")).map_err(|error| {
        Fault::new(Kind::Invalid, format!("the log cannot be filtered so: {error}"))
            .hint("write a level, or names with levels: info,cubicle_server=debug")
    })?;
    let recorder = recorder.map(|recorder| recorder.with_filter(traces::filter()));
    let registry = Registry::default().with(recorder);
    let started = match std::io::stderr().is_terminal() {
        true => {
            let lines = tracing_subscriber::fmt::layer().with_target(false);
            let lines = lines.with_writer(move || Masked { masks: masks.clone() }).with_filter(filter);
            registry.with(lines).try_init()
        }
        false => {
            let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
            let lines = lines.fmt_fields(Members).event_format(Line { masks }).with_filter(filter);
            registry.with(lines).try_init()
        }
    };
    started.map_err(|error| Fault::new(Kind::Internal, format!("the log cannot be started: {error}")))
}

/// Text on a terminal. A line comes in one piece, and is masked as a whole.
struct Masked {
    masks: LogMasks,
}

impl Write for Masked {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        io::stderr().write_all(self.masks.text(&text).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// One flat JSON object: when, how grave, what, and then the fields of the event and of every span around it. Of two with
/// the same name the inner one counts.
struct Line {
    masks: LogMasks,
}

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields::default();
        for span in context.event_scope().into_iter().flat_map(|scope| scope.from_root()) {
            if let Some(trace) = traces::trace_of(&span) {
                fields.0.insert("trace_id".into(), trace.into());
            }
            let extensions = span.extensions();
            let formatted = extensions.get::<FormattedFields<N>>().map(|formatted| formatted.fields.as_str());
            if let Some(members) = formatted {
                fields.0.extend(Members::read(members));
            }
        }
        event.record(&mut fields);
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let (level, target) = (event.metadata().level().as_str(), event.metadata().target());
        let mut message = fields.0.remove("message").unwrap_or_default();
        fields.0.values_mut().chain([&mut message]).for_each(|value| self.mask(value));
        write!(writer, "{{\"timestamp\":{},\"level\":\"{level}\",\"message\":{message}", Json::from(time))?;
        for (name, value) in &fields.0 {
            write!(writer, ",{}:{value}", Json::from(name.as_str()))?;
        }
        writeln!(writer, ",\"target\":{}}}", Json::from(target))
    }
}

/// The fields of a span as members of an object, one after the other. Spans are made for every request, and lines are written
/// for few: what is added later is appended, and read only with a line.
struct Members;

impl<'writer> FormatFields<'writer> for Members {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut members = String::new();
        fields.record(&mut Member(&mut members));
        writer.write_str(&members)
    }

    fn add_fields(&self, current: &'writer mut FormattedFields<Self>, fields: &Record<'_>) -> fmt::Result {
        fields.record(&mut Member(&mut current.fields));
        Ok(())
    }
}

impl Members {
    /// Of two with the same name the later one counts.
    fn read(members: &str) -> Map<String, Json> {
        serde_json::from_str(&format!("{{{members}}}")).unwrap_or_default()
    }
}

/// Appends a field as a member.
struct Member<'a>(&'a mut String);

impl Member<'_> {
    fn add(&mut self, field: &Field, value: impl Into<Json>) {
        if !self.0.is_empty() {
            self.0.push(',');
        }
        // Writing to memory cannot fail; names of fields are words of the code.
        let _ = write!(self.0, "\"{}\":{}", field.name(), value.into());
    }
}

impl Line {
    /// Fields are texts and numbers.
    fn mask(&self, value: &mut Json) {
        if let Json::String(text) = value
            && let Cow::Owned(masked) = self.masks.text(text)
        {
            *text = masked;
        }
    }
}

#[derive(Default)]
struct Fields(Map<String, Json>);

impl Fields {
    fn add(&mut self, field: &Field, value: impl Into<Json>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

/// Values of fields are those of JSON.
macro_rules! visit {
    ($kind:ty) => {
        impl Visit for $kind {
            fn record_str(&mut self, field: &Field, value: &str) {
                self.add(field, value);
            }

            fn record_i64(&mut self, field: &Field, value: i64) {
                self.add(field, value);
            }

            fn record_u64(&mut self, field: &Field, value: u64) {
                self.add(field, value);
            }

            fn record_bool(&mut self, field: &Field, value: bool) {
                self.add(field, value);
            }

            fn record_f64(&mut self, field: &Field, value: f64) {
                self.add(field, value);
            }

            fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
                self.add(field, format!("{value:?}"));
            }
        }
    };
}

visit!(Fields);
visit!(Member<'_>);
