//! Patterns of paths. `*` and `?` stay within a name, `**` goes through directories, `[a-z]` is one of, `{a,b}` is either.

use cubicle_model::{Fault, Kind};

use crate::fault::shown;

const LONGEST: usize = 256;
const MOST_ALTERNATIVES: usize = 64;

#[derive(Debug, Clone)]
pub(crate) struct Pattern(Vec<Vec<Part>>);

/// What stands between two slashes.
#[derive(Debug, Clone)]
enum Part {
    AnyDirectories,
    Name(Vec<Token>),
}

#[derive(Debug, Clone)]
enum Token {
    One(char),
    AnyOne,
    Any,
    OneOf { negated: bool, ranges: Vec<(char, char)> },
}

impl Pattern {
    pub(crate) fn parse(glob: &str) -> Result<Self, Fault> {
        let refuse = |why: &str| {
            Fault::new(Kind::Invalid, format!("{} is not a pattern: {why}", shown(glob)))
                .hint("as in '*.py', 'data/**/*.csv', '[ab]?.txt' or '*.{md,txt}'")
        };
        let given = glob.strip_prefix("/workspace/shared/").unwrap_or(glob);
        let given = given.strip_prefix("./").unwrap_or(given);
        if given.is_empty() || given.len() > LONGEST {
            return Err(refuse("it is empty or longer than 256 bytes"));
        }
        let mut alternatives = Vec::new();
        expand(given, &mut alternatives).map_err(refuse)?;
        alternatives
            .iter()
            .map(|alternative| alternative.split('/').filter(|name| !name.is_empty()).map(part).collect())
            .collect::<Result<_, _>>()
            .map(Self)
            .map_err(refuse)
    }

    pub(crate) fn matches(&self, path: &str) -> bool {
        let names: Vec<&str> = path.split('/').collect();
        self.0.iter().any(|parts| matches_names(parts, &names))
    }
}

/// Writes out braces, as a shell does.
fn expand(glob: &str, into: &mut Vec<String>) -> Result<(), &'static str> {
    let Some(open) = glob.find('{') else {
        if glob.contains('}') {
            return Err("a brace is not opened");
        }
        if into.len() == MOST_ALTERNATIVES {
            return Err("it has more than 64 alternatives");
        }
        into.push(glob.into());
        return Ok(());
    };
    let (mut depth, mut begins, mut choices, mut close) = (0, open + 1, Vec::new(), None);
    for (at, character) in glob.char_indices().skip_while(|(at, _)| *at < open) {
        match character {
            '{' => depth += 1,
            ',' if depth == 1 => {
                choices.push(&glob[begins..at]);
                begins = at + 1;
            }
            '}' => {
                depth -= 1;
                if depth == 0 {
                    choices.push(&glob[begins..at]);
                    close = Some(at);
                    break;
                }
            }
            _ => {}
        }
    }
    let close = close.ok_or("a brace is not closed")?;
    choices
        .iter()
        .try_for_each(|choice| expand(&format!("{}{choice}{}", &glob[..open], &glob[close + 1..]), into))
}

fn part(name: &str) -> Result<Part, &'static str> {
    if name == "**" {
        return Ok(Part::AnyDirectories);
    }
    let mut tokens = Vec::new();
    let mut rest = name.chars();
    while let Some(next) = rest.next() {
        match next {
            // More stars in a row are one.
            '*' if matches!(tokens.last(), Some(Token::Any)) => {}
            '*' => tokens.push(Token::Any),
            '?' => tokens.push(Token::AnyOne),
            '[' => tokens.push(one_of(&mut rest)?),
            other => tokens.push(Token::One(other)),
        }
    }
    Ok(Part::Name(tokens))
}

