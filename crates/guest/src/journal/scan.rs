//! Finding the end of a journal, and telling a torn tail from damage in the middle.

use std::io;

use super::record::{self, FILE_HEADER, FILE_HEADER_LEN, HEADER_LEN, Header, LONGEST_PAYLOAD};

/// Bytes at an offset; fewer than asked for only at the end of the file.
pub(super) trait ReadAt {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize>;
}

/// What stands at an offset of a journal.
pub(super) enum Found<'a> {
    Record(record::Record<'a>),
    /// Nothing, or the beginning of a record whose rest is not there.
    End,
    /// Bytes that are no record: a tail that never was one, or damage.
    Corrupt,
}

/// A window on the file that grows to hold one record.
pub(super) struct Window {
    bytes: Vec<u8>,
    start: u64,
    filled: usize,
}

const WINDOW: usize = 64 * 1024;

impl Window {
    pub(super) fn new() -> Self {
        Self { bytes: Vec::new(), start: 0, filled: 0 }
    }

    /// The record at `offset`, which must have the given seq when one is given.
    pub(super) fn record_at(
        &mut self,
        file: &dyn ReadAt,
        offset: u64,
        seq: Option<u64>,
    ) -> io::Result<Found<'_>> {
        let header = match record::peek(self.at(file, offset, HEADER_LEN)?) {
            Ok(Some(header)) => header,
            Ok(None) => return Ok(Found::End),
            Err(_) => return Ok(Found::Corrupt),
        };
        let len = HEADER_LEN + header.payload_len as usize;
        let bytes = self.at(file, offset, len)?;
        match record::decode(&bytes[..len.min(bytes.len())]) {
            Ok(Some((record, _))) if seq.is_none_or(|seq| seq == record.header.seq) => {
                Ok(Found::Record(record))
            }
            Ok(None) => Ok(Found::End),
            Ok(Some(_)) | Err(_) => Ok(Found::Corrupt),
        }
    }

    /// At least `len` bytes from `offset`, fewer at the end of the file.
    fn at(&mut self, file: &dyn ReadAt, offset: u64, len: usize) -> io::Result<&[u8]> {
        let inside = offset >= self.start && offset + len as u64 <= self.start + self.filled as u64;
        if !inside {
            self.bytes.resize(len.max(WINDOW), 0);
            self.start = offset;
            self.filled = 0;
            while self.filled < self.bytes.len() {
                match file.read_at(&mut self.bytes[self.filled..], offset + self.filled as u64)? {
                    0 => break,
                    read => self.filled += read,
                }
            }
        }
        let from = (offset - self.start) as usize;
        Ok(&self.bytes[from.min(self.filled)..self.filled])
    }
}

/// Whether a whole record of a later seq stands anywhere behind `offset`: then what is at `offset` is damage, not a
/// tail that was torn while it was written.
pub(super) fn has_record_behind(file: &dyn ReadAt, offset: u64, seq: u64, end: u64) -> io::Result<bool> {
    const STEP: usize = 256 * 1024;
    let mut bytes = vec![0; STEP + HEADER_LEN];
    let mut window = Window::new();
    let mut at = offset + 1;
    while at + HEADER_LEN as u64 <= end {
        let mut filled = 0;
        while filled < bytes.len() {
            match file.read_at(&mut bytes[filled..], at + filled as u64)? {
                0 => break,
                read => filled += read,
            }
        }
        for start in 0..filled.saturating_sub(HEADER_LEN - 1).min(STEP) {
            let candidate = &bytes[start..start + HEADER_LEN];
            if plausible(candidate, seq, end - at - start as u64)
                && let Found::Record(_) = window.record_at(file, at + start as u64, None)?
            {
                return Ok(true);
            }
        }
        at += STEP as u64;
    }
    Ok(false)
}

/// Cheap enough for every byte of a file: only what may be a record gets its checksum computed.
fn plausible(bytes: &[u8], after: u64, room: u64) -> bool {
    const MOST_RECORDS_LOST: u64 = 1 << 26;
    match record::peek(bytes) {
        Ok(Some(header)) => {
            header.seq > after && header.seq - after <= MOST_RECORDS_LOST && header.record_len() <= room
        }
        _ => false,
    }
}

/// Whether the file starts as a journal of this version. `None`: it is too short to say, so nothing is in it yet.
pub(super) fn is_journal(file: &dyn ReadAt) -> io::Result<Option<bool>> {
    let mut header = [0; FILE_HEADER.len()];
    let mut filled = 0;
    while filled < header.len() {
        match file.read_at(&mut header[filled..], filled as u64)? {
            0 => return Ok((!FILE_HEADER.starts_with(&header[..filled])).then_some(false)),
            read => filled += read,
        }
    }
    Ok(Some(header == FILE_HEADER))
}

/// Walks all records from the first, gives each to `visit`, and returns where the good part ends and the next seq.
pub(super) fn walk(
    file: &dyn ReadAt,
    end: u64,
    mut visit: impl FnMut(u64, &Header, &[u8]),
) -> Result<(u64, u64), WalkError> {
    let mut window = Window::new();
    let (mut offset, mut seq) = (FILE_HEADER_LEN, 1);
    loop {
        match window.record_at(file, offset, Some(seq))? {
            Found::Record(record) => {
                visit(offset, &record.header, record.payload);
                offset += record.header.record_len();
                seq += 1;
            }
            Found::End => return Ok((offset, seq)),
            Found::Corrupt => {
                if has_record_behind(file, offset, seq, end)? {
                    return Err(WalkError::Damaged { offset });
                }
                return Ok((offset, seq));
            }
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum WalkError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("damaged at byte {offset}")]
    Damaged { offset: u64 },
}

const _: () = assert!(LONGEST_PAYLOAD >= WINDOW);
