//! Paths and queries as clients write them.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;

use super::failure::Failure;

/// What a relative path is taken from.
const WORKSPACE: &[u8] = b"/workspace/";
const LONGEST: usize = 4096;

/// An absolute path inside the sandbox. It may still have `..` and lead through symbolic links: only resolving it
/// in a root says where it ends.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct SandboxPath(Vec<u8>);

impl SandboxPath {
    pub(super) fn from_encoded(encoded: &str) -> Result<Self, Failure> {
        Self::from_bytes(&percent_decoded(encoded)?)
    }

    pub(super) fn from_bytes(given: &[u8]) -> Result<Self, Failure> {
        if given.is_empty() {
            return Err(Failure::invalid_path("the path is empty"));
        }
        if given.contains(&0) {
            return Err(Failure::invalid_path("the path has a NUL byte"));
        }
        let absolute = if given[0] == b'/' { given.to_vec() } else { [WORKSPACE, given].concat() };
        if absolute.len() > LONGEST {
            return Err(Failure::invalid_path(format!("the path is longer than {LONGEST} bytes")));
        }
        Ok(Self(absolute))
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn components(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".")
    }

    /// The directory part and the last name; no name when the path ends in something that can only be a directory
    /// (`/`, `.` or `..`).
    pub(super) fn split(&self) -> (&[u8], Option<&OsStr>) {
        let end = self.0.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let path = &self.0[..end];
        let name_at = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        match &path[name_at..] {
            b"" | b"." | b".." => (&self.0, None),
            name => (&path[..name_at], Some(OsStr::from_bytes(name))),
        }
    }

    /// The path below this one, without resolving anything.
    pub(super) fn join(&self, below: &[u8]) -> Vec<u8> {
        let end = self.0.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        [&self.0[..end], b"/", below].concat()
    }
}

impl fmt::Display for SandboxPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in String::from_utf8_lossy(&self.0).chars().take(300) {
            if character.is_control() {
                write!(f, "{}", character.escape_default())?;
            } else {
                write!(f, "{character}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for SandboxPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The parameters behind the question mark, decoded.
#[derive(Debug)]
pub(super) struct Query(Vec<(Vec<u8>, Vec<u8>)>);

impl Query {
    pub(super) fn parse(query: &str) -> Result<Self, Failure> {
        let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok((percent_decoded(name)?, percent_decoded(value)?))
        });
        pairs.collect::<Result<_, _>>().map(Self)
    }

    pub(super) fn get(&self, name: &str) -> Option<&[u8]> {
        let found = self.0.iter().find(|(given, _)| given == name.as_bytes());
        found.map(|(_, value)| value.as_slice())
    }

    pub(super) fn path(&self, name: &str) -> Result<Option<SandboxPath>, Failure> {
        self.get(name).map(SandboxPath::from_bytes).transpose()
    }

    pub(super) fn required_path(&self, name: &str) -> Result<SandboxPath, Failure> {
        self.path(name)?.ok_or_else(|| Failure::invalid_query(format!("?{name}=PATH is missing")))
    }

    /// `?name`, `?name=true` and `?name=1` are yes.
    pub(super) fn flag(&self, name: &str) -> Result<bool, Failure> {
        match self.get(name) {
            None | Some(b"false" | b"0") => Ok(false),
            Some(b"" | b"true" | b"1") => Ok(true),
            Some(_) => Err(Failure::invalid_query(format!("{name} is either true or false"))),
        }
    }

    /// Permission bits in octal. Set-id bits are refused, not dropped: a client that asks for them expects them.
    pub(super) fn mode(&self) -> Result<Option<u32>, Failure> {
        let Some(given) = self.get("mode") else { return Ok(None) };
        let parsed = std::str::from_utf8(given).ok().filter(|text| text.len() <= 6);
        match parsed.and_then(|text| u32::from_str_radix(text, 8).ok()) {
            Some(mode) if mode <= 0o1777 => Ok(Some(mode)),
            _ => Err(Failure::invalid_query("mode is octal, from 0 to 1777, as in mode=0644")),
        }
    }
}

fn percent_decoded(encoded: &str) -> Result<Vec<u8>, Failure> {
    let mut decoded = Vec::with_capacity(encoded.len());
    let mut rest = encoded.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        if *first != b'%' {
            decoded.push(*first);
            rest = behind;
            continue;
        }
        let digit = |at: usize| behind.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(0), digit(1)) else {
            return Err(Failure::invalid_path("a % is not followed by two hexadecimal digits"));
        };
        decoded.push((high * 16 + low) as u8);
        rest = &behind[2..];
    }
    Ok(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(encoded: &str) -> Result<String, &'static str> {
        let parsed = SandboxPath::from_encoded(encoded);
        parsed.map(|path| path.to_string()).map_err(|failure| failure.code)
    }

    #[test]
    fn a_relative_path_is_taken_from_the_workspace() {
        assert_eq!(path("a/b").unwrap(), "/workspace/a/b");
        assert_eq!(path("/etc/hosts").unwrap(), "/etc/hosts");
        assert_eq!(path("%2Fetc%2fhosts").unwrap(), "/etc/hosts");
        assert_eq!(path("a%20b").unwrap(), "/workspace/a b");
    }

    #[test]
    fn what_cannot_be_a_path_is_refused() {
        let long = "a".repeat(5000);
        for given in ["", "%00", "a%00b", "%", "%2", "%zz", &long] {
            assert_eq!(path(given), Err("invalid_path"), "{given}");
        }
    }

    #[test]
    fn the_last_name_is_found_behind_any_number_of_slashes() {
        let table: [(&[u8], &[u8], Option<&str>); 7] = [
            (b"/", b"/", None),
            (b"/a", b"/", Some("a")),
            (b"/a//", b"/", Some("a")),
            (b"//a//b/", b"//a//", Some("b")),
            (b"/a/.", b"/a/.", None),
            (b"/a/..", b"/a/..", None),
            (b"/...", b"/", Some("...")),
        ];
        for (given, directory, name) in table {
            let path = SandboxPath::from_bytes(given).unwrap();
            assert_eq!(path.split(), (directory, name.map(OsStr::new)), "{path}");
        }
    }

    #[test]
    fn a_mode_is_octal_and_has_no_set_id_bits() {
        let mode = |text: &str| Query::parse(text).unwrap().mode();
        assert_eq!(mode("mode=0644").unwrap(), Some(0o644));
        assert_eq!(mode("").unwrap(), None);
        for given in ["mode=4755", "mode=2755", "mode=9", "mode=", "mode=-1", "mode=0x1"] {
            assert_eq!(mode(given).unwrap_err().code, "invalid_query", "{given}");
        }
    }

    #[test]
    fn a_path_is_shown_without_control_characters() {
        let path = SandboxPath::from_bytes(b"/a\x1b[31m\n").unwrap();
        assert_eq!(path.to_string(), "/a\\u{1b}[31m\\n");
    }
}
