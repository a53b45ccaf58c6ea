//! Where a stream stops being text.

/// Follows UTF-8 across pieces. A NUL is valid UTF-8 and never in text.
#[derive(Debug, Default)]
pub(super) struct TextCheck {
    /// How many bytes of a character are still to come, and what the next of them may be.
    missing: u8,
    lowest: u8,
    highest: u8,
}

impl TextCheck {
    /// The index of the first byte that cannot be text.
    pub(super) fn first_binary(&mut self, piece: &[u8]) -> Option<usize> {
        let mut at = 0;
        while at < piece.len() {
            if self.missing == 0 {
                at += piece[at..].iter().position(|byte| *byte == 0 || *byte >= 0x80)?;
            }
            if !self.is_next(piece[at]) {
                return Some(at);
            }
            at += 1;
        }
        None
    }

    fn is_next(&mut self, byte: u8) -> bool {
        if self.missing > 0 {
            let good = (self.lowest..=self.highest).contains(&byte);
            (self.missing, self.lowest, self.highest) = (self.missing - 1, 0x80, 0xbf);
            return good;
        }
        let (missing, lowest, highest) = match byte {
            0 => return false,
            1..=0x7f => (0, 0, 0),
            0xc2..=0xdf => (1, 0x80, 0xbf),
            0xe0 => (2, 0xa0, 0xbf),
            0xed => (2, 0x80, 0x9f),
            0xe1..=0xef => (2, 0x80, 0xbf),
            0xf0 => (3, 0x90, 0xbf),
            0xf1..=0xf3 => (3, 0x80, 0xbf),
            0xf4 => (3, 0x80, 0x8f),
            _ => return false,
        };
        (self.missing, self.lowest, self.highest) = (missing, lowest, highest);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn text_is_what_the_standard_library_calls_so(bytes in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..12),
            ".{0,8}".prop_map(String::into_bytes),
            prop::collection::vec(prop::sample::select(vec![0xe0, 0xa0, 0x9f, 0xed, 0xf0, 0x90, 0x8f, 0xf4, 0x80, 0xbf, b'a']), 0..8),
        ]) {
            let mut check = TextCheck::default();
            let by_bytes = bytes.iter().position(|byte| check.first_binary(std::slice::from_ref(byte)).is_some());
            prop_assert_eq!(TextCheck::default().first_binary(&bytes), by_bytes);
            let valid = match std::str::from_utf8(&bytes) {
                Ok(_) => true,
                Err(error) => error.error_len().is_none(),
            };
            prop_assert_eq!(by_bytes.is_none(), valid && !bytes.contains(&0));
        }
    }
}
