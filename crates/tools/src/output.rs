//! What a command printed, within what an answer holds.

/// The beginning and the end of a stream: where a command was going is at its end.
#[derive(Debug)]
pub(crate) struct Kept {
    most: usize,
    head: Vec<u8>,
    tail: std::collections::VecDeque<u8>,
    pub(crate) written: u64,
}

impl Kept {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, head: Vec::new(), tail: std::collections::VecDeque::new(), written: 0 }
    }

    pub(crate) fn take(&mut self, bytes: &[u8]) {
        self.written += bytes.len() as u64;
        let fits = bytes.len().min((self.most / 2).saturating_sub(self.head.len()));
        self.head.extend_from_slice(&bytes[..fits]);
        self.tail.extend(&bytes[fits..]);
        let surplus = self.tail.len().saturating_sub(self.most - self.most / 2);
        self.tail.drain(..surplus);
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.left_out() > 0
    }

    fn left_out(&self) -> u64 {
        self.written - (self.head.len() + self.tail.len()) as u64
    }

    /// As text; what is not UTF-8 is replaced, and what is missing is said where it is missing.
    pub(crate) fn text(self) -> String {
        let left_out = self.left_out();
        let (mut bytes, tail) = (self.head, Vec::from(self.tail));
        if left_out == 0 {
            bytes.extend_from_slice(&tail);
            return String::from_utf8_lossy(&bytes).into_owned();
        }
        let (head, tail) = (String::from_utf8_lossy(&bytes), String::from_utf8_lossy(&tail));
        format!("{head}\n[… {left_out} bytes are left out here; exec_output reads them …]\n{tail}")
    }
}

/// Makes text of bytes that come in pieces, of which one may end within a character.
#[derive(Debug, Default)]
pub(crate) struct Pieces(Vec<u8>);

impl Pieces {
    pub(crate) fn take(&mut self, bytes: &[u8]) -> String {
        self.0.extend_from_slice(bytes);
        let whole = match std::str::from_utf8(&self.0) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => self.0.len(),
        };
        let rest = self.0.split_off(whole);
        let text = String::from_utf8_lossy(&self.0).into_owned();
        self.0 = rest;
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_that_fits_is_whole_and_more_is_cut_in_its_middle() {
        for length in [0, 1, 9, 10, 11, 1000] {
            for piece in [1, 3, 1000] {
                let bytes: Vec<u8> = (0..length).map(|n| b'a' + (n % 26) as u8).collect();
                let mut kept = Kept::new(10);
                bytes.chunks(piece).for_each(|piece| kept.take(piece));
                let (is_cut, text) = (kept.is_cut(), kept.text());
                assert_eq!(is_cut, length > 10);
                if is_cut {
                    let expected = |part: &[u8]| String::from_utf8(part.to_vec()).unwrap();
                    assert!(
                        text.starts_with(&expected(&bytes[..5]))
                            && text.ends_with(&expected(&bytes[length - 5..]))
                    );
                    assert!(text.contains(&format!("{} bytes are left out", length - 10)), "{text}");
                } else {
                    assert_eq!(text.as_bytes(), bytes);
                }
            }
        }
    }

    #[test]
    fn a_character_in_two_pieces_is_one_character() {
        let mut pieces = Pieces::default();
        let bytes = "aé☃\u{1f980}b".as_bytes();
        let text: String = bytes.iter().map(|byte| pieces.take(&[*byte])).collect();
        assert_eq!(text, "aé☃\u{1f980}b");
        assert_eq!(pieces.take(b"\xff!"), "\u{fffd}!");
    }
}
