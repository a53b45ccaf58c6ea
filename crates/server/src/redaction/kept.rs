//! A journal that was kept, as it may leave: the same records at the same places, with what they hold masked.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use cubicle_guest::journal::record::{Draft, FILE_HEADER, encode_header};
use cubicle_model::Fault;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};

use super::Masks;
use super::frames::FrameMask;
use crate::journal::{KeptRecords, OwnedFrame};

/// Together to whoever reads.
const PIECE: usize = 64 * 1024;

/// A part of a journal of this size, masked. As nothing changes its length, a part is where it was.
pub(crate) fn masked(
    journal: BoxStream<'static, Result<Bytes, Fault>>,
    size: u64,
    part: Range<u64>,
    masks: Arc<Masks>,
) -> BoxStream<'static, Result<Bytes, Fault>> {
    let whole = Whole {
        records: KeptRecords::new(journal),
        mask: FrameMask::new(masks),
        ready: VecDeque::from([Bytes::from_static(&FILE_HEADER)]),
        written: 0,
        size,
        ended: false,
    };
    let pieces = stream::unfold(Some((whole, part)), |state| async move {
        let (mut whole, part) = state?;
        loop {
            if whole.written >= part.end {
                return None;
            }
            let at = whole.written;
            let piece = match whole.next().await {
                Ok(piece) => piece?,
                Err(fault) => return Some((Err(fault), None)),
            };
            let within =
                |place: u64| usize::try_from(place.saturating_sub(at)).unwrap_or(usize::MAX).min(piece.len());
            let wanted = piece.slice(within(part.start)..within(part.end));
            if !wanted.is_empty() {
                return Some((Ok(wanted), Some((whole, part))));
            }
        }
    });
    pieces.boxed()
}

struct Whole {
    records: KeptRecords,
    mask: FrameMask,
    ready: VecDeque<Bytes>,
    written: u64,
    size: u64,
    ended: bool,
}

impl Whole {
    async fn next(&mut self) -> Result<Option<Bytes>, Fault> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                self.written += piece.len() as u64;
                return Ok(Some(piece));
            }
            if self.ended {
                // Half a record at the end may hold half a secret. It says nothing to readers of a journal.
                let left =
                    usize::try_from(self.size.saturating_sub(self.written)).unwrap_or(PIECE).min(PIECE);
                self.ready.extend((left > 0).then(|| Bytes::from_static(&[0; PIECE]).slice(..left)));
                if left == 0 {
                    return Ok(None);
                }
                continue;
            }
            match self.records.next().await? {
                Some((exec, frame)) => self.take(exec, frame),
                None => {
                    self.mask.finish();
                    self.ended = true;
                }
            }
            while let Some((exec, frame)) = self.mask.pop() {
                self.ready.push_back(encoded(exec, &frame));
            }
        }
    }

    fn take(&mut self, exec: u32, mut frame: OwnedFrame) {
        if !frame.is_output() {
            let mut bytes = frame.bytes.to_vec();
            self.mask.masks().known.bytes(&mut bytes);
            frame.bytes = bytes.into();
        }
        self.mask.push(exec, frame);
    }
}

fn encoded(exec: u32, frame: &OwnedFrame) -> Bytes {
    let OwnedFrame { seq, time_us, kind, stream_offset, ref bytes } = *frame;
    let header = encode_header(&Draft { kind, exec, time_us, stream_offset, payload: bytes }, seq);
    let mut record = BytesMut::with_capacity(header.len() + bytes.len());
    record.extend_from_slice(&header);
    record.extend_from_slice(bytes);
    record.freeze()
}

#[cfg(test)]
mod tests {
    use cubicle_guest::journal::Kind as RecordKind;
    use futures_util::TryStreamExt;

    use super::*;

    fn record(seq: u64, exec: u32, kind: RecordKind, stream_offset: u64, bytes: &[u8]) -> Bytes {
        let bytes = Bytes::copy_from_slice(bytes);
        encoded(exec, &OwnedFrame { seq, time_us: 5, kind, stream_offset, bytes })
    }

    fn read(journal: &[u8], part: Range<u64>, piece: usize, secrets: &[&str]) -> Vec<u8> {
        let pieces: Vec<_> = journal.chunks(piece).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        let masked = masked(stream::iter(pieces).boxed(), journal.len() as u64, part, Masks::of(secrets));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(masked.try_concat_of()).unwrap()
    }

    trait Concat {
        async fn try_concat_of(self) -> Result<Vec<u8>, Fault>;
    }

    impl Concat for BoxStream<'static, Result<Bytes, Fault>> {
        async fn try_concat_of(self) -> Result<Vec<u8>, Fault> {
            self.try_fold(Vec::new(), |mut all, piece| async move {
                all.extend_from_slice(&piece);
                Ok(all)
            })
            .await
        }
    }

    #[test]
    fn every_part_of_a_masked_journal_is_where_it_was_and_holds_good_records() {
        let journal = |secret: &[u8]| {
            let (first, second) = secret.split_at(5);
            [
                Bytes::from_static(&FILE_HEADER),
                record(1, 0, RecordKind::Place, 0, &[b"{\"env\":\"", secret, b"\"}"].concat()),
                record(2, 1, RecordKind::Start, 0, &[b"{\"command\":\"echo ", secret, b"\"}"].concat()),
                record(3, 1, RecordKind::Stdout, 0, &[b"a ", first].concat()),
                record(4, 2, RecordKind::Stdout, 0, second),
                record(5, 1, RecordKind::Stdout, 7, &[second, b" b"].concat()),
                record(6, 1, RecordKind::Eof, 0, b"{}"),
            ]
            .concat()
        };
        let mut raw = journal(b"hunter2-secret");
        let mut expected = journal(b"**************");
        // What another exec printed is only the end of it.
        let own = record(4, 2, RecordKind::Stdout, 0, b"r2-secret");
        let masked = record(4, 2, RecordKind::Stdout, 0, b"*********");
        let at = expected.windows(masked.len()).position(|part| part == masked).unwrap();
        expected[at..at + own.len()].copy_from_slice(&own);
        raw.extend_from_slice(b"half a record hunter2-secret");
        expected.extend_from_slice(&[0; 28]);
        let size = raw.len() as u64;
        for piece in [1, 7, 64, 4096] {
            assert_eq!(read(&raw, 0..size, piece, &["hunter2-secret"]), expected);
        }
        for start in 0..size {
            let part = read(&raw, start..size.min(start + 50), 4096, &["hunter2-secret"]);
            assert_eq!(part, expected[start as usize..size.min(start + 50) as usize], "{start}");
        }
    }
}
