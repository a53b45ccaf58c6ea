use std::sync::OnceLock;

use proptest::prelude::*;

use super::*;

fn redaction(secrets: &[&str], shapes: Shapes) -> Redaction {
    let secrets: Vec<_> = secrets.iter().map(|secret| Secret::new(*secret)).collect();
    Redaction::new(&secrets, shapes)
}

fn masked(redaction: &Redaction, content: Content, text: &str) -> (String, u64) {
    let (output, count) = redaction.whole(content, text.as_bytes());
    (String::from_utf8(output).unwrap(), count)
}

fn cut(redaction: &Redaction, content: Content, bytes: &[u8], lengths: &[usize]) -> (Vec<u8>, u64) {
    let mut stream = redaction.stream(content);
    let mut output = Vec::new();
    let mut rest = bytes;
    for length in lengths.iter().cycle().take(bytes.len() + lengths.len()) {
        let (piece, tail) = rest.split_at((*length).min(rest.len()));
        stream.push(piece, &mut output);
        rest = tail;
    }
    stream.push(rest, &mut output);
    stream.finish(&mut output);
    (output, stream.count())
}

#[test]
fn a_known_secret_is_masked_in_every_spelling() {
    let redaction = redaction(&["hunter2/+secret value"], Shapes::none());
    for (text, expected, count) in [
        ("key=hunter2/+secret value.", "key=*********************.", 1),
        ("aHVudGVyMi8rc2VjcmV0IHZhbHVl", "****************************", 1),
        ("hunter2%2F%2Bsecret%20value", "***************************", 1),
        ("hunter2%2F%2Bsecret+value", "*************************", 1),
        ("{\"k\":\"hunter2\\/+secret value\"}", "{\"k\":\"**********************\"}", 1),
        ("hunter2/+secret valuehunter2/+secret value", "******************************************", 1),
        ("hunter2/+secret valu", "hunter2/+secret valu", 0),
    ] {
        assert_eq!(masked(&redaction, Content::Binary, text), (expected.to_owned(), count), "{text}");
    }
}

#[test]
fn overlapping_secrets_are_masked_to_their_last_byte() {
    let redaction = redaction(&["abcdefgh", "efghijkl", "cdefgh"], Shapes::none());
    assert_eq!(masked(&redaction, Content::Binary, "xabcdefghijkly"), ("x************y".into(), 1));
}

#[test]
fn the_mask_is_no_letter_of_a_secret() {
    let redaction = redaction(&["a******", "zzzzzzz"], Shapes::none());
    assert_eq!(masked(&redaction, Content::Binary, "azzzzzzz").0, "a#######");
}

#[test]
fn what_has_the_shape_of_a_credential_is_masked_in_text() {
    let redaction = redaction(&[], Shapes::usual());
    let jwt = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dBjftJeZ4CVPmB92K27uhbUJU1p1r";
    let stars = |length: usize| "*".repeat(length);
    for (text, expected) in [
        (
            "OPENAI_API_KEY=sk-abcdefghijklmnopqrstuvwx\n".to_owned(),
            format!("OPENAI_API_KEY={}\n", stars(27)),
        ),
        ("sk-short".into(), "sk-short".into()),
        // A shape begins where a word does.
        ("task-abcdefghijklmnopqrstuvwxyz".into(), "task-abcdefghijklmnopqrstuvwxyz".into()),
        (format!("ghp_{}", "a".repeat(36)), stars(40)),
        ("AKIAIOSFODNN7EXAMPLE rest".into(), format!("{} rest", stars(20))),
        ("AKIAIOSFODNN7EXAMPL".into(), "AKIAIOSFODNN7EXAMPL".into()),
        (format!("Bearer {jwt};"), format!("Bearer {};", stars(jwt.len()))),
        ("eyJhbGciOiJIUzI1NiJ9.no".into(), "eyJhbGciOiJIUzI1NiJ9.no".into()),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----\nafter".into(),
            "-----BEGIN RSA PRIVATE KEY-----\n****\n***\n-----END RSA PRIVATE KEY-----\nafter".into(),
        ),
        ("-----BEGIN PRIVATE KEY-----\nMIIE".into(), "-----BEGIN PRIVATE KEY-----\n****".into()),
        ("-----BEGIN PUBLIC KEY-----\nMIIE".into(), "-----BEGIN PUBLIC KEY-----\nMIIE".into()),
    ] {
        assert_eq!(masked(&redaction, Content::Text, &text).0, expected, "{text}");
    }
}

