//! Records as text: server-sent events and lines of JSON.

use std::io;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cubicle_model::Exit;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::journal::record::{self, HEADER_LEN, LONGEST_PAYLOAD};
use crate::journal::{Journal, Kind, Record};

#[derive(Serialize)]
struct Line<'a> {
    seq: u64,
    time_us: u64,
    #[serde(skip_serializing_if = "is_zero")]
    exec: u32,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a RawValue>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Gives whole records from `offset` on to `each`, at most `len` bytes of them and about `most` at a time, and says how
/// many bytes that was.
pub(super) fn records(
    journal: &Journal,
    offset: u64,
    len: u64,
    most: u64,
    mut each: impl FnMut(&Record<'_>),
) -> io::Result<u64> {
    const LONGEST_RECORD: u64 = (HEADER_LEN + LONGEST_PAYLOAD) as u64;
    let mut bytes = vec![0; len.min(most) as usize];
    journal.read(&mut bytes, offset)?;
    if let Ok(Some(header)) = record::peek(&bytes)
        && header.record_len() > bytes.len() as u64
    {
        bytes.resize(header.record_len().min(len).min(LONGEST_RECORD) as usize, 0);
        journal.read(&mut bytes, offset)?;
    }
    let mut used = 0;
    loop {
        match record::decode(&bytes[used..]) {
            Ok(Some((record, record_len))) => {
                if !matches!(record.header.kind, Kind::Unknown(_)) {
                    each(&record);
                }
                used += record_len;
            }
            Ok(None) if used > 0 => return Ok(used as u64),
            Ok(None) | Err(_) => {
                let message = format!("the journal is damaged at byte {}", offset + used as u64);
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
        }
    }
}

pub(super) fn line(into: &mut Vec<u8>, record: &Record<'_>) {
    let header = &record.header;
    let mut line = Line {
        seq: header.seq,
        time_us: header.time_us,
        exec: header.exec,
        kind: header.kind.name(),
        stream_offset: None,
        text: None,
        base64: None,
        data: None,
    };
    match header.kind {
        Kind::Stdout | Kind::Stderr => {
            line.stream_offset = Some(header.stream_offset);
            match std::str::from_utf8(record.payload) {
                Ok(text) => line.text = Some(text),
                Err(_) => line.base64 = Some(STANDARD.encode(record.payload)),
            }
        }
        kind => {
            line.stream_offset = (kind == Kind::Truncated).then_some(header.stream_offset);
            line.data = serde_json::from_slice(record.payload).ok();
        }
    }
    serde_json::to_writer(&mut *into, &line).expect("a line has only string keys and goes to memory");
    into.push(b'\n');
}

pub(super) fn event(into: &mut Vec<u8>, record: &Record<'_>) {
    let (seq, kind) = (record.header.seq, record.header.kind.name());
    into.extend_from_slice(format!("id: {seq}\nevent: {kind}\ndata: ").as_bytes());
    // JSON has no bare newline, so a line is one field.
    line(into, record);
    into.push(b'\n');
}

/// The line behind the last record of an exec.
pub(super) fn exit_line(exit: Exit) -> String {
    match exit {
        Exit::Code(code) => format!("{{\"exit\":{code}}}\n"),
        Exit::Signal(signal) => format!("{{\"exit\":null,\"signal\":{signal}}}\n"),
        Exit::Oom => "{\"exit\":null,\"oom\":true}\n".into(),
        Exit::TimedOut => "{\"exit\":null,\"timed_out\":true}\n".into(),
        Exit::Unknown | Exit::NotStarted => "{\"exit\":null,\"unknown\":true}\n".into(),
    }
}
