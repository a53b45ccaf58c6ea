//! Masks the spellings of known secrets, wherever they are and however the stream is cut.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::{Anchored, MatchKind, StartKind, dfa, nfa};

use super::Release;
use super::spelling::spellings;

/// Above this many bytes of spellings, the automaton that needs less memory is taken; it is slower.
const MOST_FOR_TABLE: usize = 256 * 1024;

/// How many bytes of a stream are looked at together to tell whether a secret could be near.
const GRAM: usize = 4;
const FILTER_BITS: u32 = 18;

/// The secrets of one redaction.
///
/// The automaton alone reads every byte, and its table is larger than a cache. So most bytes are skipped: a spelling
/// is at least `shortest` bytes long, so of the grams that begin at every `stride`-th byte one lies within the first
/// `shortest` bytes of it. Where none of them is a gram of a spelling's beginning, no spelling begins.
pub(super) struct Known {
    automaton: Table,
    depths: Depths,
    grams: Box<[u64]>,
    shortest: usize,
    longest: usize,
    mask: u8,
}

enum Table {
    Dense(dfa::DFA),
    Compact(nfa::contiguous::NFA),
}

impl Known {
    pub(super) fn new<'a>(secrets: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let all: BTreeSet<Vec<u8>> = secrets.flat_map(spellings).collect();
        let shortest = all.iter().map(Vec::len).min()?;
        let longest = all.iter().map(Vec::len).max()?;
        let mut letters: Vec<u8> = all.iter().flatten().copied().collect();
        letters.sort_unstable();
        letters.dedup();
        // The mask must not make a secret of what was none.
        let is_free = |byte: &u8| letters.binary_search(byte).is_err();
        // Nor may it end or escape a JSON string.
        let plain = (0x21..0x7f).filter(|byte| !matches!(byte, b'"' | b'\\'));
        let mask = b"*#x".iter().copied().chain(plain).find(is_free).unwrap_or(b'*');
        let mut grams = vec![0; (1 << FILTER_BITS) / 64].into_boxed_slice();
        for gram in all.iter().flat_map(|spelling| spelling[..shortest].windows(GRAM)) {
            let (word, bit) = place(gram);
            grams[word] |= bit;
        }
        let dense = || {
            if all.iter().map(Vec::len).sum::<usize>() > MOST_FOR_TABLE {
                return None;
            }
            let mut builder = dfa::DFA::builder();
            builder.match_kind(MatchKind::Standard).start_kind(StartKind::Unanchored).prefilter(false);
            builder.build(&all).ok()
        };
        let automaton = match dense() {
            Some(dense) => Table::Dense(dense),
            None => {
                let mut builder = nfa::contiguous::NFA::builder();
                builder.match_kind(MatchKind::Standard).prefilter(false);
                Table::Compact(
                    builder.build(&all).expect("secrets are fewer and shorter than the automaton's bounds"),
                )
            }
        };
        let depths = match &automaton {
            Table::Dense(dense) => Depths::new(dense, &letters),
            Table::Compact(compact) => Depths::new(compact, &letters),
        };
        Some(Self { automaton, depths, grams, shortest, longest, mask })
    }

    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    fn is_gram(&self, gram: &[u8]) -> bool {
        let (word, bit) = place(gram);
        self.grams[word] & bit != 0
    }
}

/// Where in the filter a gram is noted.
fn place(gram: &[u8]) -> (usize, u64) {
    let gram = u32::from_le_bytes(gram.try_into().expect("a gram has this many bytes"));
    let hash = gram.wrapping_mul(0x9e37_79b1) >> (32 - FILTER_BITS);
    (hash as usize / 64, 1 << (hash % 64))
}

fn start(automaton: &impl Automaton) -> StateID {
    automaton.start_state(Anchored::No).expect("the automaton was built for searches that begin anywhere")
}

/// What is known of each state.
struct Depths {
    /// States are numbered in steps of the table's width, which is a power of two.
    shift: u32,
    depths: Vec<Depth>,
}

#[derive(Clone, Copy, Default)]
struct Depth {
    /// How long the text is that a state stands for. A state is reached first by exactly that text, so it is its distance
    /// from the start.
    seen: u32,
    /// How much of it could be the beginning of something longer, and must be held back: not the whole of a spelling that
    /// no other one begins with.
    open: u32,
}

impl Depths {
    fn new(automaton: &impl Automaton, letters: &[u8]) -> Self {
        let first = start(automaton);
        let mut known = HashMap::from([(first, Depth::default())]);
        let mut queue = VecDeque::from([(first, 0)]);
        while let Some((state, seen)) = queue.pop_front() {
            let mut open = 0;
            for letter in letters {
                let next = automaton.next_state(Anchored::No, state, *letter);
                let next = known.entry(next).or_insert_with(|| {
                    queue.push_back((next, seen + 1));
                    Depth { seen: seen + 1, open: 0 }
                });
                open = open.max(next.seen.saturating_sub(1));
            }
            known.insert(state, Depth { seen, open });
        }
        let shift = known.keys().map(|state| state.as_usize().trailing_zeros()).min().unwrap_or(0);
        let last = known.keys().map(|state| state.as_usize() >> shift).max().unwrap_or(0);
        let mut depths = vec![Depth::default(); last + 1];
        for (state, depth) in known {
            depths[state.as_usize() >> shift] = depth;
        }
        Self { shift, depths }
    }