#[test]
fn a_shape_never_touches_binary_data_and_a_known_secret_is_masked_there_too() {
    let key = "sk-abcdefghijklmnopqrstuvwx";
    let redaction = redaction(&["known-secret-1"], Shapes::usual());
    assert_eq!(masked(&redaction, Content::Binary, key).0, key);
    let mixed = [key.as_bytes(), b"\0", key.as_bytes(), b" known-secret-1"].concat();
    let (output, count) = redaction.whole(Content::Text, &mixed);
    assert_eq!(output, [&[b'*'; 27][..], b"\0", key.as_bytes(), b" **************"].concat());
    assert_eq!(count, 2);
}

#[test]
fn only_what_could_become_a_secret_is_held_back() {
    let redaction = redaction(&["known-secret-1"], Shapes::usual());
    let mut stream = redaction.stream(Content::Text);
    let mut output = Vec::new();
    stream.push(b"Continue? [y/N] ", &mut output);
    assert_eq!(output, b"Continue? [y/N] ");
    stream.push(b"the known", &mut output);
    assert_eq!(output, b"Continue? [y/N] the ");
    stream.push(b"!", &mut output);
    assert_eq!(output, b"Continue? [y/N] the known!");
    // Nothing longer could come of it.
    stream.push(b"known-secret-1", &mut output);
    assert_eq!(output, b"Continue? [y/N] the known!**************");
}

#[test]
fn shapes_can_be_given() {
    let redaction = redaction(&[], Shapes::new(["tok_[a-f0-9]{8}\\.[A-Z]{2,}"]).unwrap());
    assert_eq!(masked(&redaction, Content::Text, "tok_00ff00ff.ABCx").0, "****************x");
    for (bad, at) in [
        ("ab[a-z]{3}", 1),
        ("abc", 1),
        ("abc[z-a]{3}", 4),
        ("abc[a-z]", 9),
        ("abc(d)[a-z]{3}", 4),
        ("abc[a-z]{x}", 9),
    ] {
        let error = Shapes::new([bad]).unwrap_err().to_string();
        assert!(error.contains(&format!("at character {at})")), "{bad}: {error}");
    }
}

#[test]
fn a_list_of_shapes_may_name_the_usual_ones_or_none() {
    let text = "AKIAIOSFODNN7EXAMPLE tok_0123";
    for (list, expected) in [
        ("usual  tok_[0-9]{4}", "******************** ********"),
        ("tok_[0-9]{4}", "AKIAIOSFODNN7EXAMPLE ********"),
        ("usual", "******************** tok_0123"),
        ("none", text),
    ] {
        let redaction = redaction(&[], Shapes::parse(list).unwrap());
        assert_eq!(masked(&redaction, Content::Text, text).0, expected, "{list}");
        assert_eq!(redaction.is_empty(), list == "none");
    }
    assert!(Shapes::parse("none tok_[0-9]{4}").is_err());
}

#[test]
fn what_is_released_undecided_is_masked_to_its_end_when_the_rest_comes() {
    let redaction = redaction(&["known-secret-1"], Shapes::none());
    let text = b"a known-secret-1 known-secret-";
    for at in 0..=text.len() {
        for (how, shown) in [(Release::AsItIs, true), (Release::Masked, false)] {
            let mut stream = redaction.stream(Content::Binary);
            let mut output = Vec::new();
            stream.push(&text[..at], &mut output);
            let held = stream.held();
            assert_eq!(held + output.len(), at);
            stream.release(how, &mut output);
            assert_eq!((stream.held(), output.len()), (0, at), "nothing is left");
            stream.push(&text[at..], &mut output);
            stream.finish(&mut output);
            let mut expected = redaction.whole(Content::Binary, text).0;
            let released = at - held..at;
            match shown {
                true => expected[released.clone()].copy_from_slice(&text[released]),
                false => expected[released].fill(b'*'),
            }
            assert_eq!(String::from_utf8_lossy(&output), String::from_utf8_lossy(&expected), "{at} {how:?}");
        }
    }
}

