//! The output of an exec as readers get it: masked, and shared by those who read the same.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use cubicle_guest::journal::record::Kind as RecordKind;
use cubicle_model::Fault;
use cubicle_store::Exec;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, timeout_at};

use super::fanout::{Hub, Joined, SharedFrame};
use super::reader::{OwnedFrame, Reader};
use crate::app::App;
use crate::redaction::frames::{FrameMask, PATIENCE};

/// How many seqs before a frame are looked at first for what came before it in its stream.
const NEAR: u64 = 64;
const FURTHER: u64 = 8;

/// Frames of one exec from a seq on.
pub(crate) struct Output {
    app: Arc<App>,
    exec: Exec,
    next_seq: u64,
    source: Source,
    /// Others read the same; joined as soon as what they have seen already was read.
    shared: Option<Joined>,
}

impl std::fmt::Debug for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Output").field("exec", &self.exec.id).field("next_seq", &self.next_seq).finish()
    }
}

enum Source {
    Alone(Box<Alone>),
    /// What one reads for all.
    Shared(Joined),
}

impl App {
    /// The output of an exec from a seq on, to its end.
    pub(crate) async fn output(self: &Arc<Self>, exec: Exec, from_seq: u64) -> Result<Output, Fault> {
        let app = Arc::clone(self);
        if exec.ended.is_some() || self.live.get(exec.sandbox).is_none() {
            let source = Source::Alone(Alone::open(self, &exec, from_seq).await?);
            return Ok(Output { app, exec, next_seq: from_seq, source, shared: None });
        }
        // With others, where the exec still runs.
        let (joined, first) = self.fanout.join(exec.id, from_seq);
        if first {
            self.read_for_all(exec.clone(), from_seq, Arc::clone(&joined.hub));
        }
        let (source, shared) = if joined.last_seq < from_seq {
            (Source::Shared(joined), None)
        } else {
            (Source::Alone(Alone::open(self, &exec, from_seq).await?), Some(joined))
        };
        Ok(Output { app, exec, next_seq: from_seq, source, shared })
    }

    /// Reads an exec for all who have joined.
    fn read_for_all(self: &Arc<Self>, exec: Exec, from_seq: u64, hub: Arc<Hub>) {
        let app = Arc::clone(self);
        // Ends with the exec's output, with the last reader, or with the sandbox; the readers see which.
        tokio::spawn(async move {
            let mut complete = false;
            if let Ok(mut alone) = Alone::open(&app, &exec, from_seq).await {
                loop {
                    match alone.next().await {
                        Ok(Some(frame)) => {
                            if !hub.send(SharedFrame::new(frame)).await {
                                break;
                            }
                        }
                        Ok(None) => {
                            complete = true;
                            break;
                        }
                        Err(_) => break,
                    }
                }
            }
            app.fanout.close(exec.id, &hub, complete);
        });
    }

    /// Bytes of a stream of an exec that came before a frame, as far as they are kept.
    async fn look_back(
        self: &Arc<Self>,
        exec: &Exec,
        kind: RecordKind,
        before: u64,
        wanted: Range<u64>,
    ) -> Result<Vec<u8>, Fault> {
        // What was kept is read from its beginning anyway.
        let mut distance = if self.live.get(exec.sandbox).is_some() { NEAR } else { before };
        loop {
            let from = before.saturating_sub(distance);
            let mut reader = Reader::open(self, exec, from).await?;
            let mut past = Past::new(wanted.clone());
            let mut from_the_start = from == 0;
            while let Some(frame) = reader.next().await?.filter(|frame| frame.seq < before) {
                from_the_start |= frame.kind == RecordKind::Start;
                if frame.kind == kind {
                    past.take(&frame);
                }
            }
            if from_the_start || past.is_enough() {
                return Ok(past.end());
            }
            distance = distance.saturating_mul(FURTHER);
        }
    }
}

