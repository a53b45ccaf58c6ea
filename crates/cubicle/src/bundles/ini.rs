//! Files of sections, names and values, as pip and npm have them.

/// One setting: its section, its name in lower case, and its value, whose lines are kept apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) section: String,
    pub(super) name: String,
    pub(super) value: String,
}

/// Every setting in the order of the file. What is not one is skipped: other programs complain about their own files.
pub(super) fn entries(text: &str) -> Vec<Entry> {
    let mut section = String::new();
    let mut entries: Vec<Entry> = Vec::new();
    let mut continues = false;
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = trimmed.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name.trim().to_ascii_lowercase();
            continues = false;
            continue;
        }
        if continues
            && line.starts_with(char::is_whitespace)
            && let Some(last) = entries.last_mut()
        {
            last.value.push('\n');
            last.value.push_str(trimmed);
            continue;
        }
        // Scopes and hosts of npm have colons in their names.
        let signs: &[char] = if trimmed.starts_with(['@', '/']) { &['='] } else { &['=', ':'] };
        let Some(at) = trimmed.find(signs) else { continue };
        let (name, value) = (trimmed[..at].trim(), trimmed[at + 1..].trim());
        let quoted = ['"', '\''].into_iter().find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote));
        entries.push(Entry {
            section: section.clone(),
            name: name.to_ascii_lowercase(),
            value: quoted.unwrap_or(value).to_owned(),
        });
        continues = true;
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_names_and_values_are_read_as_their_programs_do() {
        let text = "\
# a comment
before = 1
[global]
Index-URL = https://a.example/simple
extra-index-url =
    https://b.example/simple
    # not this
    https://c.example/simple
; nor this
[install]
index_url: 'https://d.example/simple'
nonsense
@scope:registry=https://e.example/
";
        let found: Vec<(String, String, String)> =
            entries(text).into_iter().map(|entry| (entry.section, entry.name, entry.value)).collect();
        let expected = [
            ("", "before", "1"),
            ("global", "index-url", "https://a.example/simple"),
            ("global", "extra-index-url", "\nhttps://b.example/simple\nhttps://c.example/simple"),
            ("install", "index_url", "https://d.example/simple"),
            ("install", "@scope:registry", "https://e.example/"),
        ];
        let expected: Vec<_> =
            expected.into_iter().map(|(a, b, c)| (a.to_owned(), b.to_owned(), c.to_owned())).collect();
        assert_eq!(found, expected);
    }
}
