//! The one place that reads the process environment. Everything else is handed what it needs.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// A copy of the environment as the program found it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Environment {
    variables: BTreeMap<OsString, OsString>,
}

impl Environment {
    pub(crate) fn read() -> Self {
        Self { variables: std::env::vars_os().collect() }
    }

    /// The value as text. A value that is not UTF-8 is taken as it can be shown, so that the error about it can
    /// name it.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        self.variables.get(&OsString::from(name)).map(|value| value.to_string_lossy().into_owned())
    }

    /// The value as it is.
    pub(crate) fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        self.variables.get(&OsString::from(name)).map(|value| value.clone().into_vec())
    }

    /// A path; an empty one counts as absent, as the XDG base directory rules say.
    pub(crate) fn path(&self, name: &str) -> Option<PathBuf> {
        self.variables.get(&OsString::from(name)).filter(|value| !value.is_empty()).map(PathBuf::from)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.variables.keys().filter_map(|name| name.to_str())
    }
}

#[cfg(test)]
impl Environment {
    pub(crate) fn from_pairs<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        Self { variables: pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect() }
    }
}

#[cfg(test)]
impl<const N: usize> From<[(&str, &str); N]> for Environment {
    fn from(pairs: [(&str, &str); N]) -> Self {
        Self::from_pairs(pairs)
    }
}