impl Output {
    /// The next frame; none when the exec has ended and its output is complete.
    pub(crate) async fn next(&mut self) -> Result<Option<Arc<SharedFrame>>, Fault> {
        loop {
            if let Source::Alone(alone) = &self.source
                && alone.is_idle()
                && let Some(joined) = self.shared.take_if(|joined| joined.last_seq < self.next_seq)
            {
                self.source = Source::Shared(joined);
            }
            let joined = match &mut self.source {
                Source::Alone(alone) => {
                    let frame = alone.next().await?;
                    if let Some(frame) = &frame {
                        self.next_seq = frame.seq + 1;
                    }
                    return Ok(frame.map(SharedFrame::new));
                }
                Source::Shared(joined) => joined,
            };
            match joined.frames.recv().await {
                // Sent before this reader joined, or below where it began.
                Ok(frame) if frame.frame.seq < self.next_seq => {}
                Ok(frame) => {
                    self.next_seq = frame.frame.seq + 1;
                    return Ok(Some(frame));
                }
                Err(RecvError::Closed) if joined.hub.is_complete() => return Ok(None),
                // Too slow for the others: it reads for itself until it has caught up.
                Err(RecvError::Lagged(_) | RecvError::Closed) => {
                    self.source = Source::Alone(Alone::open(&self.app, &self.exec, self.next_seq).await?);
                }
            }
        }
    }
}

/// Masked frames that nobody else reads along.
struct Alone {
    app: Arc<App>,
    exec: Exec,
    reader: Reader,
    mask: FrameMask,
    /// Read, and to be masked next.
    read: VecDeque<OwnedFrame>,
    ended: bool,
    /// When what waits to be decided has waited long enough.
    deadline: Option<Instant>,
    /// It has, and goes on waiting until another frame comes.
    is_patient: bool,
}

impl Alone {
    async fn open(app: &Arc<App>, exec: &Exec, from_seq: u64) -> Result<Box<Self>, Fault> {
        let masks = app.masks(&exec.tenant).await?;
        Ok(Box::new(Self {
            app: Arc::clone(app),
            exec: exec.clone(),
            reader: Reader::open(app, exec, from_seq).await?,
            mask: FrameMask::new(masks),
            read: VecDeque::new(),
            ended: false,
            deadline: None,
            is_patient: false,
        }))
    }

    /// Whether every frame that was read has been given out.
    fn is_idle(&self) -> bool {
        self.read.is_empty() && self.mask.is_idle()
    }

    /// The next frame, masked. May be dropped: a frame is in one of the two queues until it is given out.
    async fn next(&mut self) -> Result<Option<OwnedFrame>, Fault> {
        loop {
            if let Some((_, frame)) = self.mask.pop() {
                self.deadline = None;
                return Ok(Some(frame));
            }
            if self.read.is_empty() {
                if self.ended {
                    return Ok(None);
                }
                self.read().await?;
            }
            self.follow_secrets().await?;
            let Some(frame) = self.read.front() else { continue };
            if let Some(wanted) = self.mask.missing(0, frame) {
                let before = self.app.look_back(&self.exec, frame.kind, frame.seq, wanted).await?;
                self.mask.begin(0, frame, &before);
            }
            let Some(mut frame) = self.read.pop_front() else { continue };
            let known = &self.mask.masks().known;
            if frame.kind == RecordKind::Start && !known.is_empty() {
                frame.bytes = known.json_bytes(&frame.bytes);
            }
            self.mask.push(0, frame);
        }
    }

    /// Reads a frame; or, when none comes in time, has given out what waits for one.
    async fn read(&mut self) -> Result<(), Fault> {
        let in_time = match self.deadline() {
            None => Some(self.reader.next().await?),
            // Output of another stream may come so fast that it never is too late.
            Some(deadline) if deadline <= Instant::now() => None,
            Some(deadline) => timeout_at(deadline, self.reader.next()).await.ok().transpose()?,
        };
        let Some(next) = in_time else {
            self.give_up_waiting();
            return Ok(());
        };
        self.is_patient = false;
        match next {
            Some(frame) => self.read.push_back(frame),
            None => {
                self.mask.finish();
                self.ended = true;
            }
        }
        Ok(())
    }