fn one_of(rest: &mut std::str::Chars<'_>) -> Result<Token, &'static str> {
    let unclosed = "a bracket is not closed";
    let mut members = Vec::new();
    let mut next = rest.next().ok_or(unclosed)?;
    let negated = next == '!' || next == '^';
    if negated {
        next = rest.next().ok_or(unclosed)?;
    }
    // A bracket that comes first is a member.
    loop {
        members.push(next);
        next = rest.next().ok_or(unclosed)?;
        if next == ']' {
            break;
        }
    }
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < members.len() {
        if at + 2 < members.len() && members[at + 1] == '-' {
            ranges.push((members[at], members[at + 2]));
            at += 3;
        } else {
            ranges.push((members[at], members[at]));
            at += 1;
        }
    }
    Ok(Token::OneOf { negated, ranges })
}

/// `reached[n]`: the parts so far match the first `n` names. Takes parts × names steps, whatever the pattern is.
fn matches_names(parts: &[Part], names: &[&str]) -> bool {
    let mut reached = vec![false; names.len() + 1];
    reached[0] = true;
    for part in parts {
        let mut next = vec![false; names.len() + 1];
        match part {
            Part::AnyDirectories => {
                let mut any = false;
                for (to, from) in next.iter_mut().zip(&reached) {
                    any |= from;
                    *to = any;
                }
            }
            Part::Name(tokens) => {
                for (at, name) in names.iter().enumerate() {
                    next[at + 1] = reached[at] && matches_name(tokens, name);
                }
            }
        }
        reached = next;
    }
    reached[names.len()]
}

fn matches_name(tokens: &[Token], name: &str) -> bool {
    let characters: Vec<char> = name.chars().collect();
    let mut reached = vec![false; characters.len() + 1];
    reached[0] = true;
    for token in tokens {
        let mut next = vec![false; characters.len() + 1];
        if matches!(token, Token::Any) {
            let mut any = false;
            for (to, from) in next.iter_mut().zip(&reached) {
                any |= from;
                *to = any;
            }
        } else {
            for (at, character) in characters.iter().enumerate() {
                next[at + 1] = reached[at] && token.matches(*character);
            }
        }
        reached = next;
    }
    reached[characters.len()]
}

impl Token {
    fn matches(&self, given: char) -> bool {
        match self {
            Self::One(expected) => given == *expected,
            Self::AnyOne | Self::Any => true,
            Self::OneOf { negated, ranges } => {
                ranges.iter().any(|(from, to)| (*from..=*to).contains(&given)) != *negated
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn patterns_match_what_a_shell_would_match() {
        let table = [
            ("*.py", "a.py", true),
            ("*.py", "d/a.py", false),
            ("**/*.py", "a.py", true),
            ("**/*.py", "d/e/a.py", true),
            ("d/**", "d/e/f", true),
            ("d/**", "e/d/f", false),
            ("d/**/f", "d/f", true),
            ("d/**/f", "d/e/g/f", true),
            ("a?c", "abc", true),
            ("a?c", "a/c", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]x]", "]", true),
            ("[a-]", "-", true),
            ("*.{md,txt}", "a.txt", true),
            ("{a,b}/{c,{d,e}}", "b/e", true),
            ("{a,b}/{c,d}", "b/e", false),
            ("a.b", "axb", false),
            ("a+(b)|c", "a+(b)|c", true),
            ("é?", "éö", true),
            ("a***b", "aXb", true),
            ("/workspace/shared/data/*", "data/x", true),
        ];
        for (glob, path, expected) in table {
            assert_eq!(Pattern::parse(glob).unwrap().matches(path), expected, "{glob} {path}");
        }
    }

    #[test]
    fn what_is_not_closed_or_too_much_is_refused() {
        let long = "a".repeat(257);
        let many = "{a,b}".repeat(7);
        for glob in ["", "[a", "[", "[!", "{a,b", "a}", &long, &many] {
            assert_eq!(Pattern::parse(glob).unwrap_err().kind(), Kind::Invalid, "{glob}");
        }
    }

    proptest! {
        #[test]
        fn no_pattern_panics_or_hangs(glob in "[a*?/{},!\\[\\]^é-]{0,60}", path in "[aé/]{0,60}") {
            if let Ok(pattern) = Pattern::parse(&glob) {
                pattern.matches(&path);
            }
        }
    }
}