    fn of(&self, state: StateID) -> usize {
        self.depths[state.as_usize() >> self.shift].seen as usize
    }

    fn open(&self, state: StateID) -> usize {
        self.depths[state.as_usize() >> self.shift].open as usize
    }
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Known({} states)", self.depths.depths.len())
    }
}

/// One stream in which known secrets are masked.
#[derive(Debug)]
pub(super) struct KnownMask {
    known: Arc<Known>,
    state: StateID,
    /// Seen and not given out: its last bytes could be the beginning of a secret.
    held: Vec<u8>,
    /// Where the stream stands after what was held.
    seen: u64,
    /// Found secrets that are not given out yet, in order and apart.
    found: VecDeque<(u64, u64)>,
    /// Where the last mask that was given out ended.
    masked_to: Option<u64>,
    count: u64,
}

impl KnownMask {
    pub(super) fn new(known: Arc<Known>) -> Self {
        let state = match &known.automaton {
            Table::Dense(dense) => start(dense),
            Table::Compact(compact) => start(compact),
        };
        Self { known, state, held: Vec::new(), seen: 0, found: VecDeque::new(), masked_to: None, count: 0 }
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn push(&mut self, piece: &[u8], output: &mut Vec<u8>) {
        let known = Arc::clone(&self.known);
        match &known.automaton {
            Table::Dense(dense) => self.search(&known, dense, piece),
            Table::Compact(compact) => self.search(&known, compact, piece),
        }
        self.seen += piece.len() as u64;
        let hold = known.depths.open(self.state);
        self.give(piece, hold, output);
    }

    pub(super) fn finish(&mut self, output: &mut Vec<u8>) {
        self.give(&[], 0, output);
    }

    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    pub(super) fn release(&mut self, how: Release, output: &mut Vec<u8>) {
        if how == Release::Masked && !self.held.is_empty() {
            self.found(self.seen - self.held.len() as u64, self.seen);
        }
        self.give(&[], 0, output);
    }

    fn search(&mut self, known: &Known, automaton: &impl Automaton, piece: &[u8]) {
        let first = start(automaton);
        let mut reader = Reader { at: 0, state: self.state };
        // What began before this piece is followed to its end.
        while reader.at < piece.len() && known.depths.of(reader.state) > reader.at {
            self.step(automaton, &mut reader, piece);
        }
        let stride = known.shortest - GRAM + 1;
        let mut sample = 0;
        while let Some(gram) = piece.get(sample..sample + GRAM) {
            if known.is_gram(gram) {
                reader.jump((sample + GRAM).saturating_sub(known.shortest), first);
                // What began up to here is followed to its end; what begins later, a later gram tells of.
                while reader.at < piece.len()
                    && reader.at - known.depths.of(reader.state).min(reader.at) <= sample
                {
                    self.step(automaton, &mut reader, piece);
                }
            }
            sample += stride;
        }
        // The state at the end is decided by no more bytes than the longest spelling has.
        reader.jump(piece.len().saturating_sub(known.longest), first);
        while reader.at < piece.len() {
            self.step(automaton, &mut reader, piece);
        }
        self.state = reader.state;
    }

    fn step(&mut self, automaton: &impl Automaton, reader: &mut Reader, piece: &[u8]) {
        reader.state = automaton.next_state(Anchored::No, reader.state, piece[reader.at]);
        reader.at += 1;
        if automaton.is_special(reader.state) && automaton.is_match(reader.state) {
            let lengths = (0..automaton.match_len(reader.state))
                .map(|nth| automaton.pattern_len(automaton.match_pattern(reader.state, nth)));
            let longest = lengths.max().unwrap_or(0) as u64;
            let end = self.seen + reader.at as u64;
            self.found(end - longest, end);
        }
    }

    /// Ends come in order, so that only the last places can be touched by a new one.
    fn found(&mut self, mut start: u64, end: u64) {
        while let Some((earlier, _)) = self.found.pop_back_if(|(_, until)| *until >= start) {
            start = start.min(earlier);
        }
        self.found.push_back((start, end));
    }

    /// Gives out everything but the last bytes, masked.
    fn give(&mut self, piece: &[u8], hold: usize, output: &mut Vec<u8>) {
        // Some of it may have been given out before it was decided.
        let hold = hold.min(self.held.len() + piece.len());
        let from = self.seen - piece.len() as u64 - self.held.len() as u64;
        let until = self.seen - hold as u64;
        let begin = output.len();
        output.append(&mut self.held);
        output.extend_from_slice(piece);
        self.held.extend_from_slice(&output[output.len() - hold..]);
        output.truncate(output.len() - hold);
        while let Some((start, end)) = self.found.front().copied().filter(|(start, _)| *start < until) {
            let (first, last) = (start.max(from), end.min(until));
            let place = |at: u64| begin + usize::try_from(at - from).expect("a piece fits into memory");
            output[place(first)..place(last)].fill(self.known.mask);
            if self.masked_to != Some(first) {
                self.count += 1;
            }
            self.masked_to = Some(last);
            if end > until {
                break;
            }
            self.found.pop_front();
        }
    }
}

/// Where the automaton stands in a piece. It never goes back.
struct Reader {
    at: usize,
    state: StateID,
}

impl Reader {
    /// Goes on from this place, unless it has been read already.
    fn jump(&mut self, to: usize, start: StateID) {
        if to > self.at {
            *self = Self { at: to, state: start };
        }
    }
}
