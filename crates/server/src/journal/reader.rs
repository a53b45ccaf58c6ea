//! Raw frames of one exec, from wherever they are: its sandbox while that lives, the object store afterwards.

use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use cubicle_guest::client::{ClientError, ExecStream, Frame};
use cubicle_guest::journal::record::{self, FILE_HEADER_LEN, Kind as RecordKind};
use cubicle_guest::wire::Start;
use cubicle_model::{ExecId, Fault};
use cubicle_store::Exec;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;

use crate::app::App;

/// Frames of one exec from a seq on, as they were written.
pub(super) struct Reader {
    app: Arc<App>,
    exec: Exec,
    next_seq: u64,
    source: Source,
}

pub(super) enum Source {
    Live(Box<ExecStream>),
    Kept(Kept),
}

/// A frame that owns its bytes.
#[derive(Debug, Clone)]
pub(crate) struct OwnedFrame {
    pub(crate) seq: u64,
    pub(crate) time_us: u64,
    pub(crate) kind: RecordKind,
    pub(crate) stream_offset: u64,
    pub(crate) bytes: Bytes,
}

impl OwnedFrame {
    pub(crate) fn of(frame: &Frame<'_>) -> Self {
        Self {
            seq: frame.seq,
            time_us: frame.time_us,
            kind: frame.kind,
            stream_offset: frame.stream_offset,
            bytes: Bytes::copy_from_slice(frame.bytes),
        }
    }

    /// Whether its bytes are what a program wrote.
    pub(crate) fn is_output(&self) -> bool {
        matches!(self.kind, RecordKind::Stdout | RecordKind::Stderr)
    }

    pub(crate) fn as_frame(&self) -> Frame<'_> {
        Frame {
            exec: 0,
            seq: self.seq,
            time_us: self.time_us,
            kind: self.kind,
            stream_offset: self.stream_offset,
            bytes: &self.bytes,
        }
    }
}

impl Reader {
    pub(super) async fn open(app: &Arc<App>, exec: &Exec, from_seq: u64) -> Result<Self, Fault> {
        let source = app.source(exec, from_seq).await?;
        Ok(Self { app: Arc::clone(app), exec: exec.clone(), next_seq: from_seq, source })
    }

    /// Whether a program may still be writing what is read.
    pub(super) fn is_live(&self) -> bool {
        matches!(self.source, Source::Live(_)) && self.exec.ended.is_none()
    }

    /// The next frame; none when the exec has ended and its output is complete. May be dropped: nothing is lost.
    pub(super) async fn next(&mut self) -> Result<Option<OwnedFrame>, Fault> {
        loop {
            let next = match &mut self.source {
                Source::Live(stream) => match stream.next().await {
                    Ok(frame) => Ok(frame.map(|frame| OwnedFrame::of(&frame))),
                    // The sandbox ended, or was destroyed: the rest is in what was kept of it.
                    Err(ClientError::Unavailable(_)) => Err(()),
                    Err(error) => return Err(error.into()),
                },
                Source::Kept(kept) => Ok(kept.next().await?),
            };
            match next {
                Ok(frame) => {
                    if let Some(frame) = &frame {
                        self.next_seq = frame.seq + 1;
                    }
                    return Ok(frame);
                }
                Err(()) => self.source = self.app.source(&self.exec, self.next_seq).await?,
            }
        }
    }
}

/// The frames of one exec in a journal that was kept.
pub(super) struct Kept {
    records: KeptRecords,
    exec_id: ExecId,
    /// Its number in the journal, once its start was seen.
    number: Option<u32>,
    from_seq: u64,
}

impl Kept {
    pub(super) fn new(
        pieces: BoxStream<'static, Result<Bytes, Fault>>,
        exec_id: ExecId,
        from_seq: u64,
    ) -> Self {
        Self { records: KeptRecords::new(pieces), exec_id, number: None, from_seq }
    }

    pub(super) fn is_damaged(&self) -> bool {
        self.records.damaged
    }

    pub(super) async fn next(&mut self) -> Result<Option<OwnedFrame>, Fault> {
        while let Some((number, frame)) = self.records.next().await? {
            if frame.kind == RecordKind::Start && self.number.is_none() {
                let start: Option<Start> = serde_json::from_slice(&frame.bytes).ok();
                if start.is_some_and(|start| start.exec_id == self.exec_id) {
                    self.number = Some(number);
                }
            }
            if self.number == Some(number) && frame.seq >= self.from_seq {
                return Ok(Some(frame));
            }
        }
        Ok(None)
    }
}

/// A journal as it comes from the object store.
pub(crate) struct KeptRecords {
    pieces: BoxStream<'static, Result<Bytes, Fault>>,
    buffer: BytesMut,
    header_skipped: bool,
    /// Something in it is no record.
    damaged: bool,
}

impl KeptRecords {
    pub(crate) fn new(pieces: BoxStream<'static, Result<Bytes, Fault>>) -> Self {
        Self { pieces, buffer: BytesMut::new(), header_skipped: false, damaged: false }
    }

    /// The next record, with the number of its exec.
    pub(crate) async fn next(&mut self) -> Result<Option<(u32, OwnedFrame)>, Fault> {
        loop {
            if let Some(record) = self.decode() {
                return Ok(Some(record));
            }
            if self.damaged {
                // Nothing says where the next record begins.
                return Ok(None);
            }
            match self.pieces.next().await {
                Some(piece) => self.buffer.extend_from_slice(&piece?),
                // A torn tail is the end.
                None => return Ok(None),
            }
        }
    }

    /// The next whole record that has been received.
    fn decode(&mut self) -> Option<(u32, OwnedFrame)> {
        if self.damaged {
            return None;
        }
        if !self.header_skipped {
            if self.buffer.len() < FILE_HEADER_LEN as usize {
                return None;
            }
            self.buffer.advance(FILE_HEADER_LEN as usize);
            self.header_skipped = true;
        }
        let Ok(decoded) = record::decode(&self.buffer) else {
            // A sandbox that was killed may leave half a record behind; what came before it stands.
            self.buffer.clear();
            self.damaged = true;
            return None;
        };
        let (record, length) = decoded?;
        let header = record.header;
        let mut whole = self.buffer.split_to(length);
        whole.advance(record::HEADER_LEN);
        let frame = OwnedFrame {
            seq: header.seq,
            time_us: header.time_us,
            kind: header.kind,
            stream_offset: header.stream_offset,
            bytes: whole.freeze(),
        };
        Some((header.exec, frame))
    }
}
