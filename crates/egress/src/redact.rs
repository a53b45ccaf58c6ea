//! Masks secrets in streams on their way to people: the values of known secrets in all their usual spellings, and, in
//! text only, whatever has the shape of a credential.
//!
//! A mask has the length of what it hides, so that offsets keep their meaning. What comes out does not depend on how
//! the stream was cut into pieces.

mod known;
mod shape;
mod spelling;
mod text;

use std::borrow::Cow;
use std::sync::Arc;

use crate::secret::Secret;
use known::{Known, KnownMask};
use shape::ShapeMask;
pub use shape::{NotAShape, Shapes};

/// A secret that is shorter stands in ordinary text by chance, and masking it would garble that.
pub const SHORTEST_SECRET: usize = 6;

/// What is masked. Made once for a set of secrets, and shared by its streams.
#[derive(Debug, Clone)]
pub struct Redaction {
    known: Option<Arc<Known>>,
    shapes: Arc<Shapes>,
}

/// What a stream holds. Shapes are masked in text alone, as binary data looks like anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Until the first byte that cannot be text: from there on it is binary.
    Text,
    Binary,
}

/// How something undecided is given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    AsItIs,
    /// Nothing is given away, at the price of a mask where there may be no secret.
    Masked,
}

impl Redaction {
    /// Secrets below [`SHORTEST_SECRET`] are left out; whoever sets a secret is told so there.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a Secret>, shapes: Shapes) -> Self {
        Self {
            known: Known::new(secrets.into_iter().map(Secret::reveal)).map(Arc::new),
            shapes: Arc::new(shapes),
        }
    }

    /// The same secrets, and these shapes: what was prepared for the secrets is shared.
    pub fn with_shapes(&self, shapes: Arc<Shapes>) -> Self {
        Self { known: self.known.clone(), shapes }
    }

    /// Whether everything goes through as it is.
    pub fn is_empty(&self) -> bool {
        self.known.is_none() && self.shapes.is_empty()
    }

    /// How many bytes before a place decide, together with what follows, whether it belongs to a known secret. Whoever
    /// begins in the middle of a stream begins so much earlier.
    pub fn reach(&self) -> usize {
        self.known.as_ref().map_or(0, |known| known.longest() - 1)
    }

    pub fn stream(&self, content: Content) -> Redactor {
        Redactor {
            known: self.known.as_ref().map(|known| KnownMask::new(Arc::clone(known))),
            shapes: (content == Content::Text && !self.shapes.is_empty())
                .then(|| ShapeMask::new(Arc::clone(&self.shapes))),
            between: Vec::new(),
        }
    }

    /// Masks a whole piece at once; says how many places were masked.
    pub fn whole(&self, content: Content, bytes: &[u8]) -> (Vec<u8>, u64) {
        let mut stream = self.stream(content);
        let mut output = Vec::with_capacity(bytes.len());
        stream.push(bytes, &mut output);
        stream.finish(&mut output);
        (output, stream.count())
    }

    /// Masks a whole text, which stays where it is when there is nothing to mask.
    pub fn text<'a>(&self, text: &'a str) -> (Cow<'a, str>, u64) {
        if self.is_empty() {
            return (Cow::Borrowed(text), 0);
        }
        match self.whole(Content::Text, text.as_bytes()) {
            (_, 0) => (Cow::Borrowed(text), 0),
            // A secret that is not text may end within a character.
            (masked, count) => (Cow::Owned(String::from_utf8_lossy(&masked).into_owned()), count),
        }
    }
}

/// One stream that is being masked.
///
/// The end of a piece that could be the beginning of a secret is held back until the next piece or the end decides.
#[derive(Debug)]
pub struct Redactor {
    known: Option<KnownMask>,
    shapes: Option<ShapeMask>,
    between: Vec<u8>,
}

impl Redactor {
    /// Takes the next piece, and appends what is decided to the output.
    pub fn push(&mut self, piece: &[u8], output: &mut Vec<u8>) {
        match (&mut self.known, &mut self.shapes) {
            (None, None) => output.extend_from_slice(piece),
            (Some(known), None) => known.push(piece, output),
            (None, Some(shapes)) => shapes.push(piece, output),
            (Some(known), Some(shapes)) => {
                self.between.clear();
                known.push(piece, &mut self.between);
                shapes.push(&self.between, output);
            }
        }
    }

    /// The stream has ended: what was held back is decided.
    pub fn finish(&mut self, output: &mut Vec<u8>) {
        self.between.clear();
        if let Some(known) = &mut self.known {
            known.finish(&mut self.between);
        }
        match &mut self.shapes {
            Some(shapes) => {
                shapes.push(&self.between, output);
                shapes.finish(output);
            }
            None => output.extend_from_slice(&self.between),
        }
    }

    /// How many bytes could be the beginning of a known secret, and are held back.
    pub fn held(&self) -> usize {
        self.known.as_ref().map_or(0, KnownMask::held)
    }

    /// Gives out what is held back of a known secret's beginning, as the rest cannot be waited for. The stream goes on: when
    /// the rest comes, it is masked.
    pub fn release(&mut self, how: Release, output: &mut Vec<u8>) {
        let Some(known) = &mut self.known else { return };
        match &mut self.shapes {
            None => known.release(how, output),
            Some(shapes) => {
                self.between.clear();
                known.release(how, &mut self.between);
                shapes.push(&self.between, output);
            }
        }
    }

    /// How many places were masked so far.
    pub fn count(&self) -> u64 {
        self.known.as_ref().map_or(0, KnownMask::count) + self.shapes.as_ref().map_or(0, ShapeMask::count)
    }
}

#[cfg(test)]
mod tests;
