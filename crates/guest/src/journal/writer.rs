//! The one writer of a journal, pid 1 of the sandbox.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::record::{self, Draft, FILE_HEADER, FILE_HEADER_LEN, HEADER_LEN, Header};
use super::scan::{self, ReadAt, WalkError};

/// Room that is kept for the records that say how things ended.
const RESERVE: u64 = 64 * 1024;
/// Below this the reserve is not taken: an idle sandbox costs nothing.
const RESERVE_FROM: u64 = 16 * 1024;
const INDEX_STEP: u64 = 64 * 1024;

pub struct Journal {
    file: OwnedFd,
    end: u64,
    next_seq: u64,
    limit: u64,
    /// Sorted `(seq, offset)` pairs, one every 64 KiB.
    index: Vec<(u64, u64)>,
    /// All records from this offset on belong to this exec, which makes one long run of them for its readers.
    solo: Solo,
    reserve: Reserve,
}

#[derive(Debug, Clone, Copy)]
struct Solo {
    exec: u32,
    from: u64,
}

/// Blocks held behind the end of the file, given back to the filesystem when it is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reserve {
    NotTaken,
    Held,
    /// The filesystem cannot do it, or it has been used up.
    Gone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// The seq of the first record that was appended.
    pub seq: u64,
    /// Where it begins in the file.
    pub offset: u64,
    /// Where the last one ends.
    pub end: u64,
}

/// A stretch of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    pub offset: u64,
    pub len: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot read or write the journal")]
    Io(#[from] io::Error),
    #[error("the file is not a journal of this version")]
    NotAJournal,
    #[error(
        "the journal is damaged at byte {offset}, with good records behind it: move it away and start with a new one"
    )]
    Damaged { offset: u64 },
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal")
            .field("end", &self.end)
            .field("next_seq", &self.next_seq)
            .finish_non_exhaustive()
    }
}

struct Positioned<'a>(BorrowedFd<'a>);

impl ReadAt for Positioned<'_> {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(rustix::io::pread(self.0, into, offset)?)
    }
}

impl Journal {
    /// Takes an empty file or a journal, cuts a torn tail, and gives every record that is there to `visit`.
    ///
    /// The descriptor must be the only one this process ever has of the file: closing another one would drop the lock
    /// by which the host finds the sandbox.
    pub fn open(
        file: OwnedFd,
        limit: u64,
        visit: impl FnMut(u64, &Header, &[u8]),
    ) -> Result<Self, OpenError> {
        let length = rustix::fs::fstat(&file).map_err(io::Error::from)?.st_size.max(0) as u64;
        let mut journal = Self {
            file,
            end: FILE_HEADER_LEN,
            next_seq: 1,
            limit,
            index: Vec::new(),
            solo: Solo { exec: 0, from: FILE_HEADER_LEN },
            reserve: Reserve::NotTaken,
        };
        if length == 0 {
            journal.write_all(&mut [IoSlice::new(&FILE_HEADER)], 0)?;
            return Ok(journal);
        }
        journal.adopt(length, visit)?;
        Ok(journal)
    }

    fn adopt(&mut self, length: u64, mut visit: impl FnMut(u64, &Header, &[u8])) -> Result<(), OpenError> {
        match scan::is_journal(&Positioned(self.file.as_fd()))? {
            Some(true) => {}
            Some(false) => return Err(OpenError::NotAJournal),
            None => self.write_all(&mut [IoSlice::new(&FILE_HEADER)], 0)?,
        }
        let (mut index, mut solo) = (Vec::new(), self.solo);
        let walked = scan::walk(&Positioned(self.file.as_fd()), length, |offset, header, payload| {
            note(&mut index, &mut solo, header.exec, header.seq, offset);
            visit(offset, header, payload);
        });
        let (end, next_seq) = walked.map_err(|error| match error {
            WalkError::Io(error) => OpenError::Io(error),
            WalkError::Damaged { offset } => OpenError::Damaged { offset },
        })?;
        if end < length {
            rustix::fs::ftruncate(&self.file, end).map_err(io::Error::from)?;
        }
        (self.end, self.next_seq, self.index, self.solo) = (end, next_seq, index, solo);
        Ok(())
    }

    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Whether anybody can still find the file.
    pub fn has_a_name(&self) -> bool {
        rustix::fs::fstat(&self.file).is_ok_and(|seen| seen.st_nlink > 0)
    }

