//! Paths as assistants write them.

use cubicle_model::{Fault, Kind};

use crate::fault::shown;

/// Where a worker sees the shared files. Assistants know them by it, too.
const SEEN_AT: &str = "/workspace/shared";
const LONGEST: usize = 1024;
const LONGEST_NAME: usize = 255;
pub(crate) const DEEPEST: usize = 32;

/// A path below some directory: names with `/` between them, none of which is `.` or `..`. Empty for the directory itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RelativePath(String);

impl RelativePath {
    /// Of a file or a directory in `shared/`.
    pub(crate) fn in_shared(given: &str) -> Result<Self, Fault> {
        let below = match given.strip_prefix(SEEN_AT) {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => rest.trim_start_matches('/'),
            _ => given,
        };
        Self::parse(below)
    }

    pub(crate) fn parse(given: &str) -> Result<Self, Fault> {
        let refuse = |why: &str| {
            Fault::new(Kind::Invalid, format!("{} is not a path here: {why}", shown(given)))
                .hint("as in 'data/input.csv', relative to /workspace/shared/")
        };
        if given.starts_with('/') {
            return Err(refuse("it is absolute"));
        }
        if given.len() > LONGEST {
            return Err(refuse("it is longer than 1024 bytes"));
        }
        let mut names = Vec::new();
        for name in given.split('/').filter(|name| !name.is_empty() && *name != ".") {
            if name == ".." {
                return Err(refuse("'..' leads out of it"));
            }
            if name.len() > LONGEST_NAME {
                return Err(refuse("a name has more than 255 bytes"));
            }
            if name.chars().any(char::is_control) {
                return Err(refuse("a name has a control character"));
            }
            names.push(name);
        }
        if names.len() > DEEPEST {
            return Err(refuse("it has more than 32 names"));
        }
        Ok(Self(names.join("/")))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The directory and the name in it; none for the directory itself.
    pub(crate) fn split(&self) -> Option<(Self, &str)> {
        if self.is_root() {
            return None;
        }
        let (above, name) = self.0.rsplit_once('/').unwrap_or(("", &self.0));
        Some((Self(above.to_owned()), name))
    }

    pub(crate) fn is_below(&self, above: &Self) -> bool {
        above.is_root()
            || self.0.strip_prefix(&above.0).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_path_is_what_is_left_of_it() {
        let table = [
            ("", ""),
            (".", ""),
            ("data/input.csv", "data/input.csv"),
            ("./data//input.csv/", "data/input.csv"),
            ("/workspace/shared", ""),
            ("/workspace/shared/", ""),
            ("/workspace/shared/scripts/a.py", "scripts/a.py"),
            ("...", "..."),
            ("ä b", "ä b"),
        ];
        for (given, expected) in table {
            assert_eq!(RelativePath::in_shared(given).unwrap().as_str(), expected, "{given}");
        }
    }

    #[test]
    fn what_leads_out_is_refused_with_a_way_out() {
        let long = "a/".repeat(600);
        let deep = "a/".repeat(33);
        let name = "a".repeat(256);
        for given in [
            "..",
            "a/../b",
            "a/..",
            "/etc/passwd",
            "/workspace/shared/../x",
            "/workspace/sharedx",
            "/",
            "a\0b",
            "a\nb",
            &long,
            &deep,
            &name,
        ] {
            let fault = RelativePath::in_shared(given).unwrap_err();
            assert_eq!(fault.kind(), Kind::Invalid, "{given}");
            assert!(fault.way_out().is_some() && !fault.message().contains('\n'), "{fault}");
        }
    }

    #[test]
    fn a_directory_has_itself_and_what_is_in_it() {
        let path = |text| RelativePath::parse(text).unwrap();
        assert!(path("a/b").is_below(&path("a")) && path("a").is_below(&path("a")));
        assert!(path("a").is_below(&path("")) && !path("ab").is_below(&path("a")));
    }

    proptest! {
        #[test]
        fn no_path_leads_out(given in "[a./\\\\ ~]{0,40}") {
            if let Ok(path) = RelativePath::in_shared(&given) {
                prop_assert!(!path.as_str().starts_with('/'));
                prop_assert!(path.as_str().split('/').all(|name| name != ".." && name != "."));
                prop_assert_eq!(RelativePath::parse(path.as_str()).unwrap(), path);
            }
        }
    }
}
