//! One record of the journal as bytes: a fixed little-endian header and a payload.
//!
//! ```text
//!  0 payload_len u32   8 version u8   10 check u16   16 seq u64       32 stream_offset u64
//!  4 crc32 u32         9 kind u8      12 exec u32    24 time_us u64   40 payload
//! ```
//! `crc32` covers everything behind itself. `check` covers the header alone, so that a record whose payload ends with
//! the file is known to be torn; otherwise a payload that imitates records could pass for records behind damage.

/// The journal file's own header comes before the first record.
pub const FILE_HEADER: [u8; 16] = *b"CUBJRNL1\x01\0\0\0\0\0\0\0";
pub const FILE_HEADER_LEN: u64 = FILE_HEADER.len() as u64;
pub const HEADER_LEN: usize = 40;
/// A longer payload is never written, and a header that announces one is corrupt.
pub const LONGEST_PAYLOAD: usize = 1024 * 1024;

const VERSION: u8 = 1;
const CRC_END: usize = 8;

/// What a record says. Kinds of a later version are `Unknown` and are skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The placement, as JSON.
    Place,
    /// The isolation receipt, as JSON.
    Receipt,
    /// What binding changed about it, as JSON.
    Amendment,
    /// An exec began: `wire::Start`.
    Start,
    Stdout,
    Stderr,
    /// The first process of an exec ended: `wire::Exited`.
    Exit,
    /// The exec's output is complete: `wire::StreamBytes` of all it wrote.
    Eof,
    /// The journal is full; later output of this exec's stream is not kept: `wire::Truncated`.
    Truncated,
    /// Output that could not be written: `wire::StreamBytes`.
    Lost,
    /// What a context tells beside what it prints: `wire::context::CellEvent`.
    Cell,
    Unknown(u8),
}

impl Kind {
    pub fn from_byte(byte: u8) -> Self {
        match byte {
            1 => Self::Place,
            2 => Self::Receipt,
            3 => Self::Start,
            4 => Self::Stdout,
            5 => Self::Stderr,
            6 => Self::Exit,
            7 => Self::Eof,
            8 => Self::Truncated,
            9 => Self::Lost,
            10 => Self::Amendment,
            11 => Self::Cell,
            other => Self::Unknown(other),
        }
    }

    pub fn byte(self) -> u8 {
        match self {
            Self::Place => 1,
            Self::Receipt => 2,
            Self::Start => 3,
            Self::Stdout => 4,
            Self::Stderr => 5,
            Self::Exit => 6,
            Self::Eof => 7,
            Self::Truncated => 8,
            Self::Lost => 9,
            Self::Amendment => 10,
            Self::Cell => 11,
            Self::Unknown(byte) => byte,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Place => "place",
            Self::Receipt => "receipt",
            Self::Start => "start",
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Exit => "exit",
            Self::Eof => "eof",
            Self::Truncated => "truncated",
            Self::Lost => "lost",
            Self::Amendment => "amendment",
            Self::Cell => "cell",
            Self::Unknown(_) => "unknown",
        }
    }
}

/// Everything about a record but its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub payload_len: u32,
    pub crc: u32,
    pub version: u8,
    pub kind: Kind,
    /// The exec's number within its sandbox; 0 when the record is about the sandbox.
    pub exec: u32,
    pub seq: u64,
    /// Microseconds since 1970.
    pub time_us: u64,
    pub stream_offset: u64,
}

impl Header {
    /// The whole record's length.
    pub fn record_len(&self) -> u64 {
        (HEADER_LEN + self.payload_len as usize) as u64
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    pub header: Header,
    pub payload: &'a [u8],
}

/// Bytes that are not a record, or not any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CorruptRecord {
    #[error("a payload of {0} bytes is announced, more than any record has")]
    TooLong(u32),
    #[error("the checksum does not match")]
    Checksum,
    #[error("the header is damaged")]
    Header,
}

/// Reads one record from the front of `bytes`. `None` means that it is not all there yet.
pub fn decode(bytes: &[u8]) -> Result<Option<(Record<'_>, usize)>, CorruptRecord> {
    let Some(header) = peek(bytes)? else { return Ok(None) };
    let len = HEADER_LEN + header.payload_len as usize;
    let Some(whole) = bytes.get(..len) else { return Ok(None) };
    if crc32fast::hash(&whole[CRC_END..]) != header.crc {
        return Err(CorruptRecord::Checksum);
    }
    Ok(Some((Record { header, payload: &whole[HEADER_LEN..] }, len)))
}