    /// Until when to wait for more; as long as it takes where nothing waits, or all there will ever be can be read.
    fn deadline(&mut self) -> Option<Instant> {
        let hurries = !self.mask.is_idle() && !self.is_patient && self.reader.is_live();
        hurries.then(|| *self.deadline.get_or_insert_with(|| Instant::now() + PATIENCE))
    }

    fn give_up_waiting(&mut self) {
        self.deadline = None;
        self.is_patient = !self.mask.release();
    }

    /// Masks what the tenant's secrets are now, where they have changed.
    async fn follow_secrets(&mut self) -> Result<(), Fault> {
        if self.app.has_newest(self.mask.masks(), &self.exec.tenant) {
            return Ok(());
        }
        let masks = self.app.masks(&self.exec.tenant).await?;
        for (_, frame) in self.mask.replace(masks).into_iter().rev() {
            self.read.push_front(frame);
        }
        Ok(())
    }
}

/// The end of what was written to a stream before some place.
struct Past {
    wanted: Range<u64>,
    begin: u64,
    bytes: Vec<u8>,
}

impl Past {
    fn new(wanted: Range<u64>) -> Self {
        Self { begin: wanted.end, wanted, bytes: Vec::new() }
    }

    fn take(&mut self, frame: &OwnedFrame) {
        if self.begin + self.bytes.len() as u64 != frame.stream_offset {
            // Something is missing in between, or this is the first.
            self.bytes.clear();
            self.begin = frame.stream_offset;
        }
        self.bytes.extend_from_slice(&frame.bytes);
        let most = usize::try_from(self.wanted.end - self.wanted.start).unwrap_or(usize::MAX);
        if self.bytes.len() > 2 * most.max(64 * 1024) {
            let surplus = self.bytes.len() - most;
            self.bytes.drain(..surplus);
            self.begin += surplus as u64;
        }
    }

    fn is_enough(&self) -> bool {
        self.begin <= self.wanted.start && self.begin + self.bytes.len() as u64 == self.wanted.end
    }

    /// What there is of it without a gap.
    fn end(mut self) -> Vec<u8> {
        if self.begin + self.bytes.len() as u64 != self.wanted.end {
            return Vec::new();
        }
        let surplus = self.wanted.start.saturating_sub(self.begin);
        self.bytes.drain(..usize::try_from(surplus).unwrap_or(usize::MAX).min(self.bytes.len()));
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn past(wanted: Range<u64>, frames: &[(u64, &[u8])]) -> (bool, Vec<u8>) {
        let mut past = Past::new(wanted);
        for (stream_offset, bytes) in frames {
            past.take(&OwnedFrame {
                seq: 0,
                time_us: 0,
                kind: RecordKind::Stdout,
                stream_offset: *stream_offset,
                bytes: Bytes::copy_from_slice(bytes),
            });
        }
        (past.is_enough(), past.end())
    }

    #[test]
    fn the_past_is_what_is_before_a_place_without_a_gap() {
        for (frames, enough, expected) in [
            (&[(0_u64, &b"abcdefgh"[..]), (8, b"ij")][..], true, &b"efghij"[..]),
            (&[(4, b"efgh"), (8, b"ij")], true, b"efghij"),
            (&[(6, b"gh"), (8, b"ij")], false, b"ghij"),
            (&[(0, b"abcde"), (8, b"ij")], false, b"ij"),
            (&[(0, b"abcde")], false, b""),
            (&[], false, b""),
        ] {
            assert_eq!(past(4..10, frames), (enough, expected.to_vec()), "{frames:?}");
        }
        let long: Vec<u8> = (0..200_000_u32).map(|n| n as u8).collect();
        let (enough, end) = past(199_990..200_001, &[(0, &long), (200_000, b"x")]);
        assert_eq!((enough, end), (true, [&long[199_990..], b"x"].concat()));
    }
}
