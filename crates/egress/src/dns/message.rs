//! The little of DNS that an answerer without a resolver needs: one question in, at most one address out.

use std::net::Ipv4Addr;

const HEADER: usize = 12;
const LONGEST_NAME: usize = 255;
const TYPE_A: u16 = 1;
const CLASS_IN: u16 = 1;
/// Short, as a policy may change.
const TTL_SECONDS: u32 = 30;

const NO_ERROR: u8 = 0;
const FORMAT_ERROR: u8 = 1;
const SERVER_FAILURE: u8 = 2;
const NO_SUCH_NAME: u8 = 3;
const NOT_IMPLEMENTED: u8 = 4;

/// A question that was understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query<'a> {
    id: [u8; 2],
    recursion_desired: bool,
    name: String,
    kind: u16,
    /// Name, type and class as they came, to be sent back.
    question: &'a [u8],
}

/// A message that was not, and whether it can be answered with an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    reply: Option<Vec<u8>>,
}

impl Malformed {
    pub fn reply(self) -> Option<Vec<u8>> {
        self.reply
    }
}

/// What is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Address(Ipv4Addr),
    /// The name exists, but has nothing of this kind.
    Nothing,
    NoSuchName,
    Full,
}

impl Answer {
    pub(super) fn localhost(wants_v4: bool) -> Self {
        if wants_v4 { Self::Address(Ipv4Addr::LOCALHOST) } else { Self::Nothing }
    }
}

/// Reads a message of a client.
pub fn parse(bytes: &[u8]) -> Result<Query<'_>, Malformed> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else {
        return Err(Malformed { reply: None });
    };
    let id = [header[0], header[1]];
    let is_reply = header[2] & 0x80 != 0;
    if is_reply {
        // Answering answers is how two servers talk for ever.
        return Err(Malformed { reply: None });
    }
    let recursion_desired = header[2] & 1 != 0;
    let malformed = |code| Malformed { reply: Some(head(id, recursion_desired, code, 0, 0)) };
    if header[2] >> 3 & 0xf != 0 {
        return Err(malformed(NOT_IMPLEMENTED));
    }
    let questions = u16::from_be_bytes([header[4], header[5]]);
    let answers = u16::from_be_bytes([header[6], header[7]]);
    if questions != 1 || answers != 0 {
        return Err(malformed(FORMAT_ERROR));
    }
    let (name, length) = name(rest).ok_or_else(|| malformed(FORMAT_ERROR))?;
    let Some((fixed, _)) = rest[length..].split_first_chunk::<4>() else {
        return Err(malformed(FORMAT_ERROR));
    };
    if u16::from_be_bytes([fixed[2], fixed[3]]) != CLASS_IN {
        return Err(malformed(NOT_IMPLEMENTED));
    }
    let kind = u16::from_be_bytes([fixed[0], fixed[1]]);
    Ok(Query { id, recursion_desired, name, kind, question: &rest[..length + 4] })
}

/// The name at the front, with dots, and how many bytes it took. A question has nothing before it that it could point
/// to, so it is not compressed.
fn name(bytes: &[u8]) -> Option<(String, usize)> {
    let mut name = String::new();
    let mut at = 0;
    loop {
        let length = usize::from(*bytes.get(at)?);
        at += 1;
        if length == 0 {
            return Some((name, at));
        }
        if length > 63 || at + length > LONGEST_NAME {
            return None;
        }
        if !name.is_empty() {
            name.push('.');
        }
        // Other bytes are made visible, and are no part of a host name.
        let label = bytes.get(at..at + length)?;
        name.extend(
            label
                .iter()
                .map(|byte| if byte.is_ascii_graphic() && *byte != b'.' { char::from(*byte) } else { '?' }),
        );
        at += length;
    }
}

