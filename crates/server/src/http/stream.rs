//! Streams: the output of an exec, and events.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use cubicle_api as api;
use cubicle_guest::journal::Kind as RecordKind;
use cubicle_model::{Event, ExecId, Fault, Kind, LeaseId, Name, Scope, TaskId, Timestamp};
use cubicle_store::Exec;
use futures_util::stream::{self, Stream};

use super::problem::Answer;
use super::request::{Id, Query};
use crate::app::{App, Caller};
use crate::journal::fanout::{Rendering, SharedFrame};
use crate::journal::{Output, OwnedFrame};

/// A line that keeps proxies from closing a stream on which nothing happens.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const TOGETHER: u32 = 256;

#[derive(Debug, Default, serde::Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct From {
    /// The first seq that is wanted.
    #[param(minimum = 0, maximum = 9223372036854775807u64)]
    from: Option<u64>,
    /// Of plain bytes: `stdout`, `stderr`, or both when absent.
    #[param(pattern = "^(stdout|stderr)$")]
    stream: Option<String>,
}

#[derive(Debug, Default, serde::Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct After {
    /// Events after this seq; all that are kept with 0, only new ones when absent.
    #[param(minimum = 0)]
    after: Option<i64>,
    /// Only of this object.
    #[param(max_length = 256)]
    subject: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Sse,
    Lines,
    Plain,
}

impl Form {
    pub(super) fn asked(headers: &HeaderMap) -> Self {
        let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if accept.contains("text/event-stream") {
            Self::Sse
        } else if accept.contains("application/x-ndjson") {
            Self::Lines
        } else {
            Self::Plain
        }
    }

    fn media_type(self) -> &'static str {
        match self {
            Self::Sse => "text/event-stream",
            Self::Lines => "application/x-ndjson",
            Self::Plain => "application/octet-stream",
        }
    }
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>, Fault> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let seq = value.to_str().ok().and_then(|text| text.parse().ok());
    seq.map(Some).ok_or_else(|| Fault::new(Kind::Invalid, "Last-Event-ID is not a seq"))
}

pub(super) async fn output(app: &Arc<App>, exec: Exec, from: &From, headers: &HeaderMap) -> Answer<Response> {
    let wanted = match from.stream.as_deref() {
        None => None,
        Some("stdout") => Some(RecordKind::Stdout),
        Some("stderr") => Some(RecordKind::Stderr),
        Some(_) => return Err(Fault::new(Kind::Invalid, "'stream' is stdout or stderr").into()),
    };
    // What a client saw last counts more than what its address says.
    let from = match last_event_id(headers)? {
        Some(seen) => seen.saturating_add(1),
        None => from.from.unwrap_or(0),
    };
    if i64::try_from(from).is_err() {
        return Err(Fault::new(Kind::Invalid, "'from' is not a seq").into());
    }
    let form = Form::asked(headers);
    let output = app.output(exec, from).await?;
    let frames = stream::unfold(Some(output), move |output| async move {
        let mut output: Output = output?;
        loop {
            let next = match form {
                Form::Sse => match tokio::time::timeout(KEEP_ALIVE, output.next()).await {
                    Ok(next) => next,
                    Err(_) => return Some((Ok(Bytes::from_static(b": still here\n\n")), Some(output))),
                },
                Form::Lines | Form::Plain => output.next().await,
            };
            match next {
                Ok(Some(frame)) => {
                    let bytes = render(form, &frame, wanted);
                    if !bytes.is_empty() {
                        return Some((Ok(bytes), Some(output)));
                    }
                }
                Ok(None) => return None,
                // The headers are gone; a body that breaks off is all that can be said.
                Err(fault) => return Some((Err(std::io::Error::other(fault.to_string())), None)),
            }
        }
    });
    Ok(streamed(form, frames))
}

pub(super) fn streamed(
    form: Form,
    body: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static,
) -> Response {
    let mut response = Response::new(Body::from_stream(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(form.media_type()));
    // Proxies that gather would make a stream of it that comes all at once.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

pub(super) fn render(form: Form, shared: &SharedFrame, wanted: Option<RecordKind>) -> Bytes {
    let frame = &shared.frame;
    let is_output = frame.is_output();
    if is_output && wanted.is_some_and(|wanted| wanted != frame.kind) {
        return Bytes::new();
    }
    match form {
        Form::Plain if is_output => frame.bytes.clone(),
        Form::Plain => Bytes::new(),
        Form::Sse => shared.rendered(Rendering::Sse, |frame| {
            format!("id: {}\nevent: {}\ndata: {}\n\n", frame.seq, frame.kind.name(), as_json(frame)).into()
        }),
        Form::Lines => shared.rendered(Rendering::Lines, |frame| format!("{}\n", as_json(frame)).into()),
    }
}

fn as_json(frame: &OwnedFrame) -> String {
    let is_output = frame.is_output();
    let time =
        Timestamp::from_microsecond(i64::try_from(frame.time_us).unwrap_or(i64::MAX)).unwrap_or_default();
    let shown = api::OutputFrame {
        seq: frame.seq,
        kind: frame.kind.name().into(),
        time,
        offset: is_output.then_some(frame.stream_offset),
        bytes: is_output.then(|| api::BytesText::of(frame.bytes.to_vec())),
        data: if is_output { None } else { serde_json::from_slice(&frame.bytes).ok() },
    };
    // Texts and numbers have a JSON form.
    serde_json::to_string(&shown).unwrap_or_default()
}

/// Follow events
///
/// What happens to the tenant's objects, as SSE or NDJSON; resumable by `Last-Event-ID`.
#[utoipa::path(get, operation_id = "follow_events", path = "/events", tag = "events", params(After),
    responses((status = 200, content((api::Event = "text/event-stream"), (api::Event = "application/x-ndjson"))),
        (status = "default", body = api::ErrorBody)))]
