//! Values that must not be seen.

use std::fmt;

/// A secret value. It is never printed: `Debug` shows how long it is, and there is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Box<[u8]>);

impl Secret {
    pub fn new(value: impl Into<Vec<u8>>) -> Self {
        Self(value.into().into())
    }

    /// The value itself. Whoever asks for it sends it to where it belongs, and nowhere else.
    pub fn reveal(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_printed() {
        assert_eq!(format!("{:?}", Some(Secret::new("sk-very-secret"))), "Some(Secret(14 bytes))");
    }
}