impl Query<'_> {
    /// As it was asked, not checked in any way.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn wants_v4(&self) -> bool {
        self.kind == TYPE_A
    }

    pub fn reply(&self, answer: Answer) -> Vec<u8> {
        let code = match answer {
            Answer::Address(_) | Answer::Nothing => NO_ERROR,
            Answer::NoSuchName => NO_SUCH_NAME,
            Answer::Full => SERVER_FAILURE,
        };
        let address = match answer {
            Answer::Address(address) if self.wants_v4() => Some(address),
            _ => None,
        };
        let mut reply = head(self.id, self.recursion_desired, code, 1, u8::from(address.is_some()));
        reply.extend_from_slice(self.question);
        if let Some(address) = address {
            // The name is the one that begins right behind the header.
            reply.extend_from_slice(&[0xc0, HEADER as u8]);
            reply.extend_from_slice(&TYPE_A.to_be_bytes());
            reply.extend_from_slice(&CLASS_IN.to_be_bytes());
            reply.extend_from_slice(&TTL_SECONDS.to_be_bytes());
            reply.extend_from_slice(&4_u16.to_be_bytes());
            reply.extend_from_slice(&address.octets());
        }
        reply
    }
}

fn head(id: [u8; 2], recursion_desired: bool, code: u8, questions: u8, answers: u8) -> Vec<u8> {
    let [high, low] = id;
    // A reply, with authority, with recursion available: resolvers ask nobody else then.
    let flags = 0x84 | u8::from(recursion_desired);
    vec![high, low, flags, 0x80 | code, 0, questions, 0, answers, 0, 0, 0, 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(name: &str, kind: u16) -> Vec<u8> {
        let mut bytes = vec![0xab, 0xcd, 0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            bytes.push(u8::try_from(label.len()).unwrap());
            bytes.extend_from_slice(label.as_bytes());
        }
        bytes.push(0);
        bytes.extend_from_slice(&kind.to_be_bytes());
        bytes.extend_from_slice(&1_u16.to_be_bytes());
        bytes
    }

    #[test]
    fn a_question_for_an_address_is_answered_with_one() {
        let bytes = query("a.example", TYPE_A);
        let query = parse(&bytes).unwrap();
        assert_eq!((query.name(), query.wants_v4()), ("a.example", true));
        let reply = query.reply(Answer::Address(Ipv4Addr::new(127, 128, 0, 1)));
        assert_eq!(&reply[..12], [0xab, 0xcd, 0x85, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
        assert_eq!(&reply[12..bytes.len()], &bytes[12..]);
        assert_eq!(&reply[bytes.len()..], [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 30, 0, 4, 127, 128, 0, 1]);
    }

    #[test]
    fn other_kinds_and_unknown_names_get_no_address() {
        let bytes = query("a.example", 28);
        let aaaa = parse(&bytes).unwrap();
        for (answer, code) in [
            (Answer::Address(Ipv4Addr::LOCALHOST), 0),
            (Answer::Nothing, 0),
            (Answer::NoSuchName, 3),
            (Answer::Full, 2),
        ] {
            let reply = aaaa.reply(answer);
            assert_eq!((reply[3] & 0xf, reply[7], reply.len()), (code, 0, bytes.len()), "{answer:?}");
        }
    }

    #[test]
    fn what_is_no_question_is_refused_or_ignored() {
        let good = query("a.example", 1);
        let changed = |at: usize, to: u8| {
            let mut bytes = good.clone();
            bytes[at] = to;
            bytes
        };
        for (bytes, code) in [
            (good[..11].to_vec(), None),
            (changed(2, 0x80), None),
            (changed(2, 0x28), Some(NOT_IMPLEMENTED)),
            (changed(5, 0), Some(FORMAT_ERROR)),
            (changed(5, 2), Some(FORMAT_ERROR)),
            (changed(7, 1), Some(FORMAT_ERROR)),
            (changed(12, 0xc0), Some(FORMAT_ERROR)),
            (changed(12, 64), Some(FORMAT_ERROR)),
            (changed(good.len() - 1, 3), Some(NOT_IMPLEMENTED)),
            (good[..good.len() - 1].to_vec(), Some(FORMAT_ERROR)),
            (query(&vec!["x".repeat(63); 5].join("."), 1), Some(FORMAT_ERROR)),
        ] {
            let reply = parse(&bytes).expect_err("it is malformed").reply();
            assert_eq!(reply.map(|reply| reply[3] & 0xf), code, "{bytes:?}");
        }
        assert_eq!(parse(&query("a.b\u{7}c", 1)).unwrap().name(), "a.b?c");
    }
}
