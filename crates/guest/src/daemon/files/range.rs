//! The single byte range of a request.

/// Which part of a file is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Whole,
    /// From the first offset to before the second.
    Bytes(u64, u64),
    /// The range begins behind the end of the file.
    Beyond,
}

/// What a `Range` header asks of a file of this size. As HTTP has it, a header that is not understood, or that has
/// more than one range, is as good as none.
pub(super) fn part(header: Option<&str>, size: u64) -> Part {
    let Some(range) = header.and_then(|text| text.strip_prefix("bytes=")) else { return Part::Whole };
    let Some((first, last)) = range.trim().split_once('-') else { return Part::Whole };
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        // A number that is too big for a file is still a number: it lies behind every end.
        digits.then(|| text.parse().unwrap_or(u64::MAX))
    };
    match (number(first), number(last)) {
        (Some(first), Some(last)) if first > last => Part::Whole,
        (Some(first), Some(_)) if first >= size => Part::Beyond,
        (Some(first), Some(last)) => Part::Bytes(first, last.saturating_add(1).min(size)),
        (Some(first), None) if last.is_empty() && first >= size => Part::Beyond,
        (Some(first), None) if last.is_empty() => Part::Bytes(first, size),
        (None, Some(length)) if first.is_empty() && (length == 0 || size == 0) => Part::Beyond,
        (None, Some(length)) if first.is_empty() => Part::Bytes(size - length.min(size), size),
        _ => Part::Whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_range_gives_its_part() {
        let table = [
            ("bytes=0-0", 10, Part::Bytes(0, 1)),
            ("bytes=2-4", 10, Part::Bytes(2, 5)),
            ("bytes=2-", 10, Part::Bytes(2, 10)),
            ("bytes=2-99", 10, Part::Bytes(2, 10)),
            ("bytes=-3", 10, Part::Bytes(7, 10)),
            ("bytes=-99", 10, Part::Bytes(0, 10)),
            ("bytes=9-9", 10, Part::Bytes(9, 10)),
            ("bytes=0-18446744073709551615", 10, Part::Bytes(0, 10)),
            ("bytes=10-", 10, Part::Beyond),
            ("bytes=10-12", 10, Part::Beyond),
            ("bytes=99999999999999999999-", 10, Part::Beyond),
            ("bytes=-0", 10, Part::Beyond),
            ("bytes=0-", 0, Part::Beyond),
            ("bytes=-5", 0, Part::Beyond),
            ("bytes=4-2", 10, Part::Whole),
            ("bytes=-", 10, Part::Whole),
            ("bytes=", 10, Part::Whole),
            ("bytes=a-b", 10, Part::Whole),
            ("bytes=+1-2", 10, Part::Whole),
            ("bytes=0-1,3-4", 10, Part::Whole),
            ("lines=0-1", 10, Part::Whole),
            ("", 10, Part::Whole),
        ];
        for (header, size, expected) in table {
            assert_eq!(part(Some(header), size), expected, "{header} of {size}");
        }
        assert_eq!(part(None, 10), Part::Whole);
    }
}