pub(super) async fn events(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(after): Query<After>,
    headers: HeaderMap,
) -> Answer<Response> {
    caller.must(Scope::Read)?;
    app.settle().await?;
    let start = match last_event_id(&headers)? {
        Some(seen) => i64::try_from(seen).unwrap_or(i64::MAX),
        None => match after.after {
            Some(after) => after,
            None => app.store.newest_event(caller.tenant().clone()).await?,
        },
    };
    Ok(follow(&app, caller, after.subject, start, &headers, false))
}

/// Everything about one exec, lease, sandbox or task
///
/// Of an exec its output, of anything else its events, as SSE.
#[utoipa::path(get, operation_id = "follow_object", path = "/api/stream/{id}", tag = "events", params(("id" = String, Path), From),
    responses((status = 200, content((api::Event = "text/event-stream"))), (status = "default", body = api::ErrorBody)))]
pub(super) async fn everything(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<String>,
    Query(from): Query<From>,
    mut headers: HeaderMap,
) -> Answer<Response> {
    headers.insert(header::ACCEPT, HeaderValue::from_static("text/event-stream"));
    if let Ok(exec) = id.parse::<ExecId>() {
        let exec = app.exec(&caller, exec).await?;
        return output(&app, exec, &from, &headers).await;
    }
    caller.must(Scope::Read)?;
    if let Ok(lease) = id.parse::<LeaseId>() {
        app.lease(&caller, lease).await?;
    } else if let Ok(task) = id.parse::<TaskId>() {
        app.task(&caller, task, 0).await?;
    } else if let Ok(sandbox) = id.parse() {
        app.sandbox(&caller, sandbox).await?;
    } else {
        return Err(
            Fault::new(Kind::Invalid, "expected the id of an exec, a lease, a sandbox or a task").into()
        );
    }
    let start = last_event_id(&headers)?.and_then(|seen| i64::try_from(seen).ok()).unwrap_or(0);
    Ok(follow(&app, caller, Some(id), start, &headers, true))
}

/// Events after a seq, and those to come; of one object until it has ended.
fn follow(
    app: &Arc<App>,
    caller: Caller,
    subject: Option<String>,
    after: i64,
    headers: &HeaderMap,
    until_it_ends: bool,
) -> Response {
    let form = match Form::asked(headers) {
        Form::Lines => Form::Lines,
        Form::Sse | Form::Plain => Form::Sse,
    };
    let news = app.something_happened.subscribe();
    let state = (Arc::clone(app), caller, subject, after, news, false);
    let body = stream::unfold(state, move |(app, caller, subject, mut after, mut news, over)| async move {
        if over {
            return None;
        }
        loop {
            news.mark_unchanged();
            let found = match events_after(&app, caller.tenant(), subject.clone(), after).await {
                Ok(found) => found,
                Err(fault) => {
                    let error = Err(std::io::Error::other(fault.to_string()));
                    return Some((error, (app, caller, subject, after, news, true)));
                }
            };
            if let Some(last) = found.last() {
                after = last.seq;
                let over = until_it_ends && found.iter().any(ends);
                let bytes = found.iter().map(|event| show(form, event)).collect::<String>();
                return Some((Ok(Bytes::from(bytes)), (app, caller, subject, after, news, over)));
            }
            let stopping = app.stopping.clone();
            let waited = tokio::select! {
                // All are dropped without loss: the next round asks the store again.
                () = stopping.cancelled() => return None,
                changed = news.changed() => changed.is_ok(),
                () = tokio::time::sleep(KEEP_ALIVE) => false,
            };
            if !waited {
                let still_here = match form {
                    Form::Sse => Bytes::from_static(b": still here\n\n"),
                    _ => Bytes::from_static(b"\n"),
                };
                return Some((Ok(still_here), (app, caller, subject, after, news, false)));
            }
        }
    });
    streamed(form, body)
}

/// Some events of a tenant, as its people may see them.
async fn events_after(
    app: &App,
    tenant: &Name,
    subject: Option<String>,
    after: i64,
) -> Result<Vec<Event<serde_json::Value>>, Fault> {
    let mut found = app.store.events(tenant.clone(), subject, after, TOGETHER).await?;
    if !found.is_empty() {
        let masks = app.masks(tenant).await?;
        found.iter_mut().for_each(|event| masks.everything.json(&mut event.data));
    }
    Ok(found)
}

fn ends(event: &Event<serde_json::Value>) -> bool {
    matches!(event.kind.as_str(), "lease.released" | "lease.expired" | "sandbox.gone" | "worker_completed")
}

fn show(form: Form, event: &Event<serde_json::Value>) -> String {
    let json = serde_json::to_string(event).unwrap_or_default();
    match form {
        Form::Sse => format!("id: {}\nevent: {}\ndata: {json}\n\n", event.seq, event.kind),
        _ => format!("{json}\n"),
    }
}
