//! Patterns of file names. `*` and `?` stay within a name, `**` goes through directories, `[a-z]` is one of, `{a,b}` is either.

use regex::{Regex, RegexBuilder};

use super::super::failure::Failure;
use crate::wire::tools::LONGEST_PATTERN;

/// A pattern, for paths that are relative to where the search begins.
#[derive(Debug)]
pub(super) struct Pattern {
    regex: Regex,
    /// A pattern without a slash is about the last name alone.
    of_name: bool,
    /// How many names a path that matches has at most.
    deepest: Option<usize>,
    names_hidden: bool,
}

impl Pattern {
    /// For a whole path.
    pub(super) fn of_path(glob: &str) -> Result<Self, Failure> {
        Self::new(glob, false)
    }

    /// For a filter: one without a slash is about the name, wherever it is.
    pub(super) fn of_filter(glob: &str) -> Result<Self, Failure> {
        Self::new(glob, !glob.contains('/'))
    }

    fn new(glob: &str, of_name: bool) -> Result<Self, Failure> {
        let glob = glob.strip_prefix("./").unwrap_or(glob);
        let invalid = |why: &str| {
            let shown = super::text::shortened(glob, 100);
            Failure::new(400, "invalid_pattern", format!("'{shown}' is not a pattern of names: {why}"))
                .hint("as in '*.py', 'src/**/*.rs', '[ab]?.txt' or '*.{md,txt}'")
        };
        if glob.is_empty() || glob.len() > LONGEST_PATTERN {
            return Err(invalid("it is empty or too long"));
        }
        let source = translated(glob).ok_or_else(|| invalid("a bracket or a brace is not closed"))?;
        let regex = RegexBuilder::new(&format!("(?s)\\A(?:{source})/?\\z"))
            .size_limit(1 << 20)
            .nest_limit(50)
            .build();
        Ok(Self {
            regex: regex.map_err(|_| invalid("it is too complicated"))?,
            of_name,
            deepest: (!glob.contains("**")).then(|| glob.matches('/').count() + 1),
            names_hidden: glob.split('/').any(|name| name.starts_with('.')),
        })
    }

    /// `path` is relative; that of a directory may end in a slash.
    pub(super) fn matches(&self, path: &str) -> bool {
        let path =
            if self.of_name { path.trim_end_matches('/').rsplit('/').next().unwrap_or(path) } else { path };
        self.regex.is_match(path)
    }

    /// Whether something below a directory with so many names in its path can match.
    pub(super) fn goes_below(&self, names: usize) -> bool {
        self.deepest.is_none_or(|deepest| names < deepest)
    }

    pub(super) fn names_hidden(&self) -> bool {
        self.names_hidden
    }
}

/// Where an absolute pattern begins to be one: the directory before that, and the rest.
pub(super) fn split_absolute(glob: &str) -> Option<(String, String)> {
    let names: Vec<&str> = glob.strip_prefix('/')?.split('/').collect();
    let special = |name: &&str| name.contains(['*', '?', '[', '{']);
    let first = names.iter().position(special).unwrap_or(names.len() - 1);
    Some((format!("/{}", names[..first].join("/")), names[first..].join("/")))
}

/// The regular expression of a pattern. None where something is not closed.
fn translated(glob: &str) -> Option<String> {
    let mut regex = String::new();
    let mut rest = glob;
    let mut braces = 0_usize;
    while let Some(next) = rest.chars().next() {
        let at_name = regex.is_empty() || regex.ends_with('/');
        if at_name && let Some(behind) = rest.strip_prefix("**/") {
            regex.push_str("(?:[^/]*/)*");
            // What follows begins a name, too, and `(?:…)*` does not end in a slash.
            rest = behind;
            while let Some(again) = rest.strip_prefix("**/") {
                rest = again;
            }
            continue;
        }
        if let Some(behind) = rest.strip_prefix("**") {
            regex.push_str(".*");
            rest = behind.trim_start_matches('*');
            continue;
        }
        rest = &rest[next.len_utf8()..];
        match next {
            '*' => regex.push_str("[^/]*"),
            '?' => regex.push_str("[^/]"),
            '{' => {
                braces += 1;
                regex.push_str("(?:");
            }
            '}' if braces > 0 => {
                braces -= 1;
                regex.push(')');
            }
            ',' if braces > 0 => regex.push('|'),
            '[' => rest = class(rest, &mut regex)?,
            '\\' => {
                let escaped = rest.chars().next()?;
                regex.push_str(&regex::escape(&escaped.to_string()));
                rest = &rest[escaped.len_utf8()..];
            }
            other => regex.push_str(&regex::escape(&other.to_string())),
        }
    }
    (braces == 0).then_some(regex)
}

/// One of several characters; says what follows it.
fn class<'a>(rest: &'a str, regex: &mut String) -> Option<&'a str> {
    let (negated, members) = match rest.strip_prefix(['!', '^']) {
        Some(members) => (true, members),
        None => (false, rest),
    };
    // A bracket that comes first is a member.
    let first = members.chars().next()?.len_utf8();
    let end = first + members[first..].find(']')?;
    regex.push_str(if negated { "[^/" } else { "[" });
    for member in members[..end].chars() {
        if matches!(member, '[' | ']' | '\\' | '&' | '~' | '^') {
            regex.push('\\');
        }
        regex.push(member);
    }
    regex.push(']');
    Some(&members[end + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_what_a_shell_would_match() {
        let table = [
            ("*.py", "a.py", true),
            ("*.py", "d/a.py", false),
            ("**/*.py", "a.py", true),
            ("**/*.py", "d/e/a.py", true),
            ("d/**", "d/e/f", true),
            ("d/**", "d/", true),
            ("d/**", "e/d/f", false),
            ("d/**/f", "d/f", true),
            ("d/**/f", "d/e/g/f", true),
            ("a?c", "abc", true),
            ("a?c", "a/c", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[!a-c]x", "/x", false),
            ("[]x]", "]", true),
            ("*.{md,txt}", "a.txt", true),
            ("{a,b}/{c,d}", "b/d", true),
            ("a.b", "axb", false),
            ("a+(b)|c", "a+(b)|c", true),
            ("d", "d/", true),
            (r"\*", "*", true),
            (r"\*", "x", false),
            ("é?", "éö", true),
        ];
        for (glob, path, expected) in table {
            assert_eq!(Pattern::of_path(glob).unwrap().matches(path), expected, "{glob} {path}");
        }
    }

    #[test]
    fn a_filter_without_a_slash_is_about_the_name() {
        let filter = Pattern::of_filter("*.py").unwrap();
        assert!(filter.matches("d/e/a.py") && filter.matches("a.py") && !filter.matches("a.pyc"));
        let filter = Pattern::of_filter("d/*.py").unwrap();
        assert!(filter.matches("d/a.py") && !filter.matches("e/d/a.py"));
    }

    #[test]
    fn what_is_not_closed_is_refused() {
        let long = "a".repeat(LONGEST_PATTERN + 1);
        for glob in ["", "[a", "{a,b", "a\\", &long] {
            assert_eq!(Pattern::of_path(glob).unwrap_err().code, "invalid_pattern", "{glob}");
        }
    }

    #[test]
    fn an_absolute_pattern_begins_in_a_directory() {
        let split = |glob| split_absolute(glob).map(|(a, b)| format!("{a} {b}"));
        assert_eq!(split("/etc/*.conf").unwrap(), "/etc *.conf");
        assert_eq!(split("/etc/a/b").unwrap(), "/etc/a b");
        assert_eq!(split("/**/x").unwrap(), "/ **/x");
        assert_eq!(split("a/*"), None);
    }
}
