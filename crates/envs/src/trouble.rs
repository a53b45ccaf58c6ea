//! What uv says when it fails, as what a caller can act on.

use cubicle_model::{Fault, Kind};

/// What a run of uv came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// A package, by its normalised name, has no wheel for this interpreter.
    NeedsBuild(String),
    /// No set of versions fits.
    Unresolvable(String),
    /// The index cannot be reached, or answers with an error of its own.
    IndexDown(String),
    DiskFull,
    /// A wheel is damaged, is not what the lock says, or does what a wheel may not.
    BadPackage(String),
    TimedOut,
    Other(String),
}

impl Trouble {
    pub(crate) fn read(stderr: &str) -> Self {
        let text = without_passwords(stderr);
        let has = |part: &str| text.contains(part);
        if has("No space left on device") || has("Disk quota exceeded") || has("File too large") {
            return Self::DiskFull;
        }
        if let Some(name) = between(&text, "Wheels are required for `", "`") {
            return Self::NeedsBuild(name.to_owned());
        }
        if has("building from source is disabled") || has("Building source distributions is disabled") {
            let name = between(&text, "Failed to build `", "`").unwrap_or("one of the packages");
            return Self::NeedsBuild(name.split("==").next().unwrap_or_default().to_owned());
        }
        if has("No solution found when resolving") || has("No matching distribution") {
            return Self::Unresolvable(reason(&text));
        }
        let down =
            ["Failed to fetch", "error sending request", "Request failed", "dns error", "Connection refused"];
        if down.iter().any(|part| has(part)) && !has("404 Not Found") {
            return Self::IndexDown(reason(&text));
        }
        let bad = [
            "Hash mismatch",
            "is invalid",
            "Failed to install",
            "Failed to extract",
            "Failed to read",
            "Failed to parse",
            "Failed to unzip",
            "Failed to download",
            "RECORD",
            "does not match",
            "invalid",
        ];
        if bad.iter().any(|part| has(part)) {
            return Self::BadPackage(reason(&text));
        }
        Self::Other(reason(&text))
    }

    pub(crate) fn fault(self) -> Fault {
        match self {
            Self::NeedsBuild(name) => Fault::new(
                Kind::Invalid,
                format!(
                    "the package '{name}' has no wheel for this interpreter: it would have to be built from source, \
                     which needs a compiler"
                ),
            )
            .hint("ask for a version that has a wheel, or put a wheel of it into a directory of sandbox.python_index.find_links"),
            Self::Unresolvable(why) => {
                Fault::new(Kind::Invalid, format!("the requirements cannot be resolved: {why}"))
                    .hint("check names and versions; requirements must fit each other and the Python version")
            }
            Self::IndexDown(why) => {
                Fault::new(Kind::Unavailable, "the package index cannot be reached").because(why).hint(
                    "try again later; if it stays so, check sandbox.python_index and the network of the host",
                )
            }
            Self::DiskFull => disk_full(),
            Self::BadPackage(why) => {
                Fault::new(Kind::Invalid, format!("a package cannot be installed: {why}"))
                    .hint("the file on the index is damaged or malicious; ask for another version")
            }
            Self::TimedOut => Fault::new(Kind::Unavailable, "the environment was not ready in time")
                .hint("try again: what was downloaded so far is kept"),
            Self::Other(why) => Fault::new(Kind::Internal, "uv failed").because(why),
        }
    }
}

pub(crate) fn disk_full() -> Fault {
    Fault::new(Kind::Unavailable, "the disk is full; nothing of the environment was kept")
        .hint("the operator can make room, or lower sandbox.env_cache.max_disk_usage so that old environments go earlier")
}

