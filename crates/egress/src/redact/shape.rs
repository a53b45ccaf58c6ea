//! What looks like a credential, though nobody said that it is one.

use std::fmt;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, MatchKind};

use super::text::TextCheck;

const MASK: u8 = b'*';
/// A run without an upper bound, in the middle of a shape: how much is held back at most while it is undecided.
const LONGEST_INNER_RUN: usize = 4096;
const LONGEST_BLOCK: usize = 64 * 1024;

/// Shapes that credentials of well-known services have.
const USUAL: &[&str] = &[
    "sk-[A-Za-z0-9_-]{20,}",
    "ghp_[A-Za-z0-9]{30,}",
    "gho_[A-Za-z0-9]{30,}",
    "ghu_[A-Za-z0-9]{30,}",
    "ghs_[A-Za-z0-9]{30,}",
    "ghr_[A-Za-z0-9]{30,}",
    "github_pat_[A-Za-z0-9_]{40,}",
    "glpat-[A-Za-z0-9_-]{20,}",
    "xoxb-[A-Za-z0-9-]{20,}",
    "xoxp-[A-Za-z0-9-]{20,}",
    "AKIA[A-Z0-9]{16}",
    "ASIA[A-Z0-9]{16}",
    "AIza[A-Za-z0-9_-]{35}",
    "npm_[A-Za-z0-9]{36}",
    "pypi-[A-Za-z0-9_-]{50,}",
    "eyJ[A-Za-z0-9_-]{8,}\\.[A-Za-z0-9_-]{8,}\\.[A-Za-z0-9_-]{8,}",
];

/// Private keys begin so and end with `-----END`; what is between is masked line by line.
const KEY_BLOCKS: &[&str] = &[
    "-----BEGIN PRIVATE KEY-----",
    "-----BEGIN RSA PRIVATE KEY-----",
    "-----BEGIN EC PRIVATE KEY-----",
    "-----BEGIN DSA PRIVATE KEY-----",
    "-----BEGIN ENCRYPTED PRIVATE KEY-----",
    "-----BEGIN OPENSSH PRIVATE KEY-----",
    "-----BEGIN PGP PRIVATE KEY BLOCK-----",
];
const KEY_BLOCK_END: &[u8] = b"-----END";

/// A set of shapes.
#[derive(Clone)]
pub struct Shapes {
    shapes: Vec<Shape>,
    heads: Option<AhoCorasick>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Shape {
    Parts { head: Vec<u8>, rest: Vec<Part> },
    Block { head: Vec<u8> },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(Vec<u8>),
    /// Characters of a class, as many as there are.
    Run {
        class: Class,
        least: usize,
        most: usize,
    },
}

/// Which ASCII characters: one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Class(u128);

impl Class {
    fn has(self, byte: u8) -> bool {
        byte < 128 && self.0 >> byte & 1 == 1
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{given}' is not a shape (at character {at}): write at least three fixed characters, then classes with how many \
     of them, as in 'tok_[A-Za-z0-9]{{20,}}'"
)]
pub struct NotAShape {
    given: String,
    at: usize,
}

impl Shapes {
    pub fn none() -> Self {
        Self { shapes: Vec::new(), heads: None }
    }

    /// The usual shapes, and private key blocks.
    pub fn usual() -> Self {
        Self::new(USUAL).expect("the usual shapes are well-formed")
    }

    /// The given shapes, and private key blocks.
    pub fn new<'a>(given: impl IntoIterator<Item = impl AsRef<str> + 'a>) -> Result<Self, NotAShape> {
        let mut shapes =
            given.into_iter().map(|shape| parse(shape.as_ref())).collect::<Result<Vec<_>, _>>()?;
        shapes.extend(KEY_BLOCKS.iter().map(|head| Shape::Block { head: head.as_bytes().into() }));
        let heads =
            AhoCorasick::builder().match_kind(MatchKind::LeftmostFirst).build(shapes.iter().map(Shape::head));
        Ok(Self {
            heads: Some(heads.expect("shapes are fewer and shorter than the automaton's bounds")),
            shapes,
        })
    }

    /// Shapes parted by white space, and private key blocks. `usual` stands for the usual ones, `none` alone for no shapes at
    /// all; neither could be a shape.
    pub fn parse(text: &str) -> Result<Self, NotAShape> {
        let words: Vec<&str> = text.split_whitespace().collect();
        if words == ["none"] {
            return Ok(Self::none());
        }
        Self::new(words.iter().flat_map(|word| match *word {
            "usual" => USUAL,
            _ => std::slice::from_ref(word),
        }))
    }

    pub fn is_empty(&self) -> bool {
        self.shapes.is_empty()
    }

    /// Where the first head is, at or behind this place.
    fn next_head(&self, text: &[u8], from: usize) -> Option<usize> {
        let heads = self.heads.as_ref()?;
        heads.find(aho_corasick::Input::new(text).range(from..)).map(|found| found.start())
    }

