//! Bodies on their way through: counted, bounded, and searched for secrets that come back.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep};

use super::pool::Kept;
use crate::bill::Tally;
use crate::limits::Limits;
use crate::redact::Redactor;
use crate::refusal::{BadRequest, Failure, Refusal, Spent};

/// Why a body ended before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Stopped {
    #[error("nothing came for too long")]
    Idle,
    #[error("the body is too large")]
    TooLarge,
    #[error("the budget is used up: {0}")]
    Spent(Spent),
    #[error("the connection broke")]
    Broken,
}

/// What stopped a request: the gateway itself, or the other side.
pub(super) fn stopped(error: &hyper::Error) -> Result<Refusal, Failure> {
    let mut source: Option<&dyn std::error::Error> = Some(error);
    while let Some(current) = source {
        match current.downcast_ref::<Stopped>() {
            Some(Stopped::TooLarge) => return Ok(BadRequest::TooLarge.into()),
            Some(Stopped::Spent(spent)) => return Ok(Refusal::Budget(*spent)),
            Some(Stopped::Idle | Stopped::Broken) => return Err(Failure::Broken),
            None => source = current.source(),
        }
    }
    if error.is_parse() || error.is_parse_too_large() || error.is_parse_status() {
        return Err(Failure::BadAnswer);
    }
    Err(Failure::Broken)
}

/// The time since something came.
struct Silence {
    patience: Duration,
    timer: Pin<Box<Sleep>>,
}

impl Silence {
    fn new(patience: Duration) -> Self {
        Self { patience, timer: Box::pin(tokio::time::sleep(patience)) }
    }

    fn broken(&mut self) {
        self.timer.as_mut().reset(Instant::now() + self.patience);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Stopped> {
        self.timer.as_mut().poll(cx).map(|()| Stopped::Idle)
    }
}

/// The body of a request.
pub(crate) struct Outwards {
    body: Incoming,
    tally: Arc<Tally>,
    left: u64,
    silence: Silence,
}

impl Outwards {
    pub(super) fn new(body: Incoming, tally: Arc<Tally>, limits: &Limits) -> Self {
        Self { body, tally, left: limits.request_body, silence: Silence::new(limits.idle) }
    }
}

impl Body for Outwards {
    type Data = Bytes;
    type Error = Stopped;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Stopped>>> {
        loop {
            let frame = match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Pending => return self.silence.poll(cx).map(|stopped| Some(Err(stopped))),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(Err(_))) => return Poll::Ready(Some(Err(Stopped::Broken))),
                Poll::Ready(Some(Ok(frame))) => frame,
            };
            self.silence.broken();
            // Trailers end here: what they say could have been said in the head, where it is checked.
            let Ok(data) = frame.into_data() else { continue };
            match self.left.checked_sub(data.len() as u64) {
                None => return Poll::Ready(Some(Err(Stopped::TooLarge))),
                Some(left) => self.left = left,
            }
            let counted = self.tally.sent(data.len()).map(|()| Frame::data(data)).map_err(Stopped::Spent);
            return Poll::Ready(Some(counted));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an answer.
pub(crate) struct Inwards(Kind);

enum Kind {
    /// The gateway's own words.
    Text(Option<Bytes>),
    Answer(Box<Answer>),
}

struct Answer {
    body: Incoming,
    /// Given back when the answer was read to its end.
    kept: Option<Kept>,
    tally: Arc<Tally>,
    mask: Option<Redactor>,
    ended: bool,
    silence: Silence,
}

impl Inwards {
    pub(super) fn text(text: String) -> Self {
        Self(Kind::Text(Some(text.into())))
    }

    /// For an answer after which the connection carries no more answers.
    pub(super) fn none() -> Self {
        Self(Kind::Text(None))
    }

    pub(super) fn new(body: Incoming, kept: Kept, tally: Arc<Tally>, mask: Option<Redactor>) -> Self {
        let silence = Silence::new(kept.outlet.shared().limits.idle);
        let mut answer = Answer { body, kept: Some(kept), tally, mask, ended: false, silence };
        if answer.body.is_end_stream() {
            answer.end();
        }
        Self(Kind::Answer(Box::new(answer)))
    }
}

impl Answer {
    fn end(&mut self) {
        self.ended = true;
        if let Some(kept) = self.kept.take() {
            kept.give_back();
        }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Stopped>>> {
        loop {
            if self.ended {
                return Poll::Ready(None);
            }
            let frame = match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Pending => {
                    let stopped = ready!(self.silence.poll(cx));
                    self.tally.failed();
                    return Poll::Ready(Some(Err(stopped)));
                }
                Poll::Ready(Some(Err(_))) => {
                    self.tally.failed();
                    return Poll::Ready(Some(Err(Stopped::Broken)));
                }
                Poll::Ready(Some(Ok(frame))) => frame,
                Poll::Ready(None) => {
                    self.end();
                    let mut last = Vec::new();
                    if let Some(mask) = &mut self.mask {
                        mask.finish(&mut last);
                    }
                    return Poll::Ready((!last.is_empty()).then(|| Ok(Frame::data(last.into()))));
                }
            };
            self.silence.broken();
            let Ok(data) = frame.into_data() else { continue };
            if let Err(spent) = self.tally.received(data.len()) {
                self.tally.spent(spent);
                return Poll::Ready(Some(Err(Stopped::Spent(spent))));
            }
            // Whoever writes an answer of known length does not ask again after its last byte.
            let is_last = self.body.is_end_stream();
            let data = match &mut self.mask {
                None => data,
                Some(mask) => {
                    let mut masked = Vec::with_capacity(data.len());
                    mask.push(&data, &mut masked);
                    if is_last {
                        mask.finish(&mut masked);
                    }
                    masked.into()
                }
            };
            if is_last {
                self.end();
            }
            if !data.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
        }
    }
}

impl Body for Inwards {
    type Data = Bytes;
    type Error = Stopped;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Stopped>>> {
        match &mut self.0 {
            Kind::Text(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Kind::Answer(answer) => answer.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Text(text) => text.is_none(),
            Kind::Answer(answer) => answer.ended,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Text(text) => SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64)),
            // A mask has the length of what it hides, so that the length stays what was announced.
            Kind::Answer(answer) if answer.mask.is_none() => answer.body.size_hint(),
            Kind::Answer(_) => SizeHint::default(),
        }
    }
}