/// The explanation without its decoration, of a length that fits a message.
fn reason(text: &str) -> String {
    const LONGEST: usize = 1500;
    let mut words = String::new();
    for line in text.lines().map(str::trim) {
        let line = line.trim_start_matches(['×', '╰', '─', '▶', '│', ' ']);
        let line = ["error: ", "cause: ", "Caused by: "]
            .iter()
            .fold(line, |line, start| line.strip_prefix(start).unwrap_or(line));
        if line.is_empty()
            || line.starts_with("hint:")
            || line.starts_with("warning:")
            || line.starts_with("No solution found")
        {
            continue;
        }
        if !words.is_empty() {
            words.push(' ');
        }
        words.push_str(line);
        if words.len() > LONGEST {
            let end = (0..=LONGEST).rev().find(|end| words.is_char_boundary(*end)).unwrap_or_default();
            words.truncate(end);
            words.push('…');
            break;
        }
    }
    if words.is_empty() { "it gave no reason".to_owned() } else { words.trim_end_matches('.').to_owned() }
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let start = text.find(before)? + before.len();
    let length = text[start..].find(after)?;
    Some(&text[start..start + length])
}

/// What stands before an `@` in an address is never repeated.
fn without_passwords(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("://") {
        let (before, after) = rest.split_at(start + 3);
        clean.push_str(before);
        let end = after.find(|c: char| c == '/' || c.is_whitespace()).unwrap_or(after.len());
        match after[..end].rfind('@') {
            Some(at) => rest = &after[at + 1..],
            None => rest = after,
        }
    }
    clean.push_str(rest);
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_uv_says_becomes_what_a_caller_can_act_on() {
        let no_wheel = "error: No solution found when resolving dependencies\n  cause: Because sdonly==1.0 has no usable \
                        wheels and only sdonly==1.0 is available, we can conclude that all versions of sdonly cannot be \
                        used.\n\nhint: Wheels are required for `sdonly` because building from source is disabled for all \
                        packages (i.e., with `--no-build`)\n";
        assert_eq!(Trouble::read(no_wheel), Trouble::NeedsBuild("sdonly".into()));
        let unresolvable = "error: No solution found when resolving dependencies\n  cause: Because there is no version of \
                            requests==99.0 and you require requests==99.0, we can conclude that your requirements are \
                            unsatisfiable.\n";
        assert_eq!(
            Trouble::read(unresolvable),
            Trouble::Unresolvable(
                "Because there is no version of requests==99.0 and you require requests==99.0, we can conclude that your \
                 requirements are unsatisfiable"
                    .into()
            )
        );
        let older = "  × No solution found when resolving dependencies:\n  ╰─▶ Because nothing fits.\n";
        assert_eq!(Trouble::read(older), Trouble::Unresolvable("Because nothing fits".into()));
        let down =
            "error: Failed to fetch: http://127.0.0.1:9/simple/requests/\n  cause: tcp connect error\n";
        assert!(matches!(Trouble::read(down), Trouble::IndexDown(_)));
        assert_eq!(
            Trouble::read("error: failed to write: No space left on device (os error 28)"),
            Trouble::DiskFull
        );
        let mismatch = "error: Failed to download `a==1.0`\n  cause: Hash mismatch for `a==1.0`\n";
        assert!(matches!(Trouble::read(mismatch), Trouble::BadPackage(_)));
        assert_eq!(Trouble::read("error: kaput"), Trouble::Other("kaput".into()));
        assert_eq!(Trouble::read(""), Trouble::Other("it gave no reason".into()));
    }

    #[test]
    fn kinds_are_those_that_callers_are_promised() {
        for (trouble, kind) in [
            (Trouble::NeedsBuild("a".into()), Kind::Invalid),
            (Trouble::Unresolvable(String::new()), Kind::Invalid),
            (Trouble::BadPackage(String::new()), Kind::Invalid),
            (Trouble::IndexDown(String::new()), Kind::Unavailable),
            (Trouble::DiskFull, Kind::Unavailable),
            (Trouble::TimedOut, Kind::Unavailable),
            (Trouble::Other(String::new()), Kind::Internal),
        ] {
            assert_eq!(trouble.fault().kind(), kind);
        }
    }

    #[test]
    fn passwords_in_addresses_are_gone() {
        let said =
            "error: Failed to fetch: https://ada:hun@ter2@index.example/simple and http://b.example/x@y";
        let Trouble::IndexDown(told) = Trouble::read(said) else { panic!("another trouble") };
        assert_eq!(told, "Failed to fetch: https://index.example/simple and http://b.example/x@y");
    }
}
