//! The ways in which programs write a secret down.

use std::collections::BTreeSet;

use base64::Engine;
use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD};

use super::SHORTEST_SECRET;

/// Every usual spelling of the value; none when it is too short to be told from ordinary text.
pub(super) fn spellings(value: &[u8]) -> BTreeSet<Vec<u8>> {
    // A secret that was read from a file often ends with a line feed that is not part of it.
    let end = value.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r')).map_or(0, |last| last + 1);
    let value = &value[..end];
    if value.len() < SHORTEST_SECRET {
        return BTreeSet::new();
    }
    let mut all = BTreeSet::from([value.to_vec()]);
    for engine in [engine(&alphabet::STANDARD), engine(&alphabet::URL_SAFE)] {
        all.extend((0..3).map(|offset| base64_at(&engine, value, offset)));
    }
    for upper in [true, false] {
        all.insert(percent(value, upper, is_unreserved));
        all.insert(percent(value, upper, |byte| is_unreserved(byte) || b"!*'()".contains(&byte)));
        all.insert(percent(value, upper, |byte| is_unreserved(byte) || b";/?:@&=+$,#!*'()".contains(&byte)));
        all.insert(
            percent(value, upper, |byte| is_unreserved(byte) || byte == b' ').iter().map(plus).collect(),
        );
    }
    if let Ok(text) = std::str::from_utf8(value) {
        for (slash, html, ascii) in
            [(false, false, false), (true, false, false), (false, true, false), (false, false, true)]
        {
            all.extend([true, false].map(|upper| json(text, slash, html, ascii, upper).into_bytes()));
        }
    }
    if value.contains(&b'\n') {
        // A terminal sends a line feed as two characters.
        all.insert(
            value
                .iter()
                .flat_map(|byte| if *byte == b'\n' { &b"\r\n"[..] } else { std::slice::from_ref(byte) })
                .copied()
                .collect(),
        );
    }
    all.retain(|spelling| spelling.len() >= SHORTEST_SECRET);
    all
}

fn engine(alphabet: &alphabet::Alphabet) -> GeneralPurpose {
    GeneralPurpose::new(alphabet, NO_PAD)
}

/// The characters that the value alone decides, when it stands at this offset (modulo three) of what was encoded.
fn base64_at(engine: &GeneralPurpose, value: &[u8], offset: usize) -> Vec<u8> {
    let mut padded = vec![0; offset];
    padded.extend_from_slice(value);
    let encoded = engine.encode(&padded).into_bytes();
    let first = (offset * 8).div_ceil(6);
    let end = padded.len() * 8 / 6;
    encoded[first..end].to_vec()
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

fn percent(value: &[u8], upper: bool, keep: impl Fn(u8) -> bool) -> Vec<u8> {
    let mut text = Vec::with_capacity(value.len());
    for byte in value {
        match (keep(*byte), upper) {
            (true, _) => text.push(*byte),
            (false, true) => text.extend_from_slice(format!("%{byte:02X}").as_bytes()),
            (false, false) => text.extend_from_slice(format!("%{byte:02x}").as_bytes()),
        }
    }
    text
}

fn plus(byte: &u8) -> u8 {
    if *byte == b' ' { b'+' } else { *byte }
}

/// The inside of a JSON string.
fn json(text: &str, slash: bool, html: bool, ascii: bool, upper: bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    let unicode = |unit: u16| if upper { format!("\\u{unit:04X}") } else { format!("\\u{unit:04x}") };
    for c in text.chars() {
        match c {
            '"' => escaped.push_str("\\\""),
            '\\' => escaped.push_str("\\\\"),
            '/' if slash => escaped.push_str("\\/"),
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            '\t' => escaped.push_str("\\t"),
            '\u{8}' => escaped.push_str("\\b"),
            '\u{c}' => escaped.push_str("\\f"),
            '<' | '>' | '&' | '\'' if html => escaped.push_str(&unicode(c as u16)),
            _ if c.is_control() && c.is_ascii() => escaped.push_str(&unicode(c as u16)),
            _ if ascii && !c.is_ascii() => {
                c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| escaped.push_str(&unicode(*unit)));
            }
            _ => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_anything_around_the_secret_holds_one_of_its_spellings() {
        let all = spellings(b"correct horse?battery>staple");
        for before in 0..6 {
            for after in 0..4 {
                let around =
                    [vec![b'x'; before], b"correct horse?battery>staple".to_vec(), vec![b'y'; after]]
                        .concat();
                for engine in [engine(&alphabet::STANDARD), engine(&alphabet::URL_SAFE)] {
                    let encoded = engine.encode(&around);
                    let holds = |spelling: &Vec<u8>| {
                        encoded.as_bytes().windows(spelling.len()).any(|part| part == spelling)
                    };
                    assert!(all.iter().any(holds), "{before} {after}");
                }
            }
        }
    }

    #[test]
    fn text_encodings_are_among_the_spellings() {
        let all = spellings("pä\"ss/wo rd\n".as_bytes());
        for expected in [
            "pä\"ss/wo rd",
            "p%C3%A4%22ss%2Fwo%20rd",
            "p%c3%a4%22ss%2fwo%20rd",
            "p%C3%A4%22ss%2Fwo+rd",
            "p%C3%A4%22ss/wo%20rd",
            "pä\\\"ss/wo rd",
            "pä\\\"ss\\/wo rd",
            "p\\u00e4\\\"ss/wo rd",
        ] {
            assert!(all.contains(expected.as_bytes()), "{expected}");
        }
    }

    #[test]
    fn a_short_secret_has_no_spelling() {
        assert!(spellings(b"abc12").is_empty());
        assert!(spellings(b"abc12\n\n").is_empty());
        assert!(!spellings(b"abc123").is_empty());
    }

    #[test]
    fn a_plain_key_has_few_spellings() {
        assert_eq!(spellings(b"abcdefghijklmnopqrstuvwxyz0123456789ABCD").len(), 4);
    }
}
