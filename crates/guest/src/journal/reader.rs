//! Reading a journal file from outside its sandbox, also after the sandbox ended.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::record::{FILE_HEADER_LEN, Header};
use super::scan::{self, Found, ReadAt, Window};

/// Reads records one after the other. `None` is the end for now: a later call finds what was appended since.
pub struct Reader {
    file: File,
    window: Window,
    offset: u64,
    next_seq: u64,
    checked: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("cannot read the journal")]
    Io(#[from] io::Error),
    #[error("the file is not a journal of this version")]
    NotAJournal,
    #[error("the journal is damaged at byte {offset}, with good records behind it")]
    Damaged { offset: u64 },
}

/// A record that owns its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub header: Header,
    pub payload: Vec<u8>,
}

impl ReadAt for File {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, into, offset)
    }
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("offset", &self.offset).field("next_seq", &self.next_seq).finish()
    }
}

impl Reader {
    /// Nothing is read yet; the file may still be empty.
    pub fn new(file: File) -> Self {
        Self { file, window: Window::new(), offset: FILE_HEADER_LEN, next_seq: 1, checked: false }
    }

    /// The next whole record. A torn tail reads as the end.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, ReadError> {
        if !self.checked {
            match scan::is_journal(&self.file)? {
                None => return Ok(None),
                Some(false) => return Err(ReadError::NotAJournal),
                Some(true) => self.checked = true,
            }
        }
        let found = self.window.record_at(&self.file, self.offset, Some(self.next_seq))?;
        if let Found::Record(record) = found {
            let entry = Entry { header: record.header, payload: record.payload.to_vec() };
            self.offset += entry.header.record_len();
            self.next_seq += 1;
            return Ok(Some(entry));
        }
        let torn = matches!(found, Found::End);
        // What was read may grow, so the next call must look again.
        self.window = Window::new();
        let end = self.file.metadata()?.len();
        if torn || !scan::has_record_behind(&self.file, self.offset, self.next_seq, end)? {
            return Ok(None);
        }
        // The writer may have finished a record between the two looks; only what stays broken is damage.
        match self.window.record_at(&self.file, self.offset, Some(self.next_seq))? {
            Found::Record(_) => self.next_entry(),
            Found::End | Found::Corrupt => Err(ReadError::Damaged { offset: self.offset }),
        }
    }
}

impl Iterator for Reader {
    type Item = Result<Entry, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_entry().transpose()
    }
}