    /// How many of the last bytes could be the beginning of a head.
    fn begun(&self, text: &[u8]) -> usize {
        let begun = |head: &[u8]| {
            (1..head.len().min(text.len() + 1))
                .rev()
                .find(|length| text.ends_with(&head[..*length]))
                .unwrap_or(0)
        };
        self.shapes.iter().map(|shape| begun(shape.head())).max().unwrap_or(0)
    }
}

impl fmt::Debug for Shapes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shapes({})", self.shapes.len())
    }
}

impl Shape {
    fn head(&self) -> &[u8] {
        match self {
            Self::Parts { head, .. } | Self::Block { head } => head,
        }
    }
}

fn parse(given: &str) -> Result<Shape, NotAShape> {
    let refuse = |at| NotAShape { given: given.chars().take(80).collect(), at: at + 1 };
    let bytes = given.as_bytes();
    let mut parts = Vec::new();
    let mut text = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'[' => {
                let length = bytes[at..].iter().position(|byte| *byte == b']').ok_or_else(|| refuse(at))?;
                let class = class(&bytes[at + 1..at + length]).ok_or_else(|| refuse(at))?;
                let open = at + length + 1;
                let close =
                    bytes[open..].iter().position(|byte| *byte == b'}').ok_or_else(|| refuse(open))?;
                let (least, most) = counts(&given[open..=open + close]).ok_or_else(|| refuse(open))?;
                if !text.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut text)));
                }
                parts.push(Part::Run { class, least, most });
                at = open + close + 1;
            }
            b'\\' if at + 1 < bytes.len() && bytes[at + 1].is_ascii_punctuation() => {
                text.push(bytes[at + 1]);
                at += 2;
            }
            byte if byte.is_ascii_graphic() && !b"{}()*+?|^$.]\\".contains(&byte) => {
                text.push(byte);
                at += 1;
            }
            _ => return Err(refuse(at)),
        }
    }
    if !text.is_empty() {
        parts.push(Part::Text(text));
    }
    let last = parts.len().saturating_sub(1);
    for (index, part) in parts.iter_mut().enumerate() {
        if let Part::Run { most, .. } = part
            && index != last
        {
            *most = (*most).min(LONGEST_INNER_RUN);
        }
    }
    match parts.split_first() {
        Some((Part::Text(head), rest)) if head.len() >= 3 && !rest.is_empty() => {
            Ok(Shape::Parts { head: head.clone(), rest: rest.to_vec() })
        }
        _ => Err(refuse(0)),
    }
}

fn class(inside: &[u8]) -> Option<Class> {
    let mut bits = 0_u128;
    let mut rest = inside;
    while let [first, tail @ ..] = rest {
        let (last, tail) = match tail {
            [b'-', last, tail @ ..] => (last, tail),
            _ => (first, tail),
        };
        if first > last || !first.is_ascii_graphic() || !last.is_ascii_graphic() {
            return None;
        }
        (*first..=*last).for_each(|byte| bits |= 1 << byte);
        rest = tail;
    }
    (bits != 0).then_some(Class(bits))
}

/// `{20}`, `{20,}` or `{20,40}`.
fn counts(text: &str) -> Option<(usize, usize)> {
    let inside = text.strip_prefix('{')?.strip_suffix('}')?;
    let (least, most) = match inside.split_once(',') {
        None => (inside.parse().ok()?, inside.parse().ok()?),
        Some((least, "")) => (least.parse().ok()?, usize::MAX),
        Some((least, most)) => (least.parse().ok()?, most.parse().ok()?),
    };
    (least <= most && least <= LONGEST_INNER_RUN).then_some((least, most))
}

