//! Masks the output in frames. What comes out are the same frames: seqs, offsets and lengths are those of the journal.
//!
//! The frames of one stream go through one redactor, so that a secret that two frames share is masked in both. A frame whose
//! end could be the beginning of a secret waits until more output decides; frames behind it wait too, as a reader that comes
//! back names the last seq it saw. A reader that begins in the middle of a stream gives what came before, so that the
//! rest of a secret is known for what it is.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cubicle_egress::redact::{Content, Redactor, Release};
use cubicle_guest::journal::record::Kind as RecordKind;
use cubicle_guest::wire::Truncated;

use super::Masks;
use crate::journal::OwnedFrame;

/// How long live output may wait to be decided.
pub(crate) const PATIENCE: Duration = Duration::from_millis(50);
/// The end of ordinary output is often the beginning of some spelling of some secret by so much, and so much of a secret says
/// nothing. After a while it is shown.
const BY_CHANCE: usize = 2;
/// Beyond so many, frames do not wait any longer for one before them.
const MOST_WAITING: usize = 1024;

/// One stream of one exec, by its number within its sandbox.
type StreamKey = (u32, RecordKind);

/// Frames on their way to readers, in the order of their seqs.
#[derive(Debug)]
pub(crate) struct FrameMask {
    masks: Arc<Masks>,
    streams: HashMap<StreamKey, StreamMask>,
    waiting: VecDeque<(u32, OwnedFrame)>,
}

#[derive(Debug)]
struct StreamMask {
    redactor: Redactor,
    /// Where the next frame begins.
    offset: u64,
    /// Bytes of what came before the first frame that are yet to be decided. They are not given out.
    skip: usize,
    /// Decided bytes of frames that wait.
    decided: Vec<u8>,
}

impl StreamMask {
    fn take(&mut self, give: impl FnOnce(&mut Redactor, &mut Vec<u8>)) {
        let begin = self.decided.len();
        give(&mut self.redactor, &mut self.decided);
        let skipped = self.skip.min(self.decided.len() - begin);
        self.decided.drain(begin..begin + skipped);
        self.skip -= skipped;
    }

    /// The first of the decided bytes.
    fn give(&mut self, length: usize) -> Bytes {
        let rest = self.decided.split_off(length);
        std::mem::replace(&mut self.decided, rest).into()
    }
}

impl FrameMask {
    pub(crate) fn new(masks: Arc<Masks>) -> Self {
        Self { masks, streams: HashMap::new(), waiting: VecDeque::new() }
    }

    pub(crate) fn masks(&self) -> &Masks {
        &self.masks
    }

    /// Whether every frame that was taken has been given out.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// From now on other secrets are masked. What waits is to be taken again.
    pub(crate) fn replace(&mut self, masks: Arc<Masks>) -> VecDeque<(u32, OwnedFrame)> {
        self.masks = masks;
        self.streams.clear();
        std::mem::take(&mut self.waiting)
    }

    /// Which bytes of its stream before a frame must be known for it to be masked.
    pub(crate) fn missing(&self, exec: u32, frame: &OwnedFrame) -> Option<Range<u64>> {
        let from = frame.stream_offset.saturating_sub(self.masks.known.redaction().reach() as u64);
        let is_known = self.streams.contains_key(&(exec, frame.kind));
        let needs_some = frame.is_output() && !is_known && from < frame.stream_offset;
        needs_some.then_some(from..frame.stream_offset)
    }

    /// Says what came before a frame in its stream.
    pub(crate) fn begin(&mut self, exec: u32, frame: &OwnedFrame, before: &[u8]) {
        let mut redactor = self.masks.known.redaction().stream(Content::Binary);
        redactor.push(before, &mut Vec::new());
        let skip = redactor.held();
        let stream = StreamMask { redactor, offset: frame.stream_offset, skip, decided: Vec::new() };
        self.streams.insert((exec, frame.kind), stream);
    }

    /// Takes the next frame.
    pub(crate) fn push(&mut self, exec: u32, frame: OwnedFrame) {
        if !self.masks.known.is_empty() {
            match frame.kind {
                RecordKind::Stdout | RecordKind::Stderr => self.mask(exec, &frame),
                RecordKind::Truncated => self.cut(exec, &frame),
                RecordKind::Eof => self.end(|of| of == exec),
                _ => {}
            }
        }
        self.waiting.push_back((exec, frame));
        if self.waiting.len() > MOST_WAITING {
            self.release();
        }
    }

    fn mask(&mut self, exec: u32, frame: &OwnedFrame) {
        if !self.streams.contains_key(&(exec, frame.kind)) {
            self.begin(exec, frame, b"");
        }
        let Some(stream) = self.streams.get_mut(&(exec, frame.kind)) else { return };
        if stream.offset != frame.stream_offset {
            // Output was lost in between, and maybe the rest of a secret with it.
            stream.take(|redactor, output| redactor.release(Release::Masked, output));
            stream.redactor = self.masks.known.redaction().stream(Content::Binary);
        }
        stream.take(|redactor, output| redactor.push(&frame.bytes, output));
        stream.offset = frame.stream_offset + frame.bytes.len() as u64;
    }

    /// The journal keeps no more of a stream: what could be the beginning of a secret may be one.
    fn cut(&mut self, exec: u32, frame: &OwnedFrame) {
        let Ok(truncated) = serde_json::from_slice::<Truncated>(&frame.bytes) else { return };
        for kind in [RecordKind::Stdout, RecordKind::Stderr]
            .into_iter()
            .filter(|kind| kind.name() == truncated.stream)
        {
            if let Some(stream) = self.streams.get_mut(&(exec, kind)) {
                stream.take(|redactor, output| redactor.release(Release::Masked, output));
            }
        }
    }

    /// Nothing comes after what was taken.
    pub(crate) fn finish(&mut self) {
        self.end(|_| true);
    }

    fn end(&mut self, of: impl Fn(u32) -> bool) {
        for (_, stream) in self.streams.iter_mut().filter(|((exec, _), _)| of(*exec)) {
            stream.take(|redactor, output| redactor.finish(output));
        }
    }

    /// Nothing came for a while, and what could be decided by more should not wait any longer. What is the beginning of a
    /// secret by chance is shown. More than that stays where it is as long as it is in nobody's way, and is masked when it
    /// is. Says whether anything was given.
    pub(crate) fn release(&mut self) -> bool {
        let mut any = false;
        let Self { streams, waiting, .. } = self;
        for (key, stream) in streams {
            let in_the_way = || waiting.iter().any(|(exec, frame)| (*exec, frame.kind) != *key);
            let how = match stream.redactor.held() {
                0 => continue,
                1..=BY_CHANCE => Release::AsItIs,
                _ if in_the_way() => Release::Masked,
                _ => continue,
            };
            stream.take(|redactor, output| redactor.release(how, output));
            any = true;
        }
        any
    }

    /// The next frame, when it is decided.
    pub(crate) fn pop(&mut self) -> Option<(u32, OwnedFrame)> {
        let (exec, frame) = self.waiting.front()?;
        let length = frame.bytes.len();
        let stream = self.streams.get_mut(&(*exec, frame.kind));
        if stream.as_ref().is_some_and(|stream| stream.decided.len() < length) {
            return None;
        }
        let masked = stream.map(|stream| stream.give(length));
        let (exec, mut frame) = self.waiting.pop_front()?;
        if let Some(masked) = masked {
            frame.bytes = masked;
        }
        Some((exec, frame))
    }
}

#[cfg(test)]
mod tests;
