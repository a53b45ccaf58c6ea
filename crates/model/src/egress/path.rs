//! Paths of requests, and patterns over them. Servers disagree about what `/a/../b`, `/a//b` and `/a%2fb` mean, so a
//! path that can be read in two ways is never compared with a pattern: it is refused wherever a pattern would decide.

use std::fmt;

const LONGEST_PATTERN: usize = 1024;

/// A path that every server reads in the same way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path(String);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the path can be read in more than one way")]
pub struct Ambiguous;

impl Path {
    /// Reads the path of a request, without its query.
    pub fn parse(given: &str) -> Result<Self, Ambiguous> {
        canonical(given).map(Self).ok_or(Ambiguous)
    }
}

/// A pattern over paths: `*` is any text within one segment, `**` any text at all.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathPattern {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Part {
    Byte(u8),
    WithinSegment,
    Anything,
}

impl PathPattern {
    pub(super) fn parse(given: &str) -> Result<Self, Ambiguous> {
        let text = canonical(given).filter(|text| text.len() <= LONGEST_PATTERN).ok_or(Ambiguous)?;
        let mut parts = Vec::with_capacity(text.len());
        for byte in text.bytes() {
            match (byte, parts.last()) {
                (b'*', Some(Part::WithinSegment)) => {
                    *parts.last_mut().expect("it was just seen") = Part::Anything;
                }
                (b'*', Some(Part::Anything)) => {}
                (b'*', _) => parts.push(Part::WithinSegment),
                (byte, _) => parts.push(Part::Byte(byte)),
            }
        }
        Ok(Self { parts })
    }

    /// Whether only one path fits.
    pub fn is_exact(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, Part::Byte(_)))
    }

    pub fn fits(&self, path: &Path) -> bool {
        // Every place in the pattern that the text so far can have led to. The work is bounded by the two lengths,
        // whatever the client sends.
        let mut places = vec![false; self.parts.len() + 1];
        let mut next = places.clone();
        places[0] = true;
        self.skip(&mut places);
        for byte in path.0.bytes() {
            next.fill(false);
            for (place, part) in self.parts.iter().enumerate().filter(|(place, _)| places[*place]) {
                match part {
                    Part::Byte(expected) if *expected == byte => next[place + 1] = true,
                    Part::Byte(_) => {}
                    Part::WithinSegment if byte == b'/' => {}
                    Part::WithinSegment | Part::Anything => next[place] = true,
                }
            }
            self.skip(&mut next);
            std::mem::swap(&mut places, &mut next);
        }
        places[self.parts.len()]
    }

    /// A wildcard may also stand for nothing.
    fn skip(&self, places: &mut [bool]) {
        for (place, part) in self.parts.iter().enumerate() {
            if places[place] && !matches!(part, Part::Byte(_)) {
                places[place + 1] = true;
            }
        }
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.parts {
            match part {
                Part::Byte(byte) => write!(f, "{}", char::from(*byte))?,
                Part::WithinSegment => f.write_str("*")?,
                Part::Anything => f.write_str("**")?,
            }
        }
        Ok(())
    }
}

/// The one spelling of a path, or nothing when it has several readings.
fn canonical(given: &str) -> Option<String> {
    let mut text = String::with_capacity(given.len());
    let mut rest = given.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let mut digit = || rest.next().and_then(|c| char::from(c).to_digit(16));
                let code = u8::try_from((digit()? << 4) | digit()?).ok()?;
                match code {
                    b'/' | b'\\' | b'%' | b'*' | 0..0x20 | 0x7f => return None,
                    _ if is_unreserved(code) => text.push(char::from(code)),
                    _ => text.push_str(&format!("%{code:02X}")),
                }
            }
            b'\\' | b'#' | b'?' | 0..=0x20 | 0x7f.. => return None,
            _ => text.push(char::from(byte)),
        }
    }
    let segments = text.strip_prefix('/')?.split('/');
    let last = segments.clone().count() - 1;
    let plain = |(index, segment): (usize, &str)| {
        !matches!(segment, "." | "..") && (index == last || !segment.is_empty())
    };
    segments.enumerate().all(plain).then_some(text)
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_can_be_read_in_two_ways_is_refused() {
        for path in [
            "/a/../b",
            "/a/./b",
            "/..",
            "/a/%2e%2e/b",
            "/a/.%2E/b",
            "//a",
            "/a//b",
            "/a%2fb",
            "/a%5cb",
            "/a\\b",
            "/a%00b",
            "/a%252fb",
            "/a%",
            "/a%2",
            "/a%zz",
            "",
            "a",
            "*",
            "/ä",
            "/a b",
            "/a?b",
            "/a%2a",
        ] {
            assert_eq!(Path::parse(path), Err(Ambiguous), "{path}");
        }
    }

    #[test]
    fn equal_paths_become_equal() {
        for (given, path) in [("/%41b%2Dc", "/Ab-c"), ("/a%c3%a4", "/a%C3%A4"), ("/", "/"), ("/a/", "/a/")] {
            assert_eq!(Path::parse(given).unwrap().0, path, "{given}");
        }
    }

    #[test]
    fn patterns_keep_to_segments_unless_doubled() {
        for (pattern, path, expected) in [
            ("/a", "/a", true),
            ("/a", "/a/", false),
            ("/a", "/ab", false),
            ("/a/*", "/a/b", true),
            ("/a/*", "/a/", true),
            ("/a/*", "/a/b/c", false),
            ("/a/*/c", "/a/b/c", true),
            ("/a/**", "/a/b/c", true),
            ("/a/**", "/a/", true),
            ("/a/**", "/a", false),
            ("/a/**", "/abc", false),
            ("/**/x", "/a/b/x", true),
            ("/v*/m", "/v1/m", true),
            ("/%41", "/A", true),
            ("/**", "/", true),
        ] {
            let fits = PathPattern::parse(pattern).unwrap().fits(&Path::parse(path).unwrap());
            assert_eq!(fits, expected, "{pattern} over {path}");
        }
    }

    #[test]
    fn many_wildcards_cost_no_more_than_the_product_of_the_lengths() {
        let pattern = PathPattern::parse(&format!("/{}b", "a*".repeat(200))).unwrap();
        let path = Path::parse(&format!("/{}", "a".repeat(8000))).unwrap();
        assert!(!pattern.fits(&path));
    }
}