/// Reads a header without judging its checksum, which needs the payload.
pub fn peek(bytes: &[u8]) -> Result<Option<Header>, CorruptRecord> {
    let Some(header) = bytes.first_chunk::<HEADER_LEN>() else { return Ok(None) };
    let u32_at = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
    let payload_len = u32_at(0);
    if u16::from_le_bytes([header[10], header[11]]) != header_check(header) {
        return Err(CorruptRecord::Header);
    }
    if payload_len as usize > LONGEST_PAYLOAD {
        return Err(CorruptRecord::TooLong(payload_len));
    }
    let version = header[8];
    // The header's layout belongs to the file's version; a record of another version has a payload we cannot read.
    let kind = if version == VERSION { Kind::from_byte(header[9]) } else { Kind::Unknown(header[9]) };
    Ok(Some(Header {
        payload_len,
        crc: u32_at(4),
        version,
        kind,
        exec: u32_at(12),
        seq: u64_at(16),
        time_us: u64_at(24),
        stream_offset: u64_at(32),
    }))
}

/// What a new record says, before it has a place in the journal.
#[derive(Debug, Clone, Copy)]
pub struct Draft<'a> {
    pub kind: Kind,
    pub exec: u32,
    pub time_us: u64,
    pub stream_offset: u64,
    pub payload: &'a [u8],
}

/// The header that goes before the draft's payload.
pub fn encode_header(draft: &Draft<'_>, seq: u64) -> [u8; HEADER_LEN] {
    debug_assert!(draft.payload.len() <= LONGEST_PAYLOAD);
    let mut header = [0; HEADER_LEN];
    header[0..4].copy_from_slice(&(draft.payload.len() as u32).to_le_bytes());
    header[8] = VERSION;
    header[9] = draft.kind.byte();
    header[12..16].copy_from_slice(&draft.exec.to_le_bytes());
    header[16..24].copy_from_slice(&seq.to_le_bytes());
    header[24..32].copy_from_slice(&draft.time_us.to_le_bytes());
    header[32..40].copy_from_slice(&draft.stream_offset.to_le_bytes());
    let check = header_check(&header);
    header[10..12].copy_from_slice(&check.to_le_bytes());
    let mut crc = crc32fast::Hasher::new();
    crc.update(&header[CRC_END..]);
    crc.update(draft.payload);
    header[4..CRC_END].copy_from_slice(&crc.finalize().to_le_bytes());
    header
}

fn header_check(header: &[u8; HEADER_LEN]) -> u16 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&header[..4]);
    crc.update(&header[8..10]);
    crc.update(&header[12..]);
    crc.finalize() as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(draft: &Draft<'_>, seq: u64) -> Vec<u8> {
        let mut bytes = encode_header(draft, seq).to_vec();
        bytes.extend_from_slice(draft.payload);
        bytes
    }

    fn sample() -> Vec<u8> {
        let draft = Draft {
            kind: Kind::Stdout,
            exec: 3,
            time_us: 1_700_000_000_000_000,
            stream_offset: 99,
            payload: b"hi",
        };
        encoded(&draft, 42)
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            kind: u8, exec: u32, time_us: u64, stream_offset: u64, seq: u64,
            payload in proptest::collection::vec(any::<u8>(), 0..2000),
            behind in proptest::collection::vec(any::<u8>(), 0..50),
        ) {
            let draft = Draft { kind: Kind::from_byte(kind), exec, time_us, stream_offset, payload: &payload };
            let mut bytes = encoded(&draft, seq);
            let len = bytes.len();
            bytes.extend_from_slice(&behind);
            let (record, used) = decode(&bytes).unwrap().unwrap();
            prop_assert_eq!(used, len);
            prop_assert_eq!(record.payload, &payload[..]);
            let header = record.header;
            prop_assert_eq!(
                (header.kind, header.exec, header.time_us, header.stream_offset, header.seq, header.record_len()),
                (Kind::from_byte(kind), exec, time_us, stream_offset, seq, len as u64)
            );
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }
    }

    #[test]
    fn a_record_cut_at_any_byte_is_incomplete() {
        let bytes = sample();
        for len in 0..bytes.len() {
            assert_eq!(decode(&bytes[..len]), Ok(None), "cut at {len}");
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let good = sample();
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_kind_of_a_later_version_is_unknown_and_has_its_length() {
        let draft =
            Draft { kind: Kind::Unknown(200), exec: 0, time_us: 0, stream_offset: 0, payload: b"future" };
        let bytes = encoded(&draft, 1);
        let (record, used) = decode(&bytes).unwrap().unwrap();
        assert_eq!((record.header.kind, used), (Kind::Unknown(200), bytes.len()));
    }

    #[test]
    fn an_announced_length_beyond_the_cap_is_refused_before_it_is_read() {
        let mut bytes: [u8; HEADER_LEN] = *sample().first_chunk().unwrap();
        bytes[3] = 0xff;
        let check = header_check(&bytes);
        bytes[10..12].copy_from_slice(&check.to_le_bytes());
        assert!(matches!(decode(&bytes), Err(CorruptRecord::TooLong(_))));
    }

    #[test]
    fn every_kind_survives_its_byte() {
        for byte in 0..=255 {
            assert_eq!(Kind::from_byte(byte).byte(), byte);
        }
    }
}
