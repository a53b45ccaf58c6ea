//! The names of archive entries, with the extensions that make them longer than a header holds.
//!
//! The `tar` crate reads such extensions whole, whatever length they claim; here they are bounded.

use std::io::{self, Read};

use tar::{Entry, EntryType};

const LONGEST_EXTENSION: u64 = 64 * 1024;
const LONGEST_NAME: usize = 4096;

/// What earlier extension entries say about the next real entry.
#[derive(Debug, Default)]
pub(super) struct Extensions {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum BadHeader {
    TooLong,
    Malformed(&'static str),
    /// Reading from the client failed.
    Broken,
}

impl From<io::Error> for BadHeader {
    fn from(_: io::Error) -> Self {
        Self::Broken
    }
}

/// The names of a real entry.
#[derive(Debug)]
pub(super) struct Names {
    pub(super) path: Vec<u8>,
    pub(super) link: Vec<u8>,
}

impl Extensions {
    /// Takes an entry in if it is an extension of the next one; otherwise gives its names.
    pub(super) fn next<R: Read>(&mut self, entry: &mut Entry<'_, R>) -> Result<Option<Names>, BadHeader> {
        match entry.header().entry_type() {
            EntryType::GNULongName => self.path = Some(trimmed(extension(entry)?)?),
            EntryType::GNULongLink => self.link = Some(trimmed(extension(entry)?)?),
            EntryType::XHeader => self.pax(&extension(entry)?)?,
            // It holds for the whole archive; what it may say (a comment, a default owner) is not used.
            EntryType::XGlobalHeader => drop(extension(entry)?),
            _ => {
                let Self { path, link, size } = std::mem::take(self);
                if size.is_some_and(|size| entry.header().entry_size().ok() != Some(size)) {
                    return Err(BadHeader::Malformed(
                        "a size that does not fit its header (use the GNU format)",
                    ));
                }
                let path = path.unwrap_or_else(|| entry.header().path_bytes().into_owned());
                let link = match link {
                    Some(link) => link,
                    None => entry.header().link_name_bytes().unwrap_or_default().into_owned(),
                };
                return Ok(Some(Names { path: trimmed(path)?, link: trimmed(link)? }));
            }
        }
        Ok(None)
    }

    /// Records of the form `LENGTH KEY=VALUE\n`, where the length counts itself.
    fn pax(&mut self, mut records: &[u8]) -> Result<(), BadHeader> {
        let bad = BadHeader::Malformed("a malformed extended header");
        while !records.is_empty() {
            let Some(space) = records.iter().take(12).position(|byte| *byte == b' ') else { return Err(bad) };
            let length =
                std::str::from_utf8(&records[..space]).ok().and_then(|text| text.parse::<usize>().ok());
            let Some(length) = length.filter(|length| *length > space + 1 && *length <= records.len()) else {
                return Err(bad);
            };
            let record = &records[space + 1..length];
            let Some(record) = record.strip_suffix(b"\n") else { return Err(bad) };
            let Some(equals) = record.iter().position(|byte| *byte == b'=') else { return Err(bad) };
            let value = &record[equals + 1..];
            match &record[..equals] {
                b"path" => self.path = Some(trimmed(value.to_vec())?),
                b"linkpath" => self.link = Some(trimmed(value.to_vec())?),
                b"size" => match std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()) {
                    Some(size) => self.size = Some(size),
                    None => return Err(bad),
                },
                _ => {}
            }
            records = &records[length..];
        }
        Ok(())
    }
}

fn extension<R: Read>(entry: &mut Entry<'_, R>) -> Result<Vec<u8>, BadHeader> {
    if entry.size() > LONGEST_EXTENSION {
        return Err(BadHeader::TooLong);
    }
    let mut bytes = Vec::new();
    entry.take(LONGEST_EXTENSION).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Up to the NUL that GNU tar puts behind a name.
fn trimmed(mut name: Vec<u8>) -> Result<Vec<u8>, BadHeader> {
    if let Some(end) = name.iter().position(|byte| *byte == 0) {
        name.truncate(end);
    }
    if name.len() > LONGEST_NAME { Err(BadHeader::TooLong) } else { Ok(name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extended_headers_are_read_or_refused() {
        let mut extensions = Extensions::default();
        extensions.pax(b"12 path=a/b\n21 comment=something\n16 linkpath=c\n").unwrap_err();
        extensions.pax(b"12 path=a/b\n14 linkpath=c\n").unwrap();
        assert_eq!(extensions.path.as_deref(), Some(&b"a/b"[..]));
        assert_eq!(extensions.link.as_deref(), Some(&b"c"[..]));
        for bad in ["x", "5 a=b", "0 a=b\n", "999 a=b\n", "6 a=b ", "6 abc\n", "18446744073709551616 a=b\n"] {
            assert!(Extensions::default().pax(bad.as_bytes()).is_err(), "{bad:?}");
        }
    }
}
