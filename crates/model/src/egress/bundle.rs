//! Named lists of rules, defined by the operator.

use std::collections::BTreeMap;

use super::Rule;
use super::syntax::{self, SyntaxError};
use crate::Name;

/// Every bundle by its name. An empty bundle is known, and an error to use.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bundles(BTreeMap<Name, Vec<Rule>>);

impl Bundles {
    /// Reads the text of a bundle, which takes the place of one with the same name.
    pub fn define(&mut self, name: Name, text: &str) -> Result<(), SyntaxError> {
        self.0.insert(name, syntax::parse_rules(text)?);
        Ok(())
    }

    pub fn get(&self, name: &Name) -> Option<&[Rule]> {
        self.0.get(name).map(Vec::as_slice)
    }

    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.0.keys()
    }
}
