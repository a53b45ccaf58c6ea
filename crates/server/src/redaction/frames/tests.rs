use proptest::prelude::*;

use super::*;

const SECRETS: [&str; 3] = ["abcabcab", "bcabca", "hunter2/+secret"];

fn output(seq: u64, kind: RecordKind, stream_offset: u64, bytes: &[u8]) -> OwnedFrame {
    OwnedFrame { seq, time_us: seq, kind, stream_offset, bytes: Bytes::copy_from_slice(bytes) }
}

fn note(seq: u64, kind: RecordKind, json: &str) -> OwnedFrame {
    output(seq, kind, 0, json.as_bytes())
}

/// Pieces of both streams as a journal has them, between a start and an end.
fn journal(pieces: &[(RecordKind, Vec<u8>)]) -> Vec<OwnedFrame> {
    let mut frames = vec![note(1, RecordKind::Start, r#"{"command":"x"}"#)];
    let mut ends = HashMap::<_, u64>::new();
    for (kind, bytes) in pieces {
        let offset = ends.entry(*kind).or_default();
        // Other execs of the sandbox have seqs too.
        let seq = frames.last().map_or(0, |frame| frame.seq) + 1 + (bytes.len() as u64 % 3);
        frames.push(output(seq, *kind, *offset, bytes));
        *offset += bytes.len() as u64;
    }
    let last = frames.last().map_or(0, |frame| frame.seq);
    frames.push(note(last + 1, RecordKind::Exit, "{}"));
    frames.push(note(last + 2, RecordKind::Eof, "{}"));
    frames
}

fn stream(frames: &[OwnedFrame], kind: RecordKind) -> Vec<u8> {
    frames.iter().filter(|frame| frame.kind == kind).flat_map(|frame| frame.bytes.to_vec()).collect()
}

/// What a reader gets that begins at a seq and looks back where it has to.
fn read(masks: &Arc<Masks>, journal: &[OwnedFrame], from_seq: u64) -> Vec<OwnedFrame> {
    let mut mask = FrameMask::new(Arc::clone(masks));
    let mut shown = Vec::new();
    for frame in journal.iter().filter(|frame| frame.seq >= from_seq) {
        if let Some(range) = mask.missing(0, frame) {
            let whole = stream(journal, frame.kind);
            mask.begin(0, frame, &whole[range.start as usize..range.end as usize]);
        }
        mask.push(0, frame.clone());
        shown.extend(std::iter::from_fn(|| mask.pop()).map(|(_, frame)| frame));
    }
    assert!(mask.is_idle(), "everything is decided at the end");
    shown
}

fn same_frames(one: &[OwnedFrame], two: &[OwnedFrame]) -> bool {
    let place = |frame: &OwnedFrame| (frame.seq, frame.kind, frame.stream_offset, frame.time_us);
    one.iter().map(place).eq(two.iter().map(place))
        && one.iter().zip(two).all(|(one, two)| !one.is_output() || one.bytes.len() == two.bytes.len())
}

/// Whoever reads from whichever seq sees the end of what whoever reads everything sees.
fn check(masks: &Arc<Masks>, journal: &[OwnedFrame]) {
    let all = read(masks, journal, 0);
    assert!(same_frames(&all, journal));
    for kind in [RecordKind::Stdout, RecordKind::Stderr] {
        let whole = masks.known.redaction().whole(Content::Binary, &stream(journal, kind)).0;
        assert_eq!(String::from_utf8_lossy(&stream(&all, kind)), String::from_utf8_lossy(&whole));
    }
    for from in 0..=journal.last().map_or(0, |frame| frame.seq) {
        let later = read(masks, journal, from);
        let expected: Vec<_> = all.iter().filter(|frame| frame.seq >= from).cloned().collect();
        assert!(same_frames(&later, &expected), "from {from}");
        for (shown, expected) in later.iter().zip(&expected) {
            assert_eq!(shown.bytes, expected.bytes, "from {from}, frame {}", shown.seq);
        }
    }
}

#[test]
fn a_secret_is_masked_wherever_two_frames_part_it_and_wherever_a_reader_begins() {
    let masks = Masks::of(&["hunter2/+secret"]);
    for spelling in ["hunter2/+secret", "aHVudGVyMi8rc2VjcmV0", "hunter2%2F%2Bsecret"] {
        let text = format!("key={spelling}.\n");
        for first in 0..=text.len() {
            for second in first..=text.len() {
                let part = |range: Range<usize>| (RecordKind::Stdout, text.as_bytes()[range].to_vec());
                let err = || (RecordKind::Stderr, b"hunter2 err\n".to_vec());
                let pieces = [part(0..first), err(), part(first..second), err(), part(second..text.len())];
                let journal = journal(&pieces);
                check(&masks, &journal);
                let shown = stream(&read(&masks, &journal, 0), RecordKind::Stdout);
                assert_eq!(shown, format!("key={}.\n", "*".repeat(spelling.len())).as_bytes());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn every_reader_sees_the_end_of_the_same(pieces in prop::collection::vec(
        (any::<bool>(), prop_oneof![
            "[a-c]{0,5}".prop_map(String::into_bytes),
            prop::sample::select(vec!["hunter2", "/+sec", "ret", "aHVudGVyMi8rc2", "VjcmV0", "\n"]).prop_map(|text| text.as_bytes().to_vec()),
            prop::collection::vec(any::<u8>(), 0..3),
        ]), 0..14)
    ) {
        let kind = |out: &bool| if *out { RecordKind::Stdout } else { RecordKind::Stderr };
        let pieces: Vec<_> = pieces.iter().map(|(out, bytes)| (kind(out), bytes.clone())).collect();
        check(&Masks::of(&SECRETS), &journal(&pieces));
    }

    #[test]
    fn what_is_given_out_in_time_shows_no_more_than_a_reader_with_patience_sees_and_two_bytes(
        pieces in prop::collection::vec((any::<bool>(), "[a-c]{0,9}"), 0..10),
        pauses in prop::collection::vec(any::<bool>(), 12),
    ) {
        let masks = Masks::of(&SECRETS);
        let kind = |out: &bool| if *out { RecordKind::Stdout } else { RecordKind::Stderr };
        let pieces: Vec<_> = pieces.iter().map(|(out, text)| (kind(out), text.clone().into_bytes())).collect();
        let journal = journal(&pieces);
        let patient = read(&masks, &journal, 0);
        let mut mask = FrameMask::new(Arc::clone(&masks));
        let mut shown = Vec::new();
        for (index, frame) in journal.iter().enumerate() {
            mask.push(0, frame.clone());
            if pauses.get(index) == Some(&true) {
                mask.release();
            }
            shown.extend(std::iter::from_fn(|| mask.pop()).map(|(_, frame)| frame));
        }
        prop_assert!(same_frames(&shown, &journal));
        for kind in [RecordKind::Stdout, RecordKind::Stderr] {
            let (hurried, patient) = (stream(&shown, kind), stream(&patient, kind));
            let given_away = hurried.iter().zip(&patient).filter(|(one, two)| **two == b'*' && **one != b'*');
            let pauses = pauses.iter().filter(|pause| **pause).count();
            prop_assert!(given_away.count() <= BY_CHANCE * pauses);
        }
    }
}

fn shown(mask: &mut FrameMask) -> Vec<String> {
    std::iter::from_fn(|| mask.pop())
        .map(|(_, frame)| String::from_utf8_lossy(&frame.bytes).into_owned())
        .collect()
}

#[test]
fn without_secrets_frames_pass_as_they_are() {
    let mut mask = FrameMask::new(Masks::of(&[]));
    let frame = output(7, RecordKind::Stdout, 100, b"sk-abcdefghijklmnopqrstuvwx");
    assert_eq!(mask.missing(0, &frame), None);
    mask.push(0, frame.clone());
    let (_, passed) = mask.pop().unwrap();
    assert_eq!(passed.bytes.as_ptr(), frame.bytes.as_ptr(), "nothing is copied");
}

#[test]
fn a_prompt_waits_for_nobody_unless_its_end_is_really_the_beginning_of_a_secret() {
    let mut mask = FrameMask::new(Masks::of(&["hunter2/+secret"]));
    mask.push(0, output(1, RecordKind::Stdout, 0, b"Password: "));
    assert_eq!(shown(&mut mask), ["Password: "]);
    mask.push(0, output(2, RecordKind::Stdout, 10, b"Which"));
    assert_eq!(shown(&mut mask), [""; 0], "an 'h' may become something");
    assert!(mask.release());
    assert_eq!(shown(&mut mask), ["Which"]);
    mask.push(0, output(3, RecordKind::Stdout, 15, b"? hunter"));
    assert!(!mask.release());
    assert_eq!(shown(&mut mask), [""; 0]);
    mask.push(0, output(4, RecordKind::Stdout, 23, b"s\n"));
    assert_eq!(shown(&mut mask), ["? hunter", "s\n"]);
}

#[test]
fn the_beginning_of_a_secret_that_is_in_the_way_of_others_is_masked() {
    let mut mask = FrameMask::new(Masks::of(&["hunter2/+secret"]));
    mask.push(0, output(1, RecordKind::Stdout, 0, b"a hunter"));
    mask.push(0, output(2, RecordKind::Stderr, 0, b"progress\n"));
    assert_eq!(shown(&mut mask), [""; 0]);
    assert!(mask.release());
    assert_eq!(shown(&mut mask), ["a ******", "progress\n"]);
    mask.push(0, output(3, RecordKind::Stdout, 8, b"2/+secret!"));
    assert_eq!(shown(&mut mask), ["*********!"]);
}

#[test]
fn where_output_is_missing_no_part_of_a_secret_is_shown() {
    let mut mask = FrameMask::new(Masks::of(&["hunter2/+secret"]));
    mask.push(0, output(1, RecordKind::Stdout, 0, b"a hunter2"));
    mask.push(0, output(2, RecordKind::Stdout, 100, b"secret\n"));
    assert_eq!(shown(&mut mask), ["a *******", "secret\n"]);
    mask.push(0, output(3, RecordKind::Stdout, 107, b"a hunter2"));
    mask.push(0, note(4, RecordKind::Truncated, r#"{"stream":"stdout","limit":1}"#));
    assert_eq!(shown(&mut mask), ["a *******", r#"{"stream":"stdout","limit":1}"#]);
}

#[test]
fn frames_that_wait_are_masked_for_a_secret_that_is_set_meanwhile() {
    let mut mask = FrameMask::new(Masks::of(&["hunter2/+secret"]));
    mask.push(0, output(1, RecordKind::Stdout, 0, b"new-secret-value hunter"));
    assert_eq!(shown(&mut mask), [""; 0]);
    for (exec, frame) in mask.replace(Masks::of(&["new-secret-value"])) {
        mask.push(exec, frame);
    }
    assert_eq!(shown(&mut mask), ["**************** hunter"]);
}