/// One stream in which shapes are masked.
#[derive(Debug)]
pub(super) struct ShapeMask {
    shapes: Arc<Shapes>,
    check: TextCheck,
    held: Vec<u8>,
    /// The last byte that was given out: a shape begins where a word does.
    before: u8,
    /// What the bytes at the front belong to.
    inside: Inside,
    count: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inside {
    Nothing,
    /// The last run of a shape, which may go on for this many bytes.
    Run(Class, usize),
    /// A block, which may go on for this many bytes.
    Block(usize),
    /// What is not text: nothing is masked any more.
    Binary,
}

/// What a shape is at some place of the text.
enum Fit {
    No,
    /// The text ends before it is decided.
    Undecided,
    /// This many bytes, and then this.
    Yes(usize, Inside),
}

impl ShapeMask {
    pub(super) fn new(shapes: Arc<Shapes>) -> Self {
        let check = TextCheck::default();
        Self { shapes, check, held: Vec::new(), before: b' ', inside: Inside::Nothing, count: 0 }
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn push(&mut self, piece: &[u8], output: &mut Vec<u8>) {
        if self.inside == Inside::Binary {
            output.extend_from_slice(piece);
            return;
        }
        let binary = self.check.first_binary(piece);
        let (text, rest) = piece.split_at(binary.unwrap_or(piece.len()));
        self.take(text, binary.is_some(), output);
        if binary.is_some() {
            self.inside = Inside::Binary;
            output.extend_from_slice(rest);
        }
    }

    pub(super) fn finish(&mut self, output: &mut Vec<u8>) {
        if self.inside != Inside::Binary {
            self.take(&[], true, output);
        }
    }

    fn take(&mut self, piece: &[u8], ends: bool, output: &mut Vec<u8>) {
        let begin = output.len();
        output.append(&mut self.held);
        output.extend_from_slice(piece);
        let decided = self.mask(&mut output[begin..], ends);
        self.held.extend_from_slice(&output[begin + decided..]);
        output.truncate(begin + decided);
    }

    /// Masks what is decided of the text, and says how far that is.
    fn mask(&mut self, text: &mut [u8], ends: bool) -> usize {
        let shapes = Arc::clone(&self.shapes);
        let mut at = 0_usize;
        // The last byte before `at`, which a mask may have changed.
        let mut before = self.before;
        loop {
            match self.inside {
                Inside::Nothing | Inside::Binary => {}
                Inside::Run(class, most) => {
                    let end = text.len().min(at.saturating_add(most));
                    let length = text[at..end].iter().take_while(|byte| class.has(**byte)).count();
                    text[at..at + length].fill(MASK);
                    at += length;
                    before = if length > 0 { MASK } else { before };
                    if at == text.len() && length < most && !ends {
                        self.inside = Inside::Run(class, most - length);
                        break;
                    }
                    self.inside = Inside::Nothing;
                }
                Inside::Block(most) => {
                    let end = text.len().min(at.saturating_add(most));
                    let found =
                        text[at..end].windows(KEY_BLOCK_END.len()).position(|part| part == KEY_BLOCK_END);
                    let begun = || {
                        let longest = (KEY_BLOCK_END.len() - 1).min(end - at);
                        (1..=longest)
                            .rev()
                            .find(|length| text[at..end].ends_with(&KEY_BLOCK_END[..*length]))
                            .unwrap_or(0)
                    };
                    let hold = if end == text.len() && end - at < most && !ends { begun() } else { 0 };
                    let until = found.map_or(end - hold, |found| at + found);
                    text[at..until]
                        .iter_mut()
                        .filter(|byte| !matches!(byte, b'\n' | b'\r'))
                        .for_each(|byte| *byte = MASK);
                    let left = most - (until - at);
                    before = text[..until].last().copied().unwrap_or(before);
                    at = until;
                    if found.is_none() && left > 0 && !ends {
                        self.inside = Inside::Block(left);
                        break;
                    }
                    self.inside = Inside::Nothing;
                }
            }
            let Some(found) = shapes.next_head(text, at) else {
                let hold = if ends { 0 } else { shapes.begun(&text[at..]) };
                let end = text.len() - hold;
                before = text[at..end].last().copied().unwrap_or(before);
                at = end;
                break;
            };
            before = text[at..found].last().copied().unwrap_or(before);
            at = found;
            let fit = if before.is_ascii_alphanumeric() { Fit::No } else { shapes.fit(&text[at..], ends) };
            match fit {
                Fit::Undecided => break,
                Fit::No => {
                    before = text[at];
                    at += 1;
                }
                Fit::Yes(length, inside) => {
                    self.count += 1;
                    if matches!(inside, Inside::Block(_)) {
                        // That there is a key stays visible; what it is does not.
                        before = text[at + length - 1];
                    } else {
                        text[at..at + length].fill(MASK);
                        before = MASK;
                    }
                    at += length;
                    self.inside = inside;
                }
            }
        }
        self.before = before;
        at
    }
}

impl Shapes {
    /// The first shape that the text begins with.
    fn fit(&self, text: &[u8], ends: bool) -> Fit {
        for shape in self.shapes.iter() {
            if !text.starts_with(shape.head()) {
                let begun = !ends && shape.head().starts_with(text);
                if begun {
                    return Fit::Undecided;
                }
                continue;
            }
            let fit = match shape {
                Shape::Block { head } => Fit::Yes(head.len(), Inside::Block(LONGEST_BLOCK)),
                Shape::Parts { head, rest } => fit(text, head.len(), rest, ends),
            };
            if !matches!(fit, Fit::No) {
                return fit;
            }
        }
        Fit::No
    }
}

fn fit(text: &[u8], mut at: usize, parts: &[Part], ends: bool) -> Fit {
    for (index, part) in parts.iter().enumerate() {
        let is_last = index + 1 == parts.len();
        match part {
            Part::Text(expected) => {
                let there = &text[at..text.len().min(at + expected.len())];
                if there == expected.as_slice() {
                    at += expected.len();
                } else {
                    return if expected.starts_with(there) && !ends { Fit::Undecided } else { Fit::No };
                }
            }
            Part::Run { class, least, most } => {
                let end = text.len().min(at.saturating_add(*most));
                let length = text[at..end].iter().take_while(|byte| class.has(**byte)).count();
                let goes_on = at + length == text.len() && length < *most && !ends;
                match () {
                    () if is_last && length >= *least => {
                        let inside =
                            if goes_on { Inside::Run(*class, *most - length) } else { Inside::Nothing };
                        return Fit::Yes(at + length, inside);
                    }
                    () if goes_on => return Fit::Undecided,
                    () if length < *least => return Fit::No,
                    () => at += length,
                }
            }
        }
    }
    Fit::Yes(at, Inside::Nothing)
}