    /// Where the next record will begin: nothing behind it is ever delivered.
    pub fn end(&self) -> u64 {
        self.end
    }

    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }

    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Whether a record with this payload keeps the file within its limit, with `spare` bytes left for others.
    pub fn has_room_for(&self, payload: usize, spare: u64) -> bool {
        self.end + (HEADER_LEN + payload) as u64 + spare <= self.limit
    }

    /// Appends records with one write. When it fails nothing was appended.
    pub fn append(&mut self, drafts: &[Draft<'_>]) -> io::Result<Appended> {
        if self.reserve == Reserve::NotTaken && self.end >= RESERVE_FROM {
            self.take_reserve();
        }
        let offset = self.end;
        let seq = self.next_seq;
        let length = match drafts {
            [one] => {
                let header = record::encode_header(one, seq);
                self.write_all(&mut [IoSlice::new(&header), IoSlice::new(one.payload)], offset)?;
                (HEADER_LEN + one.payload.len()) as u64
            }
            many => {
                let mut bytes =
                    Vec::with_capacity(many.iter().map(|draft| HEADER_LEN + draft.payload.len()).sum());
                for (draft, seq) in many.iter().zip(seq..) {
                    bytes.extend_from_slice(&record::encode_header(draft, seq));
                    bytes.extend_from_slice(draft.payload);
                }
                self.write_all(&mut [IoSlice::new(&bytes)], offset)?;
                bytes.len() as u64
            }
        };
        let mut at = offset;
        for (draft, seq) in drafts.iter().zip(seq..) {
            note(&mut self.index, &mut self.solo, draft.exec, seq, at);
            at += (HEADER_LEN + draft.payload.len()) as u64;
        }
        self.end = offset + length;
        self.next_seq = seq + drafts.len() as u64;
        Ok(Appended { seq, offset, end: self.end })
    }

    /// Appends records that say how something ended. A full filesystem gets its reserve back first.
    pub fn append_from_reserve(&mut self, drafts: &[Draft<'_>]) -> io::Result<Appended> {
        match self.append(drafts) {
            Err(error) if is_full(&error) && self.reserve == Reserve::Held => {
                self.give_reserve_back();
                let appended = self.append(drafts);
                // Whoever has room again gets a reserve again.
                self.take_reserve();
                appended
            }
            result => result,
        }
    }

    /// The first offset of a record whose seq is at least `seq`; the end when there is none.
    pub fn offset_of(&self, seq: u64) -> io::Result<u64> {
        if seq >= self.next_seq {
            return Ok(self.end);
        }
        let before = self.index.partition_point(|(indexed, _)| *indexed <= seq);
        let (mut at_seq, mut offset) = match before.checked_sub(1) {
            Some(entry) => self.index[entry],
            None => (1, FILE_HEADER_LEN),
        };
        while at_seq < seq && offset < self.end {
            let header = self.header_at(offset)?;
            offset += header.record_len();
            at_seq += 1;
        }
        Ok(offset)
    }

    /// The next stretch at or behind `offset` that has only records of `exec` (all records for `None`). An empty run
    /// says where to look next: that is the end of the journal, or an earlier place when much was skipped, so that one
    /// call never takes long.
    pub fn next_run(&self, offset: u64, exec: Option<u32>) -> io::Result<Run> {
        let Some(exec) = exec else { return Ok(Run { offset, len: self.end.saturating_sub(offset) }) };
        if self.solo.exec == exec && offset >= self.solo.from {
            return Ok(Run { offset, len: self.end.saturating_sub(offset) });
        }
        const MOST_LOOKS: usize = 256;
        let mut run = Run { offset, len: 0 };
        let mut block = [0; 4096];
        for _ in 0..MOST_LOOKS {
            let at = run.offset + run.len;
            if at >= self.end {
                break;
            }
            let filled = block.len().min((self.end - at) as usize);
            self.read(&mut block[..filled], at)?;
            let mut inside = 0;
            while let Some(bytes) = block[..filled].get(inside..inside + HEADER_LEN) {
                let header = known_header(bytes, at + inside as u64)?;
                match (header.exec == exec, run.len) {
                    (true, _) => run.len += header.record_len(),
                    (false, 0) => run.offset += header.record_len(),
                    (false, _) => return Ok(run),
                }
                inside += header.record_len() as usize;
            }
        }
        Ok(run)
    }

    /// Reads what was written; the range must lie before the end.
    pub fn read(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        let mut filled = 0;
        while filled < into.len() {
            match rustix::io::pread(&self.file, &mut into[filled..], offset + filled as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => filled += read,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    pub fn header_at(&self, offset: u64) -> io::Result<Header> {
        let mut bytes = [0; HEADER_LEN];
        self.read(&mut bytes, offset)?;
        known_header(&bytes, offset)
    }

    fn write_all(&self, mut parts: &mut [IoSlice<'_>], mut offset: u64) -> io::Result<()> {
        loop {
            IoSlice::advance_slices(&mut parts, 0);
            if parts.is_empty() {
                return Ok(());
            }
            match rustix::io::pwritev(&self.file, parts, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    IoSlice::advance_slices(&mut parts, written);
                    offset += written as u64;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn reserve_offset(&self) -> u64 {
        // Far enough behind everything that will be written, so that the blocks stay apart from it.
        (self.limit + RESERVE).next_multiple_of(1024 * 1024)
    }

    fn take_reserve(&mut self) {
        let kept =
            rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, self.reserve_offset(), RESERVE);
        self.reserve = if kept.is_ok() { Reserve::Held } else { Reserve::Gone };
    }

    fn give_reserve_back(&mut self) {
        let flags = FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE;
        // When this fails the filesystem stays full, and the append that follows says so.
        let _ = rustix::fs::fallocate(&self.file, flags, self.reserve_offset(), RESERVE);
        self.reserve = Reserve::Gone;
    }
}

fn known_header(bytes: &[u8], offset: u64) -> io::Result<Header> {
    match record::peek(bytes) {
        Ok(Some(header)) => Ok(header),
        Ok(None) | Err(_) => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("the journal is damaged at byte {offset}"),
        )),
    }
}

fn note(index: &mut Vec<(u64, u64)>, solo: &mut Solo, exec: u32, seq: u64, offset: u64) {
    if index.last().map_or(FILE_HEADER_LEN, |(_, last)| *last) + INDEX_STEP <= offset {
        index.push((seq, offset));
    }
    if solo.exec != exec {
        *solo = Solo { exec, from: offset };
    }
}

/// Whether the filesystem (or the file's owner's share of it) has no room.
pub fn is_full(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG))
}