#[test]
fn a_text_without_secrets_is_not_copied() {
    let redaction = redaction(&["known-secret-1"], Shapes::usual());
    assert!(matches!(redaction.text("nothing here"), (std::borrow::Cow::Borrowed(_), 0)));
    assert_eq!(redaction.text("a known-secret-1"), ("a **************".into(), 1));
}

#[test]
fn the_mask_does_not_end_a_json_string() {
    let redaction = redaction(
        &["*#x!-secret-$%&'()+,./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[]^_`abcdefghijklmnopqrstuvwxyz"],
        Shapes::none(),
    );
    let (output, _) = masked(
        &redaction,
        Content::Binary,
        "*#x!-secret-$%&'()+,./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[]^_`abcdefghijklmnopqrstuvwxyz",
    );
    assert!(!output.contains(['"', '\\']), "{output}");
}

#[test]
fn many_long_secrets_are_masked_with_the_smaller_table() {
    let secrets: Vec<_> = (0..40).map(|index| format!("{index:04}-{}", "x".repeat(2000))).collect();
    let secrets: Vec<_> = secrets.iter().map(String::as_str).collect();
    let redaction = redaction(&secrets, Shapes::none());
    let text = format!("a{}b", secrets[7]);
    assert_eq!(masked(&redaction, Content::Text, &text).0, format!("a{}b", "*".repeat(2005)));
}

fn soup() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => "[a-c]{1,9}".prop_map(String::into_bytes),
        1 => ".{0,4}".prop_map(String::into_bytes),
        1 => prop::collection::vec(any::<u8>(), 0..3),
        2 => prop::sample::select(vec![
            "abcabcab", "bcabca", "YWJjYWJjYWI", "sk-", "sk-abcabcabcabcabcabcabc", "eyJ", "eyJaaaaaaaa.bbbbbbbb.", ".", "-----",
            "-----BEGIN PRIVATE KEY-----\n", "-----END", "AKIA", "AKIAABCABCABCABCABCA", " ", "\n", "ghp_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        ]).prop_map(|text| text.as_bytes().to_vec()),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_comes_out_does_not_depend_on_the_cuts(
        bytes in soup(),
        lengths in prop::collection::vec(1_usize..9, 1..6),
        text in any::<bool>(),
    ) {
        static REDACTION: OnceLock<Redaction> = OnceLock::new();
        let redaction = REDACTION.get_or_init(|| redaction(&["abcabcab", "bcabca", "cabcabc"], Shapes::usual()));
        let content = if text { Content::Text } else { Content::Binary };
        let (whole, count) = redaction.whole(content, &bytes);
        prop_assert_eq!(whole.len(), bytes.len());
        prop_assert_eq!(&cut(redaction, content, &bytes, &lengths), &(whole.clone(), count));
        prop_assert_eq!(&cut(redaction, content, &bytes, &[1]), &(whole.clone(), count));
        // Only masks differ, and where there are any the count says so. (A key block may be empty.)
        prop_assert!(whole.iter().zip(&bytes).all(|(out, given)| out == given || *out == b'*'));
        prop_assert!(count > 0 || whole == bytes);
    }

    #[test]
    fn no_secret_remains(
        secrets in prop::collection::vec("[a-d+/\" ä-]{6,10}", 1..5),
        bytes in prop::collection::vec(prop_oneof![
            prop::sample::select(vec![0_usize, 1, 2, 3, 4]).prop_map(Ok),
            "[a-d+/\"\\\\%2Fu0 -]{0,6}".prop_map(Err),
        ], 0..12),
        spelled in any::<prop::sample::Index>(),
    ) {
        let values: Vec<_> = secrets.iter().map(|secret| secret.as_bytes()).collect();
        let text: Vec<u8> = bytes.iter().flat_map(|piece| match piece {
            Ok(index) => {
                let all: Vec<_> = spelling::spellings(values[index % values.len()]).into_iter().collect();
                spelled.get(&all).clone()
            }
            Err(text) => text.as_bytes().to_vec(),
        }).collect();
        let borrowed: Vec<_> = secrets.iter().map(String::as_str).collect();
        let (output, _) = redaction(&borrowed, Shapes::none()).whole(Content::Text, &text);
        prop_assert_eq!(output.len(), text.len());
        for spelling in values.iter().flat_map(|value| spelling::spellings(value)) {
            prop_assert!(!output.windows(spelling.len()).any(|part| part == spelling), "{:?}", spelling);
        }
    }
}
