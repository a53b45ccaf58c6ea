//! Which packages may be asked for.

use std::collections::BTreeSet;
use std::str::FromStr;

use pep508_rs::PackageName;

/// Names of packages, all spelled in the one way that indexes compare them (PEP 503). An empty list allows everything.
///
/// It is about what is asked for. What an allowed package depends on comes with it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedPackages(BTreeSet<String>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotAPackage(String);

impl std::fmt::Display for NotAPackage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "'{}' is not the name of a package: expected letters, digits, '-', '_' and '.', as in scikit-learn",
            self.0
        )
    }
}

impl std::error::Error for NotAPackage {}

impl AllowedPackages {
    pub fn parse<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, NotAPackage> {
        let one = |name: &str| {
            let parsed =
                PackageName::from_str(name).map_err(|_| NotAPackage(name.chars().take(80).collect()))?;
            Ok(parsed.to_string())
        };
        names.into_iter().map(one).collect::<Result<_, _>>().map(Self)
    }

    /// `name` is normalised.
    pub(crate) fn includes(&self, name: &PackageName) -> bool {
        self.0.is_empty() || self.0.contains(name.as_ref())
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}
